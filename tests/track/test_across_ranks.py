"""`in_ranks_across.py` in real ranks, one launch for each number of them; and ranks that end in the middle."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lab import process
from lab.run_folders import environ

ON_CPU = {"OMP_NUM_THREADS": "1", "TORCH_DEVICE": "cpu"}
IN_RANKS = Path(__file__).with_name("in_ranks_across.py")


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_in_real_ranks(tmp_path, ranks):
    launch = [sys.executable, "-m", "ezpz.launch", "-n", str(ranks), sys.executable, "-m", "pytest", "-q"]
    inside = ["-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120", str(IN_RANKS)]
    done = process.run([*launch, *inside], environ(tmp_path, **ON_CPU), timeout=240, cwd=tmp_path)
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


def run_bare(tmp_path, case, world=3, script=SCRIPT):
    """Ranks without a launcher, so that nobody ends the others: (exit code, stdout, stderr) of each."""
    told = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    told["MASTER_PORT"] = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, case],
            env=environ(tmp_path, **ON_CPU, **told, RANK=str(rank), LOCAL_RANK=str(rank)),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        out = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, *text) for rank, text in zip(ranks, out, strict=True)]


def codes_and_noise(ended):
    return [code for code, _, _ in ended], [stderr for _, _, stderr in ended if stderr.strip()]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(2))
def test_a_rank_that_is_killed_costs_one_line(tmp_path, attempt):
    ended = run_bare(tmp_path, "kill")
    assert codes_and_noise(ended) == ([3, -signal.SIGKILL, 3], [])
    said = ended[0][1].splitlines()
    assert len(said) == 2, said
    assert "rank 1 had not sent all up to step 599; each record over ranks says how many ranks it holds" in said[0]
    assert said[1] == "windows 6 600"
    assert ended[2][1] == ""


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(2))
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


SHORT = """
import json, sys, time
import ezpz
case = sys.argv[1]
rank = ezpz.setup_torch()
if case == f"late{rank}":
    time.sleep(5)
begin = time.monotonic()
history = ezpz.History(outdir="run")
for step in range(5):
    history.update({"loss": 10.0 * (rank + 1)})
if case == f"slow{rank}":
    time.sleep(5)
begin = time.monotonic()
history.finalize(plots=False)
took = time.monotonic() - begin
ezpz.cleanup()
print(f"took {took:.1f}", flush=True)
"""


def windows(folder):
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [row["m"] for row in rows if row.get("k") == "ranks"]


@pytest.fixture
def _busy(case):
    """Take the cores away from the ranks of a case with this name."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3 * (case == "busy"))]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("case", ["together", "busy", "late0", "slow0"])
def test_a_short_run_is_whole_silent_and_ends_at_once(tmp_path, case):
    ended = run_bare(tmp_path, case, script=SHORT)
    assert codes_and_noise(ended) == ([0, 0, 0], [])
    said = "".join(stdout for _, stdout, _ in ended)
    assert "warning" not in said.lower(), said
    assert max(float(line.split()[1]) for line in said.splitlines() if line.startswith("took ")) < 20  # not 30
    (m,) = windows(tmp_path)
    assert (m["steps"], m["held"], m["keys"]["loss"]["mean"]) == ([0, 1, 2, 3, 4], [3] * 5, [20.0] * 5)


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize("case", ["late1", "slow1"])
def test_rank_0_is_not_held_up_by_a_rank_that_is_behind(tmp_path, case):
    ended = run_bare(tmp_path, case, script=SHORT)
    assert codes_and_noise(ended) == ([0, 0, 0], [])
    assert float(ended[0][1].split("took ")[1]) < 20  # of the 30 s that it waits for others which are coming
    (m,) = windows(tmp_path)
    assert m["held"] == ([2] * 5 if case == "late1" else [3] * 5)
