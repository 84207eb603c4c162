"""The device ``hostram``: builds `hostram.cpp` (once, into ``.test/``) and registers it with torch, as a vendor would.

`register()` is what importing a vendor's plugin does: the device's name, its module ``torch.hostram``, its backend.
``python hostram.py`` builds, and prints why if it cannot; ranks only load what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
import time
import types
from pathlib import Path

HERE = Path(__file__).parent
NAME = "hostram"


def problem():
    """Why the extension cannot be built here; empty when it can."""
    import torch
    from torch.utils import cpp_extension

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 8):
        return f"FSDP2 of torch {torch.__version__} knows no device outside torch"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler on PATH"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Python.h is missing"
    return "" if cpp_extension.is_ninja_available() else "no ninja on PATH"


def library():
    """Where the built module lies: its folder carries the versions and the source, so that it is never stale."""
    import torch

    mark = hashlib.sha256((HERE / "hostram.cpp").read_bytes()).hexdigest()[:12]
    folder = HERE.parents[2] / ".test" / "outoftree" / f"{torch.__version__}-{sysconfig.get_config_var('SOABI')}-{mark}"
    return folder / "hostram_c.so"


def build():
    """Build the module where it is not there yet; a build that was killed or runs beside this one does no harm."""
    from torch.utils import cpp_extension

    target = library()
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        cpp_extension.load(
            "hostram_c",
            [str(HERE / "hostram.cpp")],
            build_directory=folder,
            extra_cflags=["-O0"],
            is_python_module=False,
        )
        Path(folder, "hostram_c.so").replace(target)


def load():
    import importlib.util

    spec = importlib.util.spec_from_file_location("hostram_c", library())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stream:
    """Everything is done when a call returns: a stream has nothing to wait for."""

    def __init__(self, device=None, priority=0):
        self.device, self.priority = device, priority

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        return event or Event()

    def synchronize(self):
        pass


class Event:
    def __init__(self, enable_timing=False):
        self.enable_timing = enable_timing

    def record(self, stream=None):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return (end.at - self.at) * 1000.0

    def wait(self, stream=None):
        pass

    def query(self):
        return True

    def synchronize(self):
        pass


@contextlib.contextmanager
def _stream(stream):
    yield


def register():
    """Register device, module and backend; returns the compiled module."""
    import torch
    import torch.distributed as dist

    compiled = load()
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    default = Stream()
    module.Stream, module.Event, module.stream = Stream, Event, _stream
    module.current_stream = lambda device=None: default
    module.is_available = module.is_initialized = lambda: True
    module.is_bf16_supported = lambda: True
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()  # without a generator it draws as a CPU does
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
    module.device_count, module.current_device = compiled.device_count, compiled.current_device
    module.set_device = lambda device: compiled.set_device(getattr(device, "index", device))
    module.synchronize = lambda device=None: None
    module.memory_allocated = lambda device=None: compiled.memory_allocated()
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    dist.Backend.register_backend("ramccl", _over_gloo(compiled), devices=[NAME])
    return compiled


def _over_gloo(compiled):
    def make(store, rank, size, timeout):
        import torch.distributed as dist

        return compiled.over_gloo(dist.ProcessGroupGloo(store, rank, size, timeout))

    return make


if __name__ == "__main__":
    if reason := problem():
        sys.exit(reason)
    build()
