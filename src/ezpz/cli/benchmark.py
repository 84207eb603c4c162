"""Run ``ezpz benchmark``: launch the trainers one after another, and list their runs as ``ezpz runs`` does."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

from ezpz.cli_parser import option
from ezpz.errors import EzpzError, UsageError, did_you_mean, end_with
from ezpz.fields import Record
from ezpz.interpreter import module_line
from ezpz.launch.options import count, word
from ezpz.launch.python_of_ranks import module_line_of_ranks
from ezpz.tables import hanging
from ezpz.verbs import make_verb_parser
from ezpz.visible import show

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence


class Trainer(Record):
    """One trainer: its preset on devices, its option for steps (none: it counts epochs), its presets from small on."""

    name: str
    module: str
    about: str
    on_devices: str
    steps: str
    presets: Mapping[str, Sequence[str]]

    def command_line(self, folder: Path, preset: str, options: Namespace) -> list[str]:
        """Return what launches it; words after ``--`` come last, so they count."""
        words = [*module_line("ezpz.launch"), *options.launch, "--", *module_line_of_ranks(self.module, os.environ)]
        words += [*self.presets[preset], f"--outdir={folder}", "--no-plots"]
        words += [f"{self.steps}={options.max_iters}"] if self.steps and options.max_iters else []
        return [*words, *options.more]


def _example(name: str, about: str, on_devices: str, steps: str, presets: str) -> Trainer:
    """Return a trainer of `ezpz.examples`, which knows its presets by these names."""
    known = {preset: (f"--preset={preset}",) for preset in presets.split()}
    return Trainer(name, f"ezpz.examples.{name}", about, on_devices, steps, known)


_SMOKE = {"debug": ("--train-iters=50",), "full": ("--train-iters=500", "--batch-size=256")}
_LLAMAS = "debug debugmodel 10m 125m 300m 1b 3b 8b 70b 405b"
_GPTS = "debug shakespeare gpt2 gpt2_medium gpt2_large gpt2_xl"
_ALL = (
    Trainer("test_dist", "ezpz.test_dist", "a small network with DDP: start-up", "full", "--train-iters", _SMOKE),
    _example("fsdp", "a convolutional network on images, FSDP", "mnist", "", "debug mnist cifar10"),
    _example("fsdp_tp", "a Llama on tokens, FSDP and tensor parallel", "300m", "--max-iters", _LLAMAS),
    _example("vit", "a vision transformer on made images", "large", "--max-iters", "debug tiny small base large"),
    _example("llm", "a Llama as TOML files say", "300m", "--training.steps", "debug 300m 8b"),
    _example("gpt", "a GPT on characters, evaluated and sampled", "gpt2", "--train.max_iters", _GPTS),
)
TRAINERS = {trainer.name: trainer for trainer in _ALL}

_OPTIONS = (
    option("--run", type=word, metavar="A,B", help=f"these trainers, in this order ({', '.join(TRAINERS)})"),
    option("--preset", type=word, metavar="NAME", help="the preset of all; otherwise debug, on devices a larger one"),
    option("--max-iters", "--max_iters", dest="max_iters", type=count, metavar="N", help="train N steps; fsdp: epochs"),
    option("--outdir", type=word, metavar="DIR", help="a new or empty folder (outputs/benchmark/<time>)"),
    option("--list", action="store_true", help="show trainers and presets, and run nothing"),
    option("--dry-run", action="store_true", help="show the command lines, and run nothing"),
)
_ABOUT = """\
What each trainer reaches on the machine at hand, as `ezpz runs` lists it. A trainer that fails is listed too, and the
next one runs.

