"""Train a vision transformer on images, with the attention kernel of your choice.

    launch python3 -m ezpz.examples.vit                              # ViT-L/16, 304,250,856 parameters, bf16
    launch -n 2 python3 -m ezpz.examples.vit --preset debug          # two CPU cores, under a minute
    launch python3 -m ezpz.examples.vit --dataset images:pets        # a folder of images of your own, by class
    launch python3 -m ezpz.examples.vit --attn flash --batch_size 128 --max_iters 50

The default images are made up, and can be learned: each class has a pattern that is shifted and covered by noise.
Accuracy is the part of the batch that is right; val_loss and val_accuracy are over images that no step has
seen.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import cross_entropy, interpolate

import ezpz
from ezpz import checkpoint, train
from ezpz.errors import UsageError
from ezpz.models import ATTENTIONS, VisionTransformer, ViTConfig, check_attention

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    Batch = tuple[torch.Tensor, torch.Tensor]  # images (n, channels, size, size) from 0 to 1, labels (n,)
    Pick = Callable[[torch.Tensor], Batch]  # called with indices (n,)

logger = ezpz.get_logger("ezpz.examples.vit")

DATASETS = ("synthetic", "mnist", "fashion_mnist", "cifar10", "digits")
PRESETS: dict[str, dict[str, object]] = {
    "debug": {
        "image_size": 32,
        "patch_size": 8,
        "depth": 2,
        "n_heads": 2,
        "head_dim": 32,
        "classes": 10,
        "batch_size": 32,
        "max_iters": 60,
        "lr": 2e-3,
        "dtype": "fp32",
    },
    "tiny": {"n_heads": 3, "depth": 12, "batch_size": 64},
    "small": {"n_heads": 6, "depth": 12, "batch_size": 64},
    "base": {"n_heads": 12, "depth": 12, "batch_size": 64},
    "large": {"n_heads": 16, "depth": 24},
}


def options() -> train.Parser:
    """Return the parser: the options of all trainers, and this one's own."""
    parser = train.make_parser(
        "ezpz.examples.vit",
        "Train a vision transformer on images, with the attention kernel of your choice.",
        presets=PRESETS,
        name="vit",
        max_iters=100,
        batch_size=16,
        dtype="bf16",
        lr=3e-4,
        schedule="cosine",
        warmup_iters=10,
        max_norm=1.0,
        weight_decay=0.05,
    )
    size, number = ViTConfig(), {"type": train.positive_int, "metavar": "N"}
    add = parser.group("model").add_argument
    add("--attn", choices=ATTENTIONS, default=size.attention, help="kernel of attention; sdpa lets torch choose")
    add(
        "--image_size",
        "--img_size",
        **number,
        help="pixels of a side; real images are scaled to it (224; of real images their own)",
    )
    add("--patch_size", **number, default=size.patch_size, help="pixels of a patch's side")
    add("--depth", **number, default=size.depth, help="blocks")
    add("--n_heads", "--num_heads", **number, default=size.n_heads, help="attention heads")
    add("--head_dim", **number, default=size.head_dim, help="features of a head; the width is n_heads x head_dim")
    add("--classes", **number, default=size.classes, help="classes of synthetic images; real data has its own")
    add(
        "--compile_all",
        action="store_true",
        help="compile model and loss as one graph, with --strategy ddp or zero1: a longer first step, faster ones then",
    )
    add = parser.group("data").add_argument
    kinds = {"type": train.image_data(DATASETS), "metavar": f"{{{','.join(DATASETS)},images:FOLDER,hf:NAME}}"}
    add("--dataset", **kinds, default="synthetic", help="images; without a network what ezpz ships or makes")
    add("--samples", **number, default=8192, help="synthetic images to train with")
    add("--eval_samples", **number, default=512, help="images that an evaluation takes, at most")
    return parser


class Source(NamedTuple):
    """Images by index, those to train with first."""

    pick: Pick
    trained: int
    tested: int
    size: int
    channels: int
    classes: int
    facts: dict[str, Any]  # for the run's record
    feed: Callable[[train.BatchIndices], train.PickedBatches] | None = None  # batches made ahead


def synthetic(args: Namespace) -> Source:
    """Return images that are made on this rank's device when they are needed."""
    size, device = args.image_size or ViTConfig().image_size, ezpz.device()
    count = args.samples + args.eval_samples
    make = train.SyntheticImages(count, classes=args.classes, size=size, seed=args.seed, device=device)
    facts = {**make.describe(), "data_origin": "synthetic (asked for)"}
    return Source(make, args.samples, args.eval_samples, size, 3, args.classes, facts)


