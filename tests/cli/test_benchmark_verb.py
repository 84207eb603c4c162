"""`ezpz benchmark`: trainers one after another, and what is made of their run folders."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from shlex import join

import pytest
from runs_on_disk import write_run

import ezpz
from ezpz.cli.benchmark import TRAINERS, main
from ezpz.cli.benchmark_figures import NOTHING, build_page, facts, markdown, read_figures, render, run_pages, short
from ezpz.interpreter import module_line
from lab.process import wait_until

SOURCE = str(Path(ezpz.__file__).parents[1])
BENCHMARK = [sys.executable, "-m", "ezpz", "benchmark"]
KEYS = {"trainer", "preset", "state", "code", "cause", "command", "log", "report", "seconds", "parts", *NOTHING}
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


GOLDEN = """\
                                          MFU  mem 1st step  p95 start  all
trainer   preset ranks params   sps  tps    %  GiB  ms   ms   ms     s    s
fsdp      debug      4  1.20M 12.2k    -  n/a    -   - 21.0    -     - 12.5
fsdp_tp   debug      4  33.6M 3.20k 410k 41.2 2.25 500 20.0 23.0   3.2 12.5
vit       debug      4      - 1.60k    -  n/a    - 500 40.0    -   3.2 12.5
test_dist debug      -      -     -    -    -    -   -    -    -     - 12.5"""


def steps(count, **more):
    """Rows as the trainers record them: a slow first step, then 20 ms and one of 40 ms."""
    times = [0.5, 0.1, *[0.02] * (count - 3), 0.04]
    rows = {"iter": list(range(count)), "dt": times, "sps": [64 / each for each in times]}
    return {**rows, "dtf": [each / 4 for each in times], "dtb": [each / 2 for each in times], **more}


@pytest.fixture
def folder(tmp_path):
    """A benchmark's folder with four runs, of which one ended early and one recorded nothing."""
    facts = {"ranks": {"world_size": 4}, "timeline": {"torch": 1.0, "first_step": 3.25}}
    memory = [1.5, None, *[None] * 18]
    rows = steps(20, tps=[64 * 128 / 0.02] * 20, mfu=[None, None, *[41.25] * 18], memory_gib=memory)
    write_run(tmp_path / "fsdp_tp", rows, config={"parameters": 33_599_744}, **facts)
    window = {"world": 4, "every": 0, "steps": [0, 19], "keys": {"memory_gib": {"max": [2.25, None], "ranks": []}}}
    with (tmp_path / "fsdp_tp" / "metrics.jsonl").open("a") as journal:
        journal.write(json.dumps({"v": 1, "t": 2.0, "step": 19, "k": "ranks", "m": window}) + "\n")
    epochs = {"epoch": [1, 2, 3], "dt": [4.0, 2.0, 2.2], "train_loss": [2.0, 1.0, 0.5]}
    config = {"parameters": 1_199_882, "epoch_steps": 100, "samples_per_step": 256}
    write_run(tmp_path / "fsdp", epochs, config=config, ranks={"world_size": 4})
    write_run(tmp_path / "vit", steps(3), state="failed", cause="ValueError: it went wrong", **facts)
    return tmp_path


def entries(folder):
    """What benchmark.json tells of the runs in `folder`, as the verb fills it in."""
    found = []
    for name, code in (("fsdp", 0), ("fsdp_tp", 0), ("vit", 1), ("test_dist", 127)):
        figures, cause = read_figures(folder / name)
        state = "failed" if code else "finished"
        line = f"python3 -m ezpz.launch -- python3 -m {TRAINERS[name].module}"
        more = {"code": code, "cause": cause, "seconds": 12.5, "command": line, "log": f"{name}.log", "report": None}
        found.append({"trainer": name, "preset": "debug", "state": state, **more, **figures})
    return found


