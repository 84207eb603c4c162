"""Refuse a command that cannot be what ranks run: another launcher, a job file, a program that is not there.

`launch`, `ezpz submit` and `ezpz simulate` ask here, each with the words that a user has typed in front of a command.
"""

from __future__ import annotations

import os
import re
import shlex
from itertools import takewhile

from ezpz.errors import EzpzError, UsageError
from ezpz.files import open_regular, why_not_run

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

_LAUNCHERS = r"mpiexec(\.hydra)?|mpirun|orterun|prterun|srun|aprun"
_QUEUEING = ("sbatch", "salloc", "qsub")
_SHELLS = ("bash", "sh", "zsh")
_HEAD = 16384  # bytes


def refuse_other_launchers(command: Sequence[str], typed: str) -> None:
    """Refuse a command that starts ranks or queues jobs itself: each rank would do so.

    Args:
        command: The program and its words.
        typed: What stands in front of a command, such as ``launch``.

    Raises:
        UsageError: It is one.
    """
    program = os.path.basename(command[0]) if command else ""
    if re.fullmatch(_LAUNCHERS, program):
        raise UsageError(
            f"{program} as the command (from the command line) starts ranks itself, and every rank would start it; "
            f"expected the program alone. {_instead(command[1:], typed)}"
        )
    if program in _QUEUEING:
        raise UsageError(
            f"{program} as the command (from the command line) queues jobs, and every rank would queue one; expected "
            f"the program alone. Run `{shlex.join([program, *command[1:]])}` itself, or write `{typed} COMMAND`."
        )
    words = command[1:] if program in _SHELLS else command[:1]
    file = next((word for word in words if not word.startswith("-")), "")
    if any(re.fullmatch("-[a-zA-Z]*[cs][a-zA-Z]*", word) for word in words[: words.index(file) if file else 0]):
        return  # a text, or what comes through stdin: no file
    if not file.endswith(".py") and ("/" in file or "." in file or program in _SHELLS):
        _refuse_job_file(file, typed, command)


def _instead(words: Sequence[str], typed: str) -> str:
    """Return what to type for the words behind another launcher, which `launch` mostly understands."""
    from ezpz.launch.options import parse

    try:
        understood = not {"-h", "--help"} & set(words) and bool(parse(words, {}).command)  # they print a page
    except EzpzError:
        understood = False
    return f"Write `{typed} {shlex.join(words) if understood else '[options] COMMAND'}`."


def _refuse_job_file(path: str, typed: str, given: Sequence[str]) -> None:
    from ezpz.cluster.job_handler import handlers

    if not os.path.isfile(path):  # of a pipe, ranks would miss what is read here
        return
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            lines = file.read(_HEAD).splitlines()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return
    # A scheduler reads no further than the first command, behind which such lines may be text of a script's own.
    head = list(takewhile(lambda line: line.lstrip()[:1] in {"", "#"}, lines))
    for one in handlers():
        script = one.script
        number = next((number for number, line in enumerate(head, 1) if line.startswith(f"{script.mark} ")), 0)
        if number:
            raise UsageError(
                f"{path} as the command (from the command line) is a job file ({script.mark} in line {number}), which "
                f"every rank would run; expected the program that it starts. Run `{script.program} {path}` to queue "
                f"it, or write `{typed} COMMAND`; `{typed} env {shlex.join(given)}` runs it all the same."
            )


def why_missing(program: str, typed: str) -> tuple[str, int]:
    """Return in a sentence why a program cannot run here, and a shell's exit code for that; empty and 0 where it can.

    Args:
        program: The first word of a command.
        typed: What stands in front of a command, such as ``launch``.
    """
    reason, code = why_not_run(program)
    if not code:
        return "", 0
    hint = f" Try `{typed} python3 {program}`." if program.endswith(".py") else ""
    return f"cannot run {program} (from the command line): {reason}; expected a program.{hint}", code
