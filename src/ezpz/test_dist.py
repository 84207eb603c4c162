"""The smoke test of a machine: train a small network with DDP and show that every part works.

    launch python3 -m ezpz.test_dist

Trains on 1,797 handwritten digits that the package ships; ``--dataset random`` reconstructs random vectors instead.
Loss and accuracy are those of rank 0's part of the batch, so that no collective is added to a step; sps counts the
samples of all ranks. Times are exact: the device is waited for after each part (a CPU needs no waiting).
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import ezpz
from ezpz.broken_pipe import ending_with_the_reader
from ezpz.errors import EzpzError, UsageError, end_with

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    Batch = tuple[torch.Tensor, torch.Tensor]

logger = ezpz.get_logger("ezpz.test_dist")

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
# What is printed of `ezpz.get_dist_info`; run.json has all of it.
SHOWN = ("WORLD_SIZE", "NUM_HOSTS", "DEVICE", "BACKEND", "MESH", "LAUNCHER", "SCHEDULER", "TORCH")
STRATEGIES = ("ddp", "fsdp", "zero1", "deepspeed")


@dataclass(frozen=True)
class Config:
    """What to train, and how; sizes of 0 mean the data set's own."""

    train_iters: int
    batch_size: int
    dataset: str
    input_size: int
    output_size: int
    layer_sizes: tuple[int, ...]
    dtype: str
    lr: float
    print_freq: int
    warmup: int
    seed: int
    strategy: str
    ds_config: str
    tp: int
    backend: str
    compile: bool


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    return _parser().parse_args(argv)


def options() -> dict[str, bool]:
    """Return the names of all options, without dashes in front, and whether each takes a value."""
    actions = _parser()._actions[1:]  # noqa: SLF001  # argparse has no other way; the first is --help
    return {name.lstrip("-"): action.nargs != 0 for action in actions for name in action.option_strings}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ezpz.test_dist", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("--train-iters", type=_positive, default=100, metavar="N", help="steps to train (100)")
    add("--batch-size", type=_positive, default=64, metavar="N", help="samples per rank and step (64)")
    add("--dataset", choices=("digits", "random"), default="digits", help="handwritten digits, or random vectors")
    add("--input-size", type=_positive, default=0, metavar="N", help="width of the input (64 for digits, else 128)")
    add("--output-size", type=_positive, default=0, metavar="N", help="width of the output (10 for digits, else 128)")
    add(
        "--layer-sizes",
        type=_sizes,
        default=(1024, 512, 256, 128),
        metavar="N,N",
        help="hidden layers (1024,512,256,128)",
    )
    add("--dtype", choices=tuple(DTYPES), default="float32", help="precision of the forward pass (float32)")
    add("--lr", type=float, default=1e-3, help="learning rate of Adam (0.001)")
    add(
        "--print-freq",
        "--log-freq",
        type=_positive,
        default=10,
        metavar="N",
        help="print every N-th step (10); all are recorded",
    )
    add("--warmup", type=int, default=0, metavar="N", help="steps at the start to mark, and to leave out of the timing")
    add("--seed", type=int, default=42, help="seed of weights and of the order of samples (42)")
    add("--strategy", choices=STRATEGIES, default=None, help="how ranks share the model (ddp; with --tp fsdp)")
    add("--tp", type=_positive, default=1, metavar="N", help="ranks that share every pair of layers (1)")
    add("--backend", default="", metavar="NAME", help="collective backend, such as gloo (the device's own)")
    add("--compile", action="store_true", help="compile the network (warns where there is no compiler)")
    add(
        "--ds-config",
        default="",
        metavar="FILE",
        help="DeepSpeed's configuration, for --strategy deepspeed (generated)",
    )
    ezpz.add_profile_option(parser)
    add(
        "--on-nan",
        choices=("go-on", "stop", "dump"),
        default="go-on",
        help="when the loss is no number: go on, stop on all ranks, or stop and write the batch and the model (go-on)",
    )
    add("--no-plots", action="store_true", help="draw nothing; the data is written all the same")
    add("--outdir", default=None, metavar="DIR", help="the run's folder (outputs/<name>/<time>)")
    add("--name", default="test_dist", help="name of the run (test_dist)")
    return parser


