import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.ranks import from_environ
from ezpz.redact import redact_argv
from ezpz.track.run_facts import collect_facts, git_commit, redact_config

SECRET = "hunter2"


SECRETS = [
    ["train.py", "--api-key", SECRET],
    ["train.py", f"--wandb_token={SECRET}"],
    ["train.py", f"+tracker.api_key={SECRET}"],
    ["train.py", "--db-password", SECRET, "--lr", "0.1"],
    ["train.py", f"https://me:{SECRET}@host/data"],
    ["train.py", f"--url=s3://{SECRET}@bucket"],
    ["train.py", "--token", f"-{SECRET}"],
    ["train.py", f"AWS_SECRET={SECRET}"],
]


def test_secrets_never_appear(subtests):
    for argv in SECRETS:
        with subtests.test(argv[1]):
            shown = redact_argv(argv)
            assert SECRET not in " ".join(shown)
            assert "<redacted>" in " ".join(shown)
            facts = collect_facts({"EZPZ_LAUNCH_CMD": " ".join(argv)}, from_environ({}), argv)
            assert SECRET not in json.dumps(facts)


def test_all_else_is_shown_as_it_was_typed():
    argv = ["train.py", "--tokenizer", "gpt2", "--lr=0.1", "--verbose", "--keys-per-row", "3", "--token", "--flag", "x"]
    assert redact_argv(argv) == argv


def test_only_four_variables_of_the_environment_are_read():
    kept = {"EZPZ_HOSTS": "n01,n02", "EZPZ_JOBID": "42"}
    others = {"EZPZ_OTHER": "no", "MY_API_KEY": SECRET, "EZPZ_SCHEDULER": ""}
    facts = collect_facts({**kept, **others}, from_environ({}), ["train.py"])
    assert facts["launch"] == kept
    assert SECRET not in json.dumps(facts)


def test_the_launch_line_is_kept_to_the_letter_when_it_holds_no_secret():
    line = "mpiexec  -n 2 python3 -c 'print(\"a  b\")'"
    assert collect_facts({"EZPZ_LAUNCH_CMD": line}, from_environ({}), [])["launch"] == {"EZPZ_LAUNCH_CMD": line}
    broken = {"EZPZ_LAUNCH_CMD": f"x '--token {SECRET}"}
    assert collect_facts(broken, from_environ({}), [])["launch"] == {"EZPZ_LAUNCH_CMD": "<redacted>"}


def test_versions_ranks_and_host_are_told_without_importing_anything():
    loaded = set(sys.modules)
    environ = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    facts = collect_facts({}, from_environ(environ), ["a.py"])
    assert {name.partition(".")[0] for name in set(sys.modules) - loaded} <= {"importlib"}
    assert facts["ranks"]["rank"] == 3
    assert facts["ranks"]["world_size"] == 4
    assert facts["versions"].keys() >= {"numpy", "h5py", "xarray"}
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    json.dumps(facts, allow_nan=False)


def test_a_configuration_becomes_json_without_its_secrets():
    class Model:
        def __repr__(self):
            return "Model()"

    plain = {"lr": 0.1, "hf_token": None}
    given = {"bad": math.nan, "sizes": (1, 2), "path": Path("a/b"), "model": Model()}
    given["nested"] = {"api_key": SECRET, "max_token": 5}
    shown = redact_config(argparse.Namespace(**plain, **given))
    told = {"bad": "nan", "sizes": [1, 2], "path": "a/b", "model": "Model()"}
    assert shown == {**plain, **told, "nested": {"api_key": "<redacted>", "max_token": 5}}
    json.dumps(shown, allow_nan=False)


def git(folder, *args):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not on PATH")
def test_the_commit_is_the_one_that_git_names(tmp_path):
    repository = tmp_path / "repo"
    (repository / "deep").mkdir(parents=True)
    git(repository, "init")
    assert git_commit(repository) is None  # nothing committed yet
    git(repository, "commit", "--allow-empty", "-m", "one")
    commit = git(repository, "rev-parse", "HEAD")
    assert git_commit(repository / "deep") == commit
    git(repository, "pack-refs", "--all")
    assert git_commit(repository) == commit
    git(repository, "worktree", "add", tmp_path / "tree", "-b", "other")
    assert git_commit(tmp_path / "tree") == commit
    git(repository, "checkout", "--detach")
    assert git_commit(repository) == commit


def test_outside_a_checkout_there_is_no_commit(tmp_path):
    assert git_commit(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: /nowhere")
    assert git_commit(tmp_path) is None


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("files", "args", "name"),
    [
        ({"train.py": ""}, ["train.py"], "train"),
        ({"pkg/__init__.py": "", "pkg/test_dist.py": ""}, ["-m", "pkg.test_dist"], "test_dist"),
        ({"pkg/__init__.py": "", "pkg/__main__.py": ""}, ["-m", "pkg"], "pkg"),
        ({}, ["-c", ""], "history"),
    ],
    ids=["script", "module", "package", "no file"],
)
def test_a_run_is_called_after_its_program(tmp_path, files, args, name):
    code = "from ezpz.track.run_facts import script_name\nprint(script_name())"
    for path in files:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(code if not path.endswith("__init__.py") else "")
    args = [code if arg == "" else arg for arg in args]
    env = {"PYTHONPATH": f"{Path(__file__).parents[2] / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([sys.executable, *args], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == name
