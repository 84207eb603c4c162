"""Kinds of curves that trainings record, healthy ones and such with a trouble in them, drawn from a generator.

    drawn = HEALTHY["smooth decay"](np.random.default_rng(seed))

Of those in `HEALTHY` nothing may be said; of those in `TROUBLED` what `Drawn.says` has.
"""

from typing import NamedTuple

import numpy as np

LR = 1e-3


class Drawn(NamedTuple):
    """One run, and what must be said of it.

    Attributes:
        metrics: Of rank 0: name to an array of shape (steps,), or to a number that stays as it is.
        main: The metric whose values of all ranks are known.
        ranks: These values, an array of shape (steps,) for each rank; empty in a world of one.
        says: ``(kind, first, last)``: a finding of that kind at a step between these two.
        words: A part of its text.
        unsaid: What no text may hold.
    """

    metrics: dict
    main: str = "loss"
    ranks: list = ()
    says: tuple = ()
    words: str = ""
    unsaid: str = "\0"


def falls(chance, rows, start=3.0, end=0.5, noise=0.05, pace=5.0):
    """A loss that falls from `start` to `end`, with noise of a part of its value."""
    curve = end + (start - end) * np.exp(-pace * np.arange(rows) / rows)
    return curve * (1 + noise * chance.standard_normal(rows))


def some_rows(chance, least=200, most=700):
    return int(chance.integers(least, most))


# Nothing may be said


def smooth_decay(chance):
    return Drawn({"loss": falls(chance, some_rows(chance), noise=0.01)})


def plateau_reached_early(chance):
    return Drawn({"loss": falls(chance, some_rows(chance), pace=60), "lr": LR})


def noise_of_small_batches(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows, noise=0) * np.exp(0.5 * chance.standard_normal(rows))})


def heavy_tails(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows, noise=0) * np.exp(0.15 * chance.standard_t(4, rows))})


def double_descent(chance):
    rows = some_rows(chance)
    at = np.linspace(-3, 3, rows)
    return Drawn({"loss": falls(chance, rows) * (1 + 0.6 * np.exp(-(at**2)))})


def warm_restarts(chance):
    """The learning rate goes back to its peak now and then, and the loss up with it."""
    rows, length = some_rows(chance, 300), int(chance.integers(40, 120))
    at = np.arange(rows) % length
    rate = LR * (1 + np.cos(np.pi * at / length)) / 2
    return Drawn({"loss": falls(chance, rows) * (1 + 1.5 * rate / LR * (np.arange(rows) >= length)), "lr": rate})


def warm_restarts_without_a_rate(chance):
    return Drawn({"loss": warm_restarts(chance).metrics["loss"]})


def growing_warm_restarts(chance):
    rows, starts = 630, [0, 90, 270]
    at = np.arange(rows)
    since = np.array([max(start for start in starts if start <= each) for each in at])
    rate = LR * (1 + np.cos(np.pi * (at - since) / np.where(since, 2 * since, 90))) / 2
    return Drawn({"loss": falls(chance, rows) * (1 + 2.5 * rate / LR * (since > 0)), "lr": rate})


def sawtooth_of_epochs(chance, factor=3.0):
    rows, length = some_rows(chance, 300), int(chance.integers(30, 140))
    epoch, at = np.divmod(np.arange(rows), length)
    curve = (0.3 + 2.5 / (1 + epoch)) * (1 + (factor - 1) * (1 - at / length)) / factor
    return Drawn({"loss": curve * (1 + 0.02 * chance.standard_normal(rows)), "epoch": epoch})


def sawtooth_without_epochs(chance):
    return Drawn({"loss": sawtooth_of_epochs(chance).metrics["loss"]})


