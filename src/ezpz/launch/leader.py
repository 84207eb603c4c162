r"""What stands in front of the ranks of one host where ssh starts them: it starts their shims and is the host's one voice.

Run as ``python3 -I -S leader.py INDEX`` by ``ssh HOST``, so it starts in milliseconds: few imports, no site packages. On its
stdin stands a parcel (`ezpz.launch.parcel`); what follows on the first host is rank 0's input, of which nothing is read here.

Signals cannot travel through ssh without a terminal, and the end of a launcher is not told by it: both come over a connection to
the launcher (`ezpz.launch.control`). When that ends, all that was started here is killed. Lines pasted from ``--dry-run`` have
no launcher: then the leader itself stops its ranks after the first failure.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # pathlib costs 10 ms

from ezpz.errors import EzpzError, LaunchError
from ezpz.launch.contract import rank_variables
from ezpz.launch.control import Control, watch
from ezpz.launch.parcel import to_bytes, unpack
from ezpz.launch.shim import die_with_parent
from ezpz.ranks import Ranks, expand_counts

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shim.py")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL, where no launcher decides
_CLEAN_UP = 5.0  # seconds: a process that does not end of SIGKILL for so long hangs in the kernel
_CONNECT = 10.0  # seconds for one address of the launcher
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Leader:
    """The shims of one host, and the connection to the launcher if there is one."""

    def __init__(self, index: int, environ: dict[str, str], wakeup: int) -> None:
        self._index = index
        self._environ = environ
        self._wakeup = wakeup
        self._launcher: socket.socket | None = None
        self._token = ""
        self._shims: dict[int, int] = {}  # rank by pid
        self._told: set[str] = set()  # ranks whose end the launcher knows
        self._code = 0
        self._deadline: float | None = None
        self._control = Control(["127.0.0.1"])

    def connect(self) -> None:
        """Reach the launcher, unless there is none.

        Raises:
            LaunchError: It cannot be reached.
        """
        variable = self._environ.pop("EZPZ_CONTROL", "")
        if not variable:
            return
        self._token, port, addresses = variable.split("@")
        reasons = []
        for address in addresses.split(","):
            try:
                self._launcher = socket.create_connection((address, int(port)), timeout=_CONNECT)
            except OSError as error:
                reasons.append(f"{address}: {error.strerror or error}")
                continue
            self._launcher.settimeout(None)
            watch(self._launcher)
            self._say("leader", self._index, os.getpid(), 0)
            return
        raise LaunchError(
            f"{os.uname().nodename} cannot reach the launcher at port {port} ({'; '.join(reasons)}); expected an open way back. Does a "
            "firewall stand between them? Start `launch` on one of the hosts."
        )

    def start(self, command: list[str]) -> None:
        """Start one shim per rank of this host; only rank 0 reads what follows the order."""
        counts = list(expand_counts(self._environ["EZPZ_PLACEMENT"]))
        count, first = counts[self._index], sum(counts[: self._index])
        argv: list[str | bytes] = [sys.executable, "-I", "-S", _SHIM, *map(to_bytes, command)]
        if "HOSTNAME" in self._environ:  # true of the launcher's host alone, as bash sets and some shells export it
            self._environ["HOSTNAME"] = os.uname().nodename
        for local in range(count):
            ranks = Ranks(first + local, sum(counts), local, count, self._index, "contract")
            environ = {**self._environ, **rank_variables(ranks, len(counts)), "EZPZ_CONTROL": self._control.variable}
            given = {to_bytes(name): to_bytes(value) for name, value in environ.items()}
            reads = not ranks.rank and environ.get("EZPZ_STDIN") != "none"
            self._shims[_start(argv, given, reads=reads)] = ranks.rank
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # who writes to rank 0 shall notice that it ended

    def run(self) -> int:
        """Return the exit code of the first rank that failed, when nothing of this host's ranks is left."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            if self._launcher:
                selector.register(self._launcher, selectors.EVENT_READ)
            while self._shims:
                wait = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
                ready = {key.fileobj for key, _ in selector.select(wait)}
                if self._launcher in ready:
                    self._obey()
                if self._wakeup in ready and set(os.read(self._wakeup, 4096)) & set(_OURS):
                    self.refuse(-signal.SIGTERM)  # sshd has gone, or somebody means this leader
                self._relay()
                self._reap()
                if self._deadline is not None and time.monotonic() >= self._deadline:
                    self._kill()
        self._kill()
        self._say("done", self._index, os.getpid(), self._code)
        return self._code if self._code >= 0 else 128 - self._code

    def refuse(self, code: int) -> None:
        """Tell the launcher that this host does not go on, and end what was started."""
        self._say("refused", self._index, os.getpid(), code)
        self._code = self._code or code
        self._kill()

    def _say(self, kind: str, rank: int | str, pid: int, code: int) -> None:
        if self._launcher:
            line = f"{self._token} {kind} {os.uname().nodename} {rank} {pid} {code}\n"
            try:
                self._launcher.sendall(line.encode())
            except OSError:
                pass  # its end is noticed by reading

    def _obey(self) -> None:
        """Pass on the signals that the launcher sends; its end is the end of all."""
        try:
            numbers = self._launcher.recv(4096) if self._launcher else b""
        except OSError:
            numbers = b""
        if not numbers or signal.SIGKILL in numbers:
            self._kill()
        for number in numbers:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for pid in self._shims:
            _send(pid, number)

    def _relay(self) -> None:
        """Pass on what shims say."""
        for event in self._control.events():
            self._say(event.kind, event.rank, event.pid, event.code)
            if event.kind != "up":
                self._told.add(event.rank)

    def _reap(self) -> None:
        for pid, status in _ended():
            if pid in self._shims:
                self._relay()  # a shim's last word comes before its end
                rank, code = self._shims.pop(pid), os.waitstatus_to_exitcode(status)
                if code and not {str(rank), "?"} & self._told:
                    self._say("ended", rank, pid, code)  # the shim itself was killed, or could not start
                self._failed(code)

    def _failed(self, code: int) -> None:
        if code and not self._code:
            self._code = code
            if not self._launcher:
                self._pass_on(signal.SIGTERM)
                self._deadline = time.monotonic() + _FAILURE_GRACE

    def _kill(self) -> None:
        """Kill all that was started here: orphans of whatever session become children of their leader."""
        end = time.monotonic() + _CLEAN_UP
        while True:
            for pid in {*self._shims, *_children()}:
                _send(pid, signal.SIGKILL)
            for pid, _ in _ended():
                self._shims.pop(pid, None)
            if not self._shims and (not _children() or time.monotonic() > end):
                return
            if time.monotonic() > end:
                self._shims.clear()
            time.sleep(0.005)


