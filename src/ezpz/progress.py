r"""Tell the agent of the host about a rank: the stages of its start, and that it makes progress.

Standard library only and cheap, because `ezpz.heartbeat` may stand in an innermost loop. This file is not called
``heartbeat.py``: importing a submodule of that name would replace the function `ezpz.heartbeat` by the module.

The agent listens on a Unix stream socket, EZPZ_SOCKET: ``@name`` is the abstract socket ``\0name`` of Linux, else a
path. A process that is a rank of the launch keeps one connection and writes lines:

    rank 3 4711       who speaks: rank and pid, once and first
    dumps 45          at this signal the process writes its Python stacks to its stderr
    stage setup       reached for the first time: setup, met, group, model, data, step, second_step
    beat              progress, at most once per second
    at 120            the last step that it reported: with a beat, and when the program ends
    pace 42 0 100     42 steps of 100 are done, and this run of the program began behind 0; with a beat, of a `Loop`
    folder /a/run     it keeps the record of a run there
    busy 1            it works on its record from now on, and others may wait for it; with 0 no longer
    section 600 0 load    it enters a section with an idle limit of 600 s, 0 for none; with 1 in place of 0 at least
                      that of the launch; without a name it is in none any more

No other process reports for a rank: no child that it forked or that multiprocessing started, such as a loader of data,
and no rank of another launcher inside it. When the agent has gone, all calls do nothing for good.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
from time import monotonic, sleep, time

from ezpz import durations, proc
from ezpz.errors import EzpzError, UsageError
from ezpz.ranks import from_environ, of_this_launch

_EVERY = 1.0  # seconds between two beats
_CONNECT = 0.2  # seconds that a rank waits for its agent, once
_WORKS = 0.001  # seconds of CPU between two looks: less is waiting
_WAITS = 60.0  # seconds: 30 for other ranks and 10 for trackers are our longest waits, and a disk may be slow
_LONGEST_NAME = 80  # characters of a section
_LATER = 30.0  # seconds until the next try, where the agent's queue of connections stayed full
# SIGRTMIN+11. Others use: the C library 32 and 33, Go 34, systemd (as process 1) RTMIN+0 to 7, 13 to 18 and 20 to 29,
# PAPI and HPCToolkit RTMIN+2 to 4, libmonitor RTMIN+8, Valgrind RTMAX; torch, NCCL, CUDA, Slurm, submitit and Lightning
# only classic ones (USR1, USR2, TERM, CONT, CHLD). macOS has none of these, and tells no stacks this way.
_DUMP_OFFSET = 11

_next = -math.inf  # the moment from which on a beat is due; infinite where no agent listens
_lock = threading.Lock()
_agent: _Agent | None = None
_sent: set[str] = set()
_first: int | None = None  # the first step, until a second one is reported
_step: int | None = None  # the last that was reported here,
_step_sent: int | None = None  # and the last that the agent got
_pace: tuple[int, int, int] | None = None  # steps done, done at the start, and in all, of a loop that runs
_pace_sent: tuple[int, int, int] | None = None

_folder: str | None = None  # where a run is recorded; None once the agent knows

_sections: list[_Section] = []  # those that the main thread is in, the innermost last,
_section_sent: _Section | None = None  # and the one that the agent knows of
_timeouts: dict[str, float] = {}  # what was read before: a section may be entered in every step

reached: dict[str, float] = {}  # stage -> when this process reached it, epoch seconds


def heartbeat(step: int | None = None) -> None:
    """Tell the launcher that this rank makes progress: ``--idle-timeout`` counts from a rank's first call on.

    Call it as often as you like: at most one line per second goes out, and any other call costs 0.1 µs. It never waits
    for the agent to read, never raises, and does nothing outside ``ezpz launch``. `History.update` calls it.

    Args:
        step: The step that this rank has done. The launcher names it if the rank leaves while others wait for it.
    """
    global _step
    if step is not None:
        _step = step
    if monotonic() >= _next or (_first is not None and _step != _first):
        _speak(_stage_of_step(), beat=True)


def pace(done: int, first: int, total: int) -> None:
    """Note how far a loop is; the next beat tells it, for the line that `launch` draws on a terminal.

    Args:
        done: Steps done.
        first: Steps that were done when this run of the program began.
        total: Steps in all.
    """
    global _pace
    _pace = (done, first, total)


def records_in(folder: str) -> None:
    """Note where this rank keeps the record of a run; the next beat tells it, so that the launcher's own goes there.

    Args:
        folder: The absolute path of a run folder.
    """
    global _folder
    _folder = folder if folder.isprintable() else None


def end_pace() -> None:
    """Tell that the loop has ended, if it was ever reported to run."""
    global _pace, _pace_sent
    _pace = None
    if _pace_sent is not None:
        _pace_sent = None
        _say("pace 0 0 0")


def _stage_of_step() -> str:
    """Return the stage that this step is; the second goes out at once, because the first holds compilation."""
    global _first
    if "step" not in _sent:
        _first = _step
    elif _first is not None and _step != _first:
        _first = None
        return "second_step"
    return "step"


def stage(name: str) -> None:
    """Tell the agent, once per name, that this process has come so far.

    Args:
        name: ``setup``, ``met``, ``group``, ``model`` or ``data``; one word.
    """
    reached.setdefault(name, time())
    if name not in _sent and _next != math.inf:
        _speak(name, beat=False)


def section(name: str, *, timeout: str | float | None) -> _Section:
    """Return a block in which this rank may be without a heartbeat for longer, or for less long, than elsewhere.

        with ezpz.section("checkpoint", timeout="10m"):
            save()

    ``launch --idle-timeout`` then need not be as long as the longest checkpoint: inside the block its timeout takes the
    place of that limit. It counts from entering, and anew from each heartbeat inside. Of blocks within each other the
    innermost counts. Every rank that may wait for another one in the block should enter it, too.

    A rank that enters before its first heartbeat is watched inside the block, and not after it. Entering and leaving
    cost some microseconds under ``ezpz launch``. In other threads than the main one, without ``--idle-timeout`` and
    outside ``ezpz launch`` a section has no effect.

    Args:
        name: What the rank does there, at most 80 characters. The line that ends a hanging run has it.
        timeout: As ``--idle-timeout`` takes it (``90s``, ``10m``, ``1h30m``), or seconds; None, 0 or ``off`` for no
            limit.

    Raises:
        UsageError: The name or the timeout is none.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        raise UsageError(
            f"unusable name {name!r} (from ezpz.section); expected what this rank does there, in 1 to {_LONGEST_NAME} "
            "printable characters."
        )
    return _Section(name, _seconds(timeout), at_least=False)


