"""Run ``ezpz stacks``: show where every rank of a running launch is now."""

from __future__ import annotations

import json
import os
import sys
import time

from ezpz.cli import make_verb_parser
from ezpz.cli.elsewhere import ask_elsewhere, host_of, launch_named, recorded, table_elsewhere
from ezpz.cli.running import choose, table
from ezpz.cli_parser import option, run_verb
from ezpz.errors import MachineError, UsageError
from ezpz.launch.record import Index
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

_OPTIONS = (
    option("id", nargs="?", metavar="ID", help="a launch, or its job; may be left out where only one runs"),
    option("-v", "--verbose", action="store_true", help="the Python stack of every rank"),
    option(
        "--json", action="store_true", help="one JSON object: summary, why, and per rank rank, host, pid, where, frames"
    ),
)
_ABOUT = """\
A running launch of yours is asked; ID is an id of `ezpz kill`'s list, or its first characters, at least 4. One on
another host is asked by a file beside its record, which both hosts must see, and answers within some seconds."""
_EXAMPLES = (
    ("ezpz stacks", "the only launch: how many ranks are where"),
    ("ezpz stacks 4f1c -v", "every rank's stack"),
)
_EXITS = (("0", "its ranks have answered"), ("2", "no such launch"), ("125", "it has not answered"))
_PATIENCE = 30.0  # seconds: ranks on all hosts are asked, and a busy one answers late


def main(argv: Sequence[str]) -> int:
    """Print where the ranks are and return the exit code."""
    usage = "[ID] [options]"
    parser = make_verb_parser("stacks", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _stacks)


def _stacks(options: Namespace) -> int:
    launch = _launch(options.id)
    answer = ask(launch, _PATIENCE) if "socket" in launch else _ask_elsewhere(launch)
    why = _why(launch, answer)
    answer.pop("collectives", None)
    show(
        json.dumps({**answer, **({"why": why} if why else {})}, indent=2)
        if options.json
        else _text(answer, why, options.verbose)
    )
    return 0


def _launch(word: str | None) -> dict[str, Any]:
    """Return the launch that is meant, by its id, its job, or as the only one.

    Returns:
        One that runs here as the index holds it, with its ``socket``; one elsewhere as its record does.
    """
    running = Index().running()
    host = os.uname().nodename
    ids = {str(entry["launch_id"]) for entry in running}
    others = [each for each in recorded(running=True) if each["launch_id"] not in ids and host_of(each) != host]
    if word is None and not running and len(others) == 1:
        return others[0]
    if not running and not others:
        raise UsageError(
            f"no launch of yours runs on {host}, and no record tells of one elsewhere; expected one. Run this on the "
            "host where `launch` was typed, or on one that sees your home."
        )
    if word is None and len(running) != 1:
        _show_all(running, others)
        raise UsageError(f"{len(running) + len(others)} launches of yours run; expected an ID of the list above.")
    if word is None:
        return running[0]
    known = launch_named(recorded(running=True), word)
    launch = choose(running, str(known["launch_id"]) if known else word) or known
    if launch is None:
        _show_all(running, others)
        raise UsageError(f"no launch {word!r} (from the command line) on {host}; expected an ID of the list above.")
    return launch


def _show_all(running: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for text in ([table(running)] if running else []) + ([table_elsewhere(others)] if others else []):
        show(text, sys.stderr)


def _ask_elsewhere(launch: dict[str, Any]) -> dict[str, Any]:
    answer = ask_elsewhere(launch, "stacks", _PATIENCE)
    if not isinstance(answer.get("ranks"), list):
        raise MachineError(
            f"launch {launch['launch_id']} on {host_of(launch)} has ended meanwhile; expected where its ranks are."
        )
    return answer


def ask(launch: dict[str, Any], patience: float) -> dict[str, Any]:
    """Return what a launcher answers about its ranks.

    Args:
        launch: The launch, as the index holds it.
        patience: Seconds until it must have answered.

    Raises:
        MachineError: It does not answer, or with something else.
    """
    import socket  # 2 ms that the help need not pay for

    address = str(launch.get("socket") or "")
    who = f"launch {launch['launch_id']} (pid {launch['pid']}, socket {address or 'none'})"
    end = time.monotonic() + patience
    parts = []
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(patience)
            connection.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            connection.sendall(b"stacks\n")
            while part := connection.recv(65536):
                parts.append(part)
                connection.settimeout(max(0.001, end - time.monotonic()))
        answer = json.loads(b"".join(parts))
    except TimeoutError:
        raise MachineError(
            f"{who} has not answered within {patience:.0f} s; expected where its ranks are. Its process may be "
            f"stopped: look at `ps -o stat= -p {launch['pid']}`."
        ) from None
    except OSError as error:
        raise MachineError(
            f"cannot ask {who}: {error.strerror or error}; it may have ended. Run `ezpz kill` for the list."
        ) from None
    except ValueError:
        raise MachineError(
            f"{who} answered with what is no JSON; expected where its ranks are. Its version may differ."
        ) from None
    if not isinstance(answer, dict) or not isinstance(answer.get("ranks"), list):
        raise MachineError(f"{who} answered without ranks; expected where they are. Its version may differ.")
    return answer


def _why(launch: dict[str, Any], answer: dict[str, Any]) -> str:
    """Return which rank the others wait for, where they have waited for long; empty elsewhere."""
    from ezpz.why import Certainty, Facts, diagnose

    facts = Facts.read(str(launch.get("folder") or ""))
    facts.use_answer(answer)
    return next((cause.text for cause in diagnose(facts) if cause.certainty > Certainty.FINDING), "")


def _text(answer: dict[str, Any], why: str, verbose: bool) -> str:
    lines = [str(answer.get("summary", "")), *([why] if why else [])]
    for rank in answer["ranks"] if verbose else ():
        lines += ["", f"rank {rank['rank']} on {rank['host']} (pid {rank['pid']}): {rank['where']}"]
        lines += [f'  File "{file}", line {line}, in {function}' for function, file, line in rank["frames"]]
    return "\n".join(lines)
