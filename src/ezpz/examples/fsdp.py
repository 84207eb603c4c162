"""Train a small convolutional network on images: its weights cut over all ranks (FSDP), or copied (DDP).

    launch python3 -m ezpz.examples.fsdp                             # MNIST, with the package datasets
    launch -n 2 python3 -m ezpz.examples.fsdp --preset debug         # digits that ezpz ships: needs no network
    launch python3 -m ezpz.examples.fsdp --dataset images:pets       # a folder of images of your own, by class
    launch python3 -m ezpz.examples.fsdp --strategy ddp --dataset cifar10 --epochs 20

One line and one row per epoch: train_loss is the mean over its steps and ranks; test_loss and test_acc (percent) are
over every test image once, whatever the number of ranks.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy

import ezpz
from ezpz import checkpoint, train
from ezpz.errors import UsageError
from ezpz.models import CNN

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

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
    kinds = {"type": train.image_data(DATASETS), "metavar": f"{{{','.join(DATASETS)},images:FOLDER,hf:NAME}}"}
    add("--dataset", **kinds, default="mnist", help="images; without a network what ezpz ships or makes")
    add("--image_size", type=train.positive_int, default=64, metavar="N", help="pixels of a side of a folder's images")
    return parser


class Source(NamedTuple):
    """Images by index, those to train with first."""

    name: str
    origin: str
    pick: Callable[[torch.Tensor], Any]  # called with indices (n,) of images to test with
    batches: Callable[[int], Any]  # called with a position
    trained: int
    tested: int
    shape: tuple[int, int]  # channels, pixels of a side
    classes: int
    facts: dict[str, Any]  # for the run's record


def load(args: Namespace, batch_size: int) -> Source:
    """Return the images of a data set, or of a folder."""
    folder = train.image_folder_name(args.dataset)
    if folder:
        own = train.ImageFolder(folder, args.image_size)
        place = {"rank": ezpz.get_rank(), "world_size": ezpz.get_world_size()}
        order = train.BatchIndices(own.trained, batch_size, **place, seed=args.seed)
        batches = own.augmented(order, seed=args.seed)
        counts, shape = (own.trained, own.tested), (own.channels, own.size)
        facts = own.describe()
        return Source(args.dataset, facts["data_origin"], own.take, batches, *counts, shape, len(own.classes), facts)
    data = train.load_images(args.dataset, folder=args.data_dir, seed=args.seed)
    made = train.ImageBatches(*data.train, batch_size, seed=args.seed)
    held_out = train.ImageBatches(*data.test, TEST_BATCH)

    def pick(indices: torch.Tensor) -> Any:
        return held_out.take(indices - len(made))

    counts, shape = (len(made), len(data.test[1])), (data.train[0].shape[1], data.train[0].shape[2])
    facts = {**data.describe(), **made.describe()}
    return Source(data.name, data.origin, pick, made, *counts, shape, data.classes, facts)


def compute_loss(model: Any, batch: Any) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
    """Return the summed loss of a batch, its images, and how much is right; in training and in evaluation."""
    images, labels = batch
    logits = model((images - 0.25) / 0.35)  # about the mean and the spread of grey digits
    right = (logits.argmax(dim=1) == labels).float().mean()
    return cross_entropy(logits, labels, reduction="sum"), len(labels), {"accuracy": right}


def steps_per_epoch(data: Source, samples: int) -> int:
    """Return how many steps of so many samples are one pass over the training data.

    Raises:
        UsageError: One step would take more samples than there are.
    """
    there = data.trained
    if samples > there:
        raise UsageError(
            f"one step takes {samples} samples (--batch_size x --accumulate x ranks), and {data.name} has {there} to "
            f"train with; expected at most {there}. Type a smaller --batch_size."
        )
    return there // samples


def build(args: Namespace, data: Source) -> tuple[Any, train.Cost]:
    """Return the model, ready for all ranks, and what one image costs."""
    channels, size = data.shape
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

    data = load(args, batch_size)
    epoch_steps = steps_per_epoch(data, batch_size * args.accumulate * ranks)
    steps = args.epochs * epoch_steps
    model, cost = build(args, data)
    optimizer = ezpz.make_adamw(model, lr=args.lr, weight_decay=args.weight_decay)
    schedule = train.make_schedule(optimizer, steps=steps, **train.schedule_options(args))
    held_out = (data.trained + train.shard_indices(data.tested)).split(TEST_BATCH)
    logger.info(f"data={data.name}: {data.origin}; {data.trained} images to train, {data.tested} to test")

    def test() -> dict[str, float]:
        means = train.evaluate(model, held_out, compute_loss, pick=data.pick)
        return {"test_loss": means["loss"], "test_acc": 100.0 * means["accuracy"]} if means else {}

    live = {"model": model, "optimizer": optimizer}
    facts = {**data.facts, "steps": steps, "flops_per_sample": cost.flops_per_sample}
    with ezpz.History(args.name, choice.outdir) as history, ezpz.profile(args.profile) as prof:
        history.log_config({**vars(args), **facts}, **live, scheduler=schedule)
        saved = checkpoint.Checkpoints(history.outdir, **live, schedule=schedule, **train.checkpoint_options(args))
        loop = train.Loop(
            *(model, optimizer, compute_loss, data.batches),
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
        loop.run(history)
        train.finish_run(history, plots=not args.no_plots, files=prof.files)


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says, and return the exit code."""
    return train.run_main(run, options(), argv)


if __name__ == "__main__":
    sys.exit(main())