def patience(name: str, seconds: float) -> _Section:
    """Return a section that shortens no limit: neither ``--idle-timeout`` nor that of the section around it.

    Args:
        name: What the rank does there.
        seconds: Its timeout, where no other limit is longer.
    """
    return _Section(name, seconds, at_least=True)


def _seconds(timeout: str | float | None) -> float:
    """Return the seconds of a timeout, 0 for no limit."""
    if timeout is None:
        return 0.0
    if isinstance(timeout, str):
        if timeout not in _timeouts:
            try:
                _timeouts[timeout] = durations.read(timeout) or 0.0
            except ValueError as error:
                raise UsageError(f"unusable timeout (from ezpz.section): {error}.") from None
        return _timeouts[timeout]
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= durations.LONGEST:
        raise UsageError(
            f"unusable timeout={timeout!r} (from ezpz.section); expected a time such as '10m', seconds up to 1000 "
            "days, or None for no limit."
        )
    return float(timeout)


class _Section:
    """A block with an idle limit of its own: `section`."""

    __slots__ = ("_at_least", "_name", "_timeout", "limit")

    def __init__(self, name: str, timeout: float, *, at_least: bool) -> None:
        self._name, self._timeout, self._at_least = name, timeout, at_least
        self.limit = timeout  # that of the section around it where that is longer and counts

    def __enter__(self) -> None:
        if _next == math.inf or threading.get_ident() != threading.main_thread().ident:
            return
        if self._at_least and _sections:
            outer = _sections[-1].limit
            self.limit = outer and max(self._timeout, outer)
        _sections.append(self)
        _tell_change()

    def __exit__(self, *error: object) -> None:
        if self in _sections and threading.get_ident() == threading.main_thread().ident:
            _sections.reverse()  # the innermost of its kind
            _sections.remove(self)
            _sections.reverse()
            _tell_change()

    def line(self) -> str:
        """Return what the agent reads."""
        return f"section {self.limit!r} {int(self._at_least)} {self._name}"


