"""Tell from the last that a rank wrote what it ended of: an exception, a full disk, memory that was refused.

Traceback (most recent call last):
  File "train.py", line 88, in <module>
    torch.save(state, path)
OSError: [Errno 28] No space left on device: '/scratch/me/step-40.pt'
"""

from __future__ import annotations

import re

from ezpz.fields import Record
from ezpz.why.users_files import is_ezpzs, is_users

__all__ = [
    "Crash",
    "MPIAbort",
    "RaisedException",
    "aborted_after_exception",
    "broken_device",
    "cannot_write",
    "crash",
    "ending",
    "exceptions",
    "full_disk",
    "last_lines",
    "mpi_abort",
    "named_file",
    "raised_in",
    "refused_memory",
    "said_before_crash",
    "without_rank_tags",
]

_RANK_TAG = re.compile(r"(?m)^\[rank\d+\]: ?")  # torch's, in front of each line of a traceback
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
# Python draws an edge beside the tracebacks of a group: "  | ", or "    +---------------- 2 ----------------".
_OF_GROUP = "+ Exception Group Traceback"
_EDGE = re.compile(r"(?m)^ {2,60}[|+] ?")
_EDGE_OF_PART = re.compile(r"[-+ ]{0,60}-{16}( \d{1,4} -{16})?$")  # what `_EDGE` leaves of it
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = '  File "'
# How a process learns that one which it has started is gone: torch's loader and spawn, Python's pools and pipes.
_CHILD_ENDED = re.compile(
    r"^RuntimeError: DataLoader worker [^\n]{1,80}exited unexpectedly"
    r"|ProcessExitedException: process \d{1,9} terminated|BrokenProcessPool: "
    r"|^BrokenPipeError: |^ConnectionResetError: |^EOFError\b",
    re.MULTILINE,
)
_LINKS = ("The above exception was the direct cause", "During handling of the above exception")
_LAST_LINES = 20  # of a program that is no Python, or of a crash
_PLACE = re.compile(r'  File "(?P<file>[^\n"]+)", line (?P<line>\d+)')  # of a traceback, and of faulthandler
# What torch writes between the traceback of a rank and that of the worker whose exception it raises again
# (torch/_utils.py): "KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent …"
# A frame in the box of rich's traceback: │ /home/me/train.py:31 in <module>
_PLACE_IN_BOX = re.compile(r"│ (?P<file>[^\s│:]{1,300}):(?P<line>\d{1,9}) in ")
_BOX = "│╭╰"
_OF_WORKER = re.compile(r"Caught [^ \n]{1,80} (in [^\n]{1,80})\.\nOriginal $")
# What ends a message of several lines: what others write, such as torch's log and warnings of Python.
_NO_MESSAGE = re.compile(
    r"\s*$|\[[A-Z]\d{4} |Exception ignored |terminate called |ezpz: |[^\s:]+:\d+: \w*Warning: |Fatal Python error: "
    r"|Abort\(|MPICH ERROR "
)
_WARNING = re.compile(r"[^\s:]+:\d+: \w*Warning: |Exception ignored ")  # it quotes its line below it
_NOISE = re.compile(r"[\W_]*$|\[[IW]\d{4} |ezpz: |[^|\n]{0,80}\d%\|")
_FATAL = "Fatal Python error: "
# What faulthandler writes of each thread: Python/traceback.c; 3.14 names the thread in between.
_THREAD = re.compile(r"(?m)^(Current thread|Thread) 0x[0-9a-f]+ [^\n]{0,200}?\(most recent call first\):$")
_IN_FRAME = re.compile(r'  File "(?P<file>[^\n"]+)", line \d+ in (?P<function>[^\n]+)$')
# What MPICH, Intel MPI and Cray MPICH write in a rank that ends all others:
#     Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1
#     Abort(138023695) on node 0 (rank 0 in comm 0): Fatal error in internal_Init: Other MPI error, error stack:
#     MPICH ERROR [Rank 1] [job id …] [Mon …] [nid001] - Abort(7) (rank 1 in comm 0): application called MPI_Abort(…
_ABORT = re.compile(
    r"(?m)^(?:MPICH ERROR \[[^\n]{0,200} - )?Abort\((?P<code>-?\d{1,12})\) (?:on node \d{1,9} )?"
    r"\(rank \d{1,9} in comm [^)\n]{1,20}\): "
    r"(?P<said>[^\n]*)"
)
# And Open MPI's mpiexec, 4 with "with errorcode 7." and 5 with "Errorcode: 7":
#     MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
# What a rank of Open MPI writes of an error that is fatal:
#     [n01:4711] *** An error occurred in MPI_Recv
#     [n01:4711] *** MPI_ERR_TRUNCATE: message truncated
_ERROR_OF_OPEN_MPI = re.compile(
    r"\*\*\* (?P<said>An error occurred in MPI_\w{1,60})\n(?:[^\n]{0,200}\n){0,3}?"
    r"[^\n]{0,200}\*\*\* (?P<why>MPI_ERR_[^\n]{1,200})"
)
_ABORT_OF_OPEN_MPI = re.compile(
    r"MPI_ABORT was invoked on rank (?P<rank>\d{1,9}) in communicator (?P<comm>[^\n]{1,80})\n"
    r"[^E]{0,200}?(?:Errorcode: |with errorcode )(?P<code>-?\d{1,12})"
)
_ENDS_STACK = ("Abort(", "MPICH ERROR ", "Fatal Python error", "[")
_LONGEST_LINE = 300  # characters of a line that is quoted
_LONGEST_OF_MESSAGE = 2000  # the same of an exception
_QUOTED = 3  # lines that are quoted of one that wrote no traceback
_MESSAGE = 12  # lines of an exception
_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|\bENOSPC\b|\bEDQUOT\b")
# torch 2.13 loses the number of the error when it writes an archive (caffe2/serialize/inline_container.cc), and Python
# that of each folder that it tries for temporary files (tempfile.py).
_NOT_WRITTEN = re.compile(
    r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|No usable temporary directory found"
    r"|Bus error \(core dumped\)|insufficient shared memory"
)
_FILE = re.compile(r"(?:\[Errno (?:28|122)\][^:\[\n]*|No space left on device|Disk quota exceeded): '([^'\n]+)'")
# torch's file of tensors that workers share is one of /dev/shm (aten/src/ATen/MapAllocator.cpp):
# RuntimeError: unable to write to file </torch_123_456_0>: No space left on device (28)
_SHARED = re.compile(
    r"unable to [^<\n]{1,80}</torch_\d[^>\n]{0,80}>[^\n]{0,80}: (?:No space left on device|Disk quota exceeded)"
)
_EZPZ_FILE = re.compile(  # as our own errors name it
    r"cannot (?:save|write|export) (/(?:(?!cannot (?:save|write|export) /)[^:\n])+): "
)
# What the driver's own error codes are called (cudaErrorECCUncorrectable, hipErrorECCNotCorrectable,
# ZE_RESULT_ERROR_DEVICE_LOST, NVML_ERROR_GPU_IS_LOST), in the exception of a rank or in a line of the driver itself.
# An illegal access, a launch that failed and memory that is used up are errors of programs; so are these numbers of
# Xid, for which NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) says RESTART_APP or IGNORE: exceptions of an
# engine (13, 32, 41, 68, 69), an illegal access (31), a program that stood still or was cleaned up (8, 43, 45), a row
# of memory that was replaced (63).
_BROKEN_DEVICE = re.compile(
    r"uncorrectable (?:NVLink |ECC )?error|ECC error (?:was )?(?:detected|encountered)|ECC ?Not ?Correctable"
    r"|fallen off the bus|GPU (?:is|was) lost|DEVICE_LOST"
    r"|NVRM: Xid(?! *\([^)]*\): *(?:8|13|31|32|41|43|45|63|68|69)\b)"
)
_DEVICE_ERROR = re.compile(
    r"(?:CUDA|HIP|XPU|NCCL|SYCL|Level[- ]Zero|UR) (?:\w+ )?error|AcceleratorError|NVRM|_ERROR_", re.IGNORECASE
)
_DEVICE_MEMORY = re.compile(r"(?:CUDA|HIP|XPU|ROCm) out of memory|OUT_OF_DEVICE_MEMORY|torch\.OutOfMemoryError")
_HOST_MEMORY = re.compile(
    r"(?m)^(?:numpy\S*\.)?_?(?:Array)?MemoryError\b|std::bad_alloc|DefaultCPUAllocator: (?:can't allocate|not enough)"
    r"|Cannot allocate memory"
)


