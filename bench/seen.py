"""Measure what a step of `ezpz.train.Loop` pays for sums of batches, settings and generators in its record.

Each is called alone, many times, in one process; shown are medians of turns in microseconds of CPU time. The
generators are summed up in every 50th step. Beside it stands what the journal keeps of 50 steps.

Then the same of a look at weights, gradients and inputs, of all that its hooks do in 50 steps: as a share of steps that
take 2 and 20 ms, and the operations that it starts on the device. Torch has one thread.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.profiler import profile

from ezpz.track.over_ranks.replica_looks import watch_steps
from ezpz.track.step_states import EVERY, BatchSeen, Seen, StepStates
from ezpz.train.data.checksum import sum_of
from ezpz.view.effective import LiveSettings, generator_sums

TURNS, CALLS = 15, 300
LOOKS = 40  # of each model, so that all its parts come twice
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


def look(model, batch):
    """Return the microseconds that a look takes in 50 steps, the median and the least, and what it starts."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    hidden = model(batch)
    hidden.sum().backward()
    modules = list(model.modules())
    looks = watch_steps()
    taken, started = [], []
    for number in range(-1, LOOKS):
        begin = time.process_time()
        with profile() if number % 4 == 3 else nullcontext() as profiled:
            for _ in range(EVERY):  # the hooks alone: neither a step nor a forward
                looks._before_step(optimizer, (), {})  # noqa: SLF001
            for module in modules:
                looks._entering(module, (batch if module is model else hidden,))  # noqa: SLF001
        if profiled:
            started.append(sum(each.key in {"aten::sum", "aten::cat"} for each in profiled.events()))
        elif number >= 0:
            taken.append(time.process_time() - begin)
        looks.ready.clear()
    looks.end(wait=True)
    return statistics.median(taken) * 1e6, min(taken) * 1e6, statistics.median(started)


MODELS = {
    "a net of 3,000 weights in 4 tensors": lambda: (nn.Sequential(nn.Linear(16, 128), nn.Linear(128, 8)), (32, 16)),
    "10 M weights in 20 tensors": lambda: (nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(10)]), (32, 1000)),
    "10 M weights in 400 tensors": lambda: (nn.Sequential(*[nn.Linear(223, 223) for _ in range(200)]), (32, 223)),
}


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
    watched = []
    for name, make in MODELS.items():
        model, shape = make()
        took, least, started = look(model, torch.rand(shape))
        watched.append((name, took, least, 100 * took / (EVERY * 2000), 100 * took / (EVERY * 20000), started))
    if options.markdown:
        print("| what a step sees | µs |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value:.1f} |" if options.markdown else f"{name:62} {value:8.1f} µs")
    heads = (f"a look in {EVERY} steps at", "µs", "least", "% of 2 ms", "% of 20 ms", "operations")
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name, took, least, of_2, of_20, started in watched:
        print(f"| {name} | {took:.0f} | {least:.0f} | {of_2:.2f} | {of_20:.3f} | {started:.0f} |")


if __name__ == "__main__":
    main()
