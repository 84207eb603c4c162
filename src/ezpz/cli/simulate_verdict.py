"""What a simulated rank needed, and whether that fits: as data, and as a table of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cli.simulate_world import World


# Why a simulation has no answer: what the script's exit code and its report tell.

_KILLED = 137  # 128 + SIGKILL, with which Linux ends what takes too much memory
_MOST = 0.5  # of the machine's memory: whoever took that and was killed was killed for it


def explain(code: int, told: Mapping[str, Any], taken: int, total: int, *, data: bool) -> str:
    """Return the line about a script that has failed.

    Args:
        code: Its exit code.
        told: Its report, {} when there is none.
        taken: The most bytes that it had at once.
        total: Bytes of this machine.
        data: Whether its tensors had data.
    """
    killed = code == _KILLED and taken > _MOST * total
    if not killed and not told.get("memory_ran_out"):
        return f"the script ended with {code}; no answer about its memory"
    how = "killed" if killed else "it could not have more memory"
    hint = "Add --no-data: its tensors then take no memory" if data else "Make what is large after ezpz.setup_torch()"
    return (
        f"the script ended with {code} ({how}), when it had {amount(taken)} of this machine's {amount(total)}; no answer about "
        f"its memory. {hint}."
    )


def silence(*, begun: bool) -> str:
    """Return the line about a script that has ended well, and not told anything.

    Args:
        begun: Whether it became a rank.
    """
    if begun:
        return (
            "the script became a rank, but left without saying what it needed (os._exit, or exec?); expected an ordinary "
            "end. Let it return or call sys.exit."
        )
    return (
        "the script never called ezpz.setup_torch() in its own process, so nothing was simulated; expected that call "
        "instead of torch.distributed.init_process_group. Add `import ezpz; rank = ezpz.setup_torch()`, or name the script "
        "itself behind `ezpz simulate -n N python3`."
    )


__all__ = ["amount", "explain", "silence", "text", "verdict"]

_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "buffers": "buffers",
    "other": "activations and the rest",
}
_WIDTH = 25
# What a device needs besides tensors, see docs/simulate.md: bytes of its context, and what its allocator wastes per byte.
_APART, _WASTE = 2 * 10**9, 0.2


def verdict(told: Mapping[str, Any], world: World, memory: int | None) -> dict[str, Any]:
    """Return the whole answer.

    Args:
        told: The report that the rank wrote (`ezpz.dist.simulate.rank.write_report`), in bytes.
        world: What was simulated.
        memory: Bytes that a rank may use, or None when that was not asked.

    Returns:
        The report with ``hosts``, ``ranks_per_host``, ``need``, ``memory``, ``spare`` and ``fits``; the last three are None
        when nothing was asked or seen, ``spare`` is negative when it does not fit. ``notes`` are sentences.
    """
    # On an accelerator its allocator knows better: it rounds up, and sees what kernels take.
    need = max(told["peak"] + _late(told), told["allocator"] or 0)
    spare = None if memory is None or not told["peak"] else memory - need
    return {
        **{name: value for name, value in told.items() if name != "finished"},
        "hosts": world.hosts,
        "ranks_per_host": world.per_host,
        "ranks_per_host_origin": world.origin,
        "need": need,
        "memory": memory,
        "spare": spare,
        "fits": None if spare is None else spare >= 0,
        "notes": _notes(told),
        "shape": world.shape,
    }


def _notes(told: Mapping[str, Any]) -> list[str]:
    return [*_doubts(told), *_made_up(told), *_building(told)]


def _doubts(told: Mapping[str, Any]) -> list[str]:
    if not told["peak"]:
        return ["no tensor was seen: did anything run after setup_torch()?"]
    if told["steps"] == 0:
        return ["no optimizer took a step: this is not what training needs"]
    if _late(told):
        line = "one step only, its peak before the optimizer had its state:\n"
        return [line + f"      {amount(_late(told))} were added for the steps that follow"]
    return []


def _made_up(told: Mapping[str, Any]) -> list[str]:
    asked = told["made_up"]
    if not asked:
        return []
    numbers = "1 number was" if asked == 1 else f"{asked} numbers were"
    return [f"{numbers} asked of tensors without data, first in\n      {told['made_up_at']}; every one is 1"]


def _late(told: Mapping[str, Any]) -> int:
    """Return the bytes of optimizer state that a second step would have found in the way of its peak."""
    return int(told["largest"]["optimizer"] - told["at_peak"]["optimizer"]) if told["steps"] == 1 else 0


def _building(told: Mapping[str, Any]) -> list[str]:
    if told["before"] <= told["peak"] or told["allocator"] is not None:  # what an allocator saw was on the device
        return []
    line = f"before the first forward {amount(told['before'])} were alive at once, on the device only\n"
    return [line + '      if the script builds its model there; torch.device("meta") avoids it']


def text(answer: Mapping[str, Any]) -> str:
    """Return the answer as lines of at most 80 columns."""
    most, peak = answer["largest"], answer["at_peak"]
    lines = [
        f"rank {answer['rank']} of {answer['world_size']} ({answer['shape']}), simulated:",
        f"collectives did nothing, {'values are meaningless' if answer['data'] else 'tensors had no data'}",
        "",
        f"{'':{_WIDTH}}{'largest':>10}{'at the peak':>13}",
        *(
            f"{name:{_WIDTH}}{amount(most[kind]) if kind in most else '':>10}{amount(peak[kind]):>13}"
            for kind, name in _NAMES.items()
        ),
        f"{'all tensors':{_WIDTH}}{'':>10}{amount(answer['peak']):>13}  {answer['when']}",
    ]
    if answer["allocator"] is not None:
        lines.append(f"{'allocator of the device':{_WIDTH}}{'':>10}{amount(answer['allocator']):>13}")
    lines.append(f"{'this process, with torch':{_WIDTH}}{'':>10}{amount(answer['resident']):>13}")
    lines += ["", *(f"note: {note}" for note in answer["notes"])]
    return "\n".join([*lines, *_fits(answer)])


def _fits(answer: Mapping[str, Any]) -> list[str]:
    apart = [
        "Not counted: the device's context and kernels (1 to 2 GB), buffers of the",
        "communication library, fragmentation (up to a fifth more).",
    ]
    if answer["memory"] is None or not answer["need"]:
        return [f"a rank needs {amount(answer['need'])}; --memory 40GB asks whether that fits", *apart]
    word, rest = ("yes", "to spare") if answer["fits"] else ("no", "too much")
    if answer["fits"] and answer["spare"] < _APART + _WASTE * answer["peak"]:
        word = "yes, but only just"
    return [f"fits in {amount(answer['memory'])}: {word}, {amount(abs(answer['spare']))} {rest}", *apart]


def amount(size: float) -> str:
    """Return bytes as ``12.3 GB``, in powers of 1000 as memory is sold; ``0`` for none."""
    if not size:
        return "0"
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if abs(size) >= 0.9995 * scale:
            return f"{size / scale:.3g} {unit}" if size < 999.5 * scale else f"{size / scale:.0f} {unit}"
    return f"{size:.0f} B"
