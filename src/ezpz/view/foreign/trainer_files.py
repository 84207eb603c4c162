"""Read the files in which trainers keep their metrics.

trainer_state.json        of Hugging Face (TrainerState in transformers/trainer_callback.py), in a run's folder or
                          in its checkpoint-N
version_0/metrics.csv     of Lightning (CSVLogger); a row has the values of one step, the others are empty
results.csv               of ultralytics; a row is an epoch, and names have blanks before them
any other .csv            that has a column ``step``, ``iter``, … or ``epoch``

{"global_step": 20, "log_history": [{"step": 10, "loss": 4.9, "learning_rate": 1e-05, "epoch": 0.2}, …]}

epoch,step,train_loss,val_loss
0,9,4.9,
0,9,,4.8
"""

from __future__ import annotations

import csv
import json
import re
from io import StringIO
from math import nan
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.files import read_bytes
from ezpz.view.foreign.plain_log import row_of, rows_of
from ezpz.view.foreign.reading import Reading

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 1 << 30  # bytes of a file, which is read whole
_STATE = "trainer_state.json"
_TABLES = ("metrics.csv", "version_*/metrics.csv", "lightning_logs/version_*/metrics.csv", "results.csv")
_WHOLE_NUMBER = re.compile(r"[-+]?\d{1,18}")


def find_trainer_file(place: Path) -> Path | None:
    """Return the file with the metrics of the run at a path, or None.

    Raises:
        UsageError: The folder holds several runs.
    """
    if place.is_file():
        return place if place.suffix in {".csv", ".json"} else None
    states = [place / _STATE, *sorted(place.glob(f"checkpoint-*/{_STATE}"), key=_number_of, reverse=True)]
    newest = next((path for path in states if path.is_file()), None)
    if newest:
        return newest
    for pattern in _TABLES:
        found = sorted(place.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.parent.name for path in found[:4])
            raise UsageError(
                f"{len(found)} runs in {place} (from the command line): {names}; expected one run. Name one of them."
            )
        if found:
            return found[0]
    return None


def _number_of(path: Path) -> int:
    number = path.parent.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def read_trainer_file(path: Path) -> Reading | None:
    """Read such a file, or return None if it holds no rows.

    Raises:
        OSError: The file cannot be read.
    """
    text = read_bytes(path, _LARGEST).decode(errors="replace")
    source, lines = ("csv", _csv_lines(text)) if path.suffix == ".csv" else ("trainer_state", _state_lines(text))
    found = [(*row, nan) for row in map(row_of, lines) if row is not None]
    name = path.parent.name if path.name in {_STATE, "metrics.csv", "results.csv"} else path.stem
    return Reading(source, name, rows_of(found)) if found else None


def _state_lines(text: str) -> list[dict[str, float]]:
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):  # of absurd depth
        return []
    history = state.get("log_history") if isinstance(state, dict) else None
    lines = [line for line in history if isinstance(line, dict)] if isinstance(history, list) else []
    kept = [line for line in lines if "train_runtime" not in line]  # the means of the end
    return [{name: value for name, value in line.items() if type(value) in {int, float}} for line in kept]


def _csv_lines(text: str) -> list[dict[str, float]]:
    reader = csv.reader(StringIO(text))
    try:
        names = [name.strip() for name in next(reader, [])]
        return [_csv_line(names, cells) for cells in reader]
    except csv.Error:  # a zero byte, a field without end
        return []


def _csv_line(names: list[str], cells: list[str]) -> dict[str, float]:
    pairs: dict[str, float] = {}
    for name, cell in zip(names, cells, strict=False):
        text = cell.strip()
        try:
            pairs[name] = int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)
        except ValueError:  # empty, or words
            continue
    return pairs
