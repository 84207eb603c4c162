"""Troubles of the machine planted in real ranks: memory, disks, signals, devices; the right cause stands first."""

import os
from pathlib import Path

import pytest
from planted import judge

from ezpz import cgroup, proc

LATEST = 100.0  # seconds from the trouble to the end of the launch; five on a machine that does nothing else
MIB = 1 << 20
HUNGRY = "hold = []\nwhile True:\n    hold.append(bytearray(16 << 20))\n"


def check(end, tmp_path, name, rank, code, where=""):
    assert end.code == code, end.err
    judge(name, end.causes, rank=rank, where=where)
    assert end.seconds_from(tmp_path / "at") < LATEST


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_limit_of_a_control_group(ended, draw, python_rank, memory_group, tmp_path, ranks):
    rank = draw.randrange(ranks)
    end = ended(python_rank(HUNGRY, rank), ranks=ranks, group=memory_group(256 * MIB))
    check(end, tmp_path, "memory of a real cgroup, by a rank", rank, 137, f"{ranks} ranks")
    assert "was killed by SIGKILL: out of memory: its cgroup's limit of 256 MiB, oom_kill 0 → 1" in end.err
    kernel = end.record["cause"]["kernel"]
    assert (kernel["oom_kill"], kernel["limit"]) == ([0, 1], 256 * MIB)
    assert kernel["peak"] <= 256 * MIB


@pytest.mark.slow
def test_a_child_of_a_rank_is_killed_for_memory(ended, python_rank, memory_group, tmp_path):
    program = (
        "import subprocess, sys\n"
        f"done = subprocess.run([sys.executable, '-c', {HUNGRY!r}])\n"
        "raise SystemExit(128 - done.returncode)\n"
    )
    end = ended(python_rank(program, 1), group=memory_group(256 * MIB))
    check(end, tmp_path, "memory of a real cgroup, by a child of a rank", 1, 137)
    assert "lost a process that it had started" in end.causes[0]["text"]


@pytest.mark.lab
@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_the_limit_of_a_control_group_around_mpich(ended, draw, python_rank, memory_group, tmp_path, flavour):
    rank = draw.randrange(3)
    end = ended(python_rank(HUNGRY, rank), ranks=3, env=flavour.env(), group=memory_group(256 * MIB))
    check(end, tmp_path, "memory of a real cgroup, under MPICH", rank, 137)


@pytest.mark.slow
def test_a_limit_of_the_address_space_is_no_kill(ended, python_rank, tmp_path):
    program = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nx = bytearray(1 << 31)\n"
    end = ended(python_rank(program, 1))
    check(end, tmp_path, "a limit of the address space", 1, 1)
    assert "out of memory" not in end.err


