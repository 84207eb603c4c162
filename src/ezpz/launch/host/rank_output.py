r"""Prepare what one rank writes for the launcher, on its way from the pipes of its host's agent.

Ranks write in whatever pieces they like; several write at once; the last words of a rank that fails matter most and
scroll away first. So pieces are cut behind whole lines, a traceback waits for the end of its rank, and all bytes go
into the rank's log. Nothing here reads, waits or knows the time: an agent feeds what it has read and takes what may be
shown.
"""

from __future__ import annotations

import os
import re
import signal

TYPE_CHECKING = False  # `typing` costs 5 ms in every agent; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RankOutput"]

_OUT, _ERR = 1, 2
_ABORTED = (-signal.SIGABRT, 128 + signal.SIGABRT)  # exit codes of a rank, and of one under a shell
_PATIENCE = 1.0  # seconds that the beginning of a line waits for its end: a prompt must appear
_LONGEST = 1 << 20  # bytes of a line; a longer one is cut
_SHORT = 4096  # bytes of a line that is passed on where it lies
_HOLD = 5.0  # seconds that a traceback waits for its rank to end
_MOST_HELD = 256 << 10  # bytes
_TAIL, _TAIL_LINES = 8 << 10, 20  # the last words of a rank without a traceback
_WHILE_IT_LIVES = 4 << 10  # bytes of a traceback that are told of a rank that lives
# Why torch aborts a rank (gloo's pair.cc, ProcessGroupNCCL.cpp): stacks of C++ and of Python come behind that.
_REASON = (b"enforce fail at ", b"Watchdog caught collective", b"ast enqueued NCCL work", b"ast enqueued work")
_REASONS, _REASON_BYTES = 6, 600  # lines that are kept, and bytes of each
_LARGEST_DUMP = 1 << 20  # bytes; faulthandler ends at 100 threads of 100 frames, a program that imitates it may not

_COLOUR = rb"\x1b\[[0-9;:]*m"
# Python's own words, maybe behind torchrun's `[rank0]: ` or a progress bar, or in the box that rich draws
_LAST = b"most recent call last"
_FATAL = b"Fatal Python error: "
# What C++, the C library and `assert` say before Python says that it was aborted, and a word that each of them has:
#     terminate called after throwing an instance of 'std::bad_alloc'        double free or corruption (!prev)
#     python3: solver.c:31: step: Assertion `n > 0' failed.                  free(): invalid pointer
_DYING = (
    rb"(?m:^)(?:terminate called |double free or corruption|(?:free|malloc|realloc|munmap_chunk)\(\): "
    rb"|[^\n`]{1,300}: Assertion `[^\n]{1,300}' failed\.$)"
)
_WORDS_OF_DYING = (b"terminate called ", b"double free", b"(): ", b": Assertion `")
_TRACEBACK = b"Traceback (most recent call last)"
# /usr/bin/python3: can't open file '/home/me/trian.py': [Errno 2] No such file or directory   Modules/main.c
# /usr/bin/python3: No module named trian                                                       runpy.py
_REFUSAL = (
    rb"(?m:^)[^\n:]*python[\d.]*: "
    rb"(?:can't (?:open file|find '__main__' module)|No module named |Error while finding module)"
)
_REFUSED_WITHIN = 8 << 10  # bytes: what comes after the last words of a Python is little
_PYTHON = b"python"  # is in each of them
# Thread 0x00007f2a (most recent call first):   Python/traceback.c; 3.14 names the thread in between
_STACK_BEGINS = (
    rb"Fatal Python error: |(?:Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):"
    rb"|Stack \(most recent call first\):|Current thread's C stack trace \(most recent call first\):"
)
# The last lines of a Python that ends: /usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: …
_AFTER_AN_END = (b"Warning", b"warn(", b"Exception ignored")
# A frame of a dump has no comma before `in`, unlike one of a traceback.
_STACK_CONTINUES = (
    rb'  File ".*", line (?:\d+|\?\?\?) in |  Binary file "|  <[^>]*>\s*$|  Garbage-collecting\s*$'
    rb"|(?:  )?\.\.\.\s*$|Extension modules: |Python runtime state: "
)


