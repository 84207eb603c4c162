"""Against a wandb that is really imported, from a folder of the test: it is not installed where these tests run.

`test_trackers_real.py` has the real one.
"""

import json

import pytest

from ezpz.track import read_journal

FAKE = """
import json, os
{import_time}
class Run:
    offline, dir = True, "there"
    config = {{}}
    def finish(self, exit_code):
        with open("wandb.log", "a") as file:
            file.write(json.dumps(["finish", exit_code]) + "\\n")
    def log(self, values, step=None):
        with open("wandb.log", "a") as file:
            file.write(json.dumps([step, values]) + "\\n")

def Settings(**kwargs):
    return kwargs

def init(**kwargs):
    {init_time}
    with open("wandb.init", "w") as file:
        json.dump(kwargs, file)
    run = Run()
    run.id = kwargs.get("id") or "abc"
    return run
"""

TRAIN = """
import sys
from ezpz.track import History, setup_wandb
run = setup_wandb(config={"lr": 0.1, "api_key": "hunter2"}, outdir="here")
history = History("train", "out")
for step in range(3):
    history.update({"loss": step / 2}, step=step * 10)
print("run", run is not None, "imported", "wandb" in sys.modules)
history.finalize(plots=False, show=False)
"""

BOTH = """
from pathlib import Path
from ezpz.track import setup_wandb; from ezpz.view.trackers import shared_wandb as wandb
from ezpz.view.trackers import About, Trackers
import sys
first = "first" in sys.argv and setup_wandb("p")
trackers = Trackers("wandb", About("train", Path("out"), {"lr": 0.1}, {}, "stamp"))
for step in range(3):
    trackers.log(step, {"loss": step / 2})
    wandb.log(step, {"loss": step / 2})
print("state", trackers.state["wandb"]["id"] == "abc" or len(trackers.state["wandb"]["id"]))
trackers.finish("failed")
"""


@pytest.fixture
def train(run_python, tmp_path):
    """`train(init_time="raise …", **environ)` -> stdout lines of a run with a wandb that does so."""

    def train(import_time="", init_time="pass", fake=True, code=TRAIN, arguments=(), **environ):
        site = tmp_path / "site"
        site.mkdir()
        if fake:
            (site / "wandb.py").write_text(FAKE.format(import_time=import_time, init_time=init_time))
        result = run_python(f"import sys; sys.path.insert(0, {str(site)!r})\n{code}", *arguments, **environ)
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
        "mode": "offline",
    }


TWICE = """
import wandb
from ezpz.track import setup_wandb
made = []
class Config(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change
        super().update(values)
def init(**kwargs):
    run = wandb.run = wandb.Run()
    run.config, run.project, run.name = Config(kwargs["config"] or {}), kwargs["project"], kwargs["name"]
    made.append(run)
    return run
wandb.init, wandb.run = init, None
first = setup_wandb(project_name="p", config={"lr": 0.1, "seed": 1})
assert setup_wandb(config={"lr": 0.2, "api_key": "hunter2"}) is first
assert setup_wandb("p") is first
assert first.config == {"lr": 0.2, "seed": 1, "api_key": "<redacted>"}, first.config
assert setup_wandb("other", name="n") is first and len(made) == 1
wandb.run = None  # as wandb.finish() leaves it
assert setup_wandb("other") is not first and len(made) == 2
"""


def test_a_second_call_adds_to_the_run_of_the_first(train):
    assert [line.partition("] ")[2] for line in warnings(train(code=TWICE))] == [
        "wandb: the run that setup_wandb has started keeps its project 'p', not 'other'."
    ]


@pytest.mark.slow
@pytest.mark.parametrize("code", [TRAIN, BOTH], ids=["setup_wandb", "tracker"])
def test_wandb_does_not_collect_arguments_that_hold_a_secret(train, tmp_path, code):
    lines = train(code=code, arguments=("--api-key", "hunter2"))
    assert any("wandb collects nothing about program and machine" in line for line in lines)
    assert json.loads((tmp_path / "wandb.init").read_text())["settings"]["_disable_meta"] is True


@pytest.mark.slow
def test_without_a_project_the_program_names_it(train, tmp_path):
    train()
    assert json.loads((tmp_path / "wandb.init").read_text())["project"] == "history"


@pytest.mark.slow
@pytest.mark.few(1)
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


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("environ", [{"WANDB_MODE": "disabled"}, {"WANDB_DISABLED": "true"}], ids=["mode", "disabled"])
def test_a_user_who_switched_it_off_gets_no_wandb_and_no_warning(train, environ):
    lines = train(**environ)
    assert "run False imported False" in lines
    assert warnings(lines) == []


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{"WANDB_MODE": "offline"}, {"WANDB_API_KEY": "k"}], ids=["mode", "key"])
def test_the_mode_is_left_to_wandb_where_somebody_chose_it_or_there_is_a_key(train, tmp_path, environ):
    assert "run True imported True" in train(**environ)
    assert "mode" not in json.loads((tmp_path / "wandb.init").read_text())


@pytest.mark.parametrize("first", [True, False], ids=["setup_wandb first", "tracker alone"])
def test_the_tracker_takes_over_the_run_of_setup_wandb_and_rows_come_once(train, tmp_path, first):
    lines = train(code=BOTH, arguments=["first"] if first else [])
    assert f"state {True if first else 8}" in lines
    assert warnings(lines) == []
    logged = [json.loads(line) for line in (tmp_path / "wandb.log").read_text().splitlines()]
    ending = [] if first else [["finish", 1]]  # the program ends a run that it started
    assert logged == [[step, {"loss": step / 2}] for step in range(3)] + ending


@pytest.mark.slow
def test_other_ranks_never_import_it(train, tmp_path):
    lines = train(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert "run False imported False" in lines
    assert not (tmp_path / "wandb.init").exists()
