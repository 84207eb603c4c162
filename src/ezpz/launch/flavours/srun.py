"""Slurm's srun, measured with 22.05.

srun takes ``SLURM_NTASKS`` and other variables of the job as options, so every count is given explicitly. A host list
with one entry per rank and ``--distribution=arbitrary`` places uneven blocks exactly and keeps the order of hosts,
which ``--nodelist`` alone sorts. Steps do not share CPUs since 20.11: a second launch in the same job would wait for
the first for ever without ``--overlap``.

    $ srun --version
    slurm-wlm 22.05.8
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ezpz.launch.contract import threads_per_core
from ezpz.launch.flavours.base import Flavour
from ezpz.launch.flavours.request import Flag, Setting
from ezpz.ranks import expand_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.launch.flavours.request import Order

_MOST_NAMED_HOSTS = 64  # one word of a command line has at most 128 KiB; longer lists go through the host file
_OVERLAPS_SINCE = (20, 11)


class Srun(Flavour):
    """``srun`` inside a Slurm job."""

    name = "srun"
    title = "srun"
    binds = True
    tells_version = True
    ends_ranks_itself = True
    sets_masks = True

    def command(self, order: Order) -> list[Flag]:
        """Return ``srun -N 2 -n 4 --ntasks-per-node=2 -c 8 …``; the host file names uneven blocks and long lists."""
        placement, cpus = order.placement, _cpus_per_rank(order)
        hosts, ranks = str(len(placement.hosts)), str(placement.world_size)
        flags = [Flag((order.exe,), "launcher"), Flag(("-N", hosts), "hosts"), Flag(("-n", ranks), placement.origin)]
        if _is_named(order):
            flags.append(Flag((f"--ntasks-per-node={placement.counts[0]}",), "ranks per host"))
            flags.append(Flag((f"--nodelist={','.join(placement.hosts)}", "--distribution=block"), "hosts, in blocks"))
        else:
            flags.append(Flag((f"--nodelist={order.hostfile}", "--distribution=arbitrary"), "a host per rank"))
        own = (*order.site_args, *order.user_args)
        if not any(word.startswith(("-c", "--cpus-per-task")) for word in own):
            flags.append(Flag(("-c", str(cpus)), "CPUs of a host shared by its ranks; srun does not take the job's"))
        if placement.cpus is None or max(placement.counts) * cpus > placement.cpus:
            flags.append(Flag(("--overcommit",), "as many ranks as were planned, whatever CPUs were granted"))
        # 22.05 creates no overlapping step over hosts with different numbers of devices ("Insufficient GRES").
        if len(set(order.devices)) < 2 and (not order.version or order.version[:2] >= _OVERLAPS_SINCE):
            flags.append(Flag(("--overlap",), "another launch in this job must not wait for this one"))
        flags += _binding(order)
        flags.append(Flag(("--export=ALL",), "the user's variables"))
        flags.append(
            Flag(("--kill-on-bad-exit=1", "--quit-on-interrupt"), "one failed rank ends all, one Ctrl-C suffices")
        )
        flags.append(Flag(("--input=0",), "stdin is rank 0's"))
        return [*flags, *order.tail()]

    def environment(self, order: Order) -> Mapping[str, Setting]:
        """Return the threads of a rank: the cores of the CPUs that srun binds it to, unless the user chose."""
        if "OMP_NUM_THREADS" in order.environ:
            return {}
        cores = max(1, _cpus_per_rank(order) // threads_per_core())
        return {"OMP_NUM_THREADS": Setting(str(cores), "the cores that srun gives a rank")}

    def misleading(self, order: Order) -> tuple[str, ...]:
        """Return the job's ranks per host where the host file names others: srun warns that it ignores them."""
        return () if _is_named(order) else ("SLURM_NTASKS_PER_NODE",)

    def hostfile_line(self, host: str, count: int) -> str:
        """Return the host once per rank."""
        return "\n".join([host] * count)


def _is_named(order: Order) -> bool:
    """Tell whether hosts can be named in a word: even blocks on few hosts, in Slurm's order, to which it sorts them."""
    placement = order.placement
    return placement.is_ordered and len(set(placement.counts)) == 1 and len(placement.hosts) <= _MOST_NAMED_HOSTS


def _binding(order: Order) -> list[Flag]:
    binding = order.binding
    if binding.cpus:
        masks = (
            binding.text
            if binding.text.startswith(("mask_cpu:", "map_cpu:"))
            else f"mask_cpu:{','.join(binding.masks)}"
        )
        return [Flag((f"--cpu-bind={masks}",), binding.origin)]
    if binding.text == "auto" or (binding.text == "none" and binding.origin != "--cpu-bind"):
        return []
    return [Flag((f"--cpu-bind={binding.text}",), binding.origin)]


def _cpus_per_rank(order: Order) -> int:
    """Return the CPUs that each rank gets: the job's CPUs per host shared among its ranks, at least 1."""
    text = order.environ.get("SLURM_CPUS_PER_TASK") or ""
    if text.isdigit():
        return int(text)
    granted = order.placement.cpus or min(expand_counts(order.environ.get("SLURM_JOB_CPUS_PER_NODE", "1")))
    return max(1, granted // max(order.placement.counts))


FLAVOUR = Srun()
