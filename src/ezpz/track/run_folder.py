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

from ezpz.errors import UsageError
from ezpz.files import make_closed_folder, read_bytes, read_object, write_whole
from ezpz.records.run_record import RunRecord
from ezpz.records.stored_files import SCHEMA
from ezpz.redact import redact_config, redact_text
from ezpz.save_requests import AskedToEnd
from ezpz.track.writer_lock import birth
from ezpz.visible import visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


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


_noted: set[str] = set()


def read_record(path: Path) -> RunRecord:
    """Return what a ``run.json`` holds; an empty record when it is missing or no object.

    A field that holds another type than ezpz writes is left out, also of what is shown as it is, with one note.
    """
    facts = read_object(path)
    wrong: list[str] = []
    record = RunRecord.of(facts, wrong)
    if not wrong:
        return record
    if str(path) not in _noted:
        _noted.add(str(path))
        from ezpz.log import get_logger  # `logging` costs 10 ms, which only a warning needs

        names = ", ".join(dict.fromkeys(wrong))
        get_logger(__name__).warning(
            f"{visible(str(path))}: took {names} as missing: not of the type that ezpz writes there."
        )
    for name in wrong:
        _leave_out(facts, name)
    return RunRecord.of(facts)


def _leave_out(facts: dict[str, Any], name: str) -> None:
    """Leave a field out, or of a list of objects what is none."""
    *outer, last = name.split(".")
    place: Any = facts
    for each in outer:
        place = place.get(each) if isinstance(place, dict) else None
    if not isinstance(place, dict) or last not in place:  # in an object of a list
        return
    if isinstance(place[last], list) and not outer and last == "findings":
        place[last] = [each for each in place[last] if isinstance(each, dict)]
    else:
        del place[last]


class RunFile:
    """The ``run.json`` of a run folder.

    Attributes:
        path: The file.
        facts: What it says; a change reaches the disk with `save`.
    """

    def __init__(self, folder: Path, name: str, facts: Mapping[str, object]) -> None:
        self.path = folder / "run.json"
        self._text = "{}\n"  # as it was written last
        from ezpz.track.run_facts import began  # who only reads does without what it loads

        self._began = time()
        self._earlier = self._read_earlier()
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
            **({"earlier": self._earlier} if self._earlier else {}),
        }

    def _read_earlier(self) -> list[object]:
        """Return what runs that used this folder before recorded of themselves, oldest first."""
        try:
            data = read_bytes(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"not read: {error.strerror}"]
        try:
            before = json.loads(data)
            RunRecord.of(before).refuse_newer(self.path)
            older = before.pop("earlier", [])
        except (ValueError, AttributeError, TypeError, RecursionError):  # not ours: kept as it is, as text
            return [data.decode(errors="replace")]
        return [*(older if isinstance(older, list) else [older]), before]

    def earlier_trackers(self) -> dict[str, object]:
        """Return what trackers left behind when this folder was used before, so that they continue the same run."""
        newest = self._earlier[-1:]
        return RunRecord.of(newest[0]).trackers if newest and isinstance(newest[0], dict) else {}

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
