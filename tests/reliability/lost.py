"""Hosts that vanish, networks that split, agents and connections that go, and worlds that come up wrong."""

from __future__ import annotations

import os
import shutil
import signal

from playing import FAILURE_GRACE, NO_HOSTS, STAY, WAIT, Case, fail, go, kill, launcher
from runs import parent_of

from lab import process

SILENCE = 27.0  # seconds until a host that says nothing counts as lost: 25, and a look now and then
KILL = signal.SIGKILL
HELD = "trap '' TERM HUP INT; setsid sleep 600 & up; while :; do sleep 0.2; done"
ONE_SLURM = "one Slurm serves all tests; a split network does the same to it"
AGENTS_ALONE = dict.fromkeys(
    ("mpich-agents", "srun-agents"), "it is told to start agents, each of which starts the ranks of the plan"
)
NO_WRAPPER = {
    "local": "no launcher between that could start fewer",
    "torchrun": "its agent is the only launcher: it starts what it is told",
    "ssh": "no launcher between: each agent starts the ranks of the plan",
}


def vanish(run):
    run.up()
    run.mark()
    run.stage.hosts["n02"].vanish()


def split(run):
    """The network between n02 and the rest is gone, until the end of the launch."""
    run.up()
    run.mark()
    run.stage.hosts["n02"].split()
    try:
        process.wait_until(lambda: run.process.poll() is not None, 5 + SILENCE + FAILURE_GRACE, "the prompt")
        # The cut-off agent hears nothing of all this, and must end its ranks by itself.
        process.wait_until(lambda: not run.left(), SILENCE, f"the end of what ran on n02: {run.left()}")
    finally:
        run.stage.hosts["n02"].heal()


def agent_of_n02(run):
    run.up()
    victim = run.agent("n02")
    run.mark()
    os.kill(victim, KILL)


def client_of_n02(run):
    """What connects the launcher with n02: an ssh of ours."""
    run.up()
    found = [pid for pid, line in run.left().items() if parent_of(pid) == run.pid and " n02 " in line]
    assert found, run.left()
    run.mark()
    os.kill(min(found), KILL)


def gone(stage):
    """n02 refuses every ssh from the start."""
    (stage.hosts.folder / "gone" / "n02").touch()


def singletons(stage):
    """A launcher and a library of different kinds: three worlds of one rank each, at the same time."""
    fake(
        stage,
        1,
        'for i in 1 2 3; do {real} "${{words[@]}}" & done; for i in 1 2 3; do wait -n || code=$?; done; exit $code',
    )


def fewer_ranks(stage):
    """A launcher that starts one rank fewer than it was told."""
    fake(stage, 2, 'exec {real} "${{words[@]}}"')


def never(stage):
    """A launcher that hangs before it starts anything."""
    fake(stage, 3, "exec sleep 600")


FAKE = """#!/bin/bash
[[ $* == *--version* ]] && exec {real} "$@"
words=() last= code=0
for word; do
  [[ $last == -n && $word == 3 ]] && word={ranks}
  [[ $word == --ntasks=3 ]] && word=--ntasks={ranks}
  words+=("$word") last=$word
done
{starts}
"""


def fake(stage, ranks, starts):
    """A stand-in for the launcher that starts `ranks` ranks where it was told three."""
    name = "srun" if stage.name == "srun" else "mpiexec"
    real = shutil.which("srun") if name == "srun" else stage.mpi.mpiexec
    (stage.folder / "bin").mkdir()
    text = FAKE.format(real=real, ranks=ranks, starts=starts.format(real=real))
    process.program(stage.folder / "bin" / name, text)


def with_fakes(stage, line):
    """The launch with the stage's own `bin` first on PATH."""
    return ["env", f"PATH={stage.folder}/bin:{stage.env()['PATH']}", *line]


def loopback(stage):
    """The first host's name resolves to a loopback address, as Debian's installer likes it."""
    path = stage.hosts.hosts_file
    path.write_text(path.read_text().replace(f"{stage.hosts['n01'].address} n01", "127.0.1.1 n01"))


