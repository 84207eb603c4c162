"""`ezpz simulate` as its users see it: one rank of a world that is not there, and what it would need."""

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ezpz.cli.simulate import amount, imagine, verdict

SIMULATE = [sys.executable, "-m", "ezpz", "simulate"]
SCRIPTS = Path(__file__).with_name("simulated")
MB = 10**6


def script(name, *args):
    return [sys.executable, SCRIPTS / f"{name}.py", *args]


MISTYPED = [
    (["true"], "-n, the size of the world, is missing"),
    (["-n", "4"], "the command is missing"),
    (["-n", "4", "--"], "the command is missing"),
    (["-n", "0", "true"], "'0' is not a whole number of at least 1"),
    (["-n", "many", "true"], "'many' is not a whole number"),
    (["-n", "4", "--ppn", "0", "true"], "'0' is not a whole number of at least 1"),
    (["-n", "4", "--rank", "4", "true"], "no rank 4 in a world of 4"),
    (["-n", "4", "--rank", "-1", "true"], "'-1' is not a whole number"),
    (["-n", "4", "--memory", "40", "true"], "'40' is not an amount of memory; expected e.g. 40GB"),
    (["-n", "4", "--memory", "much", "true"], "'much' is not an amount of memory"),
    (["-n", "4", "--timeout", "soon", "true"], "'soon' is not a time"),
    (["-n", "4", "--hosts", "2", "true"], "unknown option --hosts"),
]


def test_a_mistyped_line_is_one_line_and_starts_nothing(in_process, subtests):
    for line, words in MISTYPED:
        with subtests.test(str(line)):
            done = in_process(["simulate", *line])
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
            assert words in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "hint"), [("nowhere.py", 127, "no such file"), ("here.sh", 126, "bash ./here.sh")]
)
def test_a_script_that_cannot_be_started_is_told_how(run_cli, tmp_path, program, code, hint):
    (tmp_path / "here.sh").write_text("")
    done = run_cli([*SIMULATE, "-n", "4", f"./{program}" if code == 126 else program])
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1)
    assert hint in done.stderr


def variables(run_cli, env, *options):
    done = run_cli([*SIMULATE, *options, "--", "env"], env)
    assert done.returncode == 1  # `env` is no rank
    assert "never called ezpz.setup_torch()" in done.stderr
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines()), done.stderr