def _start(argv: list[str | bytes], environ: dict[bytes, bytes], *, reads: bool) -> int:
    """Start a shim that dies with this leader from its first moment on, and return its pid."""
    leader = os.getpid()
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, _OURS
    )  # one for the shim must not be taken for one for the leader
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    try:
        signal.set_wakeup_fd(-1)
        die_with_parent()
        if not reads:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in _OURS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if os.getppid() == leader:  # else it died before the wish was armed
            os.execve(argv[0], argv, environ)
    finally:
        os._exit(125)


def _ended() -> list[tuple[int, int]]:
    """Return pid and status of the children that have ended."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, status))


def _children() -> list[int]:
    """Return the children of this process; without /proc (macOS) those that it adopted are not known, and there are none."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]  # 7 (a program) S 1 7 …  proc(5)
        except OSError:
            continue
        if int(parent) == os.getpid() and state != b"Z":
            found.append(int(name))
    return found


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already


def _stand_guard() -> int:
    """Adopt orphans, notice the end of sshd, and return the descriptor that tells of signals."""
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (*_OURS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    if sys.platform == "linux":
        import ctypes

        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return read


def main(words: Sequence[str]) -> int:
    """Lead the host with the index that is given, and return the exit code."""
    wakeup = _stand_guard()
    leader = None
    try:
        parcel = unpack(0)
        leader = Leader(int(words[0]), dict(parcel.environ), wakeup)
        leader.connect()
        _enter(parcel.folder)
        leader.start(parcel.command)
        return leader.run()
    except EzpzError as error:
        sys.stderr.write(f"ezpz: {error}\n")
        if leader:
            leader.refuse(error.exit_code)
        return error.exit_code


def _enter(folder: str) -> None:
    try:
        os.chdir(to_bytes(folder))
    except OSError as error:
        raise LaunchError(
            f"cannot enter {folder} on {os.uname().nodename} (from the launcher's working folder): {error.strerror}; expected the same "
            "folder on every host. Start `launch` in a folder that they share."
        ) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
