"""The options that all trainers share, presets under what is typed, and the batch that a rank gets."""

from __future__ import annotations

import sys
from argparse import Namespace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ezpz.cli_parser import Parser as BaseParser
from ezpz.cli_parser import (
    non_negative_float,
    non_negative_int,
    positive_float,
    positive_int,
    ratio,
)
from ezpz.dist.job_around import get_rank
from ezpz.errors import RankError, UsageError
from ezpz.train.lost_loss import GO_ON, ON_NAN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# The options that a trainer has whether its others are options too or settings in sections.


def add_preset(parser: Parser) -> None:
    """Add ``--preset``."""
    parser.add_argument("--preset", choices=tuple(parser.presets), help="values to start from, listed below")


def add_data_dir(group: Any) -> None:
    """Add ``--data_dir`` to a group of options."""
    group.add_argument(
        "--data_dir",
        metavar="DIR",
        help="folder for data that are fetched or encoded; by default those of datasets ($HF_HOME) and $EZPZ_DATA",
    )


def add_resume(group: Any) -> None:
    """Add ``--resume`` and ``--no_verify``."""
    group.add_argument(
        "--resume",
        default="none",
        metavar="WHAT",
        help="none, auto (the newest of this --name), or a run or checkpoint",
    )
    group.add_argument(
        "--no_verify", action="store_true", help="load a checkpoint without comparing its files with their digests"
    )


def add_output(group: Any, *, log_freq: bool = False) -> None:
    """Add what says where a run is written and how it is measured; ``--log_freq`` where rows are steps."""
    from ezpz.track import add_profile_option

    add = group.add_argument
    if log_freq:
        add(
            "--log_freq",
            "--print_freq",
            type=positive_int,
            default=10,
            metavar="N",
            help="print every N-th step; all are recorded",
        )
    add("--name", help="name of the run")
    add("--outdir", metavar="DIR", help="the run's folder (outputs/<name>/<time>)")
    add("--no_plots", action="store_true", help="draw nothing; the data is written all the same")
    add("--sync_timing", action="store_true", help="wait for the device in every part of a step: exact times, slower")
    add(
        "--on_nan",
        choices=ON_NAN,
        default=GO_ON,
        help="when the loss is no number: go on; stop on all ranks, without a checkpoint; or dump: stop, and write the "
        "batch and the model into nan/ of the run's folder",
    )
    add(
        "--peak_flops",
        type=positive_float,
        metavar="X",
        help="FLOP/s of one device, for the MFU of one that is unknown",
    )
    add_profile_option(group)


def set_defaults(parser: Parser, defaults: Mapping[str, object], source: str) -> None:
    """Give options other defaults.

    Raises:
        UsageError: One of them is no option.
    """
    unknown = defaults.keys() - set(parser.dests())
    if unknown:
        raise UsageError(
            f"unknown default {min(unknown)} (from {source}); expected one of {', '.join(parser.dests())}."
        )
    parser.set_defaults(**defaults)


STRATEGIES = ("fsdp", "ddp", "hsdp", "zero1")
_SCHEDULES = ("constant", "linear", "cosine")
# What people write -> the one name of it.
DTYPES = {
    "fp32": "fp32",
    "float32": "fp32",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
}
_UNTYPED = object()


def is_first_rank() -> bool:
    """Tell whether this is rank 0, or does not know who it is: then it is better to be heard."""
    try:
        return get_rank() == 0
    except RankError:
        return True


