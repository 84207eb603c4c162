"""Why a simulation has no answer: what the script's exit code and its report tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.cli.simulate_verdict import amount

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["explain", "silence"]

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
