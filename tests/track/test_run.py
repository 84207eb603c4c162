"""A run folder that is read back, whatever became of its process."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta

import pytest

from ezpz import History
from ezpz.cli.runs import glance, render
from ezpz.errors import UsageError
from ezpz.fields import as_far_as_it_fits
from ezpz.quantities import duration
from ezpz.records.journal_lines import JournalRow
from ezpz.records.run_record import RunRecord
from ezpz.track.run_reader import is_run, open_run, seconds_taken
from ezpz.track.table import counted, gather
from ezpz.track.writer_lock import birth, hold
from ezpz.view.report.head import header
from ezpz.view.terminal.run_lines import headline


@pytest.mark.slow
def test_a_finished_run_is_read_back(make_history):
    with make_history("train") as history:
        history.update({"loss": 0.5})
    run = open_run(history.outdir)
    assert (run.name, run.state, run.cause) == ("train", "finished", "")
    assert run.table.cells["loss"].values == [0.5]
    assert open_run(history.outdir / "metrics.jsonl").folder == run.folder
    assert run.windows == []


def test_all_that_a_run_records_of_itself_is_described(make_history, tmp_path):
    torch = pytest.importorskip("torch")
    with make_history("mine", tmp_path / "run") as history:
        history.log_config({"lr": 0.1}, model=torch.nn.Dropout(0.1))
        for step in range(4):
            history.update({"loss": [1.0, 0.5, float("nan"), float("nan")][step], "tps": 100.0})
    facts, wrong = json.loads((tmp_path / "run/run.json").read_text()), []
    record = RunRecord.of(facts, wrong)
    assert facts.keys() <= RunRecord.CHECKS.keys()
    for part in (record.ranks, record.process, record.environment, record.speed, *record.findings):
        assert part.raw.keys() <= type(part).CHECKS.keys()
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        row = as_far_as_it_fits(JournalRow, json.loads(line), wrong)
        assert row.m == json.loads(line)["m"]
    assert wrong == []
    assert (record.effective.raw["dropout.(model)"], record.findings[0].kind) == (0.1, "non-finite-loss")


ENDS = [
    (KeyboardInterrupt(), "stopped", "SIGINT (Ctrl-C)"),
    (SystemExit(130), "stopped", "SIGINT (Ctrl-C)"),
    (SystemExit(3), "failed", "SystemExit: 3"),
    (SystemExit(0), "finished", ""),
    (SystemExit(), "finished", ""),
    (ValueError("no"), "failed", "ValueError: no"),
]


def test_what_ends_the_block_is_the_state(subtests, tmp_path):
    for number, (raised, state, cause) in enumerate(ENDS):
        with subtests.test(repr(raised)):
            history = History(outdir=tmp_path / str(number))
            history.update({"x": 1})
            history.__exit__(type(raised), raised, None)
            run = open_run(tmp_path / str(number))
            assert (run.state, run.cause) == (state, cause)


def test_ctrl_c_without_a_block_is_stopped_too(tmp_path):
    code = "import ezpz, sys; ezpz.History('r', sys.argv[1]).update({'x': 1}); raise KeyboardInterrupt"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "r")], stderr=subprocess.DEVNULL, check=False)
    run = open_run(tmp_path / "r")
    assert (run.state, run.cause) == ("stopped", "SIGINT (Ctrl-C)")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["finished", "died", "without run.json", "of an older ezpz"])
def test_a_run_has_one_duration_wherever_it_is_shown(tmp_path, capsys, monkeypatch, end):
    history = History("r", tmp_path / "r")
    for step in range(3):
        history.update({"loss": 1.0 + step})
    history.finalize(plots=end == "finished", show=False)
    path = tmp_path / "r" / "run.json"
    facts = json.loads(path.read_text())
    rows = [{"v": 1, "t": 1795194003.5 + 40 * step, "step": step, "m": {"loss": 1.0}} for step in range(3)]
    if end != "finished":
        (tmp_path / "r" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        started = datetime.fromtimestamp(1795194001).astimezone()
        facts |= {"started": started.isoformat(), "ended": (started + timedelta(seconds=90)).isoformat()}
        del facts["seconds"]
    if end == "died":
        facts |= {"state": "running", "process": {"host": os.uname().nodename, "pid": 2**22 - 1, "birth": "1"}}
        del facts["ended"]
    path.unlink() if end == "without run.json" else path.write_text(json.dumps(facts))
    seconds = {"finished": facts.get("seconds"), "died": 82.5, "without run.json": 80.0, "of an older ezpz": 90.0}[end]
    run = open_run(tmp_path / "r")
    assert seconds_taken(run, rows[0]["t"], rows[-1]["t"]) == seconds
    words = duration(seconds)
    assert words in render([glance(run.folder, tmp_path)], "1 run", tmp_path)
    assert headline(run, 3, (0, 2), run.rows.time_range).endswith(words)
    assert words in header(run)
    if end == "finished":
        assert words in (tmp_path / "r" / "report.html").read_text()  # which was written while the run ended


def test_a_run_that_goes_on_is_running_and_one_that_was_killed_has_died(tmp_path):
    code = "import ezpz, sys, time; ezpz.History('r', sys.argv[1]).update({'x': 1}); "
    code += "print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "r")], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert open_run(tmp_path / "r").state == "running"
        process.kill()
    run = open_run(tmp_path / "r")
    assert run.state == "died"
    assert "killed" in run.cause
    assert run.table.cells["x"].values == [1]


def test_a_run_of_another_host_counts_by_the_age_of_its_last_row(tmp_path):
    facts = {"name": "r", "state": "running", "process": {"host": "elsewhere", "pid": 1, "birth": "1"}}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    (tmp_path / "metrics.jsonl").touch()
    assert open_run(tmp_path).state == "running"
    os.utime(tmp_path / "metrics.jsonl", (time.time() - 3600,) * 2)
    assert open_run(tmp_path).state == "died"


def test_a_folder_without_a_run_is_refused_and_a_run_below_it_named(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "metrics.jsonl").touch()
    with pytest.raises(UsageError, match=f"Try for example {tmp_path}/a/b"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="no run folder"):
        open_run(tmp_path / "nowhere")
    assert not is_run(tmp_path)
    assert is_run(tmp_path / "a" / "b")


def test_a_run_json_that_is_lost_or_torn_costs_no_row(subtests, tmp_path):
    for content in ["", "[]", "{", '{"name": "x"}']:
        with subtests.test(repr(content)):
            (tmp_path / "run.json").write_text(content)
            (tmp_path / "metrics.jsonl").write_text('{"v":1,"t":1.0,"step":0,"m":{"x":1}}\n')
            run = open_run(tmp_path)
            assert run.table.cells["x"].values == [1]
            assert run.state == "died"


def test_rows_that_a_later_attempt_recorded_again_do_not_count_twice():
    rows = [{"v": 1, "t": 0.0, "step": step, "a": 1, "k": "", "m": {"x": step}} for step in range(5)]
    rows += [{"v": 1, "t": 0.0, "step": step, "a": 2, "k": "", "m": {"x": 10 + step, "y": 1}} for step in range(3, 7)]
    table = gather(rows)
    assert len(table.steps) == 9
    after = counted(table)
    assert after.steps == [0, 1, 2, 3, 4, 5, 6]
    assert after.cells["x"].values == [0, 1, 2, 13, 14, 15, 16]
    assert after.cells["y"].index == [3, 4, 5, 6]


def test_a_journal_has_one_writer_and_a_process_one_birth(tmp_path):
    with (tmp_path / "j").open("wb") as one, (tmp_path / "j").open("r+b") as two:
        assert hold(one.fileno())
        assert not hold(two.fileno())
    assert birth(os.getpid()) == birth(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        process.wait()
    assert birth(process.pid) is None