LOST = (
    Case(
        number="E",
        name="a host vanishes",
        ranks=HELD,
        meanwhile=vanish,
        code=125,
        cause=r"^ezpz: .*n02.* (is )?lost",
        grace=SILENCE + FAILURE_GRACE,
        over_hosts=True,
        fresh=True,
        not_on={**NO_HOSTS, "srun": ONE_SLURM},
    ),
    Case(
        number="F",
        name="the network splits",
        ranks=HELD,
        meanwhile=split,
        code=125,
        cause=r"^ezpz: .*n02.* (is )?lost",
        grace=SILENCE * 2 + FAILURE_GRACE,
        over_hosts=True,
        fresh=True,
        alone=True,
        not_on=NO_HOSTS,
    ),
    Case(
        number="G",
        name="the agent of another host is killed",
        ranks=HELD,
        meanwhile=agent_of_n02,
        code=125,
        cause=r"^ezpz: host n02 is lost: ",
        grace=FAILURE_GRACE,
        over_hosts=True,
        not_on=NO_HOSTS,
    ),
    Case(
        number="H",
        name="the ssh to a host is killed",
        ranks=HELD,
        meanwhile=client_of_n02,
        code=125,
        cause=r"^ezpz: host n02 is lost: ",
        grace=FAILURE_GRACE,
        over_hosts=True,
        not_on=dict.fromkeys(("mpich", "openmpi", "openmpi4", "impi", "srun"), "its own daemons connect the hosts")
        | NO_HOSTS,
    ),
    Case(
        number="15",
        name="SIGKILL to the launcher, with ranks on two hosts",
        ranks=HELD,
        meanwhile=kill(launcher, KILL),
        code=-9,
        over_hosts=True,
        not_on=NO_HOSTS,
    ),
    Case(
        number="1",
        name="a rank on another host exits with 3",
        ranks=f'up; {WAIT} if [ "$RANK" = 2 ]; then exit 3; else {STAY}; fi',
        meanwhile=go,
        code=3,
        cause="{rank2} exited with code 3",
        grace=FAILURE_GRACE,
        over_hosts=True,
        not_on=NO_HOSTS,
    ),
    Case(
        number="24",
        name="ssh to a host is refused",
        ranks=f"up; {STAY}",
        setup=gone,
        code=125,
        cause=r"^ezpz: .*(n02|own words are above)",
        after=lambda run: "n02" in run.errors() or fail("no word of n02"),
        grace=FAILURE_GRACE,
        over_hosts=True,
        fresh=True,
        not_on={
            **NO_HOSTS,
            "srun": "Slurm's own daemons reach the hosts",
            "mpich": "told and ended as everywhere, but Hydra 5.0.2 leaves its own servant on the host it had reached",
        },
    ),
    Case(
        number="24",
        name="a launcher that never starts its ranks, under --start-timeout 2",
        ranks="up",
        setup=never,
        wrap=with_fakes,
        options=("--start-timeout", "2"),
        code=125,
        cause=r"^ezpz: .*(2 s|not report|did not|came up)",
        grace=FAILURE_GRACE + 2,
        not_on=NO_WRAPPER,
    ),
    Case(
        number="25",
        name="the launcher starts one rank fewer",
        ranks='echo never >"$D/never"',
        setup=fewer_ranks,
        wrap=with_fakes,
        code=125,
        cause=r"^ezpz: .*expected a world of 3",
        grace=FAILURE_GRACE,
        not_on={**NO_WRAPPER, **AGENTS_ALONE},
        after=lambda run: (run.folder / "never").exists() and fail("a rank ran"),
    ),
    Case(
        number="26",
        name="three worlds of one rank, as with the wrong MPI",
        ranks='echo never >"$D/never"',
        setup=singletons,
        wrap=with_fakes,
        code=125,
        cause=r"^ezpz: .*expected a world of 3",
        grace=FAILURE_GRACE,
        not_on={**NO_WRAPPER, **AGENTS_ALONE},
        after=lambda run: (run.folder / "never").exists() and fail("a rank ran"),
    ),
    Case(
        number="23",
        name="the name of the first host is a loopback address",
        ranks="up",
        setup=loopback,
        code=(2, 125),
        cause=r"^ezpz: .*n01.*loopback",
        over_hosts=True,
        fresh=True,
        not_on={**NO_HOSTS, "srun": "Slurm's own daemons need the right names"},
    ),
)
