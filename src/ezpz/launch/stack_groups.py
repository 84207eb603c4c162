"""Say where ranks are in one line: the stacks of all of them, put together by what the user's own code called."""

from __future__ import annotations

import os
import re

from ezpz.fields import Record
from ezpz.why.users_files import is_ezpzs, is_users

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ezpz.launch.host.process_stacks import Frame

__all__ = ["CodePlace", "locate", "summarise", "words_of"]

_IMPORT = r"^<frozen importlib|^<frozen zipimport|/importlib/__init__\.py$"
# The first folder or file below the place where packages are kept: torch in
# /usr/lib/python3.11/site-packages/torch/__init__.py
_PACKAGE = r".*/(?:(?:site|dist)-packages|(?:python|pypy)3[.\d]*t?)/([^/.]+)"
_DATA_LOADER = "/torch/utils/data/dataloader.py"
# Functions around the one that the user called; names with an underscore in front are passed over as well.
_AROUND = {"compile_wrapper", "decorate_context", "decorator", "inner", "profile_hook_step", "wrapped", "wrapper"}
_NAMED = 8  # ranks of a group that are named; a larger one is counted
_PLACES = 8
_HOSTS = 3


class CodePlace(Record):
    """What a rank is in, as its user says it, and where in the user's code that is."""

    what: str
    file: str
    line: int


def locate(frames: list[Frame]) -> CodePlace:
    """Return what the user's code called last.

    The user's frame is the innermost one outside Python, its installed packages and ezpz; `what` is the public function
    that it called: ``all_reduce``, ``barrier``, ``DataLoader`` for all of torch's loader, ``import torch`` while that
    is on its way. Where it called no Python function, as with ``time.sleep``, `what` is the user's own function.

    Args:
        frames: A thread's frames, innermost first; not empty.
    """
    at = _users(frames)
    frame, inside = frames[at], frames[:at][::-1]
    return CodePlace(_called(inside) or frame.function, frame.file, frame.line)


def summarise(places: Iterable[tuple[int, str, CodePlace | str]]) -> str:
    """Return one line that says where all ranks are, the place of most ranks first.

    Args:
        places: Rank, host, and its place or what the kernel says of it.

    Returns:
        For example ``15 ranks in all_reduce (train.py:88), rank 7 on n02 in DataLoader (data.py:31)``.
    """
    groups: dict[CodePlace | str, list[tuple[int, str]]] = {}
    for rank, host, place in sorted(places, key=lambda each: each[0]):
        groups.setdefault(place, []).append((rank, host))
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    most = len(ordered[0][1]) if ordered else 0
    clear = len(ordered) < 2 or most > len(ordered[1][1])
    parts = []
    for place, ranks in ordered[:_PLACES]:
        counted = len(ranks) > _NAMED or (clear and len(ranks) == most > 1)
        parts.append(f"{f'{len(ranks)} ranks' if counted else _named(ranks)} {words_of(place)}")
    rest = len(ordered) - len(parts)
    more = f" and {rest} more place{'s' * (rest > 1)}" if rest else ""
    return ", ".join(parts) + more


def words_of(place: CodePlace | str) -> str:
    """Return a place as it is named behind ranks."""
    return place if isinstance(place, str) else f"in {place.what} ({os.path.basename(place.file)}:{place.line})"


def _named(ranks: list[tuple[int, str]]) -> str:
    """Return ``rank 7 on n02`` or ``ranks 4-6,9 on n01,n02``."""
    spans: list[list[int]] = []
    for rank, _ in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    numbers = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    hosts = list(dict.fromkeys(host for _, host in ranks))
    where = ",".join(hosts) if len(hosts) <= _HOSTS else f"{len(hosts)} hosts"
    return f"rank{'s' * (len(ranks) > 1)} {numbers} on {where}"


def _users(frames: list[Frame]) -> int:
    """Return the index of the user's frame; ezpz's own trainers are the user's code where there is no other."""
    for index, frame in enumerate(frames):
        if is_users(frame.file):
            return index
    for index, frame in enumerate(frames):
        if is_ezpzs(frame.file):
            return index
    return len(frames) - 1


def _called(inside: list[Frame]) -> str:
    """Return what the user's frame called, from the frames inside it, outermost first; empty when nothing that has a
    name.
    """
    if any(frame.file.endswith(_DATA_LOADER) for frame in inside):
        return "DataLoader"
    theirs = next((index for index, frame in enumerate(inside) if not is_ezpzs(frame.file)), len(inside))
    if theirs < len(inside) and re.search(_IMPORT, inside[theirs].file):
        return _imported(inside[theirs:])
    public = (frame.function for frame in inside if frame.function not in _AROUND and frame.function[:1] not in "_<")
    return next(public, inside[0].function if inside else "")


def _imported(inside: list[Frame]) -> str:
    """Return ``import torch``; ``import`` alone where Python still searches for it."""
    package = next((re.match(_PACKAGE, frame.file) for frame in inside if not re.search(_IMPORT, frame.file)), None)
    return f"import {package[1]}" if package else "import"
