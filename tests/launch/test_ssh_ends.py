"""How ranks that ssh started end, whatever goes first: a rank, the launcher, an agent, ssh, a host."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from ezpz.launch.flavours.base import AGENT
from ezpz.launch.host.payload import pack
from lab import process as lab
from lab.leaving import LEAVING, check_leaving
from lab.ssh import READY


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [("kill -SEGV $$", 139, "was killed by SIGSEGV"), ("exec /no/such/program", 127, "exited with code 127")],
)
def test_the_first_failure_stops_all_and_is_the_exit_code(site, how, code, words):
    done = site.launch("bash", "-c", f'if [ "$RANK" = 2 ]; then {how}; else sleep 600; fi')
    assert done.returncode == code, done.stderr
    causes = [line for line in done.stderr.splitlines() if "stopping the other ranks" in line]
    assert len(causes) == 1
    assert causes[0].startswith("ezpz: rank 2 on host n02 (pid ")
    assert words in causes[0]


def test_a_program_that_is_on_no_host_is_127(site):
    done = site.launch("no-such-program")
    assert done.returncode == 127
    assert "cannot run no-such-program: No such file or directory" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_every_rank_once_and_their_last_words_are_heard(site, number, code):
    name = signal.Signals(number).name[3:]
    script = f"trap 'sleep 0.5; echo got {name}; exit 0' {name}; {READY} while :; do sleep 0.1; done"
    run = site.start("bash", "-c", script)
    run.send_signal(number)
    rest, errors = run.communicate(timeout=200)
    assert (run.returncode, rest.splitlines()) == (code, [f"got {name}"] * 3), errors


def test_usr1_reaches_every_rank_and_a_second_interrupt_kills(site, survivors, in_time):
    script = f"trap 'echo usr1' USR1; trap '' INT TERM; {READY} while :; do sleep 0.1; done"

    def attempt():
        run = site.start("bash", "-c", script)
        run.send_signal(signal.SIGUSR1)
        assert [run.stdout.readline() for _ in range(3)] == ["usr1\n"] * 3
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        assert any("SIGINT received" in line for line in iter(run.stderr.readline, ""))
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=200)
        assert run.returncode == 130
        lab.wait_until(lambda: not survivors(), 3, "the end of the ranks")
        return time.monotonic() - begin

    in_time(9, attempt)  # ten seconds after the first they are killed in any case


def test_a_killed_launcher_leaves_nothing_on_any_host(site, survivors):
    run = site.start("bash", "-c", f"trap '' TERM HUP; setsid sleep 600 & {READY} sleep 600")
    lab.wait_until(lambda: list(survivors().values()).count("sleep 600") == 6, 5, "two sleeps per rank")
    run.kill()
    run.communicate(timeout=200)


def test_what_ranks_leave_behind_goes_with_them(site, survivors):
    assert site.launch("bash", "-c", "setsid sleep 600 & exit 0").returncode == 0
    lab.wait_until(lambda: not survivors(), 3, "the end of the grandchildren")


@pytest.mark.parametrize("victim", ["start_agent.py", "client"])
def test_a_killed_agent_or_ssh_loses_its_host_and_ends_all(site, survivors, victim):
    run = site.start("bash", "-c", f"{READY} sleep 600")
    lines = {pid: line for pid, line in survivors().items() if victim in line and "shim.py" not in line}
    if victim == "start_agent.py":  # the ssh of the stand-in shows the same line
        lines = {pid: line for pid, line in lines.items() if pid in site.hosts["n02"].pids() and "client" not in line}
    else:
        lines = {pid: line for pid, line in lines.items() if " n02 " in line}
    os.kill(min(lines), signal.SIGKILL)
    errors = run.communicate(timeout=200)[1]
    assert run.returncode == 125, errors
    assert "ezpz: host n02 is lost: " in errors


@pytest.mark.slow
def test_a_host_that_vanishes_is_named_and_ends_the_run_on_both_sides(site):
    run = site.start("bash", "-c", f"{READY} sleep 600")
    site.hosts["n02"].vanish()
    errors = run.communicate(timeout=200)[1]
    assert run.returncode == 125
    assert "host n02 is lost: its connection ended, or answered no more; stopping the other ranks" in errors


def test_an_unknown_host_is_named_and_the_others_are_stopped(site):
    done = site.launch("sleep", "600", hosts="n01:2\nn09:1\n")
    assert done.returncode == 125
    told = "ezpz: cannot start ranks on n09: client of a folder ended with 255; expected an agent that reports. Try `"
    assert told in done.stderr
    assert "Could not resolve hostname n09" in done.stderr
    (site.hosts.folder / "gone" / "n02").touch()
    alone = site.launch("true", hosts="n02:1\n")
    [line] = [line for line in alone.stderr.splitlines() if "client of a folder ended" in line]
    assert line.startswith("ezpz: cannot start ranks on n02: client of a folder ended with 255; expected an agent")


@pytest.mark.skipif(not shutil.which("ssh"), reason="no ssh here")
def test_the_last_words_of_ssh_itself_are_part_of_the_line(site):
    done = site.launch("true", hosts="n01:1\n", EZPZ_SSH="ssh -p 2222")  # nobody listens there
    assert done.returncode == 125
    assert "cannot start ranks on n01: ssh ended with 255, saying 'ssh: connect to host n01 port 2222" in done.stderr
    assert "Try `ssh -p 2222 -o BatchMode=yes -o ConnectTimeout=10 -x -T n01 true`" in done.stderr


@pytest.mark.parametrize(
    ("client", "more", "words"),
    [
        ('rm -rf "$PWD"; {} "$@"', {}, "(from the launcher's working folder): No such file or directory; expected"),
        ("cat >/dev/null; exit 0", {}, "cannot start ranks on n0"),
        ('echo x | {} "$@"', {}, "came through ssh: found b'x' (from stdin); expected its length. "),
        ("true", {"EZPZ_SSH": "/no/such/ssh"}, "cannot run /no/such/ssh (from EZPZ_SSH): No such file or directory"),
    ],
)
def test_hosts_where_nothing_can_start_are_told_in_time(site, client, more, words):
    site.client(client.format(f'"{site.hosts.rsh}"'))
    done = site.launch("sleep", "600", timeout=15, **more)
    assert done.returncode == 125
    assert words in done.stderr, done.stderr


def test_hosts_that_never_report_are_told_in_time(site):
    site.client("exec sleep 600", form="#!/bin/bash\n{}\n")
    done = site.launch("--start-timeout", "1", "true")
    assert done.returncode == 125
    assert "2 of 2 hosts did not come up within 1 s: n01 (nothing was heard of it), n02 (nothing" in done.stderr
    assert ". Try `" in done.stderr


@pytest.mark.slow
def test_an_agent_alone_binds_its_ranks_and_stops_them_after_a_failure(clean_env, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the parcel names the folder that the ranks run in
    cpus = sorted(os.sched_getaffinity(0))[:2]
    plan = {"EZPZ_PLACEMENT": "1,2", "EZPZ_CPUS": ":".join(map(str, [cpus[0], cpus[-1]])), "MASTER_ADDR": "127.0.0.1"}
    program = """
import os, time
rank = os.environ["RANK"]
print(rank, *os.sched_getaffinity(0), flush=True)
open(f"up-{rank}", "w").close()
while rank == "1" or not os.path.exists("up-1"):
    time.sleep(0.1)
os._exit(6)
"""
    parcel = pack([sys.executable, "-c", program], {**clean_env, **plan})
    line = [sys.executable, "-I", "-S", AGENT, "1"]
    how = {"env": clean_env, "cwd": tmp_path, "capture_output": True, "timeout": 200}
    done = subprocess.run(line, check=False, input=parcel, **how)
    assert done.returncode == 6, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == [f"1 {cpus[0]}", f"2 {cpus[-1]}"]


def test_a_rank_that_leaves_with_0_is_the_cause_of_what_ranks_of_other_hosts_lose(site):
    check_leaving(site.launch(*LEAVING, hosts="n01:1\nn02:2\n"))
