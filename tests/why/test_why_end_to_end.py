"""Troubles of real gloo ranks, on a rank and at a step drawn by a seed: the right cause stands first.

`make test` plants one for each cause, which the seed of the day draws; `make matrix` all, on 2 to 16 ranks by three
launchers.
"""

import json
import os
import random
import re
import sys
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from planted import PLANTED, SCORE, judge

from lab import flavours, frozen_disk, seed
from lab import hosts as lab_hosts
from lab import slurm as lab_slurm
from lab.require import require

SCRIPT = Path(__file__).parent / "scripts" / "trouble.py"
SEED = seed.of_the_day()
EVERYTHING = bool(os.environ.get(SCORE))
TRIES = 3  # on a machine so busy that a rank does not answer in time what it does
SILENT = ("holds", "stopped")  # where it is the trouble that the rank answers nothing
# What `launch` has told as the end of a rank: its sentence is not said twice.
SAID_BEFORE = {"exception", "killed-by-signal", "left-early"}
NEXT = r"called barrier \(trouble\.py:\d+\) as collective #{next}, .*all_reduce"


class Trouble(NamedTuple):
    """A trouble of `scripts/trouble.py`, and what must be said of it.

    Attributes:
        name: In `planted.PLANTED`, which has its cause.
        sentence: A pattern of what the first cause says; ``{next}`` is the number of the collective.
        plain: The same in a plain script, None where it is not planted there: where no collectives are known, because
            a plain script tells nothing, sizes and the order of calls are not either; nor is whether C code keeps
            Python's lock, for no thread of ezpz waits for it there.
    """

    name: str
    sentence: str
    plain: str | None = None


RAISES = r"raised ValueError: no such shard \(trouble\.py:\d+\)"
TROUBLES = {
    "raises": Trouble("an exception", RAISES, RAISES),
    "killed": Trouble("SIGKILL by a rank to itself", "SIGKILL", "SIGKILL"),
    "silent": Trouble("a silent exit with 0", "ended with code 0", ""),
    "uneven": Trouble("uneven data: a rank leaves its loop", NEXT, ""),
    "skips": Trouble("a collective that one rank calls alone", NEXT),
    "sizes": Trouble("a tensor of another size", r"called all_reduce of 6 .*with other sizes than the rest"),
    "computes": Trouble(
        *("a hang in compute", r"never came to all_reduce #{next} \(trouble\.py:\d+\)"),
        plain=r"is at trouble\.py:\d+|is in trouble \(trouble\.py:\d+\)",
    ),
    "reads": Trouble(
        "a hang in I/O: a pipe",
        r"in (?:trouble|read_text|open) \(trouble\.py:\d+\), and never came to all_reduce #{next}",
        plain="",
    ),
    "frozen": Trouble(
        "a hang in I/O: a frozen file system",
        r"waits in the kernel .*for .*/frozen/shard on .*/frozen \(ext4\) \(trouble\.py:\d+\), and never came to all",
    ),
    "holds": Trouble("C code that keeps Python's lock", r"C code holds Python's lock in match \(trouble\.py:\d+\)"),
    "loader": Trouble("a loader that gives no batch", r"waits for data in __getitem__ \(trouble\.py:\d+\)", ""),
    "stopped": Trouble(
        *("SIGSTOP", r"is stopped by a signal, and never came to all_reduce #{next}"),
        plain=r"is stopped by a signal, and never came to all_reduce \(trouble\.py:\d+\)",
    ),
    "model": Trouble(
        *("another model under DDP", r"(?:has another|have different) models? .*\(trouble\.py:\d+\): .*8 parameters"),
    ),
    "continues": Trouble(
        "a batch skipped under DDP",
        r"called barrier \(trouble\.py:\d+\) as collective #.*called all_reduce \(trouble",
    ),
    "backward": Trouble("a backward pass skipped under DDP", ""),
}
LAUNCHERS = ["local", "mpich", "srun"]
GRID = [
    *product(TROUBLES, ["ezpz"], [2, 4, 16], LAUNCHERS),
    *product([name for name, one in TROUBLES.items() if one.plain is not None], ["plain"], [2, 4, 16], LAUNCHERS),
]


def drawn():
    """Return what `make test` plants: a trouble for each cause there is, in two or four ranks, drawn by the seed."""
    there = ["local"]
    there += ["mpich"] * (not flavours.Flavour("mpich").problem())
    there += ["srun"] * (not (lab_hosts.problem() or lab_slurm.problem()))
    places = [row for row in GRID if row[2] <= 4 and row[3] in there and (row[0], row[3]) != ("frozen", "srun")]
    causes = dict.fromkeys(PLANTED[one.name] for one in TROUBLES.values())
    return [
        seed.pick(SEED, f"why {cause}", [row for row in places if PLANTED[TROUBLES[row[0]].name] == cause])
        for cause in causes
    ]


