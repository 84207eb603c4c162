"""Train a Llama-style language model as a TOML file says, on any mesh of ranks.

    launch python3 -m ezpz.examples.llm                                                    # a minute on two CPU cores
    launch python3 -m ezpz.examples.llm --job.config_file llama3_8b.toml --training.seq_len=2048 --outdir runs/8b
    ezpz simulate -n 8 --memory 40GB --no-data python3 -m ezpz.examples.llm --config llama3_8b.toml    # does it fit?

Sections and keys are those of torchtitan's files (`ezpz.examples.llm_config`); anything in them can be given on the
command line, which counts more than the file. docs/llm.md explains the lines that it prints.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import ezpz
from ezpz import checkpoint, train
from ezpz.examples.llm_config import options
from ezpz.examples.llm_parts import (
    after_first,
    keep_weights,
    load,
    profiles,
    sizes,
    start_weights,
    strategy,
    validation,
    warmup,
)
from ezpz.models import Llama, llama_layout

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from ezpz.examples.llm_config import LlmConfig
    from ezpz.models import LlamaConfig

logger = ezpz.get_logger("ezpz.examples.llm")


def build(config: LlmConfig, model: LlamaConfig, mesh: Any, *, draw: bool) -> tuple[Any, train.Cost]:
    """Return the model, ready for all ranks, and what one sample costs; its weights are not drawn before a load."""
    training, recompute = config.training, config.activation_checkpoint
    with torch.device("meta"):  # no memory yet: each rank will hold its own part only
        network = Llama(model)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    logger.info(f"building {config.model.name} {config.model.flavor} with {model}")
    logger.info(f"model\n{train.summarize(network)}")
    logger.info(f"Model {config.model.name} {config.model.flavor} size: {parameters:,} total parameters")
    multiplied = train.parameters_for_flops(network)
    per_token = train.transformer_flops(multiplied, model.n_layers, model.n_heads, model.head_dim, training.seq_len)
    option = recompute.selective_ac_option
    again = {"none": None, "full": "full", "selective": int(option) if option.isdigit() else option}[recompute.mode]
    dtype = training.mixed_precision_param
    wrapped = ezpz.wrap_model(
        network,
        strategy(config, mesh),
        mesh,
        dtype=dtype,
        compile=training.compile,
        activation_checkpoint=again,
        tp_plan=ezpz.llama_plan(loss_parallel=training.enable_loss_parallel),
        seed=training.seed,
        draw=draw,
    )
    return wrapped, train.Cost(per_token * training.seq_len, tokens_per_sample=training.seq_len, dtype=dtype)


def set_up(args: Namespace) -> tuple[Any, Path | None, Path | None]:
    """Become a rank; return the mesh, the run's folder if it is known already, and the checkpoint to continue from."""
    config = args.config
    if config.metrics.disable_color_printing:
        os.environ.pop("FORCE_COLOR", None)  # the log, the tables and the plots all go by these two
        os.environ["NO_COLOR"] = "1"
    logger.info(f"Starting job: {config.job.description}")
    if config.comm.trace_buf_size:
        if "EZPZ_COLLECTIVES" in os.environ and os.environ.get("TORCH_FR_BUFFER_SIZE") == "256":  # of `launch`
            del os.environ["TORCH_FR_BUFFER_SIZE"]
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(config.comm.trace_buf_size))  # torch's flight recorder
    ezpz.setup_torch(
        seed=config.training.seed,
        timeout=config.comm.init_timeout_seconds,
        tensor_parallel_size=config.training.tensor_parallel_degree,
        dp_replicate=max(1, config.training.data_parallel_replicate_degree),
    )
    if config.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS refuses
        torch.use_deterministic_algorithms(True)
    mesh = ezpz.init_mesh(
        dp_replicate=config.training.data_parallel_replicate_degree,
        dp_shard=config.training.data_parallel_shard_degree,
        tp=config.training.tensor_parallel_degree,
    )
    root = Path(config.job.dump_folder).expanduser()
    outdir, begin = checkpoint.choose(
        args.resume, name=args.name, outdir=args.outdir, root=str(root), verify=not args.no_verify
    )
    if outdir is None and root != Path("outputs"):
        outdir = root / args.name / ezpz.broadcast(ezpz.get_timestamp())
    train.log_setup(args)
    return mesh, outdir, begin


