"""What a metric measures, by its name: one table for the report, the terminal, compare and runs."""

from ezpz.track import names as meaning

KINDS = ("counter", "loss", "memory", "optimizer", "throughput", "time", "validation")
TESTS = {kind: getattr(meaning, f"is_{kind}") for kind in KINDS}
TESTS |= {"rate": meaning.is_learning_rate, "step": meaning.is_step_time, "term": meaning.is_loss_term}
# Everything that names are, and their unit behind "|" -> the names.
GROUPS = {
    "loss": "loss, train/loss, train_loss, trainLoss, Loss/train, lm loss, lm_loss, train_loss_step",
    "loss validation": "val_loss, val/loss, eval/loss, evalLoss, validation/mean_loss",
    "term": ("aux_loss, moe/load_balancing_loss, z_loss, ce_loss, latest_loss, device/loss, nll, perplexity"),
    "term validation": "val/ppl, eval_loss_std",
    "optimizer": "loss_scale, grad_norm",
    "optimizer rate": "lr, train/lr, lr/group0, lr-AdamW, learning_rate, learningRate",
    "": (
        "update_rate, rate, tokens_per_gpu, overtime, timestamp, width, bandwidth, accuracy, "
        "temperature, model/params, tokens, reward"
    ),
    "throughput|tok/s": (
        "tps, tps_per_gpu, tokens_per_sec, tokens_per_second_per_gpu, train/tokens/s, throughput(tps)"
    ),
    "throughput|seq/s": "sequences_per_second",
    "throughput|it/s": "steps_per_second, it/s",
    "throughput|samples/s": "sps, samples/s, train_samples_per_second",
    "throughput validation|samples/s": "eval_samples_per_second",
    "throughput|/s": "throughput",
    "throughput|%": "mfu, mfu(%)",
    "throughput|TFLOP/s": "TFLOPs",
    "step time|s": "dt, train/dt, step_time, time_per_step, elapsed_time_per_iteration",
    "time|s": "dtf, time/data, fwd_time, t_forward, dt_save, seconds_per_iteration",
    "time|ms": "latency_ms",
    "time validation|s": "eval_seconds",
    "memory|GiB": "memory_gib, memory/max_active(GiB)",
    "memory|GB": "max_mem_gb",
    "memory|MB": "peak_mem_mb",
    "memory": "mem/peak, rss",
    "validation": "val/accuracy",
    "counter": "step, train/epoch",
}
METRICS = {name: told for told, names in GROUPS.items() for name in names.split(", ")}


def test_a_metric_is_what_its_name_says_and_has_one_place():
    found = {name: " ".join(sorted(kind for kind, fits in TESTS.items() if fits(name))) for name in METRICS}
    units = {name: meaning.unit(name) for name in METRICS}
    assert {name: kinds + f"|{units[name]}" * bool(units[name]) for name, kinds in found.items()} == METRICS
    exclusive = ("loss", "term", "throughput", "time", "memory", "optimizer", "counter")
    assert all(sum(kind in kinds.partition("|")[0].split() for kind in exclusive) <= 1 for kinds in METRICS.values())


def test_metrics_are_grouped_and_ordered_as_people_look_at_them():
    expected = {
        "loss": "loss train/loss val_loss eval/mean_loss loss/train",
        "throughput": "sps tps tps_per_gpu tokens_per_sec train/samples_per_second mfu tflops",
        "time": "dt dtf dtb step_time time/data data_time dt_forward forward_time dto dtc",
        "memory": "memory_allocated mem/peak max_mem_gb rss",
        "optimizer": "lr learning_rate lr/group0 grad_norm loss_scale",
        "other": "aux_loss accuracy overtime temperature model/params timestamp",
    }
    names = " ".join(expected.values()).split()
    assert {group: " ".join(held) for group, held in meaning.group_names(names).items()} == expected
    assert [meaning.part_of_step(name) for name in ("dtd", "time/data", "fwd_time", "dt_optim", "dt_comm", "dt")] == [
        *("data", "data", "forward", "optimizer", "comm"),
        None,
    ]
    names = ["lr", "dt", "sps", "aux_loss", "loss"]
    assert sorted(names, key=meaning.order_of) == ["loss", "aux_loss", "sps", "dt", "lr"]


def test_a_run_has_one_loss_and_one_throughput():
    chosen = {
        ("val/loss", "train/loss"): "train/loss",
        ("train/loss", "loss"): "loss",
        ("aux_loss", "train_loss", "val_loss"): "train_loss",
        ("aux_loss", "val_loss"): "val_loss",
        ("lr", "ce_loss"): "ce_loss",
        ("lm loss", "lr"): "lm loss",
        ("loss_scale", "accuracy"): None,
        (): None,
    }
    assert {names: meaning.main_loss(names) for names in chosen} == chosen
    chosen = {
        ("dt", "sps", "tps"): ("tps", False),
        ("lr", "train/dt"): ("train/dt", True),
        ("Train/Tokens_per_sec",): ("Train/Tokens_per_sec", False),
        ("mfu", "loss"): None,
    }
    assert {names: meaning.main_throughput(names) for names in chosen} == chosen


def test_words_are_found_in_every_spelling():
    names = ("hidden_dropout", "hidden-dropout", "hiddenDropout", "Hidden (dropout)")
    assert [meaning.words_of(name) for name in names] == [["hidden", "dropout"]] * 4
    assert [meaning.words_of(name) for name in ("TFLOPs", "memGB", "useAMP", "LRScheduler", "lr0", "memory(GiB)")] == [
        *(["tflops"], ["mem", "gb"], ["use", "amp"], ["lr", "scheduler"], ["lr0"], ["memory", "gib"])
    ]