def explained(run_cli, home, name, ranks, limits, *more, env=None, job=None):
    """Run a trouble to its end and return the launch's record, the drawn rank and step, and what was on stderr.

    Args:
        run_cli: What runs a line.
        home: Where the record is.
        name: The trouble.
        ranks: How many ranks there are.
        limits: Options of `launch`.
        more: Further words of the script.
        env: Of the launch.
        job: The Slurm in whose job of two hosts the launch runs.
    """
    draw = random.Random(f"{SEED} {name} {ranks} {more}")
    bad, step = draw.randrange(ranks), draw.randrange(2, 90)
    line = [sys.executable, "-m", "ezpz.launch", "-n", ranks, *limits, sys.executable, SCRIPT, name, bad, step, *more]
    if job and ranks > 8:
        line.insert(3, "--oversubscribe")
    line = [str(word) for word in line]
    for _ in range(TRIES):
        (home / "shard").unlink(missing_ok=True)  # of `reads`
        told = _ended(run_cli, home, line, ranks, env, job)
        if not _silent(told[0]) - ({bad} if name in SILENT else set()):
            break
    record, errors = told
    return json.loads(record.read_text()), bad, step, f"seed {SEED}, rank {bad}, step {step}: {errors}"


def _silent(record):
    """Ranks that had no time to answer what they were doing; they would have to be asked by a machine less busy."""
    path = record.with_name("collectives.json")
    ranks = json.loads(path.read_text())["ranks"] if path.exists() else []
    return {rank["rank"] for rank in ranks if rank["silent"]}


def _ended(run_cli, home, line, ranks, env, job):
    """Run a launch to its end; return its record and what was on stderr."""
    before = {*home.glob("**/launches/*/run.json")}
    longest = 150 + 10 * ranks
    if job:  # each of its two hosts claims four cores
        tasks = ["-N2", f"-n{min(ranks, 8)}"]
        done = job.salloc(tasks, line, {**env, "SLURM_OVERCOMMIT": "1"}, timeout=longest)
    else:
        done = run_cli(line, env, timeout=longest)
    returned = time.time()
    assert done.returncode != 2, done.stderr
    (record,) = {*home.glob("**/launches/*/run.json")} - before
    assert done.returncode, done.stderr
    assert returned - json.loads(record.read_text())["ended"] < 60, done.stderr
    return record, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "kind", "ranks", "by"), GRID if EVERYTHING else drawn())
def test_the_right_cause_of_the_right_rank_stands_first(request, run_cli, clean_env, home, name, kind, ranks, by):
    trouble = TROUBLES[name]
    more, env, job = ["plain"] * (kind == "plain"), clean_env, None
    # A plain script never beats; else the time counts from the last beat.
    limits = ["--timeout", str(30 + 8 * ranks)] if more else ["--idle-timeout", str(4 + ranks // 2)]
    if by == "mpich":
        flavour = flavours.Flavour("mpich", home, clean_env["EZPZ_TEST_TAG"])
        require("mpich", flavour.problem())
        env = flavour.env()
    if by == "srun":
        job = request.getfixturevalue("slurm")
    if name == "frozen":
        if by == "srun":
            pytest.skip("the daemons of the lab's hosts do not see the disk")
        env = {**env, "FROZEN": str(request.getfixturevalue("frozen"))}
    fields, bad, step, note = explained(run_cli, home, name, ranks, limits, *more, env=env, job=job)
    if name == "frozen":
        frozen_disk.thaw(env["FROZEN"])
    # Of two models, and of two collectives without any before, nobody knows which one is right.
    both = ranks == 2 and (name == "model" or (name == "uneven" and kind == "plain"))
    # On a busy machine the others may be ended before they have said how many parameters they have.
    both = both or (name == "model" and " have different models " in fields["causes"][0]["text"])
    judge(trouble.name, fields["causes"], rank=None if both else bad, where=f"{ranks} ranks, {by}, {kind}")
    first = fields["causes"][0]
    assert not both or first["rank"] is None
    sentence = (trouble.plain if more else trouble.sentence).replace("{next}", str(step + 1))
    assert re.search(sentence, first["text"]), (first["text"], note)
    if not more:
        assert note.count(f"ezpz: {first['text']}\n") == (first["cause"] not in SAID_BEFORE), note


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_healthy_run_says_nothing_new(run_cli, home):
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, str(SCRIPT), "none", "0", "9",
                    "plain"], timeout=170)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("ezpz: ") for line in done.stderr.splitlines()), done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr  # who runs where, and how
    (record,) = home.glob("**/launches/*/run.json")
    assert json.loads(record.read_text())["causes"] == []
    assert [path.name for path in record.parent.iterdir() if path.name == "collectives.json"] == []
