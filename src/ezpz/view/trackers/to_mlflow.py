"""Copy a run to MLflow: at MLFLOW_TRACKING_URI, else in its file store in ``trackers/mlflow`` of the run's folder.

Reads MLFLOW_EXPERIMENT_NAME as well; all else is between MLflow and the user. MLflow wants
MLFLOW_ALLOW_FILE_STORE=true for a file store, which is set here unless it is set already. A SQLite store is not made by
itself: MLflow takes 4 s (20 s on a busy machine) to make one, and a program that ends meanwhile leaves one that MLflow
refuses. Numbers travel in batches, because a call of its own for each costs milliseconds. Texts, lists and histograms
stay in the run folder: MLflow has no series of them.
"""

from __future__ import annotations

import json
import os
import re
from time import time
from typing import TYPE_CHECKING, Any

from ezpz.files import make_closed_folder
from ezpz.track.run_facts import flatten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.tracker_protocol import About, Row
    from ezpz.track.values import Value

_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 6000  # what MLflow takes in one batch, and of one value
_TAG = "ezpz.run"
_END = {"finished": "FINISHED", "exited": "FINISHED", "stopped": "KILLED"}


class MlflowTracker:
    """A run of MLflow; the same one when the run is resumed, found by a tag of its own."""

    name = "mlflow"

    def __init__(self) -> None:
        self._client: Any = None
        self._run = ""
        self._params: dict[str, str] = {}

    def identify(self, about: About) -> dict[str, object]:
        """Choose the tag at once, so that a run that is killed early is found again."""
        earlier = about.resumed.get("mlflow")
        self._known = dict(earlier) if isinstance(earlier, dict) else {}
        self._tag = str(self._known.get("tag") or os.urandom(8).hex())
        return {**self._known, "tag": self._tag}

    def start(self, about: About) -> dict[str, object]:
        """Connect, and make the run or find it."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or _local(about)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or about.name
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        runs = []
        if self._known:
            runs = self._client.search_runs([experiment], f"tags.`{_TAG}` = '{self._tag}'", max_results=1)
        if runs:
            self._params = dict(runs[0].data.params)
            self._client.update_run(runs[0].info.run_id, status="RUNNING")
        run = runs[0] if runs else self._client.create_run(experiment, run_name=about.stamp, tags={_TAG: self._tag})
        self._run = run.info.run_id
        self.config(about.config)
        return {"tag": self._tag, "run_id": self._run}

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Log one row."""
        self.log_rows([(step, time(), values)])

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Log rows, in as few calls as MLflow takes."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_allowed(key), float(value), int(when * 1000), step)
            for step, when, values in rows
            for key, value in values.items()
            if isinstance(value, (bool, int, float))
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MOST_METRICS])

    def config(self, config: Mapping[str, object]) -> None:
        """Log parameters; MLflow keeps the first value of each, so another one becomes a tag ``changed.<name>``."""
        from mlflow.entities import Param, RunTag

        flat = {_allowed(key): _text(value) for key, value in flatten(config)}
        new = [Param(key, value) for key, value in flat.items() if key not in self._params]
        changed = {key: value for key, value in flat.items() if self._params.get(key, value) != value}
        self._params = {**flat, **self._params}
        for start in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(self._run, params=new[start : start + _MOST_PARAMS])
        for key, value in changed.items():
            self._client.log_batch(self._run, tags=[RunTag(f"changed.{key}", value)])

    def finish(self, state: str) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, _END.get(state, "FAILED"))


def _local(about: About) -> str:
    folder = about.folder / "trackers" / "mlflow"
    make_closed_folder(folder)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return folder.as_uri()


def _allowed(name: str) -> str:
    """Return a name with ``_`` for what MLflow refuses, such as ``%``, ``../`` and a leading ``/``."""
    parts = re.sub(r"[^\w\-. :/]", "_", name).split("/")
    return "/".join("_" if part.strip() in {"", ".", ".."} else part for part in parts)[:250]


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
