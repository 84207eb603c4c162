"""Run test files side by side as far as the machine's CPUs go, and what fails there again alone: `make test`.

    python tests/lab/tries.py JOBS PATH… [OPTION OF PYTEST …]

This program deals out test files, the longest first, to at most JOBS workers. Each worker is a pytest process that
collects a file only when it is told to run it, so that all is collected once. Most tests wait: a worker beyond the
first ones gets a file only while a core is idle and memory is left. Tests that need Slurm or the browser go to one
worker each, so that there is one of either per run.

What fails beside other tests runs again alone, twice at most: a real failure fails at all three tries, and the exit
code is 1 then. A worker that ends before its time fails the test that it ran, and another one takes over the rest. Each
worker is in a session of its own: no test can reach this program by a signal to its process group. A Ctrl-C, which
comes here, ends all.

`.test/results.jsonl` keeps one line per test of the last run: outcome, seconds, and the CPU-seconds that were used
until its processes were waited for. Of pytest's options, -x, --exitfirst, --maxfail and --durations are understood
here; all others reach every worker.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import seed
from idle import Idle

TRIES = 3  # of a test, the first one beside others
_PASSED, _FAILED, _USAGE, _NOTHING = 0, 1, 4, 5  # exit codes of pytest
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEATH = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_LONGEST = Path(__file__).with_name("longest.txt")  # files, the longest first; all others follow
_PLACES = {  # fixtures that are dear to set up, and the worker at whose place each is
    "slurm": "slurm",
    "slurm_by_groups": "slurm by groups",
    "open_pbs": "openpbs",
    "browser": "browser",
}
_LEAST_MEMORY = 2 << 30  # bytes that must be available where another worker begins a file


def _file(test):
    return test.partition("::")[0]


def place_of(item):
    """Return where a test must run, "" if anywhere: the name of the dear thing that it needs."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    for name in (*item.fixturenames, *map(str, params.values())):
        if name in _PLACES:
            return _PLACES[name]
    return ""


class Stay:
    """Stands for a next test that shares nothing but the session: fixtures of the session are kept."""

    def __init__(self, session):
        self._session = session

    def listchain(self):
        return [self._session]


