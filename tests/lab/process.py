"""Processes under test: started with a time limit, watched until the last of them is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

from ezpz import proc
from lab.idle import Deadline

TAG = "EZPZ_TEST_TAG"
KEPT_PREFIXES = ("PIP_", "SSL_CERT_", "EZPZ_TEST_")
KEPT_NAMES = ("CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "TZ")
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")


def minimal_env(home, tag, *bins):
    """What a login on a bare machine gives, with `bins` first on PATH, and what pip needs to reach its index.

    Beside other tests the threads of torch would spin for each other: OMP_WAIT_POLICY lets them sleep.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(KEPT_PREFIXES) or name in KEPT_NAMES or name.lower().endswith("_proxy")
    }
    path = os.pathsep.join([*map(str, bins), *SYSTEM_PATH])
    return {**kept, "HOME": str(home), "PATH": path, "LANG": "C.UTF-8", TAG: tag, "OMP_WAIT_POLICY": "PASSIVE"}


def run(args, env=None, *, timeout=60, cwd=None, stdin=None):
    """Run `args` to its end and return a CompletedProcess (text); at `timeout` its whole process group is killed.

    The limit is that of a machine with an idle core: a busy one is given up to ten times as long.

    `stdin` is text for it to read; without, it reads an empty stream. The end of the process counts, not the end of
    its output: a child that lives on and holds the pipe does not keep the caller waiting. On a time limit the
    TimeoutExpired that is raised holds the output so far.
    """
    process = subprocess.Popen(
        [str(arg) for arg in args],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    outputs = [_Reader(process.stdout), _Reader(process.stderr)]
    if stdin is not None:
        threading.Thread(target=_feed, args=(process.stdin, stdin.encode()), daemon=True).start()
    deadline = Deadline(timeout)
    try:
        while True:
            try:
                process.wait(min(timeout, 1))
                break
            except subprocess.TimeoutExpired:
                if deadline.is_over():
                    raise
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise subprocess.TimeoutExpired(process.args, timeout, *(reader.text() for reader in outputs)) from None
    except BaseException:
        kill_group(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, *(reader.text() for reader in outputs))


def kill_group(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


class _Reader(threading.Thread):
    """Collects what comes out of a pipe."""

    def __init__(self, pipe):
        super().__init__(daemon=True)
        self.pipe, self.chunks = pipe, []
        self.start()

    def run(self):
        while chunk := os.read(self.pipe.fileno(), 65536):
            self.chunks.append(chunk)
        self.pipe.close()

    def text(self):
        """What has come until the pipe was closed or, when a survivor holds it, until half a second from now."""
        self.join(0.5)
        return b"".join(self.chunks).decode(errors="replace")


def _feed(pipe, data):
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(data)


def survivors(tag):
    """``{pid: command line}`` of the processes that were started with ``EZPZ_TEST_TAG=tag`` and still live.

    The environment at the start decides, so that children in other sessions, groups and lab hosts are found too.
    Without /proc (macOS) nothing is found.
    """
    mark = f"{TAG}={tag}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and int(folder.name) != os.getpid():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line:  # a zombie has none: it is over
                    found[int(folder.name)] = line
    return found


# A program that leaves a daemon behind, which wipes its environment and leaves session and tree; only its words tell
# whose it is. Then it stays, or ends when a second word follows.
WIPED_DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execve("/bin/sleep", ["sleep", sys.argv[1]], {})
    os._exit(0)
os.wait()
if not sys.argv[2:]:
    time.sleep(600)
"""


def daemons(seconds):
    """Pids of the daemons of `WIPED_DAEMON` that were given this number."""
    line = f"sleep\0{seconds}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes() == line:
                found.append(int(folder.name))
    return found


def shim_of(rank):
    """The shim in front of a rank: its parent."""
    process = proc.stat(rank)
    assert process, f"the rank {rank} has ended"
    return process.parent


def program(path, text):
    """Write a text that can be run, and its folder; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def ignoring(signals):
    """The words in front of a command that start it with these signals ignored, as `nohup` does: ``HUP INT``."""
    return ["sh", "-c", f'trap "" {signals}; exec "$@"', "sh"]


def wait_until(condition, timeout, what, every=0.1):
    """Wait until `condition()` is true and return its value; after `timeout` seconds fail: `what` was missing.

    A busy machine is given up to ten times as long.
    """
    deadline = Deadline(timeout)
    while True:
        value = condition()
        if value:
            return value
        if deadline.is_over():
            raise AssertionError(f"after {timeout} s still waiting: {what}")
        time.sleep(every)


def kill_all(pids):
    """SIGKILL to each; returns those that were still there."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            found.append(pid)
    return found
