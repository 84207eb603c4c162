"""Watchers: what is known of those of ezpz before they are imported, and one from outside on every way to start."""

import json
import re
import signal
import sys
from importlib import import_module
from pathlib import Path

import pytest

from ezpz.launch import agent_messages
from ezpz.launch.watchers import WATCHERS, HostSide, LauncherSide, Watchers
from lab import process
from lab.ssh import SRC, Site
from lab.watching import watch_all

EGGS = Path(__file__).parent / "watchers" / "eggs.py"
LAYS = """
import sys, time
sys.path.insert(0, SRC)
from ezpz import progress
import os
assert progress.tell("laid", int(sys.argv[1]) + int(os.environ["RANK"]))
time.sleep(0.3)
assert progress.tell("laid", 1)
time.sleep(float(sys.argv[2]))
""".replace("SRC", repr(SRC))


def test_the_table_says_what_the_modules_hold():
    for watcher in WATCHERS:
        for target, kind in ((watcher.host, HostSide), (watcher.launcher, LauncherSide)):
            if target:
                module, _, name = target.partition(":")
                assert issubclass(getattr(import_module(module), name), kind), watcher
        if watcher.messages:
            module = import_module(watcher.messages)
            ways = {"WORDS": watcher.words, "REPORTS": watcher.reports, "ORDERS": watcher.orders}
            for way, kinds in ways.items():
                assert tuple(each.kind for each in getattr(module, way, ())) == kinds, (watcher.name, way)


def test_the_core_names_no_watcher():
    for path in (
        "launch/run/supervisor.py",
        "launch/host/agent.py",
        "launch/host/local_world.py",
        "launch/run/start.py",
    ):
        text = (Path(SRC) / "ezpz" / path).read_text()
        assert "ezpz.watch" not in text, path
        for watcher in WATCHERS:
            assert not re.search(rf"[\"'._]{watcher.name}\b", text), (path, watcher.name)


@pytest.fixture
def launched(tmp_path, clean_env, home, request):
    """`launched(*words)` -> a run of them with the watcher, and the field of run.json."""

    def launch(*words, env=clean_env, run=process.run, python=sys.executable, **more):
        env = {**env, "EZPZ_WATCHERS": str(EGGS), "PYTHONPATH": SRC, **more}
        done = run([python, "-m", "ezpz.launch", *words], env, cwd=tmp_path, timeout=60)
        newest = max(Path(home).glob(".local/state/ezpz/launches/*/run.json"), key=lambda path: path.stat().st_mtime)
        return done, json.loads(newest.read_text())

    return launch


def check(done, record):
    assert done.returncode == 0, done.stderr
    assert record["eggs"] == {"0": 2, "1": 3}
    assert done.stderr.count("ezpz: note: 5 eggs\n") == 1
    assert "not looked at" not in done.stderr


def test_one_from_outside_counts_refuses_and_ends(launched, tmp_path, run_cli):
    """Here, where the launcher forks the ranks."""
    lays = ["-n", "2", sys.executable, "-c", LAYS]
    check(*launched(*lays, "1", "0"))
    told = run_cli([sys.executable, "-m", "ezpz", "why"])
    assert "5 eggs" in told.stdout, told

    (tmp_path / "closed").touch()
    done, record = launched(*lays, "1", "0")
    assert (done.returncode, record["state"]) == (125, "failed")
    assert "cannot start: the henhouse is closed" in done.stderr
    check(*launched(*lays, "1", "0"))  # once

    done, record = launched(*lays, "60", "30")
    assert done.returncode == 9
    assert "too many eggs" in record["cause"]["text"]
    assert sum(record["eggs"].values()) >= 100

    done, record = launched(*lays, "2", "0.2")
    assert done.stderr.count("ezpz: note: a nest has enough\n") <= 1  # an order, at six eggs
    assert record["eggs"] == {"0": 3, "1": 4}


def test_a_mistake_of_one_ends_no_run(launched, tmp_path):
    (tmp_path / "broken").touch()
    done, record = launched("-n", "2", sys.executable, "-c", LAYS, "1", "0")
    assert done.returncode == 0, done.stderr
    text = "eggs are not looked at any more: OSError: the henhouse is broken"
    assert done.stderr.count(text) == 1
    assert text in record["notes"]
    assert "eggs" not in record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nest", "why"),
    [("", ""), ("broken", ""), ("full", "the ranks have not left the nest within 1 s; ")],
    ids=["empty", "broken", "full"],
)
def test_a_sigterm_waits_for_what_one_wants_first(start_launch, clean_env, tmp_path, nest, why):
    """And neither a mistake in it nor a long time loses the signal."""
    (tmp_path / "nest").write_text(nest)
    lays = LAYS.replace("time.sleep(float", "print('laid', flush=True); time.sleep(float")
    env = {**clean_env, "EZPZ_WATCHERS": str(EGGS), "PYTHONPATH": SRC}
    launch = start_launch("-n", 1, sys.executable, "-c", lays, "1", "60", env=env)
    assert launch.stdout.readline() == "laid\n"
    launch.send_signal(signal.SIGTERM)
    told = launch.communicate(timeout=60)[1]
    assert launch.returncode == 128 + signal.SIGTERM, told
    assert "ezpz: SIGTERM received; passing it on when the ranks have left the nest\n" in told
    assert f"ezpz: {why}passing SIGTERM on\n" in told
    assert told.count("the nest is broken") == (nest == "broken"), told


