r"""Pack what the launcher sends to a host's agent: the command, its folder, and the ranks' environment.

Command lines are limited, shells differ, and everybody can read them, so it comes through stdin, which ssh passes on,
or in a file where nothing does so:

    118 {"command": ["python3", "train.py"], "folder": "/home/user/run", "environ": {"EZPZ_PLACEMENT": "2(x2)", …}}
    length, a space, JSON in ASCII; bytes that are no UTF-8 are lone surrogates, as Python's surrogateescape writes them

``python3 -I -S payload.py COMMAND…`` writes one from its own environment and working folder, for lines pasted by hand.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(__file__ + "/../../../.."))  # pathlib costs 10 ms

from ezpz.errors import LaunchError
from ezpz.fields import Record, as_dict

UNSEEN = 66  # exit code of an agent that cannot read the file of its payload: EX_NOINPUT of sysexits.h
_APPEARS_WITHIN = 5.0  # seconds for a file to be seen on another host: network file systems cache names

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Payload(Record):
    """What an agent is to run, where, and with which variables."""

    command: list[str]
    folder: str
    environ: dict[str, str]


def contents(command: Sequence[str], environ: Mapping[str, str]) -> Payload:
    """Return what every agent gets to know: what to run, where, and the whole environment of the ranks."""
    words = [_text(word) for word in command]
    return Payload(words, _text(_folder(environ)), {_text(name): _text(value) for name, value in environ.items()})


def pack(command: Sequence[str], environ: Mapping[str, str]) -> bytes:
    """Return the payload for every agent, as bytes."""
    text = json.dumps(as_dict(contents(command, environ)))  # ASCII, so that characters are bytes
    return f"{len(text)} {text}".encode("ascii")


def _text(word: str) -> str:
    """Return UTF-8 text whatever the locale here is: the one over there may differ."""
    return os.fsencode(word).decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """Return the bytes that a text of a payload encodes."""
    return text.encode("utf-8", "surrogateescape")


def _folder(environ: Mapping[str, str]) -> str:
    """Return the working folder by the name that the user knows: an automounter may not know the real one elsewhere."""
    folder = environ.get("PWD", "")
    try:
        if os.path.isabs(folder) and os.path.samefile(folder, "."):
            return folder
    except OSError:
        pass  # PWD names nothing any more
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"cannot tell the working folder ({folder or 'no PWD'}): {error.strerror}; expected one that other hosts "
            "know. It was removed: `cd` to another."
        ) from None


def open_file(path: str) -> int:
    """Open the file of a payload, as soon as this host sees it, and return its descriptor.

    Raises:
        OSError: It cannot be read.
    """
    end = time.monotonic() + _APPEARS_WITHIN
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ESTALE} or time.monotonic() > end:
                raise
        time.sleep(0.1)


def unpack(source: int) -> Payload:
    """Read a payload from a descriptor and not one byte more.

    Raises:
        LaunchError: Something else came, or not all of it.
    """
    length = b""
    while not length.endswith(b" "):
        byte = os.read(source, 1)
        if not (byte.isdigit() or (byte == b" " and length)):
            raise LaunchError(
                f"no payload for {os.uname().nodename} came through ssh: found {length + byte!r} (from stdin); "
                "expected its length. "
                f"Does a start-up file of the shell there read stdin? Try `echo x | ssh {os.uname().nodename} cat`."
            )
        length += byte
    parts, left = [], int(length)
    while left:
        parts.append(os.read(source, left))
        left -= len(parts[-1])
        if not parts[-1]:
            raise LaunchError(
                f"the payload for {os.uname().nodename} is cut: {left} of {int(length)} bytes are missing (from "
                "stdin); expected all. The connection broke: start again."
            )
    return Payload(**json.loads(b"".join(parts)))


if __name__ == "__main__":
    with open(1, "wb", closefd=False) as out:
        out.write(pack(sys.argv[1:], os.environ))
