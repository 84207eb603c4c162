"""The configuration of `ezpz.examples.llm`: sections, other names of their keys, presets, and their parser."""

from __future__ import annotations

from dataclasses import dataclass

from ezpz import train
from ezpz.examples import llm_sections as sections  # noqa: TC001  # annotations are read when the program runs


@dataclass(frozen=True)
class LlmConfig:
    """All settings of `ezpz.examples.llm`, by the sections of its files."""

    job: sections.Job
    profiling: sections.Profiling
    metrics: sections.Metrics
    model: sections.Model
    optimizer: sections.Optimizer
    training: sections.Training
    experimental: sections.Experimental
    comm: sections.Comm
    checkpoint: sections.Checkpoint
    activation_checkpoint: sections.ActivationCheckpoint
    float8: sections.Float8
    memory_estimation: sections.MemoryEstimation


def _moved(section: str, own: str, *keys: str) -> dict[str, str]:
    return {f"{section}.{key}": f"{own}.{key}" for key in keys}


_DEGREES = ("data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree")
_EXPERIMENTS = (
    "enable_async_tensor_parallel",
    "pipeline_parallel_degree",
    "pipeline_parallel_split_points",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "context_parallel_degree",
    "context_parallel_rotate_method",
)
# Names that the same things have in older and newer files of torchtitan and of programs that grew from it.
ALIASES = {
    "training.local_batch_size": "training.batch_size",
    "training.data_parallel_degree": "training.data_parallel_shard_degree",
    "training.disable_loss_parallel": "not training.enable_loss_parallel",
    **_moved("training", "experimental", *_EXPERIMENTS, "pipeline_parallel_microbatches", "enable_compiled_autograd"),
    **_moved("parallelism", "training", *_DEGREES, "enable_cpu_offload"),
    **_moved("parallelism", "experimental", *_EXPERIMENTS, "enable_compiled_autograd"),
    "parallelism.disable_loss_parallel": "not training.enable_loss_parallel",
    "lr_scheduler.warmup_steps": "training.warmup_steps",
    "compile.enable": "training.compile",
    **_moved("debug", "training", "seed", "deterministic"),
    "job.print_config": "job.print_args",
    "metrics.save_for_all_ranks": "not metrics.rank_0_only",
    "model.hf_assets_path": "model.tokenizer_path",
    "checkpoint.enable": "checkpoint.enable_checkpoint",
    "checkpoint.last_save_model_only": "checkpoint.model_weights_only",
    "memory_estimation.enable": "memory_estimation.enabled",
}

PRESETS: dict[str, dict[str, object]] = {
    # Bytes of the text that ships with ezpz: two CPU cores learn its letters in less than a minute.
    "debug": {
        "metrics.log_freq": 10,
        "model.flavor": "debug",
        "optimizer.lr": 2e-2,
        "training.dataset": "shakespeare",
        "training.batch_size": 32,
        "training.seq_len": 64,
        "training.steps": 100,
        "training.warmup_steps": 10,
        "training.eval_samples": 1024,
        "training.mixed_precision_param": "float32",
        "activation_checkpoint.mode": "none",
    },
    # To time a machine: random tokens can only be memorized.
    "300m": {
        "model.flavor": "300m",
        "model.vocab_size": 32000,
        "training.dataset": "random",
        "training.batch_size": 8,
        "training.seq_len": 1024,
        "training.steps": 100,
        "training.warmup_steps": 10,
        "activation_checkpoint.mode": "none",
    },
    "8b": {
        "model.flavor": "8B",
        "model.vocab_size": 128256,
        "optimizer.lr": 3e-4,
        "training.dataset": "random",
        "training.batch_size": 1,
        "training.seq_len": 2048,
        "training.steps": 50,
        "training.warmup_steps": 10,
        "activation_checkpoint.selective_ac_option": "op",
    },
}


def options() -> train.Parser:
    """Return the parser of `ezpz.examples.llm`; without a file or a preset it gives the debug preset."""
    return train.make_settings_parser(
        "ezpz.examples.llm",
        "Train a Llama-style language model as a TOML file says.",
        LlmConfig,
        files=("--job.config_file", "--config"),
        aliases=ALIASES,
        presets=PRESETS,
        fallback="debug",
        name="llm",
    )