FILL = """
try:
    open('{disk}/other', 'wb').write(bytes(8 << 20))
except OSError:
    pass
"""
DISKS = {
    "a full disk, a checkpoint": """
with open('{disk}/step-3.pt', 'wb') as file:
    file.write(bytes(8 << 20))
""",
    "a full disk, a shell's copy": """
import subprocess
line = ['dd', 'if=/dev/zero', 'of={disk}/x', 'bs=8M', 'count=1']
raise SystemExit(subprocess.run(line, env={{**os.environ, 'LC_ALL': 'C'}}).returncode)
""",
    "a full disk, an archive of torch": f"""
import torch
now()
{FILL}
torch.save(torch.zeros(4 << 20), '{{disk}}/step-3.pt')
""",
    "a full /tmp": f"""
import tempfile
{FILL}
tempfile._candidate_tempdir_list = lambda: ['{{disk}}']
tempfile.mkdtemp()
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISKS)
def test_a_full_disk(ended, python_rank, small_disk, tmp_path, name):
    if "torch" in name:
        pytest.importorskip("torch")
    end = ended(python_rank(DISKS[name].format(disk=small_disk), 1))
    check(end, tmp_path, name, 1, 1)
    assert str(small_disk) in end.causes[0]["text"]
    assert end.record["cause"]["room"][0]["size"] == 4 * MIB


KILLED = "time.sleep(1)\nos.kill(os.getpid(), 9)\n"  # of a rank that ends at once nothing is claimed
SIGNALS = {
    "SIGKILL by a person": (
        "import subprocess\ntime.sleep(1)\nsubprocess.run(['kill', '-KILL', str(os.getpid())])\n",
        137,
    ),
    "SIGTERM by a person to one rank": (
        "import subprocess\nsubprocess.run(['kill', str(os.getpid())])\ntime.sleep(9)\n",
        143,
    ),
    "a crash in C": ("import ctypes\nctypes.string_at(0)\n", 139),
}


@pytest.mark.slow
def test_a_full_disk_below_our_own_checkpoint(ended, python_rank, small_disk, tmp_path):
    pytest.importorskip("torch")
    program = f"""
import torch
from ezpz.checkpoint import Checkpoints
now()
Checkpoints({str(small_disk)!r}, model=torch.nn.Linear(2048, 2048)).save(1)
"""
    end = ended(python_rank(program, 0), ranks=1)
    check(end, tmp_path, "a full disk, ezpz.checkpoint", 0, 1)
    assert str(small_disk) in end.causes[0]["text"]


@pytest.mark.slow
def test_a_full_disk_below_the_journal_ends_nothing(ended, python_rank, small_disk):
    program = f"""
import ezpz
open('{small_disk}/other', 'wb').write(bytes(4130000))
history = ezpz.History(outdir='{small_disk}/run')
for step in range(3000):
    history.update({{'train/loss': 1 / (1 + step)}}, step=step)
"""
    end = ended(python_rank(program, 0), ranks=1)
    assert (end.code, end.record["state"]) == (0, "finished"), end.err
    assert "No space left on device. Training continues" in end.out
    assert [cause for cause in end.causes if cause["certainty"] > 1] == []


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal(ended, draw, python_rank, tmp_path, name):
    program, code = SIGNALS[name]
    ranks = draw.choice([2, 4])
    rank = draw.randrange(ranks)
    end = ended(python_rank(program, rank), ranks=ranks)
    check(end, tmp_path, name, rank, code, f"{ranks} ranks")
    assert ": out of memory" not in end.err
    if code == 137:
        assert "(not by launch; the kernel counted no out-of-memory kill)" in end.err


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="ranks share no memory here")
@pytest.mark.parametrize("how", ["ctypes.string_at(0)", "os.kill(os.getpid(), 9)"])
def test_a_crash_has_the_step_at_which_it_was(ended, python_rank, how):
    begin = "import ctypes, ezpz\nezpz.heartbeat(0)\ntime.sleep(0.5)\n"  # as a model is made before the steps
    steps = f"{begin}for step in range(6):\n    ezpz.heartbeat(step)\n{how}\n"
    end = ended(python_rank(steps, 1))
    assert (end.causes[0]["rank"], end.causes[0]["step"]) == (1, 5), end.err


@pytest.mark.slow
def test_a_killed_program_under_a_shell(ended, tmp_path):
    (tmp_path / "at").write_text("0")
    end = ended(["bash", "-c", '[ "$RANK" = 1 ] || exec sleep 60; sh -c "kill -KILL \\$\\$"; exit $?'])
    assert end.code == 137
    judge("SIGKILL by a person, the program under a shell", end.causes, rank=1)


@pytest.mark.lab
@pytest.mark.parametrize("flavour", ["mpich"], indirect=True)
def test_a_kill_under_mpich_is_none_for_memory(ended, python_rank, tmp_path, flavour):
    end = ended(python_rank(KILLED, 1), env=flavour.env())
    check(end, tmp_path, "SIGKILL by a person, under MPICH", 1, 137)
    assert "the kernel counted no out-of-memory kill" in end.err


def in_a_job(slurm):
    """What runs a line of `launch` in a job of two hosts."""

    def run(line, env, *, timeout, cwd):
        return slurm.salloc(["-N2", "-n2"], line, env, timeout=timeout, cwd=cwd)

    return run


def test_a_kill_under_srun_is_none_for_memory(ended, python_rank, slurm, tmp_path):
    end = ended(python_rank(KILLED, 1), by=in_a_job(slurm))
    check(end, tmp_path, "SIGKILL by a person, under srun", 1, 137)
    assert end.causes[0]["host"] == "n02"


def test_the_limit_of_a_control_group_under_srun(ended, python_rank, slurm, memory_group, tmp_path):
    group = memory_group(512 * MIB)  # around the daemons of Slurm, whose steps inherit it
    daemons = [pid for name in slurm.workers for pid in slurm.hosts[name].pids() if proc.name(pid) == "slurmd"]
    before = {pid: cgroup.memory_folder(pid) for pid in daemons}
    assert daemons
    try:
        for pid in daemons:
            (group / "cgroup.procs").write_text(str(pid))
        end = ended(python_rank(HUNGRY, 1), by=in_a_job(slurm))
    finally:
        for pid, folder in before.items():
            Path(folder, "cgroup.procs").write_text(str(pid))
    check(end, tmp_path, "memory of a real cgroup, under srun", 1, 137)
    assert end.causes[0]["host"] == "n02"


DEVICES = {
    "a device error in a traceback": "class AcceleratorError(RuntimeError):\n    pass\n"
    "raise AcceleratorError('CUDA error: uncorrectable ECC error encountered')\n",
    "a device that has fallen off the bus": "import sys\n"
    "sys.exit('NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.')\n",
    "no more memory on the device": "class OutOfMemoryError(RuntimeError):\n    __module__ = 'torch'\n"
    "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEVICES)
def test_a_device(ended, draw, python_rank, tmp_path, name):
    ranks = draw.choice([2, 4])
    rank = draw.randrange(ranks)
    check(ended(python_rank(DEVICES[name], rank), ranks=ranks), tmp_path, name, rank, 1, f"{ranks} ranks")
