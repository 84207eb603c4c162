"""The line of a step: what is on it, in which order, with units, and never wider than a terminal of 80 columns."""

import math

from ezpz.train.step_lines import COLUMNS, step_lines

TIMES = {"dtd": 0.001, "dtf": 0.01, "dtb": 0.01, "dto": 0.001, "lr": 1e-3, "grad_norm": 2.0, "memory_gib": 1.0}
DIGITS = {"iter": 10, "loss": 1.790161, "accuracy": 0.609375, "dt": 0.0192042, **TIMES, "sps": 6665.2}


def test_a_line_has_the_step_the_loss_the_time_and_one_rate_with_units():
    assert step_lines(DIGITS) == ["iter=10 loss=1.7902 accuracy=0.6094 dt=0.0192 s sps=6665 samples/s"]


def test_tokens_stand_for_samples_and_no_rate_is_said_twice():
    row = {"iter": 3, "loss": 2.5, "dt": 0.5, "sps": 8.0, "sps_per_gpu": 4.0, "tps": 123456.7, "tps_per_gpu": 61728.0}
    assert step_lines({**row, "mfu": 41.234}) == ["iter=3 loss=2.5 dt=0.5 s tps=123457 tok/s mfu=41.2 %"]


def test_what_was_evaluated_has_a_line_of_its_own_where_one_is_too_short():
    evaluated = {"val_loss": 0.2103, "val_accuracy": 0.94512, "dt_eval": 0.3}
    assert step_lines({**DIGITS, **evaluated}, evaluated) == [
        "iter=10 loss=1.7902 accuracy=0.6094 dt=0.0192 s sps=6665 samples/s",
        "iter=10 val_loss=0.2103 val_accuracy=0.9451",
    ]
    assert step_lines({"iter": 1, "loss": 2.0, "val_loss": 3.0}, {"val_loss": 3.0}) == ["iter=1 loss=2 val_loss=3"]
    assert step_lines({"iter": 1, "loss": 2.0, "dt_save": 3.0}, {"dt_save": 3.0}) == ["iter=1 loss=2"]


def test_an_epoch_has_its_losses_first():
    row = {"epoch": 2, "dt": 2.31216, "train_loss": 1.31795, "test_loss": 0.280848, "test_acc": 91.6667, "sps": 620.1}
    (line,) = step_lines(row)
    assert line == "epoch=2 train_loss=1.3179 test_loss=0.28085 test_acc=91.67 dt=2.31 s"


def test_no_line_is_wider_than_a_terminal(subtests):
    for value in (math.nan, math.inf, -1e-300, 1e300, 0.0, 123456789.123):
        with subtests.test(value=value):
            names = ["loss", "accuracy", "dt", "sps", "tps", "mfu", "val_loss", "a_metric_of_the_user", "grad/scale"]
            row = {"iter": 10**9, **dict.fromkeys(names, value), "note": "x" * 100, "many": [1.0] * 500}
            for between in (None, {"val_loss": value}):
                lines = step_lines(row, between)
                assert all(len(line) <= COLUMNS for line in lines), lines
                assert all(line.startswith("iter=1000000000 ") for line in lines)


def test_a_row_without_a_step_is_a_line_too():
    assert step_lines({"loss": 1.0}) == ["loss=1"]
    assert step_lines({"iter": 4}) == ["iter=4"]
