"""Run ``ezpz init``: write a job script for this machine, and a training to start from, into the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.cluster import SCHEDULERS, detect, probe
from ezpz.cluster.scheduler import scheduler
from ezpz.cluster.site import load, recognise
from ezpz.cluster.site_shell import shell_functions
from ezpz.errors import MachineError, UsageError, nearest
from ezpz.files import find_program
from ezpz.jobs.job_file import WITHOUT_SCHEDULER, Asked, JobFile, options
from ezpz.jobs.job_handler import handlers, lack
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from ezpz.cluster.site import Site


_LAPTOP = "laptop"  # the kind of script for a machine without a scheduler
_SCRIPTS = {
    **{one.name: one.script for one in handlers()},
    _LAPTOP: WITHOUT_SCHEDULER,
}


def _title(name: str) -> str:
    return "this machine" if name == _LAPTOP else f"any {scheduler(name).title} cluster"


_TRAINING = "train.py"
_HOSTS, _SECONDS = 2, 3600  # what the script asks for: the smallest job that shows whether hosts find each other

_OPTIONS = (
    option(
        "site", nargs="?", metavar="SITE", help=f"a name of `ezpz sites`, or {', '.join(_SCRIPTS)}; else found here"
    ),
)
_ABOUT = f"""\
{_TRAINING} trains a small network on as many ranks as there are, saves checkpoints and continues; the job script
starts it. The script's options are those of the site where it is known. A file that is there is never replaced."""
_EXAMPLES = (
    ("ezpz init", "for the machine at hand"),
    ("ezpz init polaris", "for a site of `ezpz sites`"),
    *((f"ezpz init {name}", f"for {_title(name)}") for name in [*_SCRIPTS][:1]),
)
_EXITS = (
    ("0", "done"),
    ("2", "an unknown SITE, or a file that is there already"),
    ("125", "two sites or jobs at once"),
)


def main(argv: Sequence[str]) -> int:
    """Write the files, print what is next, and return the exit code."""
    usage = "[SITE] [options]"
    parser = make_verb_parser("init", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _init)


def _init(options: Namespace) -> int:
    name, site, reason = _choose(options.site, os.environ)
    kind = _SCRIPTS[name]
    files = {kind.file: script(name, site), _TRAINING: _starter(_TRAINING)}
    taken = [file for file in files if os.path.lexists(file)]
    if len(taken) == len(files):
        raise UsageError(
            f"{' and '.join(taken)} are in {Path.cwd()} already (from an earlier call, or yours), and nothing is "
            "replaced; expected a folder without them. Call it in another folder, or move them away."
        )
    for file, text in files.items():
        if file in taken:
            show(f"{file}: there already, left as it is")
        else:
            _write(file, text, is_program=file.endswith(".sh"))
            show(
                f"{file}: written"
                + (f" for {site.name if site else _title(name)} ({reason})" if text[:2] == "#!" else "")
            )
    first = f"fill in the account, then `{kind.program} {kind.file}`" if kind.program else f"`./{kind.file}`"
    other = "; `ezpz submit` writes and queues such files" if kind.program else ""
    show(f"next: {first}{other}; `launch python3 {_TRAINING}` trains here")
    return 0


def _choose(word: str | None, environ: Mapping[str, str]) -> tuple[str, Site | None, str]:
    """Return the kind of script, the site if one is known, and who says so.

    Raises:
        UsageError: The word names no site and no kind, or one that there is no script for.
        MachineError: Variables of two sites are set.
    """
    if word in _SCRIPTS:
        return word, None, "from the command line"
    if word in SCHEDULERS:
        _kind_of(word, "the command line")
    sites = load(environ, probe.read)
    if word is not None:
        if word not in sites:
            known = [*_SCRIPTS, *sites]
            near = nearest(word, known, 3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise UsageError(
                f"unknown site: {word!r} (from the command line); expected a name of `ezpz sites`, or one of "
                f"{', '.join(_SCRIPTS)}{hint}."
            )
        return _kind_of(sites[word].scheduler, f"site {word}"), sites[word], "from the command line"
    job = detect(environ, probe.read, lambda _: None)
    match = recognise(environ, probe.read, job.job_id)
    if match.site is not None:
        return _kind_of(match.site.scheduler, f"site {match.site.name}"), match.site, f"from {match.origin}"
    if job.scheduler != "none":
        return _kind_of(job.scheduler, "this job"), None, f"from {job.origin.get('scheduler')}"
    for name, kind in _SCRIPTS.items():
        if kind.program and find_program(kind.program):
            return name, None, f"{kind.program} is on PATH"
    return _LAPTOP, None, "no scheduler was found"


def _kind_of(name: str, who: str) -> str:
    if name == "none":
        return _LAPTOP
    if name in _SCRIPTS:
        return name
    raise UsageError(f"{lack(name, 'submit')} (from {who}), or name one of {', '.join(_SCRIPTS)}.")


def script(name: str, site: Site | None) -> str:
    """Return the job script of a kind, with the options of a site where it is known.

    Args:
        name: A scheduler, or `_LAPTOP`.
        site: The site.
    """
    kind = _SCRIPTS[name]
    title = f"{site.name} ({site.centre})" if site and site.centre else site.name if site else _title(name)
    asked = Asked(_HOSTS, _SECONDS, Path(_TRAINING).stem)
    lines = tuple(options(kind, site, asked, template=True))
    venv = sys.prefix if sys.prefix != sys.base_prefix else ""
    return JobFile(kind, site, title, lines, ("python3", _TRAINING), shell_functions(), venv).text()


def _starter(file: str) -> str:
    path = Path(__file__).with_name("starters") / file
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MachineError(
            f"cannot read {path}: {error.strerror} (from where ezpz is installed); expected it beside its modules. "
            "Install ezpz again."
        ) from None


def _write(file: str, text: str, *, is_program: bool) -> None:
    """Write a new file.

    Raises:
        UsageError: It cannot be written, or somebody else has made it at this moment.
    """
    try:
        with Path(file).open("x", encoding="utf-8") as stream:  # and never one that is there
            stream.write(text)
            if is_program:
                os.fchmod(stream.fileno(), os.fstat(stream.fileno()).st_mode | 0o111)
    except OSError as error:
        raise UsageError(
            f"cannot write {file} in {Path.cwd()}: {error.strerror} (from the working folder); expected a folder that "
            "you may write. Call it in another one."
        ) from None