Any option of `launch` can stand beside them: -n 4, --ppn 2, --timeout 10m. What follows -- goes to every trainer."""
_EXAMPLES = (
    ("ezpz benchmark --list", "what can be run"),
    ("ezpz benchmark -n 4 --max-iters 50", "four ranks, 50 steps each"),
)
_EXITS = (("0", "all trainers ran"), ("130", "after Ctrl-C"), ("other", "that of the first trainer that failed"))
_REFUSED = {
    "--explain": "shows a launch and runs nothing",
    "--log-dir": "would be written by one trainer after another",
    "--json": "is no more; `ezpz runs DIR --json` prints what was reached",
    "--epochs": "is no more; `ezpz benchmark --run fsdp -- --epochs=N` says it to the trainer",
}


def main(argv: Sequence[str]) -> int:
    """Run the trainers, list their runs and return the exit code."""
    try:
        options = _parse(argv)
        if options.list:
            print(_listing())
        return 0 if options.list else _benchmark(options)
    except EzpzError as error:
        return end_with(error)


def _listing() -> str:
    """Return what can be run: a trainer a line, its presets below it."""
    from ezpz.view.terminal.screen import look

    lines: list[str] = []
    for trainer in TRAINERS.values():
        shown = [f"{name} (on devices)" if name == trainer.on_devices else name for name in trainer.presets]
        lines += hanging(f"{trainer.name:<10}", trainer.about, look(sys.stdout).width)
        lines += hanging(f"{'':<10}presets: ", ", ".join(shown), look(sys.stdout).width)
    return "\n".join(lines)


def _parse(argv: Sequence[str]) -> Namespace:
    """Read our options; what is left before ``--`` belongs to launch, what is behind it to the trainers."""
    from ezpz.launch.options import OPTIONS, UnknownOptionError, parse

    words = list(argv)
    own = words[: words.index("--")] if "--" in words else words
    usage = "[options] [launch options] [-- trainer options]"
    parser = make_verb_parser(
        "benchmark", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES, exits=_EXITS, allow_abbrev=False
    )
    options, rest = parser.parse_known_args(own)
    refused = next((name for name in _REFUSED if name in {word.partition("=")[0] for word in rest}), None)
    if refused:
        raise UsageError(f"{refused} {_REFUSED[refused]} (from the command line). Leave it out.")
    options.launch, options.more = rest, words[len(own) + 1 :]
    try:
        options.requests = parse([*options.launch, "true"], os.environ)
    except UnknownOptionError as error:
        names = [names[0] for names, _ in _OPTIONS]
        hint = did_you_mean(error.word.partition("=")[0], [*names, *(name for row, _ in OPTIONS for name in row)])
        raise UsageError(
            f"unknown option {error.word} (from the command line); expected {', '.join(names)}, or one of launch."
            f"{hint} Options of the trainers stand behind --: `ezpz benchmark -- {error.word}`."
        ) from None
    if options.requests.command != ("true",):
        stray = options.requests.command[0]
        hint = f"`--run {stray}`" if stray in TRAINERS else "`ezpz benchmark --help`"
        raise UsageError(f"unexpected word {stray!r} (from the command line); expected options. Try {hint}.")
    return options


def _choose(names: str | None, preset: str | None) -> list[Trainer]:
    """Return the trainers of a comma list, in its order; all of them for None.

    Raises:
        UsageError: One is unknown, named twice, or has no such preset.
    """
    chosen = list(TRAINERS) if names is None else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in TRAINERS:
            hint = did_you_mean(name, TRAINERS)
            raise UsageError(f"no trainer {name!r} (from --run); expected some of {', '.join(TRAINERS)}.{hint}")
        if chosen.count(name) > 1:
            raise UsageError(f"{name} is named twice in --run {names}; expected each trainer once. Name it once.")
        presets = TRAINERS[name].presets
        if preset not in {None, *presets}:
            hint = did_you_mean(str(preset), presets)
            known = ", ".join(presets)
            raise UsageError(f"{name} has no preset {preset!r} (from --preset); expected one of {known}.{hint}")
    return [TRAINERS[name] for name in chosen]


def _benchmark(options: Namespace) -> int:
    from ezpz.launch.survey import survey

    chosen = _choose(options.run, options.preset)
    on_devices = survey(options.requests).devices.count > 0  # what does not fit ends here, before anything runs
    folder = Path(options.outdir or "outputs/benchmark/TIME") if options.dry_run else _new_folder(options.outdir)
    lines: dict[str, list[str]] = {}
    for each in chosen:
        preset = options.preset or (each.on_devices if on_devices else next(iter(each.presets)))
        lines[each.name] = each.command_line(folder / each.name, preset, options)
    if options.dry_run:
        show("\n".join(map(shlex.join, lines.values())))
        return 0
    return _run_all(lines, folder)


def _run_all(lines: Mapping[str, Sequence[str]], folder: Path) -> int:
    """Run one after another, whose output goes to stderr, and list what there is; return the exit code."""
    from ezpz.cli.one_child import run
    from ezpz.cli.runs import main as list_runs

    first = stopped = 0
    for number, (name, line) in enumerate(lines.items(), 1):
        who = f"ezpz: [{number}/{len(lines)}] {name}"
        show(who, sys.stderr)
        ended = run(line, stdout=sys.stderr)
        show(f"{who}: exit code {ended.code} after {ended.seconds:.1f} s", sys.stderr)
        first, stopped = first or ended.code, ended.stopped
        if stopped:
            break
    if any(folder.iterdir()):
        list_runs([str(folder)])
    return 128 + stopped if stopped else first


def _new_folder(outdir: str | None) -> Path:
    """Return a new or empty folder, so that no earlier runs are listed with these."""
    from ezpz.track.run_folder import make_folder

    folder = make_folder("benchmark", outdir, time.strftime("%Y-%m-%d-%H%M%S"))
    taken = next(folder.iterdir(), None)
    if taken is not None:
        raise UsageError(f"{folder} holds {taken.name} already (from --outdir); expected a new or empty folder.")
    return folder
