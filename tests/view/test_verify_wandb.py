"""Whether wandb could start a run here, told without wandb and network; and the older keywords of `setup_wandb`."""

import sys
import types

import pytest

import ezpz
from ezpz.view.trackers import shared_wandb as ours


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch, tmp_path):
    for name in ("NETRC", "WB_PROJECT"):  # conftest.py takes those of wandb away
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


KEYS = [
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
]


def test_a_run_needs_a_key_and_nobody_who_forbids_it(subtests, monkeypatch, tmp_path, wandb):
    file = tmp_path / ".netrc"
    for variables, netrc, expected in KEYS:
        with subtests.test(f"{variables} {netrc}"), monkeypatch.context() as patch:
            file.write_text(netrc)
            file.chmod(0o600)
            if not netrc:
                file.unlink()
            for name, value in variables.items():
                patch.setenv(name, value)
            assert ezpz.verify_wandb() is expected
            assert wandb.given == []


def test_without_wandb_there_is_no_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert ezpz.verify_wandb() is False


PROJECTS = [
    (("first",), {}, {}, "first"),
    ((), {"project_name": "older"}, {}, "older"),
    ((), {"project": "new", "project_name": "older"}, {}, "new"),
    ((), {}, {"WANDB_PROJECT": "named"}, "named"),
    ((), {}, {"WB_PROJECT": "short"}, "short"),
]


def test_the_project_under_each_of_its_names(subtests, monkeypatch, wandb):
    for positional, keywords, variables, project in PROJECTS:
        with subtests.test(f"{positional} {keywords} {variables}"), monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert ezpz.dist.setup_wandb(*positional, **keywords) == "the run"
            assert wandb.given.pop()["project"] == project


def test_older_keywords_reach_wandb_and_a_mode_of_the_program_is_left_alone(wandb, subtests):
    given = {"entity": "team", "config": {"lr": 1}, "dir": "here", "group": "sweep"}
    ezpz.setup_wandb(project_name="p", **given)
    assert wandb.given.pop() == {"project": "p", "name": None, "mode": "offline", **given}
    for wish in [{"mode": "online"}, {"settings": {"mode": "online"}}]:
        with subtests.test(str(wish)):
            ezpz.setup_wandb("p", **wish)
            given = wandb.given.pop()
            assert {key: value for key, value in given.items() if key in {"mode", "settings"}} == wish