def make_optimizer(config: LlmConfig, model: Any, warm: int) -> tuple[Any, Any]:
    """Return the optimizer, and its schedule: a rise of ``warm`` steps, then a fall in a straight line to 0."""
    how = config.optimizer
    options: dict[str, Any] = {"lr": how.lr, "betas": (how.beta1, how.beta2), "fused": None if how.fused else False}
    if how.name == "AdamW":
        optimizer = ezpz.make_adamw(model, weight_decay=how.weight_decay, **options)
    else:
        groups = ezpz.decay_groups(model, how.weight_decay)
        optimizer = ezpz.make_optimizer(model, torch.optim.Adam, params=groups, **options)
    return optimizer, train.make_schedule(optimizer, "linear", steps=config.training.steps, warmup=warm)


def loop_options(config: LlmConfig) -> dict[str, Any]:
    """Return the arguments of `ezpz.train.Loop` that are settings."""
    training, saving = config.training, config.checkpoint
    interval = saving.interval if saving.enable_checkpoint else 0
    return {
        "steps": training.steps,
        "batch_size": training.batch_size,
        "accumulate": training.accumulate,
        "max_norm": training.max_norm,
        "dtype": training.mixed_precision_param,
        "eval_every": training.eval_freq,
        "window": config.metrics.log_freq,
        "save_every": interval if saving.interval_type == "steps" else 0,
        "save_seconds": interval if saving.interval_type == "seconds" else 0,
        "gc_every": training.gc_freq,
    }


def announce(config: LlmConfig, mesh: Any, warm: int, begin: Path | None) -> None:
    """Log what begins now."""
    training = config.training
    samples = training.batch_size * training.accumulate * ezpz.degree(mesh, "dp")
    logger.info(
        f"Training starts at {'step 1' if begin is None else begin.name}, with local batch size {training.batch_size}, "
        f"global batch size {samples}, sequence length {training.seq_len}, total steps {training.steps} (warmup {warm})"
    )


def run(args: Namespace) -> None:
    """Set up, train, and show what happened."""
    config: LlmConfig = args.config
    warm = warmup(args)
    mesh, outdir, begin = set_up(args)
    tokens, ends = load(args)
    model_config = sizes(config, tokens)
    layout = llama_layout(model_config, **ends)
    model, cost = build(config, model_config, mesh, draw=not (begin or config.checkpoint.initial_load_path))
    start_weights(config, model, layout, verify=not args.no_verify)
    optimizer, schedule = make_optimizer(config, model, warm)
    batches = train.TokenBatches(tokens, config.training.seq_len, config.training.batch_size, seed=config.training.seed)
    live = {"model": model, "optimizer": optimizer}
    facts = {**tokens.describe(), **batches.describe(), "flops_per_sample": cost.flops_per_sample}
    trackers = [name for name in ("tensorboard", "wandb") if getattr(config.metrics, f"enable_{name}")]
    with ezpz.History(args.name, outdir, trackers=trackers or None) as history, ExitStack() as within:
        profilers = [within.enter_context(each) for each in profiles(args, history.outdir)]
        if config.training.enable_loss_parallel and config.training.tensor_parallel_degree > 1:
            within.enter_context(ezpz.loss_parallel())
        history.log_config({**train.as_dict(config), **facts}, **live, scheduler=schedule)
        saved = checkpoint.Checkpoints(
            history.outdir,
            **live,
            schedule=schedule,
            keep=config.checkpoint.keep_latest_k,
            asynchronous=config.checkpoint.async_mode == "async",
            verify=not args.no_verify,
        )
        announce(config, mesh, warm, begin)
        loop = train.Loop(
            *(model, optimizer, train.next_token_loss, batches),
            **loop_options(config),
            schedule=schedule,
            cost=cost,
            evaluate=validation(config, model, tokens),
            checkpoints=saved,
            resume=begin,
            sync_timing=args.sync_timing,
            on_nan=args.on_nan,
            ended=after_first(lambda: ezpz.set_timeout(config.comm.train_timeout_seconds), profilers),
            row=lambda row: {"step": row.pop("iter") + 1, **row},
        )
        outcome = loop.run(history)
        keep_weights(config, model, layout, saved.folder.parent, outcome.steps)
        files = [file for profiler in profilers for file in profiler.files]
        train.finish_run(history, plots=not args.no_plots, files=files)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says, and return the exit code."""
    return train.run_main(run, options(), argv)


if __name__ == "__main__":
    sys.exit(main())
