"""Make sure that all ranks have the same data, which are then cut over them: else samples come twice, and others never.

Nothing is loaded for it: a data set may be slow, random, or one whose files must not be opened before workers start. Of
data with a length the ranks compare what lies in memory and has an element per sample, at some places: the elements of
a list, rows of tensors, arrays and tables, indices of a Subset, and of any other data set its attributes of that kind
(``self.files``). Of a stream they compare its samples, which each rank reads anyway. ``EZPZ_COMPARE_DATA=0`` leaves
all of it out.
"""

from __future__ import annotations

import os
from array import array
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from ezpz.errors import UsageError
from ezpz.train.data.checksum import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ezpz.train.data.epoch_orders import Order

_MOST_VALUES = 16_384  # texts and numbers of a list that are compared; of a longer one as many, evenly spread
_MOST_ROWS = 64  # rows of a tensor, an array or a table, and other elements of a list
_FEW = 16  # elements of an attribute that is looked into: the tensors of a TensorDataset, the parts of a ConcatDataset
_DEEPEST = 4  # data sets in data sets
_MOST_DOUBTS = 20  # parts that are looked at once they have shown to differ
_LONGEST = 60  # characters of a sample in a message
_NO_SAMPLE = -1  # the digest of a stream without one
_IS_CUT = "Where each rank has a part of its own on purpose, type prepare(…, cut=True)."
_REST = (
    "expected the same on all ranks, because prepare cuts them over ranks itself. Give it all of the data on every "
    "rank, without what cuts them by rank"
)


def are_compared() -> bool:
    """Tell whether ranks compare their data: where there are several, unless the user has switched it off."""
    from ezpz.dist import get_world_size

    return get_world_size() > 1 and os.environ.get("EZPZ_COMPARE_DATA") != "0"


def compare_settings(mine: Mapping[str, Any], seed: int, *, is_chosen: bool) -> int:
    """Make sure that all ranks read data alike, and return the seed of their order: rank 0's, where none was chosen.

    Raises:
        UsageError: They do not; the same on all ranks.
    """
    from ezpz.dist import all_ranks_agree, gather_objects

    every = {**mine, **({"seed": seed} if is_chosen else {})}
    if all_ranks_agree((every, seed)):
        return seed
    found = gather_objects((every, seed))
    first = found[0][0]
    for rank, (theirs, _) in enumerate(found):
        for name in {**first, **theirs}:
            if first.get(name) != theirs.get(name):
                raise UsageError(
                    f"ranks have different data: {name}={first.get(name)} on rank 0 and {name}={theirs.get(name)} on "
                    f"rank {rank} (from prepare); {_REST} (a Subset, .shard, split_dataset_by_node). {_IS_CUT}"
                )
    return found[0][1]


