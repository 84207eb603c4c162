"""Write the line of a step: short enough for 80 columns, with units, the same for every trainer.

    17:57:31 iter=10 loss=1.7902 accuracy=0.6094 dt=0.0192 s sps=6665 samples/s
    17:57:33 iter=99 val_loss=0.21037 val_accuracy=0.9451

Every value is recorded, whatever is printed. A line holds what people watch: the step, losses, accuracies, the time of
a step and one throughput; what was measured between two steps has a line of its own where one is too short for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ezpz.track.names import is_counter, is_loss, is_step_time, is_throughput, main_throughput, unit, words_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["COLUMNS", "step_lines"]

COLUMNS = 71  # of a terminal of 80, after the time of the day
_SHARES = {"per", "gpu", "device", "rank"}  # words of a rate that only says again what the rate of all ranks says
# Recorded and drawn, but not on the line that people read.
_NOT_PRINTED = {"dtd", "dtf", "dtb", "dto", "lr", "grad_norm", "memory_gib", "dt_eval", "dt_save", "warmup", "steps"}


def step_lines(row: Mapping[str, Any], between: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of a step, each of at most 71 columns if its first two values fit there.

    Args:
        row: Name to number, all that is recorded of the step.
        between: What of it was measured after the step, such as the losses of an evaluation.

    Returns:
        One line, or two: the second repeats the step and holds what was measured after it.
    """
    apart = between or {}
    step = {name: value for name, value in row.items() if is_counter(name)}
    seen = {name: value for name, value in row.items() if name not in step and name not in _NOT_PRINTED}
    own = {name: value for name, value in seen.items() if name not in apart}
    later = {name: value for name, value in seen.items() if name in apart}
    words = [_pair(name, value) for name, value in _in_order(own)]
    counted = [_pair(name, value) for name, value in list(step.items())[:1]]
    behind = [_pair(name, value) for name, value in later.items()]
    if behind and len(" ".join([*counted, *words, *behind])) <= COLUMNS:
        return [" ".join([*counted, *words, *behind])]
    lines = [_fitting([*counted, *words])] if words or not behind else []
    return [*lines, _fitting([*counted, *behind])] if behind else lines


def _in_order(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return what a line shows: losses, what else the trainer computes, the time of a step, one rate, the MFU."""
    rates = [name for name in values if is_throughput(name)]
    whole = [name for name in rates if _SHARES.isdisjoint(words_of(name)) and unit(name) != "%"]
    chosen = main_throughput(whole)
    kept = {chosen[0]} if chosen else set()
    kept |= {name for name in rates if unit(name) == "%"}
    shown = [(name, value) for name, value in values.items() if name not in rates or name in kept]

    def place(item: tuple[str, Any]) -> int:
        name = item[0]
        if is_throughput(name):
            return 4 if unit(name) == "%" else 3
        return 2 if is_step_time(name) else 0 if is_loss(name) else 1

    return sorted(shown, key=place)


def _pair(name: str, value: Any) -> str:
    if type(value) is not float:
        return f"{name}={value}" if not isinstance(value, list) else f"{name}=[{len(value)} values]"
    measure = unit(name)
    digits = 3 if measure in {"s", "%"} else 5 if is_loss(name) else 4
    text = f"{value:.0f}" if measure and 1e4 <= abs(value) < 1e15 else f"{value:.{digits}g}"
    return f"{name}={text} {measure}" if measure else f"{name}={text}"


def _fitting(words: list[str]) -> str:
    """Return as many words as a line has room for, and at least two."""
    text = " ".join(words[:2])
    for word in words[2:]:
        if len(text) + 1 + len(word) > COLUMNS:
            break
        text = f"{text} {word}"
    return text
