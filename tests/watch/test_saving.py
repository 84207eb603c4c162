"""Ranks are asked to save before the job ends, and by files: when, that all do it at one step, and what comes of it."""

import contextlib
import json
import os
import random
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from ezpz.launch.agent_messages import TO_RANKS
from ezpz.launch.event_loop import Loop
from ezpz.launch.run.failures import Outcome
from ezpz.launch.run.kept_term import seconds_to_wait
from ezpz.launch.watchers import HostHandle, LauncherHandle
from ezpz.watch.progress.messages import At
from ezpz.watch.saving import messages
from ezpz.watch.saving.host import SaversOfHost
from ezpz.watch.saving.launcher import Saving
from ezpz.watch.saving.rules import ask_at, longest_wait, step_ahead
from ezpz.watch.saving.trigger_files import found_in
from lab import process

SCRIPT = Path(__file__).parents[1] / "launch" / "scripts" / "saves_when_asked.py"


def test_when_to_ask(subtests):
    for limit, longest, more, before in [
        (3600, None, {}, 180),  # before the first save: 5 % of the limit
        (3600, 10, {}, 80),  # twice the longest save, and a minute
        (600, 10, {}, 38),  # of a short job 3 % of the limit
        (86400, 0, {}, 60),
        (3600, 900, {}, 1800),  # never before half of the job: a save longer than the rest
        (3600, 5000, {}, 1800),
        (3600, None, {"step": 300}, 1200),  # slow steps: the request is followed two steps later
        (3600, 10, {"step": 45}, 110),
        (3600, 10, {"step": 20}, 80),
        (60, 1, {"reaction": 8}, 10),
        (60, None, {"reaction": 8}, 16),
        (10, None, {"reaction": 8}, 5),
    ]:
        with subtests.test(limit, longest=longest, **more):
            began = 1795289400.0
            assert ask_at(began, began + limit, longest, **more) == began + limit - before


def test_the_step_is_ahead_of_all_ranks(subtests):
    for step, pace, tries, chosen, soon in [
        (100, 0.1, 0, 140, 110),
        (100, 30, 0, 102, 101),
        (100, 0, 0, 102, 101),
        (100, 0.1, 1, 180, 120),
    ]:
        with subtests.test(step, pace=pace):
            assert step_ahead(step, pace, tries) == chosen
            assert step_ahead(step, pace, tries, soon=True) == soon


def test_a_sigterm_is_held_as_long_as_the_scheduler_leaves_time(subtests):
    for kill_after, longest, seconds in [
        (30, None, 25),
        (30, 99, 25),
        (10, None, 5),
        (2, None, 1),
        (None, None, 25),
        (None, 40, 88),
    ]:
        with subtests.test(kill_after=kill_after, longest=longest):
            assert seconds_to_wait(kill_after, longest_wait(longest)) == seconds


class FakeLoop:
    """Timers that tests look at and let end."""

    def __init__(self):
        self.timers, self.files = {}, {}

    def at(self, name, due, action):
        self.timers[name] = due, action

    def after(self, name, seconds, action):
        self.timers.setdefault(name, (time.monotonic() + seconds, action))

    def cancel(self, name):
        self.timers.pop(name, None)

    def read(self, file, action):
        self.files[file] = action

    def forget(self, file):
        self.files.pop(file, None)

    def serve(self):
        """Wait until something is to be read, and read it."""
        for file in select.select(list(self.files), [], [], 60)[0]:
            self.files[file](file)


def host(**more):
    fields = {"ranks": 2, "agree": 0, "longest": -1.0, "step": -1, "number": 0, "saved": False, "left": False}
    return messages.Savers(**{**fields, "pace": 0.0, **more})


def answer(number, step, armed, pace=0.1):
    return messages.SaveAnswered(number=number, step=step, armed=armed, pace=pace)


