"""Tensors without data: which are fake, which stay real, and that nothing of it is left afterwards."""

from importlib import import_module

import pytest

from ezpz.dist.simulate.fake_tensors import Dataless
from ezpz.dist.simulate.memory import Watch

torch = pytest.importorskip("torch")
MB = 2**20


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    """Load what torch loads under its first mode, because it sets a variable of the environment then."""
    import_module("torch._dynamo")


@pytest.fixture
def dataless():
    value = Dataless().start()
    yield value
    value.stop()


def is_fake(tensor):
    return getattr(tensor, "fake_mode", None) is not None


def test_parameters_and_what_they_touch_are_fake_and_the_rest_is_real(dataless):
    small, large = torch.ones(4), torch.ones(MB)
    parameter = torch.nn.Parameter(torch.ones(4))
    met = small * parameter
    met.sum().backward()
    assert [is_fake(tensor) for tensor in (small, large, parameter, met, parameter.grad)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert small.sum() == 4
    assert (parameter.shape, parameter.dtype, parameter.requires_grad) == ((4,), torch.float32, True)
    assert sorted(torch.randperm(MB).tolist()[:MB]) == list(range(MB))  # an order of data, as large as it may be
    assert torch.empty(MB, device="meta").is_meta
    assert dataless.made_up.asked == 0


def test_a_model_on_meta_gets_fakes_for_memory_and_can_be_moved(dataless):
    with torch.device("meta"):
        model = torch.nn.Linear(MB, MB)  # four TB
    model.to_empty(device="cpu")
    assert is_fake(model.weight)
    model.to("cpu").half()
    assert (model.weight.dtype, model.weight.shape) == (torch.float16, (MB, MB))
    assert isinstance(model.weight, torch.nn.Parameter)


def test_what_an_operation_changes_is_what_it_returns(dataless):
    real, parameter = torch.zeros(4), torch.nn.Parameter(torch.ones(4))
    with torch.no_grad():
        assert real.add_(parameter) is real
        assert torch.mul(real, parameter, out=real) is real
    assert real.tolist() == [0.0] * 4  # nothing could be written into it


def test_fakes_count_as_the_memory_that_they_would_take_and_those_of_torch_itself_do_not(dataless):
    watch = Watch("cpu", dataless.mode).start()
    try:
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            shape_only = torch.ones(MB)
        tensor = torch.ones(MB)
        view = tensor.view(2, -1)
        assert (is_fake(shape_only), watch.ledger.total) == (True, 4 * MB)
        tensor.untyped_storage().resize_(0)
        assert watch.ledger.total == 0
        tensor.untyped_storage().resize_(4 * MB)
        del tensor
        assert watch.ledger.total == 4 * MB
        del view
        assert (watch.ledger.total, watch.ledger.peak) == (0, 4 * MB)
    finally:
        watch.stop()


def test_what_is_read_is_one_and_who_asked_first_is_known(dataless):
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    assert parameter.tolist() == [[1.0] * 3] * 2
    assert dataless.made_up.asked == 6
    assert dataless.made_up.first.startswith("test_dataless.py:")
    assert int((parameter > 5).sum()) == 1
    assert bool(parameter.sum() > 0.5)
    assert not bool(parameter.sum() > 5)
    with pytest.raises(TypeError, match="BFloat16"):
        parameter.detach().bfloat16().numpy()


def test_afterwards_everything_is_as_before():
    from torch._subclasses.fake_tensor import FakeTensor

    def patched():
        names = ("numpy", "__format__", "__reduce_ex__")
        return torch.nn.Parameter.__new__, torch.utils.swap_tensors, *(getattr(FakeTensor, name) for name in names)

    before = patched()
    dataless = Dataless().start()
    assert not set(before) & set(patched())
    dataless.stop()
    assert patched() == before
    assert not is_fake(torch.nn.Parameter(torch.ones(2)))
    assert not is_fake(torch.ones(MB))
