"""`ezpz benchmark`: trainers one after another, and what is made of their run folders."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from shlex import join

import pytest

import ezpz
from ezpz.cli.benchmark import TRAINERS, main
from ezpz.interpreter import module_line
from lab.process import wait_until

SOURCE = str(Path(ezpz.__file__).parents[1])
BENCHMARK = [sys.executable, "-m", "ezpz", "benchmark"]
# A trainer in one file: what it does stands behind `--`. It writes its run folder by hand, so that torch is not needed.
FAKE = """
import json, os, sys, time
from pathlib import Path
words = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
folder = Path(words["outdir"])
if os.environ["RANK"] == "0":
    folder.mkdir()
    rows = [{"v": 1, "t": 1.0 + i, "step": i, "m": {"iter": i, "dt": 0.01, "sps": 100.0}} for i in range(10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
    facts = {"name": "fake", "state": "finished", "ranks": {"world_size": int(os.environ["WORLD_SIZE"])}}
    (folder / "new").write_text(json.dumps(facts))
    (folder / "new").rename(folder / "run.json")
while not (folder / "run.json").exists():  # no other rank ends all before
    time.sleep(0.02)
print("the trainer's own words", flush=True)
if words.get("preset") == "fails":
    sys.exit("ValueError: it went wrong")
if words.get("preset") == "waits":
    Path("waiting").touch()
    time.sleep(60)
"""


REFUSED = [
    (["--run", "fspd"], ("no trainer 'fspd' (from --run); expected some of test_dist, fsdp, fsdp_tp, vit, llm, gpt. "
     "Did you mean fsdp?")),
    (["--run", "vit,vit"], "vit is named twice in --run vit,vit"),
    (["--run", ","], "no trainer '' (from --run)"),
    (["--run", "vit", "--preset", "debgu"],
     "vit has no preset 'debgu' (from --preset); expected one of debug, tiny, small"),
    (["vit"], "unexpected word 'vit' (from the command line); expected options. Try `--run vit`."),
    (["--nn", "3"], "unknown option --nn"),
    (["--ppn", "3", "-n", "7"], "cannot place 7 ranks (from -n)"),
    (["--max-iters", "0"], "'0' is not a whole number of at least 1"),
    (["--log-dir", "x"], "--log-dir would be written by one trainer after another"),
    (["--nosuch"], "unknown option --nosuch (from the command line); expected --run, --preset, --max-iters, --outdir,"),
    (["--max-iter=3"], "or one of launch. Did you mean --max-iters? Options of the trainers stand behind --"),
    (["--json"], "--json is no more; `ezpz runs DIR --json` prints"),
    (["--epochs=3"], "--epochs is no more; `ezpz benchmark --run fsdp -- --epochs=N`"),
]  # fmt: skip


def test_what_cannot_be_run_is_one_line_before_anything_runs(refuses, tmp_path):
    refuses(main, REFUSED)
    (tmp_path / "vit").mkdir()
    holds = f"{tmp_path} holds vit already (from --outdir)"
    refuses(main, [(["--run", "test_dist", "--outdir", str(tmp_path)], holds)])


def test_the_list_and_the_dry_run_start_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[::2]] == list(TRAINERS)
    words = ["--dry-run", "-n", "3", "--ppn=3", "--oversubscribe", "--max_iters", "7", "--", "--dtype", "a b"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert f"ezpz.launch -n 3 --ppn=3 --oversubscribe -- {join(module_line('ezpz.test_dist'))} " in lines[0]
    assert lines[0].endswith(" --train-iters=7 --dtype 'a b'")
    assert "--preset=debug" in lines[2]
    assert lines[3].endswith("/vit --no-plots --max-iters=7 --dtype 'a b'")
    assert "--preset=debug --outdir=" in lines[4]
    assert lines[4].endswith("/llm --no-plots --training.steps=7 --dtype 'a b'")
    assert lines[5].endswith("/gpt --no-plots --train.max_iters=7 --dtype 'a b'")
    assert "=7" not in lines[1]
    assert list(tmp_path.iterdir()) == []


def test_accelerators_get_the_larger_preset(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EZPZ_NGPU_PER_HOST", "1")
    assert main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["debug" in line for line in lines] == [False] * 6
    assert "--preset=300m" in lines[2]


@pytest.mark.slow
def test_presets_are_those_of_the_trainers_themselves(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # importing torch's optimizers may set it
    from ezpz.examples import fsdp, fsdp_tp, gpt, llm, vit

    for module in (fsdp, fsdp_tp, vit, llm, gpt):
        name = module.__name__.rpartition(".")[2]
        parser = module.options()
        assert list(TRAINERS[name].presets) == list(parser.presets)
        words = {TRAINERS[name].steps} - {""}
        known = {*parser.dests(), *(parser.plan.keys if hasattr(parser, "plan") else ())}
        assert {word.lstrip("-").replace("-", "_") for word in words} <= known


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_a_real_trainer_runs_and_leaves_its_figures(run_cli, env, tmp_path):
    done = run_cli([*BENCHMARK, "--run", "test_dist", "-n", "2", "--max-iters", "3", "--outdir", "out"], env, 180)
    assert done.returncode == 0, done.stderr
    titles, run, _, end = done.stdout.splitlines()
    assert (run.split()[0], run.split()[-1], end) == ("finished", "test_dist", f"1 run in {tmp_path / 'out'}")
    assert titles.split()[4:6] == ["STEP", "LOSS"]
    assert "2 ranks" in done.stderr  # the trainer's own words
    lines = [line for line in done.stderr.splitlines() if line.startswith("ezpz: ")]
    assert re.fullmatch(r"ezpz: \[1/1\] test_dist: exit code 0 after [0-9.]+ s", lines[-1]), lines


@pytest.fixture
def fake(tmp_path, env):
    """A copy of the verb's program whose trainers are `FAKE`, one per preset: runs, fails, waits."""
    (tmp_path / "fake_trainer.py").write_text(FAKE)
    (tmp_path / "verb.py").write_text(
        "import sys\n"
        "from ezpz.cli import benchmark as known\n"
        "trainers = {name: known.Trainer(name, 'fake_trainer', '', name, '', {name: (f'--preset={name}',)})"
        " for name in ('first', 'fails', 'waits', 'last')}\n"
        "known.TRAINERS.clear(); known.TRAINERS.update(trainers)\n"
        "sys.exit(known.main(sys.argv[1:]))\n"
    )
    return [sys.executable, str(tmp_path / "verb.py")], {**env, "PYTHONPATH": f"{SOURCE}{os.pathsep}{tmp_path}"}


@pytest.mark.slow
def test_a_failing_trainer_is_told_and_the_next_one_runs(fake, run_cli, tmp_path):
    line, env = fake
    done = run_cli([*line, "--run", "first,fails,last", "-n", "2", "--outdir", "out"], env, 60)
    assert done.returncode == 1, done.stderr
    assert "[2/3] fails: exit code 1 after" in done.stderr
    assert "ValueError: it went wrong" in done.stderr
    assert done.stderr.count("the trainer's own words") == 6
    assert {line.split()[-2] for line in done.stdout.splitlines()[1:4]} == {"first", "fails", "last"}


@pytest.mark.slow
def test_a_time_limit_ends_one_trainer_and_not_the_benchmark(fake, run_cli):
    line, env = fake
    done = run_cli([*line, "--run", "waits,last", "-n", "1", "--outdir", "out", "--timeout", "2"], env, 60)
    assert done.returncode == 124
    assert "waits: exit code 124" in done.stderr
    assert "last: exit code 0" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_running_trainer_and_lists_what_there_is(fake, tmp_path, survivors):
    line, env = fake
    words = ["--run", "first,waits,last", "-n", "2", "--outdir", "out"]
    process = subprocess.Popen(
        [*line, *words], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until((tmp_path / "waiting").exists, 30, "the second trainer")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "[3/3]" not in err
    assert "2 runs in" in out
    wait_until(lambda: not survivors(), 5, "the end of the trainer")


@pytest.mark.slow
def test_the_verb_loads_no_torch(run_cli, env, tmp_path):
    code = "import sys; from ezpz.cli import main; main(['benchmark', '--dry-run']); assert 'torch' not in sys.modules"
    assert run_cli([sys.executable, "-c", code], env).returncode == 0