class Worker:
    """A plugin of pytest that collects and runs what it is told to, and reports all that happens."""

    def __init__(self, told, answers):
        self._told, self._answers = told, answers
        self._begin, self._cpu = 0.0, 0.0
        self._root, self._children = None, {}

    def _say(self, kind, **facts):
        self._answers.write(f"{json.dumps({'kind': kind, **facts})}\n")
        self._answers.flush()

    def pytest_collection(self, session):
        root = session.config.rootpath
        self._root = session.ihook.pytest_collect_directory(path=root, parent=session)
        session.items = []
        return True

    def pytest_runtestloop(self, session):
        hooks, plugins = session.config.hook, session.config.pluginmanager
        # To pytest's fixtures the end of a collection means that no folder with a conftest.py follows.
        finish = plugins.subset_hook_caller("pytest_collection_finish", [plugins.get_plugin("funcmanage")])
        for line in self._told:
            order = json.loads(line)
            items = list(self._items_of(order["tests"]))
            session.items = items
            hooks.pytest_collection_modifyitems(session=session, config=session.config, items=items)
            finish(session=session)
            mine, elsewhere = [], {}
            for item in items:
                place = place_of(item)
                mine.append(item) if place == order["place"] else elsewhere.setdefault(place, []).append(item.nodeid)
            session.items = mine  # for fixtures that look through them
            self._say("chosen", tests=[item.nodeid for item in mine], elsewhere=elsewhere)
            for item, after in zip(mine, [*mine, Stay(session)][1:], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if session.shouldstop or session.shouldfail:
                    raise session.Interrupted(session.shouldstop or session.shouldfail)
            self._say("done")
        return True

    def _items_of(self, tests):
        """Yield the tests of a file, or those that are named, all of one file; each folder is collected once."""
        path = Path(_file(tests[0])).resolve()
        node = self._root
        while node is not None and node.path != path:
            if node not in self._children:
                self._children[node] = self._collect(node)
            below = self._children[node]
            node = next((node for node in below if node.path == path or node.path in path.parents), None)
        found = False
        for item in self._expand(node) if node is not None else ():
            if any(item.nodeid == test or test == _file(test) or item.nodeid.startswith(f"{test}[") for test in tests):
                found = True
                yield item
        if not found and any("::" in test for test in tests):
            self._say("unknown", text=f"not found: {', '.join(tests)}")

    def _collect(self, node):
        report = node.ihook.pytest_make_collect_report(collector=node)
        node.ihook.pytest_collectreport(report=report)
        return report.result if report.passed else []

    def _expand(self, node):
        if hasattr(node, "runtest"):
            node.ihook.pytest_itemcollected(item=node)
            yield node
        else:
            for child in self._collect(node):
                yield from self._expand(child)

    def pytest_collectreport(self, report):
        if report.failed:
            self._say("report", test=report.nodeid, outcome="failed", when="collect", text=str(report.longrepr))
        elif report.skipped:
            self._say("report", test=report.nodeid, outcome="skipped", when="collect", text=_reason(report))

    def pytest_runtest_logstart(self, nodeid):
        self._begin, self._cpu = time.monotonic(), sum(os.times()[:4])
        self._say("begun", test=nodeid)

    def pytest_runtest_logreport(self, report):
        text, outcome = "", report.outcome
        if report.failed:
            parts = [f"{title}:\n{content.rstrip()}" for title, content in report.sections]
            text = "\n".join([report.longreprtext, *parts])
        elif report.skipped:
            text = _reason(report)
        elif hasattr(report, "context"):  # a row of `subtests` that passes
            return
        self._say("report", test=report.nodeid, outcome=outcome, when=report.when, text=text)

    def pytest_runtest_logfinish(self, nodeid):
        cpu, seconds = sum(os.times()[:4]) - self._cpu, time.monotonic() - self._begin
        self._say("over", test=nodeid, seconds=round(seconds, 3), cpu=round(cpu, 3))


def _reason(report):
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "") or "expected to fail"


class Interrupted(Exception):  # noqa: N818  # named by what it is
    """Somebody has sent this program a signal that ends all."""


class Process:
    """A worker as this program sees it: what it runs, and what has come of it."""

    def __init__(self, number, words, folder):
        self.place, self.job = "", None
        self.chosen, self.begun, self.over = None, None, set()  # of this job
        self._output = Path(folder, f"output-{number}")
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        os.set_blocking(self._answers, False)
        words = [*words, f"--basetemp={folder}/popen-{number}"]
        line = [sys.executable, __file__, "--worker", str(orders), str(answers), json.dumps(words)]
        with self._output.open("wb") as output:
            self._child = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                pass_fds=(orders, answers),
            )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self._rest = b""

    def fileno(self):
        return self._answers

    def give(self, tests, place):
        self.job, self.chosen, self.begun, self.over = tests, None, None, set()
        self._write({"tests": tests, "place": place})

    def _write(self, order):
        try:
            os.write(self._orders, f"{json.dumps(order)}\n".encode())
        except BrokenPipeError:
            pass  # it has ended: that is seen by who reads

    def answers(self):
        """Return what it has said meanwhile, and whether it has ended."""
        ended = self._child.poll() is not None
        try:
            while piece := os.read(self._answers, 1 << 20):
                self._rest += piece
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines], ended

    def close(self):
        """Let it end its session, which ends the fixtures of the whole run too; return its exit code."""
        os.close(self._orders)
        self._orders = -1
        return self._child.wait()

    def kill(self, number=signal.SIGKILL):
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            pass

    def output(self):
        return self._output.read_text(encoding="utf-8", errors="replace").strip()

    @property
    def code(self):
        return self._child.returncode

    def forget(self):
        self._child.wait()
        if self._orders >= 0:
            os.close(self._orders)
        os.close(self._answers)


