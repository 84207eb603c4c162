"""Print where the granted seconds of a run went, for ``ezpz runs --goodput``."""

from __future__ import annotations

import json
from pathlib import Path

from ezpz.errors import UsageError
from ezpz.jobs.chain_folder import is_chain, run_folders
from ezpz.quantities import duration
from ezpz.tables import aligned, bar, cut, screen_width, wrapped
from ezpz.track.goodput_account import ROWS, account, as_json, read_spans
from ezpz.track.named import run_named
from ezpz.track.run_reader import open_run
from ezpz.visible import show, visible

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ezpz.track.goodput_account import Account
    from ezpz.track.run_reader import Run

_BAR = 24  # columns


def show_goodput(names: Sequence[str], *, as_object: bool) -> int:
    """Print the account of a run, or of several that continue one another, and return the exit code.

    Args:
        names: Folders of runs, or of chains of jobs; without any the newest run below outputs/.
        as_object: Print JSON.

    Raises:
        UsageError: A folder holds no run, or nothing is known of its time.
    """
    runs = [open_run(run_named(name)) for name in (_named(names) or (None,))]
    spans = sorted((span for run in runs for span in read_spans(run)), key=lambda span: span.begin)
    made = account(spans)
    if made.granted <= 0:
        raise UsageError(
            f"{runs[0].folder} (from the command line) tells no time: neither a row nor the start of its process; "
            "expected a run that has begun."
        )
    if as_object:
        folders = [str(run.folder) for run in runs]
        text = json.dumps({"run": runs[-1].name, "folders": folders, **as_json(made)}, indent=2)
    else:
        text = "\n".join(_lines(runs, made))
    show(text)
    return 0


def _named(names: Sequence[str]) -> list[str]:
    """Return the run folders that names mean, each once: those of a chain are all that its jobs have written.

    Raises:
        UsageError: No job of a chain has begun a run.
    """
    found: dict[str, None] = {}
    for name in names:
        folder = Path(name).expanduser()
        if not is_chain(folder):
            found[name] = None
            continue
        runs = [str(run) for run in run_folders(folder)]
        if not runs:
            raise UsageError(
                f"no run of the chain {folder} is known (from the command line): no job in its jobs.json names one; "
                "expected a chain of which a job has trained. Name the run folder, or look at `ezpz status`."
            )
        found.update(dict.fromkeys(runs))
    return list(found)


def _lines(runs: Sequence[Run], made: Account) -> list[str]:
    counted = [_counted(made.attempts, "attempt"), *([_counted(made.jobs, "job")] if made.jobs else [])]
    counted += [_counted(made.failures, "failure")] if made.failures else []
    state = ", still running" if made.running else ""
    lines = [
        f"{visible(runs[-1].name)}: {', '.join(counted)}{state}",
        f"{duration(made.granted)} granted, {made.goodput:.1%} of it in steps that count".replace("%", " %"),
        "",
    ]
    rows = [("WHERE THE TIME WENT", "SECONDS", "SHARE", "")]
    notes = _notes(made)
    most = max(made.rows.values(), default=0.0)
    for name, seconds in made.rows.items():
        if abs(seconds) < 0.05 and name not in {"steps", "unexplained"}:
            continue
        share = f"{100 * seconds / made.granted:.1f} %"
        rows.append((visible(name), f"{seconds:,.1f}", share, bar(max(0.0, seconds) / (most or 1.0), _BAR)))
    width = screen_width()
    lines += [cut(line, width) for line in aligned(rows, {1, 2})]
    return [*lines, "", *notes]


def _notes(made: Account) -> list[str]:
    again = f"; {_counted(made.repeated, 'step')} done again" if made.repeated else ""
    notes = [f"{_counted(made.steps, 'step')} that count{'s' * (made.steps == 1)}{again}"]
    if made.saves:
        every = f", every {made.save_every} steps" if made.save_every else ""
        notes.append(f"{_counted(made.saves, 'save')}{every}, {duration(made.rows['save'] / made.saves)} each")
    if made.besides:
        notes.append(f"besides, not granted: {made.besides}")
    shown = [name for name, seconds in made.rows.items() if abs(seconds) >= 0.05]
    meanings = [f"{name}: {ROWS[name]}" for name in shown if ROWS.get(name) and name in {"start", "dead time"}]
    notes += meanings
    notes += [made.advice] if made.advice else []
    return [line for note in notes for line in wrapped(note, more="")]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
