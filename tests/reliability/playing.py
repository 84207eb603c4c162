"""A case: what ranks do, what is done to the launch meanwhile, and what must come of it; `play` runs one and judges."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runs import WORLD, known
from stages import HERE_ALONE, MPI

from lab import process

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = 5.0  # seconds from the event to the prompt, besides the grace that was promised
FAILURE_GRACE = 3.0  # seconds from SIGTERM to SIGKILL after a failure
SIGNAL_GRACE = 10.0  # seconds after a signal from outside
TORCH = 6.0  # seconds to import torch on a busy machine
LAST_SERVANT = 6.0  # seconds for mpiexec's own servant on a host that none of our processes had reached
LAST = 3.0  # seconds until the last process is gone, where the launcher was killed and cannot wait for it

# Bash for every rank, with no program but the shell's own words: say who this is, then wait to be let go.
UP = 'D=$EZPZ_TEST_DIR; read -r host </proc/sys/kernel/hostname; up() { echo "$BASHPID $host" >"$D/up.$RANK"; }; '
WAIT = 'until [ -e "$D/go" ]; do sleep 0.1; done; '
STAY = "exec sleep 600"

NO_LAUNCHER = {
    "local": "no launcher between: `ezpz launch` starts the ranks itself",
    "ssh": "no launcher between: one ssh per host, see the cases over hosts",
}
NO_SHIM = dict.fromkeys(
    ("local", "ssh", "mpich-agents", "srun-agents"), "no shim: the agent is the parent of the ranks"
)
NO_HOSTS = dict.fromkeys(HERE_ALONE, "one host only")
NO_MPI = dict.fromkeys(("local", "srun", "torchrun", "ssh", "mpich-agents"), "no MPI there")
ONLY_PLANNED = "planned alike on every flavour: run on one"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table.

    Attributes:
        number: The case or cases of the list of forty, or a letter for one beyond it.
        name: What happens, in a few words.
        ranks: Bash that every rank runs, or the words of a command.
        code: Exit code, or several where a race decides.
        cause: Pattern of the one line that tells why; ``{rank1}`` is ``rank 1 on host H (pid P)``.
        grace: Seconds that the processes were promised, beside the 5 until the prompt.
        last: Seconds from then until the last process is gone.
        core: Whether `make distros` runs it on each distribution.
        over_hosts, fresh: Over the hosts of a lab; of a lab of its own.
        alone: While nothing else runs where hosts are Slurm's, which others use too.
        not_on: Reasons why it cannot be staged on a flavour.
        meanwhile: Called while the launch runs.
        after: Called when it has ended; asserts what else must hold.
        setup: Called before, to prepare the stage's folder.
        wrap: Makes another line of the launch's.
    """

    number: str
    name: str
    ranks: str | tuple = "exit 0"
    code: int | tuple = 0
    cause: str = ""
    grace: float = 0.0
    last: float = LAST
    core: bool = False
    over_hosts: bool = False
    fresh: bool = False
    alone: bool = False
    world: int = WORLD
    options: tuple = ()
    env: dict = field(default_factory=dict)
    not_on: dict = field(default_factory=dict)
    meanwhile: Callable | None = None
    after: Callable | None = None
    setup: Callable | None = None
    wrap: Callable | None = None

    def words(self, stage):
        if isinstance(self.ranks, str):
            return ["bash", "-c", UP + self.ranks]
        return [word.replace("{folder}", str(stage.folder)) for word in self.ranks]

    @property
    def id(self):
        """The name as a word for pytest: `1-one-rank-exits-with-3`."""
        return re.sub(r"[^\w]+", "-", f"{self.number} {self.name}").strip("-").lower()

    def __str__(self):
        return f"{self.number} {self.name}"


def foreign_trouble(errors):
    """Whether a foreign launcher could not start for a reason of its own, which starting it again may cure."""
    # Open MPI 5.0.11, once in some hundred starts on a busy machine, before any of our processes runs.
    return "PMIx server's listener thread failed to start" in errors