def told(folder):
    machine = {"hosts": ["n01", "n02"], "ranks": 4, "devices_per_host": 2, "device": "cuda", "site": "polaris"}
    machine |= {"scheduler": "slurm", "job_id": "7", "processor": "A <fast> one", "cores": 32, "memory_gib": 512.0}
    times = {"started": "2026-11-20T16:20:01+01:00", "ended": "2026-11-20T16:25:13+01:00", "seconds": 50.0}
    how = {"folder": str(folder), "command": "ezpz benchmark --run 'a<b>'", "git_commit": "0123456789abcdef"}
    versions = {"ezpz": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
    more = {"versions": versions, "machine": {**machine, "system": "Linux 6.1"}, "trainers": entries(folder)}
    return {"schema": 1, **times, **how, **more}


def test_figures_are_those_of_the_steady_steps_and_of_all_ranks(folder):
    figures, cause = read_figures(folder / "fsdp_tp")
    assert cause == ""
    assert figures.pop("parts") == {"forward": 0.005, "backward": 0.01}
    assert figures.pop("step_p95") == pytest.approx(0.02 + 0.15 * 0.02)  # of 18 steps the last one took 40 ms
    assert figures == {
        "ranks": 4, "parameters": 33_599_744, "steps": 20, "mfu": 41.25, "memory_gib": 2.25, "sps": 3200.0,
        "tps": 64 * 128 / 0.02, "first_step": 0.5, "step_median": 0.02, "time_to_first_step": 3.25,
    }  # fmt: skip


def test_epochs_become_steps_and_what_they_cannot_tell_stays_open(folder):
    figures, _ = read_figures(folder / "fsdp")
    assert (figures["steps"], figures["step_median"]) == (300, pytest.approx(0.021))
    assert figures["sps"] == pytest.approx(256 / 0.021)
    assert [figures[name] for name in ("first_step", "step_p95", "time_to_first_step", "mfu")] == [None] * 4
    config = {"steps": 300, "epochs": 3}
    write_run(folder / "other", {"epoch": [1, 2, 3], "dt": [4.0, 2.0, 2.2], "sps": [1.0, 7.0, 9.0]}, config=config)
    figures, _ = read_figures(folder / "other")
    assert (figures["step_median"], figures["sps"]) == (pytest.approx(0.021), 8.0)


LACKING = [
    ({}, {}),
    ({"loss": [1.0, 2.0]}, {"config": None, "ranks": [], "timeline": 3}),
    ({"dt": [float("nan"), "NaN", None]}, {"config": {"warmup": "x"}}),
    ({"epoch": [1], "dt": [0.0]}, {"config": {"epoch_steps": 0, "steps": 3, "epochs": 2}}),
    ({"dt": [0.5]}, {"config": {"warmup": 7}}),
]  # fmt: skip


def test_what_a_run_lacks_is_an_empty_cell(tmp_path, subtests):
    for metrics, more in LACKING:
        with subtests.test(str(metrics)):
            figures, _ = read_figures(write_run(tmp_path / f"run-{len(list(tmp_path.iterdir()))}", metrics, **more))
            assert set(figures) == {*NOTHING, "parts"}
            entry = {"trainer": "x", "preset": "debug", "state": "finished", "seconds": None, **figures}
            assert render([entry]).splitlines()[-1].startswith("x       debug")


def test_a_run_that_left_only_its_facts_or_nothing_is_no_traceback(tmp_path):
    write_run(tmp_path / "run", {}, state="failed", cause="MachineError: no device", config={"parameters": 5})
    (tmp_path / "run" / "metrics.jsonl").unlink()
    figures, cause = read_figures(tmp_path / "run")
    assert (figures["parameters"], figures["steps"], cause) == (5, None, "MachineError: no device")
    assert read_figures(tmp_path / "nothing") == ({**NOTHING, "parts": {}}, "")


def test_the_table_fits_a_terminal_of_80_columns(folder):
    found = entries(folder)
    assert render(found) == GOLDEN
    widest = {"parameters": 12_345_678, "sps": 12_345, "tps": 123_456, "mfu": 41.2, "memory_gib": 12.34}
    widest |= {"ranks": 12_288, "first_step": 12.3456, "step_median": 1.2345, "step_p95": 1.2345, "seconds": 1234}
    widest |= {"time_to_first_step": 123}
    assert max(map(len, render([{**entry, **widest} for entry in found]).splitlines())) <= 80
    assert "\x1b[31m" in render(entries(folder), color=True)


SHORT = [
    (0.0, "0.000"), (0.0314, "0.031"), (0.5, "0.50"), (9.999, "10.0"), (28.66, "28.7"), (999.4, "999"),
    (999.6, "1.00k"), (33599744, "33.6M"), (8030261248, "8.03B"), (12345, "12.3k"), (250000000000000.0, "250T"),
]  # fmt: skip


def test_numbers_take_five_characters(subtests):
    for value, text in SHORT:
        with subtests.test(str(value)):
            assert short(value) == text


def test_markdown_holds_the_table_the_machine_and_the_lines(folder):
    text = markdown(entries(folder), facts(told(folder)))
    assert "| fsdp_tp | debug | 4 | 33.6M | 3.20k | 410k | 41.2 | 2.25 | 500 | 20.0 | 23.0 | 3.2 | 12.5 |" in text
    assert "vit: failed, exit code 1: ValueError: it went wrong" in text
    assert "| devices | 2 cuda per host |" in text
    assert text.count("python3 -m ezpz.launch -- ") == 4
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table[:6]} == {14}


