"""Histories that end with their test, and an environment in which this process is alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ezpz.ranks import CONTRACT
from ezpz.track import History
from lab import run_folders


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    for name in os.environ:
        if (
            name in CONTRACT
            or name == "COLUMNS"
            or name.startswith(("OMPI_", "PMI_", "MPI_", "SLURM_", "EZPZ_", "WANDB_"))
        ):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def make_history(tmp_path):
    """`make_history(name="run", outdir=tmp_path / "run")` -> History, ended with the test."""
    made = []

    def make(name="run", outdir=tmp_path / "run"):
        history = History(name, outdir)
        made.append(history)
        return history

    yield make
    for history in made:
        error = RuntimeError("the test is over")  # with which nothing is drawn or read, and nothing raised
        history.__exit__(type(error), error, None)


@pytest.fixture
def history(make_history):
    return make_history()


@pytest.fixture
def full_disk(monkeypatch):
    """`full_disk(path)`: from now on, writes to this file find no space; `full_disk(None)` ends that."""
    real, full = os.write, [None]

    def write(descriptor, data):
        if full[0] is not None and full[0].exists() and os.path.samestat(os.fstat(descriptor), full[0].stat()):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr("os.write", write)

    def fill(path):
        full[0] = path and Path(path)

    return fill


@pytest.fixture
def run_python(tmp_path):
    """`run_python(code, *args, **environ)` -> CompletedProcess of a new interpreter in `tmp_path`, output as bytes."""

    def run(code, *args, interpreter=(), **environ):
        command, env = (
            [sys.executable, *interpreter, "-c", code, *map(str, args)],
            run_folders.environ(tmp_path, **environ),
        )
        return subprocess.run(command, env=env, capture_output=True, timeout=120, cwd=tmp_path, check=False)

    return run
