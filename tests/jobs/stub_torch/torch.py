"""A torch with two devices of a vendor, for the probe: on a host that `sick.json` names, one of them is not well.

{"n02": {"1": "CUDA error: uncorrectable ECC error encountered"}}    raises it; "wrong" for a wrong product
{"n02": {"missing": 1}}                                             one device less
{"n02": {"slow": 25}}                                               so many seconds to import
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

_FILE = Path(__file__).with_name("sick.json")
_SICK = json.loads(_FILE.read_text()).get(os.uname().nodename, {}) if _FILE.exists() else {}
time.sleep(_SICK.get("slow", 0))
float32 = None
cuda = SimpleNamespace(device_count=lambda: 2 - _SICK.get("missing", 0))


def device(kind, index):
    return str(index)


class _Matrix:
    def __init__(self, value, place=""):
        self.value, self.place = value, place
        self.T = self

    def to(self, place):
        return _Matrix(self.value, place)

    def cpu(self):
        return _Matrix(self.value)

    def __matmul__(self, other):
        fault = _SICK.get(self.place, "")
        if fault and fault != "wrong":
            raise RuntimeError(f"{fault}\nCUDA kernel errors might be asynchronously reported")
        return _Matrix(self.value**2 + (fault == "wrong"))

    def __mod__(self, number):
        return self

    def __sub__(self, number):
        return self

    def reshape(self, *shape):
        return self


def arange(count, dtype):
    return _Matrix(3)


def equal(left, right):
    return left.value == right.value
