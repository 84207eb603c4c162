"""Run ``ezpz open``: show the report of a run in a browser where there is a display, and print its path elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ezpz.broken_pipe import give_up
from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.track.launches import find_launch
from ezpz.verbs import RUN_HELP, make_verb_parser
from ezpz.visible import show, show_path

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

    from ezpz.track.run_reader import Run

_OPTIONS = (
    option("run", nargs="?", metavar="RUN", help=RUN_HELP),
    option("--path", action="store_true", help="print the path of the page, and open nothing"),
)
_ABOUT = """\
A report that is older than its run is written anew. The page is shown by $BROWSER, or by the browser of a display;
without either its path alone is printed. A report.html that is not as your ezpz wrote it is not shown: a page in a
folder of yours is, which is made from the run's data."""
_EXAMPLES = (
    ("ezpz open", "the newest run"),
    ("ezpz open test_dist", "the newest of a name"),
    ("scp host:$(ezpz open --path) .", "the page of a run on another host"),
)


def main(argv: Sequence[str]) -> int:
    """Show the report of a run and return the exit code."""
    parser = make_verb_parser("open", _OPTIONS, _ABOUT, usage="[RUN] [options]", examples=_EXAMPLES)
    return run_verb(parser, argv, _open)


def _open(options: Namespace) -> int:
    from ezpz.track.named import run_named
    from ezpz.track.run_reader import open_run

    page = _page(open_run(run_named(options.run)))
    try:
        show_path(str(page))
    except BrokenPipeError:  # the page is written; who should have read its name has left
        give_up(sys.stdout)
    if not options.path and has_browser(os.environ, sys.platform):
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            show("ezpz: note: no browser could be started; open that page by hand", sys.stderr)
    return 0


def has_browser(environ: Mapping[str, str], platform: str) -> bool:
    """Tell whether a browser can show something to this user: they named one, or there is a display."""
    if environ.get("BROWSER"):
        return True
    if platform == "darwin":  # which has a display unless this is another computer's shell
        return not environ.get("SSH_CONNECTION")
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _page(run: Run) -> Path:
    """Return a report that shows the run as it is now: the one in its folder, else a new one."""
    from ezpz.view.report import write_report
    from ezpz.view.report.mark import is_ours

    page = run.folder / "report.html"
    sources = [run.folder / "metrics.jsonl", run.folder / "run.json"]
    if run.state != run.record.state:  # its launch knows better how it ended
        found = find_launch(run.record.launch_id)
        sources += [found[0]] if found else []
    if run.state != "running" and _changed(page) >= max(map(_changed, sources)):
        if is_ours(page):
            return page
        # It may be all that is left of the run: it stays.
        instead = "the page below is made from the run's data (`ezpz report` replaces that one)"
        show(f"ezpz: note: {page} is not as your ezpz wrote it; {instead}", sys.stderr)
        return _elsewhere(run)
    try:
        return write_report(run)
    except OSError:  # another user's run, or a full disk
        return _elsewhere(run)


def _elsewhere(run: Run) -> Path:
    """Write the report into a folder of this user, and return it."""
    from ezpz.files import private_folder
    from ezpz.view.report import write_report

    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in run.name)[:100]
    own = Path(private_folder("reports"), f"{name}-{run.folder.name}.html")
    try:
        return write_report(run, own)
    except OSError as error:
        raise UsageError(
            f"cannot write the report: {own}: {error.strerror or error} (from TMPDIR, as the run folder cannot be "
            "written either); expected room. Use `ezpz report DIR -o FILE`."
        ) from error


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