def test_the_page_opens_without_errors_scripts_or_requests(folder, browser):
    everything = told(folder)
    run_pages(folder, everything["trainers"])
    assert [entry["report"] for entry in everything["trainers"]] == [
        *(f"{name}/report.html" for name in ("fsdp", "fsdp_tp", "vit")),
        None,
    ]
    page = folder / "report.html"
    page.write_text(build_page(everything, facts(everything)))
    browser.open(page)
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
    assert browser.ask("document.querySelectorAll('#trainers tbody tr').length") == 4
    assert browser.ask("[...document.querySelectorAll('#trainers tr')].every(row => row.cells.length === 13)")
    assert browser.ask("document.querySelectorAll('#time svg rect').length") == 4  # forward and backward of two runs
    assert "A <fast> one, 32 cores" in browser.ask("document.querySelector('#machine').innerText")
    browser.open(folder / browser.ask("document.querySelector('#trainers a').getAttribute('href')"))
    assert browser.complaints == []


REFUSED = [
    (["--run", "fspd"], ("no trainer 'fspd' (from --run); expected some of test_dist, fsdp, fsdp_tp, vit, llm, gpt. "
     "Did you mean fsdp?")),
    (["--run", "vit,vit"], "vit is named twice in --run vit,vit"),
    (["--run", ","], "--run ',' names no trainer"),
    (["--run", "vit", "--preset", "debgu"],
     "vit has no preset 'debgu' (from --preset); expected one of debug, tiny, small"),
    (["vit"], "unexpected word 'vit' (from the command line); expected options. Try `--run vit`."),
    (["--nn", "3"], "unknown option --nn"),
    (["--ppn", "3", "-n", "7"], "cannot place 7 ranks (from -n)"),
    (["--max-iters", "0"], "'0' is not a whole number of at least 1"),
    (["--log-dir", "x"], "--log-dir would be written by one trainer after another"),
]  # fmt: skip


def test_what_cannot_be_run_is_one_line_before_anything_runs(refuses, tmp_path):
    refuses(main, REFUSED)
    (tmp_path / "benchmark.json").write_text("{}")
    holds = f"{tmp_path} holds benchmark.json already (from --outdir)"
    refuses(main, [(["--run", "test_dist", "--outdir", str(tmp_path)], holds)])


def test_the_list_and_the_dry_run_start_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert [line.split()[0] for line in listed.splitlines()[::2]] == list(TRAINERS)
    words = ["--dry-run", "-n", "3", "--ppn=3", "--oversubscribe", "--max_iters", "7", "--", "--dtype", "a b"]
    assert main(words) == 0
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert len(lines) == 6
    assert f"ezpz.launch -n 3 --ppn=3 --oversubscribe -- {join(module_line('ezpz.test_dist'))} " in lines[0]
    assert lines[0].endswith(" --train-iters=7 --dtype 'a b'")
    assert "--preset=debug" in lines[2]
    assert lines[3].endswith("/vit --no-plots --max-iters=7 --dtype 'a b'")
    assert "--preset=debug --outdir=" in lines[4]
    assert lines[4].endswith("/llm --no-plots --training.steps=7 --dtype 'a b'")
    assert lines[5].endswith("/gpt --no-plots --train.max_iters=7 --dtype 'a b'")
    assert "note: --max-iters means nothing to fsdp, which counts epochs; --epochs N would" in told.err
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
        words = {word for word in (TRAINERS[name].steps, TRAINERS[name].epochs) if word}
        known = {*parser.dests(), *(parser.plan.keys if hasattr(parser, "plan") else ())}
        assert {word.lstrip("-").replace("-", "_") for word in words} <= known