def real(args: Namespace) -> Source:
    """Return images of a data set, scaled to ``--image_size``."""
    data = train.load_images(args.dataset, folder=args.data_dir, seed=args.seed)
    images, labels = (torch.cat(parts) for parts in zip(data.train, data.test, strict=True))
    stored = train.ImageBatches(images, labels, 1, device=ezpz.device())
    _, channels, own_size, _ = data.train[0].shape
    size = args.image_size or own_size

    def pick(indices: torch.Tensor) -> Batch:
        images, labels = stored.take(indices)
        return images if size == own_size else interpolate(images, size=(size, size), mode="bilinear"), labels

    tested = min(len(data.test[1]), args.eval_samples)
    return Source(pick, len(data.train[1]), tested, size, channels, data.classes, data.describe())


def own(args: Namespace) -> Source:
    """Return the images of a folder: with random crops and flips to train with, their middles to test with."""
    data = train.ImageFolder(train.image_folder_name(args.dataset), args.image_size or ViTConfig().image_size)
    tested = min(data.tested, args.eval_samples)
    sizes = (data.size, data.channels, len(data.classes))
    feed = partial(data.augmented, seed=args.seed)
    return Source(data.take, data.trained, tested, *sizes, data.describe(), feed)


def compute_loss(model: Any, batch: Batch) -> tuple[torch.Tensor, int, dict[str, torch.Tensor]]:
    """Return the summed loss of a batch, its images, and how much is right; in training and in evaluation."""
    images, labels = batch
    logits = model((images - 0.5) * 4.0)  # around 0, about as far as 1
    right = (logits.argmax(dim=1) == labels).float().mean()
    return cross_entropy(logits, labels, reduction="sum"), len(labels), {"accuracy": right}


def build(args: Namespace, data: Source, *, draw: bool) -> tuple[Any, train.Cost]:
    """Return the model, ready for all ranks, and what one image costs; its weights are not drawn before a load."""
    config = ViTConfig(
        *(data.size, args.patch_size, args.depth, args.n_heads, args.head_dim, data.classes),
        attention=args.attn,
        channels=data.channels,
    )
    with torch.device("meta"):  # no memory yet: each rank will hold its own part only
        network = VisionTransformer(config)
    logger.info(f"model\n{train.summarize(network)}")
    cost = train.Cost(train.count_flops(network, torch.empty(1, data.channels, data.size, data.size)), dtype=args.dtype)
    how = {"dtype": args.dtype, "compile": args.compile, "activation_checkpoint": args.activation_checkpoint}
    model = ezpz.wrap_model(network, args.strategy, draw=draw, **how)
    ezpz.seed_dropout(args.seed)
    return model, cost


def run(args: Namespace) -> None:
    """Set up, train, and show what happened."""
    if args.compile_all and args.strategy not in {"ddp", "zero1"}:
        raise UsageError(
            f"--compile_all compiles a model that is whole on each rank, and --strategy {args.strategy} cuts it; "
            "expected ddp or zero1. Use --compile, which compiles its blocks."
        )
    ranks = ezpz.get_world_size()
    batch_size = train.rank_batch_size(args, ranks)
    ezpz.setup_torch(seed=args.seed)
    check_attention(args.attn, ezpz.device(), args.dtype, args.head_dim)
    choice = checkpoint.choose(args.resume, name=args.name, outdir=args.outdir, verify=not args.no_verify)
    train.log_setup(args)

    make = own if train.image_folder_name(args.dataset) else synthetic if args.dataset == "synthetic" else real
    data = make(args)
    model, cost = build(args, data, draw=choice.checkpoint is None)
    optimizer = ezpz.make_adamw(model, lr=args.lr, weight_decay=args.weight_decay)
    schedule = train.make_schedule(optimizer, steps=args.max_iters, **train.schedule_options(args))
    order = train.BatchIndices(data.trained, batch_size, rank=ezpz.get_rank(), world_size=ranks, seed=args.seed)
    batches = data.feed(order) if data.feed else train.PickedBatches(order, data.pick)
    held_out = (data.trained + train.shard_indices(data.tested)).split(batch_size)
    origin = data.facts["data_origin"]
    logger.info(f"data={args.dataset}: {origin}; {data.trained} images to train, {data.tested} to test")

    def validate() -> dict[str, float]:  # batches are indices, so that no more than one is in memory
        means = train.evaluate(model, held_out, compute_loss, pick=data.pick)
        return {f"val_{name}": mean for name, mean in means.items()}

    live = {"model": model, "optimizer": optimizer}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    facts = {**data.facts, "parameters": parameters, "flops_per_sample": cost.flops_per_sample}
    with ezpz.History(args.name, choice.outdir) as history, ezpz.profile(args.profile) as prof:
        history.log_config({**vars(args), **facts}, **live, scheduler=schedule)
        saved = checkpoint.Checkpoints(history.outdir, **live, schedule=schedule, **train.checkpoint_options(args))
        loop = train.Loop(
            *(model, optimizer, train.compile_loss(compute_loss) if args.compile_all else compute_loss, batches),
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
