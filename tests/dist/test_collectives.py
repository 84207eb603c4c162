"""Values without a process group; `in_ranks.py` has them across ranks."""

import pytest

import ezpz
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
