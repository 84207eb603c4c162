"""Read what to profile from one line: ``--profile=SPEC``, ``EZPZ_PROFILE=SPEC``, the content of a ``PROFILE_NOW`` file.

    py                                  pyinstrument, the whole block, rank 0
    torch:steps=10-15,ranks=0           torch.profiler, steps 10 to 15 with both ends, counted from 0
    torch:steps=99,every=100            again every 100 steps
    py+mem:steps=3,ranks=0-3,8          several kinds joined by ``+``, each with options of its own
    none                                nothing, whatever EZPZ_PROFILE says
    1 or true, 0 or false               what people type instead: py, none

A word without ``=`` continues the list of the option before it, which is what makes ``ranks=0,8`` readable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ezpz.errors import UsageError

if TYPE_CHECKING:
    import argparse

KINDS = ("py", "torch", "mem")
_DEFAULT_STEPS = {"py": (0, None), "torch": (10, 14), "mem": (0, None)}
# A window that was started late ends by itself: a job that is killed at its wall time would write nothing otherwise.
_LATE_STEPS = {"py": (0, 49), "torch": (0, 4), "mem": (0, 49)}
_EXPECTED = "expected py, torch or mem, joined by '+', each with options such as py+torch:steps=10-15,ranks=0,8"
_SWITCHES = {
    "1": "py",
    "true": "py",
    "yes": "py",
    "on": "py",
    **dict.fromkeys(("", "none", "0", "false", "no", "off"), ""),
}
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)


class Request(NamedTuple):
    """One kind of profile: steps (last None: all that follow), again every n (0: once), ranks (None: all)."""

    kind: str
    first: int
    last: int | None
    ranks: tuple[tuple[int, int], ...] | None
    is_default: bool  # the steps were not named
    every: int = 0

    def includes(self, rank: int) -> bool:
        """Tell whether a rank is to be profiled."""
        return self.ranks is None or any(low <= rank <= high for low, high in self.ranks)


def parse(spec: str, source: str) -> tuple[Request, ...]:
    """Read a specification.

    Args:
        spec: As at the top of this module; empty text and ``none`` ask for nothing.
        source: Where it was given, for the error.

    Raises:
        UsageError: A kind, an option or a range is none, or a kind is asked for twice.
    """
    return _parse(spec, source, _DEFAULT_STEPS)


def parse_late(spec: str, source: str) -> tuple[Request, ...]:
    """Read the content of a ``PROFILE_NOW`` file, whose steps count from the next one; an empty file is ``torch``.

    Raises:
        UsageError: As in `parse`.
    """
    return _parse(spec.strip() or "torch", source, _LATE_STEPS)


def add_profile_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--profile[=SPEC]`` to a trainer's parser; ``args.profile`` is what `ezpz.profile` takes."""
    from argparse import ArgumentTypeError

    def checked(text: str) -> str:
        try:
            parse(text, "--profile")
        except UsageError as error:
            raise ArgumentTypeError(str(error)) from None
        return text

    parser.add_argument(
        "--profile",
        nargs="?",
        const="py",
        default=None,
        type=checked,
        metavar="SPEC",
        help="py (with --profile alone), torch, mem, joined by '+', each with options: torch:steps=10-15,ranks=0,8",
    )


def _parse(
    spec: str, source: str, default_steps: dict[str, tuple[int, int]] | dict[str, tuple[int, int | None]]
) -> tuple[Request, ...]:
    spec = _SWITCHES.get(spec.strip().lower(), spec)
    requests: dict[str, Request] = {}
    for part in spec.split("+") if spec else ():
        kind, colon, options = part.strip().partition(":")
        if kind not in KINDS or kind in requests or (colon and not options):
            what = "twice" if kind in requests else "options that are empty" if kind in KINDS else "unknown"
            raise UsageError(f"cannot profile {part!r}: {kind!r} is {what} (from {source}); {_EXPECTED}.")
        lists = _options(options, part, source)
        steps = [_range(word, part, source) for word in lists.get("steps", ())]
        if len(steps) > 1:
            raise UsageError(f"cannot profile {part!r}: more than one range of steps (from {source}); {_EXPECTED}.")
        first, last = steps[0] if steps else default_steps[kind]
        ranks = lists.get("ranks", ["0"])
        chosen = None if ranks == ["all"] else tuple(_range(word, part, source) for word in ranks)
        every = _every(lists.get("every", []), first, last, part, source)
        requests[kind] = Request(kind, first, last, chosen, is_default=not steps, every=every)
    return tuple(requests.values())


def _every(words: list[str], first: int, last: int | None, part: str, source: str) -> int:
    """Return after how many steps the window comes again; 0 for never."""
    if not words:
        return 0
    if (
        len(words) > 1
        or not (words[0].isascii() and words[0].isdigit())
        or last is None
        or int(words[0]) <= last - first
    ):
        raise UsageError(
            f"cannot profile {part!r}: every={','.join(words)} does not fit its steps (from {source}); "
            "expected one number, larger than the window is long, such as torch:steps=99,every=100."
        )
    return int(words[0])


def _options(text: str, part: str, source: str) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    name = ""
    for word in text.split(",") if text else ():
        left, equals, right = word.strip().partition("=")
        name = left if equals else name
        if name not in {"steps", "ranks", "every"} or (equals and name in lists):
            what = f"option {name!r} is given twice" if name in lists else f"{word!r} is no option"
            raise UsageError(f"cannot profile {part!r}: {what} (from {source}); {_EXPECTED}.")
        lists.setdefault(name, []).append(right if equals else left)
    return lists


def _range(word: str, part: str, source: str) -> tuple[int, int]:
    match = _RANGE.match(word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise UsageError(
            f"cannot profile {part!r}: {word!r} is no range (from {source}); expected for example 10 or 10-15 counted "
            f"from 0, or ranks=all."
        )
    return first, last
