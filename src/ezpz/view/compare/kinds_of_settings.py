"""Classify settings by the words of their names: ``attn_pdrop`` is a dropout, ``lr-decay-iters`` a schedule.

Trainers name the same thing in many ways. So a name is split into words (``hiddenDropout``, ``hidden-dropout`` and
``hidden_dropout`` are two each), and the first rule that fits decides.
"""

from __future__ import annotations

from enum import Enum

from ezpz.track.names import words_of


class Kind(Enum):
    """Kinds of settings; the value is how a verdict names them."""

    STOCHASTIC = "stochastic layers"
    SCHEDULE = "learning-rate schedule"
    OPTIMIZER = "optimizer"
    DTYPE = "dtype"
    ATTENTION = "attention backend"
    MODEL = "model"
    MODULE = "model settings"
    BATCH = "batch"
    DATA = "data"
    WORLD = "world size"
    SEED = "seed"
    NUMERICS = "numerics flags"
    LENGTH = "length of training"
    OTHER = "other settings"
    NEVER = "records"


_NUMERICS = {"tf32", "deterministic", "determinism", "cudnn", "matmul", "foreach", "fused", "capturable", "compile"}
_DTYPES = {"bf16", "fp16", "fp8", "fp32", "half", "bfloat16", "float16", "float32", "amp", "autocast"}
_OPTIMIZER = {"lr", "betas", "beta1", "beta2", "eps", "momentum", "nesterov", "wd", "clip", "clipping", "muon"}
_RECORDS = {
    *("outdir", "output", "outputs", "folder", "dir", "path", "file", "name", "host", "hostname", "hosts", "node"),
    *(
        "nodes",
        "nodelist",
        "log",
        "logs",
        "logging",
        "interval",
        "time",
        "date",
        "id",
        "jobid",
        "job",
        "port",
        "address",
    ),
    *("user", "home", "cwd", "pwd", "argv", "git", "commit", "tracker", "trackers", "wandb", "tensorboard", "mlflow"),
    *("save", "checkpoint", "ckpt", "plot", "plots", "verbose", "profile", "memory", "capacity", "addr", "tmpdir"),
    *("resume", "every", "tags", "notes", "project", "entity", "device", "devices", "checksum", "group"),
}
_MODEL = {"layers", "layer", "hidden", "heads", "head", "width", "depth", "vocab", "ffn", "activation", "model", "dim"}
_PARALLEL = {
    "world",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "ranks",
    "fsdp",
    "ddp",
    "zero",
    "shard",
    "sharding",
    "ngpus",
    "nproc",
}


def kind_of(name: str) -> Kind:
    """Return the kind of the setting of a dotted name."""
    words = words_of(name)
    have = set(words)
    text = "_".join(words)
    rules = (
        (Kind.NEVER, "checksum" in have),
        (Kind.SEED, bool(have & {"seed", "seeds", "rng"})),
        (Kind.STOCHASTIC, _is_stochastic(text, have)),
        (Kind.NUMERICS, bool(have & _NUMERICS)),
        (Kind.SCHEDULE, _is_schedule(text, have)),
        (
            Kind.BATCH,
            "batch" in text or "accum" in text or have >= {"grad", "acc"} or have & {"bs", "mbs", "gbs", "gas"},
        ),
        (
            Kind.OPTIMIZER,
            "optim" in text or bool(have & _OPTIMIZER) or "learning_rate" in text or "weight_decay" in text,
        ),
        (Kind.DTYPE, "dtype" in text or "precision" in text or "loss_scale" in text or bool(have & _DTYPES)),
        (Kind.ATTENTION, any(part in text for part in ("attn", "attention", "flash", "sdpa"))),
        (Kind.DATA, any(part in text for part in ("data", "corpus", "tokenizer", "shuffle", "split"))),
        (Kind.WORLD, "parallel" in text or bool(have & _PARALLEL)),
        (Kind.LENGTH, bool(have & {"steps", "iters", "iterations", "epochs"})),
        (Kind.NEVER, bool(have & _RECORDS) and "model" not in have),
        (Kind.MODEL, bool(have & _MODEL) or "init" in have),
    )
    return next((kind for kind, fits in rules if fits), Kind.OTHER)


def _is_stochastic(text: str, have: set[str]) -> bool:
    if any(part in text for part in ("dropout", "pdrop", "stochastic", "layerdrop", "droppath")):
        return True
    return "drop" in have and "last" not in have  # drop_last is about batches


def _is_schedule(text: str, have: set[str]) -> bool:
    if any(part in text for part in ("sched", "warmup", "cooldown", "anneal")):
        return True
    if "lr" in have and have & {"min", "max", "end", "final"}:
        return True
    return "decay" in have and not have & {"weight", "ema", "wd"}
