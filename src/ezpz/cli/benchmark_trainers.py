"""List the trainers that ``ezpz benchmark`` runs, with their presets and command lines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from ezpz.errors import UsageError, did_you_mean
from ezpz.interpreter import module_line

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from pathlib import Path

_LIST = " Run `ezpz benchmark --list`."  # the advice where no name is near


class Trainer(NamedTuple):
    """One trainer.

    Attributes:
        name: What people call it; its folder in a benchmark.
        module: What Python runs.
        about: What it measures, in a few words.
        presets: Name of each preset to the options that it means, smallest first.
        on_devices: The preset for a machine with accelerators.
        steps: The option that says how many steps to train; empty for a trainer that counts epochs.
        epochs: The option that says how many epochs to train; empty for a trainer that counts steps.
    """

    name: str
    module: str
    about: str
    presets: Mapping[str, tuple[str, ...]]
    on_devices: str
    steps: str = ""
    epochs: str = ""

    def command_line(self, folder: Path, preset: str, options: Namespace) -> str:
        """Return what launches it.

        Args:
            folder: Where the run writes.
            preset: One of its presets.
            options: Those of ``ezpz benchmark``; ``launch`` holds the words for launch, ``more`` those for the trainer,
                which come last, so they count.
        """
        words = [*module_line("ezpz.launch"), *options.launch, "--", *module_line(self.module)]
        words += [*self.presets[preset], f"--outdir={folder}", "--no-plots"]
        counts = ((self.steps, options.max_iters), (self.epochs, options.epochs))
        words += [f"{option}={count}" for option, count in counts if option and count]
        return shlex.join([*words, *options.more])


def _own(*names: str) -> dict[str, tuple[str, ...]]:
    """Return presets that the trainer itself knows by these names."""
    return {name: (f"--preset={name}",) for name in names}


_SMOKE = {"debug": ("--train-iters=50",), "full": ("--train-iters=500", "--batch-size=256")}
_ALL = (
    Trainer(
        "test_dist", "ezpz.test_dist", "a small network with DDP: start-up, launches", _SMOKE, "full", "--train-iters"
    ),
    Trainer(
        "fsdp",
        "ezpz.examples.fsdp",
        "a convolutional network on images, FSDP",
        _own("debug", "mnist", "cifar10"),
        "mnist",
        epochs="--epochs",
    ),
    Trainer(
        "fsdp_tp",
        "ezpz.examples.fsdp_tp",
        "a Llama on tokens, FSDP and tensor parallel",
        _own("debug", "debugmodel", "10m", "125m", "300m", "1b", "3b", "8b", "70b", "405b"),
        "300m",
        "--max-iters",
    ),
    Trainer(
        "vit",
        "ezpz.examples.vit",
        "a vision transformer on synthetic images",
        _own("debug", "tiny", "small", "base", "large"),
        "large",
        "--max-iters",
    ),
    Trainer(
        "llm",
        "ezpz.examples.llm",
        "a Llama as TOML files say, a line per window of steps",
        _own("debug", "300m", "8b"),
        "300m",
        "--training.steps",
    ),
    Trainer(
        "gpt",
        "ezpz.examples.gpt",
        "a GPT on characters, evaluated and sampled meanwhile",
        _own("debug", "shakespeare", "gpt2", "gpt2_medium", "gpt2_large", "gpt2_xl"),
        "gpt2",
        "--train.max_iters",
    ),
)
TRAINERS = {trainer.name: trainer for trainer in _ALL}


def choose_trainers(names: str | None) -> list[Trainer]:
    """Return the trainers of a comma list, in its order; all of them for None.

    Raises:
        UsageError: One is unknown or named twice.
    """
    if names is None:
        return list(TRAINERS.values())
    chosen = [word.strip() for word in names.split(",") if word.strip()]
    for name in chosen:
        if name not in TRAINERS:
            raise UsageError(
                f"no trainer {name!r} (from --run); expected some of "
                f"{', '.join(TRAINERS)}.{did_you_mean(name, TRAINERS, _LIST)}"
            )
        if chosen.count(name) > 1:
            raise UsageError(f"{name} is named twice in --run {names}; expected each trainer once. Name it once.")
    if not chosen:
        raise UsageError(
            f"--run {names!r} names no trainer; expected some of {', '.join(TRAINERS)}. Leave it out for all."
        )
    return [TRAINERS[name] for name in chosen]


def choose_preset(trainer: Trainer, preset: str | None, *, devices: int) -> str:
    """Return the preset to run: what was asked for, else ``debug`` on a machine without accelerators, else a larger
    one.

    Raises:
        UsageError: The trainer has no such preset.
    """
    if preset is None:
        return trainer.on_devices if devices else next(iter(trainer.presets))
    if preset not in trainer.presets:
        raise UsageError(
            f"{trainer.name} has no preset {preset!r} (from --preset); expected one of {', '.join(trainer.presets)}."
            f"{did_you_mean(preset, trainer.presets, _LIST)}"
        )
    return preset


def listing() -> str:
    """Return what can be run: a trainer a line, its presets below it."""
    lines = []
    for trainer in TRAINERS.values():
        shown = [f"{name} (on devices)" if name == trainer.on_devices else name for name in trainer.presets]
        lines += [f"{trainer.name:<10}{trainer.about}", f"{'':<10}presets: {', '.join(shown)}"]
    return "\n".join(lines)
