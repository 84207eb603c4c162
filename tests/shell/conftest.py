"""Fixtures that run `utils.sh` in real shells."""

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from shells import FAKE_PYTHON, FOREIGN, ROOT, Shell, on_host

from lab.require import require


@pytest.fixture(params=["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def shell(request, tmp_path):
    """A shell with an empty home, in an empty folder, that sees the system's programs and no job."""
    if request.param == "zsh":
        require("zsh", None if shutil.which("zsh") else "no zsh on PATH")
    folders = {name: tmp_path / name for name in ("home", "tmp", "bin", "work")}
    for folder in folders.values():
        folder.mkdir()
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    env |= {"HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"]), "LC_ALL": "C.UTF-8"}
    env |= {"PATH": f"{folders['bin']}:/usr/bin:/bin", "FAKE_LOG": str(tmp_path / "calls")}
    return Shell(request.param, folders["work"], folders["bin"], env)


@pytest.fixture
def small(shell):
    """A shell whose Python does not import ezpz: the small answer of the shell itself."""
    shell.program("python3", "exit 1")
    return shell


@pytest.fixture
def fake(shell):
    """A shell whose only Python is the fake one."""
    shell.program("python3", FAKE_PYTHON)
    shell.env["EZPZ_TORCH"] = "default"  # whatever scheduler or driver this machine has
    shell.calls = lambda: Path(shell.env["FAKE_LOG"]).read_text() if Path(shell.env["FAKE_LOG"]).exists() else ""
    return shell


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A copy of the checkout, so that a test may change its files."""
    copy = tmp_path_factory.mktemp("source") / "a checkout"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="session")
def real_python():
    """The Python that runs the tests: a virtual environment that holds torch."""
    return sys.executable


@pytest.fixture
def importable(shell, real_python):
    """A shell whose python3 imports ezpz; it stands on n01."""
    shell.program("python3", f'exec {shlex.quote(real_python)} "$@"')
    on_host(shell, "n01")
    return shell
