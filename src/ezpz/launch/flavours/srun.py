"""Slurm's srun, measured with 22.05.

srun takes ``SLURM_NTASKS`` and other variables of the job as options, so every count is given explicitly. A host list
with one entry per rank and ``--distribution=arbitrary`` places uneven blocks exactly and keeps the order of hosts,
which ``--nodelist`` alone sorts. Steps do not share CPUs since 20.11: a second launch in the same job would wait for
the first for ever without ``--overlap``.

In a heterogeneous job srun uses component 0, even inside a step of another, unless ``--het-group`` chooses. One step
over several is one world; its ranks are numbered by component, whatever the order of the line:

    $ srun --het-group=0 -N 1 -n 2 … COMMAND : --het-group=1 -N 2 -n 2 … COMMAND
    SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2,1(x2) SLURM_NODEID=2      the last rank
    $ srun --version
    slurm-wlm 22.05.8
"""

from __future__ import annotations

import re

from ezpz.errors import UsageError
from ezpz.fields import replace
from ezpz.launch.contract import threads_per_core
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag, Setting
from ezpz.ranks import expand_counts

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order

_MOST_NAMED_HOSTS = 64  # one word of a command line has at most 128 KiB; longer lists go through the host file
_LONGEST_LIST = 120_000  # bytes: a little less than a word of a command line
_OVERLAPS_SINCE = (20, 11)
# slurmctld tells srun of each host of its step that it marks down, and kills the step; with --no-kill the job lives on.
# Without, the job also ends where only an earlier step had that host, and srun is not told which it was.
_NODE_FAILURE = r"(?m)^srun: error: Node failure on ([\w.-]+)$"
_JOB_ENDED = "DUE TO NODE FAILURE, SEE SLURMCTLD LOG"
# Variables of a job that give each task of a step a part of the devices or CPUs.
_SHARES = (
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_GPU_BIND",
    "SLURM_TRES_PER_TASK",
    "SLURM_TRES_BIND",
    "SLURM_CPU_BIND",
)


class Srun(Flavour):
    """``srun`` inside a Slurm job."""

    name = "srun"
    title = "srun"
    family = "slurm"
    binds = True
    tells_version = True
    ends_ranks_itself = True
    sets_masks = True
    may_start_agents = True
    per_rank = (
        r"-[cmn]|--(cpus-per-task|gpus-per-task|tres-per-task|ntasks|gpu-bind|tres-bind|accel-bind|cpu-bind|mem-bind"
        r"|hint|distribution|multi-prog)\b"
    )

    def command(self, order: Order) -> list[Flag]:
        """Return ``srun -N 2 -n 4 --ntasks-per-node=2 -c 8 …``; the host file names uneven blocks and long lists."""
        flags = [Flag((order.exe,), "launcher")]
        for part in _parts(order):
            if len(flags) > 1:
                flags.append(Flag((*order.program, ":"), "the next component of the job follows"))
            flags += self._in_component(part)
        return flags

    def _in_component(self, order: Order) -> list[Flag]:
        placement, cpus = order.placement, _cpus_per_rank(order)
        hosts, ranks = str(len(placement.hosts)), str(placement.world_size)
        flags = [Flag(("-N", hosts), "hosts"), Flag(("-n", ranks), placement.origin)]
        if placement.component is not None:
            flags.insert(0, Flag((f"--het-group={placement.component}",), "the component that has these hosts"))
        if _is_named(order):
            flags.append(Flag((f"--ntasks-per-node={placement.counts[0]}",), "ranks per host"))
            flags.append(
                Flag((f"--nodelist={_listed([*placement.hosts])}", "--distribution=block"), "hosts, in blocks")
            )
        else:
            pairs = zip(placement.hosts, placement.counts, strict=True)
            named = order.hostfile or _listed([host for host, count in pairs for _ in range(count)])
            flags.append(Flag((f"--nodelist={named}", "--distribution=arbitrary"), "a host per rank"))
        own = (*order.site_args, *order.user_args)
        if order.forked:
            flags.append(Flag(("-c", str(cpus)), "all CPUs that the ranks of a host share"))
        elif not any(word.startswith(("-c", "--cpus-per-task")) for word in own):
            flags.append(Flag(("-c", str(cpus)), "CPUs of a host shared by its ranks; srun does not take the job's"))
        if placement.cpus is None or max(placement.counts) * cpus > placement.cpus:
            flags.append(Flag(("--overcommit",), "as many ranks as were planned, whatever CPUs were granted"))
        # 22.05 creates no overlapping step over hosts with different numbers of devices ("Insufficient GRES").
        if len(set(order.devices)) < 2 and (not order.version or order.version[:2] >= _OVERLAPS_SINCE):
            flags.append(Flag(("--overlap",), "another launch in this job must not wait for this one"))
        if order.forked:
            flags.append(Flag(("--mpi=none",), "no rank starts an MPI"))
        else:
            flags += _binding(order)
        flags.append(Flag(("--export=ALL",), "the user's variables"))
        flags.append(
            Flag(("--kill-on-bad-exit=1", "--quit-on-interrupt"), "one failed rank ends all, one Ctrl-C suffices")
        )
        flags.append(Flag(("--input=0",), "stdin is rank 0's"))
        return [*flags, *order.tail()]

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the threads of a rank: the cores of the CPUs that srun binds it to, unless the user chose."""
        if "OMP_NUM_THREADS" in order.environ or order.forked:  # each agent knows the CPUs of its host
            return {}
        cores = max(1, min(map(_cpus_per_rank, _parts(order))) // threads_per_core())
        return {"OMP_NUM_THREADS": Setting(str(cores), "the cores that srun gives a rank")}

    def misleading(self, order: Order) -> tuple[str, ...]:
        """Return the job's ranks per host where the host file names others: srun warns that it ignores them; and what
        would give an agent the part of one rank.
        """
        parts = _parts(order)
        alone = _SHARES if order.forked else ()
        if all(map(_is_named, parts)):
            return alone
        numbers = [part.placement.component for part in parts if part.placement.component is not None]
        name = "SLURM_NTASKS_PER_NODE"
        return *alone, name, *(f"{name}_HET_GROUP_{number}" for number in numbers)

    def hostfile_line(self, host: str, count: int) -> str:
        """Return the host once per rank."""
        return "\n".join([host] * count)

    def failed_hosts(self, words: str) -> tuple[str, ...]:
        """Return the hosts of ``srun: error: Node failure on n02``."""
        return tuple(re.findall(_NODE_FAILURE, words))

    def job_lost_a_host(self, words: str) -> bool:
        """Look for what slurmstepd says, on a host that lives, at the end of a job without --no-kill."""
        return _JOB_ENDED in words


def _parts(order: Order) -> list[Order]:
    """Return the order of each component of a heterogeneous job, in srun's order of ranks; the order itself else.

    Raises:
        UsageError: The hosts are named in another order.
    """
    placement = order.placement
    if not placement.parts:
        return [order]
    numbers = [part.component for part in placement.parts if part.component is not None]
    if numbers != sorted(set(numbers)):
        by_component = sorted(placement.parts, key=lambda part: part.component or 0)
        hosts = [host for part in by_component for host in part.hosts]
        listed = ",".join(hosts) if len(hosts) <= _MOST_NAMED_HOSTS else "LIST"
        raise UsageError(
            "cannot number ranks in this order of hosts (from --hosts or --hostfile): they are in components "
            f"{', '.join(map(str, numbers))} of a heterogeneous job, and srun numbers ranks by component; expected "
            f"those of lower components first. Use `--hosts {listed}`."
        )
    parts, first = [], 0
    for part in placement.parts:  # the host file has the hosts of all
        devices = order.devices[first : first + len(part.hosts)]
        forked = order.forked[first : first + len(part.hosts)]
        parts.append(replace(order, placement=part, devices=devices, forked=forked, hostfile=""))
        first += len(part.hosts)
    return parts


def _is_named(order: Order) -> bool:
    """Tell whether hosts can be named in a word: even blocks on few hosts, in Slurm's order, to which it sorts them."""
    placement = order.placement
    has_no_file = placement.component is not None and not order.hostfile
    is_short = len(placement.hosts) <= _MOST_NAMED_HOSTS or has_no_file
    return placement.is_ordered and len(set(placement.counts)) == 1 and is_short


