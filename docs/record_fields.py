"""Write the tables of docs/files.md from the classes of `ezpz.records`: ``python docs/record_fields.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ezpz import fields
from ezpz.records.chain_records import ChainJobs, ChainLimits, ChainSave
from ezpz.records.collectives_record import CollectivesRecord
from ezpz.records.hardware_record import HardwareRow
from ezpz.records.journal_lines import JournalRow, OverRanks, SeenBySteps
from ezpz.records.launch_record import LaunchRecord
from ezpz.records.lease_record import LeaseEntry
from ezpz.records.run_record import RunRecord
from ezpz.records.stored_files import Stored

PAGE = Path(__file__).parent / "files.md"
BEGIN, END = "<!-- fields: python docs/record_fields.py writes them -->", "<!-- end of fields -->"
RECORDS = (
    ("`run.json` of a run", RunRecord),
    ("A line of `metrics.jsonl`", JournalRow),
    ("`m` of a line of the kind `ranks`", OverRanks),
    ("`m` of a line of the kind `seen`", SeenBySteps),
    ("A line of `hardware.jsonl`", HardwareRow),
    ("`run.json` of a launch", LaunchRecord),
    ("`collectives.json` of a launch", CollectivesRecord),
    ("`chain.json`", ChainLimits),
    ("`jobs.json`", ChainJobs),
    ("`saved.json`", ChainSave),
    ("`lease-<n>`", LeaseEntry),
)
_KINDS = {fields.Number: "integer", fields.Real: "number", fields.Text: "string", fields.Flag: "boolean"}


def tables() -> str:
    """Return the tables of all records, as Markdown."""
    lines: list[str] = []
    for title, kind in RECORDS:
        lines += ["", f"### {title}", "", "| field | type | meaning |", "|---|---|---|", *_rows(kind, "", {})]
    return "\n".join([*lines, "", ""])


def _rows(kind: type[fields.Record], place: str, seen: dict[type, str]) -> list[str]:
    """Return a row for each field of a record, and behind it those of the record within it, the first time."""
    lines = []
    meanings = _meanings(kind)
    for name, field in kind.CHECKS.items():
        path = f"{place}{name}"
        inner, steps = _part(field)
        text = meanings[name]
        if inner is not None and issubclass(kind, inner):  # the record's own fields
            inner = None
        if inner is not None and inner in seen:
            text = f"{text.rstrip('.')}: as `{seen[inner]}`."
        lines.append(f"| `{path}` | {_type(field)} | {text[0].lower() + text[1:].rstrip('.')} |")
        if inner is not None and inner not in seen:
            seen[inner] = path
            lines += _rows(inner, f"{path}{steps}.", seen)
    return lines


def _part(field: fields.Field) -> tuple[type[fields.Record] | None, str]:
    """Return the record within a field, and what stands between its name and those of that record's fields."""
    if isinstance(field, fields.Part):
        return field.of, ""
    if isinstance(field, (fields.List, fields.Map)):
        inner, steps = _part(field.of)
        return inner, ("[]" if isinstance(field, fields.List) else ".*") + steps
    return None, ""


def _type(field: fields.Field) -> str:
    if isinstance(field, fields.List):
        return f"list of {_type(field.of)}s"
    if isinstance(field, fields.Map):
        return f"name to {_type(field.of)}"
    if isinstance(field, fields.Json):
        return {dict: "object", list: "list"}.get(field.kind, "any")
    if isinstance(field, fields.Pair):
        return "two integers"
    if isinstance(field, fields.Row):
        return f"list of {', '.join(map(_type, field.fields))}"
    return _KINDS.get(type(field), "object")


def _meanings(kind: type[fields.Record]) -> dict[str, str]:
    """Return what the docstring of a record says of each field, those of its bases included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each is Stored or not issubclass(each, fields.Record):
            continue
        _, _, text = (each.__doc__ or "").partition("    Attributes:\n")
        for name, words in re.findall(r"^        (\w+): (.*(?:\n            .*)*)", text, re.MULTILINE):
            found[name] = " ".join(words.split()).replace("``", "`").replace("|", "\\|")
    return found


def page(text: str) -> str:
    """Return the page with tables as they must be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
