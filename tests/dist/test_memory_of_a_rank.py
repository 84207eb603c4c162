"""The bookkeeping of live memory, and the watch that fills it from torch's own operations."""

import gc
from importlib import import_module

import pytest

from ezpz.dist.simulate.memory import Ledger, Watch

torch = pytest.importorskip("torch")
KB = 1024


def test_a_ledger_knows_what_was_alive_at_the_peak_even_when_it_is_named_later():
    ledger = Ledger(lambda: "now")
    parameter, gradient, brief = (ledger.add(size) for size in (4, 4, 10))
    assert (ledger.peak, ledger.when) == (18, "now")
    ledger.resize(brief, 0)
    late = ledger.add(5)  # after the peak: no part of it
    for block, kind in ((parameter, "parameters"), (gradient, "gradients"), (late, "buffers")):
        ledger.name(block, kind)
    assert ledger.at_peak == {"parameters": 4, "gradients": 4, "optimizer": 0, "buffers": 0, "other": 10}
    assert ledger.live == {"parameters": 4, "gradients": 4, "optimizer": 0, "buffers": 5, "other": 0}
    assert ledger.most["buffers"] == 5


def test_a_block_that_grows_after_the_peak_does_not_change_it():
    ledger = Ledger()
    small, large = ledger.add(2), ledger.add(10)
    ledger.resize(large, 0)
    ledger.resize(small, 6)
    ledger.name(small, "buffers")
    assert (ledger.peak, sum(ledger.at_peak.values()), ledger.at_peak["buffers"]) == (12, 12, 0)


def test_a_new_beginning_forgets_the_peak_and_keeps_what_lives():
    ledger = Ledger()
    ledger.add(3)
    ledger.resize(ledger.add(20), 0)
    ledger.begin()
    ledger.add(1)
    assert (ledger.before, ledger.peak) == (23, 4)


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    """Load what torch loads under its first mode, because it sets a variable of the environment then."""
    import_module("torch._dynamo")


@pytest.fixture
def watch():
    value = Watch("cpu").start()
    yield value
    value.stop()


def total(watch):
    gc.collect()
    return watch.ledger.total


def test_a_storage_counts_once_and_until_its_last_view_is_gone(watch):
    tensor = torch.ones(KB)
    view = tensor.view(32, 32)[3:].t()
    assert total(watch) == 4 * KB
    del tensor
    assert total(watch) == 4 * KB
    del view
    assert total(watch) == 0
    assert watch.ledger.peak == 4 * KB


def test_storages_that_shrink_and_grow_without_an_operation_are_followed(watch):
    tensor = torch.ones(KB)
    tensor.untyped_storage().resize_(0)
    assert total(watch) == 0
    tensor.untyped_storage().resize_(8 * KB)
    assert total(watch) == 8 * KB
    empty = torch.empty(0)
    empty.untyped_storage().resize_(KB)
    assert total(watch) == 9 * KB


def test_meta_fake_and_sparse_tensors_take_nothing_of_the_device(watch):
    from torch._subclasses import FakeTensorMode

    kept = torch.ones(KB, device="meta") + 1
    with FakeTensorMode():
        fake = torch.ones(KB) + 1
    assert (kept.shape, fake.shape, total(watch)) == ((KB,), (KB,), 0)
    sparse = torch.sparse_coo_tensor(torch.zeros(1, 4, dtype=torch.int64), torch.ones(4), (KB,))
    assert total(watch) == 4 * 8 + 4 * 4
    assert sparse.coalesce().is_sparse


def test_what_was_made_elsewhere_counts_from_its_first_use(watch):
    numpy = pytest.importorskip("numpy")
    tensor = torch.from_numpy(numpy.ones(KB, dtype="float32"))
    result = tensor.sum()
    assert total(watch) == 4 * KB + 4
    assert result == KB


def test_a_model_is_told_apart_by_kind_and_its_steps_are_counted(watch):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.BatchNorm1d(64, affine=False))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = 4 * 64 * 64
    assert watch.ledger.most == {
        "parameters": weights,
        "gradients": weights,
        "optimizer": 2 * weights + 4,
        "buffers": 2 * 4 * 64 + 8,
        "other": 0,
    }
    assert watch.steps == 3
    assert optimizer.param_groups[0]["foreach"] is None  # ours only while it steps
    assert sum(watch.ledger.at_peak.values()) == watch.ledger.peak


def test_the_optimizer_takes_the_temporaries_that_it_would_take_on_an_accelerator(watch):
    parameters = [torch.nn.Parameter(torch.ones(KB)) for _ in range(16)]
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones(KB)
    optimizer.step()
    assert watch.ledger.when == "in the optimizer of step 1"
    assert watch.ledger.peak == pytest.approx(5 * 16 * 4 * KB, rel=0.01)


def test_recomputation_saves_memory_here_too(watch):
    from torch.utils.checkpoint import checkpoint_sequential

    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(16)))
    peaks = []
    for forward in (model, lambda x: checkpoint_sequential(model, 4, x, use_reentrant=False)):
        watch.ledger.begin()
        forward(torch.ones(4096, 8, requires_grad=True)).sum().backward()
        peaks.append(watch.ledger.peak)
    assert peaks[1] < 0.6 * peaks[0]


def test_a_stopped_watch_leaves_torch_as_it_was():
    plain = torch.UntypedStorage.resize_
    watch = Watch("cpu").start()
    assert torch.UntypedStorage.resize_ is not plain
    watch.stop()
    torch.ones(KB)
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
    assert torch.UntypedStorage.resize_ is plain
    assert watch.ledger.peak == 0