def _listed(hosts: list[str]) -> str:
    """Return the hosts of a component in a word: the host file has those of all.

    Raises:
        UsageError: The word would be too long.
    """
    named = ",".join(hosts)
    if len(named) > _LONGEST_LIST:
        raise UsageError(
            f"cannot name {len(hosts)} hosts of one component to srun: that takes {len(named)} bytes; expected at most "
            f"{_LONGEST_LIST}. Use as many ranks on every host (`--ppn N`), or hosts of one component."
        )
    return named


def _binding(order: Order) -> list[Flag]:
    binding = order.binding
    if binding.depth:
        each = binding.depth
        by_rank = [hex((1 << each) - 1 << rank * each) for rank in range(max(order.placement.counts))]
        return [Flag((f"--cpu-bind=mask_cpu:{','.join(by_rank)}",), binding.origin)]
    if binding.cpus:
        masks = (
            binding.text
            if binding.text.startswith(("mask_cpu:", "map_cpu:"))
            else f"mask_cpu:{','.join(binding.masks)}"
        )
        return [Flag((f"--cpu-bind={masks}",), binding.origin)]
    if binding.text == "auto" or (binding.text == "none" and not binding.is_chosen):
        return []
    return [Flag((f"--cpu-bind={'ldoms' if binding.text == 'numa' else binding.text}",), binding.origin)]


def _cpus_per_rank(order: Order) -> int:
    """Return the CPUs that each rank, or each agent, gets: the job's CPUs per host shared among its ranks, at least
    1.
    """
    text = _granted(order, "SLURM_CPUS_PER_TASK")
    if text.isdigit():
        return int(text) * max(order.forked, default=1)
    granted = order.placement.cpus or min(expand_counts(_granted(order, "SLURM_JOB_CPUS_PER_NODE") or "1"))
    return max(1, granted // max(order.placement.counts))


def _granted(order: Order, name: str) -> str:
    """Return a variable of the job, or that of its component; without a suffix it is component 0's."""
    number = order.placement.component
    own = order.environ.get(f"{name}_HET_GROUP_{number}", "") if number is not None else ""
    return own or ("" if number else order.environ.get(name, ""))


FLAVOUR = Srun()
