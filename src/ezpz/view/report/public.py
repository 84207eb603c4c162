"""Make a copy of a run that can be shown to anybody: without hosts, paths, users and arguments.

Facts are chosen by name, and texts among them by what they look like: what is not known to be harmless stays out.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ezpz.records.run_record import RunRecord
    from ezpz.track.run_reader import Run
    from ezpz.track.table import Table

_KEPT = ("schema", "state", "started", "ended", "seconds", "attempt", "timeline", "python", "git_commit")
_FILTERED = ("config", "effective", "ranks", "versions", "environment")
_MODULE = re.compile(r"[\w.+-]+(/[\w.+-]+){0,3}")  # gcc/12.2, of Lmod and Environment Modules
_PATH = re.compile(r"[/\\~@]|\.[A-Za-z]\w{0,4}$|\b\d{1,3}(?:\.\d{1,3}){3}\b|(?:[0-9a-fA-F]{0,4}:){3}")  # and addresses
_HOME = re.compile(r"/(?:home|Users|users|u|gpfs|lustre|scratch)/(?:[\w.-]+/)*?([\w.-]+)")
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")


def public_run(run: Run) -> Run:
    """Return a run of whose facts, metrics and folder only what is public is left."""
    allowed = _Allowed(run)
    record = run.record
    facts: dict[str, Any] = {name: run.facts[name] for name in _KEPT if name in run.facts}
    facts |= {name: allowed.part(run.facts[name]) for name in _FILTERED if run.facts.get(name) is not None}
    modules, system = record.environment.modules, record.environment.system
    if modules:
        facts["environment"]["modules"] = [name for name in modules if _MODULE.fullmatch(name) and allowed.known(name)]
    if system and allowed.known(system):  # Debian GNU/Linux 12
        facts["environment"]["system"] = system
    facts.get("effective", {}).pop("problems", None)
    if record.before:
        facts["earlier"] = [
            {name: text for name in ("state", "started", "ended") if (text := getattr(each, name))}
            | {"cause": allowed.cause(each.cause)}
            for each in record.before
        ]
    name = run.name if allowed.text(run.name) else "run"
    shown = run.changed(folder=Path(), facts={"name": name, **facts}, name=name, cause=allowed.cause(run.cause))
    windows = [{**row, "m": {**row["m"], "keys": allowed.names(row["m"]["keys"])}} for row in run.windows]
    vars(shown).update(rows=_numbers(run.rows, allowed), table=_numbers(run.table, allowed), windows=windows)
    return shown


def _numbers(table: Table, allowed: _Allowed) -> Table:
    """Return a table without metrics that hold texts, or whose names are not public."""
    cells = {
        name: cells
        for name, cells in table.cells.items()
        if allowed.text(name.replace("/", " "))
        and str not in cells.kinds
        and not (
            list in cells.kinds and any(isinstance(each, list) and str in map(type, each) for each in cells.values)
        )
    }
    return table.with_cells(cells)


class _Allowed:
    """Knows the hosts, users and arguments of a run, and so what may be shown."""

    def __init__(self, run: Run) -> None:
        records = [run.record, *run.record.before]
        self._arguments = {word for each in records for word in _arguments(each)}
        names = {name for each in records for name in _hosts_and_users(each)} | set(_owners(run.folder))
        words = "|".join(sorted((re.escape(name) for name in names if len(name) > 1), key=len, reverse=True))
        self._names = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])", re.IGNORECASE) if words else None

    def known(self, text: str) -> bool:
        """Tell whether a text holds no name of a host or user."""
        return self._names is None or not self._names.search(text)

    def text(self, text: str) -> bool:
        """Tell whether a text may be shown."""
        return text not in self._arguments and not _PATH.search(text) and self.known(text)

    def names(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return what belongs to metrics whose names may be shown."""
        return {name: value for name, value in metrics.items() if self.text(name.replace("/", " "))}

    def cause(self, cause: str) -> str:
        """Return why a run ended, of a longer message its kind alone."""
        match = _ERROR.match(cause)
        if match is None or match[0] != cause.partition(":")[0] or ":" not in cause:
            return cause if self.text(cause) else ""
        return match[0] if self.text(match[0]) or match[0].endswith(("Error", "Exception")) else ""

    def part(self, value: Any) -> Any:
        """Return a part of the facts without what may not be shown."""
        if isinstance(value, dict):
            kept = {name: self.part(item) for name, item in value.items() if self.known(name) and "/" not in name}
            return {name: item for name, item in kept.items() if item is not None or value[name] is None}
        if isinstance(value, list):
            return [item for item in map(self.part, value) if item is not None]
        return value if not isinstance(value, str) or self.text(value) else None


def _arguments(record: RunRecord) -> Iterator[str]:
    line = record.launch.get("EZPZ_LAUNCH_CMD", "")
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    for word in [*map(str, record.argv), *words]:
        yield word
        yield word.partition("=")[2]


def _hosts_and_users(record: RunRecord) -> Iterator[str]:
    hosts = [record.host, record.process.host, *record.launch.get("EZPZ_HOSTS", "").split(",")]
    for host in filter(None, hosts):
        yield host
        yield host.partition(".")[0]
    for text in _texts(record.raw):
        yield from _HOME.findall(text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        inside: Iterable[object] = value.values() if isinstance(value, dict) else value
        for item in inside:
            yield from _texts(item)


def _owners(folder: Path) -> Iterator[str]:
    """Yield the names of who owns the run folder and of who writes the report."""
    import pwd

    yield os.environ.get("USER", "")
    for number in {os.getuid(), *([folder.stat().st_uid] if folder.is_dir() else [])}:
        try:
            yield pwd.getpwuid(number).pw_name
        except KeyError:
            continue
