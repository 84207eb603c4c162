"""Run ``ezpz startup``: show where the time until the first step went, in one launch, over launches, or by a log."""

from __future__ import annotations

import json
import shlex
import sys
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from ezpz.cli_parser import option, run_verb
from ezpz.errors import TrackError, UsageError
from ezpz.files import read_bytes, refuse_unreadable
from ezpz.jobs.running_launches import age
from ezpz.quantities import duration
from ezpz.records.launch_record import LaunchRecord
from ezpz.register import heads, main_folder, may_run
from ezpz.tables import Column, cut, screen_width, table, wrapped
from ezpz.track.named import RUN_FILES, record_named
from ezpz.verbs import LAUNCH_HELP, make_verb_parser
from ezpz.view.startup_stages import GROUPS, STAGES, Startup, changes, delays, latest_hosts, median, read_startup
from ezpz.view.terminal.screen import say
from ezpz.visible import shorten, show, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any

    from ezpz.view.foreign.start_times import StartTime

_OPTIONS = (
    option("what", nargs="*", metavar="RUN|ID|LOG", help=f"a file with times, or {LAUNCH_HELP}"),
    option("--last", type=int, metavar="N", help="the last N launches of this user on this machine, as a table"),
    option("--json", action="store_true", help="print a JSON list"),
)
_ABOUT = """\
One launch: when the ranks reached each stage, by host, and who held up whom. Several: a table. A file that is no run:
a table or log of start and stop times, whatever wrote it."""
_EXAMPLES = (("ezpz startup", "the last launch"), ("ezpz startup --last 10", "ten launches as a table"))
_NARROWEST = 60  # columns of a line whose end may be cut
# In the picture, the stage that a host is in until it has reached it.
_LETTER = dict(zip([stage.name for stage in STAGES], "l.pitrgmwbs2", strict=True))


def main(argv: Sequence[str]) -> int:
    """Print the starts that are named, and return the exit code."""
    usage = "[RUN|ID|LOG ...] [options]"
    return run_verb(make_verb_parser("startup", _OPTIONS, _ABOUT, usage=usage, examples=_EXAMPLES), argv, _show)


def _show(options: Namespace) -> int:
    if options.last is not None and options.last < 1:
        raise UsageError(f"--last {options.last} (from the command line); expected a number of launches from 1 on.")
    if options.what and options.last is not None:
        raise UsageError("--last N is for this machine's launches; expected either it or names, not both.")
    found = [_read(name) for name in options.what] or _last(options.last or 1)
    if options.json:
        text = json.dumps([_as_json(each) for each in found], indent=2)
    elif len(found) == 1:
        text = _one(found[0])
    else:
        text = _table(found)
    say(sys.stdout, text, "backslashreplace")
    return 0


class _Launch:
    """A launch that recorded its stages, and where from."""

    def __init__(self, path: Path, startup: Startup) -> None:
        self.path, self.startup = path, startup


class _Log:
    """A file with start and stop times."""

    def __init__(self, path: Path, rows: Sequence[StartTime], unusable: Sequence[tuple[int, str]]) -> None:
        self.path, self.rows, self.unusable = path, rows, unusable


def _last(count: int) -> list[_Launch | _Log]:
    found: list[_Launch | _Log] = []
    for head in heads():
        path = Path(head.path)
        launch = LaunchRecord.read(path)
        try:
            launch.refuse_newer(path)
        except TrackError as error:
            if count == 1:
                raise
            show(f"ezpz startup: left out: {error}", sys.stderr)
            continue
        startup = read_startup(launch)
        if startup is not None:
            found.append(_Launch(path, startup))
        if len(found) == count:
            break
    if not found:
        raise UsageError(
            f"no launch in {main_folder()} (the default) recorded a stage; expected one of `launch`. Start one, or "
            "name a run, a launch or a log: ezpz startup RUN|ID|LOG."
        )
    return found[::-1]


def _read(word: str) -> _Launch | _Log:
    """Open what the command line names: a log, or a launch."""
    path = Path(word).expanduser()
    refuse_unreadable(path)
    if path.is_file() and path.name not in RUN_FILES:
        record = LaunchRecord.read(path) if path.suffix == ".json" else LaunchRecord()
        return _launch(path, record) if record.launch_id else _log(path)
    place = record_named(word) / "run.json"
    return _launch(place, LaunchRecord.read(place))


