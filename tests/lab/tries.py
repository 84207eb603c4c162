"""Run tests beside each other, and those that fail there again alone: `make test`.

    python tests/lab/tries.py JOBS PATH [OPTION OF PYTEST …]

What fails beside other tests runs again alone, twice at most: a real failure fails at all three tries, and the exit
code is 1 then. Where the first run is interrupted, by an error of pytest or a signal that a test has sent, the tests
that have not been reported run, too. Each try is a pytest process of its own, in a session of its own: no test can
reach this program by a signal to its process group. A Ctrl-C, which comes here, ends all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TRIES = 3  # of a test, the first one beside others
_ROUNDS = 3  # of tests that have not been reported
_PASSED, _USAGE = {0, 5}, 4  # exit codes of pytest: all passed, or none was chosen; the command line is wrong
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATH = 1  # linux/prctl.h: PR_SET_PDEATHSIG


class Recorder:
    """A plugin of pytest that writes down at once what is collected, begins, ends and fails."""

    def __init__(self, path):
        self._file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # to the end of the process

    def _note(self, kind, what):
        self._file.write(f"{json.dumps([kind, what])}\n")

    def pytest_collection_finish(self, session):
        self._note("chosen", [item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)  # of a plugin that may not be there
    def pytest_xdist_node_collection_finished(self, ids):
        self._note("chosen", list(ids))

    def pytest_collectreport(self, report):
        if report.failed:
            self._note("failed", report.nodeid)

    def pytest_runtest_logstart(self, nodeid):
        self._note("begun", nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._note("failed", report.nodeid)
        if report.failed or report.when == "teardown":
            self._note("over", report.nodeid)


@dataclass
class Run:
    """What came of one pytest process."""

    code: int
    chosen: dict[str, None] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)
    failed: dict[str, None] = field(default_factory=dict)

    @classmethod
    def read(cls, code, path):
        """Return what a recorder has written; its last line may be torn."""
        run = cls(code)
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                kind, what = json.loads(line)
                if kind in {"chosen", "failed"}:
                    getattr(run, kind).update(dict.fromkeys(what if kind == "chosen" else [what]))
                else:
                    getattr(run, kind).add(what)
        run.failed.update(dict.fromkeys(sorted(run.begun - run.over)))  # the process ended meanwhile
        return run

    @property
    def missing(self):
        """The tests that were chosen and did not begin."""
        return [test for test in self.chosen if test not in self.begun and test not in self.failed]


class Interrupted(Exception):  # noqa: N818  # named by what it is
    """Somebody has sent this program a signal that ends all."""


class Runner:
    """Starts one pytest after the other, and passes on the signals that end them."""

    def __init__(self):
        self._child = None
        self._signal = 0
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._pass_on)

    def _pass_on(self, number, _):
        again, self._signal = self._signal, number
        self._send(signal.SIGKILL if again == number else number)

    def _send(self, number):
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def run(self, words):
        """Run pytest with these words to its end.

        Raises:
            Interrupted: A signal has come.
        """
        with tempfile.TemporaryDirectory(prefix="ezpz-tries-") as folder:
            record, told = Path(folder, "record"), Path(folder, "words")
            record.touch()
            told.write_text(json.dumps(words), encoding="utf-8")  # they may be more than a command line takes
            line = [sys.executable, __file__, "--pytest", str(told), str(record)]
            if not self._signal:
                self._child = subprocess.Popen(line, start_new_session=True)
                if self._signal:  # it came meanwhile
                    self._send(self._signal)
                code, self._child = self._child.wait(), None
            if self._signal:
                raise Interrupted(self._signal)
            return Run.read(code, record)


def main(jobs, path, *options):
    """Run the tests below a path, and return the exit code of all."""
    runner, tries = Runner(), [[] for _ in range(TRIES)]
    beside = ["-n", jobs, "--dist", "loadfile"]
    stops = any(option in {"-x", "--exitfirst"} or option.startswith("--maxfail") for option in options)
    code, words = 0, [path]
    for attempt in range(1, _ROUNDS + 1):
        run = runner.run([*beside, *options, *words])
        if run.code == _USAGE:
            return run.code
        failing = list(run.failed)
        tries[0] += failing
        for number in range(1, TRIES):
            if failing:
                _say(f"what failed runs once more, alone: try {number + 1} of {TRIES}")
                failing = _alone(runner, failing, options)
                tries[number] += failing
        code = code or int(bool(failing))
        if not run.chosen and run.code not in _PASSED:
            left = "whatever was to run"
        elif run.missing:
            words, left = run.missing, f"{len(run.missing)} tests"
        else:
            code = code or (0 if run.failed else run.code)  # it may have broken after the last test
            break
        if (stops or not run.chosen) and failing:
            break
        _say(f"pytest ended with {run.code} before {left}{'; starting again' * (attempt < _ROUNDS)}")
    else:
        code = code or 1
    _list(tries)
    return code


def _alone(runner, tests, options):
    """Run some tests beside no others, and return those that fail."""
    failing, left, together = [], list(tests), True
    while left:
        these = left if together else left[:1]
        run = runner.run([*options, "-n", "0", *these])
        told = {test: has_passed for test in these if (has_passed := _has_passed(test, run)) is not None}
        if not told and together and len(these) > 1:
            together = False  # a name that is not found keeps all others from running
            continue
        told = told or {these[0]: False}
        failing += [test for test, has_passed in told.items() if not has_passed]
        left = [test for test in left if test not in told]
    return failing


def _has_passed(name, run):
    """Tell whether a test, or all in a file that could not be collected, passed; None where nothing of it has run."""
    inside = f"{name}::"
    if any(test == name or test.startswith(inside) for test in run.failed):
        return False
    mine = [test for test in run.chosen if test == name or test.startswith(inside)]
    if not mine or not run.over.issuperset(mine):
        return None
    return True


def _say(text):
    print(f"make test: {text}", flush=True)


def _list(tries):
    """Print what failed at each try, if anything did."""
    if not tries[0]:
        return
    for number, failed in enumerate(tries, 1):
        where = "beside other tests" if number == 1 else "alone"
        _say(f"try {number} of {TRIES}, {where}: {len(failed)} failed")
        for test in failed:
            print(f"  {test}", flush=True)


def _end_with_parent(number):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, int(number))


def _pytest(told, record):
    """Start the pytest process, which ends with the program that has started it, and return its exit code.

    It does not lead its session: a terminal that a test opens would become that of all tests.
    """
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    _end_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code
    for number, handler in handlers.items():
        signal.signal(number, handler)
    _end_with_parent(signal.SIGTERM)
    words = json.loads(Path(told).read_text(encoding="utf-8"))
    # As `python -m pytest` has both.
    sys.path[0], sys.argv = str(Path.cwd()), [str(Path(pytest.__file__).with_name("__main__.py")), *words]
    return pytest.main(words, plugins=[Recorder(record)])


if __name__ == "__main__":
    if sys.argv[1] == "--pytest":
        sys.exit(_pytest(*sys.argv[2:]))
    try:
        sys.exit(main(*sys.argv[1:]))
    except Interrupted as error:
        sys.exit(128 + error.args[0])
