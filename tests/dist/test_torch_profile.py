"""Traces and memory snapshots of torch, through `ezpz.track.profiles.profiling.profile`."""

import gzip
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from ezpz.dist import device  # noqa: E402  # after the check that torch is there
from ezpz.errors import UsageError  # noqa: E402  # as above
from ezpz.log import get_logger  # noqa: E402  # as above
from ezpz.track.profiles.profiling import profile  # noqa: E402  # as above


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE", "cpu")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")  # torch's profiler sets it to a folder of its own otherwise


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr(get_logger("ezpz.track.profiles.profiling"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def train(prof, steps):
    layer = torch.nn.Linear(8, 8)
    for _ in range(steps):
        layer(torch.ones(4, 8)).sum().backward()
        prof.step()


def steps_in(trace):
    told = json.loads(gzip.decompress(trace.read_bytes()))
    assert any(event["name"] == "aten::linear" and event["ph"] == "X" for event in told["traceEvents"])
    names = [event["name"] for event in told["traceEvents"]]
    return sorted({int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")})


def test_a_window_comes_again_and_nobody_misses_the_last_one(tmp_path, said):
    with profile("torch:steps=3,every=4", outdir=tmp_path) as prof:
        train(prof, 13)
    traces = sorted(path for path in prof.files if path.name.endswith(".json.gz"))
    assert sorted(steps_in(trace) for trace in traces) == [[3], [7], [11]]
    assert not [line for line in said() if "nothing was recorded" in line]


def test_a_trace_holds_the_steps_that_were_asked_for_under_their_numbers(tmp_path):
    with profile("torch:steps=3-4", outdir=tmp_path) as prof:
        train(prof, 4)
        assert prof.files == []
        train(prof, 4)
        trace, table = prof.files
    assert steps_in(trace) == [3, 4]
    assert trace.name.startswith("torch-profile-")
    assert trace.name.endswith(".json.gz")
    rows = [line for line in table.read_text().splitlines() if "::" in line]
    assert any("aten::addmm" in row for row in rows)
    assert len(rows) <= 30
    assert sorted(tmp_path.iterdir()) == sorted(prof.files)


def test_a_window_at_the_very_start_needs_no_warming_up(tmp_path):
    with profile("torch:steps=0", outdir=tmp_path) as prof:
        train(prof, 2)
    assert steps_in(prof.files[0]) == [0]


def test_what_was_recorded_before_an_error_is_written(tmp_path):
    def broken():
        with profile("torch:steps=1-99", outdir=tmp_path) as prof:
            kept.append(prof)
            train(prof, 3)
            raise ZeroDivisionError

    kept = []
    with pytest.raises(ZeroDivisionError):
        broken()
    assert steps_in(kept[0].files[0])[:2] == [1, 2]


@pytest.mark.parametrize("steps", [0, 2, 3])  # before the warming up, in it, at its end
def test_a_window_that_is_not_reached_leaves_no_file_and_a_profiler_that_can_start_again(tmp_path, said, steps):
    with profile("torch:steps=3-4", outdir=tmp_path) as prof:
        train(prof, steps)
    assert prof.files == []
    assert "nothing was recorded" in said()[0]
    with profile("torch:steps=1", outdir=tmp_path) as prof:
        train(prof, 3)
    assert steps_in(prof.files[0]) == [1]


def test_training_goes_on_when_torch_cannot_trace(tmp_path, said):
    with (
        torch.profiler.profile(),
        profile("torch:steps=1-2", outdir=tmp_path) as prof,
    ):  # the user's own one is in the way
        train(prof, 5)
    assert len(prof.files) in {0, 2}  # torch decides
    assert all("profile" in line for line in said())


def test_memory_is_not_available_on_a_cpu_which_is_one_line(tmp_path, said):
    with profile("mem", outdir=tmp_path) as prof:
        train(prof, 2)
    assert said() == ["no mem profile: memory snapshots are not available on cpu; expected cuda or xpu."]
    assert prof.files == []


class FakeMemory:
    """The two functions of ``torch.cuda.memory`` that are called, with the argument names of torch 2.4 to 2.13."""

    def __init__(self):
        self.entries = None

    def _record_memory_history(self, enabled="all", *, max_entries=sys.maxsize):
        self.entries = max_entries if enabled else None

    def _dump_snapshot(self, filename="dump_snapshot.pickle"):
        Path(filename).write_bytes(pickle.dumps({"segments": [], "recording": self.entries}))


@pytest.fixture
def memory(monkeypatch):
    fake = FakeMemory()
    monkeypatch.setattr(device, "accelerator_module", lambda _: SimpleNamespace(memory=fake))
    monkeypatch.setattr(device, "get_torch_device_type", lambda: "cuda")
    return fake


def test_a_snapshot_is_written_while_the_history_is_kept_also_when_memory_runs_out(tmp_path, memory):
    def fill():
        assert memory.entries == 100_000
        prof.step()
        raise torch.OutOfMemoryError("CUDA out of memory")

    prof = profile("mem", outdir=tmp_path)
    with pytest.raises(torch.OutOfMemoryError), prof:
        fill()
    (path,) = prof.files
    assert path.name.startswith("memory-snapshot-")
    assert pickle.loads(path.read_bytes())["recording"] == 100_000
    assert memory.entries is None


def test_a_disk_that_refuses_the_snapshot_ends_the_history_all_the_same(tmp_path, memory, said):
    memory._dump_snapshot = lambda _: (_ for _ in ()).throw(OSError("no space"))
    with profile("mem:steps=1", outdir=tmp_path) as prof:
        for _ in range(4):
            prof.step()
    assert prof.files == []
    assert memory.entries is None
    assert "no space" in said()[0]


def test_without_torch_it_is_said_before_the_block(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for kind in ("torch", "mem"):
        with pytest.raises(UsageError, match="torch is not installed"):
            profile(kind)
