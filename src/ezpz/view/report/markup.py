"""Make HTML from unchecked text: names, values and command lines are data, whatever they hold."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        title: What is seen; plain text.
        label: The chart in a sentence, for those who cannot see it; plain text.
        svg: What the picture is made of.
        size: Width and height of the picture, pixels.
        data: What the script needs to know of it, as JSON holds it.
        legend: Name and class of each colour; empty where one line needs none.
        notes: Sentences below it; plain text.
        wide: Whether it takes the page's whole width.
        twin: The same chart for a narrow screen, on which the wide one cannot be read; its picture alone is shown,
            in place of this one's.
    """

    title: str
    label: str
    svg: str
    size: tuple[int, int]
    data: dict[str, object]
    legend: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wide: bool = False
    twin: Chart | None = None


def shown(value: object) -> str:
    """Return text as HTML shows it, in an element or between quotes."""
    return escape(str(value).encode("utf-8", "replace").decode(), quote=True)


def embedded(value: object) -> str:
    """Return JSON that nothing inside can end early: no ``<`` is left in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def slug(title: str, taken: set[str]) -> str:
    """Return an id for a chart: letters, digits and dashes of its title; it is added to ``taken``."""
    base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "chart"
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


def _classes(chart: Chart) -> list[str]:
    kinds = (("wide", chart.wide), ("has-twin", chart.twin is not None))
    return ["chart", *(name for name, is_so in kinds if is_so)]


def _twin(chart: Chart | None) -> str:
    if chart is None:
        return ""
    width, height = chart.size
    return f'<svg class="narrow" viewBox="0 0 {width} {height}" aria-hidden="true">{chart.svg}</svg>'


def figure(chart: Chart, name: str) -> str:
    """Return a chart as a ``<figure>`` that the script finds by its order on the page."""
    width, height = chart.size
    legend = "".join(
        f'<li title="{shown(label)}"><i class="{kind}"></i><span>{shown(label)}</span></li>'
        for label, kind in chart.legend
    )
    notes = f'<p class="notes">{shown("; ".join(chart.notes))}</p>' if chart.notes else ""
    return (
        f'<figure class="{" ".join(_classes(chart))}" id="chart-{name}" data-chart>'
        f'<figcaption><span class="title" title="{shown(chart.title)}">{shown(chart.title)}</span></figcaption>'
        + (f'<ul class="legend">{legend}</ul>' if legend else "")
        + f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{shown(chart.label)}">{chart.svg}</svg>'
        + f"{_twin(chart.twin)}{notes}</figure>\n"
    )


def document(
    title: str,
    main: str,
    footer: str,
    links: Sequence[tuple[str, str]] = (),
    data: list[dict[str, object]] | None = None,
) -> str:
    """Return a page in one file: its style and script are inside, and a policy forbids every request.

    Args:
        title: Plain text.
        main: HTML.
        footer: HTML.
        links: Id and title of the parts that the bar at the top leads to.
        data: What the script needs to know of the charts, in their order; None for a page without bar and script.
    """
    here = files("ezpz.view.report")
    style, script = (here.joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    policy, bar, end = "default-src 'none'; img-src data:; style-src 'unsafe-inline'", "", ""
    if data is not None:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        anchors = "".join(f'<a href="#{name}">{shown(text)}</a>' for name, text in links)
        bar = f'<nav><div>{anchors}<span id="tools"></span></div></nav>\n'
        end = f'<script type="application/json" id="data">{embedded(data)}</script>\n<script>{script}</script>\n'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{shown(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{bar}<main>\n{main}</main>\n<footer>{footer}</footer>\n{end}</body>\n</html>\n"
    )
