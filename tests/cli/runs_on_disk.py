"""Run folders written by hand, so that tests need no History."""

from __future__ import annotations

import json
from math import isfinite, isnan


def write_run(folder, metrics, *, name="train", state="finished", start=0, **facts):
    """Write a run folder; `metrics` has a list for each key, with None where a step has none."""
    folder.mkdir(parents=True)
    lines = [
        row(start + number, {key: values[number] for key, values in metrics.items() if values[number] is not None})
        for number in range(max(map(len, metrics.values()), default=0))
    ]
    (folder / "metrics.jsonl").write_text("".join(lines))
    told = {"schema": 1, "name": name, "state": state, "started": "2026-11-20T16:20:01+01:00", **facts}
    if state != "running":
        told.setdefault("ended", "2026-11-20T16:25:13+01:00")
    (folder / "run.json").write_text(json.dumps(told))
    return folder


def row(step, metrics, **more):
    """Return a line of a journal."""
    held = {key: plain(value) for key, value in metrics.items()}
    return json.dumps({"v": 1, "t": 1795188001.0 + step, "step": step, **more, "m": held}) + "\n"


def plain(value):
    """Return what stands for a value in JSON."""
    if type(value) is not float or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def light(verb):
    """Return a program that runs a verb and fails if that has loaded something heavy."""
    heavy = ("torch", "matplotlib", "xarray", "h5py", "pandas", "wandb")
    return (
        f"import sys; from ezpz.cli.{verb} import main; c = main(sys.argv[1:]); "
        f"assert not {{*{heavy}}} & {{*sys.modules}}; sys.exit(c)"
    )
