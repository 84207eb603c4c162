"""``ezpz runs [ROOT]``: what ran, what runs, and what died of what. Only heads and tails of journals are read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ezpz.cli.run_glance import glance
from ezpz.cli.run_table import render
from ezpz.errors import EzpzError, UsageError, end_with
from ezpz.track.terminal.screen import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["find_runs", "main"]

# Folders that runs and their tools fill with thousands of files, and in which no run begins.
_PASSED_OVER = {"plots", "logs", "profile", "checkpoints", "wandb", "node_modules", "site-packages", "__pycache__"}
_DEEPEST = 8
_STATES = ("running", "finished", "exited", "failed", "stopped", "died")


def main(argv: Sequence[str]) -> int:
    """Print the runs below a folder, the newest last, and return the exit code."""
    from argparse import ArgumentParser

    parser = ArgumentParser(prog="ezpz runs", description="List the runs below a folder, the newest last.")
    parser.add_argument("root", nargs="?", metavar="ROOT", help="default: outputs, or else the current folder")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--state", choices=_STATES, help="only runs of this state")
    options = parser.parse_args(argv)
    try:
        root = _root(options.root)
        found = [glance(folder, root) for folder in find_runs(root)]
        if not found:
            raise UsageError(
                f"no runs below {root} ({'from the command line' if options.root else 'the default'}); expected folders "
                "with a metrics.jsonl, as ezpz.History leaves them. Name another folder: ezpz runs ROOT."
            )
        shown = [each for each in found if options.state in {None, each["state"]}]
        shown.sort(key=lambda each: (each["started"] or 0.0, each["folder"]))
        say(
            sys.stdout,
            (_json(shown) if options.json else render(shown, len(found), root)).rstrip("\n"),
            "backslashreplace",
        )
    except EzpzError as error:
        return end_with(error)
    return 0


def _root(name: str | None) -> Path:
    if name is None:
        return Path("outputs") if Path("outputs").is_dir() else Path()
    root = Path(name).expanduser()
    if not root.is_dir():
        raise UsageError(f"no folder {root} (from the command line); expected one that holds runs, such as outputs.")
    return root


def find_runs(root: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders below ``root`` and ``root`` itself; links, hidden folders and what cannot be read are passed over."""
    try:
        entries = list(os.scandir(root))
    except OSError:
        return
    names = {entry.name for entry in entries}
    if "pyvenv.cfg" in names:  # a virtual environment
        return
    if "metrics.jsonl" in names or ("run.json" in names and _has_name(root)):
        yield root
    for entry in entries if depth < _DEEPEST else ():
        hidden = entry.name.startswith(".") or entry.name in _PASSED_OVER
        try:
            if not hidden and entry.is_dir(follow_symlinks=False):
                yield from find_runs(root / entry.name, depth + 1)
        except OSError:
            continue


def _has_name(folder: Path) -> bool:
    from ezpz.track.run import is_run

    return is_run(folder)


def _json(found: Sequence[dict[str, Any]]) -> str:
    import json

    return json.dumps(found, indent=2) + "\n"
