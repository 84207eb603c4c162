"""Run ``ezpz benchmark``: the trainers one after another on the machine at hand, as a table and a page."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from math import isfinite
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from ezpz.cli import make_verb_parser
from ezpz.cli.benchmark_trainers import TRAINERS, choose_preset, choose_trainers, listing
from ezpz.cli_parser import option
from ezpz.dist import host_memory
from ezpz.errors import EzpzError, TrackError, UsageError, end_with
from ezpz.files import write_whole
from ezpz.launch.contract import cores
from ezpz.launch.options import count, word
from ezpz.log import use_color
from ezpz.track.facts import git_commit, version
from ezpz.track.folder import make_folder, now
from ezpz.track.quantities import duration
from ezpz.track.report import write_report
from ezpz.track.report.markup import document, shown
from ezpz.track.report.tables import Part, table
from ezpz.track.run import open_run
from ezpz.track.table import Table
from ezpz.track.values import decode

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ezpz.cli.benchmark_trainers import Trainer
    from ezpz.launch.planning import Survey
    from ezpz.track.run import Run

__all__ = ["NOTHING", "build_page", "facts", "main", "markdown", "read_figures", "render", "run_pages", "short"]

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
is reported and the next one runs."""
_MORE = """\
Any option of `launch` can stand beside them: -n 4, --ppn 2, --hosts n01,n02. What follows -- goes to every
trainer. The folder then holds benchmark.json, benchmark.md, report.html, and of each trainer its log and its run
folder.

Exit code: 0 when all trainers ran; else that of the first that failed. After Ctrl-C 130; what ran is written."""
_TAIL = 20  # lines of a failed trainer's log that are shown
_TAIL_BYTES = 1 << 16  # where they are looked for
_REFUSED = {"explain": "shows a launch and runs nothing", "log_dir": "would be written by one trainer after another"}


def main(argv: Sequence[str]) -> int:
    """Run the trainers, show the table and return the exit code."""
    try:
        options = _parse(argv)
        if options.list:
            print(listing())
            return 0
        return _benchmark(options, shlex.join(["ezpz", "benchmark", *argv]))
    except EzpzError as error:
        return end_with(error)
    except BrokenPipeError:  # everything is written; who should have read the table has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(argv: Sequence[str]) -> Namespace:
    """Read our options; what is left before ``--`` belongs to launch, what is behind it to the trainers."""
    from ezpz.launch.options import parse

    words = list(argv)
    own = words[: words.index("--")] if "--" in words else words
    usage = "[options] [launch options] [-- trainer options]"
    parser = make_verb_parser("benchmark", _OPTIONS, _ABOUT, usage=usage, epilog=_MORE, allow_abbrev=False)
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
    from ezpz.launch.planning import survey

    chosen = choose_trainers(options.run)
    seen = survey(options.requests)  # what does not fit ends here, before anything runs
    unmoved = [trainer.name for trainer in chosen if options.max_iters and not (trainer.steps or options.epochs)]
    if unmoved:
        _print(f"note: --max-iters means nothing to {', '.join(unmoved)}, which counts epochs; --epochs N would")
    presets = [choose_preset(trainer, options.preset, devices=seen.devices.count) for trainer in chosen]
    if options.dry_run:
        folder = Path(options.outdir or "outputs/benchmark/TIME")
        print("\n".join(_line(*pair, folder, options) for pair in zip(chosen, presets, strict=True)))
        return 0
    folder = make(options.outdir)
    record = begin(folder, command, seen)
    record["trainers"] = [
        entry(trainer, preset, _line(trainer, preset, folder, options))
        for trainer, preset in zip(chosen, presets, strict=True)
    ]
    code = _run_all(record, folder)
    _show(record, folder, options)
    return code


def _line(trainer: Trainer, preset: str, folder: Path, options: Namespace) -> str:
    words = trainer.command(
        folder / trainer.name,
        preset,
        launch=options.launch,
        steps=options.max_iters,
        epochs=options.epochs,
        more=options.more,
    )
    return shlex.join(words)