def _tell_change() -> None:
    """Tell the agent of the section that the rank is in now; where it cannot hear, with a later beat."""
    if _next != math.inf and (_agent is not None or monotonic() >= _next):
        _speak("", beat=False)


class Busy:
    """Inside the block this rank works on its record: it makes progress as long as it really works.

    A thread beats while the thread that entered uses the CPU. What it waits for (other ranks, trackers, a disk) is
    progress for a minute in all, because no wait of ours is longer. Other ranks may wait in a barrier meanwhile, so
    the launcher does not count their time. A rank that never beat is left alone.
    """

    def __enter__(self) -> None:
        self._over = threading.Event()
        self._is_sent = "step" in _sent and _say("busy 1")
        if self._is_sent:
            ident = threading.get_ident()
            thread = threading.Thread(target=self._watch, args=(ident,), name="ezpz-busy", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python is ending and starts no threads any more
                heartbeat()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._is_sent:
            heartbeat()
            _say("busy 0")

    def _watch(self, ident: int) -> None:
        used, waited, began = _cpu_of(ident), 0.0, monotonic()
        while not self._over.wait(_EVERY / 2):
            before, used = used, _cpu_of(ident)
            now = monotonic()
            waited += 0.0 if used - before > _WORKS else now - began
            began = now
            if waited < _WAITS:
                heartbeat()


def _cpu_of(ident: int) -> float:
    """Return the seconds of CPU that a thread of this process has used; of all threads where these are unknown."""
    import time as clocks

    own = getattr(clocks, "pthread_getcpuclockid", None)  # not on macOS
    return clocks.process_time() if own is None else clocks.clock_gettime(own(ident))


class _Agent:
    """The connection to the agent of this host.

    It is held as a number: a socket object that lives until Python ends would warn of itself with ``-X dev``, and one
    that is closed earlier would hide a program that hangs in its end.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._unsent = b""

    def say(self, line: str, *, droppable: bool = False) -> None:
        """Send a line without waiting; what does not fit goes before the next one, unless it may be dropped.

        Raises:
            OSError: The agent is gone.
        """
        import socket

        late = bool(self._unsent)
        if not (droppable and late):
            self._unsent += f"{line}\n".encode()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=self.descriptor)
        try:
            # Without MSG_NOSIGNAL (macOS has none) an agent that is gone would kill a rank that reset SIGPIPE.
            sent = connection.send(self._unsent, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            if droppable and not late:
                self._unsent = b""
        finally:
            connection.detach()


def _speak(name: str, *, beat: bool) -> None:
    """Send a new stage, the section, and a beat; one thread at a time, and a signal handler inside it gives up."""
    global _agent, _next
    if not _lock.acquire(timeout=0 if beat else 2 * _CONNECT):
        return
    try:
        _agent = _agent or _meet()
        if _agent is None:
            _next = math.inf
            return
        if name and name not in _sent:
            _sent.add(name)
            _agent.say(f"stage {name}")
        _tell_section(_agent)
        if beat:
            _next = monotonic() + _EVERY
            _agent.say("beat", droppable=True)
            _tell_step(_agent)
            _tell_pace(_agent)
            _tell_folder(_agent)
    except BlockingIOError:
        _next = monotonic() + _LATER
    except OSError:
        _fall_silent()
    finally:
        _lock.release()


def _say(line: str) -> bool:
    """Send a line, and tell whether there is an agent."""
    if _agent is None or not _lock.acquire(timeout=2 * _CONNECT):
        return False
    try:
        _agent.say(line)
    except OSError:
        _fall_silent()
        return False
    finally:
        _lock.release()
    return True


def _tell_section(agent: _Agent) -> None:
    global _section_sent
    now = _sections[-1] if _sections else None
    if now is not _section_sent:
        _section_sent = now
        agent.say(now.line() if now is not None else "section 0 0 ")


def _tell_step(agent: _Agent) -> None:
    global _step_sent
    if _step != _step_sent and isinstance(_step, int) and abs(_step) < 2**53:
        _step_sent = _step
        agent.say(f"at {_step}", droppable=True)


def _tell_pace(agent: _Agent) -> None:
    global _pace_sent
    if _pace is not None and _pace != _pace_sent:
        _pace_sent = _pace
        agent.say(f"pace {_pace[0]} {_pace[1]} {_pace[2]}", droppable=True)


def _tell_folder(agent: _Agent) -> None:
    global _folder
    if _folder is not None:
        folder, _folder = _folder, None
        agent.say(f"folder {folder}")


def _at_exit() -> None:
    """Tell the last step, which may be of less than a second ago."""
    if _agent is not None and _lock.acquire(blocking=False):
        try:
            _tell_step(_agent)
        except OSError:
            pass  # the agent has gone
        finally:
            _lock.release()


def _meet() -> _Agent | None:
    """Connect to the agent and say who this is; None where there is none, or this process is not a rank of the launch.

    Raises:
        OSError: The agent is gone; BlockingIOError when it is busy.
    """
    address = os.environ.get("EZPZ_SOCKET", "")
    if not address or not of_this_launch(os.environ) or _is_worker():
        return None
    try:
        rank = from_environ(os.environ).rank
    except EzpzError:  # `setup_torch` says what is wrong
        return None
    agent = _Agent(_connect(address))
    agent.say(f"rank {rank} {os.getpid()}")
    atexit.register(_at_exit)
    number = _offer_dumps()
    if number:
        agent.say(f"dumps {number}")
    return agent


def _is_worker() -> bool:
    """Tell whether multiprocessing started this process, e.g. to load data."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


def _connect(address: str) -> int:
    """Return the descriptor of a connection, which programs that this one starts do not inherit."""
    import socket

    end = monotonic() + _CONNECT
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT)
        while True:
            try:
                connection.connect("\0" + address[1:] if address.startswith("@") else address)
            except BlockingIOError:  # Linux: its queue is full, because all ranks come at once
                if monotonic() > end:
                    raise
                sleep(0.01)
            else:
                return connection.detach()


def _offer_dumps() -> int:
    """Let faulthandler write all stacks to stderr at a signal that has no other handler, and return that; 0 without."""
    import signal

    lowest = getattr(signal, "SIGRTMIN", None)
    if lowest is None:
        return 0
    number = int(lowest) + _DUMP_OFFSET
    if signal.getsignal(number) != signal.SIG_DFL or proc.catches("self", number):  # perhaps a library's
        return 0
    import faulthandler

    try:
        faulthandler.register(number, file=2, all_threads=True)
    except (OSError, RuntimeError, ValueError):
        return 0
    return number


def _fall_silent() -> None:
    global _agent, _next
    _next = math.inf
    agent, _agent = _agent, None
    if agent is not None:
        try:
            os.close(agent.descriptor)
        except OSError:
            pass  # the program has closed all that it knew nothing of


def _in_forked_child() -> None:
    """Leave the connection to the parent, and never speak for it."""
    global _lock
    _lock = threading.Lock()  # another thread may have held it at the fork
    _sections.clear()
    _fall_silent()


os.register_at_fork(after_in_child=_in_forked_child)