class Launcher:
    """`Saving` with all that it does kept in lists."""

    def __init__(self, left=1000.0, passed=1000.0, *, at_end=True, ranks=2):
        self.loop, self.orders, self.said = FakeLoop(), [], []
        now = time.time()
        handle = LauncherHandle("saving", "at the end" if at_end else "", self.loop, print, lambda action: action())
        handle.plan = SimpleNamespace(placement=SimpleNamespace(world_size=ranks), more={})
        handle.began, handle.job_ends, handle.host = now - passed, lambda: now + left, lambda index: f"n{index:02}"
        handle.order = lambda order, to: self.orders.append((order, sorted(to)))
        handle.say, handle.is_stopping = self.said.append, lambda: False
        handle.keep_terms, handle.pass_term_on = (lambda keeps: None), lambda: self.passed_on.append(True)
        self.passed_on = []
        self.saving = Saving(handle)

    def due_in(self):
        return self.loop.timers["saving save"][0] - time.monotonic()

    def find(self, name, folder):
        """Somebody puts a file there, which is found."""
        (folder / name).touch()
        self.saving.use_folder(str(folder))
        self.loop.serve()


def test_the_ranks_are_asked_when_it_is_time_and_told_a_step_that_all_can_keep():
    launcher = Launcher(left=1)
    assert not launcher.orders  # nobody can save
    launcher.saving.hear(0, host())
    launcher.saving.hear(1, host())
    [(asked, hosts)] = launcher.orders
    assert (asked.ends, asked.step, hosts) == (1, -1, [0])  # at once, and the second host's come too late for this
    launcher.saving.hear(0, answer(asked.number, 50, armed=False))
    assert len(launcher.orders) == 1  # host 1 has not answered


def test_a_step_that_some_rank_has_passed_is_put_off(tmp_path):
    launcher = Launcher(left=1000)
    launcher.saving.hear(0, host())
    launcher.saving.hear(1, host())
    launcher.find("STOP", tmp_path)
    first = launcher.orders[-1][0]
    launcher.saving.hear(0, answer(first.number, 50, armed=False))
    launcher.saving.hear(1, answer(first.number, 51, armed=False))
    second = launcher.orders[-1][0]
    assert second.step == 51 + 40
    launcher.saving.hear(0, answer(second.number, 60, armed=True))
    launcher.saving.hear(1, answer(second.number, 95, armed=False))
    third = launcher.orders[-1][0]
    assert isinstance(third, messages.AskToSave)
    assert third.step == 95 + 80
    launcher.saving.hear(1, answer(second.number, 96, armed=True))  # of the request before: it counts for nothing
    launcher.saving.hear(0, answer(third.number, 96, armed=True))
    assert isinstance(launcher.orders[-1][0], messages.AskToSave)
    launcher.saving.hear(1, answer(third.number, 96, armed=True))
    assert launcher.orders[-1] == (messages.SaveNow(number=third.number), [0, 1])
    launcher.saving.close(Outcome())


def test_ranks_that_agree_among_themselves_are_asked_once():
    launcher = Launcher(left=1)
    launcher.saving.hear(0, host(agree=2))
    [(asked, _)] = launcher.orders
    launcher.saving.hear(0, answer(asked.number, 50, armed=True))
    assert len(launcher.orders) == 1
    assert "saving answers" not in launcher.loop.timers


def test_a_longer_save_brings_the_request_forward():
    launcher = Launcher(left=1000, passed=1000)
    launcher.saving.hear(0, host(agree=2))
    assert launcher.due_in() <= 30  # of 900 s: it looks at the clock meanwhile, which may be set
    launcher.saving.hear(0, host(agree=2, longest=400.0, step=5))
    assert not launcher.orders
    launcher.saving.hear(0, host(agree=2, longest=480.0, step=6))
    assert launcher.orders[0][0].ends


def test_nothing_is_asked_before_half_of_the_job():
    launcher = Launcher(left=1000, passed=900)
    launcher.saving.hear(0, host(agree=2, longest=5000.0))
    assert not launcher.orders
    later = Launcher(left=1000, passed=1001)
    later.saving.hear(0, host(agree=2, longest=5000.0))
    assert later.orders


def test_nobody_is_asked_where_that_is_switched_off_but_files_count(tmp_path):
    launcher = Launcher(left=1, at_end=False)
    launcher.saving.hear(0, host(agree=2))
    assert not launcher.orders
    assert "saving save" not in launcher.loop.timers
    launcher.find("SAVE", tmp_path)
    assert not launcher.orders[0][0].ends
    launcher.saving.close(Outcome())


