"""``ezpz benchmark``: the trainers one after another on the machine at hand, as a table and a page."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from importlib.resources import files
from math import isfinite
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from ezpz.cli import make_verb_parser
from ezpz.cli.benchmark_trainers import TRAINERS, choose_preset, choose_trainers, listing
from ezpz.cli_parser import option
from ezpz.errors import EzpzError, TrackError, UsageError, end_with
from ezpz.files import write_whole
from ezpz.launch.contract import cores
from ezpz.launch.options import count, word
from ezpz.track.facts import git_commit, text_of
from ezpz.track.folder import make_folder, now
from ezpz.track.report import write_report
from ezpz.track.report.markup import duration, shown
from ezpz.track.report.tables import section, table
from ezpz.track.run import open_run
from ezpz.track.table import Table
from ezpz.track.values import decode

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ezpz.cli.benchmark_trainers import Trainer
    from ezpz.launch.planning import Survey
    from ezpz.track.run import Run


# The figures of a benchmark as a table: for a terminal of 80 columns, and as Markdown.

_USUAL = 80
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
    return (
        f"{value:.0f}"
        if size >= 99.95
        else f"{value:.1f}"
        if size >= 9.995
        else f"{value:.2f}"
        if size >= 0.095
        else f"{value:.3f}"
    )


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


def render(entries: Sequence[dict[str, Any]], *, color: bool = False, width: int = _USUAL) -> str:
    """Return the table for a terminal.

    Args:
        entries: What ``benchmark.json`` tells of each trainer.
        color: Whether a failed trainer may stand out.
        width: Columns of the terminal; at least 80 are used.
    """
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("trainer", no_wrap=True)
    table.add_column("preset", no_wrap=True)
    for head, _, _, _ in COLUMNS:
        table.add_column(head, justify="right", no_wrap=True)
    for entry in entries:
        style = None if entry["state"] == "finished" else "red"
        table.add_row(entry["trainer"], entry["preset"], *cells(entry), style=style)
    out = StringIO()
    # Wide names shall not push figures out of sight: a table may be wider than the screen, but never loses a digit.
    console = Console(file=out, width=max(_USUAL, width, 240), force_terminal=color, legacy_windows=False)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def notes(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each trainer that did not run to its end, and one that explains the columns."""
    lines = [
        f"{entry['trainer']}: {entry['state']}"
        + (f", exit code {entry['code']}" if entry["code"] is not None else "")
        + (f": {entry['cause']}" if entry["cause"] else "")
        for entry in entries
        if entry["state"] != "finished"
    ]
    return [
        *lines,
        "Medians of the steady steps (without the first tenth, at least two); MFU n/a: none was recorded, as without a known peak of the device.",
    ]


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
# It wears the style of a run's own page (`ezpz.track.report`). It needs no script, so its policy allows none.

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDE, _HIGH = 100.0, 18  # a bar: percent, pixels
_PAGE_PARTS = ("data", "forward", "backward", "optimizer")


def run_pages(folder: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Write the page of each run that has none, and tell each entry where it is, relative to the benchmark's folder."""
    for entry in entries:
        page = folder / entry["trainer"] / "report.html"
        try:
            if not page.is_file():
                write_report(open_run(page.parent), page)
        except (EzpzError, OSError):  # nothing was recorded, or the disk is full: the table has its row all the same
            entry["report"] = None
        else:
            entry["report"] = f"{entry['trainer']}/report.html"


def build_page(told: dict[str, Any], facts: Sequence[tuple[str, str]]) -> str:
    """Return the page.

    Args:
        told: What ``benchmark.json`` holds.
        facts: Name and value of each fact of the machine.
    """
    entries = told["trainers"]
    main = _header(told) + section("Trainers", _figures(entries), name="trainers")
    main += section("Where a step's time goes", _shares(entries), name="time")
    main += section("Machine", table(facts), name="machine")
    lines = "\n".join(entry["command"] for entry in entries)
    main += section("Command lines", f"<pre>{shown(lines)}</pre>", name="commands")
    style = files("ezpz.track.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>ezpz benchmark</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{main}</main>\n"
        f"<footer>Written by ezpz, {shown(told['ended'] or told['started'])}. The same figures: <code>benchmark.json</code>.</footer>\n"
        f"</body>\n</html>\n"
    )


def _header(told: dict[str, Any]) -> str:
    pairs = [
        ("started", told["started"]),
        ("duration", duration(told["seconds"])),
        ("commit", (told["git_commit"] or "")[:12]),
        ("folder", told["folder"]),
    ]
    inside = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in pairs if value)
    failed = [entry for entry in told["trainers"] if entry["state"] != "finished"]
    state = ("failed", f"{len(failed)} of {len(told['trainers'])} not finished") if failed else ("finished", "finished")
    return (
        f'<header><h1>ezpz benchmark <span class="state {state[0]}">{shown(state[1])}</span></h1><dl>{inside}</dl>'
        f'<p class="command"><code>{shown(told["command"])}</code></p></header>\n'
    )


