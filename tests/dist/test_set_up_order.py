"""``ezpz.setup_torch`` on devices that this machine lacks: the device is set first, then the group is bound to it.

Real torch, with only those functions replaced that would touch the missing device; nothing of how set-up is written.
"""

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from fake_torch import be_rank, device_module

import ezpz


@pytest.fixture
def calls(monkeypatch):
    noted = []

    def make_group(*args, **options):
        noted.append(("init_process_group", args, options))

    monkeypatch.setattr(dist, "init_process_group", make_group)
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCH_DEVICE", "TORCH_BACKEND", "EZPZ_FLAVOUR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ezpz.dist.device._bound", None)
    be_rank(monkeypatch, 0, 1)
    return noted


def show(monkeypatch, kind, calls):
    """Let torch have four devices of `kind` and their backend."""
    for other in ("cuda", "xpu"):
        count = 4 if other == kind else 0
        monkeypatch.setattr(torch, other, device_module(other, count, calls))
    for name in ("nccl", "xccl"):
        monkeypatch.setattr(dist, f"is_{name}_available", lambda: True)


@pytest.mark.parametrize(
    ("kind", "hip", "backend"),
    [("cuda", None, "cpu:gloo,cuda:nccl"), ("cuda", "6.4", "cpu:gloo,cuda:nccl"), ("xpu", None, "cpu:gloo,xpu:xccl")],
    ids=["cuda", "rocm", "xpu"],
)
def test_the_device_is_set_before_the_group_is_made_and_bound_to_it(monkeypatch, calls, kind, hip, backend):
    show(monkeypatch, kind, calls)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setenv("TORCH_DEVICE", f"{kind}:2")
    assert ezpz.setup_torch() == 0
    assert [call[1] if call[0] == kind else call[0] for call in calls] == ["set_device", "init_process_group"]
    assert calls[0][2] == f"{kind}:2"
    _, args, options = calls[1]
    assert (*args, *options.values())[0] == backend or options.get("backend") == backend
    assert options["device_id"] == torch.device(kind, 2)


def test_a_cpu_is_neither_set_nor_bound(monkeypatch, calls):
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    assert ezpz.setup_torch() == 0
    assert [call[0] for call in calls] == ["init_process_group"]
    assert calls[0][2].get("device_id") is None


def test_a_spawned_process_that_runs_the_script_again_becomes_no_rank(calls, monkeypatch):
    """``_inheriting`` is how multiprocessing itself marks one, and refuses to start processes in it."""
    be_rank(monkeypatch, 1, 2)
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ezpz.errors.UsageError, match='under `if __name__ == "__main__":`'):
        ezpz.setup_torch()
    assert calls == []
