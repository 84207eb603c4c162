"""`ezpz simulate --no-data`: the same answer for tensors that have shapes and no memory, hence for any model."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

import ezpz
from ezpz.cli.simulate import explain, imagine, text, verdict

SIMULATE = [sys.executable, "-m", "ezpz", "simulate"]
SCRIPTS = Path(__file__).with_name("simulated")
GB = 10**9


@pytest.fixture
def simulate(run_cli, clean_env):
    environ = {**clean_env, "PYTHONPATH": str(Path(ezpz.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run(*line, timeout=120, **more):
        return run_cli([*SIMULATE, *line], {**environ, **more}, timeout=timeout)

    return run


def script(name, *args):
    return [sys.executable, SCRIPTS / f"{name}.py", *args]


def answer(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNTED = ("peak", "at_peak", "largest", "when", "steps", "before")


@pytest.mark.dear
@pytest.mark.slow
def test_a_trainer_needs_the_same_with_and_without_data(simulate, tmp_path):
    train = [sys.executable, "-m", "ezpz.examples.fsdp_tp", "--preset", "debug", "--max_iters", "2", "--no_plots"]
    train += [
        "--n_layers", "2", "--eval_samples", "32", "--tp", "2", "--dp_replicate", "2", "--dtype", "bf16",
        "--activation_checkpoint", "full",
    ]  # fmt: skip
    told = [
        answer(simulate("-n", "8", "--json", *how, *train, "--batch_size", "8", "--outdir", tmp_path / str(len(how))))
        for how in ([], ["--no-data"])
    ]
    assert {name: told[1][name] for name in COUNTED} == {name: told[0][name] for name in COUNTED}
    assert (told[0]["data"], told[1]["data"], told[0]["made_up"]) == (True, False, 0)
    assert told[1]["made_up"] > 0
    journal = map(json.loads, (tmp_path / "1" / "metrics.jsonl").read_text().splitlines())
    # What is made up is 1.0: here the sum of a step's losses, over the tokens that it counts.
    assert [record["m"]["loss"] for record in journal if "k" not in record] == [1.0 / 512, 1.0 / 512]


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args"), [("fsdp", ("real", 3, 64, 2, 2)), ("collectives", ()), ("fsdp", ("plain", 3, 64, 2, 2))]
)
def test_sharded_ddp_and_zero_scripts_need_the_same_with_and_without_data(simulate, name, args):
    told = [
        answer(simulate("-n", "4", "--rank", "1", "--json", *how, *script(name, *args))) for how in ([], ["--no-data"])
    ]
    assert {each: told[1][each] for each in COUNTED} == {each: told[0][each] for each in COUNTED}


def limited(gigabytes, command):
    return ["sh", "-c", f'ulimit -v {gigabytes * 10**6} && exec "$@"', "sh", *command]


@pytest.mark.dear
@pytest.mark.slow
def test_a_model_larger_than_any_machine_fits_this_one(simulate):
    layers, width = 16, 65536  # 69 billion parameters: 275 GB, and three times that with the optimizer's state
    done = simulate("-n", "64", "--no-data", "--json", *limited(6, script("fsdp", "real", layers, width, 1, 2)))
    told = answer(done)
    share = 4 * layers * width**2 // 64
    assert (told["largest"]["parameters"], told["largest"]["gradients"]) == (share, share)
    assert told["largest"]["optimizer"] == pytest.approx(2 * share, rel=1e-6)
    assert told["peak"] > 60 * GB > 60 * told["resident"]


@pytest.mark.slow
def test_numbers_are_one_questions_are_answered_kindly_and_data_is_real(simulate):
    done = simulate("-n", "4", "--no-data", *script("values"))
    assert done.returncode == 0, done.stderr
    assert "collectives did nothing, tensors had no data" in done.stdout
    note = re.search(r"note: (\d+) numbers were asked of tensors without data, first in\n      (.*)", done.stdout)
    assert int(note[1]) > 10
    assert re.fullmatch(r"values\.py:\d+; every one is 1", note[2])


@pytest.mark.slow
def test_a_shape_that_depends_on_values_is_one_clear_error(simulate):
    done = simulate("-n", "4", "--no-data", *script("values", "select"))
    assert done.returncode == 125
    assert re.search(r"depends on values, and its input has none \(from --no-data, in values\.py:\d+\)", done.stderr)
    assert done.stderr.count("Traceback") == 1


def test_no_data_wants_no_device(simulate):
    done = simulate("-n", "4", "--no-data", "true", TORCH_DEVICE="cuda")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "TORCH_DEVICE=cuda:0 (from the environment)" in done.stderr


@pytest.mark.slow
def test_a_script_that_finds_no_memory_is_told_of_no_data(simulate):
    large = "import ezpz, torch; ezpz.setup_torch(); torch.ones(10**10)"
    line = limited(8, [sys.executable, "-c", large])
    done = simulate("-n", "4", *line)
    assert done.returncode == 1
    assert re.search(r"ended with 1 \(it could not have more memory\), when it had .* Add --no-data", done.stderr)
    done = simulate("-n", "4", "--no-data", *line)
    assert done.returncode == 0, done.stderr
    assert "40 GB" in done.stdout


FITS = [(30, "no, 1 GB too much"), (36, "yes, but only just, 5 GB to spare"), (40, "yes, 9 GB to spare")]


def test_what_fits_without_room_for_the_allocator_fits_only_just(subtests):
    for memory, words in FITS:
        with subtests.test(str(memory)):
            world = imagine(8, 0, 8, {})
            kinds = dict.fromkeys(("parameters", "gradients", "optimizer", "buffers"), 0)
            told = {"rank": 0, "world_size": 8, "peak": 31 * GB, "before": 0, "allocator": None, "steps": 2, "when": ""}
            told |= {"resident": 1, "largest": kinds, "at_peak": {**kinds, "other": 31 * GB}}
            told |= {"data": False, "made_up": 1, "made_up_at": "a.py:1"}
            lines = text(verdict(told, world, memory * GB))
            assert f"fits in {memory} GB: {words}" in lines
            assert "note: 1 number was asked of tensors without data, first in\n      a.py:1; every one is 1" in lines


KILLS = [
    (137, 20 * GB, True, "ended with 137 (killed), when it had 20 GB of this machine's 24 GB"),
    (137, 20 * GB, False, "Make what is large after ezpz.setup_torch()"),
    (137, 2 * GB, True, "ended with 137; no answer"),  # somebody else's kill
    (139, 20 * GB, True, "ended with 139; no answer"),
]


def test_a_kill_counts_as_lack_of_memory_only_when_much_was_taken(subtests):
    for code, taken, data, words in KILLS:
        with subtests.test(str(code)):
            line = explain(code, {}, taken, 24 * GB, data=data)
            assert words in line
            assert ("--no-data" in line) == (data and "killed" in line)


@pytest.mark.slow
def test_the_environment_of_the_rank_says_whether_there_is_data(simulate):
    for how, word in (([], "yes"), (["--no-data"], "no")):
        done = simulate("-n", "4", *how, "env", EZPZ_SIMULATE_DATA="left over")
        assert f"EZPZ_SIMULATE_DATA={word}{os.linesep}" in done.stdout