def _launch(path: Path, launch: LaunchRecord) -> _Launch:
    launch.refuse_newer(path)
    startup = read_startup(launch)
    if startup is None:
        raise UsageError(f"{path} holds no stages: {_why_none(launch)}; expected a launch whose ranks ran.")
    return _Launch(path, startup)


def _why_none(launch: LaunchRecord) -> str:
    if launch.state != "running":
        return "no rank reached any"
    if may_run(launch):
        return "they are recorded when all of its ranks have made two steps, or ended"
    return "its launcher is gone, and had recorded none"


def _log(path: Path) -> _Log:
    from ezpz.view.foreign.start_times import read_start_times

    try:
        text = read_bytes(path).decode(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path} (from the command line): {error.strerror}; expected a log.") from None
    rows, unusable = read_start_times(text, path.name)
    if not rows:
        raise UsageError(
            f"no start in {path} (from the command line); expected a table with the columns start and stop, or a log "
            "with lines such as 'Job started at: 2026-11-02-183323' and '[2026-11-02 18:34:13] step=0'."
        )
    return _Log(path, rows, unusable)


# One launch


def _one(found: _Launch | _Log) -> str:
    if isinstance(found, _Log):
        return _log_table(found)
    startup = found.startup
    lines = [*_head(startup), ""]
    names, width = _short_names(startup.hosts), screen_width(_NARROWEST)
    columns = (
        Column("UNTIL THE END OF", lambda each: each.stage.what),
        Column("TOOK", lambda each: duration(each.took), is_right=True),
        Column("FIRST", lambda each: f"{each.first:.2f} s", is_right=True),
        Column("MEDIAN", lambda each: f"{each.median:.2f} s", is_right=True),
        Column("LAST", lambda each: f"{each.last:.2f} s", is_right=True),
        Column("LAST RANK", lambda each: f"{each.rank} on " * (each.rank >= 0) + names.get(each.host, each.host)),
    )
    lines += [cut(line, width) for (line,) in table(columns, startup.arrivals)]
    picture = _picture(startup)
    lines += ["", *picture] if picture else []
    lines += ["", *_findings(startup)]
    earlier = _earlier(found)
    if earlier is not None:
        lines += _changed(startup, earlier.startup)
    lines += ["", f"record: {visible(str(found.path))}"]
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    return wrapped(text, breaks=False)


def _command(startup: Startup) -> str:
    return cut(visible(shlex.join(startup.command)), 78)


def _short_names(hosts: Sequence[str]) -> dict[str, str]:
    """Return each host's first label, where these tell all hosts apart, and else its whole name."""
    labels = {host: host.partition(".")[0] for host in hosts}
    is_enough = len(set(labels.values())) == len(labels) and not any(label.isdigit() for label in labels.values())
    return labels if is_enough else {host: host for host in hosts}


def _head(startup: Startup) -> list[str]:
    started = startup.launch.started
    when = "?" if started is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(started))
    hosts = f" on {len(startup.hosts)} hosts" if len(startup.hosts) > 1 else ""
    last = startup.arrivals[-1].stage
    end = "the first step" if startup.first_step is not None else _ENDS.get(last.name, f"the end of {last.what}")
    counted = f"{startup.world_size} rank{'s' * (startup.world_size > 1)}"
    text = f"{when}, {counted}{hosts}: {duration(startup.total)} from `launch` to {end}"
    return [_command(startup), *_words(text)]


_ENDS = {"torch": "the start of torch's import", "setup": "`setup_torch`"}  # of a start that tells no step


def _picture(startup: Startup) -> list[str]:
    """Return a line for each host: a letter for each piece of time, of the stage that its last rank was in."""
    stages = [arrival.stage for arrival in startup.arrivals if arrival.stage.name in startup.times]
    if len(startup.hosts) < 2 or not stages or startup.total <= 0:
        return []
    ends: dict[str, list[tuple[float, str]]] = {}
    for stage in stages:
        for host, (_, _, last, _) in startup.by_host(stage.name).items():
            ends.setdefault(host, []).append((last, _LETTER[stage.name]))
    names = _short_names(startup.hosts)
    label = min(20, max(len(names.get(host, host)) for host in ends))
    width = 80 - label - 2
    lines = []
    for host in latest_hosts(startup):
        row = ""
        for place in range(width):
            moment = (place + 0.5) / width * startup.total
            row += next((letter for last, letter in ends.get(host, ()) if moment <= last), " ")
        lines.append(f"{cut(visible(names.get(host, host)), label).ljust(label)}  {row}".rstrip())
    scale = f"{''.ljust(label)}  0 s{duration(startup.total).rjust(width - 3)}"
    legend = [f"{''.ljust(label)}  {letter} {stage.what}" for stage in stages for letter in _LETTER[stage.name]]
    keys = ", ".join(each.strip() for each in legend if not each.strip().startswith("2 "))
    left = len(startup.hosts) - len(lines)
    more = [f"{left} more hosts were not later than these"] if left else []
    return [*lines, scale, *_words(keys), *more]


