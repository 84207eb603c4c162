"""Ask the commands of schedulers and drivers: side by side, each within a limit, and never in silence.

A scheduler's command hangs when its server is busy or out of reach. Whoever waits for more than a second reads on
stderr for what; what gave no answer in time is known afterwards, so that a note can say what is missing.
"""

from __future__ import annotations

import os
import sys

from ezpz.cluster.programs import find

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable
    from selectors import BaseSelector

    from ezpz.cluster.allocation import Run

SCHEDULER_LIMIT = 2.0  # seconds: a launch does not wait longer for what it can do without
_SILENCE = 1.0  # seconds; after these a line tells what is waited for
_ERROR = 1000  # bytes of what a command that fails prints on stderr
_DYING = 0.5  # seconds for SIGKILL to be obeyed: a process that waits for its file system does not


class Questions:
    """The answers of commands; those that are begun together are asked side by side, and each of them once.

    Its call is what `detect` wants of ``run``: the words of a command in, what it printed out, or None when it is
    absent, fails or exceeds the limit. A program that has exceeded it is not asked anything again.

    Attributes:
        limit: How long each command may take, in seconds.
        unanswered: Names of the programs that exceeded it.
        failed: Names of the programs that ended with an error.
        said: The last line of what each of these printed on stderr, else the first on stdout; empty where it cannot be
            kept.
    """

    def __init__(self, limit: float = SCHEDULER_LIMIT) -> None:
        self.limit = limit
        self.unanswered: list[str] = []
        self.failed: list[str] = []
        self.said: dict[str, str] = {}
        self._open: dict[tuple[str, ...], _Question] = {}
        self._answers: dict[tuple[str, ...], str | None] = {}
        self._told: set[str] = set()  # programs of which the user knows that they are waited for

    def __call__(self, argv: list[str]) -> str | None:
        """Return what a command printed, or None when it is absent, fails or exceeds the limit."""
        self.begin([argv], tries=1)
        key = tuple(argv)
        if key in self._open:
            try:
                self._wait(key)
            except BaseException:  # Ctrl-C: no command of ours stays behind
                self.close()
                raise
        return self._answers.get(key)

    def begin(self, lines: Iterable[list[str]], tries: int = 2) -> None:
        """Start the commands whose answers will be wanted, unless they are known.

        Args:
            lines: The words of each.
            tries: How often a command that fails is asked in all, within the limit: a busy scheduler drops questions.
        """
        for argv in lines:
            key = tuple(argv)
            if key in self._open or key in self._answers:
                continue
            self._answers[key] = None
            program = "" if argv[0] in self.unanswered else find(argv[0])
            if not program:
                continue  # a process is not started in vain
            question = _Question([program, *argv[1:]], tries, self.limit)
            if question.start():
                self._open[key] = question

    def close(self) -> None:
        """End the commands whose answers are not wanted any more; they may be asked again."""
        for key in list(self._open):
            self._open.pop(key).kill()
            del self._answers[key]

    def _wait(self, wanted: tuple[str, ...]) -> None:
        """Read what all open commands print, until one of them has ended or its time is over."""
        from selectors import EVENT_READ, DefaultSelector

        with DefaultSelector() as selector:
            for key, question in self._open.items():
                selector.register(question.output, EVENT_READ, key)
            while wanted in self._open:
                now = _now()
                self._tell(now)
                late = [key for key, question in self._open.items() if now >= question.end]
                for key in late:
                    selector.unregister(self._open[key].output)
                    self._give_up(key)
                for ready, _ in [] if late else selector.select(self._next(now) - now):
                    self._listen(ready.data, selector)

    def _next(self, now: float) -> float:
        """Return when something is to be done though no command prints anything."""
        ends = [question.end for question in self._open.values()]
        return max(now, min(ends + [question.began + _SILENCE for question in self._untold()]))

    def _listen(self, key: tuple[str, ...], selector: BaseSelector) -> None:
        """Take what one command has printed, and its end."""
        question = self._open[key]
        if question.read():
            return
        selector.unregister(question.output)
        if not question.has_ended():
            self._give_up(key)
            return
        if question.code and question.tries and question.start():
            selector.register(question.output, 1, key)
            return
        del self._open[key]
        if question.code:
            _add(self.failed, key[0])
            self.said[key[0]] = question.error
        else:
            self._answers[key] = question.text.decode(errors="replace")

    def _give_up(self, key: tuple[str, ...]) -> None:
        self._open.pop(key).kill()
        _add(self.unanswered, key[0])

    def _untold(self) -> list[_Question]:
        return [question for key, question in self._open.items() if key[0] not in self._told]

    def _tell(self, now: float) -> None:
        """Say what is waited for, once it has taken a while."""
        if not any(now >= question.began + _SILENCE for question in self._untold()):
            return
        slow = [key[0] for key in self._open]
        self._told.update(slow)
        from ezpz.visible import show

        try:
            show(f"ezpz: waiting for an answer of {listed(slow)}, for {self.limit:g} s at most", sys.stderr)
        except OSError:
            pass  # no reader is left; the answer is wanted all the same