def available_memory():
    """Return the bytes that new processes can have: proc(5), meminfo."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return _LEAST_MEMORY
    return int(re.search(r"MemAvailable: +(\d+)", text)[1]) << 10


class Run:
    """One pass over files or tests, by as many workers as the machine holds."""

    def __init__(self, jobs, words, stop_after, folder):
        self.jobs, self._words, self._stop_after, self._folder = jobs, words, stop_after, folder
        self.outcomes, self.reasons, self.took, self.failed = {}, Counter(), {}, {}
        self.usage, self._number, self._workers, self._signal = "", 0, [], 0
        self._least = max(2, min(jobs, (os.cpu_count() or 1) + 1))

    def interrupt(self, number, _):
        again, self._signal = self._signal == number, number
        for worker in self._workers:
            worker.kill(signal.SIGKILL if again else number)

    def run(self, files):
        """Run the files (or tests) to their end.

        Raises:
            Interrupted: A signal has come.
        """
        waiting = [([file], "") for file in files]
        idle, last = Idle(), 0.0
        with selectors.DefaultSelector() as selector:
            while (waiting and not self._is_enough()) or any(worker.job for worker in self._workers):
                if not self._is_enough() and not self._signal:
                    now = time.monotonic()
                    busy = sum(bool(worker.job) for worker in self._workers)
                    if busy < self._least or now - last > 1:
                        room = busy < self._least or (idle.cores() > 0.35 and available_memory() > _LEAST_MEMORY)
                        last = now if busy >= self._least else last
                        if room and busy < self.jobs:
                            self._deal(waiting, selector)
                selector.select(0.1)
                for worker in list(self._workers):
                    self._hear(worker, waiting, selector)
                if self._signal and not any(worker.job for worker in self._workers):
                    break
            self._close(selector)
        if self._signal:
            raise Interrupted(self._signal)

    def _is_enough(self):
        return bool(self.usage) or (self._stop_after and len(self.failed) >= self._stop_after)

    def _deal(self, waiting, selector):
        """Give the next piece of work to an idle worker at its place, or to a new one."""
        taken = {worker.place for worker in self._workers if worker.job}
        for index, (tests, place) in enumerate(waiting):
            if place and place in taken:
                continue
            free = [worker for worker in self._workers if not worker.job and worker.place == place]
            if not free:
                self._number += 1
                worker = Process(self._number, self._words, self._folder)
                worker.place = place
                self._workers.append(worker)
                if self._signal:  # it came meanwhile
                    worker.kill(self._signal)
                selector.register(worker, selectors.EVENT_READ)
                free = [worker]
            del waiting[index]
            free[0].give(tests, place)
            return

    def _hear(self, worker, waiting, selector):
        messages, ended = worker.answers()
        for message in messages:
            getattr(self, f"_on_{message.pop('kind')}")(worker, waiting, **message)
        if ended:
            selector.unregister(worker)
            self._workers.remove(worker)
            worker.forget()
            if worker.job and not self._signal:
                self._crash(worker, waiting)

    def _crash(self, worker, waiting):
        """A worker has ended in the middle: note whose fault it is, and give the rest of its work to another."""
        what = worker.begun or worker.job[0]
        text = f"the pytest process ended with {worker.code}:\n{worker.output()[-8000:]}"
        if worker.code == _USAGE and worker.chosen is None and not self.outcomes:
            self.usage = worker.output()
            return
        self._note(what, "failed", text)
        if worker.chosen is not None:
            rest = [test for test in worker.chosen if test not in worker.over and test != worker.begun]
            if rest and (worker.begun or worker.over):
                waiting.insert(0, (rest, worker.place))
            else:  # it would end so again: each runs alone
                for test in rest:
                    self._note(test, "failed", text)

    def _note(self, test, outcome, text):
        if outcome == "failed":
            if test not in self.failed:
                print(f"FAILED {test}", flush=True)
            self.failed.setdefault(test, []).append(text)
            print(f"{text}\n", flush=True)
        self.outcomes[test] = outcome

    def _on_unknown(self, worker, _waiting, text):
        for test in worker.job:
            self._note(test, "failed", text)

    def _on_chosen(self, worker, waiting, tests, elsewhere):
        worker.chosen = tests
        for place, others in elsewhere.items():
            waiting.insert(0, (others, place))

    def _on_begun(self, worker, _waiting, test):
        worker.begun = test

    def _on_report(self, worker, _waiting, test, outcome, when, text):
        if outcome == "failed":
            self._note(test, "failed", text if when == "call" else f"({when})\n{text}")
        elif outcome == "skipped":
            self.reasons[text] += 1
            self.outcomes.setdefault(test, "skipped")
        elif when == "call":
            self.outcomes.setdefault(test, "passed")

    def _on_over(self, worker, _waiting, test, seconds, cpu):
        worker.over.add(test)
        worker.begun = None
        self.took[test] = seconds, cpu

    def _on_done(self, worker, _waiting):
        file = _file(worker.job[0])
        told = Counter(self.outcomes.get(test) for test in worker.over)
        took = [self.took[test] for test in worker.over]
        if worker.over:
            counted = ", ".join(f"{told[what]} {what}" for what in ("passed", "failed", "skipped") if told[what])
            where = f" [{worker.place}]" if worker.place else ""
            seconds, cpu = sum(each[0] for each in took), sum(each[1] for each in took)
            print(f"{file}{where}: {counted} ({seconds:.1f} s, {cpu:.1f} s of CPU)", flush=True)
        worker.job = None

    def _close(self, selector):
        for worker in self._workers:
            selector.unregister(worker)
            if self._signal:
                worker.forget()
                continue
            code = worker.close()
            if code not in {_PASSED, _FAILED, _NOTHING}:
                self._note(f"the end of worker {worker.place}".strip(), "failed", worker.output()[-8000:])
            worker.forget()
        self._workers.clear()


def test_files(paths):
    """Return the test files below the paths, the longest first; a file or a test is itself."""
    found = []
    for path in paths:
        if Path(path).is_dir():
            parts = [each for each in Path(path).rglob("test_*.py") if not any(p[0] == "." for p in each.parts[1:])]
            found += sorted(str(each) for each in parts)
        else:
            found.append(path)
    try:
        first = _LONGEST.read_text(encoding="utf-8").split()
    except OSError:
        first = []
    rank = {name: number for number, name in enumerate(first)}
    return sorted(dict.fromkeys(found), key=lambda name: rank.get(name, len(rank)))


def main(jobs, *words):
    """Run the tests below the paths, and return the exit code of all."""
    paths = [word for word in words if not word.startswith("-") and Path(_file(word)).exists()]
    words = [word for word in words if word not in paths]
    stop_after = durations = 0
    options = []
    for word in words:
        if word in {"-x", "--exitfirst"}:
            stop_after = 1
        elif word.startswith("--maxfail="):
            stop_after = int(word.partition("=")[2])
        elif word.startswith("--durations="):
            durations = int(word.partition("=")[2])
        else:
            options.append(word)
    begin = time.monotonic()
    os.environ["EZPZ_TEST_DRAW"] = "1"  # a third of the dear tests
    os.environ[seed.VARIABLE] = seed.of_the_day()  # one for all workers, past midnight too
    print(f"make test: seed of the day {seed.of_the_day()} (SEED={seed.of_the_day()} draws the same again)", flush=True)
    folder = tempfile.mkdtemp(prefix="pytest-")
    words = [*dict.fromkeys(_file(path) for path in paths), "-p", "no:cacheprovider", *options]
    tries = []
    try:
        first = _try(Run(int(jobs), words, stop_after, folder), test_files(paths), tries)
        if first.usage:
            print(first.usage, file=sys.stderr)
            return _USAGE
        failing = list(first.failed)
        for number in range(2, TRIES + 1):
            if failing:
                print(f"make test: what failed runs once more, alone: try {number} of {TRIES}", flush=True)
                failing = _alone(words, failing, folder, tries)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _write_results(first)
    _list(tries)
    _summarize(first, failing, durations, time.monotonic() - begin)
    if failing:
        return _FAILED
    return _PASSED if first.outcomes else _NOTHING


def _try(run, tests, tries):
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, run.interrupt)
    run.run(tests)
    tries.append(list(run.failed))
    return run


def _alone(words, tests, folder, tries):
    """Run some tests one after the other, each in a process of its own, and return those that fail."""
    failing = []
    for test in tests:
        name = test if Path(_file(test)).exists() else ""
        if not name:
            continue  # the end of a worker: what it left cannot run again by itself
        run = _try(Run(1, words, 0, folder), [name], [])
        failing += [test] if run.failed or not run.outcomes else []
    failing += [test for test in tests if not Path(_file(test)).exists()]
    tries.append(failing)
    return failing


def _write_results(run):
    folder = Path(".test")
    if not folder.is_dir():
        return
    with (folder / "results.jsonl").open("w", encoding="utf-8") as file:
        for test, outcome in run.outcomes.items():
            seconds, cpu = run.took.get(test, (0, 0))
            file.write(f"{json.dumps({'test': test, 'outcome': outcome, 'seconds': seconds, 'cpu': cpu})}\n")


def _list(tries):
    """Print what failed at each try, if anything did."""
    if not tries[0]:
        return
    for number, failed in enumerate(tries, 1):
        where = "beside other tests" if number == 1 else "alone"
        print(f"make test: try {number} of {TRIES}, {where}: {len(failed)} failed")
        for test in failed:
            print(f"  {test}")
    sys.stdout.flush()


def _summarize(run, failing, durations, seconds):
    for reason, count in sorted(run.reasons.items()):
        print(f"skipped {count}: {' '.join(reason.split())[:200]}")
    if durations:
        print("slowest tests: seconds, seconds of CPU")
        slowest = sorted(run.took.items(), key=lambda each: -each[1][0])[:durations]
        for test, (wall, cpu) in slowest:
            print(f"  {wall:7.1f} {cpu:7.1f}  {test}")
    told = Counter(run.outcomes.values())
    passed = told["passed"] + told["failed"] - len(failing)  # what passed alone has passed
    cpu = sum(os.times()[:4])
    print(f"make test: {len(run.outcomes)} tests in {seconds:.0f} s with {cpu:.0f} s of CPU")
    print(f"tests: {passed} passed, {len(failing)} failed, {told['skipped']} skipped", flush=True)


def _end_with_parent(number):
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH, int(number))


def _worker(told, answers, words):
    """Start the pytest process of a worker, which ends with the program that has started it; return its exit code.

    It does not lead its session: a terminal that a test opens would become that of all tests.
    """
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    _end_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid:
        os.close(told)
        os.close(answers)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code if code >= 0 else 128 - code
    for number, handler in handlers.items():
        signal.signal(number, handler)
    _end_with_parent(signal.SIGTERM)
    for descriptor in (told, answers):
        os.set_inheritable(descriptor, False)
    import pytest  # the program that deals out has no use for it

    # As `python -m pytest` has both.
    sys.path[0], sys.argv = str(Path.cwd()), [str(Path(pytest.__file__).with_name("__main__.py")), *words]
    with os.fdopen(told, encoding="utf-8") as orders, os.fdopen(answers, "w", encoding="utf-8") as said:
        return pytest.main(words, plugins=[Worker(orders, said)])


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        sys.exit(_worker(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])))
    try:
        sys.exit(main(*sys.argv[1:]))
    except Interrupted as error:
        sys.exit(128 + error.args[0])
