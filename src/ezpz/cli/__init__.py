"""Find the verb of an ``ezpz`` command and run it: one module per verb, imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.interrupt import Raising, end_now

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ezpz.cli_parser import Option, Parser
    from ezpz.jobs.job_state import Job

__all__ = ["VERBS", "main", "make_verb_parser"]

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
    "checkpoint": (
        "ezpz.cli.checkpoint",
        "verify checkpoints: are their files as they were written?",
        "Checkpoints",
    ),
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

# What people do, and the verbs for it, in the order of `ezpz --help`; each verb is in one group.
GROUPS = {
    "start": ("init", "launch", "submit", "test", "simulate", "fetch", "kill"),
    "look": (
        "status",
        "logs",
        "runs",
        "open",
        "watch",
        "plot",
        "report",
        "export",
        "startup",
        "stacks",
        "why",
        "checkpoint",
    ),
    "compare": ("compare", "benchmark"),
    "machine": ("doctor", "where", "sites", "shell", "completion"),
}
# Verbs of the older package that are gone, and what to use.
_OLDER = {
    "smoke": "`ezpz test`",
    **dict.fromkeys(("yeet", "yeet-env", "tar-env"), "an environment on a file system that all hosts see"),
    "generate": "Hugging Face's own tools on what `ezpz.checkpoint.export_hugging_face` has written",
    "export-amsc": "`ezpz benchmark`, and `ezpz export` for one run",
    "failover": "`ezpz launch --attempts N`",
}
_FIRST = ("launch", "runs", "open", "compare", "where")  # what `ezpz` alone shows


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit code; Ctrl-C that the verb does not care for ends the process without a word."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return ending_with_the_reader(lambda: _run(words))
    except KeyboardInterrupt:
        return end_now()


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]  # `ezpz help runs` is `ezpz runs --help`
    if not words or words[0] in {"-h", "--help"}:
        from ezpz.cli_parser import colored_help
        from ezpz.visible import show

        show(colored_help(_all_verbs() if words else _first_verbs(), sys.stdout), colors=True)
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
        from ezpz.errors import UsageError, did_you_mean, end_with

        if words[0] in _OLDER:
            return end_with(
                UsageError(
                    f"no verb {words[0]!r} (from the command line); expected one of today's. Use {_OLDER[words[0]]}."
                )
            )
        hint = did_you_mean(words[0], VERBS, " Run `ezpz --help` for the verbs.")
        known = ", ".join(VERBS)
        return end_with(
            UsageError(f"unknown verb {words[0]!r} (from the command line); expected one of {known}.{hint}")
        )
    from ezpz import register

    verb = import_module(VERBS[words[0]][0])
    register.ask_job = _ask_job
    with Raising():
        code: int = verb.main(words[1:])
    return code


def _ask_job(word: str) -> Job | None:
    """Return the job of this user that a word names; None where it reads like none, or no scheduler tells of it."""
    import os
    import re

    # 12, 12.head, 12[3].head; 12_3, 12_[4-9%2], 12+1: the beginnings of ids and of times are none
    if not re.fullmatch(r"\d+(?:[_+]\d+|_?\[[\d,%-]*\])?(?:\.[\w.-]+)?", word, re.ASCII):
        return None
    from ezpz.cluster.questions import SCHEDULER_LIMIT
    from ezpz.jobs.queued_jobs import my_jobs, scheduler_questions, user_name

    return my_jobs(os.environ, user_name(), scheduler_questions(SCHEDULER_LIMIT)).called(word)


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


_END = "ezpz VERB --help explains a verb; ezpz --version shows the version."


def _first_verbs() -> str:
    """Return what `ezpz` alone shows."""
    return "\n".join(
        [
            "usage: ezpz VERB [ARG ...]",
            "",
            "Start distributed PyTorch the same way everywhere, and know what happened.",
            "",
            *_lines(_FIRST),
            "",
            f"ezpz --help shows all {len(VERBS)} verbs; ezpz VERB --help explains one.",
        ]
    )


def _all_verbs() -> str:
    """Return every verb, by what people do."""
    groups = (["", f"{title}:", *_lines(verbs)] for title, verbs in GROUPS.items())
    return "\n".join(["usage: ezpz VERB [ARG ...]", *(line for group in groups for line in group), "", _END])


def _lines(verbs: Iterable[str]) -> Iterator[str]:
    return (f"  {verb:<12}{VERBS[verb][1]}" for verb in verbs)
