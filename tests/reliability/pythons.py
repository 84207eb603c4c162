"""The Pythons that `make pythons` tests with: a venv of each in ``.test/pythons``, which `tests/lab/setup` makes."""

from __future__ import annotations

import os
from functools import cache

from lab import process
from lab.checkout import ROOT

FOLDER = ROOT / ".test" / "pythons"
_TOLD = """
import platform
from importlib.metadata import version
print(platform.python_version())
try:
    print(version("torch"))
except ModuleNotFoundError:
    pass
"""


def versions(environ=os.environ):
    """The versions that are wanted, as ``3.12``: those of PYTHONS, else those that `make pythons` takes by default."""
    return tuple(environ.get("PYTHONS", "").split() or ("3.10", "3.12", "3.13"))


class Python:
    """One of them: `version` as it was asked for, `program`, its path."""

    def __init__(self, version):
        self.version = version
        self.program = FOLDER / version / "bin" / "python3"

    def __repr__(self):
        return self.version

    def problem(self):
        """Why nothing can run with it here, or None."""
        if (FOLDER / self.version / ".stamp").exists():
            return None
        return f"no Python {self.version} with what ezpz imports (`make pythons` looks for one on PATH and in pyenv)"

    @cache  # noqa: B019  # a handful of them, to the end of the run
    def told(self):
        """Its whole version, and that of torch, or an empty text without torch."""
        lines = process.run([self.program, "-I", "-c", _TOLD], timeout=60).stdout.split()
        return (*lines, "", "")[:2]

    def torch_problem(self):
        """Why nothing can train with it here, or None."""
        return None if self.told()[1] else f"no torch could be installed for Python {self.version}"

    def env(self, home, tag, **more):
        """A login's environment whose python3 it is."""
        return {**process.minimal_env(home, tag, self.program.parent), "PYTHONDONTWRITEBYTECODE": "1", **more}