def test_a_save_that_is_under_way_serves_a_sigterm_too(tmp_path):
    launcher = Launcher()
    launcher.saving.hear(0, host())
    launcher.find("SAVE", tmp_path)
    asked = launcher.orders[-1][0]
    launcher.saving.hear(0, answer(asked.number, 5, armed=True))
    launcher.saving.term_waits()
    assert launcher.orders[-1] == (messages.SaveNow(number=asked.number), [0])
    assert not launcher.passed_on
    launcher.saving.hear(0, host(number=asked.number, step=9, saved=True))
    assert launcher.passed_on
    launcher.saving.term_waits()
    again = launcher.orders[-1][0]
    assert (again.ends, again.step) == (2, -1)
    launcher.saving.hear(0, host(number=again.number, step=12, saved=True))
    assert launcher.passed_on == [True, True]
    assert (launcher.saving.record()["because"], launcher.saving.record()["step"]) == ("SIGTERM", 12)
    launcher.saving.close(Outcome())


def test_a_sigterm_is_held_only_while_all_ranks_can_save(subtests):
    for name, told, more, can in (
        ("plain scripts", host(), {}, True),
        ("a loop, which saves by itself", host(agree=2), {}, False),
        ("ranks that still start", host(ranks=1), {}, False),
        ("switched off", host(), {"at_end": False}, False),
    ):
        with subtests.test(name):
            launcher = Launcher(**more)
            launcher.saving.hear(0, told)
            assert bool(launcher.saving.before_term()) is can


def test_what_came_of_it():
    launcher = Launcher(left=1)
    launcher.saving.hear(0, host(agree=2, step=100, saved=True))
    assert launcher.saving.verdict(0, stopped=False) is None  # that was before the request
    assert launcher.saving.record()["saved_at"] is None
    launcher.saving.hear(0, host(agree=2, number=1, step=120, saved=True))
    assert launcher.saving.verdict(0, stopped=False) is None  # it may end by itself
    launcher.saving.hear(0, host(ranks=0, number=1, step=120, saved=True, left=True))
    assert launcher.saving.verdict(0, stopped=False) == "again"
    assert launcher.saving.verdict(143, stopped=True) == "again"  # the scheduler came before the end of the program
    assert launcher.saving.verdict(1, stopped=False) is None
    record = launcher.saving.record()
    assert (record["step"], record["ends"], record["longest_save"]) == (120, True, None)
    line = "saved at step 120 before the end of the job; start it again to go on"
    assert launcher.saving.last_line(0, stopped=False) == line


def test_ranks_that_do_not_save_are_named():
    launcher = Launcher(left=1)
    launcher.saving.hear(0, host(agree=2))
    launcher.loop.timers["saving silent"][1]()
    assert "ranks on n00 have not read the request to save for 30 seconds" in launcher.said[-1]
    assert "have not" in launcher.saving.last_line(143, stopped=True)


def test_a_file_is_answered_once_and_while_nothing_can_save_it_waits(tmp_path):
    launcher = Launcher()
    launcher.find("STOP", tmp_path)
    assert "nothing is asked" in launcher.said[-1]
    launcher.saving.hear(0, host(agree=2))
    assert launcher.orders[0][0].ends
    launcher.saving.hear(0, host(agree=0, ranks=0, number=1, saved=True, step=7, left=True))
    assert launcher.saving.verdict(0, stopped=False) == "stop"
    launcher.saving.close(Outcome())
    assert not (tmp_path / "STOP").exists()


def with_a_file_and_one_of_four_ranks(folder):
    launcher = Launcher(ranks=4)
    launcher.saving.hear(0, host(ranks=1))
    launcher.find("SAVE", folder)
    return launcher


def test_a_file_waits_until_ranks_that_start_later_can_save_as_well(tmp_path, monkeypatch):
    launcher = with_a_file_and_one_of_four_ranks(tmp_path)
    assert not launcher.orders  # one rank alone must not save: it could be collective
    due, look = launcher.loop.timers["saving settled"]
    launcher.saving.hear(0, host(ranks=2))
    look()
    assert not launcher.orders
    launcher.saving.hear(0, host(ranks=4))
    assert launcher.orders == [(launcher.orders[0][0], [0])]
    launcher.saving.close(Outcome())

    launcher = with_a_file_and_one_of_four_ranks(tmp_path)
    monkeypatch.setattr("ezpz.watch.saving.launcher.time.monotonic", lambda: due + 60)
    launcher.loop.timers["saving settled"][1]()  # where only one of them announces that it can, that one saves
    assert len(launcher.orders) == 1
    launcher.saving.close(Outcome())


