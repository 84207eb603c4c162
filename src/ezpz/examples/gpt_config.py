"""The settings of the character GPT: the sections and keys of wordplay's configuration, and a few more.

What wordplay's trainer prints at its start (https://github.com/saforem2/wordplay), shortened; its command lines say
``train.backend=DDP``, and ``model=NAME``, ``train=NAME``, ``optimizer=NAME`` choose one of its files:

    "train": {"backend": "DDP", "eval_interval": 100, "max_iters": 1000, "dtype": "bf16", …},
    "model": {"n_layer": 12, "n_head": 12, "n_embd": 768, "batch_size": 64, "block_size": 1024, …},
    "data": {"dataset": "shakespeare_char", "out_dir": "out-shakespeare-char", "root_path": null},
    "optimizer": {"gas": 1, "learning_rate": 0.0006, "lr_decay_iters": 600000, "min_lr": 6e-05, …}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ezpz import train
from ezpz.errors import UsageError, did_you_mean
from ezpz.models import GPTConfig

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

PROMPT = "What is an LLM?"
_BACKENDS = {"ddp": "DDP", "fsdp": "FSDP", "deepspeed": "deepspeed", "ds": "deepspeed"}
_FORMATS = tuple(dict.fromkeys(train.DTYPES.values()))
_WEIGHTS = "weights of GPT-2 belong to its own tokens, and this model reads characters"


@dataclass(frozen=True)
class TrainSection:
    """How long, how, and what is looked at meanwhile."""

    backend: str = train.setting(
        "DDP", "how ranks share the model", choices=("DDP", "FSDP", "deepspeed"), spellings=_BACKENDS
    )
    max_iters: int = train.setting(1000, "steps to train", least=1)
    warmup_iters: int = train.setting(100, "steps in which the learning rate rises", least=0)
    dtype: str = train.setting("bf16", "number format of the forward pass", choices=_FORMATS, spellings=train.DTYPES)
    compile: bool = train.setting(False, "compile the blocks of the model")
    compile_all: bool = train.setting(
        False, "compile model and loss as one graph: a longer first step, faster ones then"
    )
    seed: int = train.setting(
        42,
        "seed of weights, order of data, dropout and samples",
        least=0,
        most=2**32 - 1,
        spellings={"null": 42, "none": 42},
    )
    log_interval: int = train.setting(10, "print every N-th step; all are recorded", least=1)
    eval_interval: int = train.setting(250, "steps between evaluations, each with a sample", least=1)
    eval_iters: int = train.setting(200, "batches of all ranks that an evaluation takes of each part", least=1)
    eval_seconds: float = train.setting(
        60.0, "most seconds of an evaluation with its sample, which take less of the data then; 0: all", least=0
    )
    eval_only: bool = train.setting(False, "evaluate and sample once, and end; nothing is written")
    prompt: str = train.setting(PROMPT, "what a sample continues; empty: no samples")
    sample_tokens: int = train.setting(256, "characters of a sample", least=0)
    temperature: float = train.setting(0.8, "how bold samples are; 0: the likeliest character", least=0)
    top_k: int = train.setting(200, "draw among so many likeliest characters; 0: all", least=0)
    init_from: str = train.setting(
        "scratch",
        "scratch, or resume, which is --resume auto",
        choices=("scratch", "resume"),
        refused=dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), _WEIGHTS),
    )
    always_save_checkpoint: bool = train.setting(False, "save after every evaluation, not only after the best so far")
    save_interval: int = train.setting(0, "save every N steps instead; 0: after evaluations", least=0)
    keep: int = train.setting(3, "newest checkpoints to keep", least=1)
    async_save: bool = train.setting(False, "write checkpoints beside the training")
    activation_checkpoint: str | None = train.setting(
        None, "save memory by computing activations again", choices=("full", "selective")
    )
    use_wandb: bool = train.setting(False, "send the metrics to Weights & Biases too")
    wandb_project: str = train.setting("WordPlay", "its project, where $WANDB_PROJECT says no other")
    ds_config_path: str | None = train.setting(None, "JSON file for DeepSpeed, else one is generated")
    framework: str = train.setting(
        "pytorch", "nothing else", choices=("pytorch",), refused={"tensorflow": "ezpz trains with PyTorch"}
    )
    device: str | None = train.setting(None, "nothing", only="TORCH_DEVICE=cpu in the environment chooses the device")
    port: str | None = train.setting(None, "nothing", only="the launcher chooses it, or MASTER_PORT")
    precision: str | None = train.setting(None, "nothing", only="train.dtype says it")
    ngpus: int | None = train.setting(None, "nothing", only="`ezpz launch -n 4` says how many devices take part")


@dataclass(frozen=True)
class ModelSection:
    """Sizes of the model and of a batch."""

    n_layer: int = train.setting(12, "blocks", least=1)
    n_head: int = train.setting(12, "heads of attention, a divisor of n_embd", least=1)
    n_embd: int = train.setting(768, "width in features", least=1)
    batch_size: int = train.setting(12, "sequences of a rank in one forward pass", least=1)
    block_size: int = train.setting(1024, "characters of a sequence", least=1)
    activation: str = train.setting(
        "gelu",
        "of the MLP; wordplay's name for silu is swiglu",
        choices=("gelu", "relu", "silu"),
        spellings={"swiglu": "silu"},
    )
    dropout: float = train.setting(0.0, "part of the features that is zeroed", least=0, most=0.99)
    bias: bool = train.setting(False, "biases in linear layers and norms")
    vocab_size: int | None = train.setting(None, "number of different characters; null: what the data has", least=1)


@dataclass(frozen=True)
class DataSection:
    """What is learned, and where that is."""

    dataset: str = train.setting(
        "shakespeare_char", "shakespeare_char, a text FILE, tokens:FILE.bin, or a folder of root_path"
    )
    root_path: str | None = train.setting(None, "folder with a folder per prepared data set; null: --data_dir")
    out_dir: str | None = train.setting(None, "the run's folder, as --outdir")


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW, and its learning rate over the steps."""

    name: str = train.setting("AdamW", "nothing else", choices=("AdamW",))
    learning_rate: float = train.setting(6e-4, "highest learning rate", above=0)
    min_lr: float = train.setting(6e-5, "where the learning rate ends", least=0)
    decay_lr: bool = train.setting(True, "warm up, then fall along a cosine; otherwise the rate is constant")
    lr_decay_iters: int = train.setting(600_000, "step at which min_lr is reached", least=1)
    weight_decay: float = train.setting(0.1, "of matrices and embeddings", least=0)
    beta1: float = train.setting(0.9, "of AdamW", least=0, most=0.999999)
    beta2: float = train.setting(0.95, "of AdamW", least=0, most=0.999999)
    grad_clip: float = train.setting(1.0, "largest norm of the gradients; 0: do not clip", least=0)
    gas: int = train.setting(1, "batches whose gradients are added up before a step", least=1)


