"""Host expressions as Slurm and Flux write them: ``node[01-03,7],login1``.

Grammar (Slurm 22.05, ``scontrol show hostnames``, is the model where it answers sensibly):

    list   = name {"," name}
    name   = part {part}                  several bracket groups multiply, the last one runs fastest
    part   = text | "[" range {"," range} "]"
    range  = number ["-" number]          a leading zero of the first number fixes the width: [008-010]

Order and duplicates are kept. Anything malformed is an error that shows where.
"""

from __future__ import annotations

import re
from itertools import product

from ezpz.errors import UsageError

_MOST_HOSTS = 1_000_000  # far above any machine: a mistyped range must not fill the memory
_RANGE = r"(\d+)(?:-(\d+))?\Z"
_WORD = r"[^\[\],]+|\[|\]|,"


def expand(text: str) -> list[str]:
    """Expand a host expression.

    Args:
        text: For example ``r[1-2]n[01-02]-ib,login1``; blanks around names are ignored.

    Returns:
        Host names in the order of the expression, duplicates kept; empty for an empty text.

    Raises:
        UsageError: Brackets are nested, empty, unbalanced or descending, or a name is empty.
    """
    hosts: list[str] = []
    parts: list[list[str]] = []
    position = 0
    if not text.strip():
        return hosts
    while position < len(text):
        match = re.compile(_WORD).match(text, position)
        word = match.group() if match else ""
        if word == "[":
            end = text.find("]", position)
            if end < 0:
                raise _error(text, position, "this bracket is never closed")
            parts.append(_group(text, position + 1, end))
            position = end + 1
        elif word == "]":
            raise _error(text, position, "this bracket was never opened")
        elif word == ",":
            hosts += _names(text, position, parts)
            parts = []
            position += 1
        else:
            if any(blank in word.strip() for blank in " \t\n"):
                raise _error(text, position, "a host name holds no blanks")
            if word.strip():
                parts.append([word.strip()])
            position += len(word)
    return hosts + _names(text, position, parts)


def _names(text: str, position: int, parts: list[list[str]]) -> list[str]:
    if not parts:
        raise _error(text, position, "a host name is missing here")
    size = 1
    for part in parts:
        size *= len(part)
    if size > _MOST_HOSTS:
        raise _error(text, position, f"{size} hosts are more than the {_MOST_HOSTS} that are believed")
    return ["".join(words) for words in product(*parts)]


def _group(text: str, start: int, end: int) -> list[str]:
    numbers: list[str] = []
    position = start
    for item in text[start:end].split(","):
        match = re.match(_RANGE, item.strip())
        if not match:
            raise _error(text, position, "expected a number or a range such as 01-10")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low):
            raise _error(text, position, "a range must ascend")
        if int(high) - int(low) >= _MOST_HOSTS:
            raise _error(text, position, f"more than {_MOST_HOSTS} hosts in one range are not believed")
        width = len(low) if low.startswith("0") else 0
        numbers += [str(number).zfill(width) for number in range(int(low), int(high) + 1)]
        position += len(item) + 1
    return numbers


def _error(text: str, position: int, reason: str) -> UsageError:
    return UsageError(f"cannot read the host expression: {reason}\n  {text}\n  {' ' * position}^")