def test_files_are_found_where_the_folder_is(tmp_path):
    assert found_in([str(tmp_path), str(tmp_path / "gone")]) == []
    for name in ("SAVE", "STOP", "SAVED"):
        (tmp_path / name).touch()
    assert found_in([str(tmp_path)]) == [("STOP", str(tmp_path)), ("SAVE", str(tmp_path))]


def savers_of_host(reports):
    """The loop of an agent, and what it knows of savers."""
    loop = Loop()
    handle = HostHandle("saving", "", loop, print, lambda action: action())
    handle.report = reports.append
    handle.answer = lambda connection, message: connection.send(TO_RANKS.encode(message))
    return loop, SaversOfHost(handle)


def test_an_agent_sums_up_its_ranks():
    reports, ends = [], [socket.socketpair() for _ in range(2)]
    loop, savers = savers_of_host(reports)

    for rank, (ours, _) in enumerate(ends):
        savers.hear_on(ours, SimpleNamespace(rank=rank), messages.Saver(how=rank + 1))
    loop.turn(0)
    assert [(each.ranks, each.agree) for each in reports] == [(2, 1)]  # the newer in place of the older
    for rank, (ours, _) in enumerate(ends):
        savers.hear_on(ours, SimpleNamespace(rank=rank), messages.Saved(seconds=2.0 + rank, step=10))
    loop.turn(0)
    assert (reports[-1].longest, reports[-1].step, reports[-1].saved) == (3.0, 10, False)  # nothing was asked for
    savers.obey(messages.AskToSave(number=1, ends=0, step=30))
    assert ends[1][1].recv(100) == b"ask 1 0 30\n"
    for rank, is_whole in enumerate((False, True)):
        savers.hear_on(ends[rank][0], SimpleNamespace(rank=rank), messages.Saved(seconds=1.0, step=30))
        loop.turn(0)
        assert (reports[-1].number, reports[-1].saved, reports[-1].left) == (1, is_whole, False)
    for rank, is_whole in enumerate((False, True)):
        savers.hear_on(ends[rank][0], SimpleNamespace(rank=rank), messages.Leaves(step=30))
        loop.turn(0)
        assert reports[-1].left == is_whole
    savers.hear_on(ends[0][0], SimpleNamespace(rank=0), messages.SaveAnswer(number=1, step=20, armed=1, pace=0.5))
    of_another_request = messages.SaveAnswer(number=0, step=99, armed=0, pace=0.5)
    savers.hear_on(ends[1][0], SimpleNamespace(rank=1), of_another_request)
    loop.turn(0)
    assert not [each for each in reports if isinstance(each, messages.SaveAnswered)]
    savers.hung_up(ends[1][0], SimpleNamespace(rank=1), 1)  # it has ended: nothing is expected of it
    loop.turn(0)
    assert reports[-1] == messages.SaveAnswered(number=1, step=20, armed=True, pace=0.5)
    for end in (end for pair in ends for end in pair):
        end.close()


def test_slow_steps_are_told(monkeypatch):
    reports = []
    loop, savers = savers_of_host(reports)
    for step, at in ((1, 1000.0), (2, 1001.0), (3, 1002.0), (4, 1042.0)):
        monkeypatch.setattr("ezpz.watch.saving.host.time.monotonic", lambda at=at: at)
        savers.hear_on(None, SimpleNamespace(rank=0), At(step=step))
        loop.turn(0)
    assert [each.pace for each in reports] == [40.0]


# Real ranks


def job(env, tmp_path, seconds, slots=8):
    """The environment within a PBS job that ends in so many seconds."""
    (tmp_path / "nodes").write_text(f"{os.uname().nodename}\n" * slots)
    end = str(int(time.time() + seconds))
    around = {"PBS_JOBID": "1.head", "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_ENVIRONMENT": "PBS_BATCH"}
    return {**env, **around, "EZPZ_JOBID": "1.head", "EZPZ_JOB_END": end}


def job_of_a_chain(env, folder, chain):
    """Return the environment of the only job of a chain."""
    chain.mkdir()
    (chain / "chain.json").write_text(json.dumps({"file": "job", "ids": [], "jobs": 1, "queued_at_once": False}))
    return {**job(env, folder, 3000), "EZPZ_CHAIN": str(chain)}


def record_of(folder):
    return json.loads((folder / "logs" / "run.json").read_text())