def _findings(startup: Startup) -> list[str]:
    lines: list[str] = []
    for delay in delays(startup):
        lines += _words(visible(str(delay)))
    longest = max((each for each in startup.arrivals if each.stage.name != "second_step"), key=lambda each: each.took)
    share = longest.took / startup.total if startup.total else 0.0
    lines += _words(
        f"longest: {longest.stage.what}, {duration(longest.took)} of {duration(startup.total)} ({share:.0%})"
    )
    took = {each.stage.name: each.took for each in startup.arrivals}
    first, second = took.get("step"), took.get("second_step")
    if first is not None and second is not None and first > max(0.5, 2 * second):
        lines += _words(
            f"the first step took {duration(first)}, the second {duration(second)}: the difference is compilation, "
            "first allocations and warming up"
        )
    return lines


def _earlier(found: _Launch) -> _Launch | None:
    """Return the last launch before this one of the same command in the same folder that ended well."""
    launch = found.startup.launch
    for head in heads():
        path = Path(head.path)
        if head.started >= (launch.started or 0.0):
            continue
        other = LaunchRecord.read(path)
        if other.is_newer or other.exit_code != 0 or (other.command, other.cwd) != (launch.command, launch.cwd):
            continue
        startup = read_startup(other)
        if startup is not None:
            return _Launch(path, startup)
    return None


def _changed(now: Startup, then: Startup) -> list[str]:
    when = age((now.launch.started or 0.0) - (then.launch.started or 0.0))
    found = [str(change) for change in changes(now, then)]
    new = [host for host in now.hosts if host not in then.hosts]
    if found and new:
        named = ", ".join(new[:3]) + (f" and {len(new) - 3} more" if len(new) > 3 else "")
        found.append(f"not on {'this host' if len(new) == 1 else 'these hosts'} then: {visible(named)}")
    if now.world_size != then.world_size:
        found.append(f"{then.world_size} ranks then, {now.world_size} now")
    text = "; ".join(found) or "no stage differs by more than half a second and a quarter"
    return _words(f"since this command's last good launch, {when} before: {text}")


# Several, and logs


def _sum(each: _Launch, stages: Sequence[str]) -> str:
    took = [arrival.took for arrival in each.startup.arrivals if arrival.stage.name in stages]
    return f"{sum(took):.1f}" if took else "-"


def _all(each: _Launch) -> str:
    first = each.startup.first_step
    return "-" if first is None else f"{first:.1f}"


_TITLES = {"model and data": "model", "first step": "step 1"}  # shorter ones, for a table
_LAUNCH_COLUMNS = (
    Column("SECONDS OF LAUNCH", lambda each: each.path.parent.name[:17]),
    Column("HOSTS", lambda each: str(len(each.startup.hosts)), is_right=True),
    Column("RANKS", lambda each: str(each.startup.world_size), is_right=True),
    *(
        Column(_TITLES.get(name, name).upper(), partial(_sum, stages=stages), is_right=True)
        for name, stages in GROUPS.items()
    ),
    Column("ALL", _all, is_right=True),
)


def _table(found: Sequence[_Launch | _Log]) -> str:
    logs = [each for each in found if isinstance(each, _Log)]
    launches = [each for each in found if isinstance(each, _Launch)]
    parts = []
    if launches:
        (head,), *rows = table(_LAUNCH_COLUMNS, launches)
        lines, command = [head], ""
        for each, (row,) in zip(launches, rows, strict=True):
            if (shown := _command(each.startup)) != command:
                lines += [shown]
                command = shown
            lines.append(row)
        parts.append("\n".join([*lines, "", f"records: {visible(str(launches[-1].path.parent.parent))}"]))
    return "\n\n".join([*parts, *map(_log_table, logs)])


