"""A stand-in for the package `datasets`: `Hub` in `sys.modules`, with images that are a few pixels large."""

import io
import sys
import types
from collections import UserDict
from pathlib import Path

import numpy as np
import pytest


class Image:
    """The kind of a column of images."""

    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    """The kind of a column of labels."""

    dtype, num_classes = "int64", 10


class Rows(UserDict):
    """Columns of a split: image `n` of a first number `begin` has the pixels begin + n everywhere."""

    def __init__(self, count, begin=0, mode="L", size=(2, 3)):
        pillow = pytest.importorskip("PIL.Image")

        def packed(value, size):
            file = io.BytesIO()
            pixels = np.full((*size, *([3] if mode == "RGB" else [])), value, np.uint8)
            pillow.fromarray(pixels).save(file, "PNG")
            return {"bytes": file.getvalue(), "path": None}

        sizes = [size if isinstance(size, tuple) else (2 + place, 2) for place in range(count)]
        super().__init__(img=[packed(begin + place, sizes[place]) for place in range(count)], label=list(range(count)))
        self.features = {"img": Image(), "label": ClassLabel()}
        self.cache_files = [{"filename": "/cache/x/part.arrow"}]

    def cast_column(self, column, kind):
        assert column in self
        assert not kind.decode
        return self


class Hub(types.SimpleNamespace):
    """Answers `load_dataset` by what `holds` says of a name, and counts in `asked`; what is an error is raised."""

    Image = Image

    def __init__(self, **holds):
        super().__init__(holds=holds, asked=[])

    def load_dataset(self, path, configuration=None, **more):
        self.asked.append((path, configuration, more))
        found = self.holds.get(Path(path).name, ConnectionError(f"Couldn't reach '{path}' on the Hub\nOr so."))
        if isinstance(found, Exception):
            raise found
        return found


def put(monkeypatch, **holds):
    """Put a hub into the place of the package and return it."""
    hub = Hub(**holds)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    return hub
