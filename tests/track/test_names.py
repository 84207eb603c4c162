"""What a metric measures, by its name: one table for the report, the terminal, compare and runs."""

from __future__ import annotations

from ezpz.track.names import (
    group_names,
    is_counter,
    is_learning_rate,
    is_loss,
    is_loss_term,
    is_memory,
    is_optimizer,
    is_step_time,
    is_throughput,
    is_time,
    is_validation,
    main_loss,
    main_throughput,
    order_of,
    part_of_step,
    unit,
    words_of,
)

TESTS = {
    "counter": is_counter,
    "loss": is_loss,
    "memory": is_memory,
    "optimizer": is_optimizer,
    "rate": is_learning_rate,
    "step": is_step_time,
    "term": is_loss_term,
    "throughput": is_throughput,
    "time": is_time,
    "validation": is_validation,
}
# name -> everything that it is, and its unit behind "|"
METRICS = {
    "loss": "loss",
    "train/loss": "loss",
    "train_loss": "loss",
    "trainLoss": "loss",
    "Loss/train": "loss",
    "lm loss": "loss",
    "lm_loss": "loss",
    "train_loss_step": "loss",
    "val_loss": "loss validation",
    "val/loss": "loss validation",
    "eval/loss": "loss validation",
    "evalLoss": "loss validation",
    "validation/mean_loss": "loss validation",
    "aux_loss": "term",
    "moe/load_balancing_loss": "term",
    "z_loss": "term",
    "ce_loss": "term",
    "latest_loss": "term",
    "device/loss": "term",
    "nll": "term",
    "perplexity": "term",
    "val/ppl": "term validation",
    "eval_loss_std": "term validation",
    "loss_scale": "optimizer",
    "grad_norm": "optimizer",
    "lr": "optimizer rate",
    "train/lr": "optimizer rate",
    "lr/group0": "optimizer rate",
    "lr-AdamW": "optimizer rate",
    "learning_rate": "optimizer rate",
    "learningRate": "optimizer rate",
    "update_rate": "",
    "rate": "",
    "tps": "throughput|tok/s",
    "tps_per_gpu": "throughput|tok/s",
    "tokens_per_sec": "throughput|tok/s",
    "tokens_per_second_per_gpu": "throughput|tok/s",
    "train/tokens/s": "throughput|tok/s",
    "throughput(tps)": "throughput|tok/s",
    "sequences_per_second": "throughput|seq/s",
    "steps_per_second": "throughput|it/s",
    "it/s": "throughput|it/s",
    "sps": "throughput|samples/s",
    "samples/s": "throughput|samples/s",
    "train_samples_per_second": "throughput|samples/s",
    "eval_samples_per_second": "throughput validation|samples/s",
    "throughput": "throughput|/s",
    "mfu": "throughput|%",
    "mfu(%)": "throughput|%",
    "TFLOPs": "throughput|TFLOP/s",
    "tokens_per_gpu": "",
    "dt": "step time|s",
    "train/dt": "step time|s",
    "step_time": "step time|s",
    "time_per_step": "step time|s",
    "elapsed_time_per_iteration": "step time|s",
    "dtf": "time|s",
    "time/data": "time|s",
    "fwd_time": "time|s",
    "t_forward": "time|s",
    "dt_save": "time|s",
    "seconds_per_iteration": "time|s",
    "latency_ms": "time|ms",
    "eval_seconds": "time validation|s",
    "overtime": "",
    "timestamp": "",
    "width": "",
    "bandwidth": "",
    "memory_gib": "memory|GiB",
    "memory/max_active(GiB)": "memory|GiB",
    "max_mem_gb": "memory|GB",
    "peak_mem_mb": "memory|MB",
    "mem/peak": "memory",
    "rss": "memory",
    "accuracy": "",
    "val/accuracy": "validation",
    "temperature": "",
    "model/params": "",
    "tokens": "",
    "reward": "",
    "step": "counter",
    "train/epoch": "counter",
}


def test_a_metric_is_what_its_name_says(subtests):
    for name, told in METRICS.items():
        with subtests.test(name):
            kinds, _, shown = told.partition("|")
            assert " ".join(sorted(kind for kind, fits in TESTS.items() if fits(name))) == kinds
            assert unit(name) == shown


def test_no_metric_has_two_places():
    """A name is a loss, a term of one, a throughput, a time, memory or of the optimizer, and no two of these."""
    exclusive = ("loss", "term", "throughput", "time", "memory", "optimizer", "counter")
    assert all(sum(kind in kinds.partition("|")[0].split() for kind in exclusive) <= 1 for kinds in METRICS.values())


def test_metrics_are_grouped_as_the_report_shows_them():
    expected = {
        "loss": "loss train/loss val_loss eval/mean_loss loss/train",
        "throughput": "sps tps tps_per_gpu tokens_per_sec train/samples_per_second mfu tflops",
        "time": "dt dtf dtb step_time time/data data_time dt_forward forward_time dto dtc",
        "memory": "memory_allocated mem/peak max_mem_gb rss",
        "optimizer": "lr learning_rate lr/group0 grad_norm loss_scale",
        "other": "aux_loss accuracy overtime temperature model/params timestamp",
    }
    names = " ".join(expected.values()).split()
    assert {group: " ".join(held) for group, held in group_names(names).items()} == expected
    assert [part_of_step(name) for name in ("dtd", "time/data", "fwd_time", "dt_optim", "dt_comm", "dt")] == [
        *("data", "data", "forward", "optimizer", "comm"),
        None,
    ]


def test_people_look_at_losses_first_then_throughput_then_times():
    names = ["lr", "dt", "sps", "aux_loss", "loss"]
    assert sorted(names, key=order_of) == ["loss", "aux_loss", "sps", "dt", "lr"]


LOSSES = [
    (["val/loss", "train/loss"], "train/loss"),
    (["train/loss", "loss"], "loss"),
    (["aux_loss", "train_loss", "val_loss"], "train_loss"),
    (["aux_loss", "val_loss"], "val_loss"),
    (["lr", "ce_loss"], "ce_loss"),
    (["lm loss", "lr"], "lm loss"),
    (["loss_scale", "accuracy"], None),
    ([], None),
]


def test_a_run_has_one_loss(subtests):
    for names, chosen in LOSSES:
        with subtests.test(" ".join(names)):
            assert main_loss(names) == chosen


THROUGHPUTS = [
    (["dt", "sps", "tps"], ("tps", False)),
    (["lr", "train/dt"], ("train/dt", True)),
    (["Train/Tokens_per_sec"], ("Train/Tokens_per_sec", False)),
    (["mfu", "loss"], None),
]


def test_a_run_has_one_throughput(subtests):
    for names, chosen in THROUGHPUTS:
        with subtests.test(" ".join(names)):
            assert main_throughput(names) == chosen


def test_words_are_found_in_every_spelling():
    names = ("hidden_dropout", "hidden-dropout", "hiddenDropout", "Hidden (dropout)")
    assert [words_of(name) for name in names] == [["hidden", "dropout"]] * 4
    assert [words_of(name) for name in ("TFLOPs", "memGB", "useAMP", "LRScheduler", "lr0", "memory(GiB)")] == [
        *(["tflops"], ["mem", "gb"], ["use", "amp"], ["lr", "scheduler"], ["lr0"], ["memory", "gib"])
    ]
