"""Keep what comes of ``ezpz benchmark``: benchmark.json, the figures of each run; both as table, Markdown, page."""

from __future__ import annotations

import json
import os
import platform
import time
from math import isfinite
from pathlib import Path
from statistics import median, quantiles

from ezpz.cli.columns import aligned
from ezpz.dist.host_memory import cpu_model
from ezpz.errors import EzpzError, TrackError, UsageError
from ezpz.files import write_whole
from ezpz.launch.contract import cores
from ezpz.redact import redact_config
from ezpz.track.by_rank import counting_windows, statistic
from ezpz.track.facts import git_commit, version
from ezpz.track.folder import make_folder, now
from ezpz.track.quantities import duration
from ezpz.track.report import write_report
from ezpz.track.report.head import heading
from ezpz.track.report.markup import document, shown
from ezpz.track.report.tables import Part, table
from ezpz.track.run import open_run
from ezpz.track.table import Table

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ezpz.launch.survey import Survey
    from ezpz.track.run import Run

# The folder of a benchmark, and ``benchmark.json`` in it: what was asked for, on which machine, and what came of it.
#
# {"schema": 1, "started": "2026-11-20T16:20:01+01:00", "ended": …, "seconds": 61.2, "folder": …, "command": …,
# "git_commit": …, "versions": {"ezpz": …, "torch": …, "python": …}, "machine": {"hosts": ["n01"], "ranks": 4, …},
# "trainers": [{"trainer": "vit", "preset": "debug", "state": "finished", "code": 0, "command": …, "log": "vit.log",
# "report": "vit/report.html", "seconds": 20.1, "sps": …, "step_median": …, …}]}
#
# ``state`` is ``finished``, ``failed``, ``interrupted`` or ``not run``; `read_figures` names the figures.


def new_folder(outdir: str | None) -> Path:
    """Return the folder, a new or empty one."""
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


def new_entry(trainer: str, preset: str, line: str) -> dict[str, Any]:
    """Return what is known of a trainer that has not run."""
    return {
        "trainer": trainer,
        "preset": preset,
        "state": "not run",
        "code": None,
        "cause": "",
        "command": line,
        "log": f"{trainer}.log",
        "report": None,
        "seconds": None,
        **NOTHING,
        "parts": {},
    }


def write(record: dict[str, Any], folder: Path) -> None:
    """Write ``benchmark.json`` as it is now, without secrets."""
    record["ended"] = now()
    _save(folder / "benchmark.json", json.dumps(_without_secrets(record), indent=2) + "\n")


def _without_secrets(record: dict[str, Any]) -> dict[str, Any]:
    shown = redact_config(record)
    return shown if isinstance(shown, dict) else {}


