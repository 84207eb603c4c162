"""Train a small convolutional network on images: its weights cut over all ranks (FSDP), or copied (DDP).

    launch python3 -m ezpz.examples.fsdp                             # MNIST, 10 epochs
    launch -n 2 python3 -m ezpz.examples.fsdp --preset debug         # digits that ezpz ships: needs no network
    launch python3 -m ezpz.examples.fsdp --strategy ddp --dataset cifar10 --epochs 20

One line and one row per epoch: train_loss is the mean over its steps and ranks; test_loss and test_acc (percent) are
over every test image once, whatever the number of ranks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy

import ezpz
from ezpz import checkpoint, train
from ezpz.errors import UsageError
from ezpz.models import CNN

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

logger = ezpz.get_logger("ezpz.examples.fsdp")

DATASETS = ("mnist", "fashion_mnist", "cifar10", "digits", "synthetic")
PRESETS: dict[str, dict[str, object]] = {
    "debug": {"dataset": "digits", "epochs": 10, "batch_size": 32},
    "mnist": {"dataset": "mnist", "epochs": 20},
    "cifar10": {"dataset": "cifar10", "epochs": 20, "weight_decay": 0.05},
}
TEST_BATCH = 256  # images in one forward pass of the evaluation


def options() -> train.Parser:
    """Return the parser: the options of all trainers, and this one's own."""
    parser = train.make_parser(
        "ezpz.examples.fsdp",
        "Train a small convolutional network on images, with FSDP or DDP.",
        presets=PRESETS,
        name="fsdp",
        epochs=10,
        batch_size=64,
        lr=2e-3,
        schedule="cosine",
    )
    add = parser.group("data").add_argument
    add("--dataset", choices=DATASETS, default="mnist", help="images; without a network what ezpz ships or makes")
    return parser


def compute_loss(model: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the mean loss of a batch, and how much of it is right; in training and in evaluation."""
    images, labels = batch
    logits = model((images - 0.25) / 0.35)  # about the mean and the spread of grey digits
    return cross_entropy(logits, labels), {"accuracy": (logits.argmax(dim=1) == labels).float().mean()}


def steps_per_epoch(data: train.Images, samples: int) -> int:
    """Return how many steps of so many samples are one pass over the training data.

    Raises:
        UsageError: One step would take more samples than there are.
    """
    there = len(data.train[1])
    if samples > there:
        raise UsageError(
            f"one step takes {samples} samples (--batch_size x --accumulate x ranks), and {data.name} has {there} to "
            f"train with; expected at most {there}. Type a smaller --batch_size."
        )
    return there // samples


def build(args: Namespace, data: train.Images) -> tuple[Any, train.Cost]:
    """Return the model, ready for all ranks, and what one image costs."""
    _, channels, size, _ = data.train[0].shape
    network = CNN(size, channels, data.classes, padding=1 if size < 16 else 0)
    logger.info(f"model\n{train.summarize(network)}")
    cost = train.Cost(train.count_flops(network, torch.empty(1, channels, size, size)), dtype=args.dtype)
    model = ezpz.wrap_model(
        network, args.strategy, dtype=args.dtype, compile=args.compile, activation_checkpoint=args.activation_checkpoint
    )
    ezpz.seed_dropout(args.seed)  # from here on every rank drops others
    return model, cost


def run(args: Namespace) -> None:
    """Set up, train, and show what happened."""
    ranks = ezpz.get_world_size()
    batch_size = train.rank_batch_size(args, ranks)
    ezpz.setup_torch(seed=args.seed)
    choice = checkpoint.choose(args.resume, name=args.name, outdir=args.outdir, verify=not args.no_verify)
    train.log_setup(args)

    data = train.load_images(args.dataset, folder=args.data_dir, seed=args.seed)
    epoch_steps = steps_per_epoch(data, batch_size * args.accumulate * ranks)
    steps = args.epochs * epoch_steps
    model, cost = build(args, data)
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=args.lr, weight_decay=args.weight_decay)
    schedule = train.make_schedule(optimizer, steps=steps, **train.schedule_options(args))
    batches = train.ImageBatches(*data.train, batch_size, seed=args.seed)
    held_out = train.ImageBatches(*data.test, TEST_BATCH)
    logger.info(f"data={data.name}: {data.origin}; {len(batches)} images to train, {len(held_out)} to test")

    def test() -> dict[str, float]:
        means = train.evaluate(model, held_out.once(), compute_loss)
        return {"test_loss": means["loss"], "test_acc": 100.0 * means["accuracy"]} if means else {}

    live = {"model": model, "optimizer": optimizer}
    facts = {**data.describe(), **batches.describe(), "steps": steps, "flops_per_sample": cost.flops_per_sample}
    with ezpz.History(args.name, choice.outdir) as history, ezpz.profile(args.profile) as prof:
        history.log_config({**vars(args), **facts}, **live, scheduler=schedule)
        saved = checkpoint.Checkpoints(history.outdir, **live, schedule=schedule, **train.checkpoint_options(args))
        loop = train.Loop(
            *(model, optimizer, compute_loss, batches),
            steps=steps,
            epoch_steps=epoch_steps,
            batch_size=batch_size,
            schedule=schedule,
            cost=cost,
            evaluate=test,
            checkpoints=saved,
            resume=choice.checkpoint,
            ended=prof.step,
            **train.loop_options(args),
        )
        outcome = loop.run(history)
        train.finish_run(history, outcome, plots=not args.no_plots, files=prof.files)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says, and return the exit code."""
    return train.run_main(run, options(), argv)


if __name__ == "__main__":
    sys.exit(main())
