"""Against a wandb that is really imported, from a folder of the test: it is not installed where these tests run."""

from __future__ import annotations

import json

import pytest

from ezpz.track import read_journal

FAKE = """
import json, os
{import_time}
class Run:
    def log(self, values, step=None):
        {log_time}
        with open("wandb.log", "a") as file:
            file.write(json.dumps([step, values]) + "\\n")

def init(**kwargs):
    {init_time}
    with open("wandb.init", "w") as file:
        json.dump(kwargs, file)
    return Run()
"""

TRAIN = """
import sys
from ezpz.track import History, setup_wandb
run = setup_wandb(config={"lr": 0.1, "api_key": "hunter2"}, outdir="here")
history = History("train", "out")
for step in range(3):
    history.update({"loss": step / 2}, step=step * 10)
print("run", run is not None, "imported", "wandb" in sys.modules)
history.finalize(plots=False)
"""


@pytest.fixture
def train(run_python, tmp_path):
    """`train(log_time="raise …", **environ)` -> stdout lines of a run with a wandb that does so."""

    def train(import_time="", init_time="pass", log_time="pass", fake=True, **environ):
        site = tmp_path / "site"
        site.mkdir()
        if fake:
            text = FAKE.format(import_time=import_time, init_time=init_time, log_time=log_time)
            (site / "wandb.py").write_text(text)
        code = f"import sys; sys.path.insert(0, {str(site)!r})\n{TRAIN}"
        result = run_python(code, **environ)
        assert result.returncode == 0, result.stderr
        return result.stdout.decode().splitlines()

    return train


def warnings(lines):
    return [line for line in lines if "[W]" in line]


def test_rows_go_to_the_run_as_well(train, tmp_path):
    lines = train(WANDB_PROJECT="mine")
    assert "run True imported True" in lines
    assert warnings(lines) == []
    logged = [json.loads(line) for line in (tmp_path / "wandb.log").read_text().splitlines()]
    assert logged == [[0, {"loss": 0.0}], [10, {"loss": 0.5}], [20, {"loss": 1.0}]]
    assert json.loads((tmp_path / "wandb.init").read_text()) == {
        "project": "mine",
        "config": {"lr": 0.1, "api_key": "<redacted>"},
        "name": None,
        "dir": "here",
    }


def test_without_a_project_the_program_names_it(train, tmp_path):
    train()
    assert json.loads((tmp_path / "wandb.init").read_text())["project"] == "history"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"fake": False}, "ModuleNotFoundError: No module named 'wandb'"),
        ({"import_time": "raise TypeError('old protobuf')"}, "TypeError: old protobuf"),
        ({"init_time": "raise ConnectionError('no network')"}, "ConnectionError: no network"),
    ],
    ids=["absent", "import", "init"],
)
def test_a_missing_or_broken_wandb_costs_one_warning_and_no_row(train, tmp_path, broken, told):
    lines = train(**broken)
    assert any(line.startswith("run False") for line in lines)
    assert len(warnings(lines)) == 1
    assert f"wandb is off: {told}" in warnings(lines)[0]
    assert [row["step"] for row in read_journal(tmp_path / "out")] == [0, 10, 20]


def test_a_failing_log_costs_one_warning_and_no_row(train, tmp_path):
    lines = train(log_time="raise OSError('service is gone')")
    assert len(warnings(lines)) == 1
    assert "wandb is off from step 0: OSError: service is gone" in warnings(lines)[0]
    assert [row["step"] for row in read_journal(tmp_path / "out")] == [0, 10, 20]
    assert (tmp_path / "out" / "train.h5").is_file()


@pytest.mark.parametrize("environ", [{"WANDB_MODE": "disabled"}, {"WANDB_DISABLED": "true"}], ids=["mode", "disabled"])
def test_a_user_who_switched_it_off_gets_no_wandb_and_no_warning(train, environ):
    lines = train(**environ)
    assert "run False imported False" in lines
    assert warnings(lines) == []


def test_offline_mode_is_left_to_wandb(train):
    assert "run True imported True" in train(WANDB_MODE="offline")


def test_other_ranks_never_import_it(train, tmp_path):
    lines = train(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert "run False imported False" in lines
    assert not (tmp_path / "wandb.init").exists()
