"""Ranks that come late, at other places than planned, or never: none begins before all are there. Cases 24 to 26, I."""

from __future__ import annotations

import shutil
import signal
import time

from playing import FAILURE_GRACE, NO_HOSTS, Case, fail, files

from lab import process
from lab.ssh import CLIENT

BEGAN = 'date +%s%N >"$D/began.$RANK"; exec sleep 600'
AT_ONCE = {
    "local": "it forks all ranks itself, at once",
    "mpich-agents": "the agent of the one host forks all ranks itself, at once",
    "torchrun": "its agent forks all shims itself, at once",
}
LAUNCHER = """#!/bin/bash
[[ $* == *--version* ]] && exec {real} "$@"
words=()
for word; do
  [[ $word == -I && ! ${{in-}} ]] && in=front && words=("${{words[@]::${{#words[@]}}-1}}" {front} "${{words[@]: -1}}")
  words+=("$word")
done
exec {real} "${{words[@]}}"
"""
FRONT = """#!/bin/bash
D=$EZPZ_TEST_DIR
for variable in PMI_RANK OMPI_COMM_WORLD_RANK SLURM_PROCID; do
  [[ -v $variable ]] && rank=${{!variable}} && break
done
{acts}
exec "$@"
"""
# Where an agent is started per host, rank 2 is all of n02, and that the second of what is started.
RANK_2 = {"front": "[[ $rank == {last} ]] && {{ {acts}; }}", "ssh": '[[ " $* " == *" n02 "* ]] && {{ {acts}; }}'}


def in_front(acts, ssh=""):
    """The launch by a launcher that runs `acts`, in Bash, in front of each shim, or `ssh` in front of each ssh."""

    def wrap(stage, line):
        last = 1 if stage.starts_agents else 2
        front = process.program(stage.folder / "front", FRONT.format(acts=acts.replace("{last}", str(last))))
        if stage.name == "ssh":
            client = CLIENT.format(f'"{stage.hosts.rsh}" "$@"').replace("\n", f"\nD={stage.folder}; {ssh}\n", 1)
            return ["env", f"EZPZ_SSH={process.program(stage.folder / 'front-client', client)}", *line]
        name = "srun" if stage.name == "srun" else "mpiexec"
        real = shutil.which("srun") if name == "srun" else stage.mpi.mpiexec
        (stage.folder / "bin").mkdir()
        process.program(stage.folder / "bin" / name, LAUNCHER.format(real=real, front=front))
        return ["env", f"PATH={stage.folder}/bin:{stage.env()['PATH']}", *line]

    return wrap


def rank_2(acts):
    return in_front(RANK_2["front"].format(acts=acts, last="{last}"), RANK_2["ssh"].format(acts=acts))


def none_began(run):
    began = files(run, "began.*")
    return fail(f"ranks began: {began}") if began else None


def began_behind(run):
    (late,) = files(run, "late")["late"]
    began = [int(when) for name in range(3) for when in files(run, f"began.{name}")[f"began.{name}"]]
    assert min(began) > int(late), (late, began)


def while_others_wait(then):
    """Do something as soon as ranks 0 and 1 surely wait for rank 2."""

    def act(run):
        process.wait_until((run.folder / "held").exists, 20, "rank 2 that is held back", every=0.03)
        time.sleep(1)
        then(run)

    return act


def send(number):
    def then(run):
        run.mark()
        run.process.send_signal(number)

    return then


HELD = rank_2('echo >"$D/held"; exec sleep 600')
SWAPPED = 'export "$variable=$((1 - rank))"'
SWAPPED_SSH = 'set -- "${@/#n01/N}"; set -- "${@/#n02/n01}"; set -- "${@/#N/n02}"'

STARTS = (
    Case(
        number="25",
        name="one rank comes 2 s late: the others begin after it",
        ranks='date +%s%N >"$D/began.$RANK"',
        wrap=rank_2('sleep 2; date +%s%N >"$D/late"'),
        code=0,
        grace=2,
        after=began_behind,
        not_on=AT_ONCE,
    ),
    Case(
        number="25",
        name="one rank never comes, under --start-timeout 3: none has begun",
        ranks=BEGAN,
        wrap=HELD,
        options=("--start-timeout", "3"),
        code=125,
        cause=r"^ezpz: world: 1 of \d hosts did not come up within 3 s: .*; no rank has begun",
        grace=3 + FAILURE_GRACE,
        after=none_began,
        not_on=AT_ONCE,
    ),
    Case(
        number="25",
        name="one rank cannot even be started: none has begun",
        ranks=BEGAN,
        wrap=rank_2("sleep 1; exit 7"),
        code=125,
        cause=r"^ezpz: (\S+ \(pid \d+\) exited with code \d+, and \d of 3 ranks came up|cannot start ranks on n02: )",
        grace=FAILURE_GRACE,
        after=none_began,
        not_on={**AT_ONCE, **dict.fromkeys(("mpich", "impi"), "Hydra then waits as for one that never comes")},
    ),
    Case(
        number="26",
        name="two ranks in each other's place: none has begun",
        ranks=BEGAN,
        wrap=in_front("((rank < 2)) && " + SWAPPED),
        code=125,
        cause=r"^ezpz: world: .*Ranks were not placed in blocks",
        grace=FAILURE_GRACE,
        after=none_began,
        not_on={**AT_ONCE, **dict.fromkeys(("ssh", "srun-agents"), "each agent starts the ranks of the plan")},
    ),
    Case(
        number="26",
        name="two hosts in each other's place: none has begun",
        ranks=BEGAN,
        wrap=in_front(SWAPPED, SWAPPED_SSH),
        options=("--hosts", "n01,n02", "--ppn", "1"),
        code=125,
        cause=r"^ezpz: world: the ranks planned for n0\d came up on n0\d; .*no rank has begun",
        grace=FAILURE_GRACE,
        after=none_began,
        over_hosts=True,
        not_on=NO_HOSTS,
    ),
    *(
        Case(
            number=number,
            name=f"{signal.Signals(which).name} to the launcher while ranks wait for the last: none has begun",
            ranks=BEGAN,
            wrap=HELD,
            meanwhile=while_others_wait(send(which)),
            code=code,
            cause=rf"^ezpz: {signal.Signals(which).name} received; no rank has begun" if code > 0 else "",
            after=none_began,
            not_on=AT_ONCE,
        )
        for number, which, code in (
            ("12", signal.SIGTERM, 143),
            ("13", signal.SIGINT, 130),
            ("15", signal.SIGKILL, -9),
        )
    ),
)