class _Part(NamedTuple):
    """Something in memory that has an element for each sample, or is one of the data's few parts.

    Attributes:
        name: Where it is: ``Subset.indices``.
        places: Which elements are compared.
        element: Returns one.
    """

    name: str
    places: Sequence[int]
    element: Callable[[int], Any]

    def digests(self) -> array[int]:
        """Return a number for each of its places, 0 where nothing is known."""
        return array("I", (self._digest(place) for place in self.places))

    def _digest(self, place: int) -> int:
        try:
            element = self.element(place)
        except Exception:  # noqa: BLE001  # a table may be of any class, and this is only a comparison
            return 0
        element = os.fspath(element) if isinstance(element, os.PathLike) else element
        return crc32(repr(element).encode()) or 1 if _is_plain(element) else digest_of(element)

    def text(self, place: int) -> str:
        """Return an element for a message."""
        element = self.element(place)
        is_shown = _is_plain(element) or type(element) in {dict, list}
        shown = repr(element) if is_shown else f"another {type(element).__name__}"
        return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def compare_samples(data: Any, indices: Any = None) -> None:
    """Make sure that all ranks hold the same samples in the same order, as far as that lies in memory; collective.

    Args:
        data: With a length.
        indices: The part of them that a sampler takes; None for all.

    Raises:
        UsageError: They do not; the same on all ranks.
    """
    from ezpz.dist import all_ranks_agree, gather_objects, get_rank

    if not are_compared():
        return
    parts = {part.name: part for part in _parts(data, len(data), "", _DEEPEST, set())}
    if indices is not None:
        parts |= {part.name: part for part in _parts(indices.tolist(), 0, "the sampler's indices", 1, set())}
    digests = {name: part.digests() for name, part in parts.items()}
    sums = {name: crc32(found) for name, found in digests.items()}
    if all_ranks_agree(sums):
        return
    every = gather_objects(sums)
    doubts = [
        (name, rank)
        for rank, theirs in enumerate(every)
        for name in every[0]
        if name in theirs and theirs[name] != every[0][name]
    ]
    for name, rank in doubts[:_MOST_DOUBTS]:
        is_asked = get_rank() in {0, rank}
        found = gather_objects(digests[name] if is_asked else None)
        one, two = found[0] or array("I"), found[rank] or array("I")
        differ = (number for number, (a, b) in enumerate(zip(one, two, strict=False)) if a != b and a and b)
        number = next(differ, None)
        if number is None:
            continue
        texts = gather_objects(parts[name].text(parts[name].places[number]) if is_asked else "")
        where = f"{name}[{gather_objects(parts[name].places[number] if is_asked else 0)[0]}]"
        raise UsageError(
            f"ranks have different data: {where} is {texts[0]} on rank 0 and {texts[rank]} on rank {rank} (from "
            f"prepare); {_REST} (a Subset, .shard, split_dataset_by_node), and in one order: sorted(files), "
            f"random_split(…, generator=torch.Generator().manual_seed(0)). {_IS_CUT} EZPZ_COMPARE_DATA=0 leaves this "
            "comparison out."
        )


def refuse_other_orders(sampler: Any, order: Order | None) -> None:
    """Make sure that a sampler has drawn the same order on all ranks; collective.

    Raises:
        UsageError: It has not; the same on all ranks.
    """
    from ezpz.dist import all_ranks_agree

    if order is None or not are_compared() or all_ranks_agree((order.digest(), order.ends)):
        return
    raise UsageError(
        f"ranks draw different samples: the order of {type(sampler).__name__} is not the same on all ranks (from "
        "prepare); expected one order, which prepare cuts over ranks itself: drawn from the generators of random, "
        "numpy and torch, which draw alike on all ranks meanwhile, or from a seed and the epoch that set_epoch(epoch) "
        "tells. "
        f"{_IS_CUT} EZPZ_COMPARE_DATA=0 leaves this comparison out."
    )


def _parts(data: Any, least: int, name: str, depth: int, seen: set[int]) -> Iterator[_Part]:
    """Yield what of some data has at least so many elements."""
    if id(data) in seen:
        return
    seen.add(id(data))
    kind = type(data)
    if kind in {list, tuple, range}:
        is_other = kind is tuple and "." in name and len(data) <= _FEW  # a size, a range: nothing per sample
        if len(data) >= least and not is_other:
            most = _MOST_VALUES if len(data) and _is_plain(data[0]) else _MOST_ROWS
            yield _Part(name or "the list", _spread(len(data), most), data.__getitem__)
        if depth and len(data) <= _FEW and kind is not range:
            yield from _parts_of_few(enumerate(data), least, name, depth, seen)
    elif kind is dict:  # counters and caches are often dicts, and differ
        if depth and len(data) <= _FEW:
            yield from _parts_of_few(data.items(), least, name, depth, seen)
    elif _is_table(data):
        if len(data) >= least:
            yield _Part(name or kind.__name__, _spread(len(data), _MOST_ROWS), _row_of(data))
    elif depth and (not name or _is_data_set(data)):
        try:
            size = len(data)
        except Exception:  # noqa: BLE001  # one that opens its files later, in workers
            return
        for key, value in dict(getattr(data, "__dict__", {})).items():
            yield from _parts(value, size, f"{name or kind.__name__}.{key.lstrip('_')}", depth - 1, seen)


def _parts_of_few(items: Any, least: int, name: str, depth: int, seen: set[int]) -> Iterator[_Part]:
    for key, value in items:
        if _is_table(value) or _is_data_set(value):
            yield from _parts(value, least, f"{name}[{key!r}]", depth - 1, seen)


