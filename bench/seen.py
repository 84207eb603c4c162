"""Measure what a step of `ezpz.train.Loop` pays for sums of batches, settings and generators in its record.

Each is called alone, many times, in one process; shown are medians of turns in microseconds of CPU time. The
generators are summed up in every 50th step. Beside it stands what the journal keeps of 50 steps.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from ezpz.track.step_states import EVERY, BatchSeen, Seen, StepStates
from ezpz.train.data.checksum import sum_of
from ezpz.view.effective import LiveSettings, generator_sums

TURNS, CALLS = 15, 300
BATCHES = {
    "tokens, 8 x 128, and targets (16 KB)": lambda: (torch.randint(50000, (8, 128)), torch.randint(50000, (8, 128))),
    "tokens, 8 x 1024, and targets (131 KB)": lambda: (torch.randint(9, (8, 1024)), torch.randint(9, (8, 1024))),
    "images, 64 x 28 x 28 (200 KB)": lambda: (torch.rand(64, 1, 28, 28), torch.zeros(64).long()),
    "images, 64 x 3 x 224 x 224 (39 MB)": lambda: (torch.rand(64, 3, 224, 224), torch.zeros(64).long()),
}


def microseconds(call):
    """Return the median over turns of what one call takes."""
    taken = []
    for _ in range(TURNS):
        begin = time.process_time()
        for _ in range(CALLS):
            call()
        taken.append((time.process_time() - begin) / CALLS)
    return statistics.median(taken) * 1e6


def settings():
    """Return the settings of an AdamW of two groups and a model of 24 layers with dropout, as they are looked at."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(24)]
    model = nn.Sequential(*layers)
    weights = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": others, "weight_decay": 0.0}])
    live = LiveSettings(optimizer, model)
    live.changed()
    return live.changed


def kept():
    """Return the microseconds that keeping a step takes, and the bytes in the journal of 50 steps."""
    lines = []
    keeper = StepStates(lambda step, content: lines.append(json.dumps({"step": step, "m": content})), None)
    batch = BatchSeen(123456789, "int64[8,128] int64[8,128]", 0, 8)
    number = iter(range(10**9))
    taken = microseconds(lambda: keeper.add(next(number), Seen(batch)))
    return taken, len(lines[0]) + len('{"v":1,"t":1795194001.25,"k":"seen",}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, make in BATCHES.items():
        batch = make()
        rows.append((f"sum of a batch of {name}", microseconds(lambda batch=batch: sum_of(batch))))
    rows.append(("settings: 2 groups of AdamW, 24 dropouts", microseconds(settings())))
    taken, size = kept()
    rows.append((f"keeping it ({size} bytes in the journal per {EVERY} steps)", taken))
    rows.append((f"states of the generators, every {EVERY} steps", microseconds(generator_sums)))
    if options.markdown:
        print("| what a step sees | µs |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value:.1f} |" if options.markdown else f"{name:62} {value:8.1f} µs")


if __name__ == "__main__":
    main()
