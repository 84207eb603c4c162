"""Launches for hours: a random process killed by a random signal at a random moment, healthy ones with long stalls.

    python tests/reliability/soak.py [--killed 3000] [--healthy 300] [--minutes M] [--seed S] [--jobs 2] [--table FILE]

Every launch follows from seed and number, so `--seed S --first I --killed 1` repeats one (but for the moment, which the
machine's load blurs). An oracle knows which exit codes are right, also for a race: a rank that was about to end anyway.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime as dt
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from chances import healthy, killed
from stages import FLAVOURS, Grounds, problem
from tables import replace_block

from lab.hosts import sweep

COLUMNS = (
    "flavour",
    "a rank killed",
    "launcher killed",
    "mpiexec, agent or shim killed",
    "wrong codes",
    "survivors",
    "daemons left, older / younger than 1 s",
    "slowest prompt",
    "healthy",
    "false kills",
    "not started by its launcher",
)
TURN = 11  # of so many launches one is healthy


def main(argv=None):
    args = _arguments(argv)
    # A shell's background job ignores the first two, `nohup` the last, and would pass that on.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sweep()
    began = time.monotonic()
    with Grounds() as grounds:
        names = [name for name in args.flavours.split(",") if not problem(name)]
        if {"srun", "ssh"} & set(names):
            grounds.hosts()
        if "srun" in names:
            grounds.job()
        outcomes = _run_all(args, grounds, names, began)
    text = table(outcomes, args.seed, time.monotonic() - began)
    print(text)
    if args.table:
        replace_block(Path(args.table), "soak", text)
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


def _arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--killed", type=int, default=3000)
    parser.add_argument("--healthy", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=0, help="start nothing new after so many minutes")
    parser.add_argument("--seed", type=int, default=int(dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d")))
    parser.add_argument("--first", type=int, default=0, help="number of the first launch")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--flavours", default=",".join(FLAVOURS))
    parser.add_argument("--table", help="file whose block between the marker lines is replaced")
    return parser.parse_args(argv)


def _work(args):
    """Both kinds in turn, so that a run that is cut short holds some of each."""
    kills = [(killed, number) for number in range(args.first, args.first + args.killed)]
    calm = [(healthy, number) for number in range(args.first, args.first + args.healthy)]
    while kills or calm:
        yield from kills[: TURN - 1]
        yield from calm[:1]
        del kills[: TURN - 1], calm[:1]


def _run_all(args, grounds, names, began):
    outcomes = []
    work = _work(args)

    def one():
        while True:
            with lock:
                task = next(work, None)
            if task is None or (args.minutes and time.monotonic() - began > args.minutes * 60):
                return
            kind, number = task
            outcome = kind(number, args.seed, grounds, names)
            with lock:
                outcomes.append(outcome)
                _show(outcome, outcomes, args.seed)

    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(one) for _ in range(args.jobs)]:
            future.result()
    return outcomes


def _show(outcome, outcomes, seed):
    if outcome.wrong:
        kind = "--killed 0 --healthy 1" if outcome.victim.startswith("healthy") else "--killed 1 --healthy 0"
        print(
            f"\n#{outcome.number} {outcome.flavour}, {outcome.victim}: {outcome.wrong}\n"
            f"(again: soak.py --seed {seed} --first {outcome.number} {kind})\n{outcome.log}",
            file=sys.stderr,
        )
    if len(outcomes) % 20 == 0:
        wrong = sum(bool(each.wrong) for each in outcomes)
        print(f"{len(outcomes)} launches, {wrong} wrong", file=sys.stderr, flush=True)


def table(outcomes, seed, seconds):
    """The summary as Markdown: a line per flavour."""
    today = dt.datetime.now(dt.timezone.utc).date()
    rows = [
        f"{today}, seed {seed}, {len(outcomes)} launches in {seconds / 60:.0f} min. Daemons were known by their limit.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for name in [*FLAVOURS, "all"]:
        mine = [each for each in outcomes if name in {each.flavour, "all"}]
        violent = [each for each in mine if not each.victim.startswith(("healthy", "none"))]
        calm = [each for each in mine if each.victim.startswith("healthy")]
        refused = sum(each.victim.startswith("none") for each in mine)
        kinds = Counter(each.victim.split()[0] for each in violent)
        others = kinds["mpiexec"] + kinds["agent"] + kinds["shim"]
        slowest = max((each.took for each in violent), default=0.0)
        wrong = sum(bool(each.wrong) and not each.left for each in violent)
        left = sum(each.left for each in mine)
        young = sum(each.young for each in mine)
        daemons = f"{sum(each.daemons for each in mine) - young} / {young}"
        false = sum(bool(each.wrong) for each in calm)
        counts = [kinds["rank"], kinds["launcher"], others, wrong, left, daemons]
        counts += [f"{slowest:.1f} s", len(calm), false, refused]
        rows.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
