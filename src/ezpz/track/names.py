"""Tell what a metric measures by its name: a loss, a learning rate, a throughput, a time, memory.

Every part of ezpz that treats some metrics differently asks here, so that the report, the plots on a terminal,
``ezpz compare`` and ``ezpz runs`` agree.

    loss           loss train/loss val_loss eval/loss lm_loss validation/mean_loss: what is minimized, or its check
    loss term      aux_loss moe/load_balancing_loss nll perplexity: part of a loss, or another measure of it
    throughput     sps tps tps_per_gpu tokens_per_sec samples/s mfu tflops
    time           dt step_time, its parts dtd dtf dtb dto dtc time/data forward_time, and eval_seconds, latency_ms
    memory         memory_allocated mem/peak max_mem_gb rss
    optimizer      lr learning_rate lr/group0 grad_norm
    counter        step iter epoch train/epoch: the axis of steps again

Names are compared by their words: ``train/loss``, ``train_loss``, ``trainLoss`` and ``Loss (train)`` have the same two.
"""

from __future__ import annotations

import re
from functools import lru_cache

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable

PARTS = ("data", "forward", "backward", "optimizer", "comm")
# Parts that a rank spends alone: from the first collective on all ranks of a step wait for the slowest of them.
BEFORE_COLLECTIVE = ("wait", "forward", "data")

# Where a new word begins inside of camelCase: trainLoss, useAMP, LRScheduler; not in TFLOPs or GiB.
_JOINTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]{2})|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_BETWEEN = re.compile(r"[^a-z0-9]+")

