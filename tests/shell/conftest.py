"""Fixtures that run `utils.sh` in real shells."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from shells import FAKE_PYTHON, PATIENT, ROOT, make_shell, on_host

from lab.require import require


@pytest.fixture(params=["bash", pytest.param("zsh", marks=pytest.mark.slow)])
def shell(request, tmp_path):
    """A shell with an empty home, in an empty folder, that sees the system's programs and no job."""
    if request.param == "zsh":
        require("zsh", None if shutil.which("zsh") else "no zsh on PATH")
    return make_shell(request.param, tmp_path)


@pytest.fixture
def small(shell):
    """A shell whose Python does not import ezpz: the small answer of the shell itself."""
    shell.program("python3", "exit 1")
    if Path("/usr/bin/timeout").exists():
        shell.program("timeout", PATIENT)
    return shell


@pytest.fixture
def fake(shell):
    """A shell whose only Python is the fake one."""
    shell.program("python3", FAKE_PYTHON)
    shell.env["EZPZ_TORCH"] = "default"  # whatever scheduler or driver this machine has
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
