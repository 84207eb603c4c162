"""Whether wandb could start a run here, told without wandb and network; and the older keywords of `setup_wandb`."""

import sys
import types

import pytest

import ezpz
from ezpz.track import wandb as ours

NAMES = (
    "WANDB_DISABLED",
    "WANDB_MODE",
    "WANDB_API_KEY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_BASE_URL",
    "NETRC",
    "WANDB_PROJECT",
    "WB_PROJECT",
    "RANK",
)


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch, tmp_path):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def wandb(monkeypatch):
    """A wandb that remembers what `init` was given."""
    module = types.ModuleType("wandb")
    module.given = []
    module.init = lambda **keywords: module.given.append(keywords) or "the run"
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(ours, "run", None)  # put back after the test: setup_wandb replaces it
    return module


@pytest.mark.parametrize(
    ("variables", "netrc", "expected"),
    [
        ({}, "", False),
        ({"WANDB_API_KEY": "k"}, "", True),
        ({"WANDB_API_KEY": "k", "WANDB_DISABLED": "true"}, "", False),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "disabled"}, "", False),
        ({"WANDB_API_KEY": "k", "WANDB_DISABLED": "false"}, "", True),
        ({"WANDB_MODE": "offline"}, "", True),
        ({}, "machine api.wandb.ai login user password k\n", True),
        ({}, "machine elsewhere.org login user password k\n", False),
        ({"WANDB_BASE_URL": "https://wandb.site.org:8443/x"}, "machine wandb.site.org login user password k\n", True),
        ({"WANDB_BASE_URL": "https://wandb.site.org"}, "machine api.wandb.ai login user password k\n", False),
        ({}, "this is no netrc", False),
    ],
)
def test_a_run_needs_a_key_and_nobody_who_forbids_it(monkeypatch, tmp_path, wandb, variables, netrc, expected):
    if netrc:
        (tmp_path / ".netrc").write_text(netrc)
        (tmp_path / ".netrc").chmod(0o600)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ezpz.verify_wandb() is expected
    assert wandb.given == []


def test_without_wandb_there_is_no_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert ezpz.verify_wandb() is False


@pytest.mark.parametrize(
    ("positional", "keywords", "variables", "project"),
    [
        (("first",), {}, {}, "first"),
        ((), {"project_name": "older"}, {}, "older"),
        ((), {"project": "new", "project_name": "older"}, {}, "new"),
        ((), {}, {"WANDB_PROJECT": "named"}, "named"),
        ((), {}, {"WB_PROJECT": "short"}, "short"),
    ],
)
def test_the_project_under_each_of_its_names(monkeypatch, wandb, positional, keywords, variables, project):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ezpz.dist.setup_wandb(*positional, **keywords) == "the run"
    assert wandb.given[0]["project"] == project


def test_older_keywords_reach_wandb(wandb):
    ezpz.setup_wandb(project_name="p", entity="team", config={"lr": 1}, dir="here", group="sweep")
    assert wandb.given == [
        {
            "project": "p",
            "entity": "team",
            "config": {"lr": 1},
            "dir": "here",
            "group": "sweep",
            "name": None,
            "mode": "offline",
        }
    ]


@pytest.mark.parametrize("wish", [{"mode": "online"}, {"settings": {"mode": "online"}}])
def test_a_mode_that_the_program_chooses_is_left_alone(wandb, wish):
    ezpz.setup_wandb("p", **wish)
    assert {key: value for key, value in wandb.given[0].items() if key in {"mode", "settings"}} == wish
