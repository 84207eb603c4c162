"""Run ``ezpz checkpoint``: ``verify`` compares the files of checkpoints with the digests that were saved with them,
``export`` writes the weights of one as other programs read them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ezpz.checkpoint.digests import objections
from ezpz.checkpoint.finding import SET_ASIDE, base_of, is_folder, is_there, newest_first
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
    option(
        "action",
        choices=("verify", "export"),
        metavar="verify|export",
        help="compare every file with its SHA-256; or write the weights of the newest checkpoint of one run",
    ),
    option(
        "folders",
        nargs="*",
        metavar="RUN",
        help=f"a checkpoints folder, one checkpoint, or {RUN_HELP}",
    ),
    option(
        "--to",
        metavar="FILE",
        group="export",
        help="FILE.safetensors, FILE.pt, or a folder that Hugging Face's from_pretrained reads",
    ),
    option("--ema", action="store_true", group="export", help="the moving average of the weights in their place"),
    option("--overwrite", action="store_true", group="export", help="replace what is there"),
)
_ABOUT = "A checkpoint is left as it is. To verify needs no torch; an export runs in this process, without devices."
_EXAMPLES = (
    ("ezpz checkpoint verify outputs/fsdp/2026-11-20-165036", "all checkpoints of a run"),
    ("ezpz checkpoint export fsdp --to weights.safetensors", "the newest checkpoint of the newest run of that name"),
)
_EXITS = (
    ("0", "all are sound; the export is written"),
    ("1", "one is damaged; the export cannot be written"),
    ("2", "RUN is no checkpoint and holds none, or one cannot be read; the export's is damaged, or FILE is there"),
)


def main(argv: Sequence[str]) -> int:
    """Verify checkpoints, a line each, or export one, and return the exit code."""
    usage = "verify [RUN ...] | export [RUN] --to FILE"
    parser = make_verb_parser("checkpoint", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, lambda options: _DO[options.action](options))


def _export(options: Namespace) -> int:
    """Export the checkpoint that is meant, say what was written, and return the exit code."""
    if not options.to or len(options.folders) > 1:
        what = "no --to" if not options.to else f"{len(options.folders)} runs"
        raise UsageError(
            f"{what} (from the command line); expected one run, and where to write its weights. Type `ezpz checkpoint "
            f"export {options.folders[0] if options.folders else 'RUN'} --to weights.safetensors`."
        )
    folder = _folder(options.folders[0]) if options.folders else newest_here()
    source = f"{options.folders[0]} (from the command line)" if options.folders else f"{folder} (the newest run)"
    from ezpz.checkpoint.exporting import export

    done = export(_newest_in(folder, source), options.to, ema=options.ema, overwrite=options.overwrite)
    for remark in done.remarks:
        say(sys.stderr, f"ezpz: {remark}", "backslashreplace")
    size = f"{done.tensors} tensors, {done.size / 1e6:.1f} MB"
    _line("exported", done.path, f"step {done.step}, {size}")
    return 0


def _newest_in(folder: Path, source: str) -> Path:
    """Return the checkpoint that a folder is, or the newest one that it holds.

    Raises:
        UsageError: There is none, or the newest is damaged.
    """
    if _checkpoints_in(folder, source, "export") == [folder]:
        return folder
    damaged: list[tuple[Path, Unusable]] = []
    sound = next(newest_first(folder, lambda path, reason: damaged.append((path, reason))), None)
    lost = next(((path, reason) for path, reason in damaged if isinstance(reason, Damaged)), None)
    if sound is not None and lost is None:
        return sound
    path, reason = lost or damaged[0]
    older = f"To export an older one, name it: {sound}." if sound else "No other is complete."
    raise UsageError(f"cannot export {path}: {reason}; expected a complete checkpoint. {older}")


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


def _checkpoints_in(folder: Path, source: str, verb: str = "verify") -> list[Path]:
    """Return the checkpoints that a folder is or holds, whole or not, those that were set aside too.

    Args:
        folder: The folder.
        source: What was named, and where, for the error.
        verb: What is to be done, for the error.

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
            f"no checkpoint to {verb} in {source}: {problem or 'it holds none'}; expected a run "
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


_DO = {"verify": _verify_all, "export": _export}