@dataclass(frozen=True)
class GptConfig:
    """The whole configuration."""

    train: TrainSection
    model: ModelSection
    data: DataSection
    optimizer: OptimizerSection


def _preset(sizes: tuple[int, int, int, int, int], **more: object) -> dict[str, object]:
    """Return the keys of a model of these sizes, and others, whose names have ``__`` where keys have a dot."""
    names = ("n_layer", "n_head", "n_embd", "block_size", "batch_size")
    return {f"model.{name}": size for name, size in zip(names, sizes, strict=True)} | {
        key.replace("__", "."): value for key, value in more.items()
    }


# The values of wordplay's files of the same names, but for debug. Parameters are those with a vocabulary of 65, without
# positions.
_GPT_2 = {
    "train__max_iters": 10_000,
    "train__warmup_iters": 2000,
    "train__eval_interval": 2000,
    "train__eval_iters": 100,
}
PRESETS: dict[str, dict[str, object]] = {
    "debug": _preset(  # 402,176: better than pairs of characters in a minute on two CPU cores, see docs/gpt.md
        (2, 4, 128, 64, 32),
        train__max_iters=300,
        train__warmup_iters=30,
        train__eval_interval=100,
        train__eval_iters=16,
        train__dtype="fp32",
        optimizer__learning_rate=5e-3,
        optimizer__min_lr=5e-4,
        optimizer__lr_decay_iters=300,
        optimizer__beta2=0.99,
    ),
    "shakespeare": _preset(  # 10,646,784
        (6, 6, 384, 256, 64),
        model__dropout=0.2,
        train__max_iters=5000,
        optimizer__learning_rate=1e-3,
        optimizer__min_lr=1e-4,
        optimizer__lr_decay_iters=5000,
        optimizer__beta2=0.99,
    ),
    "gpt2": _preset((12, 12, 768, 1024, 12), **_GPT_2),  # 85,003,776
    "gpt2_medium": _preset((24, 16, 1024, 1024, 4), **_GPT_2),  # 302,106,624
    "gpt2_large": _preset((36, 20, 1280, 1024, 4), **_GPT_2),  # 707,965,440
    "gpt2_xl": _preset((48, 25, 1600, 1024, 1), **{**_GPT_2, "train__eval_iters": 200}),  # 1,474,819,200
}
_DATA = {"shakespeare": "shakespeare_char", "owt": "openwebtext", "yelp": "yelp_review_full"}


