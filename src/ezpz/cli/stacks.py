"""Run ``ezpz stacks``: show where every rank of a running launch is now."""

from __future__ import annotations

import json
import os
import re
import sys

from ezpz.cli_parser import option, run_verb
from ezpz.errors import MachineError, UsageError
from ezpz.jobs.running_launches import table
from ezpz.launch.ask_launch import ask
from ezpz.register import running
from ezpz.track.named import running_named, unknown
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ezpz.register import Launch

_OPTIONS = (
    option(
        "id",
        nargs="?",
        metavar="ID",
        help=f"{LAUNCH_HELP}; where only one runs, that",
    ),
    option("-v", "--verbose", action="store_true", help="the Python stack of every rank"),
    option(
        "--json", action="store_true", help="one JSON object: summary, why, and per rank rank, host, pid, where, frames"
    ),
)
_ABOUT = """\
A running launch of yours is asked; ID is an id of `ezpz kill`'s list, or its first characters, at least 4. One on
another host is asked by ssh, or by the scheduler's own way into its job."""
_EXAMPLES = (
    ("ezpz stacks", "the only launch: how many ranks are where"),
    ("ezpz stacks 4f1c -v", "every rank's stack"),
)
_EXITS = (("0", "its ranks have answered"), ("2", "no such launch"), ("125", "it has not answered"))


def main(argv: Sequence[str]) -> int:
    """Print where the ranks are and return the exit code."""
    usage = "[ID] [options]"
    parser = make_verb_parser("stacks", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _stacks)


def _stacks(options: Namespace) -> int:
    launch = _launch(options.id)
    answer = stacks_of(launch)
    why = _why(launch, answer)
    answer.pop("collectives", None)
    show(
        json.dumps({**answer, **({"why": why} if why else {})}, indent=2)
        if options.json
        else _text(answer, why, options.verbose)
    )
    return 0


def _launch(word: str | None) -> Launch:
    """Return the launch that is meant, by its id, its job, or as the only one.

    Raises:
        UsageError: There is none, or several are meant.
    """
    here, elsewhere = running()
    host = os.uname().nodename
    if not here and not elsewhere:
        raise UsageError(
            f"no launch of yours runs on {host}, and no record tells of one elsewhere; expected one. Run this on the "
            "host where `launch` was typed, or on one that sees your home."
        )
    only = here or elsewhere
    if word is None and len(only) == 1:
        return only[0]
    launch = None if word is None else running_named(word, [*here, *elsewhere])
    if launch is not None:
        return launch
    for text in ([table(here)] if here else []) + ([table(elsewhere, elsewhere=True)] if elsewhere else []):
        show(text, sys.stderr)
    if word is None:
        raise UsageError(f"{len(here) + len(elsewhere)} launches of yours run; expected an ID of the list above.")
    raise unknown(word, more=" Those that run are above.")


def stacks_of(launch: Launch) -> dict[str, Any]:
    """Return what a running launch answers about its ranks.

    Raises:
        MachineError: It does not answer, or with something else.
    """
    answer = ask(launch, "stacks")
    who = f"launch {launch.launch_id} on {launch.host}"
    if answer.get("ended"):
        raise MachineError(f"{who} has ended meanwhile; expected where its ranks are.")
    if not isinstance(answer.get("ranks"), list):
        raise MachineError(f"{who} answered without ranks; expected where they are. Its version may differ.")
    return answer


def _why(launch: Launch, answer: dict[str, Any]) -> str:
    """Return which rank the others wait for, where they have waited for long; empty elsewhere."""
    from ezpz.why import Certainty, Facts, diagnose

    facts = Facts.read(launch.folder)
    facts.use_answer(answer)
    return next((cause.text for cause in diagnose(facts) if cause.certainty > Certainty.FINDING), "")


_CUT = 3  # ranks that a line names, and lines of what goes on beside main threads


def _beside(answer: dict[str, Any]) -> Iterator[str]:
    """Yield what goes on beside the main threads, ranks that do the same in one line."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in answer["ranks"]:
        words = tuple(re.sub(r"\b(process|such as) \d{1,9},?", r"\1", each) for each in rank.get("beside") or ())
        if words:
            groups.setdefault(words, []).append(rank["rank"])
    for words, numbers in list(groups.items())[:_CUT]:
        told = [each.replace(" processes, such as ", " processes ").replace("process ", "a process ") for each in words]
        yield f"beside the main thread of {_ranks(numbers)}: {', '.join(told)}"
    if len(groups) > _CUT:
        yield f"and {len(groups) - _CUT} more; -v shows all"


def risked(answer: dict[str, Any]) -> str:
    """Return what asking may have done to the program; empty where it can have done nothing."""
    asked = [rank["rank"] for rank in answer["ranks"] if rank.get("by") == "a signal"]
    if not asked:
        return ""
    return (
        f"{_ranks(asked)} told that by a signal, which may have cut a system call short: a sleep of C returns, and "
        "a call may fail with EINTR. py-spy needs no signal."
    )


def _how_known(answer: dict[str, Any]) -> Iterator[str]:
    """Yield what asking may have done to the program, and why more is not known."""
    risk = risked(answer)
    if risk:
        yield risk
    blind = [rank for rank in answer["ranks"] if not rank["frames"] or _is_blind(rank)]
    without = {str(host) for host in answer.get("without_py_spy") or ()} & {str(rank["host"]) for rank in blind}
    if without:
        numbers = [rank["rank"] for rank in blind if rank["host"] in without]
        more = f" and {len(without) - 1} more" if len(without) > 1 else ""
        yield f"py-spy, which may see more of {_ranks(numbers)}, is not on {min(without)}{more}: `pip install py-spy`"


def _is_blind(rank: dict[str, Any]) -> bool:
    """Tell whether the kernel alone tells of a process that a rank has started."""
    return any(not re.search(r":\d{1,9}\)$", each) for each in rank.get("beside") or ())


def _ranks(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    more = f" and {len(numbers) - _CUT} more" if len(numbers) > _CUT else ""
    return f"ranks {', '.join(map(str, numbers[:_CUT]))}{more}"


def _by(rank: dict[str, Any]) -> str:
    return f", by {rank['by']}" if rank.get("by") else ""


def _text(answer: dict[str, Any], why: str, verbose: bool) -> str:
    lines = [str(answer.get("summary", "")), *([why] if why else []), *_beside(answer), *_how_known(answer)]
    for rank in answer["ranks"] if verbose else ():
        lines += ["", f"rank {rank['rank']} on {rank['host']} (pid {rank['pid']}): {rank['where']}{_by(rank)}"]
        lines += [f"  beside it: {each}" for each in rank.get("beside") or ()]
        lines += [f'  File "{file}", line {line}, in {function}' for function, file, line in rank["frames"]]
    return "\n".join(lines)
