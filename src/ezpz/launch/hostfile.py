"""Host files: read every dialect that users bring, write the one that a flavour reads.

n01                     MPICH, PALS, PBS: a line per host, or a line per rank
n01:4                   MPICH, Intel MPI
n01 slots=4 max_slots=8 Open MPI, DeepSpeed
# comment
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ezpz.errors import UsageError

__all__ = ["HostFile", "read_hostfile"]

_LINE = re.compile(r"(?P<host>[\w.@-]+)(?::(?P<colon>\d+))?(?P<rest>(?:\s+\w+=\S+)*)\s*\Z")


class HostFile(NamedTuple):
    """Hosts in order, each once, and the slots per host when the file grants any."""

    hosts: tuple[str, ...]
    slots: tuple[int, ...] | None


def read_hostfile(path: str) -> HostFile:
    """Read a user's host file.

    Raises:
        UsageError: The file is missing, unreadable or empty, or a line is not a host; the line is named.
    """
    try:
        with open(path, encoding="utf-8") as file:  # pathlib costs a launch 10 ms
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(
            f"cannot read the host file {path} (from --hostfile): {reason}; expected one host per line."
        ) from None
    counts: dict[str, int] = {}
    granted = False
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        host, slots = _parse(text, path, number)
        granted = granted or slots is not None or host in counts
        counts[host] = counts.get(host, 0) + (1 if slots is None else slots)
    if not counts:
        raise UsageError(f"no host in {path} (from --hostfile); expected one host per line, e.g. `n01` or `n01:4`.")
    return HostFile(tuple(counts), tuple(counts.values()) if granted else None)


def _parse(text: str, path: str, number: int) -> tuple[str, int | None]:
    match = _LINE.match(text)
    words = dict(word.split("=", 1) for word in match["rest"].split()) if match else {}
    slots = (match["colon"] or words.get("slots")) if match else None
    if not match or (slots is not None and not (slots.isdigit() and int(slots) > 0)):
        raise UsageError(
            f"cannot read line {number} of {path} (from --hostfile): {text!r}; expected `HOST`, `HOST:4` or `HOST slots=4`."
        )
    return match["host"], int(slots) if slots is not None else None
