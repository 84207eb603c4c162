"""Several worlds on the hosts of one launch: what ends one leaves the others alone; what ends the launch ends all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import process
from lab.flavours import remote
from lab.process import wait_until
from lab.ssh import SRC

DRIVER = Path(__file__).parent / "scripts" / "worlds.py"
WELL = "echo well $RANK of $WORLD_SIZE; sleep 2; echo over"
FAILS = "sleep 0.5; [ $RANK != 1 ] || exit 3; sleep 600"
SLEEPS = "echo ready; exec sleep 600"


def line(hosts, *worlds, python=sys.executable):
    given = [[[*options, "--", "bash", "-c", script], *where] for options, script, *where in worlds]
    return [python, str(DRIVER), json.dumps([hosts, *given])]


@pytest.fixture
def here(clean_env, tmp_path):
    """`here(*worlds)` -> a run of them on this host."""

    def run(*worlds, **more):
        told = line(["-n", "2"], *((options, script, [0], *after) for options, script, *after in worlds))
        return process.run(told, {**clean_env, "PYTHONPATH": SRC, **more}, cwd=tmp_path, timeout=60)

    return run


def codes(done):
    return json.loads(done.stdout.splitlines()[-1])


def check_well(done, world=1, ranks=2):
    """One of the worlds ran to its end, and said all that it had to say."""
    said = [text for text in done.stdout.splitlines() if text.startswith(f"[{world}/")]
    first = [f"[{world}/{rank}]: well {rank} of {ranks}" for rank in range(ranks)]
    assert sorted(said) == sorted([*first, *(f"[{world}/{rank}]: over" for rank in range(ranks))]), done


def test_one_fails_and_the_other_ends_well(here):
    done = here((["-n", "2"], WELL), (["-n", "3"], FAILS))
    check_well(done)
    assert (done.returncode, codes(done)[1:]) == (3, [0, 3]), done
    assert done.stderr.count("stopping the other ranks") == 1
    assert "ezpz: world 2: rank 1 on host " in done.stderr


ENDS = {
    "no program": (["-n", "2"], "no-such-program-of-ezpz", 127, "exited with code 127"),
    "killed": (["-n", "2"], "kill -SEGV $$", 139, "was killed by SIGSEGV"),
    "all fail": (["-n", "3"], "sleep 0.5; exit 9", 9, "failed in the same way"),
    "a limit": (["-n", "2", "--timeout", "1"], "sleep 600", 124, "has not ended within 1 s"),
    "one leaves": (["-n", "2", "--exit-timeout", "1"], "[ $RANK = 0 ] || sleep 600", 124, "others still run 1 s"),
}


def test_whatever_ends_one_the_others_go_on(here):
    """All at once: limits, gates and ends are of each world alone."""
    done = here((["-n", "1"], WELL), *((options, script) for options, script, *_ in ENDS.values()))
    check_well(done, ranks=1)
    assert codes(done)[1:] == [0, *(code for _, _, code, _ in ENDS.values())], done
    for number, (*_, words) in enumerate(ENDS.values(), start=2):
        assert [text for text in done.stderr.splitlines() if f"ezpz: world {number}: " in text and words in text], done


@pytest.fixture
def there(site):
    """`there(*worlds)` -> the process of a run on n01 and n02, by ssh."""

    def start(*worlds, hosts=(), **more):
        (site.folder / "hosts").write_text("n01:2\nn02:2\n")
        told = line(["--hostfile", "hosts", *hosts], *worlds)
        pipe = subprocess.PIPE
        env = {**site.env, **more}
        return site.hosts["head"].popen(told, env, cwd=site.folder, stdout=pipe, stderr=pipe, text=True)

    return start


def ended(run):
    out, err = run.communicate(timeout=60)
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


SAVES = f"{sys.executable} {DRIVER.parent / 'saves_when_asked.py'}"
READY = "until [ -e up-0 ]; do sleep 0.1; done; kill -TERM $(ps -o ppid= $(ps -o ppid= $$))"
ONE = ["-n", "1"]


def test_a_sigterm_waits_for_a_save_of_one_and_no_failure_of_another(here):
    done = here((ONE, f"exec {SAVES}"), (ONE, f"trap '' TERM; {READY}; sleep 0.5; exit 3"), SAVE_SECONDS="2")
    assert "rank 0 saved" in done.stdout, done
    assert codes(done) == [143, 143, 143], done


def test_a_sigterm_waits_for_the_saves_of_all(here, tmp_path):
    for name in ("quick", "slow"):
        (tmp_path / name).mkdir()
    quick, slow = f"cd quick; SAVE_SECONDS=0.2 exec {SAVES}", f"cd slow; SAVE_SECONDS=2 exec {SAVES}"
    done = here((ONE, quick), (ONE, slow), (ONE, f"cd slow; trap '' TERM; {READY}; sleep 3"))
    assert done.stdout.count("rank 0 saved") == 2, done
    assert codes(done) == [143] * 4, done


def test_a_sigterm_waits_no_longer_for_a_world_that_has_ended(here):
    began = time.monotonic()
    asked = f"{SAVES} & {READY}; sleep 0.5; kill -KILL $!; exit 0"
    done = here((ONE, asked), (ONE, SLEEPS), SAVE_SECONDS="30")
    assert codes(done) == [143, 143, 143], done
    assert time.monotonic() - began < 10, done


@pytest.mark.parametrize(
    ("ends", "code"), [("kill -TERM $LAUNCHER", 143), ("kill -KILL $(ps -o ppid= $$)", 125)], ids=["asked", "lost"]
)
def test_no_world_is_begun_when_the_launch_ends(here, ends, code):
    """Whoever begins the next one at the end of another hears of that end, too."""
    asks = f"LAUNCHER=$(ps -o ppid= $(ps -o ppid= $$)); {ends}; exec sleep 600"
    done = here((["-n", "1"], asks), (["-n", "1"], "echo never", 1), (["-n", "1"], "echo never", 2))
    assert "never" not in done.stdout, done
    assert (done.returncode, set(codes(done))) == (code, {code}), done


BOTH = ["--hosts", "n01,n02", "--ppn", "1"]
FIRST, SECOND = ["--hosts", "n01", "-n", "2"], ["--hosts", "n02", "-n", "2"]


def test_on_several_hosts_one_fails_and_the_others_end_well(there, survivors):
    done = ended(there((BOTH, WELL, [0, 1]), (BOTH, FAILS, [0, 1]), (SECOND, WELL, [1])))
    check_well(done)
    check_well(done, 3)
    assert (done.returncode, codes(done)[1:]) == (3, [0, 3, 0]), done
    assert "ezpz: world 2: rank 1 on host n02 (pid " in done.stderr
    assert survivors() == {}


@pytest.mark.parametrize("killed", ["start_agent.py 1", "client of a folder"])
def test_a_host_that_is_lost_ends_the_worlds_on_it_alone(there, survivors, killed):
    """Whether its agent was killed, or the ssh in front of it alone."""
    run = there((FIRST, WELL.replace("sleep 2", "sleep 5"), [0]), (BOTH, SLEEPS, [0, 1]), (SECOND, SLEEPS, [1]))
    said = sorted(run.stdout.readline() for _ in range(6))
    ready = [f"[{at}]: ready\n" for at in ("2/0", "2/1", "3/0", "3/1")]
    assert said == ["[1/0]: well 0 of 2\n", "[1/1]: well 1 of 2\n", *ready]
    for pid in [pid for pid, words in survivors().items() if words.endswith("start_agent.py 1") and killed in words]:
        os.kill(pid, signal.SIGKILL)
    out, err = run.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])[1:] == [0, 125, 125], (out, err)
    assert out.count("over") == 2, (out, err)
    assert err.count("ezpz: world 2: host n02 is lost") == err.count("ezpz: world 3: host n02 is lost") == 1
    assert survivors() == {}


def test_a_world_on_a_host_that_was_lost_is_refused(there, survivors):
    run = there((SECOND, SLEEPS, [1]), (FIRST, WELL, [0], 1), (BOTH, WELL, [0, 1], 1), (SECOND, WELL, [1], 1))
    assert [run.stdout.readline() for _ in range(2)]
    for pid in [pid for pid, words in survivors().items() if words.endswith("start_agent.py 1")]:
        os.kill(pid, signal.SIGKILL)
    done = ended(run)
    check_well(done, 2)
    assert codes(done)[1:] == [125, 0, 125, 125], done
    for number in (3, 4):
        said = (
            f"ezpz: world {number}: cannot start ranks on n02: world {number} cannot be started on n02: its agent has"
        )
        assert said in done.stderr, done
    assert survivors() == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_what_ends_the_launch_ends_all(there, survivors, number, code):
    run = there((BOTH, SLEEPS, [0, 1]), (SECOND, f"trap '' INT TERM; {SLEEPS}", [1]))
    assert [run.stdout.readline().split()[1] for _ in range(4)] == ["ready"] * 4
    run.send_signal(number)
    if number == signal.SIGINT:  # the second world does not heed the first one
        time.sleep(0.5)
        run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == code
    wait_until(lambda: survivors() == {}, 20, "all ranks are gone")


def test_agents_that_an_mpiexec_has_started_hold_them_as_well(hosts, mpich, tmp_path, survivors):
    """Under ``--mpi no``; what is in front of the agents ends only when these do."""
    (tmp_path / "hosts").write_text("n01:2\nn02:2\n")
    told = line(
        ["--hostfile", "hosts", "--flavour", "mpich", "--mpi", "no"], (BOTH, WELL, [0, 1]), (BOTH, FAILS, [0, 1])
    )
    env = {**mpich, **remote(hosts), "PYTHONPATH": SRC, "EZPZ_NGPU_PER_HOST": "0"}
    done = hosts["head"].run(told, env, cwd=tmp_path, timeout=60)
    check_well(done)
    assert (done.returncode, codes(done)[1:]) == (3, [0, 3]), done
    assert survivors() == {}
