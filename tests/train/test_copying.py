"""Batches on their way to an accelerator, on a stand-in that writes down what CUDA would be asked."""

import contextlib
from collections import UserDict
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ezpz.train.loop as loop_module
from ezpz import train
from ezpz.train import Loop
from ezpz.train.clock import HostClock
from ezpz.train.counting import Computed, Tally, Weighed, on_device
from ezpz.train.data import copying
from ezpz.train.data.copying import Copier, copied_ahead, moved
from ezpz.train.data.place import Batch
from ezpz.train.feeds import PositionFeed
from ezpz.train.loop import to_host

CUDA = torch.device("cuda", 0)


class Tensor:
    """A tensor of the host or of the device, as far as copying looks at it."""

    def __init__(self, value, calls, place="cpu", pinned=False):
        self.value, self.calls, self.device, self.pinned = value, calls, torch.device(place), pinned

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        self.calls.append(f"pin {self.value}")
        return Tensor(self.value, self.calls, pinned=True)

    def to(self, device, non_blocking=False):
        assert non_blocking is (device.type != "cpu")
        assert self.pinned or device.type == "cpu"
        self.calls.append(f"copy {self.value} on {self.calls.stream}")
        return Tensor(self.value, self.calls, device)

    def record_stream(self, stream):
        self.calls.append(f"{self.value} is used by {stream}")


class Calls(list):
    stream = "main"


@pytest.fixture
def calls(monkeypatch):
    found = Calls()

    class Stream:
        device = CUDA

        def __init__(self, device=None, name="side"):
            self.name = name

        def wait_event(self, event):
            found.append(f"{self.name} waits for {event.after}")

        def __str__(self):
            return self.name

    class Event:
        def record(self, stream):
            self.after = found[-1]

    @contextlib.contextmanager
    def on(stream):
        found.stream = stream.name
        yield
        found.stream = "main"

    main = Stream(name="main")
    cuda = SimpleNamespace(Stream=Stream, Event=Event, stream=on, current_stream=lambda device: main)
    monkeypatch.setattr(copying, "accelerator_module", lambda kind: cuda)
    return found


def test_the_next_batch_is_pinned_and_copied_while_this_one_is_computed(calls):
    feed = PositionFeed(lambda at: Tensor(at, calls), CUDA, step=4, accumulate=2)
    seen = []
    for step in range(2):
        for each in feed.step(more=step == 0):
            seen.append(moved(each.batch, CUDA).value)
            calls.append(f"compute {seen[-1]}")
            assert feed.state_dict()["consumed"] == 2 * len(seen)  # what is on its way was not consumed
    assert seen == [0, 1, 2, 3]
    copied = [[f"pin {at}", f"copy {at} on side"] for at in range(1, 4)]
    used = [[f"main waits for copy {at} on side", f"{at} is used by main", f"compute {at}"] for at in range(1, 4)]
    assert calls[:3] == ["pin 0", "copy 0 on main", "compute 0"]  # the very first: nothing to hide it behind
    assert calls[3:] == [call for both in zip(copied, used, strict=True) for part in both for call in part]


def test_a_place_that_is_loaded_drops_what_was_on_its_way(calls):
    feed = PositionFeed(lambda at: Tensor(at, calls), CUDA, step=2, accumulate=1)
    next(iter(list(feed.step(more=True))))
    feed.load_state_dict({**feed.state_dict(), "consumed": 14})
    assert [each.batch.value for each in feed.step(more=False)] == [7]


def test_a_batch_that_counts_its_samples_is_copied_ahead_too(calls):
    feed = PositionFeed(lambda at: Weighed(Tensor(at, calls), 1.5), CUDA, step=2, accumulate=1)
    list(feed.step(more=True))
    (each,) = feed.step(more=False)
    assert (each.batch.samples, each.batch.batch.device) == (1.5, CUDA)


def test_on_a_cpu_nothing_is_asked_for_early():
    asked = []
    feed = PositionFeed(lambda at: asked.append(at) or at, torch.device("cpu"), step=2, accumulate=1)
    list(feed.step(more=True))
    assert asked == [0]


class Own:
    """A class with tensors inside, that knows how to go to a device."""

    def __init__(self, tensor):
        self.tensor = tensor

    def to(self, device):
        return Own(moved(self.tensor, device))


