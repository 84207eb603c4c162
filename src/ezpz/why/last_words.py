"""Tell from the last that a rank wrote what it ended of: a full disk, an error of its device, memory that was refused.

Traceback (most recent call last):
  File "train.py", line 88, in <module>
    torch.save(state, path)
OSError: [Errno 28] No space left on device: '/scratch/me/step-40.pt'
"""

from __future__ import annotations

import re

__all__ = [
    "aborted_after_exception",
    "broken_device",
    "cannot_write",
    "ending",
    "exceptions",
    "full_disk",
    "named_file",
    "refused_memory",
    "without_rank_tags",
]

_RANK_TAG = re.compile(r"(?m)^\[rank\d+\]: ?")  # torch's, in front of each line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = '  File "'
_LINKS = ("The above exception was the direct cause", "During handling of the above exception")
_LAST_LINES = 20  # of a program that is no Python, or of a crash
_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]|\bENOSPC\b|\bEDQUOT\b")
# torch 2.13 loses the number of the error when it writes an archive (caffe2/serialize/inline_container.cc), and Python
# that of each folder that it tries for temporary files (tempfile.py).
_NOT_WRITTEN = re.compile(
    r"PytorchStreamWriter failed writing|inline_container\.cc.*unexpected pos|No usable temporary directory found"
    r"|Bus error \(core dumped\)|insufficient shared memory"
)
_FILE = re.compile(r"(?:\[Errno (?:28|122)\][^:\[\n]*|No space left on device|Disk quota exceeded): '([^'\n]+)'")
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
    """Return the words without the ``[rank0]:`` that torch puts in front of each line of a traceback."""
    return _RANK_TAG.sub("", words)


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


def _after_frames(traceback: str) -> str:
    lines = traceback.splitlines()[1:]
    first = next((at for at, line in enumerate(lines) if line[:1].strip()), len(lines))
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
    return found[1] if found else ""


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
