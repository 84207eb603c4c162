"""Gradient clipping in one process: as torch's own, for whatever list it is given."""

import math

import pytest
import torch
from torch import nn

from ezpz.dist.clip import clip_grad_norm_, scale_gradients_
from ezpz.errors import UsageError


def parameters(*gradients):
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(
            torch.zeros((3,) if gradient is None else gradient.shape, dtype=getattr(gradient, "dtype", None))
        )
        parameter.grad = None if gradient is None else gradient.clone()
        found.append(parameter)
    return found


def gradients():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator) for shape in ((4, 5), (7,), (), (0, 3))]


def test_norm_and_gradients_are_torchs(subtests):
    for norm_type in (0.5, 1, 2, 3.5, math.inf):
        for limit in (0.0, 0.5, 100.0):
            with subtests.test(limit=limit, norm_type=norm_type):
                mine, theirs = parameters(*gradients(), None), parameters(*gradients()[:3], None)
                found = clip_grad_norm_(mine, limit, norm_type)
                expected = nn.utils.clip_grad_norm_(theirs, limit, norm_type)
                assert found.item() == pytest.approx(expected.item(), rel=1e-6)
                for one, other in zip(mine[:3], theirs, strict=False):
                    torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=0)


def test_without_gradients_the_norm_is_zero(subtests):
    for given in ([], parameters(None, None)):
        for norm_type in (2.0, math.inf):
            with subtests.test(given=given, norm_type=norm_type):
                found = clip_grad_norm_(given, 1.0, norm_type)
                assert (found.item(), found.shape, found.dtype) == (0.0, (), torch.float32)


def test_one_tensor_and_a_generator_are_taken_like_a_list():
    assert clip_grad_norm_(parameters(torch.tensor([3.0, 4.0]))[0], 1.0) == 5
    assert clip_grad_norm_((each for each in parameters(torch.tensor([3.0, 4.0]))), 1.0) == 5


def test_a_tied_weight_in_two_lists_counts_and_shrinks_once():
    (tied,) = parameters(torch.tensor([3.0, 4.0]))
    assert clip_grad_norm_([tied, tied], 1.0) == 5
    torch.testing.assert_close(tied.grad, torch.tensor([0.6, 0.8]), rtol=1e-6, atol=0)


def test_an_infinite_limit_measures_and_touches_nothing():
    (parameter,) = parameters(torch.tensor([math.inf, 4.0]))
    assert clip_grad_norm_([parameter], math.inf) == math.inf
    assert parameter.grad.tolist() == [math.inf, 4.0]


def test_what_is_not_finite_is_returned(subtests):
    for poison in (math.nan, math.inf, -math.inf):
        for norm_type in (1.0, 2.0, math.inf):
            with subtests.test(norm_type=norm_type, poison=poison):
                found = clip_grad_norm_(parameters(torch.tensor([1.0, poison]), torch.ones(2)), 1.0, norm_type)
                assert math.isnan(found) if math.isnan(poison) else found == math.inf


def test_precisions_mix_and_double_stays_double():
    mixed = parameters(torch.full((9,), 2.0, dtype=torch.bfloat16), torch.full((16,), 2.0))
    assert clip_grad_norm_(mixed, 1.0) == 10
    assert [parameter.grad.dtype for parameter in mixed] == [torch.bfloat16, torch.float32]
    tiny = clip_grad_norm_(parameters(torch.tensor([1.0, 1e-9], dtype=torch.float64)), 1.0, 1.0)
    assert (tiny.dtype, tiny.item()) == (torch.float64, 1.0 + 1e-9)


LIMITS = [(-1, 2, "max_norm=-1"), (math.nan, 2, "max_norm=nan"), (1, 0, "norm_type=0")]


def test_limits_that_mean_nothing_are_refused(subtests):
    for limit, norm_type, message in LIMITS:
        with subtests.test(message), pytest.raises(UsageError, match=message):
            clip_grad_norm_([], limit, norm_type)


@pytest.mark.parametrize("max_norm", [None, math.inf])
def test_a_number_by_which_gradients_are_scaled_never_becomes_a_tensor(monkeypatch, max_norm):
    """CUDA copies such a tensor from pageable memory, and the host waits for the device meanwhile."""
    factors = []
    monkeypatch.setattr(torch, "_foreach_mul_", lambda tensors, factor: factors.append(factor))
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 2.0)
    if max_norm is None:
        scale_gradients_([weight], 0.25)
    else:
        assert clip_grad_norm_([weight], max_norm, scale=0.25) == pytest.approx(12**0.5 / 4)
    assert factors == [0.25]
    assert type(factors[0]) is float