def configure(args: argparse.Namespace) -> Config:
    """Return the effective configuration.

    Raises:
        UsageError: An option does not fit the data set or the others.
    """
    sizes = (64, 10) if args.dataset == "digits" else (128, args.input_size or 128)
    given = (args.input_size, args.output_size)
    if args.dataset == "digits" and any(size not in {0, own} for size, own in zip(given, sizes, strict=True)):
        raise UsageError(
            f"input and output sizes {given} (from the command line) do not fit the digits; expected 64 and 10. Use "
            "--dataset random."
        )
    if args.dataset == "random" and args.output_size not in {0, args.input_size or 128}:
        raise UsageError(
            f"--output-size {args.output_size} does not fit --dataset random, which reconstructs its input; expected "
            f"{sizes[1]}."
        )
    if not 0 < args.lr < float("inf"):
        raise UsageError(f"--lr {args.lr} is no learning rate; expected a positive number, such as 0.001.")
    if not 0 <= args.warmup < args.train_iters:
        raise UsageError(
            f"--warmup {args.warmup} does not fit --train-iters {args.train_iters}; expected 0 to "
            f"{args.train_iters - 1}."
        )
    strategy = args.strategy or ("fsdp" if args.tp > 1 else "ddp")
    if args.tp > 1 and strategy != "fsdp":
        raise UsageError(
            f"--strategy {strategy} cannot run with --tp {args.tp} (from the command line); expected fsdp."
        )
    if args.tp > 1:
        ezpz.check_divisible(args.tp, **{f"layer_{at}": size for at, size in enumerate(args.layer_sizes)})
    return Config(
        train_iters=args.train_iters,
        batch_size=args.batch_size,
        dataset=args.dataset,
        input_size=args.input_size or sizes[0],
        output_size=args.output_size or sizes[1],
        layer_sizes=args.layer_sizes,
        dtype=DTYPES[args.dtype],
        lr=args.lr,
        print_freq=args.print_freq,
        warmup=args.warmup,
        seed=args.seed,
        strategy=strategy,
        ds_config=args.ds_config,
        tp=args.tp,
        backend=args.backend,
        compile=args.compile,
    )


def make_batches(config: Config, rank: int, world_size: int) -> Callable[[int], Batch]:
    """Return a function from step to this rank's batch: inputs ``(batch, input_size)`` and their targets."""
    import torch

    from ezpz.train import BatchIndices, load_digits

    if config.dataset == "digits":
        images, labels = load_digits()
        indices = BatchIndices(len(images), config.batch_size, rank=rank, world_size=world_size, seed=config.seed)

        def digits(step: int) -> Batch:
            chosen = indices(step)
            return images[chosen], labels[chosen]

        return digits

    def random(step: int) -> Batch:
        generator = torch.Generator().manual_seed(((config.seed * 1_000_003 + step) * 65_537 + rank) % 2**63)
        inputs = torch.rand(config.batch_size, config.input_size, generator=generator)
        return inputs, inputs

    return random