RESTS = """
from ezpz.launch.watchers import LauncherSide, Wait, Watcher
from ezpz.watch.collectives import launcher

launcher._ANSWERS = 0.1  # of 12 s
WATCHER = Watcher("rest", "rests", launcher=":Rest", begins=True)


class Rest(LauncherSide):
    def before_term(self):
        return Wait("rested", 4.0)
"""


@pytest.mark.slow
def test_a_sigterm_that_waits_is_the_end_of_a_run_whose_time_is_over_as_well(start_launch, clean_env, tmp_path):
    watcher = tmp_path / "rest.py"
    watcher.write_text(RESTS)
    env = {**clean_env, "EZPZ_WATCHERS": str(watcher), "PYTHONPATH": SRC}
    launch = start_launch("-n", 1, "--timeout", 1, "sleep", "60", env=env)
    while "asking every rank" not in (line := launch.stderr.readline()):
        assert line
    launch.send_signal(signal.SIGTERM)
    told = launch.communicate(timeout=60)[1]
    assert launch.returncode == 128 + signal.SIGTERM, told
    assert "the ranks have not rested within 4 s; passing SIGTERM on" in told


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("no_such_module", "no module 'no_such_module'"),
        ("json", "WATCHER in"),
        (str(EGGS.parent / "absent.py"), "absent.py"),
    ],
)
def test_what_is_no_watcher_is_refused(run_cli, clean_env, named, says):
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "1", "true"], {**clean_env, "EZPZ_WATCHERS": named})
    assert done.returncode == 2
    assert f"cannot import the watcher {named!r} (from EZPZ_WATCHERS): " in done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_one_from_outside_under_an_mpi(launched, drawn_flavour, tmp_path):
    flavour = drawn_flavour
    lays = ["-n", "2", flavour.python, "-c", LAYS, "1", "0"]
    check(*launched(*lays, env=flavour.env(), python=flavour.python))
    (tmp_path / "closed").touch()
    done, record = launched(*lays, env=flavour.env(), python=flavour.python)
    assert (done.returncode, record["state"]) == (125, "failed")
    assert "the henhouse is closed" in done.stderr


@pytest.mark.slow
def test_one_from_outside_over_ssh(launched, hosts, clean_env, tmp_path):
    """And a host that lacks what it imports says so, while the others and the run go on."""
    folder = tmp_path / "shared"
    folder.mkdir()
    site = Site(hosts, clean_env, folder)
    on_hosts = ["--hosts", "n01,n02", "--ppn", "1", sys.executable, "-c", LAYS, "1", "0"]

    def run(line, env, **how):
        return hosts["head"].run(line, env, **how)

    check(*launched(*on_hosts, env=site.env, run=run))
    (tmp_path / "closed").touch()
    done, _ = launched(*on_hosts, env=site.env, run=run)
    assert done.returncode == 125
    assert "the henhouse is closed" in done.stderr
    needy = tmp_path / "needy.py"
    needy.write_text(f"import pytest\n{EGGS.read_text()}")
    done, record = launched(*on_hosts, env=site.env, run=run, EZPZ_WATCHERS=str(needy))
    assert done.returncode == 0, done.stderr
    for host in ("n01", "n02"):
        assert f"eggs is not watched on {host}: cannot import {needy}: ModuleNotFoundError" in done.stderr, done.stderr
    assert record["eggs"] == {}


