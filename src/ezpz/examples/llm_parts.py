"""Parts of `ezpz.examples.llm`: data, sizes, how ranks share the model, and what happens before and after the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

import ezpz
from ezpz import checkpoint, train
from ezpz.errors import UsageError
from ezpz.models import LLAMA_SIZES, LlamaConfig

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ezpz.examples.llm_config import LlmConfig

logger = ezpz.get_logger("ezpz.examples.llm")


def load(args: Namespace) -> tuple[train.Tokens, dict[str, int | None]]:
    """Return the tokens to train with, and the ids that begin and end a text; texts go through the tokenizer."""
    config = args.config
    ends: dict[str, int | None] = {}
    if config.training.dataset == "random":
        tokens = train.load_tokens("random", seed=config.training.seed, vocabulary=config.model.vocab_size or 32)
    else:
        tokenizer = train.load_tokenizer(config.model.tokenizer_path)
        logger.info(f"tokenizer={tokenizer.name}: {tokenizer.size:,} words, BOS {tokenizer.bos}, EOS {tokenizer.eos}")
        ends = {"bos": tokenizer.bos, "eos": tokenizer.eos}
        tokens = train.load_tokens(
            config.training.dataset,
            folder=args.data_dir,
            path=config.training.dataset_path or None,
            tokenizer=tokenizer,
        )
    logger.info(
        f"data={tokens.name}: {tokens.origin}; {len(tokens.train):,} tokens to train, {len(tokens.test):,} to test"
    )
    return tokens, ends


def sizes(config: LlmConfig, tokens: train.Tokens) -> LlamaConfig:
    """Return the model's sizes for the data; what tensor parallelism cannot cut is refused.

    Raises:
        UsageError: The data has more different tokens than the model shall have, or sizes do not fit the mesh.
    """
    asked, different = config.model.vocab_size, tokens.vocabulary
    if asked and asked < different:
        raise UsageError(
            f"--model.vocab_size {asked} is too small: {tokens.name} has {different} different tokens (from its "
            f"tokenizer or data); expected at least {different}. Leave it out."
        )
    flavor = LLAMA_SIZES[config.model.flavor.lower()]
    model = replace(flavor, vocab_size=asked or different, max_seq_len=config.training.seq_len)
    cut = {name: getattr(model, name) for name in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    if ezpz.get_world_size() > 1:  # what fits the sizes shall fit the ranks
        cut["ranks"] = ezpz.get_world_size()
    ezpz.check_divisible(config.training.tensor_parallel_degree, **cut, seq_len=config.training.seq_len)
    return model


def strategy(config: LlmConfig, mesh: Any) -> str:
    """Return how ranks share the model: copies (ddp), shards (fsdp), or copies of shards (hsdp).

    Raises:
        UsageError: Copies alone are asked for together with tensor parallelism.
    """
    copies, shards = ezpz.degree(mesh, "dp_replicate"), ezpz.degree(mesh, "dp_shard")
    if copies > 1 and shards == 1 and config.training.tensor_parallel_degree > 1:
        raise UsageError(
            f"training.data_parallel_shard_degree is 1 with {copies} copies and tensor_parallel_degree "
            f"{config.training.tensor_parallel_degree} (from the configuration); expected shards beside tensor "
            "parallelism. Use data_parallel_replicate_degree=1 and data_parallel_shard_degree=-1."
        )
    return "fsdp" if copies == 1 else "hsdp" if shards > 1 else "ddp"


def warmup(args: Namespace) -> int:
    """Return the steps of the warm-up; one that the file has for a longer run gives way to the steps that were asked
    for.

    Raises:
        UsageError: The warm-up was typed, and is as long as the run.
    """
    asked, steps = args.config.training.warmup_steps, args.config.training.steps
    if asked < steps:
        return int(asked)
    if args.origins["training.warmup_steps"] == "the command line":
        raise UsageError(
            f"--training.warmup_steps {asked} does not fit training.steps={steps} (from "
            f"{args.origins['training.steps']}); expected 0 to {steps - 1}. Train longer, or warm up for less."
        )
    logger.info(
        f"warmup_steps={steps // 10} instead of {asked} ({args.origins['training.warmup_steps']}): {steps} steps"
    )
    return int(steps // 10)


def validation(config: LlmConfig, model: Any, tokens: train.Tokens) -> Callable[[], dict[str, float]]:
    """Return what computes the loss on held-out text."""
    training = config.training
    most = training.eval_samples * training.seq_len + 1
    held_out = train.TokenBatches(tokens.test[:most], training.seq_len, training.batch_size)

    def validate() -> dict[str, float]:
        means = train.evaluate(model, held_out.once(), train.next_token_loss)
        return {f"val_{name}": mean for name, mean in means.items()}

    return validate


def start_weights(config: LlmConfig, model: Any, layout: Any, *, verify: bool) -> None:
    """Load the weights that training begins with, if the configuration names any."""
    path = config.checkpoint.initial_load_path
    if path and config.checkpoint.initial_load_in_hf:
        checkpoint.import_hugging_face(model, path, layout)
    elif path:
        checkpoint.Checkpoints(path, model=model, verify=verify).load(path)
    if path:
        logger.info(f"weights of {path}")


def keep_weights(config: LlmConfig, model: Any, layout: Any, folder: Any, steps: int) -> None:
    """Write the last weights alone, where the configuration asks for them; training is over."""
    kept = config.checkpoint
    if kept.last_save_in_hf:
        where = checkpoint.export_hugging_face(model, folder / "hugging_face", layout, dtype=kept.export_dtype)
        logger.info(f"weights for Hugging Face: {where}")
    if kept.enable_checkpoint and kept.model_weights_only:
        model.to(getattr(torch, kept.export_dtype))
        logger.info(f"weights: {checkpoint.Checkpoints(folder / 'weights', model=model).save(steps, wait=True)}")


def profiles(args: Namespace, folder: Path | None) -> list[Any]:
    """Return what shall be profiled: what was typed, and what the file wants every ``profile_freq`` steps.

    Args:
        args: As parsed.
        folder: The run's folder; None on ranks that know of none, and write nothing.
    """
    how, every = args.config.profiling, args.config.profiling.profile_freq
    profilers = [ezpz.profile(args.profile)]
    for on, kind, name in (
        (how.enable_profiling, "torch", how.save_traces_folder),
        (how.enable_memory_snapshot, "mem", how.save_memory_snapshot_folder),
    ):
        if on:
            spec = f"{kind}:steps={every - 1},every={every}"
            profilers.append(ezpz.profile(spec, outdir=None if folder is None else folder / name))
    return profilers


def after_first(act: Callable[[], object], profilers: Sequence[Any]) -> Callable[[], None]:
    """Return what calls a function after the first step, and tells profilers of every step."""
    waiting = [act]

    def ended() -> None:
        if waiting:
            waiting.pop()()
        for profiler in profilers:
            profiler.step()

    return ended