@pytest.fixture
def env(clean_env):
    return {**clean_env, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_a_real_trainer_runs_and_leaves_its_figures(run_cli, env, tmp_path):
    done = run_cli([*BENCHMARK, "--run", "test_dist", "-n", "2", "--max-iters", "3", "--outdir", "out"], env, 180)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^test_dist debug      2   757k +\S+ ", done.stdout, re.MULTILINE), done.stdout
    assert max(map(len, done.stdout.splitlines()[:3])) <= 80
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {
        *("benchmark.json", "benchmark.md", "report.html", "test_dist", "test_dist.log")
    }
    found = json.loads((out / "benchmark.json").read_text())
    assert set(found) == {
        *("schema", "started", "ended", "seconds", "folder", "command", "git_commit", "versions", "machine", "trainers")
    }
    (entry,) = found["trainers"]
    assert set(entry) == KEYS
    assert (entry["state"], entry["code"], entry["ranks"], entry["steps"]) == ("finished", 0, 2, 3)
    assert 0 < entry["time_to_first_step"] < entry["seconds"]
    assert found["versions"]["torch"]
    assert (out / entry["report"]).is_file()
    lines = done.stderr.splitlines()
    assert lines[0] == f"ezpz: [1/1] test_dist: 2 ranks, preset debug, log {out / 'test_dist.log'}"
    assert len(lines) == 2


@pytest.fixture
def fake(tmp_path, env):
    """A copy of the verb's program whose trainers are `FAKE`, one per preset: runs, fails, waits."""
    (tmp_path / "fake_trainer.py").write_text(FAKE)
    (tmp_path / "verb.py").write_text(
        "import sys\n"
        "from ezpz.cli import benchmark as known\n"
        "trainers = {name: known.Trainer(name, 'fake_trainer', '', {name: (f'--preset={name}',)}, name)"
        " for name in ('first', 'fails', 'waits', 'last')}\n"
        "known.TRAINERS.clear(); known.TRAINERS.update(trainers)\n"
        "sys.exit(known.main(sys.argv[1:]))\n"
    )
    return [sys.executable, str(tmp_path / "verb.py")], {**env, "PYTHONPATH": f"{SOURCE}{os.pathsep}{tmp_path}"}


@pytest.mark.slow
def test_a_failing_trainer_is_told_and_the_next_one_runs(fake, run_cli, tmp_path):
    line, env = fake
    done = run_cli([*line, "--run", "first,fails,last", "-n", "2", "--outdir", "out", "--json"], env, 60)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    told = [(entry["state"], entry["code"], entry["ranks"]) for entry in found["trainers"]]
    assert told == [("finished", 0, 2), ("failed", 1, 2), ("finished", 0, 2)]
    assert "[2/3] fails: failed after" in done.stderr
    assert "ValueError: it went wrong" in done.stderr  # the end of its log
    assert "the trainer's own words" in (tmp_path / "out" / "last.log").read_text()
    assert "fails: failed, exit code 1" in (tmp_path / "out" / "benchmark.md").read_text()


@pytest.mark.slow
def test_a_time_limit_ends_one_trainer_and_not_the_benchmark(fake, run_cli):
    line, env = fake
    done = run_cli([*line, "--run", "waits,last", "-n", "1", "--outdir", "out", "--timeout", "2"], env, 60)
    assert done.returncode == 124
    assert "waits: failed, exit code 124" in done.stdout
    assert re.search(r"^last ", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_ctrl_c_ends_the_running_trainer_and_writes_what_there_is(fake, tmp_path, survivors):
    line, env = fake
    words = ["--run", "first,waits,last", "-n", "2", "--outdir", "out"]
    process = subprocess.Popen(
        [*line, *words], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until((tmp_path / "waiting").exists, 30, "the second trainer")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "[2/3] waits: interrupted after" in err
    assert "last: not run" in out
    found = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert [entry["state"] for entry in found["trainers"]] == ["finished", "interrupted", "not run"]
    assert (tmp_path / "out" / "report.html").is_file()
    wait_until(lambda: not survivors(), 5, "the end of the trainer")


@pytest.mark.slow
def test_the_verb_loads_no_torch(run_cli, env, tmp_path):
    code = "import sys; from ezpz.cli import main; main(['benchmark', '--dry-run']); assert 'torch' not in sys.modules"
    assert run_cli([sys.executable, "-c", code], env).returncode == 0
