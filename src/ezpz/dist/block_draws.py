"""Draw the initial values of a part of a parameter, the same numbers whatever the part is.

A parameter is a row of blocks of 2**20 elements. Each block has a generator of its own, seeded from the run's seed, the
parameter's name and the block's number, and is drawn whole wherever a part of it is needed: so a rank draws the blocks
that its shard overlaps, on its own device, and equal meshes are not needed for equal numbers.

    layers.0.wq.weight, 4096 x 4096, 16 blocks:  rank 1 of 4 draws blocks 4 to 7, and of a cut by columns all of them

A device's generator takes 64 bits of a seed, a CPU's 32. There n blocks share a seed, and so their numbers, with a
chance of about n**2 / 2**33: 0.7 % for a model of 8 billion parameters, 41 % for one of 70 billion.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from ezpz.dist.recorded_init import Write

BLOCK = 2**20  # elements


def draw_part(
    local: torch.Tensor, shape: Sequence[int], ranges: Sequence[tuple[int, int]], writes: Sequence[Write], seed: str
) -> None:
    """Fill what this rank holds of a parameter.

    Args:
        local: This rank's part, of any format and on any device, which draws.
        shape: Of the whole parameter.
        ranges: First and one after the last index of the part, by dimension.
        writes: What initialises the parameter, as recorded; they set all of it.
        seed: In words; what is drawn follows from it and the number of the block.
    """
    import torch

    if not local.numel():
        return
    with torch.no_grad(), _one_thread(local.device):
        if len(writes) == 1 and not writes[0].draws and writes[0].value is None:
            write = writes[0]  # the same number everywhere
            write.apply(local, *write.arguments, **write.keywords)  # type: ignore[misc]  # only copies have none
            return
        target = local if local.is_contiguous() else torch.empty_like(local, memory_format=torch.contiguous_format)
        _draw_blocks(target, shape, ranges, writes, seed)
        if target is not local:
            local.copy_(target)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Keep the CPU to one thread: where threads divide a block, logarithms and the like may round otherwise."""
    import torch

    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _draw_blocks(
    target: torch.Tensor, shape: Sequence[int], ranges: Sequence[tuple[int, int]], writes: Sequence[Write], seed: str
) -> None:
    import torch

    numel = math.prod(shape)
    width, columns, runs = _as_rows(shape, ranges)
    held = target.view(-1, columns[1] - columns[0])
    buffer = torch.empty(min(BLOCK, numel), dtype=writes[0].dtype, device=target.device)
    done = 0
    for first, last in runs:  # rows of the whole parameter that follow each other
        part = held[done : done + last - first]
        done += last - first
        begin, end = first * width + columns[0], (last - 1) * width + columns[1]
        for number in range(begin // BLOCK, (end - 1) // BLOCK + 1):
            low, high = number * BLOCK, min((number + 1) * BLOCK, numel)
            pieces = list(_pieces(low, high, width, columns, (first, last)))
            if pieces:
                block = buffer[: high - low]
                _fill_block(block, low, writes, f"{seed} {number}")
                for rows, inside, elements in pieces:
                    taken = block[elements[0] - low : elements[1] - low].view(rows[1] - rows[0], -1)
                    part[rows[0] - first : rows[1] - first, inside[0] : inside[1]].copy_(
                        taken[:, inside[2] : inside[2] + inside[1] - inside[0]]
                    )


def _as_rows(
    shape: Sequence[int], ranges: Sequence[tuple[int, int]]
) -> tuple[int, tuple[int, int], Iterator[tuple[int, int]]]:
    """See a part as the same columns of some rows of a matrix.

    Returns:
        Columns of the whole matrix; first and end of those held; runs of rows that are held.
    """
    cut = [dim for dim, (start, stop) in enumerate(ranges) if (start, stop) != (0, shape[dim])]
    last = cut[-1] if cut else 0
    inner = math.prod(shape[last + 1 :])
    if not cut:
        size = math.prod(shape)
        return size, (0, size), iter([(0, 1)])
    start, stop = ranges[last]
    return shape[last] * inner, (start * inner, stop * inner), _row_runs(shape[:last], ranges[:last])


def _row_runs(shape: Sequence[int], ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    cut = [dim for dim, (start, stop) in enumerate(ranges) if (start, stop) != (0, shape[dim])]
    if not cut:
        yield 0, math.prod(shape)
        return
    last = cut[-1]
    inner = math.prod(shape[last + 1 :])
    start, stop = ranges[last]
    for low, high in _row_runs(shape[:last], ranges[:last]):
        for row in range(low, high):
            yield (row * shape[last] + start) * inner, (row * shape[last] + stop) * inner


def _pieces(
    low: int, high: int, width: int, columns: tuple[int, int], held: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], tuple[int, int, int], tuple[int, int]]]:
    """Cut the elements of a block at the ends of rows: a part of a row, whole rows, a part of a row.

    Yields:
        Rows; first and end of the columns held, counted in what is held, and the first one counted in the piece;
        elements.
    """
    at = max(low, held[0] * width)
    high = min(high, held[1] * width)
    while at < high:
        row, column = divmod(at, width)
        whole = (high - at) // width if column == 0 else 0
        rows = max(whole, 1)
        end = at + whole * width if whole else min(high, (row + 1) * width)
        there = column, column + (end - at) // rows  # columns of this piece
        first, last = max(there[0], columns[0]), min(there[1], columns[1])
        if first < last:
            yield (row, row + rows), (first - columns[0], last - columns[0], first - there[0]), (at, end)
        at = end


def _fill_block(block: torch.Tensor, low: int, writes: Sequence[Write], seed: str) -> None:
    """Repeat what was recorded for the elements of one block."""
    generator: Any = None
    for write in writes:
        first, last = max(write.start, low), min(write.stop, low + len(block))
        if first >= last:
            continue
        target = block[first - low : last - low]
        if write.value is not None:
            target.copy_(write.value[first - write.start : last - write.start])
            continue
        more = write.keywords
        if write.draws:
            generator = generator if generator is not None else _generator(block.device, seed)
            more = {**more, "generator": generator}
        write.apply(target, *write.arguments, **more)  # type: ignore[misc]  # only copies have none


def _generator(device: torch.device, seed: str) -> torch.Generator:
    import torch

    number = int.from_bytes(blake2b(f"ezpz weights {seed}".encode(), digest_size=8).digest(), "little")
    return torch.Generator(device).manual_seed(number)
