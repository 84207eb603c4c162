"""Facts as tables: nested configurations by dotted names, everything escaped and of bounded length."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ezpz.track.facts import flatten
from ezpz.track.report.markup import number, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ezpz.track.run import Run

__all__ = ["facts_table", "raw", "section", "table", "value_text"]

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
        text = f"histogram of {number(sum(value.counts))} values from {number(value.edges[0])} to {number(value.edges[-1])}"
    elif isinstance(value, (list, dict)):
        text = json.dumps(value, default=str)
    else:
        text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … and {len(text) - _LONGEST:,} characters more"


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows of plain text as a table whose first column names the others."""
    known = list(rows)
    left_out = len(known) - _MOST_ROWS
    if left_out > 0:
        known = [*known[:_MOST_ROWS], (f"… and {left_out:,} more", *[""] * (len(known[0]) - 1))]
    top = f"<thead><tr>{''.join(f'<th>{shown(cell)}</th>' for cell in head)}</tr></thead>" if head else ""
    body = "\n".join(
        f'<tr><th scope="row">{shown(first)}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in known
    )
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    kind = ' class="short"' if len(text) <= _SHORT else ""  # a word among long neighbours is not torn apart
    return f"<td{kind}>{shown(text)}</td>"


def section(title: str, inside: str, *, name: str, open_: bool = True, count: int | None = None) -> str:
    """Return a part of the page that folds, also without scripts; empty where nothing is inside."""
    if not inside:
        return ""
    number_of = f" <small>{count}</small>" if count is not None else ""
    return (
        f'<details class="part" id="{name}"{" open" if open_ else ""}><summary><h2>{shown(title)}{number_of}</h2></summary>\n'
        f"{inside}</details>\n"
    )


def facts_table(title: str, facts: Any, *, name: str, open_: bool = False) -> str:
    """Return a part with one table of facts."""
    if not isinstance(facts, dict) or not facts:
        return ""
    rows = [(name, value_text(value)) for name, value in flatten(facts)]
    return section(title, table(rows), name=name, open_=open_, count=len(rows))


def raw(run: Run) -> str:
    """Return the part that holds ``run.json`` as it is."""
    if not run.facts:
        return ""
    text = json.dumps(run.facts, indent=2, ensure_ascii=False)
    if len(text) > _RAW:
        text = f"{text[:_RAW]}\n… and {len(text) - _RAW:,} characters more in {run.folder / 'run.json'}"
    return section("run.json", f"<pre>{shown(text)}</pre>", name="run-json", open_=False)
