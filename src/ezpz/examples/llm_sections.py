"""The sections and keys of `ezpz.examples.llm`: those of the configuration files that people have, and a few of its
own.

Names and meanings are those of torchtitan's files (https://github.com/pytorch/torchtitan, before v0.2) and of programs
that grew from it. What is known there and not supported here has ``only``: the file is understood, and a value that
asks for it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from ezpz.models import LLAMA_SIZES
from ezpz.train import DTYPES, setting

FORMATS = tuple(dict.fromkeys(DTYPES.values()))
EXPORTED = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
NO_PIPELINE = (
    "the model is not cut into stages; cut it with training.tensor_parallel_degree and data_parallel_shard_degree"
)
NO_CONTEXT = (
    "no attention over a sequence that several ranks share; use sequence parallelism, part of tensor parallelism"
)
NO_FLOAT8 = "float8 needs kernels of another package; use training.mixed_precision_param = bf16"
ESTIMATE = "`ezpz simulate -n RANKS --memory SIZE --no-data COMMAND` tells what a run needs"


def _degree(value: int) -> str:
    return "" if value == -1 or value > 0 else "a whole number from 1 on, or -1 for all ranks that are left"


def _below_one(value: float) -> str:
    return "" if value < 1 else "a number from 0 to below 1"


def _recompute(text: str) -> str:
    number = text.isascii() and text.isdigit() and int(text) > 0
    return "" if number or text == "op" else "op, or a whole number from 1 on in quotes"


@dataclass(frozen=True)
class Job:
    """The run as a whole."""

    config_file: str = setting("", "TOML file of settings", in_files=False)
    dump_folder: str = setting("outputs", "folder under which runs are written; --outdir is the run's own")
    description: str = setting("default job", "what is logged first, and is in run.json")
    print_args: bool = setting(False, "print all settings and where each came from")
    use_for_integration_test: bool = setting(False, "ignored: it chooses files for the tests of another program")


@dataclass(frozen=True)
class Profiling:
    """Traces of steps."""

    enable_profiling: bool = setting(False, "trace a step every profile_freq steps")
    save_traces_folder: str = setting("profile_traces", "folder of traces inside the run's")
    profile_freq: int = setting(10, "steps from one trace to the next", least=1)
    enable_memory_snapshot: bool = setting(False, "write what holds memory, every profile_freq steps")
    save_memory_snapshot_folder: str = setting("memory_snapshot", "folder of these inside the run's")


@dataclass(frozen=True)
class Metrics:
    """What is printed, and where it goes besides."""

    log_freq: int = setting(10, "steps of one printed line", least=1)
    enable_tensorboard: bool = setting(False, "write metrics for TensorBoard too")
    save_tb_folder: str = setting(
        "tb", "folder of these", only="they stand in trackers/tensorboard of the run's folder"
    )
    enable_wandb: bool = setting(False, "send metrics to Weights & Biases too")
    disable_color_printing: bool = setting(False, "print without colours")
    rank_0_only: bool = setting(
        True, "let rank 0 alone write for TensorBoard", only="rank 0 writes, and has the values of all ranks"
    )


@dataclass(frozen=True)
class Model:
    """Sizes of the model."""

    name: str = setting("llama3", "kind of model", choices=("llama3",), spellings={"llama": "llama3"})
    flavor: str = setting("debugmodel", "sizes", choices=tuple(LLAMA_SIZES))
    norm_type: str = setting(
        "rmsnorm",
        "kind of norm",
        choices=("rmsnorm", "fused_rmsnorm", "layernorm", "np_layernorm"),
        only="the model has rmsnorm, which torch fuses itself",
    )
    tokenizer_path: str = setting("", "file or folder of a tokenizer; without one texts are read by bytes")
    vocab_size: int = setting(0, "different tokens; 0: as many as the tokenizer and the data have", least=0)


@dataclass(frozen=True)
class Optimizer:
    """How weights move."""

    name: str = setting("AdamW", "optimizer", choices=("AdamW", "Adam"))
    lr: float = setting(8e-4, "highest learning rate", above=0)
    beta1: float = setting(0.9, "decay of the mean of gradients", least=0, check=_below_one)
    beta2: float = setting(0.95, "decay of the mean of their squares", least=0, check=_below_one)
    eps: float = setting(1e-8, "what is added to the root of the squares", only="it is torch's own")
    weight_decay: float = setting(0.1, "weight decay", least=0)
    fused: bool = setting(True, "update all weights in one kernel")
    early_step_in_backward: bool = setting(
        False,
        "update weights during backward",
        only="gradients are clipped by their whole norm before any weight moves",
    )


@dataclass(frozen=True)
class Training:
    """Data, steps, precision, and how ranks share the model."""

    dataset: str = setting(
        "c4_test", "data: a name of `ezpz fetch --list`, jsonl:PATH or hf:NAME", spellings={"c4_mini": "c4_test"}
    )
    dataset_path: str | None = setting(None, "file or folder of the data, instead of a download")
    batch_size: int = setting(8, "samples of a rank in one forward pass", least=1)
    accumulate: int = setting(1, "batches whose gradients are added up before a step", least=1)
    seq_len: int = setting(2048, "tokens of one sample", least=1)
    steps: int = setting(10000, "steps to train", least=1)
    warmup_steps: int = setting(200, "steps in which the rate rises", least=0)
    max_norm: float = setting(1.0, "clip the gradients' norm; 0: do not", least=0)
    eval_freq: int = setting(0, "steps between evaluations; 0: at the end", least=0)
    eval_samples: int = setting(64, "samples of held-out text in an evaluation, at most", least=1)
    data_parallel_replicate_degree: int = setting(1, "copies of the model (HSDP)", least=1)
    data_parallel_shard_degree: int = setting(
        -1, "ranks that share one copy (FSDP); -1: all that are left", check=_degree
    )
    tensor_parallel_degree: int = setting(1, "ranks that share every layer", least=1)
    enable_loss_parallel: bool = setting(True, "leave logits cut along the vocabulary when computing the loss")
    enable_cpu_offload: bool = setting(False, "weights in the host's memory", only="weights stay on the device")
    mixed_precision_param: str = setting("bf16", "format of the forward pass", choices=FORMATS, spellings=DTYPES)
    mixed_precision_reduce: str = setting(
        "fp32", "format of sums of gradients", choices=FORMATS, spellings=DTYPES, only="gradients are summed in fp32"
    )
    dtype: str = setting(
        "fp32",
        "format of weights",
        choices=FORMATS,
        spellings=DTYPES,
        only="weights stay fp32; the forward pass has training.mixed_precision_param",
    )
    compile: bool = setting(False, "compile the blocks of the model")
    gc_freq: int = setting(50, "steps between collections of Python's garbage; 0: Python decides", least=0)
    seed: int = setting(42, "seed of weights, order of data, and dropout", least=0)
    deterministic: bool = setting(False, "use deterministic kernels only; slower")


@dataclass(frozen=True)
class Experimental:
    """What other programs try out."""

    enable_async_tensor_parallel: bool = setting(
        False,
        "overlap matrix products with their messages",
        only="it needs symmetric memory of CUDA and a compiled model",
    )
    enable_compiled_autograd: bool = setting(
        False, "compile backward", only="blocks are compiled, not the whole backward"
    )
    pipeline_parallel_degree: int = setting(1, "stages", only=NO_PIPELINE)
    pipeline_parallel_split_points: tuple[str, ...] = setting((), "first layers of stages", only=NO_PIPELINE)
    pipeline_parallel_schedule: str = setting("1F1B", "order of stages", only=NO_PIPELINE)
    pipeline_parallel_schedule_csv: str = setting("", "the same as a file", only=NO_PIPELINE)
    pipeline_parallel_microbatches: int | None = setting(None, "parts of a batch", only=NO_PIPELINE)
    context_parallel_degree: int = setting(1, "ranks that share a sequence", only=NO_CONTEXT)
    context_parallel_rotate_method: str = setting("allgather", "how they exchange it", only=NO_CONTEXT)


@dataclass(frozen=True)
class Comm:
    """Time limits of messages between ranks."""

    init_timeout_seconds: int = setting(300, "seconds that a collective may take until the first step is done", least=1)
    train_timeout_seconds: int = setting(100, "seconds that it may take from then on", least=1)
    trace_buf_size: int = setting(20000, "entries of NCCL's flight recorder; 0: off", least=0)


@dataclass(frozen=True)
class Checkpoint:
    """What is saved and what is started from."""

    enable_checkpoint: bool = setting(False, "save checkpoints")
    folder: str = setting("checkpoint", "folder of these", only="they stand in checkpoints of the run's folder")
    interval_type: str = setting("steps", "unit of interval", choices=("steps", "seconds"), spellings={"step": "steps"})
    interval: int = setting(500, "steps or seconds from one to the next", least=1)
    model_weights_only: bool = setting(False, "save the last one without the optimizer, in export_dtype")
    export_dtype: str = setting(
        "float32", "number format of exported weights", choices=tuple(EXPORTED.values())[:3], spellings=EXPORTED
    )
    async_mode: str = setting(
        "disabled",
        "write beside the training",
        choices=("disabled", "async"),
        refused={"async_with_pinned_mem": "a thread of each rank writes, not another process; use async"},
    )
    keep_latest_k: int = setting(0, "newest checkpoints to keep; 0: all", least=0)
    load_step: int = setting(-1, "step to go on from; -1: the newest", only="--resume names the checkpoint itself")
    initial_load_path: str = setting("", "weights to start from: a checkpoint, or Hugging Face's files")
    initial_load_in_hf: bool = setting(False, "these are Hugging Face's files")
    last_save_in_hf: bool = setting(False, "write the last weights as Hugging Face's files, in export_dtype")
    create_seed_checkpoint: bool = setting(
        False, "save the first weights", only="the seed alone decides the first weights, whatever the number of ranks"
    )


@dataclass(frozen=True)
class ActivationCheckpoint:
    """Memory for time: what is computed again during backward."""

    mode: str = setting(
        "selective",
        "which blocks",
        choices=("none", "selective", "full"),
        refused={"memory_budget": "no compiler decides what is computed again; use selective"},
    )
    selective_ac_option: str = setting(
        "2", "of selective: every n-th block, or op: all but costly operations", check=_recompute
    )


@dataclass(frozen=True)
class Float8:
    """Eight-bit numbers."""

    enable_float8_linear: bool = setting(False, "multiply in float8", only=NO_FLOAT8)
    enable_fsdp_float8_all_gather: bool = setting(False, "gather weights in float8", only=NO_FLOAT8)
    precompute_float8_dynamic_scale_for_fsdp: bool = setting(False, "scales of all weights at once", only=NO_FLOAT8)
    scaling_type_input: str = setting("dynamic", "scale of inputs", only=NO_FLOAT8)
    scaling_type_weight: str = setting("dynamic", "scale of weights", only=NO_FLOAT8)
    scaling_type_grad_output: str = setting("dynamic", "scale of gradients", only=NO_FLOAT8)


@dataclass(frozen=True)
class MemoryEstimation:
    """What a run would need."""

    enabled: bool = setting(False, "tell the memory instead of training", only=ESTIMATE)
    disable_fake_mode: bool = setting(False, "the same with real tensors", only=ESTIMATE)