def saved_in(folder, ranks):
    """The step that each rank saved; every file is complete."""
    files = [(folder / f"saved-{rank}").read_text().split() for rank in range(ranks)]
    assert all(words[1:] == ["complete"] for words in files)
    return [int(words[0]) for words in files]


def check_saved_in_time(launch, env, tmp_path, *launches):
    """Start all launches at once, each in a job of one minute of its own: ranks, options, and more variables."""

    def run(number, ranks, options, more):
        folder = tmp_path / str(number)
        folder.mkdir()
        line = ["--log-dir", folder / "logs", *options.split(), "-n", ranks, sys.executable, SCRIPT]
        return folder, launch(*line, env=job({**env, **more}, folder, 60), timeout=200, cwd=folder)

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(run, number, *each) for number, each in enumerate(launches)]
    for (ranks, options, more), each in zip(launches, running, strict=True):
        folder, done = each.result()
        what = f"{ranks} {options} {more}: {done.stderr}"
        assert done.returncode == 0, what
        steps = saved_in(folder, ranks)
        assert len(set(steps)) == 1, what
        assert steps[0] > -1, what
        assert f"saved at step {steps[0]} before the end of the job; start it again to go on" in done.stderr, what
        record = record_of(folder)
        asked = record["asked_to_save"]
        assert (record["verdict"], asked["step"]) == ("again", steps[0]), what
        limit = record["job_ends"] - record["started"]
        assert record["started"] + 0.45 * limit <= asked["at"] < record["job_ends"], what


@pytest.mark.slow
def test_plain_scripts_save_at_one_step_before_the_job_ends(launch, clean_env, tmp_path):
    ways = (2, {"SAVE_SECONDS": "3"}), (4, {}), (2, {"STEP_SECONDS": "2.5"})
    check_saved_in_time(launch, clean_env, tmp_path, *((ranks, "--flavour local", more) for ranks, more in ways))


@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_plain_scripts_of_an_mpi_do_so_too(launch, flavour, tmp_path):
    launches = (2, "--flavour mpich", {}), (4, "--flavour mpich --mpi no", {})
    check_saved_in_time(launch, flavour.env(), tmp_path, *launches)


@pytest.mark.slow
def test_a_script_without_a_save_gets_one_line_and_no_signal(launch, clean_env, tmp_path):
    env = {**job(clean_env, tmp_path, 30), "RANKS_THAT_SAVE": "none", "STEPS": "400"}
    done = launch("-n", "2", sys.executable, SCRIPT, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("note: nothing is saved before the job ends at", done.stderr)) == 1
    assert "asking" not in done.stderr
    assert "left after 399" in done.stdout


