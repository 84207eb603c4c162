"""Small scripts with the calls of public programs, unedited by what is new, on two ranks under `launch`.

`make older` runs these, and the programs themselves.
"""

import os
import sys
from pathlib import Path

import pytest
import snippets

HERE = Path(__file__).parent

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("EZPZ_OLDER"), reason="programs of the older package: make older")
@pytest.mark.parametrize("name", ["like_wordplay", "like_mmm"])
def test_a_script_with_the_calls_of_older_programs_runs_on_two_ranks(name, run_cli, clean_env, tmp_path):
    environ = {**clean_env, "TORCH_DEVICE": "cpu", "WANDB_DISABLED": "1", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    script = HERE / "scripts" / f"{name}.py"
    command = [sys.executable, "-m", "ezpz.launch", "-n", "2", sys.executable, script]
    done = run_cli(command, environ, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{name} ended") == 2
    assert "Traceback" not in done.stdout + done.stderr


def test_a_snippet_is_self_contained_when_it_reads_what_it_defines():
    for code, is_one in (
        ("import ezpz\nrank = ezpz.setup_torch()", True),
        ("import ezpz\nezpz.wrap_model(model)", False),  # whose model?
        ("import torch\nprint(torch)", False),
        ("import ezpz\nwith open(", False),
        ("from ezpz.history import History\nfor x in range(3):\n    History().update({'x': x})", True),
    ):
        assert snippets.is_self_contained(code) is is_one, code


@pytest.mark.slow
def test_snippets_are_found_run_and_named(tmp_path):
    (tmp_path / "docs").mkdir()
    page = (
        "```python\nimport ezpz  # (1)!\nprint(ezpz.__version__)\n```\n\n"
        "    ```python\n    import ezpz\n    ezpz.nothing()\n    ```\n"
    )
    (tmp_path / "docs" / "a.md").write_text(page, encoding="utf-8")
    page = "```python\nimport ezpz\nprint(open('data/digits').read())  # MNIST(\"./data\")\n```\n"
    (tmp_path / "docs" / "b.md").write_text(page, encoding="utf-8")

    def make_mnist(folder):
        folder.mkdir()
        (folder / "digits").write_text("7")

    words, env = [sys.executable], {"PATH": "/usr/bin:/bin"}
    ran, others = snippets.run_all(tmp_path, tmp_path / "work", words, env, make_mnist)
    assert ran == ["docs/a.md:1", "docs/b.md:1"]
    assert [where for where, _ in others] == ["docs/a.md:6"]
    assert "no attribute 'nothing'" in others[0][1]
