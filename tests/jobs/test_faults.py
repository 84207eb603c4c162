"""Faults of twelve kinds over namespaced hosts: who is retired, where the next attempt runs, when it stops, and why."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from lab import flavours, process, seed, system
from lab.require import require
from lab.slurm import Slurm
from lab.slurm import problem as slurm_problem
from lab.ssh import LAUNCH, Site

FLAVOURS = ("ssh", "mpich", "openmpi", "srun")
NAMES = ("n01", "n02", "n03", "n04")
SAME, OTHERS = ["n01", "n02", "n03"], ["n01", "n03", "n04"]
OPTIONS = ("--nhosts", "3", "--ppn", "1", "--attempts", "5")
# A rank says that it is there, does what its fault wants in the first attempt (or always), and ends well.
PROGRAM = """
import os, signal, sys, time
sys.path.insert(0, SRC)
import ezpz
host, attempt = os.uname().nodename, int(os.environ["EZPZ_ATTEMPT"])
def mine():
    return host == "n02"
def disk_full():
    raise OSError(28, "No space left on device", "checkpoints/step-3")
def bug():
    raise ValueError("my bug")
def device():
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
def wait():
    time.sleep(600)
def until(name):
    while not os.path.exists(name):
        time.sleep(0.05)
for step in range(3):
    if step == STEP:
        open(f"at.{attempt}.{host}", "w").close()
        FAULT
    ezpz.heartbeat(step)
