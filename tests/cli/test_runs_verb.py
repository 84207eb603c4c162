"""`ezpz runs`: what it finds, what it says of each, and that it stays fast."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ezpz
from ezpz.cli.open import main as open_report
from ezpz.cli.runs import glance, main
from ezpz.cli.why import main as why
from ezpz.jobs.running_launches import age
from ezpz.track import History
from ezpz.track.run_reader import open_run
from ezpz.view.report import build_page

SRC = str(Path(ezpz.__file__).parents[1])


@pytest.fixture
def make_run(tmp_path):
    def make(name, rows=(), **facts):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"name": folder.parent.name, "state": "finished", **facts}))
        lines = [{"v": 1, "t": 1000.0 + n, "step": n, "m": row} for n, row in enumerate(rows)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make


def listed(*words, capsys):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_a_run_that_a_newer_ezpz_wrote_is_named_and_the_others_are_listed(make_run, capsys):
    make_run("outputs/train/1", [{"loss": 1.0}])
    make_run("outputs/train/2", [{"loss": 1.0}], schema=99, versions={"ezpz": "9.0"})
    assert main(["--json"]) == 0
    printed = capsys.readouterr()
    assert [each["run"] for each in json.loads(printed.out)] == ["train/1"]
    assert "ezpz runs: left out: cannot read" in printed.err
    assert "its schema is 99, written by ezpz 9.0" in printed.err


def test_on_a_terminal_other_columns_make_room_for_the_name_that_one_has_to_type(make_run, capsys, monkeypatch):
    facts = {"timeline": {"first_step": 12.5}, "seconds": 5025.0, "started": "2026-11-20T16:20:01+00:00"}
    rows = [{"loss": 0.123456, "tps": 123456.0}] * 30
    make_run("outputs/test_distributed/2026-11-20-162001", rows, **facts)
    every = ["STATE", "STARTED", "TO", "STEP", "STEP", "LOSS", "RATE", "TOOK", "RUN"]

    def shown(columns):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("NO_COLOR", "1")
        assert main([]) == 0
        return capsys.readouterr().out.splitlines()

    titles, line, *_ = shown(120)
    assert titles.split() == every
    titles, line, *_ = shown(80)
    assert titles.split() == ["STATE", "STARTED", "STEP", "LOSS", "RATE", "RUN"]
    assert line.endswith("  test_distributed/2026-11-20-162001")
    assert len(line) <= 80
    # One for which no column could make room has its own line, and costs the others nothing.
    name = f"{'long-' * 20}end"
    make_run(f"outputs/train/{name}", [{"loss": 1.0}], **{**facts, "started": "2026-11-21T16:20:01+00:00"})
    titles, line, bare, own, *_ = shown(80)
    assert titles.split() == ["STATE", "STARTED", "STEP", "LOSS", "RATE", "RUN"]
    assert own == f"    train/{name}"
    assert max(len(line), len(bare)) <= 80
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert main([]) == 0
    titles, _, line, *_ = capsys.readouterr().out.splitlines()
    assert titles.split() == every  # a pipe has no width
    assert line.endswith(f"  train/{name}")


def test_runs_are_listed_the_newest_last_with_what_people_ask_for(make_run, capsys):
    times = {"started": "2026-11-20T16:20:01+00:00", "ended": "2026-11-20T16:25:01+00:00"}
    make_run("outputs/train/2", [{"loss": 3.0 - n / 10, "tps": 1000.0} for n in range(10)], **times)
    failed = {"started": "2026-11-19T16:20:01+00:00", "state": "failed", "cause": "ValueError: x"}
    make_run("outputs/train/1", [{"train/loss": "NaN", "dt": 0.5}], **failed)
    found = listed(capsys=capsys)
    assert [each["run"] for each in found] == ["train/1", "train/2"]
    assert [each["state"] for each in found] == ["failed", "finished"]
    assert (found[1]["loss"], found[1]["last_step"], found[1]["seconds"]) == (2.1, 9, 300.0)
    assert (found[1]["rate"], found[1]["rate_unit"]) == (1000.0, "tok/s")
    assert (found[0]["loss"], found[0]["rate"], found[0]["cause"]) == ("NaN", 2.0, "ValueError: x")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STATE", "STARTED", "TO", "STEP", "STEP", "LOSS", "RATE", "TOOK", "RUN"]
    assert lines[1].endswith("train/1")
    assert lines[2] == "    ValueError: x"
    assert lines[3].split()[-8:] == ["2.1", "1k", "tok/s", "5", "min", "0", "s", "train/2"]
    assert lines[-1].startswith("2 runs in ")


def test_a_terminal_shows_the_newest_of_many_runs_and_all_when_asked(make_run, capsys, monkeypatch):
    for number in range(70):
        day = f"2026-11-{1 + number % 28:02d}T{number // 28:02d}:00:00+00:00"
        make_run(f"outputs/train/{number}", [{"loss": 1.0}], started=day, state="failed" if number % 7 else "finished")
    make_run("outputs/train/old", [{"loss": 1.0}])  # only its rows tell when: in 1970
    make_run("outputs/train/ahead", [{"loss": 1.0}], started="2140-11-01T00:00:00+00:00")  # of a clock that was ahead
    newest_first = sorted(range(70), key=lambda number: (number % 28, number // 28), reverse=True)

    def shown(*words):
        assert main(list(words)) == 0
        runs, _, count = capsys.readouterr().out.partition("\n\n")
        return [line.split()[-1].removeprefix("train/") for line in runs.splitlines()[1:]], count

    assert len(shown()[0]) == 72  # a pipe gets all
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    names, count = shown()
    assert (names[::-1], count.partition(" in ")[0]) == (
        [str(number) for number in newest_first[:50]],
        "the newest 50 of 72 runs (--all lists all)",
    )
    names, count = shown("--all")
    assert (sorted(names[:2]), len(names), count.partition(" in ")[0]) == (["ahead", "old"], 72, "72 runs")
    names, count = shown("--state", "failed")
    assert (len(names), count.partition(" in ")[0]) == (50, "the newest 50 of 60 of 72 runs (--all lists all)")
    names, count = shown("--state", "finished")
    assert (len(names), count.partition(" in ")[0]) == (12, "12 of 72 runs")


@pytest.mark.parametrize("rows", [[], [{"loss": 2.0 - n / 9, "val/loss": 3.0, "dt": 0.5} for n in range(9)]])
def test_what_a_run_notes_of_its_rows_at_its_end_is_what_they_say_as_long_as_they_are_the_same(tmp_path, rows):
    history = History("train", outdir=tmp_path / "run")
    for row in rows:
        history.update(row)
    history.finalize(plots=False)
    path = tmp_path / "run" / "run.json"
    noted = glance(path.parent, tmp_path)
    facts = json.loads(path.read_text())
    size = (path.parent / "metrics.jsonl").stat().st_size if rows else 0
    assert facts.get("journal", {"size": 0})["size"] == size
    facts.pop("journal", None)
    path.write_text(json.dumps(facts))
    assert glance(path.parent, tmp_path) == noted
    if rows:
        path.write_text(json.dumps({**facts, "journal": {"size": 1, "loss": 7.0}}))  # a row has come since
        assert glance(path.parent, tmp_path) == noted


def test_a_usual_folder_fits_80_columns(make_run, capsys):
    rows = [{"loss": 0.123456789, "sps": 123456.0}] * 3
    make_run(
        "outputs/train/2026-11-20-162001", rows, started="2026-11-20T16:20:01+00:00", state="died", cause="word " * 40
    )
    main([])
    assert max(map(len, capsys.readouterr().out.splitlines()[:-1])) <= 80


def test_what_was_set_differently_is_a_column_where_something_was(make_run, capsys, monkeypatch):
    day = "2026-11-2{}T16:20:01+00:00"
    rows = [{"loss": 0.1234, "sps": 123456.0}] * 3
    for number, rate in enumerate((0.1, 0.03)):
        config = {"optim": {"lr": rate}, "outdir": f"/somewhere/{number}", "layers": 4, "width": 64}
        make_run(f"outputs/train/2026-11-2{number}-162001", rows, started=day.format(number), config=config)
    make_run("outputs/other/2026-11-23-162001", rows, started=day.format(3), config={"lr": 7, "depth": 2})
    assert [each["set"] for each in listed(capsys=capsys)] == [{"lr": 0.1}, {"lr": 0.03}, {}]
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal)
        for name, value in (("COLUMNS", "80"), ("NO_COLOR", "1")):
            monkeypatch.setenv(name, value)
        assert main([]) == 0
        titles, *lines = capsys.readouterr().out.splitlines()
        at = titles.index("SET")
        assert [line[at:].split() for line in lines[:3]] == [
            ["lr=0.1", "train/2026-11-20-162001"],
            ["lr=0.03", "train/2026-11-21-162001"],
            ["-", "other/2026-11-23-162001"],
        ]
        assert is_terminal <= (max(map(len, lines[:3])) <= 80)
        assert "123k smp/s" in lines[0]
    make_run("outputs/alone/1", rows, config={"lr": 1})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert main(["outputs/alone"]) == 0
    assert "SET" not in capsys.readouterr().out


def test_the_launch_says_why_a_run_died(make_run, tmp_path, capsys):
    name = "5f3a90c2-1111"
    record = tmp_path / "state/ezpz/launches/2026-11-21-191256-5f3a90c2/run.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"launch_id": name, "cause": {"text": "rank 1 on n02 was killed by SIGKILL"}}))
    make_run("outputs/a/1", [{"x": 1}], state="running", launch={"EZPZ_LAUNCH_ID": name})
    make_run("outputs/b/1", [{"x": 1}], state="running", launch={"EZPZ_LAUNCH_ID": "5f3a90c2-other"})
    one, other = listed(capsys=capsys)
    assert (one["state"], one["cause"]) == ("died", "rank 1 on n02 was killed by SIGKILL")
    assert "killed, or its host was lost" in other["cause"]
    main([])
    assert "    rank 1 on n02 was killed by SIGKILL\n" in capsys.readouterr().out
    make_run("outputs/c/1", [{"x": 1}], state="stopped", cause="SIGTERM", launch={"EZPZ_LAUNCH_ID": name})
    make_run("outputs/d/1", [{"x": 1}], state="failed", cause="ValueError: x", launch={"EZPZ_LAUNCH_ID": name})
    causes = {each["run"]: each["cause"] for each in listed(capsys=capsys)}
    assert causes["c/1"] == "rank 1 on n02 was killed by SIGKILL"  # it was stopped for the failure of another
    assert causes["d/1"] == "ValueError: x"
    # Rank 1 failed first, and rank 0 only lost it.
    words = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 8\n[rank1]: ValueError: my bug\n'
    text = "rank 1 on host n02 (pid 7) exited with code 1; stopping the other ranks [log: x]"
    record.write_text(json.dumps({"launch_id": name, "cause": {"text": text, "rank": 1, "words": words}}))
    causes = {each["run"]: each["cause"] for each in listed(capsys=capsys)}
    assert causes["d/1"] == "rank 1 on host n02 (pid 7) exited with code 1: ValueError: my bug"
    record.write_text(json.dumps({"launch_id": name, "cause": {"text": text, "rank": 0, "words": words}}))
    causes = {each["run"]: each["cause"] for each in listed(capsys=capsys)}
    assert causes["d/1"] == "ValueError: x"


def test_a_run_that_its_launch_had_to_kill_was_stopped_as_the_launch_was(make_run, tmp_path, capsys):
    """Where a program does not hear Ctrl-C, `launch` kills it, and nothing in its folder tells the end."""
    name = "5f3a90c2-1111"
    record = tmp_path / "state/ezpz/launches/2026-11-21-191256-5f3a90c2/run.json"
    record.parent.mkdir(parents=True)
    folder = make_run("outputs/a/1", [{"loss": 1}] * 7, state="running", launch={"EZPZ_LAUNCH_ID": name})
    launch = {"launch_id": name, "state": "stopped", "run_folder": str(folder), "command": ["x"], "started": 1.0}
    for code, signal in ((130, "SIGINT (Ctrl-C)"), (143, "SIGTERM")):  # and `ezpz kill --now`
        record.write_text(json.dumps({**launch, "exit_code": code, "step": 1}))
        one = listed(capsys=capsys)[0]
        assert (one["state"], one["cause"]) == ("stopped", f"{signal}; killed by its launch")
        assert 'class="state stopped' in build_page(open_run(folder))
        assert why([str(folder)]) == 0
        said = capsys.readouterr().out
        assert f"  seen  the launch ended with {code}: " in said
        assert "a rank reported" not in said
    assert "  seen  the launch ended with 143: SIGTERM\n  seen  the run recorded 7 steps\n" in said
    for state, code in (("failed", 124), ("failed", 143), ("running", None)):
        record.write_text(json.dumps({**launch, "state": state, "exit_code": code}))
        assert listed(capsys=capsys)[0]["state"] == "died"


def test_a_run_has_failed_where_another_rank_did(make_run, tmp_path, capsys):
    """Rank 0 may have finished before, or have been stopped for it; a run that another one followed was finished."""
    name = "5f3a90c2-1111"
    record = tmp_path / "state/ezpz/launches/2026-11-21-191256-5f3a90c2/run.json"
    record.parent.mkdir(parents=True)
    cause = {"text": "rank 1 on host n02 (pid 7) exited with code 1; stopping the other ranks [log: x]", "rank": 1}
    fields = {"launch_id": name, "state": "failed", "exit_code": 1, "run_folder": str(tmp_path / "outputs/last/1")}
    record.write_text(json.dumps({**fields, "cause": cause}))
    launch = {"EZPZ_LAUNCH_ID": name}
    folders = {
        state: make_run(f"outputs/{where}/1", [{"x": 1}], state=state, launch=launch, **more)
        for state, where, more in (
            ("finished", "last", {}),
            ("exited", "b", {}),
            ("stopped", "c", {"cause": "SIGTERM"}),
            ("failed", "d", {"cause": "ConnectionError: lost a peer"}),
        )
    }
    first = make_run("outputs/first/1", [{"x": 1}], state="finished", launch=launch)
    text = cause["text"]
    for folder in folders.values():
        run = open_run(folder)
        assert (run.state, run.cause) == ("failed", text), folder
        assert 'class="state failed"' in build_page(run)
    assert (open_run(first).state, open_run(first).cause) == ("finished", "")
    assert {each["run"]: each["state"] for each in listed("--state", "failed", capsys=capsys)} == dict.fromkeys(
        ("last/1", "b/1", "c/1", "d/1"), "failed"
    )
    # A report of before the failure was known is made anew.
    page = folders["finished"] / "report.html"
    page.write_text("finished")
    os.utime(page, (2e9, 2e9))
    os.utime(record, (2e9 + 1, 2e9 + 1))
    assert open_report(["--path", str(folders["finished"])]) == 0
    assert 'class="state failed"' in page.read_text()
    record.write_text(json.dumps({**fields, "cause": {**cause, "rank": 0}}))  # what rank 0 says itself counts
    assert open_run(folders["finished"]).state == "finished"


def test_a_running_run_shows_the_age_of_its_last_row(tmp_path, capsys):
    code = (
        "import ezpz, time; ezpz.History('r', 'outputs/r/1').update({'loss': 1.5}); print(flush=True); time.sleep(60)"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": SRC}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as process:
        process.stdout.readline()
        main([])
        lines = capsys.readouterr().out.splitlines()
        process.kill()
    assert lines[1].startswith("running")
    assert lines[2].startswith("    last row ")


def test_states_can_be_chosen(make_run, capsys):
    make_run("outputs/a/1", state="finished")
    make_run("outputs/a/2", state="failed")
    assert [each["run"] for each in listed("--state", "failed", capsys=capsys)] == ["a/2"]
    main(["--state", "stopped"])
    assert "0 of 2 runs" in capsys.readouterr().out


def test_a_folder_without_runs_is_one_line_and_2(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for words in (["empty"], ["nowhere"]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_foreign_folders_are_passed_over_in_silence(make_run, tmp_path, capsys):
    make_run("outputs/a/1")
    for place, content in {
        "launch/run.json": '{"launch_id": "x"}',
        "other/run.json": "[",
        "x/.hidden/metrics.jsonl": "",
    }.items():
        (tmp_path / "outputs" / place).parent.mkdir(parents=True)
        (tmp_path / "outputs" / place).write_text(content)
    (tmp_path / "outputs" / "loop").symlink_to(tmp_path / "outputs")
    [found] = listed(capsys=capsys)
    assert found["run"] == "a/1"
    assert found["last_step"] is None
    assert main([]) == 0


def test_torn_and_foreign_lines_and_windows_of_ranks_cost_nothing(make_run, capsys):
    folder = make_run("outputs/a/1", [{"loss": float(n)} for n in range(50)])
    window = (
        '{"v":1,"t":2.0,"step":49,"k":"ranks","m":{"world":4,"keys":{"loss":{"mean":[' + "1.5," * 30000 + "2]}}}}\n"
    )
    with (folder / "metrics.jsonl").open("a") as journal:
        journal.write(window + '{"v":7}\n[1]\n{"v":1,"t"')
    [found] = listed(capsys=capsys)
    assert (found["last_step"], found["loss"], found["first_step"]) == (49, 49.0, 0)


@pytest.mark.slow
def test_hundreds_of_runs_are_listed_at_once_without_reading_them_whole(make_run, capsys):
    big = "".join(f'{{"v":1,"t":{n},"step":{n},"m":{{"loss":1.5}}}}\n' for n in range(20000))
    for number in range(300):
        folder = make_run(f"outputs/a/{number}")
        if number < 20:
            (folder / "metrics.jsonl").write_text(big)
    begin = time.process_time()
    assert len(listed(capsys=capsys)) == 300
    assert time.process_time() - begin < 10


AGES = [(-1, "0 s"), (42, "42 s"), (720, "12 min"), (11520, "3.2 h"), (72000, "20 h"), (432000, "5 d")]


def test_ages_have_one_unit(subtests):
    for seconds, text in AGES:
        with subtests.test(str(seconds)):
            assert age(seconds) == text


def test_a_loss_that_is_recorded_now_and_then_is_found_behind_the_last_rows(tmp_path, capsys):
    folder = tmp_path / "r"
    folder.mkdir()
    rows = [{"v": 1, "t": 1e9 + n, "step": n, "m": {"lr": n / 7, "tps": 100.0}} for n in range(90)]
    rows[40]["m"] |= {"loss": 0.125}
    rows[60]["m"] |= {"loss": 0.25}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = glance(folder, tmp_path)
    assert (found["metric"], found["loss"], found["last_step"], found["first_step"]) == ("loss", 0.25, 89, 0)
    assert found["rate"] == 100.0
