"""The steady step of `ezpz.train.Loop` beside the same model in a plain loop of torch that records nothing.

In one process both train a copy of the model in turns of some steps, and who begins changes from turn to turn, so
that a slow minute of the machine meets both. A turn counts with the median of its steps; the figure of a pair of
turns is the plain time by that of the Loop (1: as fast, 0.99: one percent slower). Shown are the median over pairs
and its 95 % interval by the bootstrap. Beside it stands the same figure for the seconds of CPU of this process and
all its threads; on a machine that others use at the same time, `--clock cpu` judges by that. Torch has one thread,
and so a core is free for the thread that prints.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from steady_models import CASES, POSITIONS

import ezpz
from ezpz.train import Loop

BUDGET = 0.99
PRINTED_RARELY = {"mlp": {10: 0.95, 0: 0.98}}  # model: of how many steps one is printed (0: none): budget
NEVER = 10**9
TURN = 0.15  # seconds that a turn takes, about
LEAST, MOST = 5, 60  # steps in a turn
PAIRS = 12  # at least
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
RESAMPLES = 4000
HEADS = ("steady step", "plain torch", "ezpz.train.Loop", "plain / Loop", "95 % interval", "CPU", "pairs", "budget")


def main():
    options = arguments()
    rows = []
    with tempfile.TemporaryDirectory(prefix="ezpz-steady-") as folder:
        log = Path(folder, "log").open("w")  # noqa: SIM115  # where a job's lines go, a file
        with contextlib.redirect_stdout(log):
            ezpz.setup_torch(seed=1)
            torch.set_num_threads(options.threads)
            for name in options.only:
                print(f"steady step of {name}", file=sys.stderr, flush=True)
                for log_every, budget in {options.log_every: BUDGET, **PRINTED_RARELY.get(name, {})}.items():
                    rows.append(row(CASES[name](), options, Path(folder, f"{name}-{log_every}"), log_every, budget))
        log.close()
    head, line = (markdown, markdown) if options.markdown else (plain, plain)
    print(head(HEADS), *(["|---" * len(HEADS) + "|"] if options.markdown else []), *map(line, rows), sep="\n")
    ezpz.cleanup()
    return any(each[-1].endswith("missed") for each in rows)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model, about")
    parser.add_argument(
        "--log-every", type=int, default=1, help="of how many steps the Loop prints one, as trainers do (1)"
    )
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what is judged (wall)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--only", default=",".join(CASES), help=f"models, of {','.join(CASES)}")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md holds it")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = sorted(set(options.only) - set(CASES))
    if unknown:
        parser.error(f"unknown models {unknown}")
    return options


def row(case, options, folder, log_every, budget):
    found = measure(case, options, folder, log_every)
    ratios = {name: [plainly[name] / ours[name] for ours, plainly in found] for name in CLOCKS}
    low, high = interval(ratios[options.clock])
    ours, plainly = (statistics.median(turn[options.clock] for turn in side) * 1e3 for side in zip(*found, strict=True))
    verdict = "held" if low >= budget else "missed" if high < budget else "not decided"
    printed = {0: ", none printed", 1: ""}.get(log_every, f", every {log_every}th printed")
    times = (f"{plainly:.2f} ms", f"{ours:.2f} ms")
    ratio, cpu = (f"{statistics.median(ratios[name]):.3f}" for name in (options.clock, "cpu"))
    figures = (ratio, f"{low:.3f} to {high:.3f}", cpu, str(len(found)), f"{budget}, {verdict}")
    return (case.name + printed, *times, *figures)


def measure(case, options, folder, log_every):
    """``[({clock: seconds per step of the Loop}, the same of the plain loop)]``, a pair of turns each."""
    history = ezpz.History("steady", folder)
    steps, done, found = LEAST, 0, []
    turns = {
        "loop": lambda: timed(
            lambda stamp: loop_turn(case, range(done, done + steps), history, log_every or NEVER, stamp), steps
        ),
        "plain": lambda: timed(lambda stamp: plain_turn(case, range(done, done + steps), stamp), steps),
    }
    # Twice before it counts: for what a first step costs, and for how many steps make a turn.
    for _ in range(2):
        each = max(turns["loop"]()["wall"], turns["plain"]()["wall"])
        done += steps
        steps = max(LEAST, min(MOST, round(TURN / each)))
    end = time.perf_counter() + options.seconds
    while len(found) < PAIRS or time.perf_counter() < end:
        order = ("loop", "plain") if len(found) % 2 else ("plain", "loop")
        taken = {side: turns[side]() for side in order}
        found.append((taken["loop"], taken["plain"]))
        done += steps
    history.finalize(plots=False, show=False)
    check(case, done)
    return found


def loop_turn(case, positions, history, log_every, stamp):
    side = case.sides[0]
    loop = Loop(
        *(side.model, side.optimizer, case.compute_loss, case.batches),
        start=positions.start,
        steps=positions.stop,
        log_every=log_every,
        batch_size=case.batch_size,
        max_norm=case.max_norm,
        schedule=side.schedule,
        cost=case.cost,
        ended=stamp,
    )
    loop.run(history)


def plain_turn(case, positions, stamp):
    """What a person writes who wants to train and nothing else."""
    side, batches = case.sides[1], case.plain_batches or case.batches
    side.model.train()
    for position in positions:
        told = case.compute_loss(side.model, batches(position))
        loss = told[0] if isinstance(told, tuple) else told
        loss.backward()
        if case.max_norm:
            torch.nn.utils.clip_grad_norm_(side.model.parameters(), case.max_norm)
        side.optimizer.step()
        side.schedule.step()
        side.optimizer.zero_grad(set_to_none=True)
        stamp()


def timed(run, steps):
    """Seconds per step of a turn by each clock; of an accelerator, which runs behind the host, of the whole turn."""
    stamps = []
    ezpz.synchronize()
    begin = now()
    run(lambda: stamps.append(now()))
    ezpz.synchronize()
    if ezpz.get_torch_device_type() != "cpu":
        end = now()
        return {name: (end[name] - begin[name]) / steps for name in CLOCKS}
    return {name: statistics.median(b[name] - a[name] for a, b in pairwise(stamps)) for name in CLOCKS}


def now():
    return {name: clock() for name, clock in CLOCKS.items()}


def check(case, done):
    """Both sides must have done the same work, or their times compare nothing."""
    counts = [{int(state["step"]) for state in side.optimizer.state.values()} for side in case.sides]
    if counts != [{done}, {done}]:
        sys.exit(f"{case.name}: the optimizers have done {counts[0]} and {counts[1]} steps; expected {done}")
    if any(isinstance(module, torch.nn.Dropout) and module.p for module in case.sides[0].model.modules()):
        return  # the two have dropped different features
    with torch.no_grad():
        batch = case.batches(done % POSITIONS)
        losses = [case.compute_loss(side.model.eval(), batch) for side in case.sides]
    ours, plainly = (float(loss[0] if isinstance(loss, tuple) else loss) for loss in losses)
    if abs(ours - plainly) > 0.02 * max(abs(plainly), 0.05):
        sys.exit(f"{case.name}: the two loops have trained differently: loss {ours} and {plainly}")


def interval(ratios):
    chance = random.Random(1)  # the same interval for the same times
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]


def plain(cells):
    return " ".join(
        f"{cell:<{width}}" for cell, width in zip(cells, (38, 12, 16, 13, 16, 6, 6, 18), strict=True)
    ).rstrip()


def markdown(cells):
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