SMALL = "debug"  # what a CPU trains when nothing else is asked for


def options(device_type: str = "") -> train.Parser:
    """Return the parser: settings in sections and the options of every run; on a ``cpu`` the small preset is used."""
    groups = {section: _choice(section) for section in ("train", "model", "optimizer")}
    return train.make_settings_parser(
        "ezpz.examples.gpt",
        "Train a GPT on the characters of a text, and let it write. The word `prepare` in front writes the data as "
        "files, and ends.",
        GptConfig,
        files=("--config",),
        groups={**groups, "data": lambda name: {"data.dataset": _DATA.get(name, name)}},
        presets=PRESETS,
        fallback=SMALL if device_type == "cpu" else "",
        sizes=("train", "model", "optimizer"),
        name="gpt",
    )


def _choice(section: str) -> Callable[[str], dict[str, object]]:
    def chosen(name: str) -> dict[str, object]:
        if name not in PRESETS:
            raise UsageError(
                f"unknown {section}={name} (from the command line); expected one of {', '.join(PRESETS)}."
                f"{did_you_mean(name, PRESETS)}"
            )
        return {key: value for key, value in PRESETS[name].items() if key.startswith(f"{section}.")}

    return chosen


def configure(args: Namespace) -> GPTConfig:
    """Return the model's sizes; what does not fit together is refused before anything starts.

    Raises:
        UsageError: Sizes or learning rates do not fit each other, or DeepSpeed shall save or resume.
    """
    config: GptConfig = args.config
    how, warmup = config.optimizer, config.train.warmup_iters
    resumes = args.resume != "none" or config.train.init_from == "resume"
    if config.train.backend == "deepspeed" and (
        resumes or config.train.save_interval or config.train.always_save_checkpoint
    ):
        raise UsageError(
            "train.backend=deepspeed neither saves nor resumes: its optimizer's state is in a form of its own (from "
            "the configuration); expected no --resume, train.init_from=resume, train.save_interval or "
            "train.always_save_checkpoint. Use train.backend=FSDP."
        )
    if config.train.compile_all and config.train.backend != "DDP":
        raise UsageError(
            f"train.compile_all compiles a model that is whole on each rank, and train.backend={config.train.backend} "
            "cuts it (from the configuration); expected DDP. Use train.compile, which compiles its blocks."
        )
    if how.min_lr > how.learning_rate:
        raise UsageError(
            f"optimizer.min_lr={how.min_lr} is above optimizer.learning_rate={how.learning_rate} (from the "
            f"configuration); expected at most that. Write optimizer.min_lr={how.learning_rate / 10:g}."
        )
    if how.decay_lr and warmup >= how.lr_decay_iters:
        raise UsageError(
            f"train.warmup_iters={warmup} is not below optimizer.lr_decay_iters={how.lr_decay_iters} (from the "
            f"configuration); expected 0 to {how.lr_decay_iters - 1}. Warm up for less, or let the rate fall for "
            "longer."
        )
    names = ("n_layer", "n_head", "n_embd", "block_size", "dropout", "bias", "activation")
    return GPTConfig(config.model.vocab_size or 1, **{name: getattr(config.model, name) for name in names})
