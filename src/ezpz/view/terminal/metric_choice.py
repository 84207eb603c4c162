"""Find the metrics that a user means by the words they type, and tell them from runs."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import EzpzError, UsageError, nearest
from ezpz.track.named import is_run_word, newest_run, root, run_named, unknown
from ezpz.track.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_LISTED = 12  # names that an error shows


def matching(word: str, names: Iterable[str]) -> list[str]:
    """Return the metrics that a word means: that of this name; else those that a pattern fits, as a whole or at their
    last part, so that ``loss`` means ``train/loss`` and ``val/loss``, and ``grad*`` means ``grad_norm``.
    """
    held = list(names)
    if word in held:
        return [word]
    return [name for name in held if fnmatchcase(name, word) or fnmatchcase(name.rpartition("/")[2], word)]


def choose(words: Sequence[str], names: Sequence[str], where: str) -> list[str]:
    """Return the metrics that words mean, in the order of the words, each once.

    Args:
        words: What the user typed; nothing means all.
        names: The metrics that there are.
        where: What they belong to, for the error.

    Raises:
        UsageError: A word means none; the message names those that are near.
    """
    chosen: dict[str, None] = {}
    for word in words:
        meant = matching(word, names)
        if not meant:
            raise UsageError(
                f"{word!r} is neither a folder nor a metric of {where} (from the command line); expected one of "
                f"{listed(names)}.{_hint(word, names)}"
            )
        chosen.update(dict.fromkeys(meant))
    return list(chosen) if words else list(names)


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence; of many, the first ones and how many more there are."""
    if not names:
        return "none: no number has been recorded"
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more (`--list` shows them)" if more > 0 else "")


def _hint(word: str, names: Sequence[str]) -> str:
    ends = {name.rpartition("/")[2]: name for name in reversed(names)}
    near = nearest(word, [*names, *ends], 3)
    meant = list(dict.fromkeys(ends.get(name, name) for name in near))
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def sorted_out(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take the words of a command line apart.

    Returns:
        Those that mean runs, as `ezpz.track.named` finds them, and all others: metrics.

    Raises:
        UsageError: There is no run among them, and the first one reads like a path, or there is no run here either.
    """
    runs: list[str] = []
    for word in words:
        if is_run_word(word, lambda key: _of_newest(key) or _of_named(key, runs)):
            runs.append(word)
    keys = [word for word in words if word not in runs]
    if runs or not keys:
        return runs, keys
    first = keys[0]
    if first.startswith(("/", ".", "~")) or first.endswith("/") or ("/" in first and Path(first).parts[0] == "outputs"):
        raise unknown(first)
    if not Path("outputs").is_dir() and newest_run(root()) is None:
        raise unknown(first)
    return [], keys


def _of_newest(word: str) -> list[str]:
    """Return the metrics of the newest run that a word means."""
    folder = newest_run(root())
    return matching(word, list(open_run(folder).table.cells)) if folder else []


def _of_named(word: str, runs: Sequence[str]) -> list[str]:
    """Return the metrics that a word means of runs that were named in front of it, which may have none yet."""
    found: list[str] = []
    with suppress(EzpzError):
        found += [key for run in runs for key in matching(word, list(open_run(run_named(run)).table.cells))]
    return found