class _Question:
    """One command, and what it has printed."""

    def __init__(self, argv: list[str], tries: int, limit: float) -> None:
        self.argv, self.tries = argv, tries
        self.began = _now()
        self.end = self.began + limit
        self.text = bytearray()
        self.code: int | None = None
        self.error = ""

    def start(self) -> bool:
        """Start it, or start it again; tell whether that was possible."""
        import subprocess

        from ezpz.cluster.scheduler import plain_output

        self.tries -= 1
        self.text.clear()
        nowhere = subprocess.DEVNULL
        # A pipe would have to be read lest it fills up.
        self._errors = os.memfd_create("stderr") if hasattr(os, "memfd_create") else nowhere
        try:
            # A session of its own, so that what the command itself has started can be ended with it.
            self._process = subprocess.Popen(
                self.argv,
                env=plain_output(os.environ),
                stdin=nowhere,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
            )
        except (OSError, ValueError):
            self._close_errors()
            return False
        assert self._process.stdout is not None
        self.output = self._process.stdout
        return True

    def read(self) -> bool:
        """Take what it has printed; tell whether there may be more."""
        part = os.read(self.output.fileno(), 65536)
        self.text += part
        return bool(part)

    def has_ended(self) -> bool:
        """Tell whether it has ended, and with which code, once its output has; it may live on."""
        from subprocess import TimeoutExpired

        self.output.close()
        try:
            self.code = self._process.wait(max(0.0, self.end - _now()))
        except TimeoutExpired:
            return False
        if self.code and self._errors >= 0:
            # nvidia-smi tells on stdout why it fails, and details below.
            self.error = _line(os.pread(self._errors, _ERROR, 0), -1) or _line(self.text[:_ERROR], 0)
        self._close_errors()
        return True

    def _close_errors(self) -> None:
        if self._errors >= 0:  # else there is none
            os.close(self._errors)
            self._errors = -1

    def kill(self) -> None:
        """End it, with all that it has started."""
        from signal import SIGKILL
        from subprocess import TimeoutExpired

        self.output.close()
        self._close_errors()
        try:
            os.killpg(self._process.pid, SIGKILL)
            self._process.wait(_DYING)
        except (OSError, TimeoutExpired):
            pass  # it is gone, or waits for a file system that does not answer, for which a launch does not wait


def _line(output: bytes | bytearray, place: int) -> str:
    """Return the first line that is not empty, or the last, for a place of -1."""
    lines = [" ".join(line.split()) for line in output.decode(errors="replace").split("\n") if line.strip()]
    return lines[place] if lines else ""


def ask_ahead(run: Run, lines: Iterable[list[str]]) -> None:
    """Have commands asked side by side whose answers will be wanted, where that is possible."""
    if isinstance(run, Questions):
        run.begin(lines)


def ask(run: Run, argv: list[str]) -> str | None:
    """Return what a scheduler's command printed; asked twice, because a busy scheduler drops questions."""
    ask_ahead(run, [argv])
    answer = run(argv)
    return run(argv) if answer is None else answer


def finish(run: Run) -> None:
    """End the commands whose answers are not needed any more."""
    if isinstance(run, Questions):
        run.close()


def unanswered(run: Run) -> tuple[str, ...]:
    """Return the names of programs that have given no answer in time."""
    return tuple(run.unanswered) if isinstance(run, Questions) else ()


def failed(run: Run) -> tuple[str, ...]:
    """Return the names of programs that have ended with an error."""
    return tuple(run.failed) if isinstance(run, Questions) else ()


def said(run: Run, program: str) -> str:
    """Return what a program that has ended with an error said of it, a line; empty where that is not known."""
    return run.said.get(program, "") if isinstance(run, Questions) else ""


def listed(programs: Iterable[str]) -> str:
    """Return ``squeue and qstat``, each name once and without its folder."""
    return " and ".join(dict.fromkeys(map(os.path.basename, programs)))


def _add(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)


def _now() -> float:
    from time import monotonic

    return monotonic()
