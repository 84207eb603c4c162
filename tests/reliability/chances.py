"""One launch of the soak, killed at random or healthy, and the oracle that knows which ends are right."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass, field

from limits import PYTHON_UP, beats
from playing import FAILURE_GRACE, PROMPT, SIGNAL_GRACE, UP, foreign_trouble
from runs import bash, fact, known, python_with_packages
from stages import MPI, Stage

from ezpz import proc
from lab import process

SIGNALS = ("KILL", "TERM", "SEGV", "ABRT", "INT", "HUP", "QUIT", "BUS", "FPE", "USR1")
DEADLY = ("KILL", "ABRT", "SEGV", "BUS", "QUIT", "TRAP", "ALRM", "XCPU", "VTALRM", "SYS")  # of a shim: 137 for each
BLUR = 0.3  # seconds by which a rank may have ended before the signal that was meant for it
YOUNG = 1.0  # seconds
TICKS = os.sysconf("SC_CLK_TCK")
START = 40.0  # seconds for a launch to come up on a loaded machine


@dataclass
class Outcome:
    """What came of one launch; `wrong` is empty when all is well."""

    number: int
    flavour: str
    victim: str
    wrong: str = ""
    left: bool = False
    young: int = 0  # daemons that outlived their launch although it was killed so early in their life
    daemons: int = 0
    code: int | None = None
    took: float = 0.0
    struck: float = 0.0  # when, in seconds since the machine started
    log: str = field(default="", repr=False)


def killed(number, seed, grounds, names):
    """One launch with a violent end, and what should have come of it."""
    dice = random.Random(f"{seed} {number}")
    name = names[number % len(names)]
    lasts = dice.uniform(0.3, 1.5)
    kind = dice.choices(("rank", "launcher", "mpiexec", "agent", "shim"), (76, 9, 6, 6, 3))[0]
    if (kind == "mpiexec" and name not in {*MPI, "srun", "torchrun"}) or (kind == "shim" and name in {"local", "ssh"}):
        kind = "rank"
    number_of = signal.Signals[f"SIG{dice.choice(SIGNALS)}"]
    if kind == "launcher":
        number_of = dice.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL))
    elif kind == "shim":
        number_of = dice.choice((signal.SIGKILL, *(signal.Signals[f"SIG{name}"] for name in DEADLY)))
    elif kind != "rank":
        number_of = signal.SIGKILL
    moment, rank = dice.uniform(0, 1.1) * lasts, dice.randrange(3)
    outcome = Outcome(number, name, f"{kind} {number_of.name}")
    stage = Stage(name, grounds)
    # What leaves the session, in a third of the launches, and what wipes its environment besides and leaves the tree,
    # in half of them: it must go with the rest.
    leaves = "setsid sleep 600 >/dev/null 2>&1 & " if dice.random() < 1 / 3 else ""
    mark = dice.randrange(10**6, 10**8)  # of the daemons: nothing else tells whose they are
    if dice.random() < 1 / 2:
        pause = dice.choice((0.0, dice.uniform(0, lasts)))
        leaves += f"( (sleep {pause:.2f}; exec setsid env -i sleep {mark}) >/dev/null 2>&1 & ); "
    run = stage.start((), bash(UP + f"{leaves}up; exec sleep {lasts:.3f}"))
    try:
        _strike(run, kind, number_of, rank, moment, lasts, outcome)
    finally:
        _tidy(run, stage, outcome, mark)
    return outcome


def _strike(run, kind, number, rank, moment, lasts, outcome):
    early = kind == "launcher" and moment < lasts / 5  # while it still plans and starts
    if early:
        time.sleep(moment)
    elif not _all_up(run):
        outcome.wrong = "the ranks did not come up"
        if foreign_trouble(run.errors()) and run.process.wait(PROMPT) == 125:
            outcome.wrong, outcome.victim = "", "none: the launcher refused"
        return
    else:
        time.sleep(moment)
    up_since = max((path.stat().st_mtime for path in run.folder.glob("up.*")), default=time.time())
    first_up = min((path.stat().st_mtime for path in run.folder.glob("up.*")), default=time.time())
    hit = _hit(run, kind, number, rank)
    now = time.time()
    outcome.struck = time.clock_gettime(time.CLOCK_BOOTTIME)
    about_to_end = not early and now - first_up > lasts - BLUR
    run.mark()
    grace = SIGNAL_GRACE if kind == "launcher" else FAILURE_GRACE
    remains = max(0.0, up_since + lasts - now)
    try:
        run.process.wait(PROMPT + grace + remains)
    except subprocess.TimeoutExpired:
        outcome.wrong = f"no prompt within {PROMPT + grace + remains:.1f} s"
        return
    outcome.took = time.monotonic() - run.since
    outcome.code = code = run.process.returncode
    right = _right(kind, number)
    if not hit:
        right = {0}
    elif about_to_end:
        right |= {0}
    if (kind, number) == ("launcher", signal.SIGINT) and "Could not import runpy module" in run.errors():
        right |= {1}  # Python's own end, before the first line of ezpz
    if (code if code >= 0 else 128 - code) not in right:
        outcome.wrong = f"exit code {code}, expected {' or '.join(map(str, sorted(right)))}"


def _right(kind, number):
    """The exit codes of a launch in which that process is killed by that signal."""
    if kind in {"rank", "launcher"}:
        return {128 + number}
    return {125, 137} if kind == "shim" else {125}


def _all_up(run):
    end = time.monotonic() + START
    while len(known(run.folder)) < 3:
        if time.monotonic() > end or run.process.poll() is not None:
            return len(known(run.folder)) == 3
        time.sleep(0.01)
    return True


def _hit(run, kind, number, rank):
    """Send the signal; False when its target is no more."""
    try:
        if kind == "rank":
            pid = known(run.folder)[rank][0]
        elif kind == "launcher":
            pid = run.pid if run.process.poll() is None else 0
        elif kind == "agent":
            pid = run.agent()
        else:
            pid = run.shim(rank) if kind == "shim" else run.mpiexec()
    except AssertionError:
        return False  # it has ended already
    # A pid may be another's by now: only what carries this launch's tag is meant.
    if not pid or run.stage.tag not in fact(pid, "environ"):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


STALLS = {
    "stall": "sleep 3",
    "compile": "end=$((SECONDS + 3)); while ((SECONDS < end)); do :; done",
    "checkpoint": 'dd if=/dev/zero of="$D/check.$RANK" bs=1M count=40 conv=fsync 2>/dev/null; sleep 1',
}


HISTORY = """
import os, sys, time
{up}
import ezpz
history = ezpz.History(outdir=folder + "/history")
for step in range({steps}):
    history.update({"loss": 1 / (step + 1)})
    time.sleep(0.1)