def steps_of_a_schedule(chance):
    rows = some_rows(chance)
    rate = LR * 0.1 ** (3 * np.arange(rows) // rows)
    return Drawn({"loss": falls(chance, rows) * (0.5 + 0.5 * rate / LR), "lr": rate})


def fine_tuning_at_its_optimum(chance):
    rows = some_rows(chance)
    return Drawn(
        {"loss": 1.2 + 0.1 * chance.standard_normal(rows), "lr": LR * 0.01, "grad_norm": chance.gamma(4, 0.3, rows)}
    )


def random_tokens(chance):
    """A benchmark trains on random data: nothing can be learned."""
    return Drawn({"loss": np.log(32000) + 0.01 * chance.standard_normal(some_rows(chance)), "lr": LR})


def twenty_steps(chance):
    return Drawn({"loss": 2.3 + 0.5 * chance.standard_normal(20)})


def three_steps(chance):
    return Drawn({"loss": np.sort(chance.gamma(2, 1, 3)), "lr": 0.0})


def validation_alone(chance):
    rows = int(chance.integers(20, 90))
    return Drawn({"val_loss": 0.5 + np.linspace(0, 4, rows) + 0.05 * chance.standard_normal(rows)}, "val_loss")


def validation_of_what_is_learned_by_heart(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows), "val_loss": falls(chance, rows) + np.linspace(0, 5, rows)})


def accuracy_alone(chance):
    rows = some_rows(chance)
    return Drawn({"accuracy": 1 - falls(chance, rows, 0.9, 0.1)}, "accuracy")


def two_that_compete(chance):
    """A GAN: neither loss is to fall for good."""
    rows = some_rows(chance)
    wave = 1 + 0.8 * np.sin(np.arange(rows) / 23)
    rise = np.linspace(0.7, 5, rows)
    bursts = np.where(chance.random(rows) < 0.02, 12, 1)
    return Drawn({"d_loss": 0.6 * wave * bursts, "g_loss": rise * wave * bursts}, "d_loss")


def two_that_compete_and_their_sum(chance):
    drawn = two_that_compete(chance)
    return drawn._replace(metrics={**drawn.metrics, "loss": sum(drawn.metrics.values())}, main="loss")


def reward_with_a_loss_around_0(chance):
    rows = some_rows(chance)
    return Drawn(
        {"loss": 0.05 * chance.standard_normal(rows) + np.linspace(-0.2, 0.1, rows), "reward": np.arange(rows)}
    )


def reward_with_a_loss_that_rises(chance):
    rows = some_rows(chance)
    loss = np.linspace(0.2, 9, rows) * np.exp(0.3 * chance.standard_normal(rows))
    return Drawn({"loss": loss, "rollout/ep_rew_mean": np.linspace(0, 400, rows)})


def contrastive_that_rises_first(chance):
    rows = some_rows(chance, 400)
    rise = 1 - np.exp(-np.arange(rows) / (rows / 12))
    return Drawn(
        {"loss": (0.7 + 7.5 * rise - 2.5 * np.arange(rows) / rows) * (1 + 0.02 * chance.standard_normal(rows))}
    )


def weight_of_a_term_that_grows(chance):
    rows = some_rows(chance)
    weight = np.minimum(1, 2 * np.arange(rows) / rows)
    return Drawn({"loss": falls(chance, rows, 0.9, 0.4) + 1.5 * weight, "kl_weight": weight})


def weight_of_a_term_that_grows_unsaid(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows, 4.0, 1.0, pace=20) + 0.6 * np.minimum(1, 2 * np.arange(rows) / rows)})


