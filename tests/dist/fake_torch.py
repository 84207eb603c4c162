"""A stand-in for torch with the devices that this machine lacks: plain objects that note the order of calls."""

import sys
import types


class Device:
    """What `torch.device` is to its users: type, index, text, equality."""

    def __init__(self, kind, index=None):
        kind, _, tail = str(kind).partition(":")
        self.type, self.index = kind, int(tail) if tail else index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


class Event:
    def __init__(self, enable_timing=False):
        self.enable_timing = enable_timing


def device_module(kind, count, calls, name="", memory=0, units=None, major=8):
    """A module like torch.cuda; `calls` gets (kind, function, arguments) of what changes or waits."""

    def noted(function):
        return lambda *args: calls.append((kind, function, *map(str, args)))

    told = {"name": name, "total_memory": memory, "major": major}
    properties = types.SimpleNamespace(**told, **({"max_compute_units": units} if units else {}))
    return types.SimpleNamespace(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        current_device=lambda: 0,
        set_device=noted("set_device"),
        synchronize=noted("synchronize"),
        empty_cache=noted("empty_cache"),
        reset_peak_memory_stats=noted("reset_peak_memory_stats"),
        get_device_name=lambda index: name,
        get_device_properties=lambda index: properties,
        memory_allocated=lambda index: 100 + index,
        max_memory_allocated=lambda index: 200 + index,
        Event=Event,
    )


def distributed(calls, built_in=("gloo", "nccl", "xccl"), backends=(), defaults=()):
    """A torch.distributed with these backends built in, and third-party ones as {name: devices}."""
    backends = dict(backends)
    dist = types.ModuleType("torch.distributed")
    dist.is_available, dist.is_initialized = lambda: True, lambda: False
    for name in ("gloo", "nccl", "xccl", "mpi"):
        setattr(dist, f"is_{name}_available", lambda name=name: name in built_in)
    dist.Backend = types.SimpleNamespace(
        backend_list=["undefined", "gloo", "nccl", "xccl", "ucc", "mpi", "fake", *backends],
        backend_capability={
            "gloo": ["cpu", "cuda"],
            "nccl": ["cuda"],
            "xccl": ["xpu"],
            "ucc": ["cpu", "cuda"],
            "mpi": ["cpu", "cuda"],
            **backends,
        },
        default_device_backend_map={
            "cpu": "gloo",
            "cuda": "nccl",
            "xpu": "xccl",
            "mps": "gloo",
            **{device: name for name, devices in backends.items() for device in devices},
            **dict(defaults),
        },
    )
    return dist


def install(monkeypatch, *, hip=None, vendor="", version="2.13.0", dist=None, names=(), **kinds):
    """Put a torch that shows `kinds` (name: number of devices) into `sys.modules`; returns it, with `.calls`.

    `vendor` names an out-of-tree device, whose number stands in `kinds` too; `names` maps a kind to its model.
    """
    torch = types.ModuleType("torch")
    torch.calls, torch.__version__, torch.device = [], version, Device
    torch.bfloat16 = "torch.bfloat16"
    torch.version = types.SimpleNamespace(hip=hip)
    torch.get_float32_matmul_precision = lambda: "highest"
    torch._C = types.SimpleNamespace(_get_privateuse1_backend_name=lambda: vendor or "privateuseone")
    mps = types.SimpleNamespace(is_available=lambda: "mps" in kinds, is_macos_or_newer=lambda *version: True)
    torch.backends = types.SimpleNamespace(mps=mps)
    names = dict(names)
    for kind in ("cuda", "xpu", *([vendor] if vendor in kinds else [])):
        setattr(torch, kind, device_module(kind, kinds.get(kind, 0), torch.calls, names.get(kind, ""), memory=4096))
    torch.mps = types.SimpleNamespace(
        synchronize=lambda: torch.calls.append(("mps", "synchronize")),
        empty_cache=lambda: torch.calls.append(("mps", "empty_cache")),
        current_allocated_memory=lambda: 11,
        driver_allocated_memory=lambda: 22,
        recommended_max_memory=lambda: 33,
        event=types.SimpleNamespace(Event=Event),
    )
    torch.distributed = dist or distributed(torch.calls)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    monkeypatch.setattr("ezpz.dist.device._bound", None)  # what another test has bound: a process binds once
    return torch


def be_rank(monkeypatch, local, local_world):
    """Make this process local rank `local` of `local_world` on one host."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, str(local))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, str(local_world))