def without_rank_tags(words: str) -> str:
    """Return the words without what stands around those of a traceback.

    That is the ``[rank0]:`` that torch puts in front of each line, colours, and the edge of a group of exceptions.
    """
    text = _RANK_TAG.sub("", _COLOUR.sub("", words))
    return _EDGE.sub("", text) if _OF_GROUP in text else text


class RaisedException(Record):
    """An exception that ended a rank.

    Attributes:
        message: Its lines, the first with its class; at least one.
        where: The last line of the user's own code, as ``train.py:31``; empty where the traceback has none.
        of: The first line of the exception that led to it; empty without one.
        worker: ``in DataLoader worker process 0``, where a helper of the rank raised it; else empty.
    """

    message: tuple[str, ...]
    where: str
    of: str
    worker: str

    @property
    def text(self) -> str:
        """The exception as it stands behind ``rank 1 raised``."""
        worker = f", {self.worker}" if self.worker else ""
        return f"{self.headline}{worker}{f' ({self.where})' if self.where else ''}"

    @property
    def headline(self) -> str:
        """The first line, cut where it is long; with the next one where it only announces that."""
        first = " ".join(self.message[: self._first])
        return first if len(first) <= _LONGEST_LINE else f"{first[:_LONGEST_LINE]} …"

    @property
    def rest(self) -> str:
        """All that the headline cuts or leaves out of the message; empty without any."""
        text = " ".join(self.message)
        cut = min(len(" ".join(self.message[: self._first])), _LONGEST_LINE)
        return text[cut:].strip()

    @property
    def _first(self) -> int:
        return 2 if self.message[0].endswith(":") else 1


