"""Find the verb of an ``ezpz`` command and run it: one module per verb, imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.interrupt import Raising, end_now

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ezpz.cli_parser import Option, Parser

__all__ = ["VERBS", "main", "make_verb_parser"]

# verb: (module with a `main(argv) -> int`, what it does: its line in `ezpz --help`, and the first of its own help)
VERBS = {
    "benchmark": ("ezpz.cli.benchmark", "run the trainers one after another and show what each reached"),
    "checkpoint": ("ezpz.cli.checkpoint", "verify checkpoints: are their files as they were written?"),
    "compare": ("ezpz.cli.compare", "show what runs have set differently, and where their curves part"),
    "export": ("ezpz.cli.export", "write the HDF5 file or a CSV of a run, whatever became of it"),
    "fetch": ("ezpz.cli.fetch", "bring data sets for trainers to this machine, or list them"),
    "kill": ("ezpz.cli.kill", "end a running launch of yours, or list them"),
    "launch": ("ezpz.launch.entry", "start a command once per rank"),
    "plot": ("ezpz.cli.plot", "draw a run's metrics as plots made of characters"),
    "report": ("ezpz.cli.report", "write a run as one HTML page"),
    "runs": ("ezpz.cli.runs", "list runs: what ran, what runs, what died and why"),
    "simulate": ("ezpz.cli.simulate", "run a script as one rank of a world of N: does it fit?"),
    "sites": ("ezpz.cli.sites", "show the machines that ezpz knows, or all facts of one"),
    "stacks": ("ezpz.cli.stacks", "show where every rank of a running launch is now"),
    "test": ("ezpz.cli.smoke", "launch the smoke test, ezpz.test_dist"),
    "watch": ("ezpz.cli.watch", "follow a run's metrics until it ends"),
    "where": ("ezpz.cli.where", "show scheduler, hosts, devices, site, and the source of each answer"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code; Ctrl-C that the verb does not care for ends the process without a word."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return ending_with_the_reader(lambda: _run(words))
    except KeyboardInterrupt:
        return end_now()


def _run(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if words[0] == "--version":
        from ezpz import __version__

        print(f"ezpz {__version__}")
        return 0
    if "=" in words[0]:
        from ezpz.cli.smoke import main_configured

        with Raising():
            return main_configured(words)
    if words[0] not in VERBS:
        from ezpz.errors import did_you_mean

        hint = did_you_mean(words[0], VERBS)
        print(f"ezpz: unknown verb {words[0]!r}; expected one of {', '.join(VERBS)}.{hint}", file=sys.stderr)
        return 2
    verb = import_module(VERBS[words[0]][0])
    with Raising():
        code: int = verb.main(words[1:])
    return code


def make_verb_parser(verb: str, options: Iterable[Option], about: str = "", **more: Any) -> Parser:
    """Return the parser of a verb.

    Args:
        verb: A key of `VERBS`, whose line opens the description.
        options: The verb's table, rows of `ezpz.cli_parser.option`.
        about: Further paragraphs of the description.
        more: What else `ezpz.cli_parser.Parser` takes: ``usage``, ``epilog``, ``allow_abbrev``.
    """
    from ezpz.cli_parser import Parser

    line = VERBS[verb][1]
    summary = f"{line[0].upper()}{line[1:]}{'' if line.endswith('?') else '.'}"
    return Parser(f"ezpz {verb}", f"{summary}\n\n{about}".rstrip(), options=options, **more)


def _usage() -> str:
    verbs = "\n".join(f"  {name:<11}{text}" for name, (_, text) in VERBS.items())
    return (
        f"usage: ezpz VERB [ARG ...]\n\n{verbs}\n\nezpz VERB --help explains a verb; ezpz --version shows the version."
    )
