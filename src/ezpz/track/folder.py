"""Make a run's folder ``outputs/<name>/<YYYY-MM-DD-HHMMSS>/`` and write the ``run.json`` in it.

``run.json`` is written when the run starts and again when it ends, each time in one move. Its ``state`` is

    running    the process has not ended, or was killed before it could say anything more
    finished   `History.finalize` was called
    failed     an exception ended the run; ``cause`` says which
    stopped    a signal did, Ctrl-C included; ``cause`` says which
    exited     the process ended by itself without `History.finalize`
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from itertools import count
from pathlib import Path
from signal import SIGINT
from time import time

from ezpz import __version__
from ezpz.errors import TrackError, UsageError
from ezpz.files import drop_misfits, make_closed_folder, read_bytes, read_object, write_whole
from ezpz.progress import AskedToEnd
from ezpz.redact import redact_config, redact_text
from ezpz.track.writer_lock import birth

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SCHEMA = 1


def now() -> str:
    """Return the local time with its zone in ISO 8601, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def state_after(error: BaseException | None, otherwise: str) -> tuple[str, str]:
    """Return the state of a run that an exception ended, and the cause in one line, without secrets.

    Args:
        error: The exception; None where none did, and a SystemExit of code 0 is none, but for that of a launcher that
            has asked the program to save and to end.
        otherwise: The state of a run that none ended.
    """
    if isinstance(error, AskedToEnd):
        return "stopped", "the launcher's request to save and to end"
    code = error.code if isinstance(error, SystemExit) else None
    if error is None or (isinstance(error, SystemExit) and code in {None, 0}):
        return otherwise, ""
    if isinstance(error, KeyboardInterrupt) or code == 128 + SIGINT:
        return "stopped", "SIGINT (Ctrl-C)"
    words = f"{type(error).__name__}: {error}".split("\n", 1)[0][:3000]
    return "failed", redact_text(words)[:300].rstrip(": ")


def run_name(name: str) -> str:
    """Return a run's name, which is a folder's too.

    Raises:
        UsageError: It is no folder name.
    """
    if not is_folder_name(name):
        raise UsageError(
            f"cannot name a run: {name!r} (from History(name=...)); expected one folder name without '/'. "
            f"Use for example History(name='train')."
        )
    return name


def is_folder_name(name: str) -> bool:
    """Tell whether a run's name can be that of a folder and of a file."""
    return name not in {"", ".."} and Path(name).name == name and name.isprintable()


def make_folder(name: str, outdir: str | os.PathLike[str] | None, stamp: str) -> Path:
    """Make the folder of one run.

    Args:
        name: Name of the run.
        outdir: The folder itself; what it holds already is kept. None makes ``outputs/<name>/<stamp>`` below the
            current folder, with ``-2``, ``-3``, … after it when another run has taken it.
        stamp: Local time, ``2026-11-20-162001``.

    Returns:
        Absolute path of a folder in which a file can be made. What was made is closed to others.

    Raises:
        UsageError: The folder is a file, or cannot be made or written.
    """
    base = Path.cwd() / "outputs" / name if outdir is None else Path(outdir).expanduser().absolute()
    try:
        make_closed_folder(base)
        folder = _first_free(base, stamp) if outdir is None else base
    except OSError as error:
        raise _unusable(base, outdir, error.strerror) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unusable(folder, outdir, "not writable")
    return folder


def _first_free(base: Path, stamp: str) -> Path:
    for number in count(1):
        folder = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(mode=0o770)
        except FileExistsError:  # another run of the same second; mkdir decides between the two
            continue
        return folder
    raise AssertionError  # count() does not end


def _unusable(folder: Path, outdir: object, reason: str | None) -> UsageError:
    source = "the current folder" if outdir is None else "outdir"
    return UsageError(
        f"cannot use the run folder: {folder}: {reason} (from {source}); expected a folder that can be written. "
        f"Use History(outdir=...) with another one."
    )


_TEXT, _WHOLE, _NUMBER = (str,), (int,), (int, float)
# What the fields of run.json hold; all others are shown as they are.
_SHAPE: dict[str, Any] = {
    **dict.fromkeys(("name", "state", "cause", "started", "ended", "host", "python", "git_commit"), _TEXT),
    **dict.fromkeys(("schema", "attempt"), _WHOLE),
    "seconds": _NUMBER,
    **dict.fromkeys(("argv", "problems", "findings", "earlier"), (list,)),
    **dict.fromkeys(
        ("config", "environment", "versions", "timeline", "launch", "hardware", "paths", "trackers"), (dict,)
    ),
    "ranks": dict.fromkeys(("rank", "world_size", "local_world_size"), _WHOLE),
    "process": {"pid": _WHOLE, "host": _TEXT, "began": _NUMBER},
    "effective": {"stochastic": (list,)},
    "speed": {"value": _NUMBER, "unit": _TEXT},
}
_noted: set[str] = set()


