"""`launch(args, env)` runs ``python3 -m ezpz.launch`` to its end; `start_launch` leaves it running."""

import subprocess
import sys

import pytest

LAUNCH = [sys.executable, "-m", "ezpz.launch"]


@pytest.fixture
def launch(run_cli):
    def run(*args, env=None, timeout=60, line=LAUNCH, **options):
        return run_cli([*line, *args], env, timeout, **options)

    return run


@pytest.fixture
def start_launch(clean_env, tmp_path):
    started = []

    def start(*args, env=None, before=(), line=LAUNCH):
        process = subprocess.Popen(
            [*before, *line, *map(str, args)],
            env=env or clean_env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


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
