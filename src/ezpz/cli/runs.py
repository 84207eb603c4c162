"""Run ``ezpz runs [ROOT]``: list what ran, what runs, and what died of what.

Only heads and tails of journals are read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.errors import TrackError, UsageError
from ezpz.files import NoAccessError, refuse_unreadable
from ezpz.jobs.chain_folder import chain_of, in_words
from ezpz.jobs.running_launches import age
from ezpz.quantities import duration
from ezpz.redact import redact_text
from ezpz.register import not_ahead
from ezpz.tables import USUAL, Column, cut, hanging, or_dash, screen_width, table, wrapped
from ezpz.track.journal_ends import ends_of
from ezpz.track.named import below, find_runs, runs_named, started_at
from ezpz.track.named import root as usual_root
from ezpz.track.run_reader import open_run, seconds_taken
from ezpz.verbs import make_verb_parser
from ezpz.view.hardware_rows import per_joule
from ezpz.view.run_summary import RunSummary
from ezpz.view.terminal.screen import say
from ezpz.visible import is_terminal, painter, show, use_color, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ezpz.records.run_record import RunRecord


_PAGE = 50  # runs on a terminal: the newest, which stand last; who looks for an older one names it, or a state


def _glances(folders: Iterable[Path], root: Path, closed: list[str]) -> Iterator[dict[str, Any]]:
    """Yield a glance at every run; name on stderr what a newer ezpz wrote, or may not be read.

    Args:
        folders: The run folders.
        root: The folder that was searched.
        closed: The folders that may not be read.
    """
    for folder in folders:
        try:
            yield glance(folder, root)
        except TrackError as error:
            show(f"ezpz runs: left out: {error}", sys.stderr)
        except NoAccessError:
            closed.append(str(folder))
        except UsageError as error:  # it is gone, or no file of a run has such a name
            show(f"ezpz runs: left out: {error}", sys.stderr)
    if closed:
        more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        show(f"ezpz runs: left out, as they may not be read: {closed[0]}{more}", sys.stderr)


_STATES = ("running", "finished", "exited", "failed", "stopped", "died")
_OPTIONS = (
    option(
        "names",
        nargs="*",
        metavar="ROOT|RUN",
        help="the folder to search (outputs, or else the current folder), or a name of runs; with --goodput folders of "
        "runs or of a chain",
    ),
    option("--goodput", action="store_true", help="where the granted seconds of a run went (the newest below outputs)"),
    option("--json", action="store_true", help="print a JSON list; with --goodput an object"),
    option("--all", action="store_true", help=f"all runs, where a terminal shows the newest {_PAGE}"),
    option("--state", choices=_STATES, metavar="STATE", help=f"only runs of this state: {', '.join(_STATES)}"),
)
_ABOUT = "The runs below a folder, the newest last."
_EXAMPLES = (
    ("ezpz runs", "what ran, below outputs/"),
    ("ezpz runs --state failed", "what failed, and why"),
    ("ezpz runs train", "the runs of a name"),
    ("ezpz runs /data/me --json", "for programs"),
    ("ezpz runs --goodput RUN", "steps, data, saves, failures: what took the time"),
)


def main(argv: Sequence[str]) -> int:
    """Print the runs below a folder, the newest last, and return the exit code."""
    return run_verb(
        make_verb_parser(
            "runs", _OPTIONS, _ABOUT, usage="[ROOT | RUN | --goodput RUN ...] [options]", examples=_EXAMPLES
        ),
        argv,
        _list_runs,
    )


def _list_runs(options: Namespace) -> int:
    if options.goodput:
        if options.state:
            raise UsageError(
                f"--state {options.state} chooses from a list (from the command line); expected no --goodput."
            )
        from ezpz.jobs.goodput import show_goodput

        return show_goodput(options.names, as_object=options.json)
    if len(options.names) > 1:
        raise UsageError(f"{len(options.names)} folders (from the command line); expected one to search.")
    name = options.names[0] if options.names else None
    is_folder = name is not None and _is_folder(name)
    root = Path(name).expanduser() if name is not None and is_folder else usual_root()
    closed: list[str] = []
    folders = list(find_runs(root, closed=closed)) if name is None or is_folder else runs_named(name)
    found = len(folders)
    is_page = not options.all and not options.json and is_terminal(sys.stdout)
    if is_page and not options.state:
        folders = _newest(folders)
    glances = list(_glances(folders, root, closed))
    if not glances:
        raise UsageError(
            f"no runs below {root} ({'from the command line' if name else 'the default'}); expected folders "
            "with a metrics.jsonl, as ezpz.History leaves them. Name another folder: `ezpz runs ROOT`."
        )
    chosen = [each for each in glances if options.state in {None, each["state"]}]
    now = time.time()
    chosen.sort(key=lambda each: (not_ahead(each["started"] or 0.0, now), each["folder"]))
    total = len(glances) + found - len(folders)
    listed = len(chosen) if options.state else total
    chosen = chosen[-_PAGE:] if is_page else chosen
    for each, settings in zip(chosen, set_differently(chosen), strict=True):
        each["set"] = settings
    if options.json:
        text = json.dumps(chosen, indent=2)
    else:
        count = f"{listed} of {total} runs" if listed < total else f"{total} run{'s' * (total > 1)}"
        if len(chosen) < listed:
            count = f"the newest {len(chosen)} of {count} (--all lists all)"
        text = render(chosen, count, root).rstrip("\n")
    say(sys.stdout, text, "backslashreplace")
    return 0


def _newest(folders: list[Path]) -> list[Path]:
    """Return the newest of many runs, by their starts; those whose start only their rows tell are among them."""
    if len(folders) <= _PAGE:
        return folders
    now = time.time()
    starts = {folder: started_at(folder) for folder in folders}
    known = [(not_ahead(start, now), folder) for folder, start in starts.items() if start]
    return [*(folder for folder, start in starts.items() if not start), *(each[1] for each in sorted(known)[-_PAGE:])]


def _is_folder(word: str) -> bool:
    """Tell whether a word is a folder to search; else it is a name of runs.

    Raises:
        UsageError: It may not be read, or is a file.
    """
    path = Path(word).expanduser()
    refuse_unreadable(path)
    if path.exists() and not path.is_dir():
        raise UsageError(f"no folder {path} (from the command line); expected one that holds runs, such as outputs.")
    return path.is_dir()


# One run: its ``run.json``, the ends of its journal, and what its launcher has recorded of its end.


def glance(folder: Path, root: Path) -> dict[str, Any]:
    """Return what a line of ``ezpz runs`` shows, as JSON can hold it.

    Args:
        folder: A run folder.
        root: The folder that was searched; the run is named relative to it.

    Returns:
        ``name state cause chain findings started ended seconds first_step_seconds attempt steps first_step last_step
        last_row set loss metric rate rate_unit joules per_joule per_joule_unit folder run``; ``steps`` is how many were
        made, ``set`` the configuration; times in epoch seconds, None where something is not known; ``chain`` is that of
        `chain_of`.
    """
    run = open_run(folder)
    record = run.record
    ends = ends_of(record, run.folder)
    rate, unit = _noted_speed(record) or (ends.rate, ends.rate_unit)
    efficiency = per_joule(rate, unit, record.hardware)
    begun, latest = ends.first_time, ends.last_time
    ended = record.ended_at or (None if run.state == "running" else latest)
    seconds, to_first = seconds_taken(run, begun, latest), RunSummary(run).first_step_seconds
    return {
        "name": run.name,
        "state": run.state,
        "cause": run.cause,
        "chain": chain_of(record),
        "findings": [redact_text(finding.text) for finding in record.findings if finding.text],
        "started": record.started_at or begun,
        "ended": ended,
        "seconds": None if seconds is None else round(seconds, 3),
        "first_step_seconds": None if to_first is None else round(to_first, 3),
        "attempt": record.attempt or len(record.earlier) + 1,
        "steps": record.steps if record.state != "running" and record.steps is not None else ends.steps,
        "first_step": ends.first_step,
        "last_step": ends.last_step,
        "last_row": latest,
        "set": dict(record.config),
        "metric": ends.metric,
        "loss": ends.loss,
        "rate": rate,
        "rate_unit": unit,
        "joules": record.hardware.joules,
        "per_joule": efficiency[0] if efficiency else None,
        "per_joule_unit": efficiency[1] if efficiency else None,
        "folder": str(run.folder),
        "run": below(folder, root),
    }


def _noted_speed(record: RunRecord) -> tuple[float, str] | None:
    """Return the speed that a run has noted at its end (`ezpz.track.speed`), and its unit; None without one."""
    speed = record.speed
    return None if record.state == "running" or not speed.value or not speed.unit else (float(speed.value), speed.unit)


# What was set differently.


def set_differently(glances: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each run the settings that differ among the listed runs of its name, by their shortest clear names.

    What says only where and when, such as a folder, is left out.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in glances:
        by_name.setdefault(each["name"], []).append(each["set"])
    settings = {name: iter(_different(configs)) for name, configs in by_name.items()}
    return [next(settings[each["name"]]) for each in glances]


def _different(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if all(config == configs[0] for config in configs):
        return [{} for _ in configs]
    from ezpz.track.run_facts import flatten
    from ezpz.view.compare.differences import same  # with these two 30 ms that alike runs need not
    from ezpz.view.compare.kinds_of_settings import Kind, kind_of

    flat = [dict(flatten(config)) for config in configs]

    def differs(key: str) -> bool:
        values = [each[key] for each in flat if key in each]
        return len(values) < len(flat) or not all(same(value, values[0]) for value in values)

    keys = [key for key in dict.fromkeys(key for each in flat for key in each) if kind_of(key) is not Kind.NEVER]
    keys = [key for key in keys if differs(key)]
    lasts = [key.rpartition(".")[2] for key in keys]
    short = {key: last if lasts.count(last) == 1 else key for key, last in zip(keys, lasts, strict=True)}
    return [{short[key]: each[key] for key in keys if key in each} for each in flat]


def _set_words(each: dict[str, Any], width: int | None) -> str:
    words = " ".join(f"{key}={or_dash(value)}" for key, value in each["set"].items())
    return cut(words or "-", width)


# Runs as a table of 80 columns; a line below says why a run died, or how old the last row of a running one is.


def _columns(now: float, is_set: bool, width: int | None) -> tuple[Column, ...]:
    """Return the columns: what each shows of a `glance`, and in which order they make room for a long name.

    Args:
        now: The time.
        is_set: Whether something was set differently.
        width: The most columns that this may take; None for any number.
    """
    return (
        Column("STATE", lambda each: each["state"]),
        Column("STARTED", lambda each: "-" if each["started"] is None else f"{age(now - each['started'])} ago"),
        Column("TO STEP", lambda each: _lasted(each["first_step_seconds"]), is_right=True, yields=1),
        Column("STEP", lambda each: or_dash(each["steps"]), is_right=True, yields=4),
        Column("LOSS", lambda each: or_dash(each["loss"]), is_right=True),
        Column("RATE", _rate_words, is_right=True, yields=3),
        Column("TOOK", lambda each: _lasted(each["seconds"]), is_right=True, yields=2),
        *([Column("SET", lambda each: _set_words(each, width), yields=5)] if is_set else ()),
        Column("RUN", _run_words),
    )


_SHORT = {"samples/s": "smp/s", "images/s": "img/s"}  # of a table that has room for few letters
_MEANINGS = {
    "running": "busy",
    "finished": "good",
    "failed": "bad",
    "died": "bad",
    "stopped": "doubtful",
    "exited": "doubtful",
}


def render(glances: Sequence[dict[str, Any]], count: str, root: Path) -> str:
    """Return the table.

    Args:
        glances: What to show, from `glance`.
        count: How many runs there are, in words.
        root: Where they are.
    """
    now = time.time()
    paint = painter(use_color(sys.stdout))
    terminal = screen_width()
    width = terminal or USUAL
    (titles,), *texts = table(
        _columns(now, any(each["set"] for each in glances), terminal and terminal // 4), glances, terminal
    )
    lines = [paint(titles, "minor")]
    for each, (text, *name) in zip(glances, texts, strict=True):
        state = visible(each["state"])
        meaning = _MEANINGS.get(state, "minor")
        lines += [paint(state, meaning) + text[len(state) :], *name]
        lines += [f"    {paint(part, meaning)}" for part in wrapped(_note(each, now), more="", width=width - 4)]
        notes = [(visible(in_words(each["chain"])), "minor")] if each["chain"] else []
        notes += [(visible(f"! {finding}"), "doubtful") for finding in each["findings"]]
        lines += [f"    {paint(part, how)}" for note, how in notes for part in wrapped(note, width=width - 4)]
    place = visible(str(root.absolute()))
    end = hanging(f"{count} in ", place, terminal) if terminal else [f"{count} in {place}"]
    return "\n".join([*lines, "", *end]) + "\n"


def _lasted(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _rate_words(each: dict[str, Any]) -> str:
    return "-" if each["rate"] is None else f"{_count(each['rate'])} {_SHORT.get(each['rate_unit'], each['rate_unit'])}"


def _run_words(each: dict[str, Any]) -> str:
    return each["run"] if each["name"] in each["run"].split("/") else f"{each['run']} ({each['name']})"


def _note(each: dict[str, Any], now: float) -> str:
    if each["state"] == "finished" and each["per_joule"] is not None:
        return f"{_count(each['per_joule'])} {each['per_joule_unit']}, {_count(each['joules'])} J"
    if each["state"] == "running":
        return f"last row {age(now - each['last_row'])} ago" if each["last_row"] is not None else "no row yet"
    return visible(str(each["cause"]))


def _count(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
