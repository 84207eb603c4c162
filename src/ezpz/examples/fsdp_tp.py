"""Train a Llama-style language model on a mesh of ranks: tensor parallel inside, FSDP across, copies (HSDP) if wanted.

    launch python3 -m ezpz.examples.fsdp_tp --n_layers 24 --tpsize 4         # 33,599,744 parameters
    launch -n 4 python3 -m ezpz.examples.fsdp_tp --preset debug --tp 2       # two CPU cores, about a minute
    launch python3 -m ezpz.examples.fsdp_tp --preset 8b --tp 8 --activation_checkpoint full

The default data is the characters of the Shakespeare that ships with ezpz. Random tokens (--dataset random) time a
machine, and can only be memorized.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

import ezpz
from ezpz import checkpoint, train
from ezpz.errors import UsageError
from ezpz.models import LLAMA_SIZES, Llama, LlamaConfig

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

logger = ezpz.get_logger("ezpz.examples.fsdp_tp")

SIZES = ("n_layers", "dim", "n_heads", "n_kv_heads", "ffn_dim", "vocab_size", "tied")  # of the model, as options
LARGE = {"seq_len": 8192, "batch_size": 1, "dtype": "bf16", "activation_checkpoint": "full", "lr": 3e-4}
TRAINING: dict[str, dict[str, object]] = {
    "debug": {
        "seq_len": 64,
        "batch_size": 32,
        "eval_samples": 1024,
        "max_iters": 100,
        "lr": 2e-2,
        "schedule": "cosine",
    },
    **dict.fromkeys(("8b", "70b", "405b"), LARGE),
}
PRESETS = {
    name: {size: getattr(config, size) for size in SIZES} | TRAINING.get(name, {"dtype": "bf16", "seq_len": 1024})
    for name, config in LLAMA_SIZES.items()
}


def options() -> train.Parser:
    """Return the parser: the options of all trainers, and this one's own."""
    parser = train.make_parser(
        "ezpz.examples.fsdp_tp",
        "Train a Llama-style language model with tensor parallelism and FSDP.",
        presets=PRESETS,
        name="fsdp_tp",
        max_iters=100,
        batch_size=8,
        lr=3e-3,
        warmup_iters=10,
        max_norm=1.0,
        weight_decay=0.1,
    )
    size, number = LlamaConfig(), {"type": train.positive_int, "metavar": "N"}
    add = parser.group("model").add_argument
    add("--n_layers", **number, default=size.n_layers, help="blocks of attention and feed-forward")
    add("--dim", **number, default=size.dim, help="width of the model in features")
    add("--n_heads", **number, default=size.n_heads, help="attention heads of queries")
    add("--n_kv_heads", **number, default=size.n_kv_heads, help="heads of keys and values")
    add("--ffn_dim", **number, default=size.ffn_dim, help="inner width of the feed-forward")
    add("--vocab_size", **number, default=size.vocab_size, help="number of different tokens")
    add("--tied", action=argparse.BooleanOptionalAction, default=size.tied, help="output uses the embedding's weight")
    add("--seq_len", **number, default=128, help="tokens of one sample")
    add = parser.group("data").add_argument
    add(
        "--dataset",
        default="shakespeare",
        metavar="NAME",
        help="shakespeare, random, a text FILE, tokens:FILE.bin, hf:NAME",
    )
    add("--eval_samples", **number, default=64, help="samples of held-out text that an evaluation takes, at most")
    add = parser.group("parallelism").add_argument
    add("--tp", "--tpsize", **number, default=1, help="ranks that share every layer")
    add("--dp_replicate", **number, default=1, help="copies of the model, each cut over the other ranks (HSDP)")
    add("--no_sequence_parallel", action="store_true", help="keep whole activations between the blocks of a tp group")
    add("--loss_parallel", action="store_true", help="leave logits cut along the vocabulary when computing the loss")
    return parser


def configure(args: Namespace) -> LlamaConfig:
    """Return the model's sizes; what cannot be cut over ``--tp`` ranks is refused before anything starts.

    Raises:
        UsageError: Sizes do not fit each other or the tensor parallelism.
    """
    preset = LLAMA_SIZES.get(args.preset, LlamaConfig())
    sizes = {name: getattr(args, name) for name in SIZES}
    config = replace(preset, **sizes, max_seq_len=max(args.seq_len, preset.max_seq_len))
    cut = {name: sizes[name] for name in ("n_heads", "n_kv_heads", "ffn_dim", "vocab_size")}
    if ezpz.get_world_size() > 1:  # one alone is refused by the mesh
        cut["ranks"] = ezpz.get_world_size()
    ezpz.check_divisible(args.tp, **cut, **({} if args.no_sequence_parallel else {"seq_len": args.seq_len}))
    if args.strategy not in {"fsdp", "hsdp"} and args.tp > 1:
        raise UsageError(
            f"--strategy {args.strategy} cannot run with --tp {args.tp} (from the command line); expected fsdp or hsdp."
        )
    return config


