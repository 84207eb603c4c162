"""What is kept of a launch."""

import json
import os
import random
import stat
import statistics
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ezpz
from ezpz.errors import UsageError
from ezpz.launch import record
from ezpz.launch.agent_messages import Stages as StagesReport
from ezpz.launch.options import parse
from ezpz.launch.planning import PlanBuilder
from ezpz.launch.run.rollcall import Stages
from ezpz.launch.survey import survey
from ezpz.redact import redact_argv
from lab import process

WHEN = 1795289400.25
SRC = str(Path(ezpz.__file__).parents[1])


@pytest.fixture
def state(monkeypatch, tmp_path):
    """A home and a temporary folder of this test alone."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / ".local" / "state" / "ezpz" / "launches"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_launch_has_a_folder_named_by_its_time_and_id(state):
    folder, note = record.launch_folder("", "0f" * 8 + "/5f3a90c2d1", WHEN)
    assert note == ""
    assert Path(folder).parent == state
    assert Path(folder).name == time.strftime("%Y-%m-%d-%H%M%S", time.localtime(WHEN)) + "-5f3a90c2"
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_xdg_state_home_counts_when_it_is_absolute(state, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert record.launch_folder("", "a" * 8, WHEN)[0].startswith(str(tmp_path / "xdg" / "ezpz" / "launches"))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert record.launch_folder("", "a" * 8, WHEN)[0].startswith(str(state))


@pytest.mark.parametrize(
    ("home", "said"), [(None, "HOME is not set"), ("/nonexistent", "HOME=/nonexistent is no folder")]
)
def test_without_a_home_the_temporary_folder_serves_and_the_user_is_told(state, monkeypatch, tmp_path, home, said):
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)
    folder, note = record.launch_folder("", "a" * 8, WHEN)
    assert folder.startswith(str(tmp_path / "tmp" / f"ezpz-{os.getuid()}" / "records"))
    assert folder in note
    assert said in note
    assert record.write(folder, {}) == ""


def test_a_home_that_cannot_be_written_gives_way_too(state, tmp_path):
    (tmp_path / ".local").write_text("a file where a folder should be")
    folder, note = record.launch_folder("", "a" * 8, WHEN)
    assert "records" in folder
    assert "it is no folder" in note
    (tmp_path / "tmp" / f"ezpz-{os.getuid()}" / "records").rename(tmp_path / "gone")
    (tmp_path / "tmp" / f"ezpz-{os.getuid()}" / "records").write_text("")
    folder, note = record.launch_folder("", "a" * 8, WHEN)
    assert folder == ""
    assert note.startswith("no record of this launch is kept")
    assert record.write(folder, {}) == ""


def test_the_users_own_folder_is_used_as_it_is_or_refused(state, tmp_path):
    assert record.launch_folder(str(tmp_path / "mine" / "logs"), "a" * 8, WHEN) == (str(tmp_path / "mine" / "logs"), "")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot use .*/file/x \(from --log-dir\): Not a directory; expected"):
        record.launch_folder(str(tmp_path / "file" / "x"), "a" * 8, WHEN)


def test_the_newest_hundred_stay_and_what_runs_or_is_foreign(state):
    for index in range(104):
        folder, _ = record.launch_folder("", f"{index:08}", WHEN + index)
        record.write(folder, {"state": "running" if index == 2 else "finished"})
        record.forget_old(folder)
    (state / "notes").mkdir(exist_ok=True)
    kept = names(state)
    assert len(kept) == 102  # one hundred, the running one and the foreign one
    assert "notes" in kept
    assert any(name.endswith("-00000002") for name in kept)
    assert not any(name.endswith(("-00000000", "-00000001", "-00000003")) for name in kept)
    lost = next(state.glob("*-00000002"))
    os.utime(lost / "run.json", (time.time() - 40 * 86400,) * 2)  # its host went down: nobody will end it
    record.forget_old(record.launch_folder("", "99999999", WHEN + 200)[0])
    assert not lost.exists()


def test_beside_a_users_own_folder_nothing_is_forgotten(state, tmp_path):
    for index in range(105):
        (tmp_path / "mine" / f"2020-01-01-000000-{index:08}").mkdir(parents=True)
    record.forget_old(str(tmp_path / "mine" / "2020-01-01-000000-00000104"))
    record.forget_old(str(tmp_path / "mine"))
    record.forget_old("")
    assert len(names(tmp_path / "mine")) == 105


def test_run_json_is_replaced_as_a_whole_and_private(tmp_path):
    assert record.write(str(tmp_path), {"a": ["\udcff", "ü"], "state": "running"}) == ""
    assert record.write(str(tmp_path), {"a": ["\udcff", "ü"], "state": "finished"}) == ""
    assert names(tmp_path) == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": ["\udcff", "ü"], "state": "finished"}
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600


def test_a_disk_that_is_full_or_gone_is_a_reason_and_no_failure(tmp_path):
    (tmp_path / "run.json").mkdir()  # what replaces a file cannot replace a folder
    assert record.write(str(tmp_path), {}).startswith(f"cannot write {tmp_path}/run.json: Is a directory")
    assert names(tmp_path) == ["run.json"]
    assert "No such file" in record.write(str(tmp_path / "gone"), {})


def test_a_full_disk_leaves_what_was_there(tmp_path):
    record.write(str(tmp_path), {"state": "running"})
    code = f"""