def play(case, stage):
    """Run `case` on `stage`; an AssertionError says what was not as promised, and shows what the launch said."""
    if case.setup:
        case.setup(stage)
    run = stage.start(case.options, case.words(stage), env=_filled(case.env, stage), wrap=case.wrap)
    try:
        if case.meanwhile:
            case.meanwhile(run)
        # Where nothing happens to a run, its start counts as well, and torchrun imports torch for that.
        start = TORCH if stage.name == "torchrun" and not case.meanwhile else 0.0
        took = _ended(run, PROMPT + case.grace + start)
        _judge(case, run, took)
    except AssertionError as error:
        raise AssertionError(
            f"{case} on {stage.name}: {error}\n--- ranks {known(stage.folder)}\n--- stderr\n{run.errors()[-4000:]}"
        ) from None
    finally:
        process.kill_all(run.left())
        process.kill_group(run.process)


def _filled(env, stage):
    mpi = str(stage.mpi.bin.parent) if stage.mpi else ""
    known_words = {"{folder}": str(stage.folder), "{mpi}": mpi, "{in 61 s}": str(int(time.time()) + 61)}
    filled = dict(env)
    for word, value in known_words.items():
        filled = {name: text and text.replace(word, value) for name, text in filled.items()}
    return filled


def _ended(run, cap):
    left = max(0.1, run.since + cap - time.monotonic())
    try:
        process.wait_until(lambda: run.process.poll() is not None, left, "the prompt", every=0.02)
    except AssertionError:
        raise AssertionError(f"no prompt within {cap} s; still there: {run.left()}") from None
    return time.monotonic() - run.since


def _judge(case, run, took):
    codes = case.code if isinstance(case.code, tuple) else (case.code,)
    assert run.process.returncode in codes, (
        f"exit code {run.process.returncode}, expected {case.code} (after {took:.1f} s)"
    )
    if case.cause:
        pattern = named(case.cause, known(run.folder))
        lines = [line for line in run.errors().splitlines() if re.search(pattern, line)]
        assert len(lines) == 1, f"{len(lines)} lines match {pattern!r}, expected one"
    # Only our own pages count: scripts may raise what they like.
    assert not re.search(r'File "[^"]*/ezpz/launch/', run.errors()), "a traceback of ours"
    left = {}

    def gone():
        left.clear()
        left.update(run.left())
        return not left

    try:
        process.wait_until(
            gone,
            max(case.last, LAST_SERVANT if case.over_hosts and run.stage.mpi else 0.0),
            "the end of the launch's processes",
            every=0.05,
        )
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from None
    if case.after:
        case.after(run)


def named(pattern, ranks):
    """`pattern` with ``{rank2}`` as the rank said of itself; a rank that said nothing may have any host and pid."""

    def who(found):
        rank = int(found[1])
        pid, host = ranks.get(rank, (r"\d+", r"\S+"))
        return rf"^ezpz: rank {rank} on host {host} \(pid {pid}\)"

    return re.sub(r"\{rank(\d)\}", who, pattern)


# What may happen to a launch, as values of `meanwhile`.


def go(run):
    """Let the ranks go when all are there."""
    run.up()
    run.mark()
    run.go()


def kill(find, *numbers, pause=0.5, settle=0.0):
    """Send signals to what `find(run)` gives, when all ranks have been there for `settle` seconds."""

    def act(run):
        run.up()
        time.sleep(settle)
        target = find(run)
        run.mark()
        for index, number in enumerate(numbers):
            if index:
                time.sleep(pause)
            os.kill(target, number)

    return act


def launcher(run):
    return run.pid


def only(*names):
    """Every flavour but these is left out, for it would be the same once more."""
    return {name: ONLY_PLANNED for name in ("local", *MPI, "srun", "torchrun", "ssh") if name not in names}


def up_only(run):
    """The ranks do the rest by themselves."""
    run.up()
    run.mark()


def files(run, pattern):
    """``{name: words}`` of what the ranks have written into the launch's folder."""
    return {path.name: path.read_text().split() for path in run.folder.glob(pattern)}


def fail(why):
    raise AssertionError(why)
