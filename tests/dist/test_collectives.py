"""Values without a process group; `in_ranks.py` has them across ranks."""

import numpy as np
import pytest
import torch

import ezpz
from ezpz.dist.collectives import _canonical
from ezpz.errors import UsageError


def test_alone_every_collective_gives_the_value_back():
    ezpz.barrier()
    assert ezpz.broadcast({"a": 1}) == {"a": 1}
    assert ezpz.gather_objects("x") == ["x"]
    assert ezpz.all_ranks_agree(object) is True
    assert (ezpz.all_reduce(2**60 + 1), ezpz.all_reduce(3, "mean"), ezpz.all_reduce(True, "min")) == (
        2**60 + 1,
        3.0,
        True,
    )


def test_what_cannot_be_reduced_is_refused():
    with pytest.raises(UsageError, match="unknown reduction 'median'"):
        ezpz.all_reduce(1, "median")
    with pytest.raises(UsageError, match=r"cannot reduce a str.*gather_objects"):
        ezpz.all_reduce("1")


EQUAL = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"x", "y", "z"}, {"z", "y", "x"}),
    (float("nan"), float("nan")),
    (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
    (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
]


def test_equal_values_have_one_form(subtests):
    for one, other in EQUAL:
        with subtests.test(one=one):
            assert _canonical(one) == _canonical(other)


OTHERS = [
    (1, 1.0),
    (1, True),
    ("1", 1),
    ([1, [2]], [[1], 2]),
    (["ab", "c"], ["a", "bc"]),
    ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    (np.zeros(2), np.zeros(3)),
]


def test_other_values_have_another(subtests):
    for one, other in OTHERS:
        with subtests.test(one=one, other=other):
            assert _canonical(one) != _canonical(other)
