"""The folder of a benchmark, and ``benchmark.json`` in it: what was asked for, on which machine, and what came of it.

    {"schema": 1, "started": "2026-11-20T16:20:01+01:00", "ended": …, "seconds": 61.2, "folder": …, "command": …, "git_commit": …,
     "versions": {"ezpz": …, "torch": …, "python": …}, "machine": {"hosts": ["n01"], "ranks": 4, …},
     "trainers": [{"trainer": "vit", "preset": "debug", "state": "finished", "code": 0, "command": …, "log": "vit.log",
                   "report": "vit/report.html", "seconds": 20.1, "sps": …, "step_median": …, …}]}

``state`` is ``finished``, ``failed``, ``interrupted`` or ``not run``; `ezpz.cli.benchmark` names the figures.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.cli.benchmark import NOTHING
from ezpz.cli.benchmark_machine import describe, versions
from ezpz.errors import EzpzError, UsageError
from ezpz.track.facts import git_commit
from ezpz.track.folder import make_folder, now, write_atomically

if TYPE_CHECKING:
    from ezpz.cli.benchmark_trainers import Trainer
    from ezpz.launch.planning import Survey

__all__ = ["begin", "entry", "make", "save", "write"]


def make(outdir: str | None) -> Path:
    """Make the folder: a new or empty one.

    Raises:
        UsageError: It cannot be made, or holds something.
    """
    if outdir is None:
        return make_folder("benchmark", None, time.strftime("%Y-%m-%d-%H%M%S"))
    folder = Path(outdir).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = next(folder.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"cannot use the folder {folder}: {error.strerror} (from --outdir); expected a new or empty one. Name another."
        ) from error
    if taken is not None:
        raise UsageError(
            f"{folder} holds {taken.name} already (from --outdir); expected a new or empty folder, so that no earlier "
            "figures are mixed with these. Name another."
        )
    return folder


def begin(folder: Path, command: str, found: Survey) -> dict[str, Any]:
    """Return what is known before anything has run."""
    return {
        "schema": 1,
        "started": now(),
        "ended": None,
        "seconds": 0.0,
        "folder": str(folder),
        "command": command,
        "git_commit": git_commit(Path.cwd()),
        "versions": versions(),
        "machine": describe(found),
        "trainers": [],
    }


def entry(trainer: Trainer, preset: str, line: str) -> dict[str, Any]:
    """Return what is known of a trainer that has not run."""
    return {
        "trainer": trainer.name,
        "preset": preset,
        "state": "not run",
        "code": None,
        "cause": "",
        "command": line,
        "log": f"{trainer.name}.log",
        "report": None,
        "seconds": None,
        **NOTHING,
        "parts": {},
    }


def write(told: dict[str, Any], folder: Path) -> None:
    """Write ``benchmark.json`` as it is now."""
    told["ended"] = now()
    save(folder / "benchmark.json", json.dumps(told, indent=2) + "\n")


def save(path: Path, text: str) -> None:
    """Write a file in one move.

    Raises:
        EzpzError: It cannot be written.
    """
    try:
        write_atomically(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise EzpzError(
            f"cannot write {path}: {error.strerror or error}; expected space and leave to write there. What ran lies in its "
            "own folder beside it."
        ) from error