class Encoded(UserDict):
    def to(self, device):
        return Encoded({name: moved(value, device) for name, value in self.items()})


@pytest.mark.parametrize(
    "wrap",
    [lambda t: {"a": [t]}, lambda t: (t, 3), Own, lambda t: Encoded(a=t)],
    ids=["dict", "tuple", "own", "encoded"],
)
def test_memory_is_kept_until_the_device_has_used_it_whatever_holds_it(calls, wrap):
    batches = [Batch(wrap(Tensor(at, calls)), 1, 1, 1.0, at, True) for at in range(2)]
    assert [each.consumed for each in copied_ahead(iter(batches), CUDA)] == [0, 1]
    assert calls[:4] == ["pin 0", "copy 0 on side", "pin 1", "copy 1 on side"]
    assert {"0 is used by main", "1 is used by main"} <= set(calls)


def test_what_comes_back_to_the_host_is_waited_for(calls):
    assert moved(Tensor(1, calls, "cuda:0"), torch.device("cpu")).device.type == "cpu"
    assert Copier(torch.device("cpu")).is_ahead is False


class Copies(TorchDispatchMode):
    """Writes down the operations that take a tensor of the host and return one of the device; meta stands for it."""

    def __init__(self):
        super().__init__()
        self.found, self.waits = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = [each.device.type for each in args if isinstance(each, torch.Tensor)]
        if isinstance(out, torch.Tensor) and out.is_meta and "cpu" in given:
            self.found.append(str(function))
            self.waits.append(not (kwargs or {}).get("non_blocking", False))
        return out


def test_samples_that_are_picked_on_the_device_wait_for_no_copy_of_their_indices(subtests, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it for operators on meta
    alone = {"rank": 0, "world_size": 1, "device": "meta"}
    images, labels, tokens = torch.zeros(32, 1, 8, 8), torch.zeros(32, dtype=torch.int64), torch.arange(99)
    kinds = {
        "synthetic": train.SyntheticImages(32, classes=2, size=8, device="meta"),
        "images": train.ImageBatches(images, labels, 4, **alone).take,
        "tokens": train.TokenBatches(tokens, 8, 4, **alone).take,
        "shifted": train.TokenBatches(tokens, 8, 4, **alone, shift=True).at,
    }
    for kind, batches in kinds.items():
        with subtests.test(kind):
            with Copies() as copies:
                x, _ = batches(0 if kind == "shifted" else torch.arange(4))
            assert x.is_meta
            assert len(x) == 4
            assert copies.waits == [False], copies.found


def test_the_numbers_of_a_step_reach_the_device_without_a_copy_from_the_host(monkeypatch, tmp_path):
    """Such a copy, from memory that is not pinned, waits for all that the device has been given before."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch sets it for operators on meta
    tally = Tally(averages=False)
    with Copies() as copies:
        loss = torch.zeros((), device="meta")
        for _ in range(2):
            tally.add(Computed(loss, 7, {"accuracy": loss}))
        tally.exchange()
        totals = tally.read()
        assert totals.count.is_meta
        assert on_device(3, loss.device).dtype == torch.float32
    assert copies.found == []
    with (
        Copies() as copies,
        pytest.raises(NotImplementedError, match="Cannot copy out of meta"),
    ):  # the last thing it does
        to_host({"loss": torch.zeros((), device="meta"), "count": 3.0})
    assert copies.found == []


def test_the_time_in_which_the_next_batch_is_made_is_time_of_the_data(monkeypatch):
    """Where it is made ahead, that is after the backward pass: in the last of a step's, nothing else follows it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # torch sets it when an optimizer is first made
    told = []

    class Clock(HostClock):
        def mark(self, part):
            super().mark(part)
            told.append(part)

    class Rows:
        def update(self, row, **_):
            pass

    monkeypatch.setattr(Copier, "is_ahead", True)
    monkeypatch.setattr(loop_module, "make_clock", lambda exact: Clock())
    model = torch.nn.Linear(1, 1)
    loop = Loop(
        *(model, torch.optim.SGD(model.parameters()), lambda model, x: model(x).mean()),
        lambda position: told.append(f"make {position}") or torch.ones(1, 1),
        steps=2,
        accumulate=2,
        batch_size=1,
        log=lambda _: None,
    )
    loop.run(Rows())
    assert [told[at + 1] for at, each in enumerate(told) if each.startswith("make")] == ["dtd"] * 4