def _figures(entries: Sequence[dict[str, Any]]) -> str:
    heads = "".join(f"<th>{shown(head)}</th>" for head in ("trainer", "preset", *(name for _, name, _, _ in COLUMNS)))
    rows = []
    for entry in entries:
        name = shown(entry["trainer"])
        if entry["report"]:
            name = f'<a href="{shown(entry["report"])}">{name}</a>'
        figures = "".join(f'<td class="short">{shown(cell)}</td>' for cell in [entry["preset"], *cells(entry)])
        rows.append(f'<tr><th scope="row">{name}</th>{figures}</tr>')
    told = "".join(f'<p class="notes">{shown(note)}</p>' for note in notes(entries))
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{told}\n'


def _shares(entries: Sequence[dict[str, Any]]) -> str:
    """Return a bar for each trainer that recorded the parts of its steps."""
    rows = "".join(_bar(entry) for entry in entries if entry["parts"] and entry["step_median"])
    names = "".join(f'<li><i class="s{index}"></i><span>{part}</span></li>' for index, part in enumerate(_PAGE_PARTS))
    return (
        f'<ul class="legend">{names}</ul><div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    )


def _bar(entry: dict[str, Any]) -> str:
    whole = max(entry["step_median"], sum(entry["parts"].values()))
    at, drawn, told = 0.0, "", []
    for index, part in enumerate(_PAGE_PARTS):
        seconds = entry["parts"].get(part)
        if seconds is None:
            continue
        share = _WIDE * seconds / whole
        drawn += f'<rect class="area s{index}" x="{at:.2f}" y="0" width="{share:.2f}" height="{_HIGH}"/>'
        at += share
        told.append(f"{part} {short(seconds * 1e3)} ms")
    text = f"{', '.join(told)} of {short(entry['step_median'] * 1e3)} ms"
    svg = (
        f'<svg viewBox="0 0 {_WIDE:.0f} {_HIGH}" preserveAspectRatio="none" width="100%" height="{_HIGH}" role="img" '
        f'aria-label="{shown(entry["trainer"])}: {shown(text)}">{drawn}</svg>'
    )
    return f'<tr><th scope="row">{shown(entry["trainer"])}</th><td>{svg}{shown(text)}</td></tr>'


# What a benchmark ran on: hosts, processor, memory, devices, site and versions, found without torch.
#
# /proc/cpuinfo    model name	: Intel(R) Xeon(R) Platinum 8480+      a line per core; proc(5)
# /proc/meminfo    MemTotal:       24606036 kB

_LISTED = 4  # hosts that are named; of more, the first and their number


def describe(found: Survey, read: Callable[[str], str] = text_of) -> dict[str, Any]:
    """Return the machine as JSON holds it; None where something is not known.

    Args:
        found: Hosts, devices and placement of the launch.
        read: Returns a file's text, empty where there is none.
    """
    devices, site = found.devices, found.site.site
    return {
        "hosts": list(found.placement.hosts),
        "ranks": found.placement.world_size,
        "devices_per_host": devices.count,
        "device": devices.kind,
        "site": site.name if site else None,
        "scheduler": found.allocation.scheduler,
        "job_id": found.allocation.job_id or None,
        "processor": _after(read("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gib": _gib(_after(read("/proc/meminfo"), "MemTotal")),
        "system": f"{platform.system()} {platform.release()}",
    }


def _after(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), "")


def _gib(text: str) -> float | None:
    number = text.partition(" ")[0]
    return round(int(number) / 2**20, 1) if number.isdecimal() else None


def versions() -> dict[str, str | None]:
    """Return the versions of ezpz, torch and Python; torch is asked for its number only, not loaded."""
    from importlib import metadata

    import ezpz

    try:
        torch: str | None = metadata.version("torch")
    except metadata.PackageNotFoundError:  # the ranks' Python may be another
        torch = None
    return {"ezpz": ezpz.__version__, "torch": torch, "python": platform.python_version()}


def facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the facts that people read, in order: name and text.

    Args:
        told: What ``benchmark.json`` holds.
    """
    return [(name, text) for name, text in _facts(told) if text]


def _facts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine, known = told["machine"], told["versions"]
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
    yield "commit", told["git_commit"] or ""
    yield "started", told["started"]


# The folder of a benchmark, and ``benchmark.json`` in it: what was asked for, on which machine, and what came of it.
#
# {"schema": 1, "started": "2026-11-20T16:20:01+01:00", "ended": …, "seconds": 61.2, "folder": …, "command": …, "git_commit": …,
# "versions": {"ezpz": …, "torch": …, "python": …}, "machine": {"hosts": ["n01"], "ranks": 4, …},
# "trainers": [{"trainer": "vit", "preset": "debug", "state": "finished", "code": 0, "command": …, "log": "vit.log",
# "report": "vit/report.html", "seconds": 20.1, "sps": …, "step_median": …, …}]}
#
# ``state`` is ``finished``, ``failed``, ``interrupted`` or ``not run``; `ezpz.cli.benchmark` names the figures.


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
            f"cannot use the folder {folder}: {error.strerror} (from --outdir); expected a new or empty one. Name another."
        ) from error
    if taken is not None:
        raise UsageError(
            f"{folder} holds {taken.name} already (from --outdir); expected a new or empty folder, so that no earlier "
            "figures are mixed with these. Name another."
        )
    return folder


def begin(folder: Path, command: str, found: Survey) -> dict[str, Any]:
    """Return what is known before anything has run."""
    return {
        "schema": 1,
        "started": now(),
        "ended": None,
        "seconds": 0.0,
        "folder": str(folder),
        "command": command,
        "git_commit": git_commit(Path.cwd()),
        "versions": versions(),
        "machine": describe(found),
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


def write(told: dict[str, Any], folder: Path) -> None:
    """Write ``benchmark.json`` as it is now."""
    told["ended"] = now()
    save(folder / "benchmark.json", json.dumps(told, indent=2) + "\n")


def save(path: Path, text: str) -> None:
    """Write a file in one move.

    Raises:
        EzpzError: It cannot be written.
    """
    try:
        write_whole(path, text.encode("utf-8", "replace"), sync=True)
    except OSError as error:
        raise EzpzError(
            f"cannot write {path}: {error.strerror or error}; expected space and leave to write there. What ran lies in its "
            "own folder beside it."
        ) from error


# The figures of one trainer, read from its run folder; what the run did not record is None, never a guess.
#
# Rows of steps hold ``dt`` and its parts in seconds, ``sps``, ``tps``, ``mfu`` in percent, ``memory_gib`` now and then. A
# trainer that records a row per epoch has ``epoch`` and the ``dt`` of all its steps instead; its configuration tells how many these
# are: ``epoch_steps``, or ``steps`` and ``epochs``.

_RATES = ("sps", "tps", "mfu")
_PARTS = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer"}
NOTHING = dict.fromkeys(
    (
        "ranks",
        "parameters",
        "steps",
        "sps",
        "tps",
        "mfu",
        "memory_gib",
        "first_step",
        "step_median",
        "step_p95",
        "time_to_first_step",
    )
)


def read_figures(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a run's figures, and why it ended early in its own words; empty for a run that did not, or is not there.

    The figures: ``ranks parameters steps``; ``sps tps mfu`` (medians of the steady steps); ``memory_gib`` (the largest of all
    ranks); ``first_step step_median step_p95`` and ``time_to_first_step`` (since the process began) in seconds; ``parts``, the
    median seconds of each part of a step.
    """
    try:
        run = open_run(folder)
        table = run.table
    except UsageError:
        return {**NOTHING, "parts": {}}, ""
    except TrackError:  # it ended before its first row
        table = Table()
        run.__dict__["windows"] = []
    config = run.facts.get("config")
    config = config if isinstance(config, dict) else {}
    effective = run.facts.get("effective")
    effective = effective if isinstance(effective, dict) else {}
    ranks = run.facts.get("ranks")
    told = {
        "ranks": ranks.get("world_size") if isinstance(ranks, dict) else None,
        "parameters": config.get("parameters") or effective.get("model.parameters"),
        "memory_gib": _memory(run, table),
    }
    figures = _of_epochs(table, config) if "epoch" in table.cells else _of_steps(run, table, config)
    return {**NOTHING, **told, **figures}, run.cause


def _of_steps(run: Run, table: Table, config: dict[str, Any]) -> dict[str, Any]:
    seconds = _column(table, "dt")
    skip = _warmup(len(seconds), config)
    timeline = run.facts.get("timeline")
    start = timeline.get("first_step") if isinstance(timeline, dict) else None
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
    """Return what rows of whole epochs tell: neither a first step nor a spread of steps can be seen in them."""
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
    """Return the steps of an epoch: as the run says, or its steps by its epochs where that is a whole number."""
    told, steps, epochs = (config.get(name) for name in ("epoch_steps", "steps", "epochs"))
    if isinstance(told, int) and told > 0:
        return told
    if isinstance(steps, int) and isinstance(epochs, int) and 0 < epochs <= steps and steps % epochs == 0:
        return steps // epochs
    return None


def _warmup(steps: int, config: dict[str, Any]) -> int:
    """Return how many steps at the start are no steady ones: a tenth, at least two, and those that the run called so."""
    told = config.get("warmup")
    wanted = max(2, steps // 10, told if isinstance(told, int) else 0)
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


__all__ = [
    "NOTHING",
    "build_page",
    "describe",
    "facts",
    "main",
    "markdown",
    "read_figures",
    "render",
    "run_pages",
    "short",
]

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
Throughput, MFU, memory, time of a step, time to the first step of each on the machine at hand. A trainer that fails is reported
and the next one runs."""
_MORE = """\
Any option of `launch` can stand beside them: -n 4, --ppn 2, --hosts n01,n02. What stands behind -- goes to every trainer. The
folder then holds benchmark.json, benchmark.md, report.html, and of each trainer its log and its run folder.

Exit code: 0 when all trainers ran; else that of the first that failed. After Ctrl-C 130; what ran is written."""
_TAIL = 20  # lines of a failed trainer's log that are shown
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
    options.wishes = parse([*options.launch, "true"], os.environ)
    if options.wishes.command != ("true",):
        stray = options.wishes.command[0]
        hint = f"`--run {stray}`" if stray in TRAINERS else "`ezpz benchmark --help`"
        raise UsageError(f"unexpected word {stray!r} (from the command line); expected options. Try {hint}.")
    for name, reason in _REFUSED.items():
        if getattr(options.wishes, name):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} {reason} (from the command line); expected no such option. Leave it out.")
    return options


def _benchmark(options: Namespace, command: str) -> int:
    from ezpz.launch.planning import survey

    chosen = choose_trainers(options.run)
    found = survey(options.wishes)  # a wish that does not fit ends here, before anything runs
    unmoved = [trainer.name for trainer in chosen if options.max_iters and not (trainer.steps or options.epochs)]
    if unmoved:
        _tell(f"note: --max-iters says nothing to {', '.join(unmoved)}, which counts epochs; --epochs N would")
    presets = [choose_preset(trainer, options.preset, devices=found.devices.count) for trainer in chosen]
    if options.dry_run:
        folder = Path(options.outdir or "outputs/benchmark/TIME")
        print("\n".join(_line(*pair, folder, options) for pair in zip(chosen, presets, strict=True)))
        return 0
    folder = make(options.outdir)
    told = begin(folder, command, found)
    told["trainers"] = [
        entry(trainer, preset, _line(trainer, preset, folder, options))
        for trainer, preset in zip(chosen, presets, strict=True)
    ]
    code = _run_all(told, folder)
    _show(told, folder, options)
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


def _run_all(told: dict[str, Any], folder: Path) -> int:
    """Run one after another, tell of each, and write after each what there is; return the exit code."""
    code, began, entries = 0, time.monotonic(), told["trainers"]
    try:
        for number, entry in enumerate(entries, 1):
            who = f"[{number}/{len(entries)}] {entry['trainer']}"
            _tell(f"{who}: {told['machine']['ranks']} ranks, preset {entry['preset']}, log {folder / entry['log']}")
            stopped = _run_one(who, entry, folder)
            told["seconds"] = round(time.monotonic() - began, 3)
            write(told, folder)
            if stopped:
                return 128 + stopped
            code = code or entry["code"]
    except KeyboardInterrupt:  # between two trainers
        return 130
    return code


def _run_one(who: str, entry: dict[str, Any], folder: Path) -> int:
    """Run one trainer, fill in its entry, and return the signal that stopped all; 0 for none."""
    from ezpz.cli.one_child import run_benchmark_child, tail

    log = folder / entry["log"]
    ended = run_benchmark_child(shlex.split(entry["command"]), log)
    figures, cause = read_figures(folder / entry["trainer"])
    state = "interrupted" if ended.stopped else "failed" if ended.code else "finished"
    entry.update(figures, state=state, code=ended.code, cause=cause, seconds=round(ended.seconds, 3))
    last = f"; the end of its log:\n{tail(log, _TAIL)}" if state == "failed" else ""
    code = "" if state == "finished" else f", exit code {ended.code}"
    _tell(f"{who}: {state} after {ended.seconds:.1f} s{code}{last}")
    return ended.stopped


def _show(told: dict[str, Any], folder: Path, options: Namespace) -> None:
    """Write table and page, and print the table."""
    from shutil import get_terminal_size

    from ezpz.log import use_color

    entries, known = told["trainers"], facts(told)
    run_pages(folder, entries)
    write(told, folder)
    save(folder / "benchmark.md", markdown(entries, known))
    save(folder / "report.html", build_page(told, known))
    if options.json:
        print((folder / "benchmark.json").read_text(encoding="utf-8"), end="", flush=True)
        return
    width = get_terminal_size().columns
    print(render(entries, color=use_color(sys.stdout), width=width))
    print("\n".join(["", *notes(entries), f"{folder / 'report.html'}"]), flush=True)


def _tell(text: str) -> None:
    """Speak on stderr: stdout belongs to the table."""
    print(f"ezpz: {text}", file=sys.stderr, flush=True)