CODES = "expected an exit code from 1 to 255"
BAD = """
from ezpz.launch.watchers import HostSide, LauncherSide, Watcher

WATCHER = Watcher("bad", "bad things", host=":OnHost", launcher=":AtLauncher", begins=True, fails=True)


class OnHost(HostSide):
    def before_begin(self, environ, *, first):
        self.handle.hold(True)
        self.handle.after(0.2, lambda: 1 / 0)


class AtLauncher(LauncherSide):
    def failed(self, failure):
        return FAILED

    def end(self, outcome):
        return END
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failed", "end", "says"),
    [
        ("'soon'", "{}", "ValueError: could not convert string to float: 'soon'"),
        ("1e9", "{}", ""),
        ("0", "{'state': 'fine'}", "ValueError: run.json has state already"),
        ("0", "{'rows': {1, 2}}", "TypeError: Object of type set is not JSON serializable"),
        ("0", "7", "TypeError: 'int' object is not iterable"),
        *(
            (f"self.handle.end_run('x', {code})", "{}", f"ValueError: the run cannot end with {code}; {CODES}")
            for code in ("0", "300", "'7'", "None")
        ),
    ],
)
def test_whatever_a_side_returns_the_run_ends_as_it_does(launched, tmp_path, failed, end, says):
    watcher = tmp_path / "bad.py"
    watcher.write_text(BAD.replace("FAILED", failed).replace("END", end))
    done, record = launched("-n", "2", "bash", "-c", "sleep 0.2; exit $RANK", EZPZ_WATCHERS=str(watcher))
    assert (done.returncode, record["state"], record["exit_code"]) == (1, "failed", 1)
    assert [note for note in record["notes"] if "bad things" in note] == [
        f"bad things are not looked at any more: {says}"
    ] * bool(says)
    assert "rows" not in record


def test_names_that_are_taken_are_refused(run_cli, clean_env, tmp_path):
    watcher = tmp_path / "taken.py"
    for name, kinds in (("own", "words=('beat',)"), ("own", "orders=('begin',)"), ("hangs", "")):
        watcher.write_text(f"from ezpz.launch.watchers import Watcher\nWATCHER = Watcher({name!r}, 'x', {kinds})\n")
        env = {**clean_env, "EZPZ_WATCHERS": str(watcher)}
        done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "1", "true"], env)
        assert done.returncode == 2, (name, kinds, done.stderr)
        assert "already" in done.stderr


UNSOUND = """
import sys
from ezpz.fields import number_field
from ezpz.launch.shim_messages import Message
from ezpz.launch.watchers import HostSide, LauncherSide, Watcher

WATCHER = Watcher("bad", "bad things", ":OnHost", ":AtLauncher", words=("say",), reports=("bad",), orders=("more",))


class Say(Message):
    kind = "say"


class Bad(Message):
    kind = "bad"
    number: int = number_field(0)


class More(Bad):
    kind = "more"


class Other(Message):
    kind = "another"


WORDS, REPORTS, ORDERS = (Say,), (Bad,), (More,)


class OnHost(HostSide):
    def hear(self, rank, message):
        REPORT


class AtLauncher(LauncherSide):
    def hear(self, host, report):
        ORDER
"""
_SOUND = "self.handle.report(Bad(number=1))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("report", "order", "says"),
    [
        ("self.handle.report(Other())", "pass", "ValueError: another is none of its REPORTS"),
        ("self.handle.report(Bad(number=-1))", "pass", "Malformed: Bad.number: "),
        (_SOUND, "self.handle.order(Other())", "ValueError: another is none of its ORDERS"),
        (_SOUND, "self.handle.order(More(number='x'), to={host})", "Malformed: More.number: "),
        ("sys.exit(3)", "pass", "SystemExit: 3"),
        (_SOUND, "sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_what_a_side_sends_or_raises_ends_no_run(launched, tmp_path, report, order, says):
    watcher = tmp_path / "bad.py"
    watcher.write_text(UNSOUND.replace("REPORT\n", f"{report}\n").replace("ORDER\n", f"{order}\n"))
    rank = f"import sys, time; sys.path.insert(0, {SRC!r}); from ezpz import progress; progress.tell('say')"
    done, record = launched("-n", "1", sys.executable, "-c", f"{rank}; time.sleep(0.3)", EZPZ_WATCHERS=str(watcher))
    assert (done.returncode, record["state"]) == (0, "finished"), done.stderr
    assert [note for note in record["notes"] if note.startswith(f"bad things are not looked at any more: {says}")]


@pytest.mark.slow
def test_one_that_fails_while_ranks_wait_for_it_lets_them_begin(launched, drawn_flavour, tmp_path):
    flavour = drawn_flavour
    watcher = tmp_path / "bad.py"
    watcher.write_text(BAD.replace("FAILED", "0").replace("END", "{}"))
    done, record = launched("-n", "2", "true", env=flavour.env(), python=flavour.python, EZPZ_WATCHERS=str(watcher))
    assert done.returncode == 0, done.stderr
    assert "bad things are not looked at any more: ZeroDivisionError: division by zero" in record["notes"]


def test_words_of_what_is_off_are_no_mistake_of_a_rank():
    """Else its agent would hang up on it: one that no launcher reaches has no watchers at all."""
    try:
        Watchers([], "host", None, print)
        for watcher in WATCHERS:
            for kind in watcher.words:
                assert isinstance(agent_messages.FROM_RANKS.decode(f"{kind} 1 2 3".encode()), agent_messages.Unheard), (
                    kind
                )
    finally:
        watch_all()
