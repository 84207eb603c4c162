"""Run ``ezpz checkpoint verify``: compare the files of checkpoints with the digests that were saved with them."""

from __future__ import annotations

import sys
from pathlib import Path

from ezpz.checkpoint.digests import objections
from ezpz.checkpoint.finding import SET_ASIDE, base_of, is_folder, is_there
from ezpz.checkpoint.manifest import NAME, Damaged, Unusable, check_files, read_manifest
from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.track.named import newest_here
from ezpz.verbs import RUN_HELP, make_verb_parser
from ezpz.view.terminal.screen import say

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Sequence

_OPTIONS = (
    option("action", choices=("verify",), metavar="verify", help="compare every file with its SHA-256"),
    option(
        "folders",
        nargs="*",
        metavar="RUN",
        help=f"a checkpoints folder, one checkpoint, or {RUN_HELP}",
    ),
)
_ABOUT = "Nothing is changed, and torch is not needed."
_EXAMPLES = (("ezpz checkpoint verify outputs/fsdp/2026-11-20-165036", "all checkpoints of a run"),)
_EXITS = (
    ("0", "all are sound"),
    ("1", "one is damaged"),
    ("2", "RUN is no checkpoint and holds none, or one cannot be read"),
)


def main(argv: Sequence[str]) -> int:
    """Verify checkpoints, a line each, and return the exit code."""
    usage = "verify [RUN ...]"
    parser = make_verb_parser("checkpoint", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _verify_all)


def _verify_all(options: Namespace) -> int:
    folders = [_folder(name) for name in options.folders] or [newest_here()]
    sources = [f"{name} (from the command line)" for name in options.folders] or [f"{folders[0]} (the newest run)"]
    found = [_checkpoints_in(folder, source) for folder, source in zip(folders, sources, strict=True)]
    return _worst([_verify_in(folder, paths) for folder, paths in zip(folders, found, strict=True)])


def _folder(name: str) -> Path:
    """Return the folder that is meant: of one that holds runs, the newest of these."""
    from ezpz.track.named import RUN_FILES, is_folder, newest_run, run_named

    path = Path(name).expanduser()
    if is_folder(name):
        return newest_run(path) or path
    return path if path.is_file() and path.name not in RUN_FILES else run_named(name)


def _worst(codes: Iterable[int]) -> int:
    return min(codes, key=(1, 2, 0).index)


def _verify_in(folder: Path, found: Sequence[Path]) -> int:
    """Verify the checkpoints that a folder is or holds, and return the exit code; damaged ones that were set aside in
    it are named, and count only where nothing else is left.
    """
    aside = [path for path in found if path.name.startswith(SET_ASIDE) and path != folder]
    codes = [_verify(path) for path in found if path not in aside]
    for path in aside:
        _line("set aside", path, "as damaged, by a resume; name it to verify it")
    return _worst(codes) if codes else 1


def _checkpoints_in(folder: Path, source: str) -> list[Path]:
    """Return the checkpoints that a folder is or holds, whole or not, those that were set aside too.

    Args:
        folder: The folder.
        source: What was named, and where, for the error.

    Raises:
        UsageError: There are none.
    """
    if is_there(folder / NAME) or _is_named_as_one(folder):
        return [folder]
    base = base_of(folder)
    inside, problem = [], ""
    try:
        inside = sorted(path for path in base.iterdir() if is_folder(path))
    except FileNotFoundError:
        problem = "there is nothing"
    except NotADirectoryError:
        problem = "it is a file"
    except OSError as error:
        problem = f"{error.strerror}"
    found = [path for path in inside if (_is_named_as_one(path) or is_there(path / NAME)) and path.name[0] != "."]
    if not found:
        raise UsageError(
            f"no checkpoint to verify in {source}: {problem or 'it holds none'}; expected a run "
            "folder, its checkpoints folder, or one checkpoint. `ezpz runs` lists runs."
        )
    return found


def _is_named_as_one(path: Path) -> bool:
    return path.name.removeprefix(SET_ASIDE).startswith("step-") and is_folder(path)


def _verify(path: Path) -> int:
    """Print what a checkpoint is like, and return the exit code for it."""
    try:
        manifest = read_manifest(path)
        check_files(path, manifest)
    except Unusable as reason:
        return _tell(path, [reason])
    if not manifest.sha256:
        _line("no digests", path, f"step {manifest.step}, saved by ezpz {manifest.ezpz}: all files have their sizes")
        return 0
    problems = objections(path, manifest)
    if problems:
        return _tell(path, problems)
    count, size = len(manifest.files), sum(manifest.files.values()) / 1e6
    _line("sound", path, f"step {manifest.step}, saved {manifest.saved}, {count} files, {size:.1f} MB")
    return 0


def _tell(path: Path, problems: Sequence[Unusable]) -> int:
    is_lost = _is_named_as_one(path) and _lacks_manifest(path)
    is_damaged = is_lost or any(isinstance(each, Damaged) for each in problems)
    for problem in problems:
        _line("damaged" if is_damaged else "unreadable", path, str(problem))
    return 1 if is_damaged else 2


def _lacks_manifest(path: Path) -> bool:
    """Tell whether a folder, which got its name with the file in it, has lost ``checkpoint.json``."""
    try:
        return not any(each.name == NAME for each in path.iterdir())
    except OSError:
        return False


def _line(word: str, path: Path, text: str) -> None:
    say(sys.stdout, f"{word:<11}{path}: {text}", "backslashreplace")