def raised_in(words: str) -> RaisedException | None:
    """Return the exception of the last traceback; None without one.

    Args:
        words: The last that a rank wrote on stderr.
    """
    before, mark, after = without_rank_tags(words).rpartition(_TRACEBACK)
    message = _message(after)
    if not mark or not message:
        return None
    places = _users_places(after)
    where = places[-1] if places else ""
    worker = _OF_WORKER.search(before[-_LONGEST_LINE:])
    led = any(link in before[-_LONGEST_LINE:] for link in _LINKS)
    of = _message(before.rpartition(_TRACEBACK)[2])[:1] if led else ()
    return RaisedException(message, where, "".join(of), worker[1] if worker else "")


def _message(traceback: str) -> tuple[str, ...]:
    """Return the lines of the exception of a traceback."""
    message = []
    for line in _after_frames(traceback).splitlines()[:_MESSAGE]:
        if _NO_MESSAGE.match(line):
            break
        if not _EDGE_OF_PART.match(line):
            message.append(line.strip()[:_LONGEST_OF_MESSAGE])
    if len(message) > 1 and message[0].endswith((" sub-exception)", " sub-exceptions)")):
        message[0] += ":"  # the first of them, which has no traceback of its own, says what was wrong
    return tuple(message)


def _users_places(stack: str) -> list[str]:
    """Return the user's own lines of a stack, as ``train.py:31``; without any those of ezpz."""
    found = list(_PLACE.finditer(stack)) or list(_PLACE_IN_BOX.finditer(stack))
    own = [match for match in found if is_users(match["file"])] or [each for each in found if is_ezpzs(each["file"])]
    return [f"{match['file'].rpartition('/')[2]}:{match['line']}" for match in own]