def _spread(count: int, most: int) -> Sequence[int]:
    return range(count) if count <= most else [count * k // most for k in range(most)]


def _is_plain(value: Any, depth: int = 2) -> bool:
    """Tell whether equal values are written alike: texts and numbers, and short tuples and lists of them."""
    if type(value) in {tuple, list}:
        return depth > 0 and len(value) <= _FEW and all(_is_plain(each, depth - 1) for each in value)
    return isinstance(value, (str, bytes, int, float, PurePath))


def _is_table(data: Any) -> bool:
    """Tell whether rows can be taken from memory: a tensor, an array, a table of pandas, or a data set in Arrow."""
    kind = type(data)
    module = kind.__module__.partition(".")[0]
    if kind.__name__ in {"Tensor", "ndarray", "memmap"}:
        return module in {"torch", "numpy"} and data.ndim > 0
    return (module == "pandas" and hasattr(data, "iloc")) or (module == "datasets" and hasattr(data, "with_format"))


def _row_of(data: Any) -> Callable[[int], Any]:
    if hasattr(data, "with_format"):  # without what transforms its rows, and decodes its images
        arrow = data.with_format("arrow")
        return lambda place: arrow[place].to_pylist()[0]
    if hasattr(data, "iloc"):
        return lambda place: _values(data.iloc[place])
    if hasattr(data, "untyped_storage"):
        return lambda place: _values(data[place].detach().cpu())
    return lambda place: _values(data[place])


def _values(row: Any) -> Any:
    """Return a row in a form that can be shown where it is short."""
    return row.tolist() if hasattr(row, "tolist") and getattr(row, "size", None) != 0 and _is_short(row) else row


def _is_short(row: Any) -> bool:
    size = row.numel() if hasattr(row, "numel") else getattr(row, "size", 1)
    return bool(size <= _FEW)


def _is_data_set(value: Any) -> bool:
    from torch.utils.data import Dataset

    return isinstance(value, Dataset) and hasattr(value, "__len__")


class FirstSamples:
    """What ranks compare of an epoch of a stream: the first sample of each step."""

    def __init__(self, epoch: int) -> None:
        """Begin an epoch.

        Args:
            epoch: Its number, for messages.
        """
        self._epoch = epoch
        self._digests = array("I")
        self.are_compared = are_compared()

    def add(self, digest: int) -> None:
        """Take that of another step."""
        if self.are_compared:
            self._digests.append(digest)

    def compare_first(self, digest: int = _NO_SAMPLE) -> None:
        """Make sure that all ranks begin with the same sample; collective.

        Raises:
            UsageError: They read different streams; the same on all ranks.
        """
        from ezpz.dist import all_ranks_agree, gather_objects

        if not self.are_compared or all_ranks_agree(digest):
            return
        every = gather_objects(digest)
        for rank, other in enumerate(every):
            if other != every[0] and (_NO_SAMPLE in {other, every[0]} or (other and every[0])):
                raise UsageError(
                    f"ranks read different streams: in epoch {self._epoch} the first sample of rank {rank} is not that "
                    f"of rank 0 (from prepare); {_CURE}"
                )

    def compare_all(self) -> None:
        """Make sure that all ranks have read the same epoch; collective.

        Raises:
            UsageError: They have not; the same on all ranks.
        """
        from ezpz.dist import all_ranks_agree, gather_objects

        if not self.are_compared or all_ranks_agree(crc32(self._digests)):
            return
        every = gather_objects(self._digests)
        for rank, theirs in enumerate(every):
            pairs = enumerate(zip(every[0], theirs, strict=False))
            step = next((number for number, (a, b) in pairs if a != b and a and b), None)
            if step is not None:
                raise UsageError(
                    f"ranks read different streams: the samples of epoch {self._epoch} were not the same on all ranks, "
                    f"rank {rank} read others than rank 0 from step {step} of it on (from prepare); {_CURE}"
                )


_CURE = (
    "expected the same stream on all ranks, of which prepare gives each its part. Leave out what shares the stream out "
    "already (split_dataset_by_node, a rank in the data set), and let it draw its order from the epoch: a "
    "random.Random(seed + epoch) of its own, with set_epoch(epoch), which prepare calls, or the generators of random, "
    f"numpy and torch, which draw alike on all ranks while a stream is read. {_IS_CUT} EZPZ_COMPARE_DATA=0 leaves this "
    "comparison out."
)
