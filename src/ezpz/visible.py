"""Show text that others have written so that it cannot steer a terminal.

Values of a configuration, names of hosts and files, and messages of other programs may hold escape sequences that move
the cursor, set the title or colour all that follows, and marks that turn the direction of text. What a rank writes
itself is not touched.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TextIO

LINES = "\n\t"  # what a text of several lines may hold
# Marks of direction, separators of lines and paragraphs, and letters of tags, which are invisible (UAX #9, Unicode 16).
_MARKS = {0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_COLOR = r"(\x1b\[(?:0|[12](?:;3[1-6])?|3[1-6]|38;5;\d{1,3})m)"  # those that ezpz itself writes


def visible(text: str, keep: str = "", *, colors: bool = False) -> str:
    r"""Return a text with everything that steers a terminal as an escape that can be read: ``\x1b[31m``, ``\u202e``.

    Args:
        text: The text. Bytes that were no UTF-8, which Python keeps as lone surrogates, are shown as ``\xff``.
        keep: Characters that pass, such as `LINES`.
        colors: Let the colours pass that ezpz writes; for lines whose foreign parts were made visible before.
    """
    if text.isprintable():
        return text
    if colors and "\x1b" in text:
        import re

        parts = re.split(_COLOR, text)
        return "".join(part if place % 2 else visible(part, keep) for place, part in enumerate(parts))
    return "".join(
        letter if letter.isprintable() or letter in keep or not _steers(ord(letter)) else _escape(letter)
        for letter in text
    )


def _steers(code: int) -> bool:
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    return is_control or code in _MARKS or 0xD800 <= code < 0xE000 or 0xE0000 <= code < 0xE0080


def _escape(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00
    elif code > 0xFF:
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _SHORT.get(letter) or f"\\x{code:02x}"


def use_color(stream: object) -> bool:
    """Tell whether ``stream`` may receive colour: a terminal that is not ``TERM=dumb``, without ``NO_COLOR``; or
    anything with ``FORCE_COLOR``.
    """
    if os.environ.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    # Open MPI gives every rank a terminal of its own, wherever mpiexec writes to.
    if os.environ.get("NO_COLOR") or "OMPI_COMM_WORLD_RANK" in os.environ or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


# A program may put any object with a `write` in the place of stdout: what else it has is asked for with care.


def is_terminal(stream: object) -> bool:
    """Tell whether a stream is a terminal; one that cannot say is none."""
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]  # as the next line says
    except Exception:  # noqa: BLE001  # it has none, it is closed, or it is an object of the user's own
        return False


def is_closed(stream: object) -> bool:
    """Tell whether nothing can be written to a stream: it is None, or says that it is closed."""
    return stream is None or bool(_asked(stream, "closed"))


def encoding_of(stream: object, otherwise: str = "utf-8") -> str:
    """Return how a stream encodes text, as far as it says so."""
    encoding = _asked(stream, "encoding")
    return encoding if isinstance(encoding, str) and encoding else otherwise


def flush(stream: object) -> None:
    """Flush a stream, if it can be."""
    flush_it = _asked(stream, "flush")
    if flush_it is not None:
        flush_it()


def _asked(stream: object, name: str) -> Any:
    try:
        return getattr(stream, name, None)
    except Exception:  # noqa: BLE001  # an object that passes questions on to another one
        return None


# Colours by what they mean; `visible` lets these pass and no others.
_MEANINGS = {
    "good": "32",  # it ended well; the runs agree
    "bad": "31",  # it failed; the runs differ
    "doubtful": "33",  # it was stopped; no verdict
    "busy": "36",  # it runs
    "name": "36",  # what can be typed
    "title": "1",
    "minor": "2",
    "very good": "1;32",
    "very bad": "1;31",
    "very doubtful": "1;33",
}


def shorten(text: str, width: int) -> str:
    """Return ``text`` with its middle left out where it is longer than ``width``."""
    if len(text) <= width:
        return text
    head = (width - 2) // 2
    return f"{text[:head]}..{text[len(text) - (width - 2 - head) :]}"


def painter(color: bool) -> Callable[[str, str], str]:
    """Return a function that gives a text the colour of a meaning; without colour, one that returns the text.

    The meanings: ``good``, ``bad`` and ``doubtful``, each also ``very …``, ``busy``, ``name``, ``title``, ``minor``.
    """
    if not color:
        return lambda text, meaning: text  # noqa: ARG005  # called as the other
    return lambda text, meaning: f"\x1b[{_MEANINGS[meaning]}m{text}\x1b[0m" if text else text


def show(text: str, stream: TextIO | None = None, *, colors: bool = False) -> None:
    """Print a text of one line or several, visible.

    Args:
        text: The text.
        stream: Where to; otherwise stdout.
        colors: Let the colours pass that ezpz writes; foreign parts were made visible before.

    Raises:
        OSError: The reader has left, or the disk is full.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # a process without a standard output
        return
    line = visible(text, LINES, colors=colors) + "\n"
    encoding = encoding_of(stream)
    stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
    flush(stream)


def show_path(path: str) -> None:
    """Print a path on stdout: visible on a terminal, and byte for byte for a program that reads it.

    Raises:
        OSError: The reader has left, or the disk is full.
    """
    out = getattr(sys.stdout, "buffer", None)
    if out is None or is_terminal(sys.stdout):
        show(path)
        return
    sys.stdout.flush()
    out.write(path.encode("utf-8", "surrogateescape") + b"\n")
    out.flush()


def shell_line(words: Iterable[str]) -> str:
    r"""Return a command as a shell reads it, visible: what steers a terminal is written as in ``$'\x1b'``."""
    import shlex

    return " ".join(shlex.quote(word) if visible(word, LINES) == word else _quoted(word) for word in words)


def _quoted(word: str) -> str:
    parts = []
    for letter in word:
        if visible(letter, LINES) != letter:
            how = "surrogateescape" if 0xDC80 <= ord(letter) <= 0xDCFF else "surrogatepass"
            parts += [f"\\x{byte:02x}" for byte in letter.encode("utf-8", how)]
        else:
            parts.append(f"\\{letter}" if letter in "'\\" else letter)
    return f"$'{''.join(parts)}'"
