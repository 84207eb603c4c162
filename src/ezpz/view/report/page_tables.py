"""Show facts as tables and foldable parts: dotted names, everything escaped and of bounded length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ezpz.quantities import number
from ezpz.track.run_facts import flatten
from ezpz.view.report.markup import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ezpz.track.run_reader import Run

_LONGEST = 2000  # characters of one value
_MOST_ROWS = 2000
_SHORT = 24  # characters that stay on one line
_RAW = 60_000  # characters of run.json


def value_text(value: Any) -> str:
    """Return a value as people read it: words without quotes, lists with commas, what a float holds and no more."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, list) and not any(isinstance(item, (list, dict)) for item in value):
        text = ", ".join(value_text(item) for item in value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "none"}[value]
    elif hasattr(value, "counts") and hasattr(value, "edges"):
        low, high = number(value.edges[0]), number(value.edges[-1])
        text = f"histogram of {number(sum(value.counts))} values from {low} to {high}"
    elif isinstance(value, (list, dict)):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … and {len(text) - _LONGEST:,} characters more"


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), links: Mapping[str, str] | None = None) -> str:
    """Return rows of plain text as a table whose first column names the others; ``links`` are their addresses."""
    known = list(rows)
    left_out = len(known) - _MOST_ROWS
    if left_out > 0:
        known = [*known[:_MOST_ROWS], (f"… and {left_out:,} more", *[""] * (len(known[0]) - 1))]
    top = f"<thead><tr>{''.join(f'<th>{shown(cell)}</th>' for cell in head)}</tr></thead>" if head else ""
    columns = head or [""] * len(known[0] if known else ())
    body = "\n".join(
        f'<tr><th scope="row"{_named(columns[0])}>{_linked(first, links or {})}</th>'
        f"{''.join(map(_cell, rest, columns[1:]))}</tr>"
        for first, *rest in known
    )
    kind = ' class="headed"' if head else ""  # on a narrow screen each row is a list
    return f'<div class="scroll"><table{kind}>{top}<tbody>{body}</tbody></table></div>'


def _linked(name: str, links: Mapping[str, str]) -> str:
    return f'<a href="{shown(links[name])}">{shown(name)}</a>' if name in links else shown(name)


def _cell(text: str, column: str) -> str:
    kind = ' class="short"' if len(text) <= _SHORT else ""  # a word among long neighbours is not torn apart
    return f"<td{kind}{_named(column if text else '')}>{shown(text)}</td>"


def _named(column: str) -> str:
    return f' data-column="{shown(column)}"' if column else ""


@dataclass(frozen=True)
class PagePart:
    """A part of the page: any HTML under a heading, with a link at the top of the page.

    Attributes:
        name: Its id, which the link leads to.
        title: Its heading, and the link's text.
        inside: HTML; a part without any is left out.
        is_open: Whether it is unfolded at first.
        count: A number beside the heading.
        charts: What the script needs to know of each ``<figure>`` inside, in their order.
        is_linked: Whether it has a link.
    """

    name: str
    title: str
    inside: str
    is_open: bool = True
    count: int | None = None
    charts: Sequence[dict[str, object]] = ()
    is_linked: bool = True

    def render(self) -> str:
        """Return its HTML, which folds, also without scripts; empty where nothing is inside."""
        if not self.inside:
            return ""
        number_of = f" <small>{self.count}</small>" if self.count is not None else ""
        heading = f"<summary><h2>{shown(self.title)}{number_of}</h2></summary>"
        opened = " open" if self.is_open else ""
        return f'<details class="part" id="{self.name}"{opened}>{heading}\n{self.inside}</details>\n'


def facts_part(name: str, title: str, facts: Mapping[str, Any], *, is_open: bool = False) -> PagePart:
    """Return a part with one table of facts; only one that is unfolded has a link."""
    rows = [(key, value_text(value)) for key, value in flatten(facts)]
    return PagePart(name, title, table(rows) if rows else "", is_open, len(rows), is_linked=is_open)


def raw_part(run: Run) -> PagePart:
    """Return the part that holds ``run.json`` as it is."""
    text = json.dumps(run.facts, indent=2, ensure_ascii=False)
    if len(text) > _RAW:
        text = f"{text[:_RAW]}\n… and {len(text) - _RAW:,} characters more in {run.folder / 'run.json'}"
    return PagePart("run-json", "run.json", f"<pre>{shown(text)}</pre>" if run.facts else "", False, is_linked=False)
