"""Run folders as their writers leave them, and the environment of child processes that know nothing of this one."""

import json
import os
from pathlib import Path

from ezpz.track.run_reader import open_run

SRC = str(Path(__file__).parents[2] / "src")


def environ(home, **more):
    """The environment of a child process whose home is a folder of the test."""
    fixed = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": SRC, "PYTHONDONTWRITEBYTECODE": "1"}
    return {**fixed, **more}


def records(rows):
    """Lines of a journal, to which each row need tell only what makes it differ."""
    return "".join(json.dumps({"v": 1, "t": 1.0, **row}, separators=(",", ":")) + "\n" for row in rows)


def leave_run(folder, rows, facts=None):
    """Write a folder with these rows and, unless they are None, these facts, and open it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(records(rows))
    if facts is not None:
        (folder / "run.json").write_text(json.dumps(facts))
    return open_run(folder)
