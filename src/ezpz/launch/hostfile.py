"""Read host files, in every dialect that users bring.

n01                     MPICH, PALS, PBS: a line per host, or a line per rank
n01:4                   MPICH, Intel MPI
n01 slots=4 max_slots=8 Open MPI, DeepSpeed
# comment
"""

from __future__ import annotations

import re

from ezpz.errors import UsageError
from ezpz.fields import Record

# A host's name: it becomes a word of launch lines, host files and shell exports.
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINE = r"(?P<user>[^\s@]+@)?(?P<host>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>:\S+|(?:\s+[\w-]+\s*=\s*\S+)*)\s*\Z"
_COUNT = r"(?a)0*[1-9][0-9]{0,5}"
_KNOWN = ("slots", "max_slots", "max-slots")  # the upper ones are Open MPI's: read, and of no further meaning here


class HostFile(Record):
    """The content of a host file.

    Attributes:
        hosts: Hosts in order of their first line, each once.
        slots: Ranks per host, as long as ``hosts``; None when no line names any and no host is repeated.
        lines: Number of the first line of each host, as long as ``hosts``.
        explicit: Whether a line names its slots; otherwise they are the number of lines of a host.
        path: The file, as the user wrote it.
    """

    hosts: tuple[str, ...]
    slots: tuple[int, ...] | None
    lines: tuple[int, ...]
    explicit: bool
    path: str


def read_hostfile(path: str) -> HostFile:
    """Read a user's host file. Repeated lines of a host add their slots, a line without a number counts 1.

    Raises:
        UsageError: The file is missing, unreadable or empty, or a line is not a host; the line is named.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # pathlib costs a launch 10 ms
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read the host file {path} (from --hostfile): {reason}; expected one host per line."
        ) from None
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    explicit = False
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        host, slots = _parse(text, path, number)
        explicit = explicit or slots is not None
        first.setdefault(host, number)
        counts[host] = counts.get(host, 0) + (1 if slots is None else slots)
    if not counts:
        raise UsageError(f"no host in {path} (from --hostfile); expected one host per line, e.g. `n01` or `n01:4`.")
    granted = explicit or max(counts.values()) > 1
    return HostFile(tuple(counts), tuple(counts.values()) if granted else None, tuple(first.values()), explicit, path)


def _parse(text: str, path: str, number: int) -> tuple[str, int | None]:
    """Return the host of a line and its slots, or None where it names none."""
    match = re.match(_LINE, text)
    if not match:
        raise _error(text, path, number, "")
    if match["user"]:
        raise _error(text, path, number, f" without a user: put `User {match['user'][:-1]}` into ~/.ssh/config")
    rest = match["rest"]
    words = {"slots": rest[1:]} if rest[:1] == ":" else dict(re.findall(r"(?<![\w-])([\w-]+)\s*=\s*(\S+)", rest))
    odd = next((name for name in words if name not in _KNOWN), "")
    if odd:
        raise _error(text, path, number, f", and no {odd}=")
    if not all(re.fullmatch(_COUNT, value) for value in words.values()):
        raise _error(text, path, number, " with numbers from 1 to 999999")
    return match["host"], int(words["slots"]) if "slots" in words else None


def _error(text: str, path: str, number: int, more: str) -> UsageError:
    shown = text if len(text) <= 60 else text[:60] + "…"
    return UsageError(
        f"cannot read line {number} of {path} (from --hostfile): {shown!r}; "
        f"expected `HOST`, `HOST:4` or `HOST slots=4`{more}."
    )
