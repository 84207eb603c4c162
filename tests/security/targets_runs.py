"""Files of a run that somebody else may have written or damaged: each verb ends with success or one line of error."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zlib
from pathlib import Path

from fuzz import target

from ezpz.cli import compare, export, plot, report, runs, watch
from ezpz.errors import EzpzError
from ezpz.track.column_blocks import ParsedLines, pack
from ezpz.track.journal_reader import read_stretch
from ezpz.track.journal_writer import Journal
from ezpz.track.recorded_rows import COLUMNS
from ezpz.track.run_folder import RunFile

_ENTRY = {name: [1.5, "NaN", None] for name in ("mean", "min", "max", "std")} | {"argmin": [0, 0, None]}
ROWS = (
    {"v": 1, "t": 1795194001.25, "step": 0, "m": {"train/loss": 0.25, "lr": "NaN", "tokens": 2**53 + 1, "dt": 0.1}},
    {"v": 1, "t": 1795194002.25, "step": 1, "m": {"train/loss": 0.5, "note": "x", "good": True, "a": [1, 2.5, "NaN"]}},
    {"v": 1, "t": 1795194002.5, "step": 1, "k": "late", "m": {"h": {"counts": [1, 2], "edges": [0.0, 1.0, 2.0]}}},
    {"v": 1, "t": 1795194003.5, "step": 2, "a": 2, "m": {"train/loss": 0.5, "iter": 3}},
    {
        "v": 1,
        "t": 1795194003.5,
        "step": 2,
        "k": "ranks",
        "m": {
            "world": 2,
            "every": 1,
            "steps": [0, 1, 2],
            "held": [2, 2, 1],
            "keys": {key: {**_ENTRY, "ranks": [[1.5, "NaN", None], [2, 3, 4.5]]} for key in ("train/loss", "dt")},
        },
    },
)
FACTS = {
    "schema": 1,
    "name": "train",
    "state": "finished",
    "started": "2026-11-23T01:00:00+00:00",
    "ended": "2026-11-23T01:10:00+00:00",
    "process": {"host": "n01", "pid": 7, "birth": "1.5"},
    "attempt": 2,
    "argv": ["train.py", "--lr", "0.1"],
    "python": "3.11.2",
    "versions": {"torch": "2.13.0"},
    "host": "n01",
    "ranks": {"rank": 0, "world_size": 2, "local_world_size": 2},
    "git_commit": "0" * 40,
    "launch": {"EZPZ_LAUNCH_CMD": "launch train.py", "EZPZ_LAUNCH_ID": "x", "EZPZ_HOSTS": "n01,n02"},
    "environment": {"modules": ["a/1"], "driver": {"nvidia": "1"}, "system": "x", "variables": {"A": "b"}},
    "config": {"lr": 0.1, "model": {"width": 64}},
    "effective": {"stochastic": ["dropout"], "optimizer.groups.0.lr": 0.1, "model.parameters": 7},
    "timeline": {"history": 1795194001.0, "first_step": 1795194002.0},
    "paths": {"journal": "metrics.jsonl"},
    "problems": ["one"],
    "cause": "ValueError: x",
    "earlier": [{"state": "failed", "cause": "x", "started": "2026-11-23T00:00:00+00:00", "attempt": 1}],
    "trackers": {"wandb": {"id": "x"}},
}
JOURNAL = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
_VERBS = (
    (export, "--csv"),
    (plot, "--width", "60"),
    (plot, "--ranks", "dt", "--width", "60"),
    (report,),
    (runs, "--json"),
    (watch, "--once"),
)


def _run(folder, journal, facts):
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(journal)
    (folder / "run.json").write_bytes(facts)
    return folder


def _ends(journal, facts, columns=None):
    """Let every verb read one run; return how each has ended. Anything but an exit code passes on."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            good = _run(Path(place) / "good", JOURNAL, json.dumps(FACTS).encode())
            odd = _run(Path(place) / "odd", journal, facts)
            if columns is not None:
                (odd / COLUMNS).write_bytes(columns)
            codes = [verb.main([str(odd), *options]) for verb, *options in _VERBS]
            codes += [compare.main([str(good), str(odd)]), _continued(odd)]
        assert "Traceback" not in said.getvalue(), said.getvalue()
    return tuple(codes)


def _continued(folder):
    """Open a folder to go on with its run, as `History(outdir=...)` does."""
    try:
        Journal(folder / "metrics.jsonl").close()
        before = RunFile(folder, "train", {})
        before.earlier_trackers()
        before.save()
    except EzpzError as error:
        return error.exit_code
    return 0


@target(inputs=25, seeds=[JOURNAL], words=[b'"m":{', b'"k":"ranks"', b'"steps"', b'"a":', b"}\n{"])
def journal_of_a_run(data):
    return _ends(data, json.dumps(FACTS).encode())


@target(inputs=25, seeds=[json.dumps(row).encode() for row in ROWS])
def row_of_a_journal(data):
    return _ends(JOURNAL + data.replace(b"\n", b" ") + b"\n" + JOURNAL, json.dumps(FACTS).encode())


@target(inputs=25, seeds=[json.dumps(FACTS).encode()], words=[b'"ranks"', b'"earlier"'])
def facts_of_a_run(data):
    return _ends(JOURNAL, data)


def _columns():
    """The object of a block's line, a newline, and the data."""
    part = ParsedLines(0, 0)
    read_stretch(JOURNAL, part, ("", 0))
    block = pack(part, zlib.crc32(JOURNAL))
    return block.head + b"\n" + block.read(0, block.size)


@target(inputs=25, seeds=[_columns()], words=[b'"float"', b'"json str"', b'"windows":', b'"records":', b'"size":'])
def columns_of_a_run(data):
    head, _, rest = data.partition(b"\n")
    total = zlib.crc32(rest, zlib.crc32(head))  # whoever wants to do harm writes a sum that is right
    return _ends(JOURNAL, json.dumps(FACTS).encode(), b"[%d,%b]\n%b" % (total, head, rest))