@pytest.mark.slow
def test_without_a_job_or_where_it_is_switched_off_nothing_is_said_or_asked(launch, clean_env, tmp_path):
    off = tmp_path / "site.toml"
    off.write_text('[launch]\nsave_at_end = "off"\n')
    env = {**clean_env, "STEPS": "200", "RANKS_THAT_SAVE": "none"}
    by_file = {**job(clean_env, tmp_path, 12), "STEPS": "400", "EZPZ_SITE_TOML": str(off)}
    by_option = {**job(clean_env, tmp_path, 12), "STEPS": "400"}
    for options, environ in ((), env), ((), by_file), (("--no-save-at-end",), by_option):
        done = launch(*options, "-n", "2", sys.executable, SCRIPT, env=environ, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "asking" not in done.stderr
        assert "nothing is saved" not in done.stderr
        assert not list(tmp_path.glob("saved-*"))


@pytest.mark.slow
def test_save_goes_on_and_stop_ends_and_either_file_is_removed(start_launch, clean_env, tmp_path):
    logs, chain = tmp_path / "logs", tmp_path / "chain"
    env = job_of_a_chain(clean_env, tmp_path, chain)
    run = start_launch("--log-dir", logs, "-n", "2", sys.executable, SCRIPT, env=env)
    process.wait_until((logs / "run.json").exists, 60, "the launch")
    (chain / "SAVE").touch()
    process.wait_until(lambda: not (chain / "SAVE").exists(), 60, "the save")
    first = saved_in(tmp_path, 2)
    assert len(set(first)) == 1
    assert run.poll() is None
    (chain / "STOP").touch()
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    last = saved_in(tmp_path, 2)
    assert len(set(last)) == 1
    assert last[0] > first[0]
    assert f"saved at step {first[0]}, because of {chain}/SAVE" in errors
    assert f"saved at step {last[0]} because of {chain}/STOP\n" in errors
    assert record_of(tmp_path)["verdict"] == "stop"
    assert (chain / "STOP").exists()  # for the next job of the chain, too


@pytest.mark.slow
def test_a_rank_that_gives_no_heartbeat_keeps_no_other_from_working(start_launch, clean_env, tmp_path):
    logs, chain = tmp_path / "logs", tmp_path / "chain"
    env = {**job_of_a_chain(clean_env, tmp_path, chain), "DEAF_RANKS": "1"}
    run = start_launch("--log-dir", logs, "-n", "2", sys.executable, SCRIPT, env=env)
    process.wait_until((logs / "run.json").exists, 60, "the launch")
    (chain / "SAVE").touch()
    said = []
    thread = threading.Thread(target=lambda: said.extend(iter(run.stderr.readline, "")), daemon=True)
    thread.start()
    process.wait_until(lambda: any("have not read the request" in each for each in said), 90, "the note")
    assert not list(tmp_path.glob("saved-*"))  # one rank alone must not save: it could be collective
    assert run.poll() is None
    run.terminate()
    assert run.wait(timeout=200) == 143


@pytest.mark.slow
def test_however_long_saves_take_no_complete_one_is_lost(launch, clean_env, tmp_path):
    seed = random.randrange(10**6)
    print("seed", seed)
    draws = random.Random(seed)
    last = -1
    for _ in range(4):
        # The scheduler's own SIGTERM comes at the end, whatever became of the request.
        seconds, left = draws.choice((0.0, 0.3, 2.0, 12.0)), draws.randrange(10, 26)
        env = {**job(clean_env, tmp_path, left), "SAVE_SECONDS": str(seconds)}
        line = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, str(SCRIPT)]
        run = subprocess.Popen(line, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            run.wait(timeout=left)
        except subprocess.TimeoutExpired:
            run.terminate()
            run.wait(timeout=200)
        if (tmp_path / "saved-0").exists() and (tmp_path / "saved-1").exists():
            steps = saved_in(tmp_path, 2)  # complete, or as they were
            assert min(steps) >= last, (seed, steps)
            last = min(steps)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["srun", "srun --mpi no"])