def test_the_last_rank_of_an_uneven_world_has_the_whole_contract_and_no_leftovers(run_cli, clean_env):
    left = {"RANK": "3", "WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "3", "SLURM_PROCID": "0"}
    left |= {"EZPZ_PLACEMENT": "4", "EZPZ_RUN_ID": "outer", "TORCH_DEVICE": "cpu"}
    told, said = variables(run_cli, {**clean_env, **left}, "-n", "100", "--ppn", "12", "--rank", "99")
    wanted = {"RANK": "99", "WORLD_SIZE": "100", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    wanted |= {"GROUP_RANK": "8", "GROUP_WORLD_SIZE": "9", "EZPZ_SIMULATE": "100", "TORCH_DEVICE": "cpu"}
    assert wanted.items() <= told.items()
    assert not {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "EZPZ_PLACEMENT", "EZPZ_RUN_ID"} & told.keys()
    assert "9 hosts x 12, 4 on the last (from --ppn)" in said
    assert not Path(told["EZPZ_SIMULATE_REPORT"]).parent.exists()


ORIGINS = [
    ({}, "8", "8 ranks per host assumed"),
    ({"EZPZ_SITE": "aurora"}, "12", "site aurora"),
    ({"TORCH_DEVICE": "cpu"}, "8", "assumed"),
]


@pytest.mark.slow
def test_the_ranks_of_a_host_come_from_the_site_or_are_said_to_be_assumed(run_cli, clean_env, subtests):
    for more, count, origin in ORIGINS:
        with subtests.test(str(more)):
            told, said = variables(run_cli, {**clean_env, **more}, "-n", "4096")
            assert told["LOCAL_WORLD_SIZE"] == count
            assert origin in said


@pytest.mark.slow
def test_a_world_smaller_than_a_host_is_one_host(run_cli, clean_env):
    told, said = variables(run_cli, clean_env, "-n4")
    assert (told["LOCAL_WORLD_SIZE"], told["GROUP_WORLD_SIZE"]) == ("4", "1")
    assert "1 host x 4" in said


ENDS = [("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)]


@pytest.mark.slow
def test_the_scripts_end_is_the_end(run_cli, subtests):
    for command, code in ENDS:
        with subtests.test(str(command)):
            done = run_cli([*SIMULATE, "-n", "4", "--memory", "1GB", "sh", "-c", command])
            assert (done.returncode, done.stdout) == (code, "")
            assert f"the script ended with {code}" in done.stderr


@pytest.mark.slow
def test_a_time_limit_ends_the_script_and_all_that_it_started(run_cli):
    done = run_cli([*SIMULATE, "-n", "4", "--timeout", "0.5", "sh", "-c", "setsid sleep 99 & sleep 98"])
    assert done.returncode == 124
    assert "from --timeout" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_script_and_nothing_is_left(clean_env, tmp_path, number):
    ready = tmp_path / "ready"
    wait = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    line = [*SIMULATE, "-n", "4", sys.executable, "-c", wait]
    child = subprocess.Popen(line, env=clean_env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not ready.exists() and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(number)
    said = child.communicate(timeout=120)[1]
    assert child.returncode == 128 + number, said
    assert said.count("Traceback") == (number == signal.SIGINT)  # the script's own KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_the_script_once(clean_env):
    script = (
        "import sys, time\ntry:\n    print('ready', sys.stdin.isatty(), flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(1)\n    print('once', flush=True)\n    sys.exit(7)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*SIMULATE, "-n", "4", sys.executable, "-c", script], clean_env)
    text = ""
    try:
        while "ready" not in text:
            text += os.read(terminal, 4096).decode()
        os.write(terminal, b"\x03")
        while "ended with" not in text:
            text += os.read(terminal, 4096).decode()
    except OSError:  # Linux's way to say that the other end is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7, text
    os.close(terminal)
    assert "ready True" in text
    assert "once" in text


@pytest.mark.dear
@pytest.mark.slow
def test_memory_under_fsdp_is_what_arithmetic_says(run_cli):
    ranks, layers, width = 16, 8, 1024
    line = [*SIMULATE, "-n", ranks, "--memory", "30 MB", "--json", *script("fsdp", "meta", layers, width, 4, 2)]
    done = run_cli(line, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "rank=0 world=16 local_rank=0" in done.stderr  # the script's own output made room for the answer
    share, block = 4 * layers * width**2 // ranks, 4 * width**2
    largest = answer["largest"]
    assert (largest["parameters"], largest["gradients"]) == (share, share)
    assert largest["optimizer"] == pytest.approx(2 * share, rel=0.001)  # and a counter of 4 bytes per parameter
    # In the backward of the second step: two gathered blocks (the next one is fetched early), the gradient of one and
    # the same once more on its way to the other ranks; the last gradient of our own is not there yet, and one is going.
    assert answer["at_peak"]["other"] == pytest.approx(4 * block, rel=0.01)
    assert answer["peak"] == sum(answer["at_peak"].values()) == pytest.approx(3.75 * share + 4 * block, rel=0.01)
    assert answer["when"] == "in backward of step 2"
    assert (answer["fits"], answer["spare"]) == (True, 30 * MB - answer["peak"])
    assert (answer["hosts"], answer["ranks_per_host"], answer["steps"], answer["notes"]) == (2, 8, 2, [])


@pytest.mark.dear
@pytest.mark.slow
def test_without_sharding_it_does_not_fit_and_the_table_says_by_how_much(run_cli):
    done = run_cli([*SIMULATE, "-n", "16", "--memory", "100MB", *script("fsdp", "plain", 8, 1024, 4, 1)], timeout=120)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("["))
    table = dict(re.findall(r"^([a-z ]+?)  +.*?([0-9.]+ [KMG]?B)(?:   .*)?$", done.stdout, re.MULTILINE))
    # Parameters, gradients, two moments, and what AdamW takes in a step where it handles all tensors at once.
    assert (table["parameters"], table["gradients"], table["optimizer state"]) == ("33.6 MB", "33.6 MB", "67.1 MB")
    assert "all tensors                               168 MB  in the optimizer of step 1" in lines
    assert "fits in 100 MB: no, 67.8 MB too much" in lines
    assert "rank 0 of 16 (2 hosts x 8), simulated:" in lines


@pytest.mark.dear
@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of a process to be had here")
def test_memory_under_ddp_is_what_two_real_ranks_take(run_cli, clean_env):
    env = {**clean_env, "OMP_NUM_THREADS": "1"}
    real = run_cli([sys.executable, "-m", "ezpz.launch", "-n", "2", *script("ddp")], env, timeout=240)
    assert real.returncode == 0, real.stdout + real.stderr
    grew = [int(number) for number in re.findall(r"grew=(\d+)", real.stdout)]
    done = run_cli([*SIMULATE, "-n", "2", "--json", *script("ddp")], env, timeout=240)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    weights = 8 * (2048 + 1) * 2048 * 4
    assert answer["at_peak"]["gradients"] == pytest.approx(weights, rel=0.01)  # the buckets, of which they are views
    assert answer["peak"] == pytest.approx(4 * weights, rel=0.05)
    assert len(grew) == 2
    assert all(0.97 < each / answer["peak"] < 1.3 for each in grew), (grew, answer)  # gloo and malloc take their own


@pytest.mark.dear
@pytest.mark.slow
def test_the_last_rank_of_uneven_shards_needs_less(run_cli):
    line = [*SIMULATE, "-n", "3", "--rank", "2", "--json", *script("fsdp", "real", 2, 10, 1, 1)]
    done = run_cli(line, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    # Ten rows over three ranks are 4, 4 and 2, but memory is taken for 4: FSDP pads its shards.
    assert answer["largest"]["parameters"] == 2 * 4 * 10 * 4
    assert answer["rank"] == 2


def test_the_accelerators_own_figure_counts_where_it_is_larger():
    world = imagine(8, 3, 4, {"TORCH_DEVICE": "cuda"})
    assert (world.device, imagine(8, 3, 4, {}).device) == ("cuda:0", "cpu")
    assert imagine(8, 3, 4, {"TORCH_DEVICE": "xpu:1"}).device == "xpu:1"
    kinds = {"parameters": 10, "gradients": 0, "optimizer": 20, "buffers": 0}
    told = {"peak": 30, "allocator": 50, "made_up": 0, "steps": 1, "largest": kinds}
    told["at_peak"] = {**kinds, "optimizer": 0, "other": 20}
    answer = verdict({**told, "before": 0}, world, 45)
    assert (answer["need"], answer["spare"], answer["fits"]) == (50, -5, False)
    assert "20 B were added for the steps that follow" in answer["notes"][0]
    # What one step has not shown yet: the optimizer's state while backward runs.
    assert verdict({**told, "before": 0, "allocator": 40}, world, None)["need"] == 50
    assert verdict({**told, "before": 0, "allocator": None, "steps": 2}, world, None)["need"] == 30


SIZES = [(0, "0"), (999, "999 B"), (1000, "1 KB"), (999_600, "1 MB"), (12_345_678_901, "12.3 GB")]


def test_sizes_are_shown_in_powers_of_a_thousand(subtests):
    for size, shown in SIZES:
        with subtests.test(str(size)):
            assert amount(size) == shown


def test_it_explains_itself(run_cli):
    assert "usage: ezpz simulate -n N" in run_cli([*SIMULATE, "--help"]).stdout
    assert "usage: ezpz simulate -n N" in run_cli([*SIMULATE, "-n", "4", "-h"]).stdout


@pytest.mark.parametrize("verb", ["simulate", "submit"])
def test_a_verb_of_a_command_alone_prints_its_help_and_returns_2(verb, run_cli):
    """`ezpz submit $COMMAND` with an empty variable is no success: what it prints goes to stderr."""
    verb = [*SIMULATE[:-1], verb]
    alone = run_cli(verb)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr == run_cli([*verb, "--help"]).stdout


@pytest.mark.dear
@pytest.mark.slow
def test_collectives_end_at_once_on_any_rank(run_cli):
    done = run_cli([*SIMULATE, "-n", "4096", "--rank", "17", *script("collectives")], timeout=120)
    assert done.returncode == 0, done.stderr
    assert "survived" in done.stdout
    assert "activations and the rest" in done.stdout


@pytest.mark.dear
@pytest.mark.slow
def test_four_thousand_ranks_with_tensor_parallel_step_in_little_time_and_memory(run_cli):
    line = [*SIMULATE, "-n", "4096", "--ppn", "8", "--memory", "40GB", "--json", *script("llama")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = run_cli(line, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "parameters=32696576" in done.stderr
    answer = json.loads(done.stdout)
    local = int(re.search(r"local=(\d+)", done.stderr)[1])
    assert answer["steps"] == 2
    assert answer["largest"]["parameters"] == pytest.approx(4 * local, rel=0.05)
    assert answer["largest"]["optimizer"] == pytest.approx(8 * local, rel=0.05)
    assert answer["resident"] < 2 * 10**9
    # Seconds of the CPU, because a busy machine lets it wait: 10 here, 7 without counting memory.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 60
    # Built on the CPU as a whole, which is no device's memory.
    assert answer["before"] > 4 * 32696576 > answer["peak"]
    assert 'torch.device("meta")' in answer["notes"][0]


@pytest.mark.dear
@pytest.mark.slow
def test_an_impossible_plan_is_the_scripts_own_error_once(run_cli, tmp_path):
    (tmp_path / "plan.py").write_text(
        "import ezpz; from torch.distributed.device_mesh import init_device_mesh\n"
        "ezpz.setup_torch(); init_device_mesh('cpu', (9, 8))\n"
    )
    done = run_cli([*SIMULATE, "-n", "64", sys.executable, "plan.py"], timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "fits" not in done.stdout


@pytest.mark.dear
@pytest.mark.slow
def test_a_script_that_meets_by_itself_fails_at_once_instead_of_waiting(run_cli):
    meet = "import torch.distributed as d; d.init_process_group('gloo')"
    done = run_cli([*SIMULATE, "-n", "64", sys.executable, "-c", meet], timeout=60)
    assert done.returncode == 1
    assert "port" in done.stderr


@pytest.mark.dear
@pytest.mark.slow
def test_a_rank_that_leaves_without_its_report_or_does_nothing_is_no_yes(run_cli):
    become = "import ezpz, os; ezpz.setup_torch()"
    for code, said in ((f"{become}; os._exit(0)", "left without saying what"), (become, "note: no tensor was seen")):
        done = run_cli([*SIMULATE, "-n", "64", "--memory", "1TB", sys.executable, "-c", code], timeout=60)
        assert done.returncode == 1
        assert said in done.stdout + done.stderr


@pytest.mark.dear
@pytest.mark.slow
def test_ranks_of_a_real_launch_are_never_simulated(run_cli, clean_env):
    become = "import ezpz; ezpz.setup_torch()"
    launch = [sys.executable, "-m", "ezpz", "launch", "-n", "2", sys.executable, "-c", become]
    done = run_cli(launch, {**clean_env, "EZPZ_SIMULATE": "2"}, timeout=90)
    assert done.returncode != 0
    assert "Run `unset EZPZ_SIMULATE`" in done.stderr