def _log_table(found: _Log) -> str:
    width, rows = screen_width(_NARROWEST), found.rows
    columns = [
        Column("NAME", lambda row: row.name if width is None else shorten(row.name, max(16, width - 52))),
        Column("RANKS", lambda row: row.world, is_right=True),
        Column("STARTED", lambda row: _clock(row.begin).replace("1970-01-01 ", "")),
        Column("TOOK", _took),
        Column("LINES", lambda row: "-".join(map(str, row.lines))),
    ]
    worlds: dict[str, list[float]] = {}
    for row in rows if any(row.world for row in rows) else ():
        worlds.setdefault(row.world, []).extend([] if row.seconds is None else [row.seconds])
    lines = [line for (line,) in table(columns if worlds else [columns[0], *columns[2:]], rows)]
    lines += [""]
    if worlds:
        ordered = sorted((item for item in worlds.items() if item[1]), key=lambda item: (item[0].zfill(20), item))
        lines += [line for (line,) in table(_WORLD_COLUMNS, ordered)]
        lines += [""]
    stated = [row for row in rows if row.given is not None]
    wrong = sum(map(_is_wrong, stated))
    if wrong:
        lines += _words(f"{wrong} of {len(stated)} differences in the file are not the seconds between its two times")
    kind, where = ("row", "of tables") if rows[0].kind == "table" else ("start", "in a log")
    counted = f"{len(rows)} {kind}{'s' * (len(rows) != 1)} {where} in {visible(str(found.path))}"
    lines += _words(f"{counted}; LINES says which lines were used")
    for number, why in found.unusable:
        lines += _words(f"line {number} is not used: {visible(why)}")
    return "\n".join(lines)


_WORLD_COLUMNS = [
    Column("RANKS", lambda item: item[0] or "?", is_right=True),
    Column("STARTS", lambda item: str(len(item[1])), is_right=True),
    Column("SHORTEST", lambda item: duration(min(item[1])), is_right=True),
    Column("MEDIAN", lambda item: duration(median(item[1])), is_right=True),
    Column("LONGEST", lambda item: duration(max(item[1])), is_right=True),
]


def _clock(seconds: float, parts: str = " ") -> str:
    """Return a time of a log, which is of no zone."""
    whole = datetime.fromtimestamp(round(seconds, 6), timezone.utc).replace(tzinfo=None)
    return whole.isoformat(parts, "seconds" if parts == " " else "auto")


def _is_wrong(row: StartTime) -> bool:
    return row.given is not None and row.seconds is not None and abs(row.given - row.seconds) > 1


def _took(row: StartTime) -> str:
    seconds = "no first step" if row.seconds is None else f"{row.seconds:.10g} s"
    return seconds + (f" (not {row.given:g})" if _is_wrong(row) else "")


def _as_json(found: _Launch | _Log) -> dict[str, Any]:
    if isinstance(found, _Log):
        rows = [
            {
                "name": row.name,
                "world_size": row.world or None,
                "started": _clock(row.begin, "T"),
                "stopped": None if row.end is None else _clock(row.end, "T"),
                "seconds": row.seconds,
                "seconds_in_file": row.given,
                "lines": list(row.lines),
            }
            for row in found.rows
        ]
        return {"kind": found.rows[0].kind, "path": str(found.path), "starts": rows}
    startup = found.startup
    return {
        "kind": "launch",
        "path": str(found.path),
        "command": startup.command,
        "started": startup.launch.started,
        "hosts": startup.hosts,
        "world_size": startup.world_size,
        "first_step_seconds": startup.first_step,
        "stages": [
            {
                "stage": each.stage.name,
                "took": round(each.took, 3),
                "min": each.first,
                "median": each.median,
                "max": each.last,
                "rank": each.rank if each.rank >= 0 else None,
                "host": each.host,
                "by_host": {
                    host: dict(zip(("min", "median", "max", "rank"), times, strict=True))
                    for host, times in startup.by_host(each.stage.name).items()
                },
            }
            for each in startup.arrivals
        ],
        "delays": [
            {
                "stage": delay.stage.name,
                "host": delay.host,
                "rank": delay.rank,
                "seconds": round(delay.seconds, 3),
                "waited": round(delay.waited, 3),
                "others": delay.others,
                "text": str(delay),
            }
            for delay in delays(startup)
        ],
    }
