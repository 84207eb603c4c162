"""`ended(words, …)` runs a launch to its end and gives what it said, its record and causes; real control groups."""

from __future__ import annotations

import json
import random
import shlex
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from ezpz.why import Facts, diagnose
from lab import frozen_disk, process, seed

_TREE_1, _TREE_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
LAUNCH = [sys.executable, "-m", "ezpz.launch"]


class Ended:
    """A launch that is over: `code`, `out`, `err`, `record` (of run.json), `causes`, `folder` of the record."""

    def __init__(self, done, folder):
        self.code, self.out, self.err, self.folder = done.returncode, done.stdout, done.stderr, folder
        self.record = json.loads((folder / "run.json").read_text())
        self.causes = self.record.get("causes")
        if self.causes is None:
            self.causes = [cause.as_json() for cause in diagnose(Facts.read(str(folder)))]

    def seconds_from(self, path):
        """Seconds from the time in a file, which a rank wrote before its end, until the end of the launch."""
        return self.record["ended"] - float(Path(path).read_text())


@pytest.fixture
def draw(request):
    """What draws the rank and step of a trouble: the same for a test and the seed of the day, whatever ran before."""
    return random.Random(f"{seed.of_the_day()} {request.node.name}")


@pytest.fixture
def ended(clean_env, tmp_path):
    """`ended(words, ranks=2, env=None, group=None, options=())`: words of the ranks; in a control group, if any.

    `by(line, env, timeout=, cwd=)` runs the line, in a job for instance.
    """

    def run(words, *, ranks=2, env=None, group=None, options=(), timeout=120, by=process.run):
        state = tmp_path / f"state-{uuid.uuid4().hex[:6]}"
        line = [*LAUNCH, "-n", str(ranks), *options, *map(str, words)]
        if group:
            line = ["sh", "-c", f'echo $$ > {shlex.quote(str(group))}/cgroup.procs && exec "$@"', "in-group", *line]
        done = by(line, {**(env or clean_env), "XDG_STATE_HOME": str(state)}, timeout=timeout, cwd=tmp_path)
        (record,) = state.glob("ezpz/launches/*/run.json")
        return Ended(done, record.parent)

    return run


@pytest.fixture
def memory_group():
    """`memory_group(bytes)` makes a control group with a limit, of version 1 or 2, whichever this machine lets make."""
    made = []

    def make(limit):
        version_1 = (_TREE_1 / "memory.limit_in_bytes").exists()
        group = (_TREE_1 if version_1 else _TREE_2) / f"ezt-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
            made.append(group)
            (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group of this machine can limit memory: {error}")
        with suppress(OSError):  # swap would hide the limit
            (group / ("memory.memsw.limit_in_bytes" if version_1 else "memory.swap.max")).write_text(
                str(limit) if version_1 else "0"
            )
        return group

    yield make
    for group in made:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:  # its last process ends
                time.sleep(0.1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB, mounted at the path that is returned."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = process.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder])
    if done.returncode:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    yield folder
    for _ in range(50):
        if not process.run(["umount", folder]).returncode:
            break
        time.sleep(0.1)


@pytest.fixture
def frozen(tmp_path):
    """A folder whose file system is frozen: who writes there waits in the kernel, until `frozen_disk.thaw`."""
    folder = tmp_path / "frozen"
    problem = frozen_disk.problem() or frozen_disk.freeze(tmp_path / "disk", folder)
    if problem:
        pytest.skip(problem)
    yield folder
    frozen_disk.thaw(folder)
    frozen_disk.unmount(folder, lambda: False)


@pytest.fixture
def python_rank(tmp_path):
    """`python_rank(program, rank)`: words of ranks of which one runs a program and the others sleep.

    The program calls `now()` again where what comes before the trouble takes long.
    """

    def words(program, rank):
        path = tmp_path / f"program-{uuid.uuid4().hex[:6]}.py"
        path.write_text(
            "import os, time\n"
            f"def now():\n    open({str(tmp_path / 'at')!r}, 'w').write(str(time.time()))\n"
            f"if int(os.environ['RANK']) != {rank}:\n    time.sleep(600)\n    raise SystemExit\n"
            f"now()\n{program}"
        )
        return [sys.executable, str(path)]

    return words
