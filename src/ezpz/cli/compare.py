"""Run ``ezpz compare A B [C …]``: show what runs have set differently, and from which step on their curves differ."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

from ezpz.cli.standard_output import refuse_standard_output
from ezpz.cli_parser import option, run_verb, whole_number
from ezpz.errors import UsageError
from ezpz.tables import USUAL, screen_width
from ezpz.verbs import RUN_HELP, make_verb_parser
from ezpz.view.terminal.screen import say

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ezpz.track.run_reader import Run
    from ezpz.view.compare.comparison import Comparison

_NARROWEST, _WIDEST = 40, 120
_OPTIONS = (
    option(
        "runs",
        nargs="*",
        metavar="RUN",
        help=f"a wandb or TensorBoard folder, a log; {RUN_HELP}",
    ),
    option("--metric", metavar="KEY", help="what to compare (default: the loss)"),
    option("--json", action="store_true", help="print one JSON object"),
    option(
        "--width",
        type=whole_number(_NARROWEST),
        metavar="N",
        help=f"columns, {_NARROWEST} or more (default: the terminal's, {_NARROWEST} to {_WIDEST}; else {USUAL})",
    ),
    option("--no-picture", action="store_true", help="draw no overlay"),
    option(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help="folder for overlay.png and overlay.svg (default on a terminal: outputs/compare/A-B; else none)",
    ),
)
_ABOUT = """\
Each run is compared with the first. Without RUN the last two runs are meant, the last one as B; one alone is compared
with the last other run. A line on stderr then says which."""
_EXAMPLES = (
    ("ezpz compare", "the last two runs"),
    ("ezpz compare outputs/train/*", "the newer runs, each with the first"),
    ("ezpz compare A B --metric val/loss", "by another metric than the loss"),
    ("ezpz compare A B --json", "for programs"),
)
_EXITS = (
    ("0", "the curves agree within numerics, and nothing material is set differently"),
    ("1", "they differ"),
    ("2", "they cannot be compared; one line on stderr says why"),
)


def main(argv: Sequence[str]) -> int:
    """Print the comparison and return the exit code."""
    parser = make_verb_parser(
        "compare", _OPTIONS, _ABOUT, usage="[RUN [RUN ...]] [options]", examples=_EXAMPLES, exits=_EXITS
    )
    # 1 says that the runs differ, so what could not be read is 2 here.
    return run_verb(parser, argv, _compare, failure=2)


def _compare(options: Namespace) -> int:
    from ezpz.track.run_reader import without_secrets
    from ezpz.view.compare.comparison import compare_runs
    from ezpz.view.compare.comparison_output import exit_code
    from ezpz.view.foreign.opening import open_any

    refuse_standard_output("-o", options.output, "a folder for the pictures")
    with redirect_stdout(sys.stderr):  # warnings about torn lines are no part of the answer
        places = _places(options.runs)
        runs = [without_secrets(open_any(path)) for path in places]
        comparisons = compare_runs(runs, options.metric)
    _show(options, places, runs, comparisons)
    return exit_code(comparisons)


def _places(words: Sequence[str]) -> list[Path]:
    """Return the runs to compare; where fewer than two were named, the last others, and a line on stderr says which.

    Raises:
        UsageError: There are not two.
    """
    from ezpz.track.named import last_runs, no_runs
    from ezpz.visible import show

    places = [_place(word) for word in words]
    if len(places) > 1:
        return places
    others = last_runs(2 - len(places), places)
    if not (places or others):
        raise no_runs()
    if len(places) + len(others) < 2:
        raise UsageError(
            f"one run alone, {(places or others)[0]} (from {'the command line' if places else 'the default'}); "
            "expected two to compare, and there is no other here. Name both: `ezpz compare RUN RUN`."
        )
    places += others
    show(f"ezpz compare: A is {places[0]}, B is {places[1]}", sys.stderr)
    return places


def _place(word: str) -> Path:
    """Return what a word means: a run, or a file or folder of another tool."""
    from ezpz.track.named import RUN_FILES, is_folder, newest_run, run_named
    from ezpz.view.foreign.opening import open_any

    path = Path(word).expanduser()
    if path.is_file() and path.name not in RUN_FILES:
        return path.absolute()
    if not is_folder(word):
        return run_named(word)
    try:
        open_any(path)
    except UsageError:
        newest = newest_run(path)
        if newest is None:
            raise
        return newest.absolute()
    return path.absolute()


def _show(options: Namespace, places: Sequence[Path], runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
    from ezpz.view.compare.comparison_output import as_object
    from ezpz.visible import shorten, use_color

    is_terminal = screen_width() is not None
    folder = options.output or (_usual_folder(places) if is_terminal and not options.json else None)
    drawn = [] if options.no_picture or folder is None else _draw(folder.expanduser(), places, runs, comparisons)
    if options.json:
        import json

        answer = as_object(runs, places, comparisons)
        say(
            sys.stdout,
            json.dumps({**answer, "pictures": [str(path.absolute()) for path in drawn]}, indent=2),
            "backslashreplace",
        )
        return
    from ezpz.view.compare.comparison_output import render, short_path

    columns = min(_WIDEST, screen_width(_NARROWEST) or USUAL)
    text = render(
        runs,
        places,
        comparisons,
        width=options.width or columns,
        color=use_color(sys.stdout),
        whole_paths=not (is_terminal or options.width),
    )
    if drawn:
        label, ending, path = "picture: ", " and .svg", short_path(drawn[0])
        room = (options.width or columns) - len(label) - len(ending)
        text += f"\n{label}{shorten(path, room) if is_terminal or options.width else path}{ending}\n"
    say(sys.stdout, text.rstrip("\n"), "backslashreplace")


def _usual_folder(places: Sequence[Path]) -> Path:
    names = [place.name for place in places]
    if len(set(names)) < len(names):
        names = [f"{place.parent.name}-{place.name}" for place in places]
    return Path("outputs", "compare", "-".join(names)[:120])


def _draw(folder: Path, places: Sequence[Path], runs: Sequence[Run], comparisons: Sequence[Comparison]) -> list[Path]:
    from ezpz.view.compare.comparison_output import save_picture

    with redirect_stdout(sys.stderr):
        return save_picture(folder, runs, places, comparisons)
