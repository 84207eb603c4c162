"""``report.html`` of a benchmark: the table, where a step's time goes, and a link to the page of each run.

It wears the style of a run's own page (`ezpz.track.report`). It needs no script, so its policy allows none.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ezpz.cli.benchmark_table import COLUMNS, cells, notes, short
from ezpz.errors import EzpzError
from ezpz.track.report import write_report
from ezpz.track.report.markup import duration, shown
from ezpz.track.report.tables import section, table
from ezpz.track.run import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["build_page", "run_pages"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDE, _HIGH = 100.0, 18  # a bar: percent, pixels
_PARTS = ("data", "forward", "backward", "optimizer")


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
    names = "".join(f'<li><i class="s{index}"></i><span>{part}</span></li>' for index, part in enumerate(_PARTS))
    return (
        f'<ul class="legend">{names}</ul><div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    )


def _bar(entry: dict[str, Any]) -> str:
    whole = max(entry["step_median"], sum(entry["parts"].values()))
    at, drawn, told = 0.0, "", []
    for index, part in enumerate(_PARTS):
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
