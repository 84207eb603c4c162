"""Look into streams of Hugging Face and webdataset: into how many parts they go, and what cuts them.

Neither library is imported: their objects are known by the modules of their classes. Of webdataset (1.0), a stream is
an object with a list `pipeline`: shards, ``split_by_node`` or ``single_node_only``, ``split_by_worker``, shuffles,
readers.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from ezpz.errors import UsageError
from ezpz.train.data.streams import made_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_BY_NODE = {"split_by_node", "single_node_only"}  # what a webdataset leaves to each rank, by RANK and WORLD_SIZE
_BY_WORKER = "split_by_worker"
# Streams of Hugging Face whose parts would not hold what the whole does: those mixed of several, and the first n. The
# states of parts of joined ones cannot be loaded.
_OF_ALL = ("MultiSources", "Take", "Skip", "Repeat")


def most_parts(stream: Any) -> int | None:
    """Return into how many parts a stream of a known library can share itself out at most; None of another one."""
    if _is_hugging_face(stream):
        whole = without_cuts(stream)
        return 1 if any(word in name for name in made_of(whole) for word in _OF_ALL) else int(whole.num_shards)
    if not _is_webdataset(stream):
        return None
    names = {_name(stage) for stage in stream.pipeline}
    shards = stream.pipeline[0]
    return len(shards) if _BY_WORKER in names and hasattr(shards, "__len__") else 1


def without_cuts(stream: Any) -> Any:
    """Return a stream of a known library without what cuts it by rank; another one as it is."""
    if _is_hugging_face(stream) and getattr(stream, "_distributed", None) is not None:
        whole = copy(stream)
        whole._distributed = None  # noqa: SLF001  # what split_dataset_by_node has set
        return whole
    if _is_webdataset(stream) and any(_name(stage) in _BY_NODE for stage in stream.pipeline):
        whole = copy(stream)
        whole.pipeline = [stage for stage in stream.pipeline if _name(stage) not in _BY_NODE]
        return whole
    return stream


def seeded(stream: Any, seed: int, epoch: int) -> Any:
    """Return a webdataset whose shuffles follow from a seed and the epoch, not from the time; others as they are."""
    if not _is_webdataset(stream):
        return stream
    other = copy(stream)
    other.pipeline = [_seeded_stage(stage, seed, epoch, getattr(stream, "seed", None)) for stage in stream.pipeline]
    return other


def _seeded_stage(stage: Any, seed: int, epoch: int, drawn: Any) -> Any:
    if type(stage).__name__ == "detshuffle":
        stage = copy(stage)
        stage.epoch = epoch - 1
    elif _name(stage) == "_shuffle":
        own = stage.kw.get("seed")
        if stage.kw.get("rng") is None and (own is None or own == drawn):  # drawn: by WebDataset, where nobody chose it
            stage = copy(stage)
            stage.kw = {**stage.kw, "seed": seed}
    return stage


def unwrapped(data: Any) -> Any:
    """Return the DataLoader in a webdataset's WebLoader, with what is done to its batches; other data as they are.

    Raises:
        UsageError: Something comes before the DataLoader.
    """
    if not _is_webdataset(data) or not data.pipeline or not isinstance(data.pipeline[0], DataLoader):
        return data
    loader, *stages = data.pipeline
    if not stages:
        return loader
    if not isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            "a WebLoader with stages of its own over data with a length (from prepare); expected a stream. Prepare its "
            "DataLoader, and do to the samples in the data set what the stages do."
        )
    more = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
    return DataLoader(
        _Staged(loader, stages, data),
        batch_size=None,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        **more,
    )


class _Staged(IterableDataset[Any]):  # type: ignore[misc]  # torch is not type-checked
    """A webdataset, the batches that a DataLoader makes of it, and further stages, in one process."""

    def __init__(self, loader: Any, stages: list[Any], web: Any) -> None:
        self._size, self._collate, self._drop_last = loader.batch_size, loader.collate_fn, loader.drop_last
        self._invoke = type(web).invoke
        self._web = copy(web)
        self._web.pipeline = []
        source = loader.dataset
        self.pipeline = [*getattr(source, "pipeline", [source]), self._batches, *stages]
        self.seed = getattr(source, "seed", None)

    def _batches(self, samples: Iterator[Any]) -> Iterator[Any]:
        if self._size is None:
            yield from map(self._collate, samples)
            return
        batch: list[Any] = []
        for sample in samples:
            batch.append(sample)
            if len(batch) == self._size:
                yield self._collate(batch)
                batch = []
        if batch and not self._drop_last:
            yield self._collate(batch)

    def __iter__(self) -> Iterator[Any]:
        found = self._invoke(self._web, self.pipeline[0])
        for stage in self.pipeline[1:]:
            found = self._invoke(self._web, stage, found)
        return iter(found)


def _is_hugging_face(stream: Any) -> bool:
    return hasattr(stream, "_ex_iterable") and hasattr(stream, "num_shards")


def _is_webdataset(stream: Any) -> bool:
    if isinstance(stream, _Staged):
        return True
    modules = (each.__module__.partition(".")[0] for each in type(stream).__mro__)
    return "webdataset" in modules and isinstance(getattr(stream, "pipeline", None), list)


def _name(stage: Any) -> str:
    """Return the name of a stage's function, if that is webdataset's own."""
    function = getattr(stage, "f", stage)
    return (
        getattr(function, "__name__", "") if str(getattr(function, "__module__", "")).startswith("webdataset") else ""
    )
