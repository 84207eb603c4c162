"""Signals to the launcher, and processes of ours that are killed: cases 12 to 16, and A to D."""

from __future__ import annotations

import os
import signal
import time

from playing import (
    FAILURE_GRACE,
    NO_LAUNCHER,
    NO_SHIM,
    SIGNAL_GRACE,
    WAIT,
    Case,
    files,
    kill,
    launcher,
)

from lab import process

TERM, INT, HUP, KILL, USR1, USR2 = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGKILL,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
LOOP = "while :; do sleep 0.1; done"


def usr_once(run):
    run.up()
    time.sleep(SETTLE)
    for number in (USR1, USR2):
        os.kill(run.pid, number)
        name = number.name
        process.wait_until(lambda: len(files(run, f"{name}.*")) == 3, 5, f"{name} in every rank")  # noqa: B023  # called at once
    time.sleep(0.3)  # a second one would have come by now
    run.mark()
    run.go()


def once_each(run):
    found = files(run, "SIGUSR*")
    assert sorted(found) == sorted(f"{name}.{rank}" for name in ("SIGUSR1", "SIGUSR2") for rank in range(3)), found
    assert all(words == ["got"] for words in found.values()), found


def saved(run):
    assert files(run, "saved.*") == {f"saved.{rank}": ["all"] for rank in range(3)}, files(run, "saved.*")


def interrupt_twice(run):
    run.up()
    time.sleep(SETTLE)
    os.kill(run.pid, INT)
    time.sleep(0.5)
    assert run.process.poll() is None, "the first Ctrl-C must ask, not kill"
    run.mark()
    os.kill(run.pid, INT)


def kill_agent(run):
    """The agent of the host of rank 2."""
    _, host = run.up()[2]
    victim = run.agent(host)
    time.sleep(0.5)  # one that has not introduced itself cannot be lost
    run.mark()
    os.kill(victim, KILL)


def kill_all_of_ours(run):
    """Launcher, agents and shims at one blow: nobody is left who could tidy up."""
    run.up()
    victims = [run.pid]
    for comm in ("ezpz-agent", "ezpz-shim"):
        try:
            victims += run.named(comm)
        except AssertionError:
            if comm == "ezpz-agent":
                raise
    run.mark()
    process.kill_all(victims)


SETTLE = 0.5  # seconds after which surely every process knows that the ranks run

SIGNALS = (
    Case(
        number="12",
        name="SIGTERM to the launcher; every rank needs 2 s to save",
        ranks=f"trap 'sleep 2; echo all >\"$D/saved.$RANK\"; exit 0' TERM; up; {LOOP}",
        meanwhile=kill(launcher, TERM, settle=SETTLE),
        code=143,
        grace=SIGNAL_GRACE,
        after=saved,
        core=True,
    ),
    Case(
        number="12",
        name="SIGTERM to the launcher; ranks ignore it until the grace is over",
        ranks=f"trap '' TERM; up; {LOOP}",
        meanwhile=kill(launcher, TERM, settle=SETTLE),
        code=143,
        grace=SIGNAL_GRACE,
    ),
    Case(
        number="12",
        name="SIGTERM to the launcher as soon as the ranks run; each needs 1 s to save",
        ranks=f"trap 'sleep 1; echo all >\"$D/saved.$RANK\"; exit 0' TERM; up; {LOOP}",
        meanwhile=kill(launcher, TERM),
        code=143,
        grace=SIGNAL_GRACE,
        after=saved,
    ),
    Case(
        number="13",
        name="one SIGINT asks",
        ranks=f"trap 'sleep 1; echo all >\"$D/saved.$RANK\"; exit 0' INT; up; {LOOP}",
        meanwhile=kill(launcher, INT, settle=SETTLE),
        code=130,
        grace=SIGNAL_GRACE,
        after=saved,
    ),
    Case(
        number="13",
        name="a second SIGINT kills",
        ranks=f"trap '' INT TERM; up; {LOOP}",
        meanwhile=interrupt_twice,
        code=130,
    ),
    Case(
        number="14",
        name="SIGHUP, as when ssh drops",
        ranks=f"trap 'echo all >\"$D/saved.$RANK\"; exit 0' HUP; up; {LOOP}",
        meanwhile=kill(launcher, HUP, settle=SETTLE),
        code=129,
        grace=SIGNAL_GRACE,
        after=saved,
    ),
    Case(
        number="15",
        name="SIGKILL to the launcher",
        ranks=f"trap '' TERM HUP INT; setsid sleep 600 & up; {LOOP}",
        meanwhile=kill(launcher, KILL),
        code=-9,
        core=True,
    ),
    Case(
        number="16",
        name="SIGUSR1 and SIGUSR2 reach every rank once",
        ranks=f'for s in USR1 USR2; do trap "echo got >>\\"$D/SIG$s.$RANK\\"" $s; done; up; {WAIT} exit 0',
        meanwhile=usr_once,
        code=0,
        after=once_each,
        core=True,
    ),
)

KILLED = (
    Case(
        number="A",
        name="SIGKILL to the foreign launcher",
        ranks=f"trap '' TERM HUP INT; up; {LOOP}",
        meanwhile=kill(lambda run: run.mpiexec(), KILL),
        code=125,
        cause=r"^ezpz: \S+ \(pid \d+\) was killed by SIGKILL",
        grace=FAILURE_GRACE,
        core=True,
        not_on=NO_LAUNCHER,
    ),
    Case(
        number="B",
        name="SIGKILL to an agent",
        ranks=f"trap '' TERM HUP INT; setsid sleep 600 & up; {LOOP}",
        meanwhile=kill_agent,
        code=125,
        cause=r"^ezpz: host \S+ is lost: ",
        grace=FAILURE_GRACE,
        core=True,
    ),
    Case(
        number="C",
        name="SIGKILL to a shim",
        ranks=f"trap '' TERM HUP INT; up; {LOOP}",
        meanwhile=kill(lambda run: run.shim(1), KILL),
        code=(125, 137),
        cause=r"^ezpz: .*rank 1\b.*SIGKILL",
        grace=FAILURE_GRACE,
        core=True,
        not_on=NO_SHIM,
    ),
    Case(
        number="C",
        name="SIGABRT to a shim, whose code mpiexec makes its own",
        ranks=f"trap '' TERM HUP INT; up; {LOOP}",
        meanwhile=kill(lambda run: run.shim(1), signal.SIGABRT),
        code=137,
        cause=r"^ezpz: rank 1\b.*shim.*crashed: Aborted",
        grace=FAILURE_GRACE,
        not_on=NO_SHIM,
    ),
    Case(
        number="D",
        name="SIGKILL to launcher, agents and shims at one blow",
        ranks=f"trap '' TERM HUP INT; up; {LOOP}",
        meanwhile=kill_all_of_ours,
        code=-9,
    ),
)