def test_slurm_itself_says_when_the_job_ends(slurm, clean_env, tmp_path, flavour):
    line = f"exec {sys.executable} -m ezpz.launch --log-dir logs --flavour {flavour} -n 2 {sys.executable} {SCRIPT}"

    def has_ended():
        path = tmp_path / "logs" / "run.json"
        return path.exists() and record_of(tmp_path)["state"] != "running"

    with slurm.submitted(f"#SBATCH --time=1\n{line}", clean_env, tmp_path, 2):
        process.wait_until(has_ended, 200, "the end of the launch")
    record, output = record_of(tmp_path), (tmp_path / "out").read_text()
    assert record["verdict"] == "again", output
    assert len(set(saved_in(tmp_path, 2))) == 1
    assert record["ended"] < record["job_ends"] + 30


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [False, True])
def test_a_loop_saves_and_ends_also_when_the_scheduler_ends_it_meanwhile(start_launch, clean_env, tmp_path, signalled):
    pytest.importorskip("torch")
    script, logs = SCRIPT.with_name("trains_in_a_loop.py"), tmp_path / "logs"
    run = start_launch("--log-dir", logs, "-n", "2", sys.executable, script, env=clean_env)
    process.wait_until((tmp_path / "run" / "run.json").exists, 120, "the run folder")
    (tmp_path / "run" / "STOP").touch()
    if signalled:
        process.wait_until(lambda: list(tmp_path.glob("run/checkpoints/.step*")) or run.poll() is not None, 120, "it")
        run.terminate()
    output, errors = run.communicate(timeout=120)
    assert run.returncode in ({0, 143} if signalled else {0}), errors
    assert "trained to the end" not in output
    [name] = [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")]
    record = record_of(tmp_path)
    assert record["verdict"] == "stop", errors
    step = int(name.removeprefix("step-"))
    assert record["asked_to_save"]["step"] == step
    assert record["asked_to_save"]["longest_save"] >= 2
    assert not (tmp_path / "run" / "STOP").exists()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "stopped"
    if not signalled:
        env = {**clean_env, "STEPS": str(step + 20)}
        again = start_launch("-n", "2", sys.executable, script, env=env)
        output, errors = again.communicate(timeout=120)
        assert f"trained to the end: {step + 20}" in output, errors


# A SIGTERM from outside: the ranks save before they get it


class Term(NamedTuple):
    """A launch of two ranks that gets a SIGTERM, and what comes of it.

    Attributes:
        more: Variables of the script.
        options: Of the launch.
        after: The file of each rank that is waited for.
        again: What is sent 3.2 s later.
        job: Whether a scheduler is around that says no time, so that 5 s are left to save.
        says: What stands on stderr.
        saves: Whether all ranks have saved, at one step.
        terms: How many of them are noted by a handler of the script's own; None without one.
        code: Exit code.
    """

    more: dict[str, str]
    options: str = "--flavour local"
    after: str = "up"
    again: int = 0
    job: bool = False
    says: tuple[str, ...] = ("SIGTERM received; passing it on when the ranks have saved\n",)
    saves: bool = True
    terms: int | None = None
    code: int = 143


ENDLESS = {"STEPS": "200", "EVALUATES": "600"}
AT_ONCE = ("SIGTERM received; passing it on\n",)
TERMS = {
    "a plain script": Term({}),
    "a slow save": Term({"SAVE_SECONDS": "4"}),
    "slow steps": Term({"STEP_SECONDS": "1.5"}),
    "a handler of the script's own that exits": Term({"HANDLER": "exit"}, terms=1),
    "one that sets a flag": Term({"HANDLER": "flag"}, terms=1),
    "a shell around it": Term({}, options="--flavour local bash -c '\"$@\"; true' sh"),
    "a save that raises": Term(
        {"SAVE_FAILS": "1", "SAVE_SECONDS": "9"},
        says=("exited with code 1 before all ranks had saved; passing SIGTERM on", "ValueError: planted in the save"),
        saves=False,
    ),
    "no further step": Term(
        ENDLESS,
        after="evaluates",
        job=True,
        says=("not saved within 5 s; passing SIGTERM on", "they have not"),
        saves=False,
    ),
    "a second SIGTERM": Term(
        ENDLESS,
        after="evaluates",
        again=signal.SIGTERM,
        says=("a second signal came; passing SIGTERM on",),
        saves=False,
    ),
    "Ctrl-C behind it": Term(ENDLESS, after="evaluates", again=signal.SIGINT, saves=False),
    "switched off": Term({}, options="--flavour local --no-save-at-end", says=AT_ONCE, saves=False),
    "nothing to save": Term({"RANKS_THAT_SAVE": "none"}, says=AT_ONCE, saves=False),
}
TERMS_OF_MPICH = {
    f"{name}, {options}": TERMS[name]._replace(options=options)
    for options in ("--flavour mpich", "--flavour mpich --mpi no")
    for name in ("a plain script", "a handler of the script's own that exits", "a save that raises")
}


def run_term(start_launch, env, folder, case):
    """Run a launch until it has got its SIGTERM and has ended; return it, and what it wrote on stderr."""
    folder.mkdir()
    env = {**(job(env, folder, 3000) if case.job else env), **case.more}
    words = ["--log-dir", folder / "logs", "-n", "2", *shlex.split(case.options), sys.executable, SCRIPT]
    run = start_launch(*words, env=env, cwd=folder)
    ready = [folder / f"{case.after}-{rank}" for rank in range(2)]
    process.wait_until(lambda: all(path.exists() for path in ready) or run.poll() is not None, 100, "the ranks")
    run.terminate()
    if case.again:
        time.sleep(3.2)
        run.send_signal(case.again)
    return run, run.communicate(timeout=100)[1]


def check_terms(subtests, start_launch, env, tmp_path, cases):
    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(run_term, start_launch, env, tmp_path / str(number), case)
            for number, case in enumerate(cases.values())
        ]
    for number, (name, case) in enumerate(cases.items()):
        with subtests.test(name):
            folder, (run, errors) = tmp_path / str(number), running[number].result()
            assert run.returncode == case.code, errors
            assert [text for text in case.says if text not in errors] == [], errors
            files = sorted(folder.glob("saved-*"))
            assert len(files) == 2 * case.saves, errors
            steps = set(saved_in(folder, 2)) if case.saves else set()
            assert len(steps) == case.saves, errors
            if case.terms is not None:
                noted = [(folder / f"term-{rank}").read_text().split() for rank in range(2)]
                assert noted == [list(map(str, steps)) * case.terms] * 2, errors
            asked = record_of(folder)["asked_to_save"]
            assert (asked or {}).get("step") == (steps.pop() if steps else None), errors


