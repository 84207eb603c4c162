"""Time limits, heartbeats, and launches beside or inside each other: cases 17, 18 and 22."""

from __future__ import annotations

import signal
import sys
import time

from playing import (
    FAILURE_GRACE,
    STAY,
    UP,
    WAIT,
    Case,
    files,
    kill,
    launcher,
    up_only,
)
from runs import bash

from lab import process
from lab.ssh import LAUNCH

LOOP = "while :; do sleep 0.1; done"


def alongside(run):
    """A second launch of the same flavour fails beside this one, which goes on."""
    run.up()
    other = process.run(run.stage.line((), bash("exit 3")), run.stage.env(), timeout=30, cwd=run.folder)
    assert other.returncode == 3, other.stderr
    run.mark()
    run.go()


def left_alone(run):
    assert files(run, "done.*") == {f"done.{rank}": ["yes"] for rank in range(3)}


def after_a_while(run):
    """Long enough for any time limit to fall due."""
    run.up()
    time.sleep(3)
    run.mark()
    run.go()


BEATS = """
import os, socket, sys, time
{up}
name = os.environ["EZPZ_SOCKET"]
agent = socket.socket(socket.AF_UNIX)
agent.connect("\\0" + name[1:] if name[0] == "@" else name)
agent.sendall(f"rank {rank} {pid}\\nbeat\\n".encode())
end = time.monotonic() + {seconds}
while time.monotonic() < end and not os.path.exists(folder + "/go"):
    {step}
    time.sleep(0.1)
"""


PYTHON_UP = """
rank, pid, folder = os.environ["RANK"], os.getpid(), os.environ["EZPZ_TEST_DIR"]
with open(f"{folder}/up.{rank}", "w") as file:
    file.write(f"{pid} {os.uname().nodename}\\n")
"""


def beats(step, seconds=600):
    program = BEATS.replace("{up}", PYTHON_UP).replace("{step}", step).replace("{seconds}", str(seconds))
    return (sys.executable, "-I", "-S", "-c", program)


LIMITS = (
    Case(
        number="17",
        name="silence for ever under --timeout",
        ranks=f"up; {STAY}",
        options=("--timeout", "15"),  # torchrun imports torch before any rank is there
        meanwhile=up_only,
        code=124,
        cause=r"^ezpz: (?!.*asking).*--timeout",
        grace=FAILURE_GRACE + 17,
    ),
    Case(
        number="18",
        name="much output and no heartbeat under --idle-timeout",
        ranks=beats("print('still here', flush=True)"),
        options=("--idle-timeout", "2"),
        meanwhile=up_only,
        code=124,
        cause=r"^ezpz: (?!.*asking)rank [012] on host .*--idle-timeout",
        grace=FAILURE_GRACE + 4,
    ),
    Case(
        number="18",
        name="heartbeats and no output under --idle-timeout",
        ranks=beats("agent.sendall(b'beat\\n')", seconds=7),
        options=("--idle-timeout", "3"),
        meanwhile=up_only,
        code=0,
        grace=4,
    ),
    Case(
        number="18",
        name="silence and no heartbeat ever under --idle-timeout",
        ranks=f"up; {WAIT} exit 0",
        options=("--idle-timeout", "1"),
        meanwhile=after_a_while,
        code=0,
    ),
    Case(
        number="22",
        name="another launch beside this one fails",
        ranks=f'up; {WAIT} echo yes >"$D/done.$RANK"',
        meanwhile=alongside,
        code=0,
        after=left_alone,
        not_on={"srun": "tests/launch/test_side_by_side.py", "ssh": "tests/launch/test_ssh.py"},
    ),
    Case(
        number="9, 22",
        name="a launch inside a rank of a launch, which is killed",
        ranks=(
            f'if [ "$RANK" = 0 ]; then {" ".join(LAUNCH)} --flavour local --hosts "$host" --oversubscribe -n 3 '
            f"bash -c '{UP} trap \"\" TERM; up; {LOOP}'; else {STAY}; fi"
        ),
        meanwhile=kill(launcher, signal.SIGKILL),
        code=-9,
    ),
)