def _run_all(record: dict[str, Any], folder: Path) -> int:
    """Run one after another, and write after each what there is; return the exit code."""
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
    entries, known = record["trainers"], facts(record)
    run_pages(folder, entries)
    write(record, folder)
    save(folder / "benchmark.md", markdown(entries, known))
    save(folder / "report.html", build_page(record, known))
    if options.json:
        print((folder / "benchmark.json").read_text(encoding="utf-8"), end="", flush=True)
        return
    print(render(entries, color=use_color(sys.stdout)))
    print("\n".join(["", *notes(entries), f"{folder / 'report.html'}"]), flush=True)


def _last_lines(log: Path) -> str:
    """Return the last lines of a log that are not empty."""
    with log.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join([line for line in text.splitlines() if line.strip()][-_TAIL:])


def _print(text: str) -> None:
    """Print on stderr: stdout belongs to the table."""
    print(f"ezpz: {text}", file=sys.stderr, flush=True)


# The folder of a benchmark, and ``benchmark.json`` in it: what was asked for, on which machine, and what came of it.
#
# {"schema": 1, "started": "2026-11-20T16:20:01+01:00", "ended": …, "seconds": 61.2, "folder": …, "command": …,
# "git_commit": …, "versions": {"ezpz": …, "torch": …, "python": …}, "machine": {"hosts": ["n01"], "ranks": 4, …},
# "trainers": [{"trainer": "vit", "preset": "debug", "state": "finished", "code": 0, "command": …, "log": "vit.log",
# "report": "vit/report.html", "seconds": 20.1, "sps": …, "step_median": …, …}]}
#
# ``state`` is ``finished``, ``failed``, ``interrupted`` or ``not run``; `read_figures` names the figures.


def make(outdir: str | None) -> Path:
    """Make the folder: a new or empty one.

    Raises:
        UsageError: It cannot be made, or holds something.
    """
    if outdir is None:
        return make_folder("benchmark", None, time.strftime("%Y-%m-%d-%H%M%S"))
    folder = Path(outdir).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = next(folder.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"cannot use the folder {folder}: {error.strerror} (from --outdir); expected a new or empty one. "
            "Name another."
        ) from error
    if taken is not None:
        raise UsageError(
            f"{folder} holds {taken.name} already (from --outdir); expected a new or empty folder, so that no earlier "
            "figures are mixed with these. Name another."
        )
    return folder


def begin(folder: Path, command: str, seen: Survey) -> dict[str, Any]:
    """Return what is known before anything has run."""
    return {
        "schema": 1,
        "started": now(),
        "ended": None,
        "seconds": 0.0,
        "folder": str(folder),
        "command": command,
        "git_commit": git_commit(Path.cwd()),
        "versions": {"ezpz": version("ezpz"), "torch": version("torch"), "python": platform.python_version()},
        "machine": _describe(seen),
        "trainers": [],
    }


def entry(trainer: Trainer, preset: str, line: str) -> dict[str, Any]:
    """Return what is known of a trainer that has not run."""
    return {
        "trainer": trainer.name,
        "preset": preset,
        "state": "not run",
        "code": None,
        "cause": "",
        "command": line,
        "log": f"{trainer.name}.log",
        "report": None,
        "seconds": None,
        **NOTHING,
        "parts": {},
    }


def write(record: dict[str, Any], folder: Path) -> None:
    """Write ``benchmark.json`` as it is now."""
    record["ended"] = now()
    save(folder / "benchmark.json", json.dumps(record, indent=2) + "\n")


def save(path: Path, text: str) -> None:
    """Write a file in one move.

    Raises:
        EzpzError: It cannot be written.
    """
    try:
        write_whole(path, text.encode("utf-8", "replace"), sync=True)
    except OSError as error:
        raise EzpzError(
            f"cannot write {path}: {error.strerror or error}; expected space and leave to write there. What ran lies "
            "in its "
            "own folder beside it."
        ) from error


