"""Run ``ezpz watch``: follow a run's metrics until it ends."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError

from ezpz.cli_parser import option, run_verb
from ezpz.errors import UsageError
from ezpz.verbs import make_verb_parser
from ezpz.visible import visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from ezpz.track.launches import Attempt
    from ezpz.track.run_reader import Run
    from ezpz.view.terminal.follow import Live

_TURN = 0.2  # seconds after which a changed size of the terminal is noticed


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.05 <= seconds <= 86400:
        raise ArgumentTypeError(f"{text!r} (from the command line); expected seconds from 0.05 to 86400.")
    return seconds


_OPTIONS = (
    option("words", nargs="*", metavar="RUN|KEY", help="the run, and metrics, as described above"),
    option("--interval", type=_seconds, default="2", metavar="S", help="seconds between two looks"),
    option("--once", action="store_true", help="look once"),
)
_ABOUT = """\
RUN is a run's folder, or one that holds runs, of which the newest is meant, or a name as other verbs take it; without
it that is the newest below outputs/. KEY is a metric: a name, its last part or a pattern, as for `ezpz plot`. On a
terminal the picture is drawn again in its place; elsewhere there is a line whenever something was recorded, and one
when the values of the hardware are new, each half minute."""
_EXAMPLES = (
    ("ezpz watch", "the newest run below outputs/"),
    ("ezpz watch train loss 'grad*'", "some metrics of one"),
    ("ezpz watch --once", "how far it is now"),
)
_EXITS = (("0", "the run has ended, however it ended"), ("2", "no such run or metric"), ("130", "after Ctrl-C"))


def main(argv: Sequence[str]) -> int:
    """Follow a run and return the exit code."""
    usage = "[RUN] [KEY ...] [options]"
    parser = make_verb_parser("watch", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS)
    return run_verb(parser, argv, _watch)


def _watch(options: Namespace) -> int:
    from ezpz.view.terminal.frame import head
    from ezpz.view.terminal.metric_choice import choose, sorted_out
    from ezpz.view.terminal.screen import say

    folders, words = sorted_out(options.words)
    if len(folders) > 1:
        raise UsageError(
            f"{len(folders)} folders (from the command line): {', '.join(folders)}; expected one run to watch."
        )
    folder = _folder(folders[0] if folders else None, options)
    if folder is None:
        return 0
    followed = _Followed(folder)
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    listens = (_redraw if is_terminal else _log)(followed, words, options)
    if followed.over:  # no other metric will come
        choose(words, list(followed.live.latest), str(folder))
    if listens and (not options.once or not (is_terminal or followed.run.state == "running")):
        torn = f", passed over {followed.passed} lines that are no record" if followed.passed else ""
        say(sys.stdout, f"{visible(head(followed.live, followed.run, followed.attempt))}{torn}")
    return 0


class _Followed:
    """A run as it was at the last look; one of `launch --attempts` is not over while another attempt may follow.

    Attributes:
        over: Whether nothing more will come.
        attempt: Which attempt it is, and what was decided after it; empty for a launch without others.
    """

    def __init__(self, folder: Path) -> None:
        from ezpz.view.terminal.follow import Followed

        self._followed = Followed(folder)
        self.over = False
        self.attempt = ""

    @property
    def run(self) -> Run:
        """Its facts and state."""
        return self._followed.run

    @property
    def live(self) -> Live:
        """Its rows so far."""
        return self._followed.live

    @property
    def passed(self) -> int:
        """Lines of its journal that are no record."""
        return self._followed.passed

    def look(self) -> bool:
        """Look again and return whether something was recorded since the last look."""
        from ezpz.track.launches import attempt_of

        changed = self._followed.look()
        launch_id = self.run.record.launch_id
        attempt = attempt_of(launch_id, time.time()) if launch_id else None
        self.over = self._followed.over and not (attempt and _continues(attempt))
        self.attempt = f"attempt {attempt.number} of {attempt.most}" if attempt else ""
        if attempt and attempt.decided:
            self.attempt += f", {attempt.decided}"
        return changed


def _continues(attempt: Attempt) -> bool:
    """Tell whether something may still come: a launch of this host that was killed runs no more, whatever its record
    says.
    """
    import os

    from ezpz.register import running

    if attempt.may_follow or not attempt.runs or attempt.host != os.uname().nodename:
        return attempt.may_follow or attempt.runs
    here, _ = running()
    return attempt.newest in {launch.launch_id for launch in here}


def _folder(word: str | None, options: Namespace) -> Path | None:
    """Return the run folder, waiting for one where there is none yet; None if the reader has left."""
    from ezpz.track.named import folder_of, is_folder, no_run_in, run_named
    from ezpz.view.terminal.screen import say

    is_announced = False
    if word is None and is_folder("outputs"):
        word = "outputs"
    if word is None or not is_folder(word):
        return run_named(word)
    while (folder := folder_of(word)) is None:
        if options.once:
            raise no_run_in(word, " Without --once this waits for one.")
        if not is_announced and not say(sys.stdout, f"waiting for a run in {word}"):
            return None
        is_announced = True
        time.sleep(options.interval)
    return folder


def _redraw(followed: _Followed, words: Sequence[str], options: Namespace) -> bool:
    """Draw the run on a terminal until it is over; return False if the reader has left."""
    from ezpz.view.terminal.frame import frame
    from ezpz.view.terminal.screen import Picture, say

    picture = Picture(sys.stdout)
    while True:
        followed.look()
        screen = picture.screen()
        lines = frame(followed.live, followed.run, screen, words, followed.attempt)
        if options.once:
            return say(sys.stdout, "\n".join(lines))
        if not picture.draw(lines, screen):
            return False
        if followed.over:
            return True
        end = time.monotonic() + options.interval
        while time.monotonic() < end and picture.screen() == screen:  # a new size is drawn at once
            time.sleep(max(0.0, min(_TURN, end - time.monotonic())))


def _log(followed: _Followed, words: Sequence[str], options: Namespace) -> bool:
    """Print a line whenever something was recorded, and one when the hardware's values are new, until the run is over.

    Returns:
        False if the reader has left.
    """
    from ezpz.view.hardware_rows import newest_values
    from ezpz.view.terminal.frame import log_line
    from ezpz.view.terminal.screen import look, say

    screen = look(sys.stdout)
    is_announced, sampled, attempt = False, 0.0, ""
    while True:
        changed = followed.look()
        if followed.attempt != attempt and not followed.over:
            attempt = followed.attempt
            if not say(sys.stdout, visible(f"{followed.run.name}: {attempt}")):
                return False
        if changed and followed.live.rows:
            if not say(sys.stdout, log_line(followed.live, words, ascii_only=screen.ascii_only, width=screen.width)):
                return False
        elif not is_announced and not followed.live.rows and not followed.over:
            is_announced = True
            if not say(sys.stdout, visible(f"waiting for the first row of {followed.run.name}")):
                return False
        if followed.run.state == "running":
            sampled, hardware = newest_values(followed.run, sampled)
            if hardware and not say(sys.stdout, visible(hardware)):
                return False
        if followed.over or options.once:
            return True
        time.sleep(options.interval)