def raised_in_spawned(words: str) -> RaisedException | None:
    """Return what a process raised that a rank had spawned, where it ran the rank's script again to have what it
    defines (``_fixup_main_from_path`` of CPython's multiprocessing/spawn.py), and where the rank ended of that.
    """
    text = without_rank_tags(words)
    before, mark, last = text.rpartition(_TRACEBACK)
    if not mark or not _CHILD_ENDED.search(f"{_after_frames(last)}\n{_after_frames(before.rpartition(_TRACEBACK)[2])}"):
        return None
    for traceback in before.split(_TRACEBACK)[1:]:
        if ", in _fixup_main_from_" in traceback:
            return raised_in(_TRACEBACK + traceback)
    return None


def last_lines(words: str) -> list[str]:
    """Return the last lines that a rank wrote by itself, at most three, without warnings and progress bars."""
    lines: list[str] = []
    warns = False
    for line in without_rank_tags(words).splitlines():
        warns = bool(_WARNING.match(line)) or (warns and line[:1].isspace())
        if not warns and not _NOISE.match(line):
            lines.append(line.strip()[:_LONGEST_LINE])
    return lines[-_QUOTED:]


def exceptions(words: str) -> str:
    """Return the lines of exceptions, those of a chain of causes included; without a traceback all lines."""
    text = without_rank_tags(words)
    if _TRACEBACK not in text:
        return text
    lines, inside, out = text.splitlines(), False, []
    for line in lines:
        if line.startswith(_TRACEBACK):
            inside = True
        elif inside and line[:1].strip():
            inside = False
            out.append(line)
        elif not inside:
            out.append(line)
    return "\n".join(out)


def ending(words: str) -> str:
    """Return what a rank ended of: the exception of its last traceback with those that led to it, else its last lines.

    What a rank has warned of before, such as a journal that could not be written, is none of it.
    """
    text = without_rank_tags(words)
    *before, last = text.split(_TRACEBACK)
    if not before:
        return "\n".join(text.splitlines()[-_LAST_LINES:])
    out = [_after_frames(last)]
    for part in reversed(before[1:]):
        if not any(link in part for link in _LINKS):
            break
        out.insert(0, _after_frames(part))
    return "\n".join(out)


def aborted_after_exception(words: str) -> bool:
    """Tell whether a rank that was aborted was ending of an exception: no Python ran any more when that happened.

    torch with gloo sometimes aborts while a process ends ("terminate called without an active exception"). A crash in
    the middle of a program has frames of Python in what faulthandler writes of it.
    """
    _, found, after = without_rank_tags(words).rpartition(_TRACEBACK)
    raised, dump, stacks = after.partition("(most recent call first)")
    if dump:
        return bool(found) and _FRAME not in stacks
    lines = _after_frames(raised).splitlines()
    return bool(found) and (len(lines) == 1 or "terminate called without an active exception" in lines)


class Crash(Record):
    """Where a rank was that crashed, as faulthandler wrote.

    Attributes:
        where: The user's line that the thread was at which crashed, as ``train.py:31``; empty where it ran none.
        main: The same of the main thread.
        is_ending: Whether the main thread was done with the program: Python was ending.
    """

    where: str
    main: str
    is_ending: bool


def crash(words: str) -> Crash | None:
    """Return where a rank crashed; None where faulthandler wrote nothing.

    Args:
        words: The last that it wrote on stderr.
    """
    text = without_rank_tags(words).rpartition(_FATAL)[2]
    found = list(_THREAD.finditer(text))
    if not found:
        return None
    where, main, is_ending = "", "", False
    for match, follower in zip(found, [*found[1:], None], strict=True):
        stack = text[match.end() : follower.start() if follower else len(text)].partition("\n\n")[0]
        frames = [frame for line in stack.splitlines() if (frame := _IN_FRAME.match(line))]
        place = next(iter(_users_places(stack)), "")
        if match[1] == "Current thread":
            where = place
        if not frames or not frames[-1]["function"].startswith("_bootstrap"):  # which is of a thread
            # The program itself is a module: without one below all else, what runs was called by an ending Python.
            main, is_ending = place, not any(frame["function"] == "<module>" for frame in frames) and "..." not in stack
    return Crash(where, main, is_ending)


