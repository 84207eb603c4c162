"""The fault table of docs/checkpoints.md: nothing damaged is loaded in silence, and nothing ends in a traceback."""

import sys
from pathlib import Path

import damage
import pytest

import ezpz
from ezpz.checkpoint import choose

torch = pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_flipped_bit_and_no_torn_file_is_silent_or_a_traceback(clean_env, run_cli):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = run_cli([sys.executable, Path(__file__).with_name("damage.py"), 200], env, 190)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| 200 flipped bits | 0 | 0 | 200 | 0 |\n| torn after the rename, 12 ways | 0 | 0 | 12 | 0 |" in done.stdout


@pytest.mark.slow
def test_the_table_can_tell_what_is_silent(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    run = damage.Run(tmp_path, verify=False)
    run.step()
    path = run.checkpoints.save(2)
    sound = repr(run.state())
    assert damage.outcome(run, path, sound) == ("sound", "")
    with torch.no_grad():
        run.model[0].weight[0, 0] += 1
    other = run.checkpoints.save(2)
    assert damage.outcome(run, other, sound) == ("silent", "")
    (path / "checkpoint.json").unlink()
    assert damage.outcome(run, path, sound)[0] == "one line"
    run.checkpoints.load = {}.__getitem__
    assert damage.outcome(run, path, sound)[0] == "traceback"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_rank_that_is_lost_in_an_asynchronous_save_leaves_the_checkpoint_before(clean_env, run_cli, tmp_path, capsys):
    env = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    program = Path(__file__).with_name("lose_a_rank.py")
    done = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, program, tmp_path], env, 110)
    told = [line for line in done.stdout.splitlines() if line.startswith("told: ")]
    assert len(told) == 1, done.stdout + done.stderr
    assert "step-00000002: RuntimeError: " in told[0]
    assert told[0].endswith("expected all ranks to be there. Look for the rank that ended first.")
    assert "Traceback" not in done.stdout + done.stderr
    first = tmp_path / "checkpoints" / "step-00000001"
    assert choose("auto", name="x", outdir=str(tmp_path)).checkpoint == first
    assert "set aside" not in capsys.readouterr().out
