"""Find the verb of an ``ezpz`` command and run it: one module per verb, imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module

from ezpz.broken_pipe import ending_with_the_reader
from ezpz.interrupt import Raising, end_now
from ezpz.verbs import VERBS

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ezpz.jobs.job_state import Job

__all__ = ["main"]

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
