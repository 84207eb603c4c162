"""Say what stands out in the losses of a run that recorded them: NaN, a rise, a learning rate of 0, standing still.

The run's own end has looked at the curves of all ranks (`ezpz.track.loss_findings`) and written ``findings`` into its
``run.json``. They ended nothing, so they come after whatever did; but for a training that was asked to end when its
loss is lost (``on_nan`` of `ezpz.train.Loop`), whose ``cause`` in ``run.json`` says so:

    LostLossError: loss=nan on rank 1 at step 120; all ranks ended after step 126 (on_nan=stop), …
"""

from __future__ import annotations

from ezpz.fields import replace
from ezpz.why.cause import Cause, Certainty

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ezpz.records.run_record import Finding
    from ezpz.why.known_facts import Facts

__all__ = ["ended_by_loss", "of_losses"]

_ORDER = (
    "non-finite-loss",
    "weights-differ",
    "same-batches",
    "loss-rise",
    "zero-lr",
    "loss-spike",
    "loss-still",
)
_ADVICE = {
    "non-finite-loss": "Look at the batch and the gradients of that step on that rank: a smaller learning rate, "
    "clipping (max_norm), bf16 in place of fp16, or a division by zero in the loss",
    "same-batches": "Give each data-parallel rank its own part of the data: ezpz.prepare(data), DistributedSampler, or "
    "a seed that depends on the rank (ezpz.data_seed) where samples are drawn",
    "weights-differ": "Begin with the same weights on all ranks: DistributedDataParallel, ezpz.wrap_model or a "
    "broadcast sends rank 0's. Look for what changes them on one rank alone: a checkpoint that one rank loads, code "
    "behind `if rank == 0`, another state of the optimizer. If nothing does, test that rank's memory and device",
    "loss-rise": "Lower the learning rate, warm it up, or clip gradients (max_norm); look what changed there: data, "
    "learning rate, a checkpoint that was loaded",
    "zero-lr": "Look at the schedule: its number of steps (counted per batch or per step of the optimizer, per rank or "
    "in all), and what a checkpoint has restored",
    "loss-spike": "Compare the batch of that step with others, and grad_norm and the learning rate around it",
    "loss-still": "Look whether the optimizer has all parameters, its learning rate is above 0, the gradients reach "
    "them, and the batch changes from step to step",
}


_ENDED = "LostLossError: "


def ended_by_loss(facts: Facts) -> Iterator[Cause]:
    """The training ended itself, as it was asked to, because a loss was NaN or infinite."""
    cause = facts.run.cause
    if not cause.startswith(_ENDED):
        return
    text = cause.removeprefix(_ENDED).partition(";")[0]
    found = next((each for each in _found(facts) if each.cause == "non-finite-loss"), None)
    if found is None:  # it was no number from the first step on
        yield Cause("non-finite-loss", text, Certainty.SEEN, advice=_ADVICE["non-finite-loss"])
        return
    evidence = (*found.evidence, f"the training ended itself: {text}")
    yield replace(found, certainty=Certainty.SEEN, evidence=evidence)


def of_losses(facts: Facts) -> Iterator[Cause]:
    """A loss became NaN or infinite for good, rose, or did not change any more; or the learning rate is 0."""
    ended = any(ended_by_loss(facts))
    yield from (each for each in _found(facts) if not (ended and each.cause == "non-finite-loss"))


def _found(facts: Facts) -> Iterator[Cause]:
    found = [
        (each.step, each) for each in facts.run.findings if each.kind in _ORDER and each.text and each.step is not None
    ]
    for step, each in sorted(found, key=lambda one: (_ORDER.index(one[1].kind), one[0])):
        yield Cause(
            each.kind,
            each.text,
            Certainty.FINDING,
            rank=each.rank,
            host=None if each.rank is None else facts.host(each.rank),
            step=step,
            evidence=tuple(_evidence(each)),
            advice=_ADVICE[each.kind],
        )


def _evidence(finding: Finding) -> Iterator[str]:
    if finding.kind == "non-finite-loss":
        if isinstance(finding.ranks, int) and finding.ranks > 1:
            yield f"{finding.ranks} ranks recorded {finding.value} at that step"
        if finding.before_step is not None:
            yield f"the last finite value is {finding.before} at step {finding.before_step}"
    elif finding.kind == "same-batches" and finding.different is not None:
        yield (
            f"in {finding.looks} looks their batches had the same checksums, {finding.different} different "
            "ones; ranks that share batches by design (tensor parallel) do not count"
        )
    elif finding.kind == "weights-differ" and finding.different is not None:
        yield (
            f"in {finding.different} of {finding.looks} looks from there on the checksums of their weights differed; "
            "those of their gradients were the same in all looks"
        )
    elif finding.kind == "loss-rise" and finding.median is not None:
        yield f"its lowest level before is {finding.median:.6g}"
    elif finding.kind == "loss-spike" and finding.spread is not None:
        yield f"before it the values spread by {finding.spread:.3g} (1.4826 times the median absolute deviation)"
