"""What can be known before anything starts, and odd machines: cases 20, 27 to 37, 39 and 40."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from playing import Case, fail, only
from runs import WORLD

from lab import process
from lab.ssh import LAUNCH

# What is planned does not depend on who starts the ranks, so these run once.
ONCE = only("local")
HERE = os.uname().nodename
TELL = 'up; echo "$RANK/$WORLD_SIZE $LOCAL_RANK"'


def told(run):
    found = sorted(run.output().decode().split("\n")[:-1])
    assert [line.split()[0] for line in found] == [f"{rank}/{WORLD}" for rank in range(WORLD)], found


def once(number, name, *, code, says="", after=None, line=None, **more):
    """A case whose answer comes before any rank: `line` replaces all words behind ``ezpz.launch``."""

    def wrap(_stage, _line):
        return [*LAUNCH, *(word.replace("{folder}", str(_stage.folder)) for word in line)]

    return Case(
        number=number,
        name=name,
        code=code,
        cause=f"^ezpz: .*{says}" if says else "",
        after=after,
        wrap=wrap if line else None,
        not_on=ONCE,
        **more,
    )


def plan(expected):
    """`--json` tells this number of ranks per host."""

    def check(run):
        assert json.loads(run.output())["ranks_per_host"] == expected, run.output()

    return check


def write(name, content):
    def setup(stage):
        (stage.folder / name).write_bytes(content)

    return setup


def take_port(stage):
    """A listener on the port that MASTER_PORT names; it ends with the stage's processes."""
    holder = f"import socket, time; s = socket.create_server(('', {PORT})); "
    holder += f"open({str(stage.folder / 'held')!r}, 'w'); time.sleep(600)"
    subprocess.Popen([sys.executable, "-I", "-S", "-c", holder], env=stage.env(), start_new_session=True)
    process.wait_until((stage.folder / "held").exists, 10, "a port that is taken")


PORT = 29_437


def free_the_port(run):
    process.kill_all(run.left())


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NNODES": "3", "SLURM_JOB_NUM_NODES": "3"}
JSON = ["--json", "--flavour", "ssh", "true"]
MASTER = {"MASTER_ADDR": "192.0.2.1"}

