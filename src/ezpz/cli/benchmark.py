"""Run ``ezpz benchmark``: the trainers one after another on the machine at hand, as a table and a page."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from ezpz.cli import make_verb_parser
from ezpz.cli.columns import hanging
from ezpz.cli_parser import option
from ezpz.errors import EzpzError, UsageError, did_you_mean, end_with
from ezpz.fields import Record
from ezpz.interpreter import module_line
from ezpz.launch.options import count, word
from ezpz.visible import LINES, show, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence
    from typing import Any


# The trainers, with their presets and command lines.

_LIST = " Run `ezpz benchmark --list`."  # the advice where no name is near


class Trainer(Record):
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


def listing(width: int) -> str:
    """Return what can be run: a trainer a line, its presets below it, in lines of at most ``width`` columns."""
    lines: list[str] = []
    for trainer in TRAINERS.values():
        shown = [f"{name} (on devices)" if name == trainer.on_devices else name for name in trainer.presets]
        lines += hanging(f"{trainer.name:<10}", trainer.about, width)
        lines += hanging(f"{'':<10}presets: ", ", ".join(shown), width)
    return "\n".join(lines)


_OPTIONS = (
    option("--run", type=word, metavar="A,B", help=f"these trainers, in this order ({', '.join(TRAINERS)})"),
    option(
        "--preset",
        type=word,
        metavar="NAME",
        help="the preset of every trainer; otherwise debug without accelerators, else a larger one",
    ),
    option(
        "--max-iters",
        "--max_iters",
        dest="max_iters",
        type=count,
        metavar="N",
        help="train N steps instead of the preset's own; fsdp counts epochs",
    ),
    option("--epochs", type=count, metavar="N", help="train N epochs instead of the preset's own"),
    option("--outdir", type=word, metavar="DIR", help="a new or empty folder (outputs/benchmark/<time>)"),
    option("--timeout", metavar="TIME", help="each trainer must have ended by then: 90, 90s, 10m, 1h30m"),
    option("--list", action="store_true", help="show trainers and presets, and run nothing"),
    option("--dry-run", action="store_true", help="show the command lines, and run nothing"),
    option("--json", action="store_true", help="print benchmark.json instead of the table"),
)
_ABOUT = """\
Throughput, MFU, memory, time of a step, time to the first step of each on the machine at hand. A trainer that fails
is reported and the next one runs.

