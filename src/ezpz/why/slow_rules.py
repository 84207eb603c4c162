"""Say why steps of a run are slow: from one on, every n-th, or all, and which part of a step takes the time.

The run's own end has compared its steps (`ezpz.view.slow_steps`) and written ``findings`` into its ``run.json``. They
tell of rank 0, which waits for all others: where the record of arrivals (`ezpz.why.straggler_rules`) shows that one
rank or host is late, what rank 0 cannot explain is that.
"""

from __future__ import annotations

from ezpz.records.launch_record import Arrivals
from ezpz.why.cause import Cause, Certainty
from ezpz.why.straggler_rules import find

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.records.run_record import Finding
    from ezpz.why.known_facts import Facts

__all__ = ["of_slow_steps"]

_KINDS = ("slower-steps", "slow-every", "slow-part")
_LOADER = (
    "Use more workers (num_workers=), persistent_workers=True and a larger prefetch_factor; look whether the file "
    "system, or what a sample goes through, is slow, and whether the workers have cores of their own"
)
_NEW_EPOCHS = (
    "Use persistent_workers=True, so that workers are not started anew in each epoch, and a larger prefetch_factor"
)
_ADVICE = {
    "data": _LOADER,
    "save": "Save less often, save in the background (save(…, wait=False)), or to a faster file system",
    "evaluation": "Evaluate less often, or on fewer batches",
    "garbage collection": "Call gc.freeze() after the start, and look which objects pile up, or who calls gc.collect()",
    "logging": "Record fewer or smaller values per row, or write the run to a faster file system (outdir=)",
    "clock": "Look at cooling and power limits of the device (nvidia-smi -q -d PERFORMANCE), or use another host",
}
_UNKNOWN = (
    "Take a profile of such steps (launch --profile), or put ezpz.section(NAME, timeout=None) around what may be slow; "
    "look who else uses the host (top)"
)


def of_slow_steps(facts: Facts) -> Iterator[Cause]:
    """Steps became slower from one on, every n-th is slow, or a part takes much of the time of all."""
    found = [each for each in facts.run.findings if each.kind in _KINDS and each.text]
    late = find((facts.launch.arrivals or Arrivals()).windows) if found else None
    for each in sorted(found, key=lambda one: _KINDS.index(one.kind)):
        evidence = tuple(each.seen)
        if late is not None and not each.part:
            who = late.host or facts.who(late.rank)
            evidence += (f"the ranks wait for {who}, see there",)
        yield Cause(
            each.kind,
            each.text,
            Certainty.FINDING,
            step=each.step,
            evidence=evidence,
            advice=_advice(each),
        )


def _advice(found: Finding) -> str:
    if found.kind == "slow-every" and found.part == "data":
        return _NEW_EPOCHS
    return _ADVICE.get(found.part, _UNKNOWN)