"""


# The script of a job of Slurm. Its shell outlives the signal at the end of the job, and keeps what launch ends with.
JOB = """\
#!/bin/bash
trap : TERM
touch granted
until [[ -e go ]]; do sleep 0.05; done
{line} 2>err
echo $? >code
"""


class Fault(NamedTuple):
    """What happens: in the ranks, at which step, from outside; and what is right."""

    program: str = "pass"
    step: int = 1
    outside: str = ""
    retired: tuple = ()
    then: list | None = None  # the hosts of the second attempt; None: there is none
    why: str = ""  # of the last decision
    code: int = 0


FAULTS = {
    "cut off": Fault("attempt == 1 and wait()", outside="vanish", retired=("n02",), then=OTHERS),
    "frozen": Fault("attempt == 1 and wait()", outside="freeze", retired=("n02",), then=OTHERS),
    "agent killed": Fault("attempt == 1 and wait()", outside="agent", retired=("n02",), then=OTHERS),
    "unreachable": Fault(outside="gone", retired=("n02",), then=OTHERS),
    "rank killed": Fault("attempt == 1 and mine() and os.kill(os.getpid(), 9)", then=SAME),
    "rank crashed": Fault("attempt == 1 and mine() and os.kill(os.getpid(), 11)", then=SAME),
    "device error at the start": Fault("attempt == 1 and mine() and device()", 0, retired=("n02",), then=OTHERS),
    "device error at a step": Fault(
        "attempt == 1 and mine() and device()", 2, retired=("n02",), then=OTHERS,
    ),
    "disk full": Fault("mine() and disk_full()", why="disk is full", code=1),
    "bug": Fault("mine() and bug()", then=SAME, why="it is the program", code=1),
    "bad_alloc": Fault(
        "attempt == 1 and mine() and (sys.stderr.write('std::bad_alloc\\n'), os.kill(os.getpid(), 15), wait())",
        then=SAME,
    ),
    "wall time": Fault("wait()", outside="wall", why="allocation ends", code=143),
}  # fmt: skip


class Ground:
    """A lab of four hosts and a head, and launches from that with a flavour."""

    def __init__(self, name, lab, clean_env, folder):
        self.name, self.lab, self.folder = name, lab, folder
        folder.mkdir()
        site = Site(lab, clean_env, folder)
        self.env = {**site.env, "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder)}
        if name in flavours.NAMES:
            bins = [flavours.Flavour(name).bin, flavours.base_bin()]
            self.env["PATH"] = os.pathsep.join([*map(str, bins), *process.SYSTEM_PATH])
            self.env |= {"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": str(lab.rsh)}
            self.env |= {"PRTE_MCA_plm_ssh_agent": str(lab.rsh)}
        self.outside = {
            "vanish": lab["n02"].vanish,
            "freeze": self._freeze,
            "agent": self._kill_agent,
            "wall": self._end,
        }

    def launch(self, fault):
        """Return exit code, stderr and the rows of run.json of one launch with this fault."""
        program = PROGRAM.replace("SRC", repr(self.env["PYTHONPATH"])).replace("FAULT", fault.program)
        (self.folder / "train.py").write_text(program.replace("STEP", str(fault.step)))
        code = self._launch(fault)
        if fault.outside == "freeze":  # a host that lives again has nothing left of the run
            self._signal_all(signal.SIGCONT)
        if fault.outside in {"freeze", "vanish"}:  # one that is cut off ends all when it notices that it is alone
            tag = self.env["EZPZ_TEST_TAG"]
            process.wait_until(lambda: not process.survivors(tag), 60, "the end of what was frozen or cut off")
        record = next((self.folder / "state").glob("ezpz/launches/*/run.json"))
        return code, (self.folder / "err").read_text(), json.loads(record.read_text())["attempts"]

    def _launch(self, fault):
        if fault.outside == "gone":
            (self.lab.folder / "gone" / "n02").touch()
        line = [*LAUNCH, "--hosts", ",".join(NAMES), *OPTIONS, sys.executable, "train.py"]
        with (self.folder / "err").open("wb") as err:
            self.started = self.lab["head"].popen(
                line, self.env, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=err
            )
            waits = threading.Thread(target=self._then, args=(fault.outside,), daemon=True)
            waits.start()
            process.wait_until(lambda: self.started.poll() is not None, 150, "the end of the launch")
            code = self.started.returncode
            waits.join(30)
        return code

    def _then(self, outside):
        if outside in self.outside:
            there = [self.folder / f"at.1.{host}" for host in SAME]
            process.wait_until(lambda: all(path.exists() for path in there), 60, "the ranks of the first attempt")
            self.outside[outside]()

    def _freeze(self):
        self._signal_all(signal.SIGSTOP)

    def _signal_all(self, number):
        for pid in self.lab["n02"].pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _kill_agent(self):
        comm = {pid: Path("/proc", str(pid), "comm").read_text().strip() for pid in self.lab["n02"].pids()}
        os.kill(next(pid for pid, name in comm.items() if name == "ezpz-agent"), signal.SIGKILL)

    def _end(self):
        """Send what a scheduler sends at the end of a job."""
        os.kill(self.started.pid, signal.SIGTERM)


class JobGround(Ground):
    """The same from the script of a job of a real Slurm, which runs on the first of its four hosts.

    Args:
        options: More options of sbatch: with --no-kill the job outlives its hosts.
    """

    def __init__(self, lab, clean_env, folder, options):
        super().__init__("srun", lab, clean_env, folder)
        del self.env["EZPZ_SSH"]
        self.options = [*options]
        self.slurm = Slurm(lab, kill_wait=30).start()
        self.outside |= {
            "wall": lambda: None,  # the minute of the job is soon over
            "down": self._set_down,
            "later": self._set_down_later,
        }

    def _launch(self, fault):
        line = shlex.join([*LAUNCH, *OPTIONS, sys.executable, "train.py"])
        words = ["-N4", "-n4", *self.options, *["--time=1"][: fault.outside == "wall"]]
        self._submit(words, JOB.format(line=line))
        process.wait_until((self.folder / "granted").exists, 60, "the start of the job")
        if fault.outside == "gone":
            self.lab["n02"].vanish()
        (self.folder / "go").touch()
        self._then(fault.outside)
        return int(process.wait_until(lambda: self._read("code"), 150, "the end of the launch"))

    def _submit(self, words, script):
        submit = ["sbatch", "--parsable", *words, "--chdir", self.folder, "--output", self.folder / "out"]
        done = self.slurm.run(submit, self.env, stdin=script)
        assert done.returncode == 0, done.stderr

    def _read(self, name):
        path = self.folder / name
        return path.read_text().strip() if path.exists() else ""

    def _set_down_later(self):
        self._kill_agent()
        there = [self.folder / f"at.2.{host}" for host in OTHERS]
        process.wait_until(lambda: all(path.exists() for path in there), 60, "the ranks of the second attempt")
        self._set_down()

    def _set_down(self):
        """Do what slurmctld does with a host that has not answered for SlurmdTimeout, 300 s by default."""
        self.slurm.run(["scontrol", "update", "nodename=n02", "state=down", "reason=test"]).check_returncode()
        (self.folder / "down").touch()


class ShellGround(JobGround):
    """The same from a shell of salloc on the head, which is none of the job's hosts."""

    def _submit(self, words, script):
        line = ["salloc", "--quiet", *words, "bash", "-c", script]
        self.shell = self.lab["head"].popen(
            line, {**self.env, **self.slurm.env}, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def ground(flavour, make_hosts, clean_env, tmp_path, options=("--no-kill",), kind=JobGround):
    """Return the ground of launches with this flavour, or skip the test; `options` and `kind` are of a job of Slurm."""
    require({"srun": "slurm", "ssh": "hosts"}.get(flavour, flavour), why_no_ground(flavour))
    lab = make_hosts("head", *NAMES)
    if flavour == "srun":
        return kind(lab, clean_env, tmp_path / "here", options)
    return Ground(flavour, lab, clean_env, tmp_path / "here")


REPEATS = int(os.environ.get("EZPZ_TEST_ATTEMPTS") or 0)  # `make matrix`: every fault on every flavour, so often


def why_no_ground(flavour):
    """Why no launches with this flavour can be staged here, or None."""
    return slurm_problem() if flavour == "srun" else flavours.Flavour(flavour).problem() if flavour != "ssh" else None


def cell(flavour, name, number):
    """Return the name of one result for the table of docs/attempts.md."""
    return f"attempts / {flavour} / {name} / {number}"


def cases():
    """Yield every fault on every flavour, so often; or, in `make test`, on one that the seed of the day draws."""
    there = [flavour for flavour in FLAVOURS if not why_no_ground(flavour)] or FLAVOURS
    for name in FAULTS:
        for flavour in FLAVOURS if REPEATS else [seed.pick(seed.of_the_day(), f"attempts {name}", there)]:
            for number in range(1, max(REPEATS, 1) + 1):
                id_ = f"{flavour}-{name}".replace(" ", "-") + (f"-{number}" if REPEATS else "")
                yield pytest.param(flavour, name, number, id=id_)


@pytest.mark.slow
@pytest.mark.parametrize(("flavour", "name", "number"), [*cases()])
def test_a_fault_and_what_follows(flavour, name, number, make_hosts, clean_env, tmp_path, record_property):
    record_property("cell", cell(flavour, name, number))  # tests/reliability/conftest.py keeps it for the table
    fault = FAULTS[name]
    code, err, rows = ground(flavour, make_hosts, clean_env, tmp_path).launch(fault)
    told = f"{err}\n{json.dumps(rows, indent=1)}"
    retired = [host for row in rows for host in row["retired"]]
    assert (rows[0]["hosts"], retired) == (SAME, [*fault.retired]), told
    assert [row["hosts"] for row in rows[1:]] == ([fault.then] if fault.then else []), told
    assert code == fault.code, told
    if name != "wall time" or flavour == "srun":  # outside of a job no end is known
        assert fault.why in rows[-1]["because"], told
    else:
        assert rows[-1]["because"] == "a signal from outside has ended it", told
    assert rows[-1]["decision"] == "stop"
    assert rows[-1]["exit_code"] == code
    if fault.then:
        assert f"again on {', '.join(fault.then)}" in err, told
        assert "ezpz: 2 attempts: 1 on n01, n02, n03: " in err, told
    if "rank" in name or name in {"bug", "bad_alloc"}:
        assert {host for host, verdict in rows[0]["probe"].items() if verdict["answered"]} == set(NAMES), told


def refused(site, *words):
    """Launch three of four hosts, one of which cannot take part; return the launch, and the rows of its attempts."""
    line = [*LAUNCH, "--hosts", ",".join(NAMES), "--nhosts", "3", "--ppn", "1", "--attempts", "3", "--flavour", "ssh"]
    done = site.hosts["head"].run([*line, *words], site.env, cwd=site.folder, timeout=90)
    records = Path(site.env["XDG_STATE_HOME"]).glob("ezpz/launches/*/run.json")
    return done, json.loads(max(records, key=os.path.getmtime).read_text())["attempts"]


@pytest.mark.slow
def test_a_host_that_lacks_what_its_ranks_need_is_retired_without_a_probe(make_hosts, clean_env, tmp_path):
    folder, empty, hosts = tmp_path / "here", tmp_path / "empty", make_hosts("head", *NAMES)
    for path in (folder / "sub", empty):
        path.mkdir(parents=True)
    (folder / "sub" / "train.py").write_text("")
    site = Site(hosts, {**clean_env, "XDG_STATE_HOME": str(tmp_path / "state")}, folder)
    planted = hosts["n02"].tmp / "enter"
    script = [sys.executable, "sub/train.py"]

    planted.write_text(f"mount --bind {empty} {folder}/sub\n")
    done, rows = refused(site, *script)
    assert (done.returncode, [row["exit_code"] for row in rows]) == (0, [125, 0]), done.stderr
    assert rows[0]["retired"] == {"n02": "it cannot read sub/train.py (No such file or directory)"}
    assert rows[1]["hosts"] == OTHERS
    assert rows[0]["refused"].startswith("n02: cannot read sub/train.py (from the command line): ")

    planted.write_text(f"mount --bind {empty} {tmp_path}\n")
    done, rows = refused(site, *script)
    assert (done.returncode, rows[1]["hosts"], [*rows[0]["retired"]]) == (0, OTHERS, ["n02"]), done.stderr
    words = [line for line in done.stderr.splitlines() if "cannot enter" in line]
    assert [line.partition(" (from")[0] for line in words[:2]] == [
        f"ezpz: cannot start ranks on n02: cannot enter {folder} on n02",
        f"ezpz: attempt 1 of 3 ended with 125; again on n01, n03, n04: n02 is retired: cannot enter {folder} on n02",
    ], done.stderr
    assert not [row for row in rows if "probe" in row]
    planted.unlink()

    done, rows = refused(site, sys.executable, "nowhere.py")  # the user's mistake, not a host's
    assert (done.returncode, len(rows), "cannot read nowhere.py" in done.stderr) == (2, 1, True), done.stderr

    for name in ("n02", "n03", "n04"):
        prohibit = [system.path("ip"), "route", "add", "prohibit", f"{hosts['n01'].address}/32"]
        subprocess.run(hosts[name].command(prohibit), check=True)
    done, rows = refused(site, *script)
    assert (done.returncode, rows[1]["hosts"]) == (0, ["n02", "n03", "n04"]), done.stderr
    assert rows[0]["retired"]["n01"].startswith("no other host reaches it (n02: "), done.stderr


def test_a_fault_in_a_shell_of_salloc(make_hosts, clean_env, tmp_path):
    code, err, rows = ground("srun", make_hosts, clean_env, tmp_path, kind=ShellGround).launch(FAULTS["agent killed"])
    told = f"{err}\n{json.dumps(rows, indent=1)}"
    assert (code, [row["hosts"] for row in rows], [*rows[0]["retired"]]) == (0, [SAME, OTHERS], ["n02"]), told


DOWN = Fault("attempt == 1 and wait()", outside="down", retired=("n02",), then=OTHERS)
# The agent is killed in the first attempt; in the second, which has no rank there, Slurm notices that the host is gone.
LATER = Fault("wait() if attempt == 1 else (until('down'), time.sleep(5))", outside="later")


@pytest.mark.parametrize("options", [["--no-kill"], []])
def test_a_host_that_slurm_marks_down(make_hosts, clean_env, tmp_path, options):
    """Before the launch notices: Slurm kills the step, and without --no-kill the whole job."""
    code, err, rows = ground("srun", make_hosts, clean_env, tmp_path, options).launch(DOWN)
    told = f"{err}\n{json.dumps(rows, indent=1)}"
    assert rows[0]["cause"]["text"].startswith("host n02 is lost: its node failed, says srun"), told
    assert "probe" not in rows[0], told
    if options:
        assert (code, [*rows[0]["retired"]], rows[1]["hosts"]) == (0, ["n02"], OTHERS), told
    else:
        assert (code, len(rows), rows[0]["decision"]) == (143, 1, "stop"), told
        assert "submit it with --no-kill" in rows[0]["because"], told


@pytest.mark.parametrize("options", [["--no-kill"], []] if REPEATS else [[]])
def test_a_retired_host_that_slurm_marks_down(make_hosts, clean_env, tmp_path, options):
    """While the next attempt runs on others, which without --no-kill is ended with the job."""
    code, err, rows = ground("srun", make_hosts, clean_env, tmp_path, options).launch(LATER)
    told = f"{err}\n{json.dumps(rows, indent=1)}"
    assert [row["hosts"] for row in rows] == [SAME, OTHERS], told
    if options:
        assert (code, rows[1]["because"]) == (0, "it has succeeded"), told
    else:
        ended = "the job has lost a host, says srun; Slurm ended the job for that; submit it with --no-kill to go on"
        assert (code, rows[1]["because"]) == (143, ended), told


def test_attempts_inside_torchrun_are_refused(run_cli, clean_env):
    inside = {"TORCHELASTIC_RUN_ID": "r", "RANK": "0", "WORLD_SIZE": "2"}
    done = run_cli([*LAUNCH, "--attempts", "2", "true"], {**clean_env, **inside})
    assert done.returncode == 2
    assert "--max-restarts" in done.stderr


@pytest.mark.slow
def test_one_host_a_success_and_the_end_of_the_tries(run_cli, clean_env, tmp_path):
    env = {**clean_env, "XDG_STATE_HOME": str(tmp_path)}
    done = run_cli([*LAUNCH, "--attempts", "3", "-n", "2", "bash", "-c", "echo $EZPZ_ATTEMPT"], env)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1"]), done.stderr
    assert "attempt" not in done.stderr
    options = ["--attempts", "2", "--log-dir", str(tmp_path / "logs"), "-n", "2"]
    done = run_cli([*LAUNCH, *options, "bash", "-c", "echo $RANK; exit 9"], env)
    assert done.returncode == 9
    assert "attempt 2 of 2 ended with 9; no further one: that was the last (--attempts 2)" in done.stderr
    *_, last = (line for line in done.stderr.splitlines() if line.startswith("ezpz: 2 attempts: "))
    assert re.match(
        r"ezpz: 2 attempts: 1 on \S+: 9 \(rank \d on host \S+ \(pid \d+\) exited with code 9\); 2 on ", last
    )
    assert (tmp_path / "logs/attempt-1/rank-0.log").read_text() == "0\n"
    assert (tmp_path / "logs/attempt-2/rank-1.log").read_text() == "1\n"
    rows = json.loads((tmp_path / "logs/run.json").read_text())["attempts"]
    assert [row["decision"] for row in rows] == ["again", "stop"]
    assert len({row["launch_id"] for row in rows}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("end", [0, 3000, 90])
def test_a_signal_between_two_attempts_is_the_end_and_says_so(clean_env, tmp_path, end):
    """With the end of the job as Slurm tells it, in so many seconds; 0 outside of any."""
    env = {**clean_env, "XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    if end:
        here = {"SLURM_JOB_NODELIST": os.uname().nodename, "SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "1"}
        env |= {"SLURM_JOB_ID": "77", "SLURM_JOB_END_TIME": str(int(time.time()) + end), "SLURM_NTASKS": "1", **here}
    line = [*LAUNCH, "--flavour", "local", "--attempts", "3", "-n", "1", "sh", "-c", "exit 5"]
    launch = subprocess.Popen(line, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while "no host is to blame for attempt 1 so far; probing " not in (told := launch.stderr.readline()):
        assert told
    launch.send_signal(signal.SIGTERM)
    told = launch.communicate(timeout=60)[1]
    record = json.loads(next(tmp_path.glob("ezpz/launches/*/run.json")).read_text())
    why = "the allocation ends; start it again" if end == 90 else "a signal from outside has ended it"
    assert launch.returncode == 143, told
    assert f"ezpz: SIGTERM received after attempt 1; no further one: {why}" in told
    assert record["attempts"][0]["because"].startswith(f"SIGTERM came between two attempts: {why}")
    assert not [*tmp_path.rglob("probe-*")]
