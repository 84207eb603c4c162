"""`launch(args, env)` runs ``python3 -m ezpz.launch`` to its end; `start_launch` leaves it running."""

import subprocess

import pytest

from lab.flavours import Flavour
from lab.require import require
from lab.ssh import LAUNCH, Site


@pytest.fixture
def launch(run_cli):
    def run(*args, env=None, timeout=60, line=LAUNCH, **options):
        return run_cli([*line, *args], env, timeout, **options)

    return run


@pytest.fixture
def start_launch(clean_env, tmp_path):
    """Its streams are pipes of text, but for stdin, which is empty; options of Popen come after these."""
    started, usual = [], {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    usual |= {"cwd": tmp_path, "text": True, "start_new_session": True}

    def start(*args, env=None, before=(), line=LAUNCH, **options):
        words = [*before, *line, *map(str, args)]
        started.append(subprocess.Popen(words, env=env or clean_env, **{**usual, **options}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.stdin = None
        process.communicate(timeout=60)


@pytest.fixture
def site(hosts, clean_env, tmp_path):
    """Launches over hosts that have neither an MPI nor a scheduler, in a folder whose name has a blank."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    return Site(hosts, clean_env, folder)


@pytest.fixture
def mpich(home, tag):
    """The environment of one MPI, where one is enough."""
    value = Flavour("mpich", home, tag)
    require("mpich", value.problem())
    return value.env()


@pytest.fixture
def in_time():
    """`in_time(seconds, attempt)`: one of three attempts must take less, which each returns; a fault is late each time,
    and a busy machine is not.
    """

    def check(seconds, attempt):
        took = []
        while len(took) < 3 and not any(each < seconds for each in took):
            took.append(attempt())
        assert min(took) < seconds, took

    return check
