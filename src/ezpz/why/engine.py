"""Ask every rule for causes and put them in order: what was seen before what was concluded, ends before findings."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ezpz.records.launch_record import FoundCause
    from ezpz.why.cause import Cause
    from ezpz.why.known_facts import Facts

    Rule = Callable[[Facts], Iterable[Cause]]

__all__ = ["diagnose", "last_line", "says_more"]

# What the line of a failure says already, so that nothing is repeated below it.
_SAID = {"exception", "exit-code", "signal", "host-lost", "launch", "left-early", "interrupted"}
_SAID |= {"out-of-memory", "memory-refused", "out-of-device-memory", "killed-by-signal", "crashed", "mpi-abort"}
# Findings that are worth a line below a run that ended well.
_SPOKEN = {"non-finite-loss", "same-batches", "weights-differ"}


def _rules() -> tuple[Rule, ...]:
    """Return every rule; of two causes of the same certainty, the one of the earlier rule comes first."""
    from ezpz.why import ends, hang_rules, loss_rules, slow_rules, stack_rules, straggler_rules, waiting_rules
    from ezpz.why.machine import MACHINE_RULES

    return (
        ends.interrupted,
        hang_rules.refused_size,
        hang_rules.other_model,
        *MACHINE_RULES,
        hang_rules.hidden_exception,
        hang_rules.mismatch,
        hang_rules.missing,
        hang_rules.left_behind,
        stack_rules.missing_by_stacks,
        stack_rules.wait_for_each_other,
        stack_rules.all_in_one_place,
        stack_rules.lives_at_its_end,
        waiting_rules.waited,
        loss_rules.ended_by_loss,
        # Ends that others explain stand behind what explains them.
        ends.left_early,
        ends.aborted_through_mpi,
        ends.ended_by_itself,
        ends.lost_host,
        loss_rules.of_losses,
        straggler_rules.straggler,
        straggler_rules.waits_for_cores,
        slow_rules.of_slow_steps,
    )


def diagnose(facts: Facts) -> list[Cause]:
    """Return the causes that the facts show, the most certain first; empty where they show none."""
    found = [cause for rule in _rules() for cause in rule(facts)]
    return sorted(found, key=lambda cause: -cause.certainty)


def says_more(causes: Sequence[FoundCause]) -> str:
    """Return the first cause of ``run.json`` where it says more than the line of the failure; empty elsewhere.

    Args:
        causes: The causes, the most certain first.
    """
    first = causes[0] if causes else None
    if first is None or first.certainty not in {2, 3}:
        return ""
    return "" if _is_said(first.cause, first.certainty) else first.text


def _is_said(cause: str, certainty: int) -> bool:
    """Tell whether the line of the failure says it; of a hang that line does not say that a rank has left."""
    return cause in _SAID and not (cause == "left-early" and certainty == 2)


def last_line(causes: Sequence[Cause], *, failed: bool) -> str:
    """Return what ``launch`` says below its output; empty where its own line of the failure says as much.

    Args:
        causes: What `diagnose` returned.
        failed: Whether the launch ended with another code than 0.
    """
    from ezpz.why.cause import Certainty

    if failed:
        first = causes[0] if causes and causes[0].certainty > Certainty.FINDING else None
        return first.text if first and not _is_said(first.cause, first.certainty) else ""
    return next((cause.text for cause in causes if cause.cause in _SPOKEN), "")
