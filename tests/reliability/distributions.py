"""Distributions as test beds: this machine's own, and root folders of others, each with its own Python and MPIs.

Nothing is installed on this machine. Its own packages of MPI are unpacked beside it (`tests/lab/setup distribution`),
other distributions come from debootstrap (`tests/reliability/roots`), and a command sees them in a mount namespace of
its own (`tests/reliability/enter`), as an ordinary user unless something else is asked for. Process ids are the
machine's, so that ranks and what they leave behind are found as everywhere.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from pathlib import Path

from stages import Stage

from lab import process
from lab.checkout import ROOT
from lab.ssh import LAUNCH, SRC

HERE = Path(__file__).parent
ROOTS = ROOT / ".test" / "distros"
OTHERS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04")
LAUNCHERS = {"none": "local", "mpich": "MPICH", "openmpi": "Open MPI"}  # as Debian names the MPI, and as we do
ROOT_USER, NOBODY = 0, 65534


def own_name():
    """The distribution of this machine, as ``debian-12``."""
    try:
        told = platform.freedesktop_os_release()
    except OSError:
        return sys.platform
    return f"{told['ID']}-{told.get('VERSION_ID', 'rolling')}"


class Distribution:
    """One distribution.

    Attributes:
        name, own: As ``debian-12``; whether it is this machine's.
        folder: What the tests have made for it.
        bin: The folder of a venv of its own Python.
        root, over: Its root folder, and what is laid over that.
    """

    def __init__(self, name):
        self.name, self.own = name, name == own_name()
        self.folder = ROOT / ".test" / "distribution" if self.own else ROOTS / name
        self.bin = self.folder / "venv" / "bin" if self.own else Path("/opt/venv/bin")
        self.root = Path("/") if self.own else self.folder / "base"
        self.over = [self.folder / "over"] if self.own else [self.folder / "venv", self.folder / "mpi"]

    def __repr__(self):
        return self.name

    @cache  # noqa: B019  # a handful of them, to the end of the run
    def problem(self):
        """Why nothing can run in it here, or None."""
        if not sys.platform.startswith("linux") or os.geteuid() != ROOT_USER:
            return "it is entered by mounting, as root on Linux"
        if self.own and not (self.folder / ".stamp").exists():
            return "no .test/distribution (tests/lab/setup venv distribution makes it)"
        why = self.folder / "why"
        if why.exists():
            return why.read_text().strip()
        if not self.own and not self.over[0].exists():
            return f"no .test/distros/{self.name} (`make distros` makes it)"
        trial = process.run([*self.entering(), "true"], timeout=20)
        return f"nothing can be mounted here: {trial.stderr.strip()}" if trial.returncode else None

    def entering(self, *, mpi="none", user=NOBODY, folder=None, with_venv=True):
        """The words in front of a command that run it there, without the package python3-venv on demand."""
        over = [layer for layer in self.over if with_venv or layer.name != "venv"]
        words = ["--root", self.root, *(word for layer in over for word in ("--over", layer))]
        words += ["--mpi", mpi, "--user", user, *(["--write", folder] if folder else [])]
        return [*map(str, [HERE / "enter", *words])]

    def env(self, folder, tag, **more):
        """A login's environment whose python3 is that of the venv, and home a folder in `folder`."""
        home = folder / "home"
        home.mkdir(exist_ok=True)
        own = process.minimal_env(home, tag) if self.own else {"HOME": str(home), "LANG": "C.UTF-8", process.TAG: tag}
        told = {"PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin:/sbin", "EZPZ_NGPU_PER_HOST": "0"}
        return {**own, **told, "PYTHONPATH": SRC, "PYTHONDONTWRITEBYTECODE": "1", **more}

    def run(self, words, folder, tag, *, mpi="none", user=NOBODY, with_venv=True, timeout=60, env=None):
        """Run a command there to its end, in `folder`, which is the user's; returns a CompletedProcess."""
        env = self.env(folder, tag) if env is None else env
        give(folder, user)
        words = [*self.entering(mpi=mpi, user=user, folder=folder, with_venv=with_venv), *map(str, words)]
        return process.run(words, env, timeout=timeout, cwd=folder)

    @cache  # noqa: B019
    def versions(self):
        """``{"Python": "3.11.2", "Open MPI": "4.1.4", "MPICH": "4.0.2"}``."""
        line = "/usr/bin/python3 -V; for name in openmpi mpich; do mpiexec.$name --version; done"
        env = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp"}
        told = process.run([*self.entering(), "sh", "-c", line], env, timeout=20).stdout
        forms = {
            "Python": r"Python (\S+)",
            "Open MPI": r"mpiexec\S* \(Open\w* ?\w*\) (\S+)",
            "MPICH": r"Version: +(\S+)",
        }
        return {name: re.search(form, told)[1] for name, form in forms.items()}

    def flavour(self, mpi):
        """The lab's name of a launcher: ``openmpi`` is Open MPI 5."""
        if mpi == "openmpi":
            return "openmpi4" if self.versions()["Open MPI"].startswith("4") else "openmpi"
        return {"none": "local"}.get(mpi, mpi)

    def torch_problem(self):
        """Why its Python cannot use the torch of the tests, or None."""
        version = ".".join(self.versions()["Python"].split(".")[:2])
        if self.own and version == "{}.{}".format(*sys.version_info):
            return None
        return f"the tests have no torch for Python {version}"


def give(folder, user):
    """Make a folder and all in it the user's."""
    os.chown(folder, user, user)
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(path) / name, user, user, follow_symlinks=False)


class StageThere(Stage):
    """Launches of the fault cases in a distribution, with one of its launchers."""

    def __init__(self, distribution, mpi, grounds):
        super().__init__(distribution.flavour(mpi), grounds)
        self.distribution, self.among = distribution, mpi

    def env(self):
        told = self.distribution.env(self.folder, self.tag)
        give(self.folder, NOBODY)
        return {**told, "EZPZ_TEST_DIR": str(self.folder)}

    def line(self, options, command):
        words = super().line(options, command)[len(LAUNCH) :]
        start = self.distribution.entering(mpi=self.among, folder=self.folder)
        return [*start, "python3", "-m", "ezpz.launch", *words]