PLANS = (
    Case(
        number="19",
        name="the job's wall time is near its end",
        ranks='up; sleep 3; echo yes >"$D/done.$RANK"',
        env={"SLURM_JOB_END_TIME": "{in 61 s}"},
        code=0,
        cause=r"^ezpz: .*(minute|60 s|1 min)",
        not_on=only("srun"),
    ),
    Case(
        number="20",
        name="MASTER_PORT is taken before the start",
        setup=take_port,
        env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)},
        wrap=lambda _stage, line: line,
        code=2,
        cause=rf"^ezpz: .*{PORT}",
        not_on=ONCE,
        meanwhile=lambda run: (run.process.wait(100), free_the_port(run)),
    ),
    Case(
        number="27",
        name="RANK, WORLD_SIZE and LOCAL_RANK of an outer launcher",
        ranks=TELL,
        env={"RANK": "7", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "MASTER_PORT": "1"},
        code=0,
        after=told,
    ),
    once("28", "SLURM variables of a job that is over", code=(2, 125), says="", env=SLURM, line=["true"]),
    once(
        "28",
        "the same, and a host that is none of that job",
        code=2,
        says="job 7",
        env=SLURM,
        line=["--hosts", HERE, "--flavour", "local", "-n", "2", "true"],
    ),
    once("29", "a host file that is missing", code=2, says="no-such-file", line=["--hostfile", "no-such-file", "true"]),
    once(
        "29",
        "an empty host file",
        code=2,
        says="hosts.txt",
        setup=write("hosts.txt", b"# none\n\n"),
        line=["--hostfile", "{folder}/hosts.txt", "true"],
    ),
    once(
        "29",
        "a host file of Windows, with comments, repeats and slots",
        code=0,
        env=MASTER,
        setup=write("hosts.txt", b"# ours\r\nn1 slots=2\r\nn2:3 # big\r\nn2\r\n\r\n"),
        line=["--hostfile", "{folder}/hosts.txt", *JSON],
        after=plan([2, 4]),
    ),
    once(
        "29",
        "a word that no host file has",
        code=2,
        says="2",
        setup=write("hosts.txt", b"n1\nn2 colour=red\n"),
        line=["--hostfile", "{folder}/hosts.txt", "true"],
    ),
    once(
        "29",
        "a host file that is no UTF-8",
        code=2,
        says="UTF-8",
        setup=write("hosts.txt", b"n1\nn\xff\xfe2\n"),
        line=["--hostfile", "{folder}/hosts.txt", "true"],
    ),
    once(
        "29",
        "a host file of 10,000 lines",
        code=0,
        env=MASTER,
        setup=write("hosts.txt", b"".join(b"n%05d\n" % index for index in range(10_000))),
        line=["--hostfile", "{folder}/hosts.txt", "--ppn", "1", *JSON],
        after=plan([1] * 10_000),
    ),
    *(
        once("30", f"the host list {text}", code=2, says="--hosts", line=["--hosts", text, "true"])
        for text in ("n[1-", "n[]", "n[3-1]", "n[1-1000000000]")
    ),
    once(
        "31",
        "SLURM_TASKS_PER_NODE=4(x2),3",
        code=0,
        env={**SLURM, **MASTER, "SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NTASKS": "11"},
        line=["--json", "true"],
        after=plan([4, 4, 3]),
    ),
    once(
        "31",
        "SLURM_TASKS_PER_NODE that does not fit the hosts",
        code=(2, 125),
        says="SLURM_TASKS_PER_NODE",
        env={**SLURM, **MASTER, "SLURM_TASKS_PER_NODE": "4(x2)"},
        line=["--json", "true"],
    ),
    once(
        "32",
        "PBS_NODEFILE that cannot be read",
        code=(2, 125),
        says="PBS_NODEFILE",
        env={"PBS_JOBID": "1.head", "PBS_NODEFILE": "/no/such/file"},
        line=["true"],
    ),
    once(
        "33",
        "PBS_JOBID of an array",
        code=0,
        setup=write("nodes", b"n1\nn2\n"),
        env={**MASTER, "PBS_JOBID": "123[4].head.example", "PBS_NODEFILE": "{folder}/nodes"},
        line=["--flavour", "ssh", "--json", "true"],
        after=plan([1, 1]),
    ),
    *(
        once("34", f"launch {' '.join(words)}", code=2, says=words[-1], line=[*words, "true"])
        for words in (["-n", "0"], ["--ppn", "-1"], ["-n", "abc"])
    ),
    once(
        "34",
        "-n 7 --ppn 4 on two hosts",
        code=0,
        env=MASTER,
        line=["--hosts", "n1,n2", "-n", "7", "--ppn", "4", *JSON],
        after=plan([4, 3]),
    ),
    once(
        "34",
        "more ranks than devices",
        code=2,
        says="room for 8",
        line=["--hosts", "n1,n2", "--devices-per-host", "4", "-n", "9", "--flavour", "ssh", "true"],
    ),
    once("35", "a command that is missing", code=127, says="no-such-program", line=["-n", "2", "no-such-program"]),
    once(
        "35",
        "a command that is not executable",
        code=126,
        says="plain",
        setup=write("plain", b"echo"),
        line=["-n", "2", "{folder}/plain"],
    ),
    once("35", "a command that is a folder", code=126, says="/tmp", line=["-n", "2", "/tmp"]),
    Case(
        number="35",
        name="odd words reach every rank byte for byte",
        ranks=(
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import os, sys; print(repr(sys.argv[1:]))",
            *("", "a b", "'", '"', "$HOME", "$$", "`id`", "-n", "--", "ünï", "line\nbreak", ":", "*"),
        ),
        code=0,
        after=lambda run: (
            sorted(set(run.output().decode().splitlines()))
            == [repr(["", "a b", "'", '"', "$HOME", "$$", "`id`", "-n", "--", "ünï", "line\nbreak", ":", "*"])]
            or fail(run.output())
        ),
    ),
)