def accumulation_that_grows(chance):
    rows = some_rows(chance)
    times = np.where(np.arange(rows) < rows // 2, 1, 8)
    return Drawn({"loss": falls(chance, rows) * times, "grad_accumulation": times})


def sequences_that_grow(chance):
    rows = some_rows(chance)
    length = 512 * 2 ** (3 * np.arange(rows) // rows)
    return Drawn({"loss": falls(chance, rows, 3, 0.6, pace=12) * (length / 512) ** 0.9, "seq_len": length})


def stages_that_are_harder(chance):
    rows = some_rows(chance, 300)
    stage, at = np.divmod(np.arange(rows), rows // 3 + 1)
    fall = np.exp(-6 * at / (rows // 3))
    curve = (0.2 + 1.6 * stage) + (0.5 + 2 * stage) * fall
    return Drawn({"loss": curve * (1 + 0.03 * chance.standard_normal(rows)), "stage": stage})


def tasks_in_turn(chance):
    rows = some_rows(chance)
    hard = chance.random(rows) < 0.3
    return Drawn({"loss": falls(chance, rows, 1, 0.3) * np.where(hard, 6, 1)})


def tasks_in_blocks(chance):
    rows, length = some_rows(chance, 400), int(chance.integers(20, 60))
    hard = np.arange(rows) // length % 3 == 2
    return Drawn({"loss": falls(chance, rows, 1, 0.3) * np.where(hard, 5, 1)})


def rate_in_cycles(chance):
    rows = some_rows(chance)
    rate = LR * (1.1 + np.sin(np.arange(rows) / 15))
    return Drawn({"loss": falls(chance, rows) * (1 + 0.5 * rate / LR), "lr": rate})


def rate_that_ends_at_0(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows), "lr": LR * (1 - np.arange(rows) / (rows - 1))})


def rate_that_begins_at_0(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows), "lr": LR * np.minimum(1, np.arange(rows) / 40)})


def rate_that_is_rounded(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows), "lr": np.round(LR * 0.01 * np.linspace(1, 0.1, rows), 4)})


def one_group_is_frozen(chance):
    return Drawn({"loss": falls(chance, some_rows(chance)), "lr/group0": LR, "lr/group1": 0.0})


def warm_up_that_rises_first(chance):
    rows = some_rows(chance)
    hump = 0.5 * np.exp(-(((np.arange(rows) - rows / 15) / (rows / 25)) ** 2))
    return Drawn({"loss": falls(chance, rows, 1.4, 1.1) * (1 + hump), "lr": LR * np.minimum(1, np.arange(rows) / 40)})


def bfloat16(chance):
    curve = falls(chance, some_rows(chance))
    step = 2.0 ** (np.floor(np.log2(curve)) - 7)
    return Drawn({"loss": np.round(curve / step) * step})


def negative_likelihood(chance):
    return Drawn({"loss": falls(chance, some_rows(chance)) - 3})


def negative_that_rises(chance):
    return Drawn({"loss": -falls(chance, some_rows(chance), 5, 0.5)})


def perplexity(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows), "perplexity": np.exp(falls(chance, rows)), "ppl": 3.0})


def mean_that_begins_at_0(chance):
    curve, found = falls(chance, some_rows(chance), 2.5, 1.5), []
    mean = 0.0
    for value in curve:
        mean += 0.05 * (value - mean)
        found.append(mean)
    return Drawn({"loss": np.array(found)})


def sum_of_all_steps(chance):
    return Drawn({"loss": np.cumsum(falls(chance, some_rows(chance)))})


def sum_of_an_epoch(chance):
    rows, length = some_rows(chance, 300), int(chance.integers(40, 140))
    curve = falls(chance, rows)
    return Drawn({"loss": np.concatenate([np.cumsum(curve[at : at + length]) for at in range(0, rows, length)])})


def eight_healthy_ranks(chance):
    rows = some_rows(chance, 200, 300)
    return Drawn({"lr": LR}, ranks=[falls(chance, rows) * (1 + 0.1 * chance.random()) for _ in range(8)])


def shift_down(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows) * np.where(np.arange(rows) < 0.7 * rows, 1, 0.3)})


def skipped_by_a_scaler(chance):
    curve = falls(chance, some_rows(chance))
    curve[chance.random(len(curve)) < 0.03] = np.inf
    curve[-1] = 0.5
    return Drawn({"loss": curve})


def nan_and_numbers_again(chance):
    curve = falls(chance, some_rows(chance))
    curve[50:70] = np.nan
    return Drawn({"loss": curve})


def late_insight(chance):
    rows = some_rows(chance)
    return Drawn({"loss": falls(chance, rows, 3, 2, pace=40) * np.where(np.arange(rows) < 0.8 * rows, 1, 0.05)})


def all_is_learned(chance):
    rows = some_rows(chance)
    return Drawn({"loss": np.exp(-np.arange(rows) / 12) * np.exp(chance.standard_normal(rows)), "lr": LR})