def said_before_crash(words: str) -> list[str]:
    """Return the last lines that a rank wrote before Python's of its crash, such as what C++ has thrown."""
    before, found, _ = words.rpartition(_FATAL)
    return last_lines(before) if found else []


class MPIAbort(Record):
    """An MPI that has ended all ranks.

    Attributes:
        code: The exit code; 0 where it is not told.
        call: ``MPI_Abort(MPI_COMM_WORLD, 7)``, where the program asked for it; else empty.
        said: What the MPI said of an error of its own; else empty.
    """

    code: int
    call: str
    said: str


def mpi_abort(words: str, launcher_words: str = "", rank: int | None = None) -> MPIAbort | None:
    """Return how a rank has ended all others through MPI; None where nothing says that it has.

    Args:
        words: The last that the rank wrote on stderr.
        launcher_words: What mpiexec itself has written.
        rank: The rank, without which mpiexec's words do not count.
    """
    found = _ABORT.search(words)
    if found:
        code = int(found["code"]) & 0xFF or 1  # a parent sees the last byte
        _, is_call, call = found["said"].partition("application called ")
        reason = "" if is_call else _reason(found["said"], words[found.end() :])
        return MPIAbort(code, call.partition(" - process")[0] if is_call else "", reason)
    error = _ERROR_OF_OPEN_MPI.search(words)
    if error:
        return MPIAbort(0, "", f"{error['said']}: {error['why']}")
    told = _ABORT_OF_OPEN_MPI.search(launcher_words)
    if told is None or rank is None or int(told["rank"]) != rank or told["comm"].strip() != "MPI_COMM_WORLD":
        return None
    return MPIAbort(int(told["code"]) & 0xFF or 1, f"MPI_Abort(MPI_COMM_WORLD, {told['code']})", "")


def _reason(said: str, stack: str) -> str:
    """Return what MPICH says of its own error, with the innermost line of its stack."""
    *_, last = [said, *(line for line in stack.splitlines()[:20] if line.strip() and not line.startswith(_ENDS_STACK))]
    headline = said.partition(", error stack")[0]
    return headline if last == said else f"{headline}: {last.strip()[:_LONGEST_LINE]}"


def _after_frames(traceback: str) -> str:
    lines = traceback.splitlines()[1:]
    first = next((at for at, line in enumerate(lines) if line[:1].strip(f" \t{_BOX}")), len(lines))
    return "\n".join(lines[first:])


def full_disk(words: str) -> str:
    """Return what a rank says of a full disk or a quota that is used up, in the system's words; empty else."""
    found = _FULL.search(ending(words))
    return found[0] if found else ""


def cannot_write(words: str) -> str:
    """Return what a rank says of a file that it could not write, which a full disk may explain; empty else."""
    found = _NOT_WRITTEN.search(ending(words))
    return full_disk(words) or (found[0] if found else "")


def named_file(words: str) -> str:
    """Return the file that could not be written, as the exception names it; empty where it names none."""
    text = ending(words)
    found = _FILE.search(text) or _EZPZ_FILE.search(text)
    return found[1] if found else "/dev/shm" if _SHARED.search(text) else ""  # noqa: S108  # nothing is made there


def broken_device(words: str) -> str:
    """Return what the driver of a device reports as its fault, in its words; empty where a rank did not end of that."""
    for line in exceptions(words).splitlines():
        found = _BROKEN_DEVICE.search(line)
        if found and _DEVICE_ERROR.search(line):
            return found[0]
    return ""


def refused_memory(words: str) -> str:
    """Return ``host`` or ``device`` where a rank ended because that gave it no more memory; empty else."""
    text = ending(words)
    return "device" if _DEVICE_MEMORY.search(text) else "host" if _HOST_MEMORY.search(text) else ""
