"""Give every rank its part of the user's own data: `prepare`.

    loader = ezpz.prepare(DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2))
    for epoch in range(3):
        for x, y in loader:                      # this rank's part, on this rank's device
            loss = cross_entropy(model(x), y)
            (loss * loader.weight).backward()    # 1, but where a last batch is shared unevenly

Each sample comes once per epoch, whatever the number of ranks; what is left at the end of an epoch is shared as evenly
as it goes. Ranks of one replica (tensor parallel) get the same batch.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.dist import weighting
from ezpz.errors import UsageError
from ezpz.log import get_logger
from ezpz.track.step_states import BatchSeen, noted
from ezpz.train.data.checksum import sum_of
from ezpz.train.data.copying import rows_of
from ezpz.train.data.epoch_orders import Draws
from ezpz.train.data.place import Batch, Consumed, Cut, Slot, epoch_order, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from ezpz.train.data.epoch_orders import Order
    from ezpz.train.data.parts import PartPlace
    from ezpz.train.data.same_data import FirstSamples

__all__ = ["Loader", "prepare", "warn_once"]

_KEPT = (  # what a DataLoader is asked for, and the one that takes its place is given
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
OF_LOADERS = frozenset({*_KEPT, "drop_last"})
_DISTRIBUTED = ("DistributedSampler", "StatefulDistributedSampler")
_SLOW_SKIP = 1.0  # seconds from which on the end of a skip is worth a line

logger = get_logger("ezpz.train")


def prepare(
    data: Any,
    *,
    batch_size: int = 0,
    shuffle: bool | None = None,
    seed: int | None = None,
    load: Callable[[Any], Any] | None = None,
    cut: bool | None = None,
    **loader: Any,
) -> Loader:
    """Return a loader of this rank's part of some data.

    Args:
        data: A DataLoader of torch or torchdata, whose settings are kept; a data set of torch or of Hugging Face, with
            a length or as a stream; or a list of files, or of other samples.
        batch_size: Samples per rank and batch; of a DataLoader its own.
        shuffle: Draw another order for each epoch; of a DataLoader its own, otherwise by default True. A stream
            comes in its own order.
        seed: Of the orders, the same on all ranks; by default that of the DataLoader's generator or sampler, else that
            given to `ezpz.setup_torch`, else 0. A resumed run goes on in the order that was saved, unless one is given.
        load: Called with each element of a list, such as a file's path; returns the sample. It runs in the workers.
        cut: Each rank has its own part of the data already, and all of that comes on this rank; every rank calls.
        **loader: Keywords of a DataLoader (``num_workers=2``, ``collate_fn=``, ``drop_last=True``), where ``data`` is
            none.

    Raises:
        UsageError: The data cannot be cut over ranks, or an argument contradicts a DataLoader's.
    """
    if isinstance(data, Loader):
        changes = {**loader, "cut": cut}
        _refuse_changes("a loader that is prepared", data.batch_size, batch_size, shuffle, seed, load, changes)
        return data
    if type(data).__module__.startswith("webdataset"):
        from ezpz.train.data.foreign_streams import unwrapped

        data = unwrapped(data)
    if all(hasattr(data, name) for name in ("dataset", "batch_sampler", "num_workers", "collate_fn")):
        settings = _of_loader(data)
        _refuse_changes("a DataLoader", settings.batch_size, batch_size, shuffle, None, load, loader)
        is_cut = bool(cut) and not _is_one_of(data.sampler, *_DISTRIBUTED)  # of whose data each rank has all
        settings = settings._replace(is_cut=is_cut)
        return Loader(settings if seed is None else settings._replace(seed=seed))
    return Loader(_of_data(data, batch_size, shuffle, seed, load, loader)._replace(is_cut=bool(cut)))


def warn_once(text: str) -> None:
    """Log a warning that is the same on all ranks, once."""
    from ezpz.dist import get_rank

    if get_rank() == 0:
        logger.warning(text)


class Settings(NamedTuple):
    """What is known of the data, and how it is to be read.

    Attributes:
        dataset: With a length, or a stream.
        is_stream: Whether it is one.
        batch_size: Samples per rank and batch.
        shuffle: Whether each epoch has an order of its own.
        seed: Of the orders; None where nobody has chosen one.
        drop_last: Whether a last step that is not full is left out.
        indices: The part of the data set that is used; None for all.
        options: Further keywords for DataLoader.
        draws: The orders of a sampler that is none of those that torch takes each sample once with; None for those.
        is_made: Whether the data set makes batches itself, each of which is then taken for one sample.
        is_cut: Whether the data set holds this rank's part alone.
    """

    dataset: Any
    is_stream: bool
    batch_size: int
    shuffle: bool
    seed: int | None
    drop_last: bool
    indices: Any
    options: dict[str, Any]
    draws: Draws | None = None
    is_made: bool = False
    is_cut: bool = False


class Loader:
    """This rank's part of the data, an epoch per ``for`` loop.

    Attributes:
        weight: What the mean loss of the batch that came last is to be multiplied with, so that the average over ranks
            is the mean over the samples of all ranks: 1 but at the end of an epoch that cannot be shared evenly, and 0
            where this rank had no sample left and repeats another one.
        samples: How many samples of the batch that came last count.
        epoch: The epoch that is under way, or comes next; from 0.
        consumed: Samples of it that all ranks have consumed.
    """

    def __init__(self, settings: Settings) -> None:
        """Take what `prepare` found out."""
        self._settings = settings
        self._weight, self._samples = 1.0, 0
        self._is_weighed = False  # whether the loop has looked at one of the two since the last batch
        self._is_told = False
        self.epoch, self.consumed = 0, 0
        # State of the stream at this place; of data in parts, where each part of this rank is, once some were read.
        self._stream: Any = None
        self._layout: tuple[int, list[PartPlace]] = (0, [])  # ranks that the user has cut for, and where parts began
        self._parts = -1  # into how many the stream goes, once that is known
        self._of_ranks = self._ask_lengths() if settings.is_cut and not settings.is_stream else None
        self._agreed_seed: int | None = None  # of a checkpoint, or of rank 0, where nobody has chosen one
        self._continues = True  # whether the next loop begins at this place, and not with another epoch
        self._agreed = False
        self._torch_loader: Any = None
        self._order: deque[Any] = deque(maxlen=1)
        self._bound: tuple[DeviceMesh | None] | None = None  # the mesh of the model that it is for, once that is known

    @property
    def weight(self) -> float:
        """What the mean loss of the batch that came last is to be multiplied with; see above."""
        self._is_weighed = True
        return self._weight

    @property
    def samples(self) -> int:
        """How many samples of the batch that came last count."""
        self._is_weighed = True
        return self._samples

    @property
    def dataset(self) -> Any:
        """The data set."""
        return self._settings.dataset

    @property
    def batch_size(self) -> int:
        """Samples per rank and batch."""
        return self._settings.batch_size

    @property
    def seed(self) -> int:
        """Seed of the orders: what was chosen, or is that of a checkpoint, or was given to `ezpz.setup_torch`."""
        from ezpz.dist.seeds import run_seed

        chosen = self._agreed_seed if self._settings.seed is None else self._settings.seed
        return run_seed() if chosen is None else chosen

    def __len__(self) -> int:
        """Return the batches of a whole epoch; a stream without a length has none (TypeError)."""
        return self._steps(0, self.cut())

    def _ask_lengths(self) -> tuple[int, int]:
        """Return the samples of all ranks, and the batches of the one with the most; collective."""
        from ezpz.dist import gather_objects

        how = self._settings
        self._agreed_seed, self._of_ranks = None, None
        found = gather_objects((self._length(), self._steps(0, Cut(self.batch_size))))
        batches = [each for _, each in found]
        return sum(samples for samples, _ in found), min(batches) if how.drop_last else max(batches)

    def _steps(self, begin: int, cut: Cut) -> int:
        """Return how many steps this epoch has left after so many samples."""
        if self._of_ranks is not None:
            batches = self._of_ranks[1]
            return batches // cut.accumulate if self._settings.drop_last else -(-batches // cut.accumulate)
        order = self._drawn()
        if order is not None and order.ends is not None:
            batches = sum(end > begin for end in order.ends)
            return -(-batches // (cut.ranks * cut.accumulate))
        return cut.steps(max(0, self._length() - begin), drop_last=self._settings.drop_last)

    def cut(self, accumulate: int = 1) -> Cut:
        """Return how a step is shared out over the ranks of the model's mesh."""
        from ezpz.dist import coordinate, degree
        from ezpz.dist.wrapped_models import mesh_of_data

        mesh = mesh_of_data() if self._bound is None else self._bound[0]
        return Cut(self.batch_size, coordinate(mesh, "dp"), degree(mesh, "dp"), accumulate)

    def bind(self, model: Any) -> Loader:
        """Cut the data by the mesh of this model from now on, and return this loader.

        Raises:
            UsageError: It is for another model, whose mesh cuts data in another way.
        """
        from ezpz.dist.wrapped_models import is_cut_alike, mesh_of

        mesh = mesh_of(model)
        if self._bound is not None and not is_cut_alike(self._bound[0], mesh):
            raise UsageError(
                f"the loader is for a model on {self._bound[0]}, and here is one on {mesh} (from {type(model).__name__}"
                "), which takes other parts of the data; expected models that take the same. Prepare the data once "
                "more for this model."
            )
        self._bound = self._bound or (mesh,)
        return self

    def epoch_steps(self, accumulate: int = 1) -> int | None:
        """Return the steps of a whole epoch; None for a stream."""
        if self._settings.is_stream:
            return None
        return self._steps(0, self.cut(accumulate))

    def steps_left(self, epochs: int, accumulate: int = 1) -> int | None:
        """Return the steps from here to the end of so many epochs since the start of the run; None if not known."""
        if self._settings.is_stream:
            return None
        cut, ahead, draws = self.cut(accumulate), epochs - self.epoch - 1, self._settings.draws
        if draws is not None and not draws.is_steady and (ahead > 0 or self._of_ranks is not None):
            return None
        if self._of_ranks is not None and self.consumed:
            return None
        return self._steps(self.consumed, cut) + ahead * self._steps(0, cut) if ahead >= 0 else 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next loop be that of ``epoch``, from its start unless it is under way; no caller needs it."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._stream = epoch, 0, None
        self._continues = True

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch, or what a resumed run has left of it."""
        if not self._continues:
            self.epoch, self.consumed, self._stream = self.epoch + 1, 0, None
        cut = self.cut()
        for each in self.epoch_batches():
            self.take(each)
            noted.add(each.seen and BatchSeen(*each.seen, cut.rank, cut.ranks))
            weighed = weighting.weighed
            yield each.batch
            if each.share != 1.0 and not self._is_weighed and weighting.weighed == weighed:
                self._say_unweighed(each)
        self.end_epoch()

    def _say_unweighed(self, batch: Batch) -> None:
        """Warn once of a mean loss that counted too much or too little, or of a sample that was counted twice."""
        import torch

        if self._is_told or (batch.samples and not torch.is_grad_enabled()):  # sums and counts of those are right
            return
        self._is_told = True
        logger.warning(
            f"{self._uneven()}, and the loop looked at neither loader.weight nor loader.samples: their mean losses "
            "weigh alike, and a rank without a sample counts one that is repeated. Type `(loss * "
            "loader.weight).backward()`; an evaluation counts loader.samples of a batch, or is ezpz.train.evaluate; "
            "drop_last=True leaves such batches out."
        )

    def _uneven(self) -> str:
        draws = self._settings.draws
        if draws is not None and draws.makes_batches:
            return "ranks have batches of different sizes in a step"
        return "the last batches of an epoch are shared unevenly over ranks"

    def take(self, batch: Batch) -> None:
        """Count a batch of `epoch_batches` as consumed."""
        self._continues = False
        self._weight, self._samples, self._is_weighed = batch.share, batch.samples, False
        if batch.ends_step:
            self.consumed, self._stream = batch.consumed, batch.stream

    def end_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.consumed, self._stream = self.epoch + 1, 0, None
        self._continues = True

    def epoch_batches(self, accumulate: int = 1) -> Iterator[Batch]:
        """Yield the batches from the present place to the end of its epoch, ``accumulate`` per step.

        The place does not move by itself: `take` every batch, and call `end_epoch` at the end.
        """
        from ezpz.dist.device import device
        from ezpz.train.data.copying import copied_ahead

        cut = self.cut(accumulate)
        self._agree(cut)
        if hasattr(self._settings.dataset, "set_epoch"):
            self._settings.dataset.set_epoch(self.epoch)
        places = self._part_places(cut)
        if places is not None:
            found = self._part_batches(cut, places)
        else:
            found = self._stream_batches(cut) if self._settings.is_stream else self._map_batches(cut, self.consumed)
        if self._settings.is_made:
            found = _with_rows(found)
        return copied_ahead(_summed_up(found), device())

    def state_dict(self) -> dict[str, Any]:
        """Return the place, the same on every rank; every rank calls it where the data are in parts."""
        if isinstance(self._stream, dict):
            self._stream = self._gathered()
        return self._consumed(None)._asdict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a place that any number of ranks, with any mesh and batch, has saved.

        A line says where, and whether anything about it cannot be exact.
        """
        saved = Consumed(**state)
        self._take_seed(saved)
        own = self._consumed(saved)
        place = saved.place_in(own.samples)
        doubts = saved.doubts(own)
        if doubts:
            warn_once(
                f"epoch {place.epoch} continues after {place.consumed:,} samples and not exactly: {doubts}. Some "
                "samples of this epoch come twice or not at all; from the next one on each comes once."
            )
        self.epoch, self.consumed, self._stream = *place, saved.stream if saved.kind == "stream" else None
        if own.samples and self.consumed >= own.samples:
            self.epoch, self.consumed = self.epoch + 1, 0
        self._continues = True

    def _take_seed(self, saved: Consumed) -> None:
        """Go on with the seed of a checkpoint where nobody has chosen one."""
        if self._settings.seed is not None or saved.kind == "positions":
            return
        if saved.seed != self.seed and (saved.shuffle or saved.kind == "stream"):
            logger.info(
                f"data: seed={saved.seed} (from the checkpoint), in whose order they go on, and not {self.seed} (from "
                f"setup_torch); prepare(…, seed={self.seed}) would change it."
            )
        self._agreed_seed = saved.seed

    def _consumed(self, saved: Consumed | None) -> Consumed:
        """Return the place; or, of one that was saved, what is to be compared with it: the order of its own epoch."""
        how, at = self._settings, saved or self
        order = None if saved is not None and saved.kind == "positions" else self._drawn(at.epoch)
        samples = 0 if how.is_stream else self._length() if order is None else len(order.indices)
        if self._of_ranks is not None:
            samples, order = self._of_ranks[0], None  # each rank has drawn its own
        kind = "stream" if how.is_stream else "samples"
        drawn = order.digest() if order is not None and at.consumed else 0
        return Consumed(kind, self.epoch, self.consumed, samples, self.seed, how.shuffle, self._stream, drawn)

    def _length(self) -> int:
        how, order = self._settings, self._drawn()
        if order is not None:
            return len(order.indices)
        return len(how.dataset if how.indices is None else how.indices)

    def _drawn(self, epoch: int | None = None) -> Order | None:
        """Return what the sampler draws for an epoch, by default for this one; None of one that is not asked."""
        draws = self._settings.draws
        return None if draws is None else draws.order(self.epoch if epoch is None else epoch, self.seed)

    def _agree(self, cut: Cut) -> None:
        """Make sure that all ranks cut the same data; collective, once."""
        from ezpz.train.data.same_data import compare_samples, compare_settings

        if self._agreed:
            self._compare_orders()
            return
        self._agreed = True
        how = self._settings
        samples = None if how.is_stream or how.is_cut else self._length()
        mine = {"samples": samples, "batch_size": how.batch_size, "accumulate": cut.accumulate, "shuffle": how.shuffle}
        seed = compare_settings({**mine, "drop_last": how.drop_last}, self.seed, is_chosen=how.seed is not None)
        if how.seed is None:
            self._agreed_seed = seed
        if not how.is_stream and not how.is_cut:
            self._compare_orders()
            data = how.dataset.elements if isinstance(how.dataset, _Loaded) else how.dataset
            compare_samples(data, how.indices)

    def _compare_orders(self) -> None:
        """Make sure that a sampler has drawn the same on all ranks; collective, in each epoch."""
        from ezpz.train.data.same_data import refuse_other_orders

        if self._settings.draws is not None and not self._settings.is_cut:
            refuse_other_orders(self._settings.draws.sampler, self._drawn())

    # Data with a length: the main process knows which samples come, and workers load them.

    def _map_batches(self, cut: Cut, begin: int, part: int | None = None) -> Iterator[Batch]:
        samples, drop = self._length(), self._settings.drop_last
        drawn = self._drawn()
        if begin >= samples:
            return iter(())

        def slots() -> Iterator[Slot]:
            if drawn is not None and drawn.ends is not None:
                return cut.whole_batches(begin, drawn.ends)
            return cut.slots(begin, samples, drop_last=drop)

        loader = self._map_loader()
        loader.batch_sampler.slots = slots
        loader.batch_sampler.order, loader.batch_sampler.least = self._epoch_order(), cut.least
        # Workers of one replica draw the same numbers, and those of others draw others.
        loader.generator.manual_seed(epoch_seed(self.seed, self.epoch, 1 + (cut.rank if part is None else part)))
        return self._counted(loader, slots(), cut, begin)

    @staticmethod
    def _counted(loader: Any, slots: Iterator[Slot], cut: Cut, consumed: int) -> Iterator[Batch]:
        for number, (batch, slot) in enumerate(zip(loader, slots, strict=True), 1):
            ends = number % cut.accumulate == 0
            consumed += slot.total if ends else 0
            yield Batch(batch, slot.samples, slot.total, slot.share, consumed, ends, is_even=slot.is_even)

    def _epoch_order(self) -> torch.Tensor | list[Any] | None:
        """Return which samples of the data set come, in their order; None for all as they are."""
        how, drawn = self._settings, self._drawn()
        if drawn is not None:
            found: torch.Tensor | list[Any] = drawn.indices
            return found
        if not how.shuffle:
            return None if how.indices is None else how.indices
        order = epoch_order(self._length(), self.seed, self.epoch)
        return order if how.indices is None else how.indices[order]

    def _map_loader(self) -> Any:
        """Return a DataLoader over this rank's slots; the same one in every epoch, so that its workers may stay."""
        if self._torch_loader is None:
            import torch
            from torch.utils.data import DataLoader

            self._torch_loader = DataLoader(
                self._settings.dataset,
                batch_sampler=_RankIndices(),
                generator=torch.Generator(),
                **self._options(stays=not hasattr(self._settings.dataset, "set_epoch")),
            )
        return self._torch_loader

    def _options(self, *, stays: bool) -> dict[str, Any]:
        """Return keywords for a DataLoader; workers that stay would miss ``set_epoch``."""
        from ezpz.dist import get_torch_device_type

        options = dict(self._settings.options)
        if options.pop("in_order", True) is False:
            warn_once("batches come in their order, and in_order=False is not used: a place counts those before it.")
        if not stays:
            options.pop("persistent_workers", None)
        if get_torch_device_type() == "cuda":
            options["pin_memory"] = True
        return options

    # A stream: one worker reads it.

    def _stream_batches(self, cut: Cut) -> Iterator[Batch]:
        import torch
        from torch.utils.data import DataLoader

        from ezpz.train.data.same_data import FirstSamples
        from ezpz.train.data.stream_numbers import drawn_apart
        from ezpz.train.data.streams import StreamParts

        how, begin = self._settings, self.consumed
        options = self._stream_options()
        collate = options.pop("collate_fn", None) or _collate()
        workers = options.get("num_workers", 0)
        options["num_workers"] = min(1, workers)
        firsts = FirstSamples(self.epoch)
        place = {"skip": begin, "state": self._stream}
        parts = StreamParts(
            *(self._own_stream(), cut, collate), **place, drop_last=how.drop_last, compares=firsts.are_compared
        )
        # All ranks draw the same numbers for it: a stream that shuffles itself must be the same on all ranks.
        generator, same = (torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch, 1)) for _ in range(2))
        loader = DataLoader(parts, batch_size=None, collate_fn=_as_it_is, generator=generator, **options)
        found = loader if options.get("num_workers") else drawn_apart(loader, same)
        return self._counted_parts(found, firsts, cut, begin, workers)

    _is_read_whole = False

    def _say_read_whole(self, cut: Cut, workers: int) -> None:
        """Say once what it costs that nobody can divide a stream."""
        if not self._is_read_whole and (cut.ranks > 1 or workers > 1):
            self._is_read_whole = True
            who = f"each of {cut.ranks} ranks" if cut.ranks > 1 else "one rank"
            warn_once(
                f"the stream {type(self._settings.dataset).__name__} is read whole by {who}, by one worker: nothing "
                "says how to divide it, and more ranks or workers read no faster. One that shares itself out by "
                "torch.utils.data.get_worker_info() is read in parts, and so is what you cut by rank: "
                "prepare(…, cut=True)."
            )

    def _stream_options(self) -> dict[str, Any]:
        """Return keywords for a DataLoader of a stream, whose `worker_init_fn` may look at the stream."""
        from ezpz.train.data.parts import InitOfStream

        options = self._options(stays=False)
        if options.get("worker_init_fn") is not None:
            options["worker_init_fn"] = InitOfStream(options["worker_init_fn"], self._settings.dataset)
        return options

    def _own_stream(self) -> Any:
        from ezpz.train.data.foreign_streams import seeded, without_cuts

        stream = self._settings.dataset
        whole = stream if self._settings.is_cut else without_cuts(stream)
        return seeded(whole, epoch_seed(self.seed, self.epoch, 1), self.epoch)

    # Data in parts: a stream that can be divided, and what the user has cut by rank.

    def _part_places(self, cut: Cut) -> list[PartPlace] | None:
        """Return where each part begins; None of data that are cut here, sample by sample."""
        from ezpz.train.data.parts import PartPlace

        how = self._settings
        if isinstance(self._stream, dict):
            self._stream = self._gathered()
        kept = self._stream[1] if isinstance(self._stream, tuple) and self._stream[0] == "parts" else None
        workers = max(1, how.options.get("num_workers", 0)) if how.is_stream else 1
        if how.is_cut:
            count = cut.ranks * workers
        else:
            count = len(kept["places"]) if kept else 0 if self.consumed or not how.is_stream else self._shared_out(cut)
        if not count:
            return None
        if kept and (kept["cut_for"], len(kept["places"])) == (cut.ranks if how.is_cut else 0, count):
            return [PartPlace(*each) for each in kept["places"]]
        if self.consumed:
            self._say_not_kept(kept, cut, workers)
        return [PartPlace(self.consumed // count)] * count

    def _say_not_kept(self, kept: dict[str, Any] | None, cut: Cut, workers: int) -> None:
        then = "not by rank"
        if kept and kept["cut_for"]:
            then = f"for {kept['cut_for']} ranks, with {len(kept['places']) // kept['cut_for']} workers each,"
        warn_once(
            f"epoch {self.epoch} continues after {self.consumed:,} samples and not exactly: its data were cut {then} "
            f"then, and are cut for {cut.ranks} ranks with {workers} now (cut=True). Each leaves out as many, and some "
            "samples of this epoch come twice or not at all; from the next one on each comes once."
        )

    def _shared_out(self, cut: Cut) -> int:
        """Return into how many parts the stream shares itself out; 0 of one that does not. Collective, once."""
        from ezpz.dist import all_ranks_agree, all_reduce
        from ezpz.train.data.foreign_streams import most_parts
        from ezpz.train.data.parts import may_share_itself_out

        stream, workers = self._own_stream(), self._settings.options.get("num_workers", 0)
        wanted = cut.ranks * max(1, workers)
        if self._parts < 0 and wanted == 1:
            self._parts = 0
        if self._parts < 0:
            most = most_parts(stream)
            parts = 0 if most is None or most < max(cut.ranks, 2) else min(most, wanted)
            if most is None and may_share_itself_out(stream):
                parts = wanted if self._is_shared_out(stream) else 0
            self._parts = parts if all_ranks_agree(parts) else -all_reduce(-parts, "max")
        return self._parts

    def _is_shared_out(self, stream: Any) -> bool:
        """Read the first samples of a stream, to see whether it shares itself out, and alike on all ranks."""
        import torch
        from torch.utils.data import DataLoader

        from ezpz.dist import all_ranks_agree
        from ezpz.train.data.parts import PartProbe
        from ezpz.train.data.same_data import are_compared
        from ezpz.train.data.stream_numbers import drawn_apart

        options = {name: value for name, value in self._stream_options().items() if name != "collate_fn"}
        options["num_workers"] = min(1, options.get("num_workers", 0))
        generator, same = (torch.Generator().manual_seed(epoch_seed(self.seed, self.epoch, 1)) for _ in range(2))
        probe = DataLoader(PartProbe(stream), batch_size=None, collate_fn=_as_it_is, generator=generator, **options)
        ((is_shared_out, digest),) = list(probe if options["num_workers"] else drawn_apart(probe, same))
        return bool(is_shared_out) and (not are_compared() or all_ranks_agree((is_shared_out, digest)))

    def _part_batches(self, cut: Cut, places: list[PartPlace]) -> Iterator[Batch]:
        import torch
        from torch.utils.data import DataLoader

        from ezpz.train.data.parts import PartPlace, PartReader, Piece, in_step, parts_of_rank
        from ezpz.train.data.stream_numbers import drawn_apart

        how = self._settings
        self._layout = (cut.ranks if how.is_cut else 0, places)
        if not how.is_stream:
            mine = {cut.rank: places[cut.rank]}
            found = self._map_batches(Cut(how.batch_size), places[cut.rank].consumed, cut.rank)
            own = (Piece(each.batch, each.samples, {cut.rank: PartPlace(each.consumed)}) for each in found)
            return in_step(own, cut, self.consumed, mine, drop_last=how.drop_last)
        options = self._stream_options()
        collate = options.pop("collate_fn", None) or _collate()
        workers, seed = options.get("num_workers", 0), epoch_seed(self.seed, self.epoch, 1)
        parts = parts_of_rank(places, cut, workers, by_user=how.is_cut)
        reader = PartReader(
            *(self._own_stream(), parts, collate), size=how.batch_size, seed=seed, drop_last=how.drop_last
        )
        generator, same = (torch.Generator().manual_seed(seed) for _ in range(2))
        loader = DataLoader(reader, batch_size=None, collate_fn=_as_it_is, generator=generator, **options)
        mine = {part.number: part.place for each in parts for part in each}
        pieces: Iterator[Piece] = iter(loader if workers else drawn_apart(loader, same))
        return in_step(pieces, cut, self.consumed, mine, drop_last=how.drop_last)

    def _gathered(self) -> tuple[str, dict[str, Any]]:
        """Return where all parts of all ranks are; collective."""
        from ezpz.dist import gather_objects

        cut_for, begun = self._layout
        places = [tuple(each) for each in begun]
        for theirs in gather_objects(self._stream):
            for number, place in theirs.items():
                places[number] = tuple(place)
        return "parts", {"cut_for": cut_for, "places": places}

    def _counted_parts(
        self, loader: Iterable[Any], firsts: FirstSamples, cut: Cut, consumed: int, workers: int
    ) -> Iterator[Batch]:
        skipped = consumed if self._stream is None else 0
        start = perf_counter()
        if skipped:
            from ezpz.train.data.streams import has_buffer

            why, cure = "this stream has no state", "One with state_dict() and load_state_dict()"
            if has_buffer(self._settings.dataset):
                why, cure = "the state of this stream leaves out its shuffle buffer", "One without .shuffle()"
            warn_once(
                f"epoch {self.epoch}: {why}, so that its first {skipped:,} samples are read again and dropped, on "
                f"every rank. {cure} would continue at once."
            )
        number = 0
        for number, part in enumerate(loader, 1):
            if number == 1:
                firsts.compare_first(part.digest)
                self._say_read_whole(cut, workers)
                if skipped and perf_counter() - start > _SLOW_SKIP:
                    logger.info(f"{skipped:,} samples were read and dropped in {perf_counter() - start:.1f} s")
            if (number - 1) % cut.accumulate == 0:
                firsts.add(part.digest)
            ends = number % cut.accumulate == 0
            consumed += part.total if ends else 0
            share = part.samples * cut.ranks / part.total
            is_even = cut.is_even(part.total)
            yield Batch(part.batch, part.samples, part.total, share, consumed, ends, part.state, is_even)
        if not number:
            firsts.compare_first()
        firsts.compare_all()


def _with_rows(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches that the data have made, each with the samples in it instead of 1."""
    for each in batches:
        rows = rows_of(each.batch)
        yield each._replace(samples=rows if each.samples else 0, total=each.total * rows)


def _summed_up(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches with their sums, as long as the host has them."""
    for each in batches:
        yield each._replace(seen=sum_of(each.batch))


class _RankIndices:
    """The batch sampler: indices of this rank's samples, and some to be repeated where there are none."""

    def __init__(self) -> None:
        self.slots: Callable[[], Iterator[Slot]] = lambda: iter(())
        self.order: Any = None
        self.least = 1  # samples of a batch that does not count

    def __iter__(self) -> Iterator[list[int]]:
        for slot in self.slots():
            stop = slot.stop if slot.samples else slot.start + min(slot.total, self.least)
            taken = range(slot.start, stop) if self.order is None else self.order[slot.start : stop]
            yield taken.tolist() if hasattr(taken, "tolist") else list(taken)


class _Loaded:
    """A list whose elements a function turns into samples."""

    def __init__(self, elements: Any, load: Callable[[Any], Any]) -> None:
        self.elements, self._load = elements, load

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self._load(self.elements[index])


def _collate() -> Callable[[list[Any]], Any]:
    from torch.utils.data import default_collate

    found: Callable[[list[Any]], Any] = default_collate
    return found


def _as_it_is(value: Any) -> Any:
    return value


# What the user gave.


def _refuse_changes(  # noqa: PLR0917  # the arguments of `prepare`
    what: str, size: int, batch_size: int, shuffle: bool | None, seed: int | None, load: Any, loader: dict[str, Any]
) -> None:
    changes = {"shuffle": shuffle, "seed": seed, "load": load, **loader}
    changed = [name for name, value in changes.items() if value is not None]
    if batch_size not in {0, size}:
        changed.insert(0, f"batch_size={batch_size}, where its own is {size}")
    if changed:
        raise UsageError(
            f"{what} brings its own settings, and here is another {changed[0]} (from prepare); expected one place. "
            "Set it there."
        )


def _of_loader(loader: Any) -> Settings:
    """Return the settings of a DataLoader.

    Raises:
        UsageError: It has a state of its own.
    """
    if getattr(loader, "next_iter_state", None) is not None:
        raise UsageError(
            "this StatefulDataLoader has loaded a state of its own, which counts the batches of one rank (from "
            "prepare); expected one at its start. Save and load the state of what prepare returns."
        )
    options = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if not options.get("pin_memory_device"):
        options.pop("pin_memory_device", None)  # torch warns of it
    if not options["num_workers"]:
        options = {name: value for name, value in options.items() if name not in {"prefetch_factor", "in_order"}}
    seed = _seed_of(loader.generator)
    if loader.batch_size is None and loader.batch_sampler is None:
        options["collate_fn"] = _Alone(options["collate_fn"])
    if _is_stream(loader.dataset):
        size, is_made = loader.batch_size or 1, loader.batch_size is None
        return Settings(loader.dataset, True, size, False, seed, loader.drop_last, None, options, is_made=is_made)
    batches = loader.batch_sampler
    if batches is not None and not _is_one_of(batches, "BatchSampler"):
        draws: Draws | None = Draws(batches, makes_batches=True, samples=len(loader.dataset))
        return Settings(loader.dataset, False, 1, True, seed, False, None, options, draws)
    sampler = loader.sampler if batches is None else batches.sampler
    size, drop = (1, False) if batches is None else (batches.batch_size, batches.drop_last)
    shuffle, own_seed, indices, draws = _order_of(sampler, loader.dataset)
    chosen = own_seed if own_seed is not None else seed
    return Settings(loader.dataset, False, size, shuffle, chosen, drop, indices, options, draws, batches is None)


def _order_of(sampler: Any, dataset: Any) -> tuple[bool, int | None, Any, Draws | None]:
    """Return whether a sampler shuffles, its seed, its part of the data, and what draws where it has to be asked."""
    import torch

    if _is_one_of(sampler, "SequentialSampler"):
        if len(sampler) == len(dataset):
            return False, None, None, None
        return False, None, torch.arange(len(sampler)), None  # of the first ones only
    if _is_one_of(sampler, "RandomSampler") and not sampler.replacement and sampler.num_samples == len(dataset):
        is_torch = type(sampler).__module__.startswith("torch.")  # torchdata's draws a seed where nobody chooses one
        return True, _seed_of(sampler.generator) if is_torch else None, None, None
    if _is_one_of(sampler, *_DISTRIBUTED):
        return bool(sampler.shuffle), int(sampler.seed), None, None
    if _is_one_of(sampler, "SubsetRandomSampler"):
        return True, _seed_of(sampler.generator), torch.as_tensor(list(sampler.indices), dtype=torch.int64), None
    seed = _seed_of(getattr(sampler, "generator", None))
    return True, seed, None, Draws(sampler, makes_batches=False, samples=len(dataset))


def _is_one_of(sampler: Any, *names: str) -> bool:
    """Tell whether a sampler is torch's or torchdata's own of this name; a class made of one may do anything."""
    kind = type(sampler)
    return kind.__name__ in names and kind.__module__.partition(".")[0] in {"torch", "torchdata"}


class _Alone:
    """Takes a batch that the data set has made for what it is."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self._convert = convert

    def __call__(self, samples: list[Any]) -> Any:
        return self._convert(samples[0])


def _seed_of(generator: Any) -> int | None:
    return int(generator.initial_seed()) % 2**40 if hasattr(generator, "initial_seed") else None


def _of_data(  # noqa: PLR0917  # the arguments of `prepare`
    data: Any, batch_size: int, shuffle: bool | None, seed: int | None, load: Any, loader: dict[str, Any]
) -> Settings:
    """Return the settings of data without a DataLoader.

    Raises:
        UsageError: They are no data, or lack a batch size.
    """
    from inspect import signature

    from torch.utils.data import DataLoader

    drop = bool(loader.pop("drop_last", False))
    known = {*_KEPT} & signature(DataLoader).parameters.keys()
    strange = sorted(loader.keys() - known)
    if strange:
        raise UsageError(
            f"unknown or unusable argument {strange[0]!r} (from prepare); expected batch_size, shuffle, seed, load, "
            f"drop_last, or of a DataLoader {', '.join(sorted(known))}."
        )
    if isinstance(data, dict) or not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        names = f": {', '.join(map(str, data))}" if isinstance(data, dict) else ""
        raise UsageError(
            f"cannot take samples from a {type(data).__name__}{names} (from prepare); expected a DataLoader, a data "
            "set, or a list of files or samples. Name one of its parts, or wrap it."
        )
    if hasattr(data, "__next__"):
        raise UsageError(
            f"a {type(data).__name__} can be read once, and epochs and resumed runs read from the start (from "
            "prepare); expected data that can be read again. Give a list, or an IterableDataset."
        )
    if batch_size < 1:
        raise UsageError(f"unusable batch_size={batch_size} (from prepare); expected the samples per rank and batch.")
    is_stream = _is_stream(data)
    if is_stream and shuffle:
        raise UsageError(
            f"a {type(data).__name__} without a length comes in its own order, and shuffle=True cannot change it (from "
            "prepare); expected data with a length. Let the stream shuffle itself, with a seed."
        )
    if load is not None:
        if is_stream:
            raise UsageError("load= is for elements of a list (from prepare); expected a stream that yields samples.")
        data = _Loaded(data, load)
    elif isinstance(data, (list, tuple)) and data and isinstance(data[0], Path):
        data = [str(path) for path in data]  # what workers send and torch's collate function takes
    return Settings(data, is_stream, batch_size, shuffle is not False and not is_stream, seed, drop, None, loader)


def _is_stream(data: Any) -> bool:
    """Tell whether samples can only be had one after the other; an IterableDataset of torch may have a length."""
    from torch.utils.data import IterableDataset

    return isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