def dice_of_a_few_samples(chance):
    return Drawn({"loss": chance.gamma(1.5, 0.5, some_rows(chance)), "lr": LR})


def slightly_harder_data(chance):
    rows = some_rows(chance)
    return Drawn({"loss": np.linspace(1.0, 1.1, rows) + 0.1 * chance.standard_normal(rows), "lr": LR})


def smoothed_and_wandering(chance):
    found = [0.0]
    for step in chance.standard_normal(some_rows(chance)):
        found.append(0.97 * found[-1] + 0.05 * step)
    return Drawn({"loss": 1.5 * np.exp(found)})


# Something must be said


def _at(chance, rows, least=0.3, most=0.7):
    return int(rows * chance.uniform(least, most))


def diverges_exponentially(chance):
    rows = some_rows(chance)
    at, curve = _at(chance, rows), falls(chance, rows, pace=9)
    curve[at:] *= np.exp(np.arange(rows - at) / (rows / 25))
    return Drawn({"loss": curve, "lr": 0.5}, says=(("loss-rise", at, at + rows // 8),), words="lr 0.5")


def diverges_in_stairs(chance):
    rows = some_rows(chance, 300)
    at, curve = _at(chance, rows, 0.3, 0.4), falls(chance, rows, pace=12)
    curve[at:] *= 2.0 ** (1 + np.arange(rows - at) // (rows // 10))
    return Drawn({"loss": curve}, says=(("loss-rise", at - 3, at + rows // 5),))


def rate_is_too_high_from_the_start(chance):
    rows = some_rows(chance, 120, 400)
    curve = np.exp(np.log(20) + 0.45 * chance.standard_normal(rows))
    curve[:4] = [1.42, 1.42 * chance.uniform(4, 8), 60, 150]
    return Drawn({"loss": curve, "lr": 60.0}, says=(("loss-rise", 0, 4),), words="lr 60")


def rate_is_too_high_and_rises_gently(chance):
    rows = some_rows(chance)
    curve = 2.3 + 6 * (1 - np.exp(-np.arange(rows) / (rows / 6)))
    return Drawn({"loss": curve * (1 + 0.15 * chance.standard_normal(rows))}, says=(("loss-rise", 0, rows // 4),))


def drifts_up(chance):
    rows = some_rows(chance)
    curve = np.linspace(1.0, 3.0, rows) * (1 + 0.1 * chance.standard_normal(rows))
    return Drawn({"loss": curve, "lr": LR}, says=(("loss-rise", 0, rows // 2),), words="above its start")


def shift_up_and_stays(chance):
    rows = some_rows(chance)
    at, curve = _at(chance, rows), falls(chance, rows, 3.0, 0.2, pace=15)
    curve[at:] = 1.3 + 0.1 * chance.standard_normal(rows - at)
    return Drawn({"loss": curve}, says=(("loss-rise", at, at),), unsaid="back at step")


def shift_up_with_noise(chance):
    """Some values of the new level are as low as the old ones: it is not back."""
    rows = some_rows(chance)
    at, curve = _at(chance, rows), falls(chance, rows, 3.0, 0.2, pace=15)
    curve[at:] = np.abs(1.6 + 0.45 * chance.standard_normal(rows - at))
    curve[at], curve[at + 7] = 1.9, 0.2
    return Drawn({"loss": curve}, says=(("loss-rise", at, at),), unsaid="back at step")


def shift_above_the_start(chance):
    rows = some_rows(chance)
    at, curve = _at(chance, rows), falls(chance, rows)
    curve[at:] = 6.0 + 0.1 * chance.standard_normal(rows - at)
    return Drawn({"loss": curve}, says=(("loss-rise", at, at),), words="above its start")


def spike_and_back(chance):
    rows = some_rows(chance)
    at, length, curve = _at(chance, rows), int(chance.integers(1, 6)), falls(chance, rows)
    curve[at : at + length] = 30.0 - np.arange(length)
    return Drawn({"loss": curve}, says=(("loss-spike", at, at),), words=f"back at step {at + length}")


def spike_at_the_end(chance):
    curve = falls(chance, some_rows(chance))
    curve[-4:] = [20, 18, 19, 22]
    return Drawn({"loss": curve}, says=(("loss-spike", len(curve) - 4, len(curve) - 1),), words="not come back")


def spike_beside_an_epoch(chance):
    """It is not at a border."""
    drawn = sawtooth_of_epochs(chance)
    curve, length = drawn.metrics["loss"], int((drawn.metrics["epoch"] == 0).sum())
    at = 2 * length + length // 2
    curve[at] = 25.0
    return drawn._replace(says=(("loss-spike", at, at),))


def nan_to_the_end(chance):
    curve = falls(chance, some_rows(chance))
    at = _at(chance, len(curve))
    curve[at:] = np.nan
    return Drawn({"loss": curve}, says=(("non-finite-loss", at, at),))


def infinite_to_the_end(chance):
    curve = falls(chance, some_rows(chance))
    at = _at(chance, len(curve))
    curve[at:] = np.inf
    return Drawn({"loss": curve}, says=(("non-finite-loss", at, at),))


def diverges_to_nan(chance):
    rows = some_rows(chance)
    curve, at = falls(chance, rows), rows - 30
    curve[at - 5 : at] *= 10.0 ** np.arange(1, 6)
    curve[at:] = np.nan
    return Drawn({"loss": curve}, says=(("non-finite-loss", at, at),))


def constant(chance):
    return Drawn({"loss": np.full(some_rows(chance), 2.302585)}, says=(("loss-still", 0, 0),))


def constant_but_for_rounding(chance):
    rows = some_rows(chance)
    return Drawn({"loss": 2.302585 * (1 + 1e-7 * chance.standard_normal(rows))}, says=(("loss-still", 0, rows // 2),))


def constant_from_a_step_on(chance):
    curve = falls(chance, some_rows(chance))
    at = _at(chance, len(curve))
    curve[at:] = 0.69314
    return Drawn({"loss": curve}, says=(("loss-still", at, at),))


def repeats_each_epoch(chance):
    """The same batches in the same order give the same losses: no weight has changed."""
    length = int(chance.integers(7, 60))
    curve = np.tile(2.3 + 0.2 * chance.standard_normal(length), 12)[: 8 * length + 33]
    return Drawn({"loss": curve}, says=(("loss-still", 0, 0),), words=f"every {length} rows")


def repeats_from_a_step_on(chance):
    length = int(chance.integers(7, 40))
    curve, tail = falls(chance, 200), np.tile(0.6 + 0.1 * chance.standard_normal(length), 9)
    return Drawn({"loss": np.concatenate([curve, tail])}, says=(("loss-still", 200 - length, 201),))


def rate_0_from_a_step_on(chance):
    rows = some_rows(chance)
    at = _at(chance, rows)
    curve = falls(chance, rows)
    curve[at:] = curve[at] * (1 + 0.05 * chance.standard_normal(rows - at))
    return Drawn({"loss": curve, "lr": np.where(np.arange(rows) < at, 0.1, 0.0)}, says=(("zero-lr", at, at),))


def rate_0_from_the_start(chance):
    rows = some_rows(chance)
    curve = 1.4 + 0.05 * chance.standard_normal(rows)
    return Drawn({"loss": curve, "train/lr": 0.0, "grad_norm": 1.0}, says=(("zero-lr", 0, 0),))


def rate_0_of_all_groups(chance):
    rows = some_rows(chance)
    at = _at(chance, rows)
    rate, curve = np.where(np.arange(rows) < at, 0.1, 0.0), falls(chance, rows, pace=30)
    return Drawn({"loss": curve, "lr/group0": rate, "lr/group1": rate / 2}, says=(("zero-lr", at, at),))


def schedule_that_ends_long_before_the_run(chance):
    rows = some_rows(chance)
    rate = LR * np.maximum(0, 1 - np.arange(rows) / (rows // 2))
    return Drawn({"loss": falls(chance, rows, pace=30), "lr": rate}, says=(("zero-lr", rows // 2, rows // 2),))


def rate_that_jumps(chance):
    rows = some_rows(chance)
    at, curve = _at(chance, rows), falls(chance, rows, pace=9)
    curve[at:] = 9 + chance.standard_normal(rows - at)
    rate = np.where(np.arange(rows) < at, 0.01, 10.0)
    return Drawn({"loss": curve, "lr": rate}, says=(("loss-rise", at, at),), words="lr 10")


def one_of_eight_ranks_has_a_spike(chance):
    rows = some_rows(chance, 200, 300)
    ranks, at = [falls(chance, rows) for _ in range(8)], _at(chance, rows)
    ranks[5][at] = 40.0
    return Drawn({}, ranks=ranks, says=(("loss-spike", at, at),), words="rank 5")


def one_of_eight_ranks_rises(chance):
    rows = some_rows(chance, 200, 300)
    ranks, at = [falls(chance, rows, 3, 0.3, pace=12) for _ in range(8)], _at(chance, rows)
    ranks[5][at:] = 4.0 + 0.1 * chance.standard_normal(rows - at)
    return Drawn({}, ranks=ranks, says=(("loss-rise", at, at),), words="rank 5")


def all_ranks_rise(chance):
    rows = some_rows(chance, 200, 300)
    ranks, at = [falls(chance, rows, 3, 0.3, pace=12) for _ in range(4)], _at(chance, rows)
    for each in ranks:
        each[at:] = 4.0 + 0.1 * chance.standard_normal(rows - at)
    return Drawn({}, ranks=ranks, says=(("loss-rise", at, at),), words="every rank")


_HEALTHY = (
    *(smooth_decay, plateau_reached_early, noise_of_small_batches, heavy_tails, double_descent, warm_restarts),
    *(warm_restarts_without_a_rate, growing_warm_restarts, sawtooth_of_epochs, sawtooth_without_epochs),
    *(steps_of_a_schedule, fine_tuning_at_its_optimum, random_tokens, twenty_steps, three_steps, validation_alone),
    *(validation_of_what_is_learned_by_heart, accuracy_alone, two_that_compete, two_that_compete_and_their_sum),
    *(reward_with_a_loss_around_0, reward_with_a_loss_that_rises, contrastive_that_rises_first),
    *(weight_of_a_term_that_grows, weight_of_a_term_that_grows_unsaid, accumulation_that_grows, sequences_that_grow),
    *(stages_that_are_harder, tasks_in_turn, tasks_in_blocks, rate_in_cycles, rate_that_ends_at_0),
    *(rate_that_begins_at_0, rate_that_is_rounded, one_group_is_frozen, warm_up_that_rises_first, bfloat16),
    *(negative_likelihood, negative_that_rises, perplexity, mean_that_begins_at_0, sum_of_all_steps, sum_of_an_epoch),
    *(eight_healthy_ranks, shift_down, skipped_by_a_scaler, nan_and_numbers_again, late_insight, all_is_learned),
    *(dice_of_a_few_samples, slightly_harder_data, smoothed_and_wandering),
)
_TROUBLED = (
    *(diverges_exponentially, diverges_in_stairs, rate_is_too_high_from_the_start, rate_is_too_high_and_rises_gently),
    *(drifts_up, shift_up_and_stays, shift_up_with_noise, shift_above_the_start, spike_and_back, spike_at_the_end),
    *(spike_beside_an_epoch, nan_to_the_end, infinite_to_the_end, diverges_to_nan, constant),
    *(constant_but_for_rounding, constant_from_a_step_on, repeats_each_epoch, repeats_from_a_step_on),
    *(rate_0_from_a_step_on, rate_0_from_the_start, rate_0_of_all_groups, schedule_that_ends_long_before_the_run),
    *(rate_that_jumps, one_of_eight_ranks_has_a_spike, one_of_eight_ranks_rises, all_ranks_rise),
)
HEALTHY = {each.__name__.replace("_", " "): each for each in _HEALTHY}
TROUBLED = {each.__name__.replace("_", " "): each for each in _TROUBLED}