@pytest.mark.slow
def test_a_sigterm_from_outside_comes_when_the_ranks_have_saved(subtests, start_launch, clean_env, tmp_path):
    check_terms(subtests, start_launch, clean_env, tmp_path, TERMS)


@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_one_to_mpich_does_so_too(subtests, start_launch, flavour, tmp_path):
    check_terms(subtests, start_launch, flavour.env(), tmp_path, TERMS_OF_MPICH)


@pytest.mark.slow
def test_a_failure_of_another_rank_saves_nothing(launch, clean_env, tmp_path):
    done = launch("-n", "2", sys.executable, SCRIPT, env={**clean_env, "FAILS": "100"}, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "asking" not in done.stderr
    assert not list(tmp_path.glob("saved-*"))


@pytest.mark.slow
@pytest.mark.parametrize("now", [False, True])
def test_ezpz_kill_waits_for_the_save_unless_it_is_now(start_launch, run_cli, clean_env, tmp_path, now):
    env = {**clean_env, "SAVE_SECONDS": "17"}  # longer than a launch that saves nothing has
    run = start_launch("--log-dir", tmp_path / "logs", "-n", "2", sys.executable, SCRIPT, env=env)
    process.wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)), 100, "the ranks")
    launch_id = record_of(tmp_path)["launch_id"]
    done = run_cli([sys.executable, "-m", "ezpz", "kill", launch_id, *["--now"] * now], clean_env, 100)
    assert done.returncode == 0, done.stderr
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 143, errors
    assert record_of(tmp_path)["state"] == "stopped"
    assert [len(set(saved_in(tmp_path, 2)))] if not now else not list(tmp_path.glob("saved-*")), errors
    assert ("asking the ranks to save" in errors) is not now


def preempt(slurm, _):
    slurm.run(["sbatch", "--partition=urgent", "-N2", "--exclusive", "--output=/dev/null"], stdin="#!/bin/sh\nexit\n")


def cancel(slurm, jobs):
    slurm.run(["scancel", *jobs])


# Where Slurm follows parents it signals the ranks, too; launches by srun hear of it through their ranks' hosts alone.
SRUN, FORKED, LOCAL = (2, "srun", ()), (2, "srun --mpi no", ()), (1, "local", ())
SLURMS = {
    "slurm": ("slurm", cancel, (SRUN, FORKED, LOCAL)),
    "by groups": ("slurm_by_groups", cancel, (SRUN, FORKED, LOCAL)),
    "preempted": ("slurm_by_groups", preempt, ((2, "srun", ("--partition=requeued", "--requeue")),)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLURMS)
def test_slurms_sigterm_comes_when_the_ranks_have_saved(request, subtests, clean_env, tmp_path, name):
    which, end, launches = SLURMS[name]
    slurm = request.getfixturevalue(which)
    env = {**clean_env, "HANDLER": "exit", "SAVE_SECONDS": "0.5"}
    folders = [tmp_path / str(number) for number in range(len(launches))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(slurm.kills_after(30))
        jobs = []
        for folder, (hosts, flavour, options) in zip(folders, launches, strict=True):
            folder.mkdir()
            rank = f"{sys.executable} {SCRIPT}"
            line = f"exec {sys.executable} -m ezpz.launch --log-dir logs --flavour {flavour} -n 2 {rank}"
            jobs.append(stack.enter_context(slurm.submitted(line, env, folder, hosts, options)))
        process.wait_until(lambda: len(list(tmp_path.glob("*/up-*"))) == 2 * len(launches), 100, "the ranks")
        time.sleep(1.5)  # until each has read that its signals are held
        end(slurm, jobs)
        process.wait_until(lambda: {record_of(folder)["state"] for folder in folders} == {"stopped"}, 60, "the ends")
    for folder, (_, flavour, _) in zip(folders, launches, strict=True):
        with subtests.test(flavour):
            told = (folder / "out").read_text()
            steps = set(saved_in(folder, 2))
            assert len(steps) == 1, told
            terms = [(folder / f"term-{rank}").read_text().split() for rank in range(2)]
            assert terms == [list(map(str, steps))] * 2, told
            assert record_of(folder)["exit_code"] == 143, told