_COUNTERS = {"iter", "iteration", "step", "epoch"}
_VALIDATION = {"val", "valid", "validation", "eval", "evaluation", "test", "dev"}
_BESIDE_LOSS = {
    *_VALIDATION,
    *("train", "training", "trn", "lm", "mean", "avg", "average", "total", "epoch", "step", "iter", "batch"),
    *("smooth", "ema"),
}
_MEASURES = {"loss", "losses", "nll", "ppl", "perplexity"}
_RATES = {"sps", "tps", "mfu", "hfu", "flops", "tflops", "gflops", "throughput"}
_PER_TIME = re.compile(r"/s(ec(ond)?)?s?\b|per_?s(ec|econd)?s?(?![a-z])", re.IGNORECASE)
_TIME_WORDS = {"dt", "time", "seconds", "secs", "ms", "latency", "duration", "elapsed", "walltime", "runtime", "uptime"}
_STEP_TIMES = {
    *("dt", "dt step", "step time", "time step", "dt iter", "iter time", "iteration time", "time per step"),
    *("elapsed time per iteration", "time per iteration"),
}
_ACCURACIES = {"accuracy", "acc", "accuracies", "top1", "top5"}
_WEIGHTS = {"weight", "coef", "coeff", "coefficient", "beta", "lambda", "temperature"}
_OF_GAMES = {"reward", "rewards", "rew", "return", "returns", "advantage", "advantages"}
_PLAYERS = {
    *("d", "g", "disc", "discriminator", "gen", "generator", "adv", "adversarial", "fake"),
    *("actor", "critic", "policy", "pg", "vf"),
}
_OPTIMIZER = {"gnorm", "momentum", "wd"}
_OPTIMIZER_PAIRS = ("grad norm", "gradient norm", "param norm", "weight decay", "loss scale")
_SHORT_PARTS = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer", "dtc": "comm", "dtw": "wait"}
_LONG_PARTS = {
    **dict.fromkeys(("data", "data loading", "dataloading", "dataloader", "data wait", "load", "batch"), "data"),
    **dict.fromkeys(("forward", "fwd"), "forward"),
    **dict.fromkeys(("backward", "bwd"), "backward"),
    **dict.fromkeys(("optimizer", "optim", "opt", "optimizer step"), "optimizer"),
    **dict.fromkeys(("comm", "communication", "allreduce", "all reduce", "sync", "collective"), "comm"),
    **dict.fromkeys(("wait", "idle"), "wait"),
}
# Names of a throughput in the order of trust.
_TRUSTED_RATES = (
    *("tokens_per_second", "tokens_per_sec", "tok_per_sec", "tokens/s", "tps", "samples_per_second"),
    *("samples_per_sec", "samples/s", "sps", "throughput", "steps_per_second", "it/s", "sequences_per_second"),
)
_TRUSTED_TIMES = (
    *("dt", "step_time", "iter_time", "iteration_time", "dt_step", "time_per_step", "elapsed_time_per_iteration"),
)
_UNITS_OF_RATES = (
    *(("tflops", "TFLOP/s"), ("gflops", "GFLOP/s"), ("flops", "FLOP/s")),
    *(("tok", "tok/s"), ("tps", "tok/s"), ("seq", "seq/s"), ("step", "it/s"), ("it", "it/s")),
    *(("sample", "samples/s"), ("sps", "samples/s"), ("image", "images/s")),
)
_BYTES = ("GiB", "GB", "MiB", "MB", "KiB", "KB")


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case: ``["val", "loss"]`` of ``val_loss`` and ``valLoss``."""
    return list(_words_of(name))


@lru_cache(maxsize=4096)  # a list of 500 runs asks for the same few names again and again
def _words_of(name: str) -> tuple[str, ...]:
    return tuple(word for word in _BETWEEN.split(_JOINTS.sub(" ", name).lower()) if word)


def is_counter(name: str) -> bool:
    """Tell whether a metric only repeats the step, as ``train/epoch`` does."""
    return name.rpartition("/")[2] in _COUNTERS


def is_loss(name: str) -> bool:
    """Tell whether a metric is the loss itself, of training or validation, and not one of several terms of it."""
    words = words_of(name)
    return "loss" in words and set(words) - {"loss"} <= _BESIDE_LOSS


def is_loss_term(name: str) -> bool:
    """Tell whether a metric is a term of a loss or another measure of it: ``aux_loss``, ``nll``, ``perplexity``."""
    words = words_of(name)
    others = is_loss(name) or is_throughput(name) or is_time(name) or "scale" in words
    return not others and not _MEASURES.isdisjoint(words)


def is_validation(name: str) -> bool:
    """Tell whether a metric was measured on data that is not trained on: ``val/loss``, ``eval_accuracy``."""
    return not _VALIDATION.isdisjoint(words_of(name))


def holds_validation_only(names: Iterable[str]) -> bool:
    """Tell whether a row evaluates and does nothing else: all of its metrics are of validation, counters aside."""
    found = False
    for name in names:
        if is_counter(name):
            continue
        if not is_validation(name):
            return False
        found = True
    return found


def is_accuracy(name: str) -> bool:
    """Tell whether a metric is a share of right answers: ``accuracy``, ``val_acc``, ``test/top1``."""
    return not _ACCURACIES.isdisjoint(words_of(name))


def is_learning_rate(name: str) -> bool:
    """Tell whether a metric is a learning rate: ``lr``, ``train/learning_rate``, ``lr/group0``."""
    words = words_of(name)
    return "lr" in words or "learning rate" in " ".join(words)


def is_throughput(name: str) -> bool:
    """Tell whether a metric counts something per time, or is a share of a device's speed: little of it is slow."""
    if is_step_time(name):  # time_per_step
        return False
    return not _RATES.isdisjoint(words_of(name)) or _PER_TIME.search(name) is not None


def is_time(name: str) -> bool:
    """Tell whether a metric is a duration: much of it is slow."""
    if is_throughput(name):
        return False
    words = words_of(name)
    if is_step_time(name) or part_of_step(name) or not _TIME_WORDS.isdisjoint(words):
        return True
    return len(words) > 1 and (words[0] == "t" or words[-1] == "s" or words[-1].endswith("time"))


def is_step_time(name: str) -> bool:
    """Tell whether a metric is the time of a whole step."""
    return _plain(name) in _STEP_TIMES


