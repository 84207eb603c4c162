"""Copy a run to event files in ``trackers/tensorboard``, for ``tensorboard --logdir outputs``, without its packages.

Scalars are 32-bit floats there, as TensorBoard draws them; texts and lists go to its text page, histograms to its
histograms, the configuration to a text ``config`` and the HParams page. The messages, from tensorboard/compat/proto
(event.proto, summary.proto, tensor.proto) and plugins/hparams/plugin_data.proto:

    Event    1 wall_time double, 2 step int64, 3 file_version text, 5 summary
    Summary  1 value: 1 tag, 2 simple_value float, 5 histo, 8 tensor, 9 metadata: 1 plugin_data: 1 name, 2 content
    Tensor   1 dtype (7: text), 2 shape: 2 dim: 1 size, 8 string_val
    Histo    1 min, 2 max, 3 num, 4 sum, 5 sum_squares, 6 bucket_limit, 7 bucket: packed doubles
    HParams  3 session_start_info: 1 hparams: 1 key, 2 value: 2 number double, 3 text, 4 bool
"""

from __future__ import annotations

import json
import os
import socket
import struct
from itertools import count, pairwise
from time import time
from typing import TYPE_CHECKING, Any

from ezpz.files import make_closed_folder, open_closed
from ezpz.track.run_facts import flatten
from ezpz.view.foreign.protobuf import put_bytes, put_double, put_float, put_int
from ezpz.view.foreign.tfevents import frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ezpz.track.tracker_protocol import About, Row
    from ezpz.track.values import Value

_TEXT = 7  # of tensorboard's types of tensors


class TensorboardTracker:
    """Writes one event file for each attempt of a run."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._file: Any = None
        self._config: dict[str, object] = {}

    def start(self, about: About) -> dict[str, object]:
        """Open a new event file, which TensorBoard shows as one with those beside it."""
        folder = about.folder / "trackers" / "tensorboard"
        make_closed_folder(folder)
        stem = f"events.out.tfevents.{int(time()):010d}.{socket.gethostname()}.{os.getpid()}"
        path = next(path for number in count() if not (path := folder / f"{stem}.{number}").exists())
        self._file = open(path, "xb", buffering=0, opener=open_closed)  # noqa: SIM115  # Path.open has no opener
        self._file.write(frame(put_double(1, time()) + put_bytes(3, "brain.Event:2")))
        if about.config:
            self.config(about.config)
        return {}

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Write one event."""
        self.log_rows([(step, time(), values)])

    def log_rows(self, rows: Sequence[Row]) -> None:
        """Write an event for each row, all of them at once."""
        data = b"".join(
            _event(when, step, [_summary(key, value) for key, value in values.items()]) for step, when, values in rows
        )
        self._file.write(data)

    def config(self, config: Mapping[str, object]) -> None:
        """Write the configuration so far."""
        self._config.update(config)
        text = "\n".join(f"    {line}" for line in json.dumps(self._config, indent=2).splitlines())  # Markdown's code
        hparams = b"".join(put_bytes(1, _hparam(key, value)) for key, value in flatten(self._config))
        metadata = _plugin("hparams", put_bytes(3, hparams))
        summaries = [
            _text("config", text),
            put_bytes(1, "_hparams_/session_start_info") + put_bytes(8, put_int(1, 1)) + metadata,
        ]
        self._file.write(_event(time(), 0, summaries))

    def finish(self, state: str) -> None:  # noqa: ARG002  # TensorBoard knows no states
        """Close the file."""
        self._file.close()


def _event(when: float, step: int, summaries: list[bytes]) -> bytes:
    summary = b"".join(put_bytes(1, value) for value in summaries)
    return frame(put_double(1, when) + put_int(2, step) + put_bytes(5, summary))


def _summary(tag: str, value: Any) -> bytes:
    edges = getattr(value, "edges", None)
    if edges is not None:
        return put_bytes(1, tag) + put_bytes(5, _histogram(list(value.counts), list(edges)))
    if isinstance(value, (bool, int, float)):
        return put_bytes(1, tag) + put_float(2, value)
    return _text(tag, value if isinstance(value, str) else json.dumps(value))


def _text(tag: str, text: str) -> bytes:
    tensor = put_int(1, _TEXT) + put_bytes(2, put_bytes(2, put_int(1, 1))) + put_bytes(8, text)
    return put_bytes(1, tag) + put_bytes(8, tensor) + _plugin("text")


def _plugin(name: str, content: bytes = b"") -> bytes:
    return put_bytes(9, put_bytes(1, put_bytes(1, name) + (put_bytes(2, content) if content else b"")))


def _histogram(counts: list[int], edges: list[float]) -> bytes:
    """Return a histogram; its sums are those of the middles of its buckets, as the values themselves are not known."""
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    total = sum(n * x for n, x in zip(counts, middles, strict=True))
    squares = sum(n * x * x for n, x in zip(counts, middles, strict=True))
    head = (edges[0], edges[-1], sum(counts), total, squares)
    data = b"".join(put_double(field, float(value)) for field, value in enumerate(head, 1))
    limits = struct.pack(f"<{len(counts)}d", *edges[1:])
    return data + put_bytes(6, limits) + put_bytes(7, struct.pack(f"<{len(counts)}d", *counts))


def _hparam(key: str, value: object) -> bytes:
    if isinstance(value, bool):
        data = put_int(4, value)
    elif isinstance(value, (int, float)):
        data = put_double(2, float(value))
    else:
        data = put_bytes(3, value if isinstance(value, str) else json.dumps(value))
    return put_bytes(1, key) + put_bytes(2, data)
