"""`in_ranks_across.py` in real ranks, one launch for each number of them; and ranks that end in the middle."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

IN_RANKS = Path(__file__).with_name("in_ranks_across.py")
SRC = Path(__file__).parents[2] / "src"


def environ(home, **more):
    fixed = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return {**fixed, "PYTHONDONTWRITEBYTECODE": "1", "TORCH_DEVICE": "cpu", **more}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_in_real_ranks(tmp_path, ranks):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), sys.executable, "-m", "pytest", "-q"]
    inside = ["-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120", str(IN_RANKS)]
    done = subprocess.run(
        [*launch, *inside],
        env=environ(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == ranks, done.stdout


SCRIPT = """
import os, sys, time
import torch.distributed as dist
from ezpz.ranks import from_environ
from ezpz.track.over_ranks.across import Across

ranks = from_environ(os.environ)
rank, case = ranks.rank, sys.argv[1]
dist.init_process_group("gloo")
records = []
across = Across(ranks, 100, name="x", folder=None, record=lambda step, m: records.append(m))
for step in range(600):
    across.add(step, {"a": float(step)})
    time.sleep(0.002)
    if step == 350 and rank == 1 and case == "kill":
        os.kill(os.getpid(), 9)
    if step == 350 and rank == 1 and case == "raise":
        raise ValueError("no such luck")
    if step == 350 and rank == 0 and case == "leave":
        sys.exit(5)
if case != "exit":
    across.finish()
if rank == 0:
    print("windows", len(records), sum(len(m["steps"]) for m in records))
sys.exit(3)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_bare(tmp_path, case, world=3):
    """Ranks without a launcher, so that nobody ends the others: (exit code, stdout, stderr) of each."""
    told = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    told["MASTER_PORT"] = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, case],
            env=environ(tmp_path, **told, RANK=str(rank), LOCAL_RANK=str(rank)),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    begin = time.monotonic()
    try:
        out = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert time.monotonic() - begin < 100
    return [(rank.returncode, *text) for rank, text in zip(ranks, out, strict=True)]


def codes_and_noise(ended):
    return [code for code, _, _ in ended], [stderr for _, _, stderr in ended if stderr.strip()]


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_a_rank_that_is_killed_costs_one_line(tmp_path, attempt):
    ended = run_bare(tmp_path, "kill")
    assert codes_and_noise(ended) == ([3, -signal.SIGKILL, 3], [])
    said = ended[0][1].splitlines()
    assert len(said) == 2, said
    assert "rank 1 ended without a word" in said[0]
    assert said[1] == "windows 6 600"
    assert ended[2][1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_rank_0_may_end_while_others_go_on(tmp_path, attempt):
    ended = run_bare(tmp_path, "leave")
    assert codes_and_noise(ended) == ([5, 3, 3], [])
    assert [stdout for _, stdout, _ in ended[1:]] == ["", ""]


@pytest.mark.slow
def test_an_exception_on_one_rank_is_all_that_is_said(tmp_path):
    ended = run_bare(tmp_path, "raise")
    codes, noise = codes_and_noise(ended)
    assert codes == [3, 1, 3]
    assert len(noise) == 1
    assert noise[0].rstrip().endswith("ValueError: no such luck")
    assert ended[0][1] == "windows 6 600\n"


@pytest.mark.slow
def test_a_program_that_does_not_finish_ends_with_its_own_code(tmp_path):
    assert codes_and_noise(run_bare(tmp_path, "exit")) == ([3, 3, 3], [])
