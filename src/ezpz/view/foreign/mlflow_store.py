"""Read a run of MLflow's file store (FileStore in mlflow/store/tracking/file_store.py).

mlruns/EXPERIMENT/RUN/meta.yaml            run_name: bold-cat, status: 3 (FINISHED; 4 is FAILED, 5 KILLED)
mlruns/EXPERIMENT/RUN/metrics/train/loss   1700000000123 4.96 10      time in ms, value, step; a name may have slashes
mlruns/EXPERIMENT/RUN/params/batch_size    16
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ezpz.errors import UsageError
from ezpz.files import read_bytes
from ezpz.view.foreign.reading import Reading, make_row

if TYPE_CHECKING:
    from pathlib import Path

    from ezpz.track.values import Value

_LARGEST = 1 << 30  # bytes of a metric, which is read whole
_MOST = 10_000  # metrics, and parameters
_NAME = re.compile(r"^run_name: ['\"]?([^'\"\n]{1,200})", re.MULTILINE)
_STATUS = re.compile(r"^status: (\d)", re.MULTILINE)
_STATES = {"3": "finished", "4": "failed", "5": "failed"}


def find_mlflow(place: Path) -> Path | None:
    """Return the folder of the run at a path, itself or below the folder of a store or of an experiment; or None.

    Raises:
        UsageError: The folder holds several runs.
    """
    if not place.is_dir():
        return None
    for pattern in ("metrics", "*/metrics", "*/*/metrics", "mlruns/*/*/metrics"):
        found = [path.parent for path in sorted(place.glob(pattern)) if (path.parent / "meta.yaml").is_file()]
        if len(found) > 1:
            names = ", ".join(path.name for path in found[:4])
            raise UsageError(
                f"{len(found)} runs in {place} (from the command line): {names}; expected one run. Name one of them."
            )
        if found:
            return found[0]
    return None


def read_mlflow(folder: Path) -> Reading | None:
    """Read such a folder, or return None if it holds no rows.

    Raises:
        OSError: A file cannot be read.
    """
    values: dict[int, dict[str, Value]] = {}
    times: dict[int, float] = {}
    for path in _files(folder / "metrics"):
        name = path.relative_to(folder / "metrics").as_posix()
        whole, _, _ = read_bytes(path, _LARGEST).decode(errors="replace").rpartition("\n")  # what follows is torn
        for line in whole.splitlines():
            words = line.split()
            try:
                when, value, step = int(words[0]) / 1000, float(words[1]), int(words[2])
            except (IndexError, ValueError, OverflowError):
                continue
            if abs(step) < 1 << 63:
                values.setdefault(step, {})[name] = value
                times[step] = min(when, times.get(step, when))
    meta = read_bytes(folder / "meta.yaml").decode(errors="replace")
    given = {path.name: read_bytes(path).decode(errors="replace")[:_MOST] for path in _files(folder / "params")}
    named, status = _NAME.search(meta), _STATUS.search(meta)
    rows = [make_row(step, times[step], values[step]) for step in sorted(values)]
    state = _STATES.get(status[1], "unknown") if status else "unknown"
    facts = {"config": given} if given else {}
    return Reading("mlflow", named[1].strip() if named else folder.name, rows, facts, state) if rows else None


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*"))[:_MOST] if path.is_file()]
