"""``ezpz stacks``: where every rank of a running launch is now."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from ezpz.cli.running import choose, table
from ezpz.errors import EzpzError, MachineError, UsageError, end_with
from ezpz.launch.record import Index

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_HELP = """\
usage: ezpz stacks [ID] [-v] [--json]

Ask a running launch of yours on this host where its ranks are; ID is an id of `ezpz kill`'s list, or its first characters, at
least 4. It may be left out where only one runs.

  -v, --verbose  the Python stack of every rank
  --json         one JSON object: summary, and per rank rank, host, pid, where, frames
"""
_PATIENCE = 30.0  # seconds: ranks on all hosts are asked, and a busy one answers late


def main(argv: Sequence[str]) -> int:
    """Print where the ranks are and return the exit code."""
    try:
        words = [word for word in argv if not word.startswith("-")]
        known = {"-v", "--verbose", "--json", "-h", "--help"}
        odd = next((word for word in argv if word.startswith("-") and word not in known), "")
        if {"-h", "--help"} & {*argv}:
            print(_HELP, end="")
            return 0
        if odd or len(words) > 1:
            raise UsageError(
                f"unknown argument {odd or words[1]!r} (from the command line); expected [ID] [-v] [--json]. "
                "Run `ezpz stacks --help`."
            )
        answer = ask(_launch(words), _PATIENCE)
        print(json.dumps(answer, indent=2) if "--json" in argv else _text(answer, {"-v", "--verbose"} & {*argv}))
    except EzpzError as error:
        return end_with(error)
    return 0


def _launch(words: Sequence[str]) -> dict[str, Any]:
    running = Index().running()
    host = os.uname().nodename
    if not running:
        raise UsageError(
            f"no launch of yours runs on {host}; expected one. Run this on the host where `launch` was typed."
        )
    if not words and len(running) > 1:
        print(table(running), file=sys.stderr)
        raise UsageError(f"{len(running)} launches of yours run on {host}; expected an ID of the list above.")
    found = choose(running, words[0]) if words else running[0]
    if found is None:
        print(table(running), file=sys.stderr)
        raise UsageError(f"no launch {words[0]!r} (from the command line) on {host}; expected an ID of the list above.")
    return found


def ask(launch: dict[str, Any], patience: float) -> dict[str, Any]:
    """Return what a launcher says of its ranks.

    Args:
        launch: The launch, as the index tells of it.
        patience: Seconds until it must have answered.

    Raises:
        MachineError: It does not answer, or with something else.
    """
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
            f"{who} has not answered within {patience:.0f} s; expected where its ranks are. Its process may be stopped: "
            f"look at `ps -o stat= -p {launch['pid']}`."
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


def _text(answer: dict[str, Any], verbose: object) -> str:
    lines = [str(answer.get("summary", ""))]
    for rank in answer["ranks"] if verbose else ():
        lines += ["", f"rank {rank['rank']} on {rank['host']} (pid {rank['pid']}): {rank['where']}"]
        lines += [f'  File "{file}", line {line}, in {function}' for function, file, line in rank["frames"]]
    return "\n".join(lines)