def part_of_step(name: str) -> str | None:
    """Return the part of a step that a metric times: one of `PARTS`, ``wait`` before a collective, or None."""
    words = _plain(name)
    if words in _SHORT_PARTS:
        return _SHORT_PARTS[words]
    for mark in ("dt ", "time ", "t "):
        if words.startswith(mark):
            return _LONG_PARTS.get(words.removeprefix(mark))
    for mark in (" time", " seconds", " s"):
        if words.endswith(mark):
            return _LONG_PARTS.get(words.removesuffix(mark))
    return "data" if words in {"data loading", "dataloading"} else None


def _plain(name: str) -> str:
    return " ".join(words_of(name)).removeprefix("train ").removeprefix("perf ")


def is_memory(name: str) -> bool:
    """Tell whether a metric is an amount of memory."""
    return any(word.startswith("mem") or word in {"rss", "vram", "maxmem"} for word in words_of(name))


def weighs_a_term(name: str) -> bool:
    """Tell whether a metric is what a term of the loss is multiplied by: ``kl_weight``, ``beta``; not weight decay."""
    return not _WEIGHTS.isdisjoint(words_of(name)) and not is_optimizer(name) and not is_loss_term(name)


def is_of_a_game(name: str) -> bool:
    """Tell whether a metric is of a training whose losses need not fall: rewards, losses of models that compete."""
    words = set(words_of(name))
    return not words.isdisjoint(_OF_GAMES) or ("loss" in words and not words.isdisjoint(_PLAYERS))


def is_optimizer(name: str) -> bool:
    """Tell whether a metric describes the optimizer: a learning rate, or a norm of gradients or weights."""
    text = f" {' '.join(words_of(name))} "
    if is_learning_rate(name) or not _OPTIMIZER.isdisjoint(text.split()):
        return True
    return any(f" {pair} " in text for pair in _OPTIMIZER_PAIRS)


def group_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Sort names into ``loss``, ``throughput``, ``time``, ``memory``, ``optimizer`` and ``other``, in their order."""
    groups: dict[str, list[str]] = {g: [] for g in ("loss", "throughput", "time", "memory", "optimizer", "other")}
    for name in names:
        if is_loss(name):
            group = "loss"
        elif is_memory(name):
            group = "memory"
        elif is_step_time(name) or part_of_step(name):
            group = "time"
        elif is_throughput(name):
            group = "throughput"
        elif is_optimizer(name):
            group = "optimizer"
        else:
            group = "other"
        groups[group].append(name)
    return groups


def order_of(name: str) -> int:
    """Return what to sort metrics by where people look for a few of many: losses, throughput, times, then the rest."""
    return next((place for place, fits in enumerate((is_loss, is_loss_term, is_throughput, is_time)) if fits(name)), 4)


def main_loss(names: Iterable[str]) -> str | None:
    """Return the metric that is shown as a run's loss, or None.

    That is the loss of training, the one with the fewest words; else that of validation; else the first term of a loss.
    """
    losses = [name for name in names if is_loss(name) or is_loss_term(name)]
    order = {name: (not is_loss(name), is_validation(name), len(words_of(name))) for name in losses}
    return min(losses, key=lambda name: order[name], default=None)


def main_throughput(names: Iterable[str]) -> tuple[str, bool] | None:
    """Return the metric that shows best how fast a run is, and whether it is a time (less is faster); or None."""
    by_last: dict[str, str] = {}
    for name in names:
        for end in (name.lower(), name.lower().rpartition("/")[2]):
            by_last.setdefault(end, name)
    for keys, is_a_time in ((_TRUSTED_RATES, False), (_TRUSTED_TIMES, True)):
        for key in keys:
            if key in by_last:
                return by_last[key], is_a_time
    return None


def unit(name: str) -> str:
    """Return the unit of a metric as far as its name says it: ``tok/s``, ``GiB``, ``ms``; else nothing."""
    if is_memory(name):
        return next((each for each in _BYTES if each.lower() in name.lower()), "")
    if is_throughput(name):
        return _unit_of_rate(words_of(name))
    if is_time(name):
        return "ms" if "ms" in words_of(name) else "s"
    return ""


def _unit_of_rate(words: list[str]) -> str:
    if not {"mfu", "hfu"}.isdisjoint(words):
        return "%"
    return next((shown for start, shown in _UNITS_OF_RATES if any(word.startswith(start) for word in words)), "/s")