def load(args: Namespace) -> train.Tokens:
    """Return the tokens to train with."""
    tokens = train.load_tokens(args.dataset, folder=args.data_dir, seed=args.seed, vocabulary=args.vocab_size)
    logger.info(
        f"data={tokens.name}: {tokens.origin}; {len(tokens.train):,} tokens to train, {len(tokens.test):,} to test"
    )
    if tokens.name == "random":
        logger.warning("random tokens: they can be memorized, and nothing else can be learned from them")
    return tokens


def build(args: Namespace, config: LlamaConfig, mesh: Any, *, draw: bool) -> tuple[Any, train.Cost]:
    """Return the model, ready for all ranks, and what one sample costs; its weights are not drawn before a load."""
    with torch.device("meta"):  # no memory yet: each rank will hold its own part only
        network = Llama(config)
    logger.info(f"model\n{train.summarize(network)}")
    multiplied = train.parameters_for_flops(network)
    per_token = train.transformer_flops(multiplied, config.n_layers, config.n_heads, config.head_dim, args.seq_len)
    plan = ezpz.llama_plan(sequence_parallel=not args.no_sequence_parallel, loss_parallel=args.loss_parallel)
    how = {"dtype": args.dtype, "compile": args.compile, "activation_checkpoint": args.activation_checkpoint}
    model = ezpz.wrap_model(network, args.strategy, mesh, tp_plan=plan, draw=draw, **how)
    ezpz.seed_dropout(args.seed)
    return model, train.Cost(per_token * args.seq_len, tokens_per_sample=args.seq_len, dtype=args.dtype)


def run(args: Namespace) -> None:
    """Set up, train, and show what happened."""
    config = configure(args)
    ezpz.setup_torch(seed=args.seed, tensor_parallel_size=args.tp, dp_replicate=args.dp_replicate)
    mesh = ezpz.init_mesh(dp_replicate=args.dp_replicate, tp=args.tp)
    batch_size = train.rank_batch_size(args, ezpz.degree(mesh, "dp"))
    choice = checkpoint.choose(args.resume, name=args.name, outdir=args.outdir, verify=not args.no_verify)
    train.log_setup(args)

    model, cost = build(args, config, mesh, draw=choice.checkpoint is None)
    optimizer = ezpz.make_adamw(model, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.weight_decay)
    schedule = train.make_schedule(optimizer, steps=args.max_iters, **train.schedule_options(args))
    tokens = load(args)
    batches = train.TokenBatches(tokens.train, args.seq_len, batch_size, seed=args.seed)
    held_out = train.TokenBatches(tokens.test[: args.eval_samples * args.seq_len + 1], args.seq_len, batch_size)

    def validate() -> dict[str, float]:
        means = train.evaluate(model, held_out.once(), train.next_token_loss)
        return {f"val_{name}": mean for name, mean in means.items()}

    live = {"model": model, "optimizer": optimizer}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        **tokens.describe(),
        **batches.describe(),
        "parameters": parameters,
        "flops_per_sample": cost.flops_per_sample,
    }
    cut_loss = ezpz.loss_parallel() if args.loss_parallel and args.tp > 1 else nullcontext()
    with ezpz.History(args.name, choice.outdir) as history, ezpz.profile(args.profile) as prof, cut_loss:
        history.log_config({**vars(args), **facts}, **live, scheduler=schedule)
        saved = checkpoint.Checkpoints(history.outdir, **live, schedule=schedule, **train.checkpoint_options(args))
        loop = train.Loop(
            *(model, optimizer, train.next_token_loss, batches),
            steps=args.max_iters,
            batch_size=batch_size,
            schedule=schedule,
            cost=cost,
            evaluate=validate,
            checkpoints=saved,
            resume=choice.checkpoint,
            ended=prof.step,
            **train.loop_options(args),
        )
        loop.run(history)
        train.finish_run(history, plots=not args.no_plots, files=prof.files)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says, and return the exit code."""
    return train.run_main(run, options(), argv)


if __name__ == "__main__":
    sys.exit(main())