def make_model(config: Config, world_size: int) -> tuple[Any, torch.optim.Optimizer, str, int]:
    """Return the wrapped network, its optimizer, the network in a line, and its number of parameters."""
    import torch

    from ezpz.models import MLP

    network = MLP(config.input_size, config.layer_sizes, config.output_size)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    shown = "-".join(map(str, (config.input_size, *config.layer_sizes, config.output_size)))
    more: dict[str, Any] = {}
    if config.strategy == "deepspeed":
        given = {"config": config.ds_config} if config.ds_config else {"micro_batch_size": config.batch_size}
        more = {**given, "optimizer": torch.optim.Adam(network.parameters(), lr=config.lr)}
    elif config.compile:
        more["compile"] = True
    if config.tp > 1:  # the first of two layers by its outputs, the second by its inputs; a last one alone stays whole
        layers = range(0, (len(config.layer_sizes) + 1) // 2 * 4, 2)
        more["tp_plan"] = {f"layers.{at}": "rowwise" if at % 4 else "colwise" for at in layers}
    shared = world_size > 1 or config.strategy == "deepspeed"
    model = ezpz.wrap_model(network, config.strategy if shared else "none", dtype=config.dtype, **more)
    optimizer = more.get("optimizer") or ezpz.make_optimizer(model, torch.optim.Adam, lr=config.lr)
    return model, optimizer, shown, parameters


def make_loss(config: Config) -> Callable[[Any, Batch], Any]:
    """Return what computes the loss of a batch, and the accuracy where there are classes."""
    from torch.nn.functional import cross_entropy, mse_loss

    def digits(model: Any, batch: Batch) -> Any:
        images, labels = batch
        outputs = model(images)
        return cross_entropy(outputs, labels), {"accuracy": (outputs.argmax(dim=1) == labels).float().mean()}

    def random(model: Any, batch: Batch) -> Any:
        inputs, targets = batch
        return mse_loss(model(inputs), targets)

    return digits if config.dataset == "digits" else random


def make_row(config: Config, world_size: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return what makes the line of a step: times without the data, and backward with the optimizer in it."""

    def row(measured: dict[str, Any]) -> dict[str, Any]:
        kept: dict[str, Any] = {name: measured[name] for name in ("iter", "loss", "accuracy") if name in measured}
        backward = measured["dtb"] + measured["dto"]
        seconds = measured["dtf"] + backward
        kept |= {"dt": seconds, "dtf": measured["dtf"], "dtb": backward}
        kept["sps"] = config.batch_size * world_size / seconds
        return {**kept, "warmup": measured["iter"] < config.warmup} if config.warmup else kept

    return row


def run(args: argparse.Namespace) -> None:
    """Set up, train, and show what happened."""
    from ezpz.train import Loop, finish_run

    config = configure(args)
    rank = ezpz.setup_torch(config.backend or None, seed=config.seed, tensor_parallel_size=config.tp)
    world_size = ezpz.get_world_size()
    mesh = ezpz.get_mesh()
    data_rank, data_ranks = ezpz.coordinate(mesh, "dp"), ezpz.degree(mesh, "dp")  # tp ranks share their samples
    if rank == 0:
        _say("dist_info", {name: value for name, value in ezpz.get_dist_info().items() if name in SHOWN and value})
        _say("CONFIG", {name: value for name, value in asdict(config).items() if value not in {None, ""}})
    _wandb(config, args.name)
    model, optimizer, shown, parameters = make_model(config, world_size)
    logger.info(f"model: {shown}, {parameters:,} parameters")
    with ezpz.History(args.name, args.outdir) as history:
        facts = {**asdict(config), "world_size": world_size, "parameters": parameters}
        history.log_config(facts, model=model, optimizer=optimizer)
        with ezpz.profile(args.profile) as prof:
            loop = Loop(
                model,
                optimizer,
                make_loss(config),
                make_batches(config, data_rank, data_ranks),
                steps=config.train_iters,
                batch_size=config.batch_size,
                dtype=config.dtype,
                log_every=config.print_freq,
                sync_timing=True,
                on_nan=args.on_nan,
                ended=prof.step,
                row=make_row(config, data_ranks),
            )
            loop.run(history)
        finish_run(history, plots=not args.no_plots, files=prof.files)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the smoke test and return the exit code."""
    try:
        run(parse_args(argv))
    except EzpzError as error:
        return end_with(error, "ezpz.test_dist")
    except KeyboardInterrupt:
        logger.info("interrupted; what was recorded until now is written")
        return 130
    ezpz.cleanup()
    return 0


def _wandb(config: Config, name: str) -> None:
    """Send a copy of the metrics to wandb when the user's environment speaks of it."""
    if {"WANDB_PROJECT", "WANDB_MODE", "WANDB_API_KEY"} & set(os.environ):
        ezpz.setup_wandb(None, config=asdict(config), name=name)


def _say(title: str, values: dict[str, Any]) -> None:
    """Log values as a paragraph of lines that fit 80 columns."""
    import textwrap

    text = ", ".join(f"{name}={value}" for name, value in values.items())
    lines = textwrap.wrap(text, 76, break_long_words=False, break_on_hyphens=False)
    logger.info("\n".join([f"[{title}]:", *(f"  {line}" for line in lines)]))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(word) for word in text.replace(",", " ").split())


if __name__ == "__main__":
    sys.exit(ending_with_the_reader(main))