Any option of `launch` can stand beside them: -n 4, --ppn 2, --hosts n01,n02. What follows -- goes to every
trainer. The folder then holds benchmark.json, benchmark.md, report.html, and of each trainer its log and its run
folder."""
_EXAMPLES = (
    ("ezpz benchmark --list", "what can be run"),
    ("ezpz benchmark --run fsdp,vit", "two of them"),
    ("ezpz benchmark -n 4 --max-iters 50", "four ranks, 50 steps each"),
)
_EXITS = (
    ("0", "all trainers ran"),
    ("130", "after Ctrl-C; what ran is written"),
    ("other", "that of the first trainer that failed"),
)
_TAIL = 20  # lines of a failed trainer's log that are shown
_TAIL_BYTES = 1 << 16  # where they are looked for
_REFUSED = {"explain": "shows a launch and runs nothing", "log_dir": "would be written by one trainer after another"}


def main(argv: Sequence[str]) -> int:
    """Run the trainers, show the table and return the exit code."""
    try:
        options = _parse(argv)
        if options.list:
            from ezpz.track.terminal.screen import look

            print(listing(look(sys.stdout).width))
            return 0
        return _benchmark(options, shlex.join(["ezpz", "benchmark", *argv]))
    except EzpzError as error:
        return end_with(error)


def _parse(argv: Sequence[str]) -> Namespace:
    """Read our options; what is left before ``--`` belongs to launch, what is behind it to the trainers."""
    from ezpz.launch.options import parse

    words = list(argv)
    own = words[: words.index("--")] if "--" in words else words
    usage = "[options] [launch options] [-- trainer options]"
    parser = make_verb_parser(
        "benchmark", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS, allow_abbrev=False
    )
    options, rest = parser.parse_known_args(own)
    options.more = words[len(own) + 1 :]
    options.launch = rest if options.timeout is None else [*rest, f"--timeout={options.timeout}"]
    options.requests = parse([*options.launch, "true"], os.environ)
    if options.requests.command != ("true",):
        stray = options.requests.command[0]
        hint = f"`--run {stray}`" if stray in TRAINERS else "`ezpz benchmark --help`"
        raise UsageError(f"unexpected word {stray!r} (from the command line); expected options. Try {hint}.")
    for name, reason in _REFUSED.items():
        if getattr(options.requests, name):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} {reason} (from the command line); expected no such option. Leave it out.")
    return options


def _benchmark(options: Namespace, command: str) -> int:
    from ezpz.cli.benchmark_figures import begin, new_entry, new_folder
    from ezpz.launch.survey import survey

    chosen = choose_trainers(options.run)
    seen = survey(options.requests)  # what does not fit ends here, before anything runs
    unmoved = [trainer.name for trainer in chosen if options.max_iters and not (trainer.steps or options.epochs)]
    if unmoved:
        _print(f"note: --max-iters means nothing to {', '.join(unmoved)}, which counts epochs; --epochs N would")
    presets = [choose_preset(trainer, options.preset, devices=seen.devices.count) for trainer in chosen]
    folder = Path(options.outdir or "outputs/benchmark/TIME") if options.dry_run else new_folder(options.outdir)
    lines = [
        trainer.command_line(folder / trainer.name, preset, options)
        for trainer, preset in zip(chosen, presets, strict=True)
    ]
    if options.dry_run:
        show("\n".join(lines))
        return 0
    record = begin(folder, command, seen)
    record["trainers"] = [
        new_entry(trainer.name, preset, line) for trainer, preset, line in zip(chosen, presets, lines, strict=True)
    ]
    code = _run_all(record, folder)
    _show(record, folder, options)
    return code


def _run_all(record: dict[str, Any], folder: Path) -> int:
    """Run one after another, and write after each what there is; return the exit code."""
    from ezpz.cli.benchmark_figures import write

    code, began, entries = 0, time.monotonic(), record["trainers"]
    try:
        for number, entry in enumerate(entries, 1):
            who = f"[{number}/{len(entries)}] {entry['trainer']}"
            _print(f"{who}: {record['machine']['ranks']} ranks, preset {entry['preset']}, log {folder / entry['log']}")
            stopped = _run_one(who, entry, folder)
            record["seconds"] = round(time.monotonic() - began, 3)
            write(record, folder)
            if stopped:
                return 128 + stopped
            code = code or entry["code"]
    except KeyboardInterrupt:  # between two trainers
        return 130
    return code


def _run_one(who: str, entry: dict[str, Any], folder: Path) -> int:
    """Run one trainer, fill in its entry, and return the signal that stopped all; 0 for none."""
    from ezpz.cli.benchmark_figures import read_figures
    from ezpz.cli.one_child import run

    log = folder / entry["log"]
    with log.open("wb") as output:
        ended = run(shlex.split(entry["command"]), stdout=output, is_apart=True)
    figures, cause = read_figures(folder / entry["trainer"])
    state = "interrupted" if ended.stopped else "failed" if ended.code else "finished"
    entry.update(figures, state=state, code=ended.code, cause=cause, seconds=round(ended.seconds, 3))
    last = f"; the end of its log:\n{_last_lines(log)}" if state == "failed" else ""
    code = "" if state == "finished" else f", exit code {ended.code}"
    _print(f"{who}: {state} after {ended.seconds:.1f} s{code}{last}")
    return ended.stopped


def _show(record: dict[str, Any], folder: Path, options: Namespace) -> None:
    """Write table and page, and print the table."""
    from ezpz.cli.benchmark_figures import notes, render, write_all
    from ezpz.visible import use_color

    entries = write_all(record, folder)
    if options.json:
        print((folder / "benchmark.json").read_text(encoding="utf-8"), end="", flush=True)
        return
    print(visible(render(entries, color=use_color(sys.stdout)), LINES, colors=True))
    show("\n".join(["", *notes(entries), f"{folder / 'report.html'}"]))


def _last_lines(log: Path) -> str:
    """Return the last lines of a log that are not empty."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-_TAIL:])


def _print(text: str) -> None:
    """Print on stderr: stdout belongs to the table."""
    show(f"ezpz: {text}", sys.stderr)