def _describe(seen: Survey) -> dict[str, Any]:
    """Return the machine as JSON holds it; None where something is not known."""
    devices, site = seen.devices, seen.site.site
    return {
        "hosts": list(seen.placement.hosts),
        "ranks": seen.placement.world_size,
        "devices_per_host": devices.count,
        "device": devices.kind,
        "site": site.name if site else None,
        "scheduler": seen.allocation.scheduler,
        "job_id": seen.allocation.job_id or None,
        "processor": host_memory.cpu_model(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


# The figures of one trainer, read from its run folder; what the run did not record is None, never a guess.
#
# Rows of steps hold ``dt`` and its parts in seconds, ``sps``, ``tps``, ``mfu`` in percent, ``memory_gib`` now and then.
# A trainer that records a row per epoch has ``epoch`` and the ``dt`` of all its steps instead; its configuration holds
# how many these are: ``epoch_steps``, or ``steps`` and ``epochs``.

_RATES = ("sps", "tps", "mfu")
_PARTS = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer"}
_FIGURES = (
    *("ranks", "parameters", "steps", "sps", "tps", "mfu", "memory_gib"),
    *("first_step", "step_median", "step_p95", "time_to_first_step"),
)
NOTHING = dict.fromkeys(_FIGURES)


def read_figures(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a run's figures, and why it ended early in its own words; empty for a run that did not, or is not there.

    The figures: ``ranks parameters steps``; ``sps tps mfu`` (medians of the steady steps); ``memory_gib`` (the largest
    of all ranks); ``first_step step_median step_p95`` and ``time_to_first_step`` (since the process began) in seconds;
    ``parts``, the median seconds of each part of a step.
    """
    try:
        run = open_run(folder)
        table = run.table
    except UsageError:
        return {**NOTHING, "parts": {}}, ""
    except TrackError:  # it ended before its first row
        table = Table()
        run.__dict__["windows"] = []
    config, effective, ranks = (_mapping(run, name) for name in ("config", "effective", "ranks"))
    known = {
        "ranks": ranks.get("world_size"),
        "parameters": config.get("parameters") or effective.get("model.parameters"),
        "memory_gib": _memory(run, table),
    }
    figures = _of_epochs(table, config) if "epoch" in table.cells else _of_steps(run, table, config)
    return {**NOTHING, **known, **figures}, run.cause


def _mapping(run: Run, name: str) -> dict[str, Any]:
    """Return facts of a run that hold others; {} where they are something else."""
    facts = run.facts.get(name)
    return facts if isinstance(facts, dict) else {}


def _of_steps(run: Run, table: Table, config: dict[str, Any]) -> dict[str, Any]:
    seconds = _column(table, "dt")
    skip = _warmup(len(seconds), config)
    start = _mapping(run, "timeline").get("first_step")
    rest = seconds[skip:]
    return {
        "steps": len(seconds) or None,
        **{name: _middle(_column(table, name)[skip:]) for name in _RATES},
        "first_step": seconds[0] if seconds else None,
        "step_median": _middle(rest),
        "step_p95": quantiles(rest, n=20, method="inclusive")[-1] if len(rest) > 1 else None,
        "time_to_first_step": start if seconds and isinstance(start, (int, float)) else None,
        "parts": {
            part: middle
            for name, part in _PARTS.items()
            if (middle := _middle(_column(table, name)[skip:])) is not None
        },
    }


def _of_epochs(table: Table, config: dict[str, Any]) -> dict[str, Any]:
    """Return what rows of whole epochs show: neither a first step nor a spread of steps can be seen in them."""
    seconds = _column(table, "dt")
    skip = 1 if len(seconds) > 1 else 0
    rates = {name: _middle(_column(table, name)[skip:]) for name in _RATES}
    steps, epoch = _epoch_steps(config), _middle(seconds[skip:])
    if steps is None or not epoch:
        return {**rates, "parts": {}}
    samples = config.get("samples_per_step")
    if rates["sps"] is None and isinstance(samples, (int, float)):
        rates["sps"] = samples * steps / epoch
    return {**rates, "steps": steps * len(seconds), "step_median": epoch / steps, "parts": {}}


def _epoch_steps(config: dict[str, Any]) -> int | None:
    """Return the steps of an epoch: as the run recorded it, or its steps by its epochs where that is a whole number."""
    exact, steps, epochs = (config.get(name) for name in ("epoch_steps", "steps", "epochs"))
    if isinstance(exact, int) and exact > 0:
        return exact
    if isinstance(steps, int) and isinstance(epochs, int) and 0 < epochs <= steps and steps % epochs == 0:
        return steps // epochs
    return None


def _warmup(steps: int, config: dict[str, Any]) -> int:
    """Return how many steps at the start are not steady: a tenth, at least two, and those that the run counts so."""
    warmup = config.get("warmup")
    wanted = max(2, steps // 10, warmup if isinstance(warmup, int) else 0)
    return wanted if wanted < steps else max(0, steps - 1)


def _column(table: Table, name: str) -> list[float]:
    cells = table.cells.get(name)
    return list(_numbers(cells.values)) if cells else []


def _numbers(values: Iterable[Any]) -> Iterable[float]:
    return (float(value) for value in values if type(value) in {int, float} and isfinite(value))


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None


def _memory(run: Run, table: Table) -> float | None:
    """Return the largest memory of all ranks: rank 0's own rows, and the windows over all."""
    known = _column(table, "memory_gib")
    for window in run.windows:
        keys = window["m"].get("keys")
        entry = keys.get("memory_gib") if isinstance(keys, dict) else None
        largest = entry.get("max") if isinstance(entry, dict) else None
        if isinstance(largest, list):
            known += _numbers(decode(value) for value in largest)
    return max(known, default=None)


# The figures of a benchmark as a table: for a terminal of 80 columns, and as Markdown.

_ABSENT = "-"


def short(value: float) -> str:
    """Return a number in at most five characters, up to 999T: ``0.031``, ``28.7``, ``1.2k``, ``33.6M``, ``8.03B``."""
    size = abs(value)
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= scale * 0.9995:
            return f"{_three(value / scale)}{letter}"
    return _three(value)


def _three(value: float) -> str:
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.095 else 3
    return f"{value:.{digits}f}"


def _milli(value: float) -> str:
    return short(value * 1e3)


def _tenths(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


# What a column is called in a terminal and in Markdown, the figure in it, and how it is written.
COLUMNS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("ranks", "ranks", "ranks", _whole),
    ("params", "parameters", "parameters", short),
    ("sps", "samples/s", "sps", short),
    ("tps", "tokens/s", "tps", short),
    ("MFU\n%", "MFU (%)", "mfu", _tenths),
    ("mem\nGiB", "memory (GiB)", "memory_gib", _three),
    ("1st\nms", "first step (ms)", "first_step", _milli),
    ("step\nms", "step (ms)", "step_median", _milli),
    ("p95\nms", "p95 (ms)", "step_p95", _milli),
    ("start\ns", "to first step (s)", "time_to_first_step", _tenths),
    ("all\ns", "total (s)", "seconds", _tenths),
)


def cells(entry: dict[str, Any]) -> list[str]:
    """Return the cells of one trainer's row behind its name and preset."""
    return [_cell(entry, key, write) for _, _, key, write in COLUMNS]


def _cell(entry: dict[str, Any], key: str, write: Callable[[float], str]) -> str:
    value = entry.get(key)
    if isinstance(value, (int, float)):
        return write(value)
    return "n/a" if key == "mfu" and entry.get("step_median") is not None else _ABSENT


def render(entries: Sequence[dict[str, Any]], *, color: bool = False) -> str:
    """Return the table for a terminal; wide names make it wider than the screen, so that no digit is lost.

    Args:
        entries: What ``benchmark.json`` holds of each trainer.
        color: Whether a failed trainer may stand out.
    """
    heads = [("", "trainer"), ("", "preset"), *(head.rpartition("\n")[::2] for head, _, _, _ in COLUMNS)]
    rows = [*zip(*heads, strict=True), *([entry["trainer"], entry["preset"], *cells(entry)] for entry in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" ".join(map(_aligned, range(len(widths)), row, widths)).rstrip() for row in rows]
    for at, entry in enumerate(entries, 2):
        if color and entry["state"] != "finished":
            lines[at] = f"\x1b[31m{lines[at]}\x1b[0m"
    return "\n".join(lines)


def _aligned(column: int, text: str, width: int) -> str:
    return text.ljust(width) if column < 2 else text.rjust(width)


def notes(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each trainer that did not run to its end, and one that explains the columns."""
    lines = [
        f"{entry['trainer']}: {entry['state']}"
        + (f", exit code {entry['code']}" if entry["code"] is not None else "")
        + (f": {entry['cause']}" if entry["cause"] else "")
        for entry in entries
        if entry["state"] != "finished"
    ]
    explanation = (
        "Medians of the steady steps (without the first tenth, at least two); "
        "MFU n/a: none was recorded, as without a known peak of the device."
    )
    return [*lines, explanation]


def markdown(entries: Sequence[dict[str, Any]], facts: Sequence[tuple[str, str]]) -> str:
    """Return ``benchmark.md``: the table, what it was measured on, and the command lines.

    Args:
        entries: As for `render`.
        facts: Name and value of each fact of the machine.
    """
    heads = ["trainer", "preset", *(name for _, name, _, _ in COLUMNS)]
    rows = [[entry["trainer"], entry["preset"], *cells(entry)] for entry in entries]
    lines = ["# ezpz benchmark", "", _row(heads), f"|{'---|' * 2}{'--:|' * len(COLUMNS)}", *map(_row, rows), ""]
    lines += [*notes(entries), "", "| | |", "|---|---|", *(_row(fact) for fact in facts), ""]
    lines += ["```sh", *(entry["command"] for entry in entries), "```", ""]
    return "\n".join(lines)


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"


# ``report.html`` of a benchmark: the table, where a step's time goes, and a link to the page of each run.
#
# It is made like a run's own page (`ezpz.track.report`), without scripts.

_WIDE, _HIGH = 100.0, 18  # a bar: percent, pixels
_PAGE_PARTS = ("data", "forward", "backward", "optimizer")


def run_pages(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write the page of each run that has none, and note its place, relative to the folder, in the run's entry."""
    for entry in entries:
        page = folder / entry["trainer"] / "report.html"
        try:
            if not page.is_file():
                write_report(open_run(page.parent), page)
        except (EzpzError, OSError):  # nothing was recorded, or the disk is full: the table has its row all the same
            entry["report"] = None
        else:
            entry["report"] = f"{entry['trainer']}/report.html"


def build_page(record: dict[str, Any], facts: Sequence[tuple[str, str]]) -> str:
    """Return the page.

    Args:
        record: What ``benchmark.json`` holds.
        facts: Name and value of each fact of the machine.
    """
    entries = record["trainers"]
    parts = (
        Part("trainers", "Trainers", _figures(entries)),
        Part("time", "Where a step's time goes", _shares(entries)),
        Part("machine", "Machine", table(facts)),
        Part("commands", "Command lines", f"<pre>{shown(_command_lines(entries))}</pre>"),
    )
    main = _header(record) + "".join(part.render() for part in parts)
    when = record["ended"] or record["started"]
    footer = f"Written by ezpz, {shown(when)}. The same figures: <code>benchmark.json</code>."
    return document("ezpz benchmark", main, footer)


def _header(record: dict[str, Any]) -> str:
    pairs = [
        ("started", record["started"]),
        ("duration", duration(record["seconds"])),
        ("commit", (record["git_commit"] or "")[:12]),
        ("folder", record["folder"]),
    ]
    inside = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in pairs if value)
    failed = [entry for entry in record["trainers"] if entry["state"] != "finished"]
    state = (
        ("failed", f"{len(failed)} of {len(record['trainers'])} not finished") if failed else ("finished", "finished")
    )
    return (
        f'<header><h1>ezpz benchmark <span class="state {state[0]}">{shown(state[1])}</span></h1><dl>{inside}</dl>'
        f'<p class="command"><code>{shown(record["command"])}</code></p></header>\n'
    )


def _command_lines(entries: Sequence[dict[str, Any]]) -> str:
    return "\n".join(entry["command"] for entry in entries)


def _figures(entries: Sequence[dict[str, Any]]) -> str:
    heads = ["trainer", "preset", *(name for _, name, _, _ in COLUMNS)]
    rows = [[entry["trainer"], entry["preset"], *cells(entry)] for entry in entries]
    links = {entry["trainer"]: entry["report"] for entry in entries if entry["report"]}
    sentences = "".join(f'<p class="notes">{shown(note)}</p>' for note in notes(entries))
    return f"{table(rows, heads, links)}{sentences}\n"


def _shares(entries: Sequence[dict[str, Any]]) -> str:
    """Return a bar for each trainer that recorded the parts of its steps."""
    rows = "".join(_bar(entry) for entry in entries if entry["parts"] and entry["step_median"])
    names = "".join(f'<li><i class="s{index}"></i><span>{part}</span></li>' for index, part in enumerate(_PAGE_PARTS))
    return (
        f'<ul class="legend">{names}</ul><div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    )


def _bar(entry: dict[str, Any]) -> str:
    whole = max(entry["step_median"], sum(entry["parts"].values()))
    at, drawn, names = 0.0, "", []
    for index, part in enumerate(_PAGE_PARTS):
        seconds = entry["parts"].get(part)
        if seconds is None:
            continue
        share = _WIDE * seconds / whole
        drawn += f'<rect class="area s{index}" x="{at:.2f}" y="0" width="{share:.2f}" height="{_HIGH}"/>'
        at += share
        names.append(f"{part} {short(seconds * 1e3)} ms")
    text = f"{', '.join(names)} of {short(entry['step_median'] * 1e3)} ms"
    svg = (
        f'<svg viewBox="0 0 {_WIDE:.0f} {_HIGH}" preserveAspectRatio="none" width="100%" height="{_HIGH}" role="img" '
        f'aria-label="{shown(entry["trainer"])}: {shown(text)}">{drawn}</svg>'
    )
    return f'<tr><th scope="row">{shown(entry["trainer"])}</th><td>{svg}{shown(text)}</td></tr>'


_LISTED = 4  # hosts that are named; of more, the first and their number


def facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that people read, in order: name and text.

    Args:
        record: What ``benchmark.json`` holds.
    """
    return [(name, text) for name, text in _facts(record) if text]


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, known = record["machine"], record["versions"]
    hosts = machine["hosts"]
    more = f", … ({len(hosts)} hosts)" if len(hosts) > _LISTED else ""
    yield "hosts", ", ".join(hosts[: 1 if more else _LISTED]) + more
    count = machine["devices_per_host"]
    yield "devices", f"{count} {machine['device']} per host" if count else "none (cpu)"
    memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
    yield "processor", f"{machine['processor']}, {machine['cores']} cores{memory}"
    yield "site", machine["site"] or ""
    yield "job", f"{machine['scheduler']} {machine['job_id']}" if machine["job_id"] else ""
    yield "system", machine["system"]
    yield "versions", ", ".join(f"{name} {version}" for name, version in known.items() if version)
    yield "commit", record["git_commit"] or ""
    yield "started", record["started"]
