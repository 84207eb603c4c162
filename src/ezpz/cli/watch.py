"""``ezpz watch``: a run's metrics while it goes on."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

from ezpz.cli_parser import VerbParser
from ezpz.errors import EzpzError, TrackError, UsageError, end_with

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from ezpz.track.terminal.follow import Followed

__all__ = ["main"]

_HELP = """\
usage: ezpz watch [DIR] [KEY ...] [--interval S] [--once]

Follow a run until it ends. DIR is its folder, or one that holds runs, of which the newest is meant; without it that is the
newest below outputs/. KEY is a metric: a name, its last part or a pattern, as for `ezpz plot`. On a terminal the picture is
drawn again in its place; elsewhere there is a line whenever something was recorded. Exit code 0 when the run has ended,
however it ended; 130 after Ctrl-C.

  --interval S  seconds between two looks, by default 2
  --once        look once
"""
_TURN = 0.2  # seconds after which a changed size of the terminal is noticed


def main(argv: Sequence[str]) -> int:
    """Follow a run and return the exit code."""
    try:
        wishes = _parse(argv)
        if wishes.help:
            print(_HELP, end="")
            return 0
        return _watch(wishes)
    except EzpzError as error:
        return end_with(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = VerbParser("ezpz watch")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--interval", type=_seconds, default=2.0)
    parser.add_argument("--once", action="store_true")
    return parser.parse_intermixed_args(list(argv))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.05 <= seconds <= 86400:
        raise UsageError(f"--interval {text!r} (from the command line); expected seconds from 0.05 to 86400.")
    return seconds


def _watch(wishes: argparse.Namespace) -> int:
    from ezpz.track.terminal.choice import choose, sorted_out
    from ezpz.track.terminal.follow import Followed
    from ezpz.track.terminal.frame import head
    from ezpz.track.terminal.screen import say

    folders, words = sorted_out(wishes.words)
    if len(folders) > 1:
        raise UsageError(
            f"{len(folders)} folders (from the command line): {', '.join(folders)}; expected one run to watch."
        )
    folder = _folder(folders[0] if folders else "outputs", wishes)
    if folder is None:
        return 0
    followed = Followed(folder)
    if sys.stdout is not None and sys.stdout.isatty():
        listens = _redraw(followed, words, wishes)
    else:
        listens = _log(followed, words, wishes)
    if followed.over:  # no other metric will come
        choose(words, list(followed.live.latest), str(folder))
    if listens and not wishes.once:
        torn = f", passed over {followed.passed} lines that are no record" if followed.passed else ""
        say(sys.stdout, f"{head(followed.live, followed.run)}{torn}")
    return 0


def _folder(word: str, wishes: argparse.Namespace) -> Path | None:
    """Return the run folder, waiting for one where there is none yet; None if nobody reads any more."""
    from ezpz.track.terminal.choice import folder_of
    from ezpz.track.terminal.screen import say

    told = False
    while (folder := folder_of(word)) is None:
        if wishes.once:
            raise TrackError(f"no run yet in {word}; expected a journal. Without --once this waits for one.")
        if not told and not say(sys.stdout, f"waiting for a run in {word}"):
            return None
        told = True
        time.sleep(wishes.interval)
    return folder


def _redraw(followed: Followed, words: Sequence[str], wishes: argparse.Namespace) -> bool:
    """Draw the run on a terminal until it is over; return whether anybody saw the end."""
    from ezpz.track.terminal.frame import frame
    from ezpz.track.terminal.screen import Picture, say

    picture = Picture(sys.stdout)
    while True:
        followed.look()
        screen = picture.screen()
        lines = frame(followed.live, followed.run, screen, words)
        if wishes.once:
            return say(sys.stdout, "\n".join(lines))
        if not picture.draw(lines, screen):
            return False
        if followed.over:
            return True
        end = time.monotonic() + wishes.interval
        while time.monotonic() < end and picture.screen() == screen:  # a new size is drawn at once
            time.sleep(max(0.0, min(_TURN, end - time.monotonic())))


def _log(followed: Followed, words: Sequence[str], wishes: argparse.Namespace) -> bool:
    """Print a line whenever something was recorded, until the run is over; return whether anybody read the last."""
    from ezpz.track.terminal.frame import log_line
    from ezpz.track.terminal.screen import look, say

    ascii_only = look(sys.stdout).ascii_only
    told = False
    while True:
        changed = followed.look()
        if changed and followed.live.rows:
            if not say(sys.stdout, log_line(followed.live, words, ascii_only=ascii_only)):
                return False
        elif not told and not followed.live.rows and not followed.over:
            told = True
            if not say(sys.stdout, f"waiting for the first row of {followed.run.name}"):
                return False
        if followed.over or wishes.once:
            return True
        time.sleep(wishes.interval)