import resource, signal
from ezpz.launch import record
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(record.write({str(tmp_path)!r}, {{"state": "x" * 1000}}))
"""
    env = {**os.environ, "PYTHONPATH": SRC}
    assert "File too large" in process.run([sys.executable, "-c", code], env).stdout
    assert names(tmp_path) == ["run.json"]
    assert json.loads((tmp_path / "run.json").read_text()) == {"state": "running"}


def test_what_is_said_of_a_launch_from_its_begin_to_its_end():
    wishes = parse(["-n", "2", "--launcher-args", "-x HF_TOKEN=abc", "train.py", "--api-key", "s3cret"], {})
    environ = {"PATH": os.environ["PATH"]}
    told = record.started(PlanBuilder(survey(wishes, environ), wishes, environ).build(), WHEN)
    assert told["state"] == "running"
    assert told["command"] == ["train.py", "--api-key", "<redacted>"]
    assert (told["plan"]["world_size"], told["plan"]["ranks_per_host"]) == (2, [2])
    assert (told["plan"]["scheduler"], told["plan"]["job_id"]) == (None, None)
    assert told["plan"]["line"].endswith("train.py --api-key '<redacted>'")
    assert "s3cret" not in json.dumps(told)
    over = record.ended({**told, "cause": record.failure("rank 1 was killed", rank=1, code=-9)}, WHEN, 137, WHEN + 2.5)
    assert set(over) == set(told)
    assert (over["state"], over["seconds"], over["exit_code"]) == ("failed", 2.5, 137)
    assert (over["cause"]["signal"], over["cause"]["code"], over["cause"]["rank"]) == ("SIGKILL", None, 1)
    assert record.ended(told, WHEN, 0, WHEN)["state"] == "finished"
    assert record.ended(told, WHEN, 124, WHEN, stopped=True)["state"] == "stopped"
    assert record.failure("x", code=-63)["signal"] == "signal 63"


def test_secrets_of_a_command_are_not_kept(subtests):
    for words, shown in [
        ("--token abc x", "--token <redacted> x"),
        ("--wandb_api-key=abc", "--wandb_api-key=<redacted>"),
        ("env HF_TOKEN=abc python", "env HF_TOKEN=<redacted> python"),
        ("--db-password --lr 3", "--db-password --lr 3"),
        ("--data https://me:pw@host/x", "--data https://<redacted>@host/x"),
        ("--tokenizer gpt2 --keys-per-row 3", "--tokenizer gpt2 --keys-per-row 3"),
    ]:
        with subtests.test(words):
            assert redact_argv(words.split()) == shown.split()


def reached(stage, times):
    low, median, high = min(times), statistics.median(times), max(times)
    return StagesReport(stage=stage, count=len(times), low=low, median=median, high=high, ranks=[])


hosts = st.lists(st.lists(st.floats(0, 1e4), min_size=1, max_size=8), min_size=1, max_size=8)


@given(hosts)
def test_stages_are_summed_over_hosts(times):
    stages = Stages()
    for index, ranks in enumerate(times):
        stages.add(f"n{index}", reached("torch", [0.0]), 0.0)  # its earlier report counts no more
        stages.add(f"n{index}", reached("torch", ranks), 0.0)
    every = sorted(value for ranks in times for value in ranks)
    told = stages.summary()["torch"]
    assert list(stages.summary()) == ["torch"]
    assert told["ranks"] == stages.reached("torch") == len(every)
    assert (told["min"], told["max"]) == (round(every[0], 3), round(every[-1], 3))
    assert told["min"] <= told["median"] <= told["max"]
    assert max(times[int(told["slowest_host"][1:])]) == every[-1]
    if len({len(ranks) for ranks in times}) == 1 and len(times[0]) == 1:  # a rank per host: exact
        assert told["median"] == round(statistics.median(every), 3)


def test_stages_come_in_order_and_hold_no_more_than_a_line_per_host():
    stages = Stages()
    for stage in ("step", "shim", "odd", "torch"):
        for index in random.Random(1).sample(range(1000), 1000):  # an order, no secret
            stages.add(f"n{index}", reached(stage, [1.0, *[2.0] * 6, 3.0 + (index == 7)]), 0.0)
    assert list(stages.summary()) == ["shim", "torch", "step"]
    expected = {"ranks": 8000, "min": 1.0, "median": 2.0, "max": 4.0, "slowest_host": "n7"}
    assert stages.summary()["torch"] == expected
    assert stages.reached("group") == 0
