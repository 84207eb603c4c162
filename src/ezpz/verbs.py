"""The table of verbs, and the parser that all of them are made with.

A verb is a module with a ``main(argv) -> int`` beside what it is about; `ezpz.cli` imports it when it is asked for.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ezpz.cli_parser import Option, Parser

__all__ = ["LAUNCH_HELP", "RUN_HELP", "VERBS", "make_verb_parser"]

_RUNS = "Runs: output, endings, exit codes"
_HISTORY = "History: record a run"

# What verbs take that are about a run, or a launch: `ezpz.track.named` finds it.
RUN_HELP = (
    "a run folder, or one that holds runs; a name of `ezpz runs`, a launch or a job; or the beginning of one, at least "
    "4 characters"
)
LAUNCH_HELP = (
    "a launch's id, its job, or the folder of its record; a run folder or a name of `ezpz runs`; or the beginning of "
    "one, at least 4 characters"
)

# verb: (module with a `main(argv) -> int`, what it does: its line in `ezpz --help`, and the first of its own help, and
# the title of the page that says more: who has installed a wheel has no file of it)
VERBS = {
    "init": ("ezpz.cli.init", "write a job script and a training to start from into this folder", "Trainers"),
    "launch": ("ezpz.launch.entry", "start a command once per rank", "Launch"),
    "submit": ("ezpz.jobs.submit", "write a job file for this machine and queue it", "Submit jobs"),
    "test": ("ezpz.cli.smoke", "launch the smoke test, ezpz.test_dist", "Trainers"),
    "simulate": (
        "ezpz.cli.simulate",
        "run a script as one rank of a world of N: does it fit?",
        "Simulate: does it fit?",
    ),
    "fetch": ("ezpz.cli.fetch", "bring data sets for trainers to this machine, or list them", "Data"),
    "kill": ("ezpz.jobs.kill", "end a running launch of yours, or list them", _RUNS),
    "status": (
        "ezpz.cli.status",
        "show your jobs and launches: what waits, runs and ended",
        _RUNS,
    ),
    "logs": ("ezpz.jobs.logs", "print what ranks wrote, and follow it", _RUNS),
    "runs": ("ezpz.cli.runs", "list runs: what ran, what runs, what died and why", _HISTORY),
    "open": ("ezpz.cli.open", "show the report of a run in a browser, or print its path", _HISTORY),
    "watch": ("ezpz.cli.watch", "follow a run's metrics until it ends", _HISTORY),
    "plot": ("ezpz.cli.plot", "draw a run's metrics as plots made of characters", _HISTORY),
    "report": ("ezpz.cli.report", "write a run as one HTML page", _HISTORY),
    "export": (
        "ezpz.cli.export",
        "write the HDF5 file or a CSV of a run, whatever became of it",
        _HISTORY,
    ),
    "startup": (
        "ezpz.cli.startup",
        "show where the time to the first step went, and who held up whom",
        _RUNS,
    ),
    "stacks": (
        "ezpz.cli.stacks",
        "show where every rank of a running launch is now",
        _RUNS,
    ),
    "why": ("ezpz.cli.why", "say why a launch ended as it did, and what to try", "Why a run ended"),
    "checkpoint": ("ezpz.cli.checkpoint", "verify checkpoints, or export the weights of one", "Checkpoints"),
    "compare": (
        "ezpz.cli.compare",
        "show what runs have set differently, and where their curves part",
        "Compare runs",
    ),
    "benchmark": (
        "ezpz.cli.benchmark",
        "run the trainers one after another and show what each reached",
        "Trainers",
    ),
    "where": (
        "ezpz.cli.where",
        "show scheduler, hosts, devices and site, each with its source",
        "Scheduler, hosts, devices: what ezpz detects",
    ),
    "doctor": (
        "ezpz.cli.doctor",
        "look at this host, or all hosts of a job: what is wrong?",
        "Doctor: find what is wrong with a machine",
    ),
    "sites": ("ezpz.cli.sites", "show the machines that ezpz knows, or all facts of one", "Sites"),
    "shell": ("ezpz.cli.shell", "print the line that brings ezpz's functions into a shell", "Shell functions"),
    "completion": ("ezpz.cli.completion", "print what lets TAB complete ezpz in bash or zsh", "Shell functions"),
}


def make_verb_parser(
    verb: str,
    options: Iterable[Option],
    about: str = "",
    *,
    examples: Sequence[tuple[str, str]] = (),
    exits: Sequence[tuple[str, str]] = (),
    **more: Any,
) -> Parser:
    """Return the parser of a verb; every verb's help has the same parts in the same order.

    Args:
        verb: A key of `VERBS`, whose line opens the description.
        options: The verb's table, rows of `ezpz.cli_parser.option`.
        about: Further paragraphs of the description.
        examples: Command lines, and what each does.
        exits: Exit codes and what each means, besides those of every verb.
        more: What else `ezpz.cli_parser.Parser` takes: ``usage``, ``allow_abbrev``.
    """
    from ezpz.cli_parser import Parser, closing

    _, line, page = VERBS[verb]
    summary = f"{line[0].upper()}{line[1:]}{'' if line.endswith('?') else '.'}"
    description = f"{summary}\n\n{about}".rstrip()
    epilog = closing(examples, exits or _EXITS, page)
    return Parser(f"ezpz {verb}", description, options=options, epilog=epilog, **more)


_EXITS = (("0", "done"), ("1, 2", "it could not be done; one line on stderr says why, and what to type"))
