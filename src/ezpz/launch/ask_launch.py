"""Ask a running launch, on this host through its socket, and on another one by running this file there.

    ssh -o BatchMode=yes -o ConnectTimeout=10 -x -T n01 'exec /usr/bin/python3 -I -S …/ask.py @ezpz-launch-… stacks …'
    srun --jobid=12 -N1 -n1 --overlap --cpu-bind=none --input=none --nodelist n01 sh -c 'exec /usr/bin/python3 …'
    pbs_tmrsh n01 sh -c 'exec /usr/bin/python3 … ~/.local/state/ezpz/launches/…/.answer-7c1e90aa'

The scheduler is asked where ssh does not get there. Nothing listens on a network for this. ``pbs_tmrsh`` passes no
output on, so that the answer comes by a file beside the launch's record, which both hosts see. What the launch answers
is one JSON object (`ezpz.launch.run.socket_requests`).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(__file__ + "/../../.."))  # python3 -I leaves out the folder of a script

import json
import re
import shlex
import time
from contextlib import suppress
from functools import partial

from ezpz import local_socket, register
from ezpz.errors import MachineError
from ezpz.files import LARGEST

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.register import Launch

__all__ = ["PATIENCE", "ask", "main"]

PATIENCE = {"stacks": 30.0, "end": 5.0, "kill": 5.0}  # seconds for the answer: ranks on all hosts tell their stacks
_ON_THE_WAY = 10.0  # seconds besides, for ssh or the scheduler to begin
_MOMENT = 1.0  # second in which one that begins listens, and one that ends has recorded that
_LAST = 1.0  # second for what it wrote, when it is killed
_TYPED = {"stacks": "ezpz stacks {}", "end": "ezpz kill {}", "kill": "ezpz kill --now {}"}
_LEFT = "ezpz kill --hosts {host} {id}"
_WANTED = {"stacks": "where its ranks are", "end": "it to end", "kill": "it to end"}
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")  # no option, and no other word of a shell
_SOCKET = re.compile(r"@ezpz-launch-[\w+.-]+|/.*/launch-[\w+.-]+\.sock")
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def ask(launch: Launch, word: str, patience: float = 0.0) -> dict[str, Any]:
    """Ask a running launch and return its answer; ``{"ended": True}`` where it has ended meanwhile.

    Args:
        launch: The launch, as `ezpz.register` returns it.
        word: ``stacks``, ``end`` or ``kill``.
        patience: Seconds for the answer; by default those of the word.

    Raises:
        MachineError: It does not answer, refuses, or cannot be reached.
    """
    patience = patience or PATIENCE[word]
    host = os.uname().nodename
    way = partial(_here, launch.socket) if launch.is_here else partial(_elsewhere, launch)
    answer = way(word, patience, host)
    reason = answer.get("failed") or answer.get("refused")
    if not reason:
        return answer
    if _has_ended(launch):
        return {"ended": True}
    pid = f", pid {launch.pid}" if launch.pid else ""
    typed = shlex.quote(launch.launch_id)
    raise MachineError(
        f"launch {launch.launch_id} on {launch.host}{pid}: {reason}; expected {_WANTED.get(word, 'an answer')}."
        + (
            ""
            if launch.is_here
            else f" Where it is gone, `{_LEFT.format(host=launch.host, id=typed)}` ends what is left."
        )
    )


def _has_ended(launch: Launch) -> bool:
    now = register.read(os.path.join(launch.folder, "run.json")) if launch.folder else None
    return now is not None and now.launch_id == launch.launch_id and not now.is_running


# On this host.


def _here(where: str, word: str, patience: float, host: str) -> dict[str, Any]:
    """Return the answer of a launch of this host, or an object with ``failed``: why there is none."""
    if not _SOCKET.fullmatch(where):
        return {"failed": "its record names no socket of a launch"}
    end = time.monotonic() + patience
    parts: list[bytes] = []
    size = 0
    try:
        connection = local_socket.reach(where, min(_MOMENT, patience / 4))
    except OSError as error:
        return {"failed": f"nothing answers at its socket ({error.strerror or error}): it begins, ends or is gone"}
    try:
        connection.settimeout(patience)
        local_socket.send_all(connection, f"{word} {host}\n".encode())
        while part := connection.recv(1 << 16):
            parts.append(part)
            size += len(part)
            if size > LARGEST:
                return {"failed": f"its answer has more than {LARGEST >> 20} MiB"}
            connection.settimeout(max(0.001, end - time.monotonic()))
    except TimeoutError:
        pid = local_socket.credentials(connection)[0] if sys.platform == "linux" else 0
        look = f"; it may be stopped: look at `ps -o stat= -p {pid}`" if pid else ""
        return {"failed": f"it has not answered within {patience:g} s{look}"}
    except OSError as error:
        return {"failed": f"it hung up ({error.strerror or error}); it may have ended"}
    finally:
        connection.close()
    answer = _read(b"".join(parts))
    return {"failed": "it answered with what is no JSON object; its version may differ"} if answer is None else answer


def _read(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


# On another host.


class _Way:
    """A way to run a command there.

    Attributes:
        title: What does it, for people.
        line: Its command line.
        environ: The environment of that.
        file: Where the answer comes; empty where it is printed.
    """

    def __init__(self, title: str, line: Sequence[str], environ: Mapping[str, str], file: str = "") -> None:
        self.title, self.line, self.environ, self.file = title, list(line), dict(environ), file


def _elsewhere(launch: Launch, word: str, patience: float, host: str) -> dict[str, Any]:
    """Return the answer of a launch on another host.

    Raises:
        MachineError: No way leads there.
    """
    reasons = []
    if not (_HOST.fullmatch(launch.host) and _SOCKET.fullmatch(launch.socket)):
        reasons.append("its record does not tell on which host, and at which socket")
    else:
        for way in _ways(launch, [launch.socket, word, f"{patience:g}", host], reasons):
            answer = _run(way, patience + _ON_THE_WAY, reasons)
            if answer is not None:
                return answer
            if _has_ended(launch):
                return {"ended": True}
    job = f" (job {launch.job})" if launch.job else ""
    typed = shlex.quote(launch.launch_id)
    raise MachineError(
        f"cannot ask launch {launch.launch_id} on {launch.host}{job} from here: {'; '.join(reasons)}; expected a way "
        f"there. On {launch.host}, type `{_TYPED[word].format(typed)}`."
    )


def _ways(launch: Launch, words: Sequence[str], reasons: list[str]) -> Iterator[_Way]:
    """Yield the ways to a launch's host, ssh first."""
    from ezpz.files import find_program
    from ezpz.launch.flavours import ssh

    libraries = os.environ.get("LD_LIBRARY_PATH")  # a Python of a module may need this to start at all
    command = [*(["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else [])]
    command += [sys.executable, "-I", "-S", os.path.abspath(__file__), *words]
    program = ssh.words_of(os.environ) or [find_program(ssh.Ssh.name)]
    if program[0]:
        yield _Way(ssh.Ssh.title, ssh.line_to(program, launch.host, command), os.environ)
    else:
        reasons.append("no ssh on PATH")
    if launch.job and launch.scheduler and _JOB.fullmatch(launch.job):
        yield from _ways_of_job(launch, command, reasons)


def _ways_of_job(launch: Launch, command: Sequence[str], reasons: list[str]) -> Iterator[_Way]:
    from ezpz.cluster.scheduler import schedulers
    from ezpz.files import find_program
    from ezpz.launch.flavours.base import REMOTE_SHELL, remote_variables

    around = next((each for each in schedulers() if each.name == launch.scheduler), None)
    if around is None or not around.remote_shell:
        return
    title = around.remote_shell[0]
    reach = around.reach(os.environ, launch.job)
    problem = reach.problem or ("" if find_program(title) else f"no {title} on PATH")
    if problem:
        reasons.append(problem)
        return
    environ: dict[str, str] = dict(os.environ)
    chosen = [f"{around.job_option}={launch.job}"] if around.job_option else []
    if chosen and around.job_id(os.environ) != launch.job:  # else they would shape the step
        environ = {name: value for name, value in environ.items() if not around.tells_of_job(name)}
    environ.update(remote_variables(around, reach, chosen))
    file = "" if around.passes_output else _file_beside(launch.folder)
    if not around.passes_output and not file:
        reasons.append(f"{title} passes no output on, and the record's folder cannot be written from here")
        return
    words = [*command, *([file] if file else [])]
    yield _Way(title, [REMOTE_SHELL, launch.host, f"exec {shlex.join(words)}"], environ, file)


def _file_beside(folder: str) -> str:
    """Return an empty file of this user alone in the folder of a record; no path where none can be made."""
    if not folder:
        return ""
    path = os.path.join(folder, f".answer-{os.urandom(4).hex()}")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:
        return ""
    return path


def _run(way: _Way, patience: float, reasons: list[str]) -> dict[str, Any] | None:
    """Return what was answered; None, with one more reason, where nothing was."""
    import signal
    import subprocess

    nowhere, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        child = subprocess.Popen(
            way.line, env=way.environ, stdin=nowhere, stdout=pipe, stderr=pipe, start_new_session=True
        )
        try:
            out, error = child.communicate(timeout=patience)
            why = f"ended with {child.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out = error = b""
            with suppress(subprocess.TimeoutExpired):  # of what has left its group and holds its output
                out, error = child.communicate(timeout=_LAST)
            why = f"not there within {patience:.0f} s"
        if way.file:
            with open(way.file, "rb") as file:
                out = file.read(LARGEST)
    except (OSError, ValueError) as failed:
        reasons.append(f"{way.title}: {getattr(failed, 'strerror', None) or failed}")
        return None
    finally:
        if way.file:
            with suppress(OSError):  # the folder went with the launch
                os.unlink(way.file)
    answers = (_read(line) for line in reversed(out.splitlines()) if line.startswith(b"{"))  # behind a login's banner
    answer = next((each for each in answers if each), None)
    if answer is None:
        said = next(
            (line.strip() for line in reversed(error.decode(errors="replace").splitlines()) if line.strip()), ""
        )
        reasons.append(f"{way.title} {why}{f', saying {said[:300]!r}' if said else ''}")
    return answer


def main(words: Sequence[str]) -> int:
    """Ask a launch of this host and print what it answers, or write it into a file.

    Args:
        words: Its socket, the word, the seconds for the answer, the host that asks, and the file, if any.
    """
    where, word, patience, host, *file = words
    data = json.dumps(_here(where, word, float(patience), host)).encode() + b"\n"
    descriptor = os.open(file[0], os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC) if file else 1
    while data:
        data = data[os.write(descriptor, data) :]
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