"""
STEPS = 30


def healthy(number, seed, grounds, names):
    """One launch in which nothing is wrong, though it may look so; it must end with 0."""
    dice = random.Random(f"{seed} healthy {number}")
    name = names[number % len(names)]
    what = dice.choice((*STALLS, "beats", "beats and silence", "stopped launcher", "stopped agent", "history"))
    options = dice.choice(((), ("--idle-timeout", "2")))
    if what == "beats":  # slower than they could be, faster than the limit
        options, command = ("--idle-timeout", "4"), beats("time.sleep(0.9); agent.sendall(b'beat\\n')", seconds=4)
    elif what == "beats and silence":  # a rank that ended is not idle
        step = "agent.sendall(b'beat\\n'); rank == '1' and sys.exit(0)"
        options, command = ("--idle-timeout", "2"), beats(step, seconds=4)
    else:
        slow = STALLS.get(what, "sleep 4")
        who = dice.choice(("true", '[ "$RANK" = 1 ]'))
        command = bash(UP + f"up; if {who}; then {slow}; fi; exit 0")
    if what == "history":
        command = python_with_packages(HISTORY.replace("{up}", PYTHON_UP).replace("{steps}", str(STEPS)))
    outcome = Outcome(number, name, f"healthy: {what}{' under --idle-timeout' if options else ''}")
    stage = Stage(name, grounds)
    run = stage.start(options, command)
    try:
        if not _all_up(run) and foreign_trouble(run.errors()) and run.process.wait(PROMPT) == 125:
            outcome.victim = "none: the launcher refused"
            return outcome
        if not _all_up(run):
            outcome.wrong = "the ranks did not come up"
        elif what.startswith("stopped"):
            _pause(run, what)
        _ends_well(run, outcome)
        if what == "history" and not outcome.wrong:
            _is_recorded(run, outcome)
    finally:
        _tidy(run, stage, outcome)
    return outcome


def _pause(run, what):
    """A machine that swaps: the launcher, or an agent, stands still for some seconds."""
    with contextlib.suppress(AssertionError, ProcessLookupError):
        pid = run.pid if what == "stopped launcher" else run.agent()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(pid, signal.SIGCONT)


def _is_recorded(run, outcome):
    rows = (run.folder / "history" / "metrics.jsonl").read_text().count('"loss"')
    if rows != STEPS:
        outcome.wrong = f"{rows} rows in the journal, expected {STEPS}"


def _ends_well(run, outcome):
    run.mark()
    try:
        outcome.code = run.process.wait(60)
    except subprocess.TimeoutExpired:
        outcome.wrong = "no prompt within 60 s"
    if outcome.code:
        outcome.wrong = f"exit code {outcome.code}, expected 0"
    outcome.took = time.monotonic() - run.since


def _tidy(run, stage, outcome, mark=0):
    """What still lives some seconds after the end is a survivor."""

    def left():
        return {**run.left(), **dict.fromkeys(process.daemons(mark), f"daemon {mark}")}

    try:
        process.wait_until(lambda: not left(), 5, "the end of all processes", every=0.05)
    except AssertionError:
        daemons = [fields for fields in map(proc.stat, process.daemons(mark)) if fields]
        outcome.left = True
        outcome.daemons = len(daemons)
        outcome.young = sum(outcome.struck - int(fields.start) / TICKS < YOUNG for fields in daemons)
        outcome.wrong = outcome.wrong or f"survivors: {list(left().values())}"
        process.kill_all(process.daemons(mark))
    if outcome.wrong:
        outcome.log = run.errors()[-3000:]
    process.kill_all(run.left())
    process.kill_group(run.process)
    stage.close()
