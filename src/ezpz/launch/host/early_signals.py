"""Hold SIGUSR1 and SIGUSR2 back from a rank that has no handler for them yet, and give them to it when it has one.

A scheduler's warning (``--signal=USR2@60``) may come while a training still imports or compiles, and without a handler
these signals end a process. They come by two ways:

    launch, agent, shim    whoever is the rank's parent looks what the rank does with the signal, and waits with it
    the scheduler itself   Slurm with proctrack/linuxproc signals every process of a step. Only a rank that ignores the
                           signal outlives that, so it starts so; its parent gets the signal too, sees that the rank
                           ignores it, and sends it again when the rank no longer does.

EZPZ_IGNORED_AT_START names the signals that a rank starts with ignored: who leaves ignored signals alone
(`ezpz.train.stopping`) shall know that it was not the user who wished for it. A shell starts with none of them ignored,
because it could never trap them.

This file is imported when a signal comes, and in jobs whose scheduler signals ranks: no other rank waits for it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which cost 5 ms and 1 MB
import os

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AGAIN = 0.5  # seconds between two looks at a rank for which a signal is held

# Who blocks all signals in so many looks in turn waits for them in some thread. A fork of a large process, or the start
# of a program that a slow file system holds, takes shorter.
_LOOKS = 6

_NAMES = {_signal.SIGUSR1: "SIGUSR1", _signal.SIGUSR2: "SIGUSR2"}
_VARIABLE = "EZPZ_IGNORED_AT_START"
_SHELLS = {"sh", "bash", "rbash", "dash", "ash", "zsh", "ksh", "ksh93", "mksh", "fish", "csh", "tcsh"}


def give(pid: int, number: int, held: dict[int, int], *, reached: bool) -> bool:
    """Send a rank a signal, unless it is to be held; tell whether it is held.

    Args:
        pid: The rank.
        number: SIGUSR1 or SIGUSR2.
        held: Signals that are held for it, and in how many looks it has blocked all by now; changed here.
        reached: Whether the scheduler has sent it to the rank too: then what counts is whether that had any effect.
    """
    does = proc.disposition(pid, number)
    looks = held.get(number, 0) + 1 if does == "blocks all" else 0
    if does in {"takes", ""} or looks == _LOOKS:
        held.pop(number, None)
        if not reached:
            _send(pid, number)
        return False
    if reached and does == "default":
        return False  # it has ended the rank
    held[number] = looks
    return True


def give_again(pid: int, held: dict[int, int]) -> None:
    """Send a rank what is held for it and what it has a handler for by now."""
    for number in tuple(held):
        give(pid, number, held, reached=False)


def note(number: int) -> str:
    """Return the line about a signal that is held; the same one for every rank, which is shown once."""
    return f"{_NAMES[number]} came before all ranks had a handler for it; each gets it as soon as it has one"


def starts_ignoring(
    command: Sequence[str | bytes], environ: dict[str, str] | dict[bytes, bytes], folder: str | bytes = ""
) -> tuple[int, ...]:
    """Return the signals that a rank is to ignore at its start in a folder, as its environment names them.

    A shell is to ignore none, and its environment is changed to say so: what it starts ignores none either.
    """
    for name in (_VARIABLE, os.fsencode(_VARIABLE)):
        if name in environ:
            if is_shell(command, environ, folder):
                del environ[name]  # type: ignore[arg-type]  # names are of one kind in one environment
                return ()
            names = os.fsdecode(environ[name]).split()  # type: ignore[index]  # as above
            return tuple(number for number, name in _NAMES.items() if name in names)
    return ()


def is_shell(
    command: Sequence[str | bytes],
    environ: Mapping[str, str] | Mapping[bytes, bytes],
    folder: str | bytes = "",
) -> bool:
    """Tell whether a command runs a shell, when it is started in a folder: by the name of its program, or by the first
    line of its script.
    """
    words = _behind_env([os.fsdecode(word) for word in command])
    if not words:
        return False
    folders = [""] if "/" in words[0] else os.get_exec_path(environ)  # type: ignore[arg-type]  # names of one kind
    paths = [os.path.join(os.fsdecode(folder), os.fsdecode(each), words[0]) for each in folders]
    path = next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")
    if not path:
        return False
    if _is_named_so(path) or _is_named_so(os.path.realpath(path)):
        return True
    try:
        with open(path, "rb") as file:
            first, second = file.readline(512), file.readline(512)
    except OSError:
        return False  # a program that may be run and not read is no script
    if not first.startswith(b"#!") or second.startswith(b"'''exec'"):  # pip's way to a Python with a long path
        return False
    interpreter = _behind_env(os.fsdecode(first[2:]).split())
    return bool(interpreter) and _is_named_so(interpreter[0])


def _behind_env(words: list[str]) -> list[str]:
    """Return a command without an ``env`` in front of it, with its options and variables."""
    if words and os.path.basename(words[0]) == "env":
        first = next(
            (place for place, word in enumerate(words[1:], 1) if not word.startswith("-") and "=" not in word), 0
        )
        return words[first:] if first else []
    return words


def _is_named_so(path: str) -> bool:
    return os.path.basename(path) in _SHELLS


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone already
