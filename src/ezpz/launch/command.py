"""Refuse a command that cannot be what ranks run: another launcher, a job file, a program that is not there.

`launch`, `ezpz submit` and `ezpz simulate` ask here, each with the words that a user has typed in front of a command.
"""

from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise, takewhile

from ezpz.cluster.launchers import MODULES, NAMES_HOSTS, OF_ONE_HOST, PROGRAMS, PROGRAMS_WITH_VERB
from ezpz.errors import EzpzError, UsageError
from ezpz.files import find_program, open_regular, why_not_run

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.launch.options import LaunchOptions

# Words behind which mpiexec and srun begin the options of their next program: ``a : -n 1 b``.
_NEXT_PROGRAM = r"--?(n|np|N|ntasks|host|hosts|H|w|c|wdir|x|env|genv|het-group|bind-to|map-by)(=.*)?|-n[0-9]+"
_QUEUEING = ("sbatch", "salloc", "qsub")
_SHELLS = ("bash", "sh", "zsh")
_HEAD = 16384  # bytes


def refuse_other_launchers(command: Sequence[str], typed: str, options: LaunchOptions | None = None) -> None:
    """Refuse a command that starts ranks or queues jobs itself, as each rank would, or that is several programs.

    One torchrun alone is started, and one per host whose words name the hosts; ``env`` in front starts anything.

    Args:
        command: The program and its words.
        typed: What stands in front of a command, such as ``launch``.
        options: Those of launch in front of it; None where there are none.

    Raises:
        UsageError: It is one.
    """
    program = os.path.basename(command[0]) if command else ""
    named = _words_of_launcher(command)
    if named and not _is_one_per_host(command[:named], command[named:], options):
        shown = shlex.join([program, *command[1:named]])
        raise UsageError(
            f"{shown} as the command (from the command line) starts ranks itself, and every rank would start it; "
            f"expected the program alone. {_instead(command[named:], typed)} `{typed} env {shown} …` runs it "
            "all the same."
        )
    if program in _QUEUEING:
        raise UsageError(
            f"{program} as the command (from the command line) queues jobs, and every rank would queue one; expected "
            f"the program alone. Run `{shlex.join([program, *command[1:]])}` itself, or write `{typed} COMMAND`."
        )
    if _several_programs(command):
        raise UsageError(
            "a `:` with options behind it (from the command line) parts programs for mpiexec and srun, but all ranks "
            f"run one command; expected one. Write `{typed} bash -c 'if [ $RANK = 0 ]; then exec FIRST; else exec "
            f"SECOND; fi'`; `{typed} env COMMAND` runs it as it is."
        )
    words = command[1:] if program in _SHELLS else command[:1]
    file = next((word for word in words if not word.startswith("-")), "")
    if any(re.fullmatch("-[a-zA-Z]*[cs][a-zA-Z]*", word) for word in words[: words.index(file) if file else 0]):
        return  # a text, or what comes through stdin: no file
    if not file.endswith(".py") and ("/" in file or "." in file or program in _SHELLS):
        # A program is looked for on PATH, as in a shell; one that is not there may be meant as a file of this folder.
        _refuse_job_file((find_program(file) if file == command[0] else "") or file, typed, command)


def _several_programs(command: Sequence[str]) -> bool:
    """Tell whether a command holds the ``: -n 1`` of mpiexec; behind ``env`` it is the program's own."""
    if not command or os.path.basename(command[0]) == "env":
        return False
    pairs = pairwise(command[1:])
    return any(word == ":" and re.fullmatch(_NEXT_PROGRAM, behind) for word, behind in pairs)


def _words_of_launcher(command: Sequence[str]) -> int:
    """Return how many words name a launcher, as ``torchrun`` and ``python3 -m ezpz.launch`` do; 0 for none."""
    program = os.path.basename(command[0]) if command else ""
    if re.fullmatch(PROGRAMS, program):
        return 1
    if (program, *command[1:2]) in PROGRAMS_WITH_VERB:
        return 2
    if program.startswith("python"):
        module = next((at for at, word in enumerate(command[1:], 1) if word == "-m" or not word.startswith("-")), 0)
        if module and command[module] == "-m" and MODULES.intersection(command[module + 1 : module + 2]):
            return module + 2
    return 0


def _is_one_per_host(launcher: Sequence[str], words: Sequence[str], options: LaunchOptions | None) -> bool:
    """Tell whether a launcher of one host is started once, or once per host and is told of the others."""
    if options is None or os.path.basename(launcher[-1]) not in OF_ONE_HOST:
        return False
    return options.ranks == 1 or (options.per_host == 1 and any(word.startswith(NAMES_HOSTS) for word in words))


def _instead(words: Sequence[str], typed: str) -> str:
    """Return what to type for the words behind another launcher, which `launch` mostly understands."""
    from ezpz.launch.options import parse

    try:
        command = () if {"-h", "--help"} & set(words) else parse(words, {}).command  # they print a page
        while behind := _words_of_launcher(command):  # `srun launch COMMAND`: the words of the innermost
            words = command[behind:]
            command = parse(words, {}).command
        understood = bool(command) and not _several_programs(command)
    except EzpzError:
        understood = False
    return f"Write `{typed} {shlex.join(words) if understood else '[options] COMMAND'}`."


def with_python(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return a command that begins with a file of Python, as torchrun takes it, with the Python in front that runs it.

    Not so one that a shell would start: it may be executed, is named by a path or found on PATH, and its first line
    says what runs it.

    Args:
        command: The program and its words.
        environ: Tells which Python (`ezpz.interpreter.python_of_ranks`).
    """
    if not command or not command[0].endswith(".py") or not os.path.isfile(command[0]):
        return list(command)
    program = find_program(command[0])
    starts_itself = bool(program) and _head_of(program).startswith("#!")
    if starts_itself:
        return list(command)
    from ezpz.launch.python_of_ranks import python_of_ranks

    script = command[0]
    if script.startswith("-"):  # Python would take it for an option
        script = os.path.join(os.curdir, script)
    return [python_of_ranks(environ), script, *command[1:]]


def _head_of(path: str) -> str:
    """Return the beginning of a regular file; empty where it cannot be read, and of a pipe: ranks would miss it."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            return file.read(_HEAD)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return ""


def _refuse_job_file(path: str, typed: str, given: Sequence[str]) -> None:
    # A scheduler reads no further than the first command, behind which such lines may be text of a script's own.
    head = list(takewhile(lambda line: line.lstrip()[:1] in {"", "#"}, _head_of(path).splitlines()))
    if not head:
        return
    from ezpz.beside import beside

    for one in beside("job_handlers")():
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
    hint, is_file = "", os.path.isfile(program)
    if program.endswith(".py") and not is_file and not os.path.dirname(program):  # not looked for on PATH
        reason, code = why_not_run(os.path.join(os.curdir, program))
    elif is_file and program.endswith(".sh"):
        hint = f" Write `{typed} bash {program}`."
    elif is_file and os.access(program, os.X_OK):
        hint = f" Write `{typed} {os.path.join(os.curdir, program)}`."
    return f"cannot run {program} (from the command line): {reason}; expected a program.{hint}", code