def read_facts(path: Path) -> dict[str, Any]:
    """Return what a ``run.json`` holds; empty when it is missing or no object.

    A field that holds another type than ezpz writes is left out, as if it were missing, with one note.
    """
    facts = read_object(path)
    wrong = drop_misfits(facts, _SHAPE)
    if wrong and str(path) not in _noted:
        _noted.add(str(path))
        from ezpz.log import get_logger  # `logging` costs 10 ms, which only a warning needs

        get_logger(__name__).warning(
            f"{path}: took {', '.join(wrong)} as missing: not of the type that ezpz writes there."
        )
    return facts


def check_schema(facts: Mapping[str, object], path: Path) -> None:
    """Refuse the facts of a ``run.json`` that a newer ezpz wrote; one without a schema is of the first.

    Args:
        facts: What the file holds.
        path: The file, for the error.

    Raises:
        TrackError: Its schema is newer than `SCHEMA`.
    """
    schema = facts.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        versions = facts.get("versions")
        writer = versions.get("ezpz", "a newer one") if isinstance(versions, dict) else "a newer one"
        raise TrackError(
            f"cannot read {path}: its schema is {schema}, written by ezpz {writer}; this ezpz {__version__} reads "
            f"schemas up to {SCHEMA}. Use the ezpz that wrote it, or a newer one."
        )


class RunFile:
    """The ``run.json`` of a run folder.

    Attributes:
        path: The file.
        facts: What it says; a change reaches the disk with `save`.
    """

    def __init__(self, folder: Path, name: str, facts: Mapping[str, object]) -> None:
        self.path = folder / "run.json"
        self._text = "{}\n"  # as it was written last
        from ezpz.track.facts import began  # who only reads does without what it loads

        self._began = time()
        earlier = self._earlier()
        self.facts: dict[str, object] = {
            "schema": SCHEMA,
            "name": name,
            "state": "running",
            "started": now(),
            "process": {
                "host": os.uname().nodename,
                "pid": os.getpid(),
                "birth": birth(os.getpid()),
                "began": round(began(), 3),
            },
            **facts,
            **({"earlier": earlier} if earlier else {}),
        }

    def _earlier(self) -> list[object]:
        """Return what runs that used this folder before recorded of themselves, oldest first."""
        try:
            data = read_bytes(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"not read: {error.strerror}"]
        try:
            before = json.loads(data)
            check_schema(before, self.path)
            older = before.pop("earlier", [])
        except (ValueError, AttributeError, TypeError, RecursionError):  # not ours: kept as it is, as text
            return [data.decode(errors="replace")]
        return [*(older if isinstance(older, list) else [older]), before]

    def earlier_trackers(self) -> dict[str, object]:
        """Return what trackers left behind when this folder was used before, so that they continue the same run."""
        older: list[object] = self.facts.get("earlier", [])  # type: ignore[assignment]  # made by __init__
        kept = older[-1].get("trackers") if older and isinstance(older[-1], dict) else None
        return kept if isinstance(kept, dict) else {}

    def save(self) -> None:
        """Write the facts, without secrets, whoever has added them.

        Raises:
            OSError: The file cannot be written; the old one is untouched.
        """
        self._text = json.dumps(redact_config(self.facts), indent=2) + "\n"
        write_whole(self.path, self._text, closed=True, sync=True)

    def move(self, folder: Path) -> None:
        """Write to another folder from now on, which gets what was written last unless it has the file already.

        Raises:
            OSError: The file cannot be written.
        """
        self.path = folder / "run.json"
        if not self.path.exists():
            write_whole(self.path, self._text, closed=True, sync=True)

    def end(self, state: str, paths: Mapping[str, Path], problems: list[str], cause: str = "") -> None:
        """Write how the run ended.

        Args:
            state: ``finished``, ``failed``, ``stopped`` or ``exited``.
            paths: What was written; shown relative to the folder.
            problems: What went wrong with the records themselves, in sentences.
            cause: Why the run failed or was stopped.

        Raises:
            OSError: The file cannot be written; the old one is untouched.
        """
        if self.facts["state"] != state:  # drawing, which comes after the end, takes nothing of a run's time
            self.facts.update(state=state, ended=now(), seconds=round(time() - self._began, 3))
        self.facts["paths"] = _relative(paths, self.path.parent)
        self.facts.pop("cause", None)
        self.facts |= {"cause": cause} if cause else {}
        self.facts |= {"problems": problems} if problems else {}
        self.save()


def _relative(paths: Mapping[str, Path], folder: Path) -> dict[str, str]:
    return {key: str(path.relative_to(folder)) for key, path in paths.items()}