class Parser(BaseParser):
    """The command line of a trainer whose choices are options and presets.

    Attributes:
        presets: Name of a preset to the values that it gives to options, by their names in the namespace.
    """

    expected = "options, which begin with --"
    expected_option = "one of this trainer"

    def __init__(self, prog: str, description: str, presets: Mapping[str, Mapping[str, object]]) -> None:
        super().__init__(
            prog,
            f"{description}\n\nOptions may be spelled with _ or -: --data_dir, --data-dir.",
            command=f"python3 -m {prog}",
            usage="[OPTION ...]",
            epilog=_describe_presets(presets),
            width=120,
            allow_abbrev=False,
        )
        self.usage = f"[launch] {self.usage}"
        self.presets = presets

    def print_help(self, file: Any = None) -> None:
        """Print the help on rank 0, so that `launch` shows it once."""
        if is_first_rank():
            super().print_help(file)

    def read(self, words: Sequence[str]) -> Namespace:
        """Return what a command line says, see `parse`.

        Raises:
            UsageError: A word is no option, a value is out of range, or two values do not fit each other.
        """
        typed = self._read_options(words)
        preset = self.presets[typed["preset"]] if "preset" in typed else {}
        args = self._with_defaults(typed, preset)
        _fit_warmup(args)
        return args

    def _read_options(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the options that were typed."""
        nothing = Namespace(**dict.fromkeys(self.dests(), _UNTYPED))
        args, rest = self.parse_known_args(_spelled(words, self.known()), nothing)
        self.refuse_unknown(rest)
        return {name: value for name, value in vars(args).items() if value is not _UNTYPED}

    def _with_defaults(self, typed: Mapping[str, Any], preset: Mapping[str, object]) -> Namespace:
        defaults = {name: self.get_default(name) for name in self.dests()}
        return Namespace(**{**defaults, **preset, **typed, "typed": sorted(typed)})


def _describe_presets(presets: Mapping[str, Mapping[str, object]]) -> str:
    lines = [
        line
        for name, values in presets.items()
        for line in wrap(
            " ".join(f"{key}={value}" for key, value in values.items()),
            width=120,
            initial_indent=f"  {name:8} ",
            subsequent_indent=" " * 11,
            break_on_hyphens=False,
        )
    ]
    return "\n".join(["presets (what is typed overrides them):", *lines]) if lines else ""


def make_parser(
    prog: str, description: str, *, presets: Mapping[str, Mapping[str, object]], **defaults: object
) -> Parser:
    """Return a parser with the options that all trainers share; a trainer adds its own to ``parser.group("model")``.

    Args:
        prog: The module that is run, such as ``ezpz.examples.fsdp``; errors begin with it.
        description: What the trainer shows.
        presets: Name of a preset to the values that it sets; ``--preset`` exists where there is one.
        **defaults: Values of shared options instead of those below. ``max_iters`` makes the option of that name,
            ``--eval_freq`` and ``--log_freq``; ``epochs`` makes ``--epochs``. ``name`` must be given.

    Raises:
        UsageError: A default is none of the shared options.
    """
    parser = Parser(prog, description, presets)
    if presets:
        add_preset(parser)
    _add_model_and_data(parser)
    _add_training(parser, defaults)
    _add_checkpoints(parser)
    add_output(parser.group("output"), log_freq="max_iters" in defaults)
    set_defaults(parser, defaults, "make_parser")
    return parser


def _add_model_and_data(parser: Parser) -> None:
    parser.group("model")  # first in the help, though trainers fill it
    add = parser.group("data").add_argument
    number = {"type": positive_int, "metavar": "N"}
    add("--batch_size", **number, default=32, help="samples of a rank in one forward pass")
    add(
        "--global_batch_size",
        **number,
        help="samples of all ranks in one step; sets --batch_size to its share of it",
    )
    add_data_dir(parser.group("data"))


def _add_training(parser: Parser, defaults: Mapping[str, object]) -> None:
    add = parser.group("training").add_argument
    number = {"type": positive_int, "metavar": "N"}
    if "max_iters" in defaults:
        add("--max_iters", **number, help="steps to train")
    if "epochs" in defaults:
        add("--epochs", **number, help="passes over the training data")
    add("--accumulate", **number, default=1, help="batches whose gradients are added up before a step")
    add("--lr", type=positive_float, default=1e-3, metavar="X", help="highest learning rate")
    add(
        "--schedule",
        choices=_SCHEDULES,
        default="constant",
        help="how the rate falls after the warm-up",
    )
    add("--warmup_iters", type=non_negative_int, default=0, metavar="N", help="steps in which the rate rises to --lr")
    add("--min_lr_ratio", type=ratio, default=0.0, metavar="X", help="where the schedule ends, as a part of --lr")
    add("--weight_decay", type=non_negative_float, default=0.0, metavar="X", help="weight decay of AdamW")
    add("--max_norm", type=non_negative_float, default=0.0, metavar="X", help="clip the gradients' norm; 0: do not")
    add("--strategy", choices=STRATEGIES, default="fsdp", help="how ranks share the model")
    add(
        "--dtype",
        type=lambda text: DTYPES.get(text.lower(), text),
        choices=tuple(dict.fromkeys(DTYPES.values())),
        default="fp32",
        help="number format of the forward pass; weights stay fp32",
    )
    add("--compile", action="store_true", help="compile the blocks of the model (warns where there is no compiler)")
    add(
        "--activation_checkpoint",
        type=_stride,
        metavar="HOW",
        help="save memory by computing activations again: full, selective (every second block), op (all but costly "
        "operations), N (every N-th block)",
    )
    add("--seed", type=non_negative_int, default=42, metavar="N", help="seed of weights, order of data, and dropout")
    if "max_iters" in defaults:
        add(
            "--eval_freq",
            type=non_negative_int,
            default=0,
            metavar="N",
            help="steps between evaluations; 0: at the end",
        )


def _add_checkpoints(parser: Parser) -> None:
    add = parser.group("checkpoints").add_argument
    add(
        "--save_freq",
        type=non_negative_int,
        default=0,
        metavar="N",
        help="steps between checkpoints; 0: only when SIGTERM or SIGUSR2 asks for one",
    )
    add("--keep", type=positive_int, default=3, metavar="N", help="newest checkpoints to keep")
    add("--async_save", action="store_true", help="write checkpoints beside the training")
    add_resume(parser.group("checkpoints"))


def _stride(text: str) -> str | int:
    from argparse import ArgumentTypeError

    if text in {"full", "selective", "op"}:
        return text
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is none of full, selective, op, or a whole number from 1 on")


def parse(parser: Parser, argv: Sequence[str] | None = None) -> Namespace:
    """Read a command line: defaults, then the preset, then the file of settings if one is named, then what was typed.

    Args:
        parser: From `make_parser` or `make_settings_parser`.
        argv: Words after the program's name; by default those of this process.

    Returns:
        One attribute per option; ``preset`` is the name of the preset or None, ``typed`` the names that were typed.
        With settings also ``config`` and ``origins``.

    Raises:
        UsageError: A word is no option, a value is out of range, or two values do not fit each other.
    """
    return parser.read(sys.argv[1:] if argv is None else list(argv))


def _spelled(words: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Return the words with every option as it was registered, whether it has ``_`` or ``-`` inside."""
    spelled: list[str] = []
    for place, word in enumerate(words):
        if word == "--":
            return [*spelled, *words[place:]]
        name, equals, value = word.partition("=")
        name = known.get(name.replace("-", "_"), name) if word.startswith("--") else name
        spelled.append(f"{name}{equals}{value}")
    return spelled


def _fit_warmup(args: Namespace) -> None:
    """Refuse a warm-up longer than the run; one that was not typed gives way to a short run that was."""
    steps = getattr(args, "max_iters", 0)
    if not steps or args.warmup_iters < steps:
        return
    if "warmup_iters" in args.typed:
        raise UsageError(
            f"--warmup_iters {args.warmup_iters} does not fit --max_iters {steps} (from the command line); "
            f"expected 0 to {steps - 1}. Train longer, or warm up for less."
        )
    args.warmup_iters = steps // 10


def rank_batch_size(args: Namespace, data_parallel: int) -> int:
    """Return how many samples a rank takes in one forward pass: ``--batch_size``, or its share of the global batch.

    Args:
        args: From `parse`.
        data_parallel: Ranks that see different data.

    Raises:
        UsageError: ``--global_batch_size`` cannot be shared equally, or contradicts a ``--batch_size`` that was typed.
    """
    whole = args.global_batch_size
    if not whole:
        return int(args.batch_size)
    parts = data_parallel * args.accumulate
    shown = f"--global_batch_size {whole} (from the command line)"
    ways = f"{data_parallel} data-parallel ranks x --accumulate {args.accumulate} = {parts}"
    if whole % parts:
        near = sorted({max(parts, whole // parts * parts), (whole // parts + 1) * parts})
        raise UsageError(f"{shown} is no multiple of {ways}; expected for example {' or '.join(map(str, near))}.")
    if "batch_size" in args.typed and args.batch_size * parts != whole:
        raise UsageError(
            f"{shown} is not --batch_size {args.batch_size} x {ways}; expected {args.batch_size * parts}. Leave one "
            "out."
        )
    return int(whole // parts)
