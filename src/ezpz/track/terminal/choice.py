"""Find the metrics and the run that a user means by the words they type."""

from __future__ import annotations

import os
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import UsageError, nearest
from ezpz.files import no_access, refuse_unreadable
from ezpz.track.run import is_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# The newest run below a folder.

_DEEPEST = 4  # folders below the root: outputs/<name>/<stamp> and some more
_FILES = ("metrics.jsonl", "run.json")


def newest_run(root: Path, closed: list[str] | None = None) -> Path | None:
    """Return the run folder below ``root``, or that folder itself, whose journal or ``run.json`` changed last.

    Folders that hold a run are not searched for more, and neither are hidden ones, nor links to folders, nor what may
    not be read.

    Args:
        root: The folder.
        closed: Takes the folders that may not be read.
    """

    def pass_over(error: OSError) -> None:
        if isinstance(error, PermissionError) and closed is not None:
            closed.append(str(error.filename))

    newest: tuple[float, Path] | None = None
    depth = len(root.parts)
    for place, folders, files in os.walk(root, onerror=pass_over):
        path = Path(place)
        held = [name for name in _FILES if name in files]
        if held:
            folders.clear()
            with suppress(OSError):  # removed at this moment
                changed = max((path / name).stat().st_mtime for name in held)
                newest = max(newest, (changed, path)) if newest else (changed, path)
        elif len(path.parts) - depth >= _DEEPEST:
            folders.clear()
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return newest[1] if newest else None


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
        Those that are folders, or files of a run, and all others: metrics.

    Raises:
        UsageError: There is no folder among them, and the first one reads like a path, or outputs/ is not here either.
    """
    folders = [word for word in words if _is_folder(word)]
    keys = [word for word in words if word not in folders]
    if folders or not keys:
        return folders, keys
    first = keys[0]
    if first.startswith(("/", ".", "~")) or first.endswith("/") or ("/" in first and Path(first).parts[0] == "outputs"):
        folder_of(first)
    if not Path("outputs").is_dir():
        raise UsageError(
            f"{first!r} is no folder, and there is no outputs/ here whose newest run could be meant (from the command "
            "line); expected a run folder. `ezpz runs` lists them."
        )
    return [], keys


def _is_folder(word: str) -> bool:
    path = Path(word).expanduser()
    return path.is_dir() or (path.name in {"metrics.jsonl", "run.json"} and path.is_file())


def folder_of(word: str) -> Path | None:
    """Return the run folder that a word means: that folder, or the newest run below it; None if there is no run yet.

    Args:
        word: A folder, or a file in a run folder.

    Raises:
        UsageError: There is no such folder, it may not be read, or the file is in no run folder.
    """
    path = Path(word).expanduser().absolute()
    refuse_unreadable(path)
    if path.is_file():
        if not is_run(path.parent):
            raise UsageError(
                f"{path} is a file of no run (from the command line): its folder has no metrics.jsonl; expected a run "
                "folder, or one that holds runs. `ezpz runs` lists them."
            )
        return path.parent
    if not path.is_dir():
        raise UsageError(
            f"no folder {path} (from the command line, which means outputs/ where it names none); "
            "expected a run folder, or one that holds runs. `ezpz runs` lists them."
        )
    if is_run(path):
        return path
    closed: list[str] = []
    found = newest_run(path, closed)
    if found is None and closed:  # there may be one
        raise no_access(closed[0])
    return found


def run_named(word: str | None) -> Path:
    """Return the run folder that a user means, for every verb that takes one run.

    Args:
        word: A run folder, a file in it, a folder that holds runs, of which the newest is meant, or a name below
            outputs/ as ``ezpz runs`` lists it; None for the newest run below outputs/.

    Raises:
        UsageError: There is none.
    """
    place = word or "outputs"
    if word and not Path(word).expanduser().exists() and Path("outputs", word).is_dir():
        place = os.path.join("outputs", word)  # noqa: PTH118  # as it was typed
    folder = folder_of(place)
    if folder is None:
        source = "from the command line" if word else "the default"
        raise UsageError(
            f"no run in {place} ({source}); expected a folder with a metrics.jsonl, as ezpz.History leaves it, or one "
            "that holds such folders. `ezpz runs` lists them."
        )
    return folder
