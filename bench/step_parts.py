"""A loop of one's own that measures the parts of its steps, beside the same loop that does not.

One process takes turns with and without (`EZPZ_STEP_PARTS=0`): the DataLoader's method and the callback of the
collector are put back for the turns without. What counts is CPU time per step; a pair is two turns in one round, and
shown are the median of without / with over pairs (1: as fast) and its 95 % interval by the bootstrap.
"""

import argparse
import gc
import statistics
import tempfile
import time

import torch
from steady_step import interval
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

import ezpz
from ezpz.track.step_pauses import measure, pauses

STEPS = {"none": (0, 2000), "2 ms": (0.002, 60), "20 ms": (0.02, 12)}


def work_of(seconds):
    """Return what a step computes: as many products of two matrices as take so long on this machine."""
    left, right = torch.rand(64, 64), torch.rand(64, 64)
    begin = time.process_time()
    for _ in range(2000):
        left @ right
    count = round(seconds / ((time.process_time() - begin) / 2000))
    return lambda: [left @ right for _ in range(count)]


def switch(plain, *, on):
    """Measure from now on, or do not."""
    if on:
        measure()
        return
    _BaseDataLoaderIter.__next__ = plain
    pauses.is_measured = False
    gc.callbacks.remove(pauses.collect)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="pairs of turns for each length of a step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    plain = _BaseDataLoaderIter.__next__
    row = {f"metric{number}": 1.5 for number in range(8)}
    with tempfile.TemporaryDirectory(prefix="ezpz-parts-") as folder:
        history = ezpz.History("parts", folder)
        for name, (seconds, steps) in STEPS.items():
            work, taken = work_of(seconds), {True: [], False: []}
            for number in range(options.rounds):
                for on in (number % 2 == 0, number % 2 == 1):
                    switch(plain, on=on) if on != pauses.is_measured else None
                    batches = iter(DataLoader(range(steps), batch_size=None))
                    begin = time.process_time()
                    for _ in batches:
                        work()
                        history.update(row, summarize=False)
                    taken[on].append((time.process_time() - begin) / steps)
            ratios = [without / with_ for without, with_ in zip(taken[False], taken[True], strict=True)]
            low, high = interval(ratios)
            more = statistics.median(a - b for a, b in zip(taken[True], taken[False], strict=True)) * 1e6
            middle = statistics.median(ratios)
            print(f"steps of {name:6} {more:+7.2f} µs a step   without / with {middle:.4f} ({low:.4f} to {high:.4f})")
        history.finalize(plots=False, show=False)


if __name__ == "__main__":
    main()