def write_all(record: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Write ``benchmark.json``, ``benchmark.md``, the page, and that of each run; return the entries that may be
    shown.
    """
    run_pages(folder, record["trainers"])
    write(record, folder)
    public = _without_secrets(record)
    entries: list[dict[str, Any]] = public["trainers"]
    known = facts(public)
    _save(folder / "benchmark.md", markdown(entries, known))
    _save(folder / "report.html", build_page(public, known))
    return entries


def _save(path: Path, text: str) -> None:
    """Write a file in one move, or say in one line why it cannot be written."""
    try:
        write_whole(path, text.encode("utf-8", "replace"), sync=True)
    except OSError as error:
        raise EzpzError(
            f"cannot write {path}: {error.strerror or error}; expected space and leave to write there. "
            "What ran lies in its own folder beside it."
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
        "processor": cpu_model(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


# The figures of one trainer; what the run did not record is None, never a guess.
#
# Rows of steps hold ``dt`` and its parts in seconds, ``sps``, ``tps``, ``mfu`` in percent, ``memory_gib`` now and then.
# A trainer that records a row per epoch has ``epoch`` and the ``dt`` of all its steps instead; its configuration holds
# how many these are: ``epoch_steps``, or ``steps`` and ``epochs``.

_RATES = ("sps", "tps", "mfu")
_PARTS = {"dtd": "data", "dtf": "forward", "dtb": "backward", "dto": "optimizer"}
_OF_RUN = ("ranks", "parameters", "steps", *_RATES, "memory_gib")
_TIMES = ("first_step", "step_median", "step_p95", "time_to_first_step")
NOTHING: dict[str, Any] = dict.fromkeys((*_OF_RUN, *_TIMES))


def read_figures(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a run's figures, and why it ended early in its own words; empty for a run that did not, or is not there.

    The figures: ``ranks parameters steps``; ``sps tps mfu`` (medians of the steady steps); ``memory_gib`` (the largest
    of all ranks); ``first_step step_median step_p95`` and ``time_to_first_step`` (since the process began) in seconds;
    ``parts``, the median seconds of each part of a step.
    """
    try:
        run = open_run(folder)
        rows = run.table
    except UsageError:
        return {**NOTHING, "parts": {}}, ""
    except TrackError:  # it ended before its first row
        rows = Table()
        vars(run).update(rows=rows, windows=[])
    config = _mapping(run, "config")
    figures = {
        **NOTHING,
        "parts": {},
        "ranks": _mapping(run, "ranks").get("world_size"),
        "parameters": config.get("parameters") or _mapping(run, "effective").get("model.parameters"),
        "memory_gib": _memory(run, rows),
    }
    return figures | (_of_epochs(rows, config) if "epoch" in rows.cells else _of_steps(run, rows, config)), run.cause


def _mapping(run: Run, name: str) -> dict[str, Any]:
    """Return facts of a run that hold others; {} where they are something else."""
    facts = run.facts.get(name)
    return facts if isinstance(facts, dict) else {}


def _of_steps(run: Run, rows: Table, config: dict[str, Any]) -> dict[str, Any]:
    seconds = _column(rows, "dt")
    count, warmup = len(seconds), config.get("warmup")
    # Not steady at the start: a tenth, at least two, and those that the run counts so.
    skip = max(2, count // 10, warmup if isinstance(warmup, int) else 0)
    skip = skip if skip < count else max(0, count - 1)
    start = _mapping(run, "timeline").get("first_step")
    steady = {name: _column(rows, name)[skip:] for name in ("dt", *_RATES, *_PARTS)}
    return {
        "steps": count or None,
        **{name: _middle(steady[name]) for name in _RATES},
        "first_step": seconds[0] if seconds else None,
        "step_median": _middle(steady["dt"]),
        "step_p95": quantiles(steady["dt"], n=20, method="inclusive")[-1] if len(steady["dt"]) > 1 else None,
        "time_to_first_step": start if seconds and isinstance(start, (int, float)) else None,
        "parts": {part: median(steady[name]) for name, part in _PARTS.items() if steady[name]},
    }


def _of_epochs(rows: Table, config: dict[str, Any]) -> dict[str, Any]:
    """Return what rows of whole epochs show: neither a first step nor a spread of steps can be seen in them."""
    seconds = _column(rows, "dt")
    skip = 1 if len(seconds) > 1 else 0
    rates = {name: _middle(_column(rows, name)[skip:]) for name in _RATES}
    steps, epoch = _epoch_steps(config), _middle(seconds[skip:])
    if steps is None or not epoch:
        return rates
    samples = config.get("samples_per_step")
    if rates["sps"] is None and isinstance(samples, (int, float)):
        rates["sps"] = samples * steps / epoch
    return {**rates, "steps": steps * len(seconds), "step_median": epoch / steps}


def _epoch_steps(config: dict[str, Any]) -> int | None:
    """Return the steps of an epoch: as the run recorded it, or its steps by its epochs where that is a whole number."""
    exact, steps, epochs = (config.get(name) for name in ("epoch_steps", "steps", "epochs"))
    if isinstance(exact, int) and exact > 0:
        return exact
    if isinstance(steps, int) and isinstance(epochs, int) and 0 < epochs <= steps and steps % epochs == 0:
        return steps // epochs
    return None


def _memory(run: Run, rows: Table) -> float | None:
    """Return the largest memory of all ranks: rank 0's own rows, and the windows over all."""
    known = _column(rows, "memory_gib")
    for window in counting_windows(run):
        known += _numbers(statistic(window, "memory_gib", "max").tolist())
    return max(known, default=None)


def _column(rows: Table, name: str) -> list[float]:
    cells = rows.cells.get(name)
    return _numbers(cells.values) if cells else []


def _numbers(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if type(value) in {int, float} and isfinite(value)]


def _middle(values: list[float]) -> float | None:
    return median(values) if values else None


# The figures as a table: for a terminal of 80 columns, as Markdown, and on a page.


def short(value: float) -> str:
    """Return a number in at most five characters, up to 999T: ``0.031``, ``28.7``, ``1.2k``, ``33.6M``, ``8.03B``."""
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale * 0.9995:
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


# What a column is called in a terminal and elsewhere, the figure in it, and how it is written.
_COLUMNS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("ranks", "ranks", "ranks", "{:.0f}".format),
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
_TITLES = ["trainer", "preset", *(name for _, name, _, _ in _COLUMNS)]


def _rows(entries: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [entry["trainer"], entry["preset"], *(_cell(entry, key, write) for _, _, key, write in _COLUMNS)]
        for entry in entries
    ]


def _cell(entry: dict[str, Any], key: str, write: Callable[[float], str]) -> str:
    value = entry.get(key)
    if isinstance(value, (int, float)):
        return write(value)
    return "n/a" if key == "mfu" and entry.get("step_median") is not None else "-"


def render(entries: Sequence[dict[str, Any]], *, color: bool = False) -> str:
    """Return the table for a terminal; wide names make it wider than the screen, so that no digit is lost.

    Args:
        entries: What ``benchmark.json`` holds of each trainer.
        color: Whether a failed trainer may stand out.
    """
    heads = [("", "trainer"), ("", "preset"), *(head.rpartition("\n")[::2] for head, _, _, _ in _COLUMNS)]
    lines = aligned([*zip(*heads, strict=True), *_rows(entries)], range(2, len(heads)), " ")
    for at, entry in enumerate(entries, 2):
        if color and entry["state"] != "finished":
            lines[at] = f"\x1b[31m{lines[at]}\x1b[0m"
    return "\n".join(lines)


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
    lines = ["# ezpz benchmark", "", _row(_TITLES), f"|{'---|' * 2}{'--:|' * len(_COLUMNS)}"]
    lines += [*map(_row, _rows(entries)), "", *notes(entries), "", "| | |", "|---|---|", *map(_row, facts), ""]
    lines += ["```sh", *(entry["command"] for entry in entries), "```", ""]
    return "\n".join(lines)


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"


# ``report.html`` of a benchmark is made like a run's own page (`ezpz.track.report`), without scripts.

_WIDE, _HIGH = 100.0, 18  # a bar: percent, pixels


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
    failed = sum(entry["state"] != "finished" for entry in entries)
    state = ("failed", f"{failed} of {len(entries)} not finished") if failed else ("finished", "finished")
    pairs = [
        ("started", record["started"]),
        ("duration", duration(record["seconds"])),
        ("commit", (record["git_commit"] or "")[:12]),
        ("folder", record["folder"]),
    ]
    links = {entry["trainer"]: entry["report"] for entry in entries if entry["report"]}
    sentences = "".join(f'<p class="notes">{shown(note)}</p>' for note in notes(entries))
    lines = "\n".join(entry["command"] for entry in entries)
    parts = (
        Part("trainers", "Trainers", f"{table(_rows(entries), _TITLES, links)}{sentences}\n"),
        Part("time", "Where a step's time goes", _shares(entries)),
        Part("machine", "Machine", table(facts)),
        Part("commands", "Command lines", f"<pre>{shown(lines)}</pre>"),
    )
    main = heading("ezpz benchmark", state, [pair for pair in pairs if pair[1]], record["command"])
    when = record["ended"] or record["started"]
    footer = f"Written by ezpz, {shown(when)}. The same figures: <code>benchmark.json</code>."
    return document("ezpz benchmark", main + "".join(part.render() for part in parts), footer)


def _shares(entries: Sequence[dict[str, Any]]) -> str:
    """Return a bar for each trainer that recorded the parts of its steps."""
    rows = "".join(_bar(entry) for entry in entries if entry["parts"] and entry["step_median"])
    names = "".join(f'<li><i class="s{at}"></i><span>{part}</span></li>' for at, part in enumerate(_PARTS.values()))
    return (
        f'<ul class="legend">{names}</ul><div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    )


def _bar(entry: dict[str, Any]) -> str:
    whole = max(entry["step_median"], sum(entry["parts"].values()))
    at, drawn, names = 0.0, "", []
    for index, part in enumerate(_PARTS.values()):
        if part not in entry["parts"]:
            continue
        share = _WIDE * entry["parts"][part] / whole
        drawn += f'<rect class="area s{index}" x="{at:.2f}" y="0" width="{share:.2f}" height="{_HIGH}"/>'
        at += share
        names.append(f"{part} {_milli(entry['parts'][part])} ms")
    text = f"{', '.join(names)} of {_milli(entry['step_median'])} ms"
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