class RankOutput:
    """Both streams of one rank.

    Attributes:
        words: After `end(failed=True)`: the traceback that was held back, else the last lines of stderr. A traceback
            that the rank outlived stands before these, whole, only where it may have ended of it all the same.
        reason: After `end`: what torch has written before that of why it aborts the rank; empty where it did not.
        words_shown: Whether `words` have been handed out by `take` or `end` too.
        problem: Why the log of this rank ends early; empty as long as it does not.
    """

    def __init__(self, rank: int, log_dir: str = "") -> None:
        self.words = self.reason = self.problem = ""
        self._reasons: list[bytes] = []
        self.words_shown = False
        self._path = f"{log_dir}/rank-{rank}.log" if log_dir else ""
        self._log = -1
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC
        self._lines = {_OUT: _Lines(), _ERR: _Lines()}
        self._ready: list[tuple[int, bytes]] = []
        self._held, self._held_since = bytearray(), 0.0
        self._over = False
        # What was shown last, behind the traceback that the rank has outlived and the line before that.
        self._tail = self._outlived = self._line_before = b""
        self._dump: bytearray | None = None
        self._in_dump = False
        self._blank = b""  # empty lines after a stack: whose they are, the next line tells

    def feed(self, stream: int, data: bytes, now: float) -> None:
        """Take in what was read from stream 1 or 2; nothing means that it has ended.

        Args:
            stream: 1 for stdout, 2 for stderr.
            data: The bytes, cut anywhere.
            now: Monotonic time, seconds.
        """
        if self._held:
            self._expire(now)
        if self._path and data and not self.problem:
            self._write_log(data)
        lines = self._lines[stream]
        data = lines.add(data, now) if data else lines.flush()
        if stream == _OUT:
            if data:
                self._ready.append((_OUT, data))
        else:
            self._take_errors(data, now)

    def may_lend(self, stream: int) -> bool:
        """Tell whether what is read next may be passed on where it lies: nothing is done to it but to find the end of
        its last line, and no words are kept back.
        """
        idle = not (self._path or self._ready or self._held or self._over or self._dump is not None or self._blank)
        return idle and len(self._lines[stream].rest) < _SHORT

    def rest(self, stream: int) -> bytearray:
        """Return the beginning of a line that waits for its end."""
        return self._lines[stream].rest

    def lend(self, stream: int, data: memoryview, now: float) -> int:
        """Take in what was read after the beginning of a line, where `may_lend` holds.

        Args:
            stream: 1 for stdout, 2 for stderr.
            data: The beginning of the line, and what was read.
            now: Monotonic time, seconds.

        Returns:
            How many bytes may be shown as they are. The others are kept; where it is 0, what was read is not, and
            must be fed.
        """
        end = bytes(data[-_SHORT:])
        kept = len(end) - 1 - max(end.rfind(b"\n"), end.rfind(b"\r"))
        cut = len(data) - kept
        if kept == len(end):
            return 0
        if stream == _ERR:
            block = bytes(data[:cut])  # the copy is searched five times as fast as memory of another kind
            if _traceback_begins(block) < cut:
                return 0
            self._keep_tail(block)
        lines = self._lines[stream]
        lines.since = now
        lines.rest[:] = data[cut:]
        return cut

    def take(self, now: float) -> list[tuple[int, bytes]]:
        """Return what may be shown now, in order of arrival: (stream, whole lines or the old beginning of one)."""
        if self._held:
            self._expire(now)
        for stream, lines in self._lines.items():
            if lines.rest and now >= lines.since + _PATIENCE:
                self.feed(stream, b"", now)
        ready, self._ready = self._ready, []
        return ready

    def due(self) -> float | None:
        """Return the monotonic time from which on `take` has something without being fed, or None."""
        if self._ready:
            return 0.0
        times = [lines.since + _PATIENCE for lines in self._waiting()]
        if self._held:
            times.append(self._held_since + _HOLD)
        return min(times, default=None)

    def end(self, failed: bool, now: float, *, code: int = 1) -> list[tuple[int, bytes]]:
        """Return all that may still be shown of a rank that is over and whose streams have been read to their end.

        Args:
            failed: The rank did not end with 0: then a held traceback becomes `words` and is not returned.
            now: Monotonic time, seconds.
            code: With which it ended; negative for a signal.
        """
        for stream in self._lines:
            self.feed(stream, b"", now)
        self._show(self._blank)
        self._blank = b""
        self._over = True
        if failed:
            self.words_shown = not self._held
            self.words = (bytes(self._held) or self._shown_last(code)).decode(errors="replace")
            if code in _ABORTED:
                texts = [line.decode(errors="replace") for line in self._reasons]
                self.reason = "".join(f"{text}\n" for text in texts if text not in self.words)
            self._held.clear()
        self._release()
        self._close_log()
        return self.take(now)

    @property
    def held(self) -> str:
        """The traceback that is held back until its rank has ended; empty without one."""
        return self._held.decode(errors="replace")

    def last_traceback(self) -> str:
        """Return the last traceback of a rank that lives, from the line before it on; empty where it wrote none lately.

        Of a longer one than 4 KiB the middle is left out.
        """
        outlived = self._line_before + self._outlived if len(self._tail) < _TAIL else b""
        text = outlived + self._tail + bytes(self._held)
        start = text.rfind(_TRACEBACK)
        if start < 0:
            return ""
        found = text[text.rfind(b"\n", 0, max(0, text.rfind(b"\n", 0, start))) + 1 :]
        if len(found) > _WHILE_IT_LIVES:
            found = found[:1024] + b"\n  ...\n" + found[1031 - _WHILE_IT_LIVES :]
        return found.decode(errors="replace")

    def expect_dump(self) -> None:
        """From now on keep Python stacks on stderr from the screen: somebody asked this rank for them."""
        self._dump, self._in_dump = bytearray(), False

    def dump(self) -> str:
        """Return the stacks that came since `expect_dump`; those that follow are shown like all other lines."""
        text, self._dump, self._blank = bytes(self._dump or b""), None, b""
        return text.decode(errors="replace")

    def _waiting(self) -> Iterator[_Lines]:
        for stream, lines in self._lines.items():
            if lines.rest and not (self._held and stream == _ERR):  # behind held lines it waits with them
                yield lines

    def _take_errors(self, data: bytes, now: float) -> None:
        if self._dump is not None:
            data = self._without_stacks(data, self._dump)
        if not self._held and not self._over:
            start = _traceback_begins(data)
            self._show(data[:start])
            data = data[start:]
            if not data:
                return
            self._held_since = now
        self._held += data
        if self._over or len(self._held) > _MOST_HELD:
            self._release()

    def _shown_last(self, code: int) -> bytes:
        """Return the last lines that were shown, behind the traceback of which the rank may have ended.

        A Python that ends of an exception ends with 1, maybe long after it, when all its threads are over; then it may
        warn of something, and writes nothing else.
        """
        is_end = code == 1 and _is_said_at_an_end(self._tail)
        return (self._outlived if is_end else b"") + _last_lines(self._tail)

    def _show(self, data: bytes) -> None:
        if data:
            self._ready.append((_ERR, data))
            self._keep_tail(data)

    def _keep_tail(self, data: bytes) -> None:
        if b"enforce fail" in data or b"NCCL" in data:
            found = [line[:_REASON_BYTES] for line in data.splitlines() if any(mark in line for mark in _REASON)]
            self._reasons = [*self._reasons, *found][-_REASONS:]
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]

    def _expire(self, now: float) -> None:
        if now >= self._held_since + _HOLD:
            self._line_before = b"".join(self._tail.splitlines(keepends=True)[-1:])
            self._outlived = bytes(self._held)
            self._release()
            self._tail = b""

    def _release(self) -> None:
        self._show(bytes(self._held))
        self._held.clear()

    def _without_stacks(self, data: bytes, dump: bytearray) -> bytes:
        """Move the lines of stacks into the dump and return the others."""
        others = bytearray()
        for line in data.splitlines(keepends=True):
            if self._in_dump and not line.strip():
                self._blank += line
                continue
            match = re.match(_STACK_CONTINUES, line) or re.search(
                _STACK_BEGINS, line
            )  # a progress bar may come before the first
            start = match.start() if match and len(dump) < _LARGEST_DUMP else len(line)
            self._in_dump = start < len(line)
            (dump if self._in_dump else others).extend(self._blank)
            self._blank = b""
            others += line[:start]
            dump += line[start:]
        return bytes(others)

    def _write_log(self, data: bytes) -> None:
        """Write into the log; the job outlives a disk that is full or cannot be written to."""
        try:
            if self._log < 0:
                os.makedirs(os.path.dirname(self._path), mode=0o770, exist_ok=True)
                self._log = os.open(self._path, self._flags, 0o660)  # closed to others, as a run's other files
                self._flags &= ~os.O_TRUNC  # what a grandchild says after the end of its rank is added
            while data:
                data = data[os.write(self._log, data) :]
        except OSError as error:
            self.problem = f"cannot write {self._path}: {error.strerror}; this log ends here, the rank continues"
            self._close_log()

    def _close_log(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1


class _Lines:
    """The beginning of a line that waits for its end, and the time of its first byte."""

    __slots__ = ("rest", "since")

    def __init__(self) -> None:
        self.rest = bytearray()
        self.since = 0.0

    def add(self, data: bytes, now: float) -> bytes:
        r"""Return the lines that are whole now; ``\r`` ends one too, so that progress bars move."""
        newline = data.rfind(b"\n") + 1
        cut = data.rfind(b"\r", newline) + 1 or newline
        rest = self.rest
        if cut or not rest:
            self.since = now
        if not cut:
            rest += data
            return self.flush() if len(rest) > _LONGEST else b""
        if cut == len(data) and not rest:
            return data
        view = memoryview(data)
        whole = b"".join((rest, view[:cut]))
        rest[:] = view[cut:]
        return whole + self.flush() if len(rest) > _LONGEST else whole

    def flush(self) -> bytes:
        """Return the beginning as it is."""
        if not self.rest:
            return b""
        rest = bytes(self.rest)
        self.rest.clear()
        return rest


def _traceback_begins(data: bytes) -> int:
    """Return the start of the first line that begins a traceback, or faulthandler's, or that says why Python itself
    cannot begin; without one the length of all.
    """
    near_end = max(0, len(data) - _REFUSED_WITHIN)
    refusal = re.compile(_REFUSAL).search(data, near_end) if data.rfind(_PYTHON, near_end) >= 0 else None
    # One letter is found ten times as fast as words, and tells of most blocks that they are not there.
    fatal = data.find(_FATAL) if b"F" in data else -1
    near = any(data.rfind(word, near_end) >= 0 for word in _WORDS_OF_DYING)
    dying = re.compile(_DYING).search(data, near_end) if near else None
    end = min(found.start() if found else len(data) for found in (refusal, dying))
    end = min(end, len(data) if fatal < 0 else fatal)
    at = data.find(_LAST, 0, end) if b"(" in data else -1
    while at >= 0:
        start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        line = re.sub(_COLOUR, b"", data[start : at + len(_LAST) + 16])  # rich colours the bracket alone
        if _TRACEBACK in line:
            return start
        at = data.find(_LAST, at + 1, end)
    return end


def _is_said_at_an_end(tail: bytes) -> bool:
    """Tell whether a Python that ends may have written all of it: warnings, what belongs to them, and empty lines."""
    *lines, rest = tail.split(b"\n")
    return not rest and all(
        not line or line[:1].isspace() or any(mark in line for mark in _AFTER_AN_END) for line in lines
    )


def _last_lines(tail: bytes) -> bytes:
    """Return the last lines as a terminal would show them: of a progress bar, the last state."""
    if len(tail) == _TAIL:
        tail = tail[tail.find(b"\n") + 1 :] or tail  # its first line has been cut
    lines = tail.rstrip(b"\r\n").split(b"\n")[-_TAIL_LINES:]
    text = b"\n".join(line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines)
    return text and text + b"\n"
