"""Degrees multiply to the world, and an error names the nearest that do."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.dist.mesh import DIMENSIONS, Degrees, resolve
from ezpz.errors import UsageError

AS_ASKED = [
    (1, {}, Degrees(1, 1, 1, 1, 1)),
    (8, {}, Degrees(1, 1, 8, 1, 1)),
    (8, {"tp": 2}, Degrees(1, 1, 4, 1, 2)),
    (8, {"dp_replicate": 2, "tp": 2}, Degrees(1, 2, 2, 1, 2)),
    (8, {"dp_replicate": -1, "dp_shard": 1}, Degrees(1, 8, 1, 1, 1)),
    (8, {"tp": -1, "dp_shard": 2}, Degrees(1, 1, 2, 1, 4)),
    (8, {"pp": -1, "dp_shard": 4}, Degrees(2, 1, 4, 1, 1)),
    (48, {"pp": 2, "cp": 3, "tp": 4}, Degrees(2, 1, 2, 3, 4)),
    (8, {"dp_shard": 8}, Degrees(1, 1, 8, 1, 1)),
    (120_000, {"tp": 12, "ranks_per_host": 12}, Degrees(1, 1, 10_000, 1, 12)),
    (6, {"tp": 2, "ranks_per_host": [4, 2]}, Degrees(1, 1, 3, 1, 2)),
    (6, {"tp": 2, "ranks_per_host": 4}, Degrees(1, 1, 3, 1, 2)),
    (16, {"tp": 16, "ranks_per_host": 8, "tp_across_hosts": True}, Degrees(1, 1, 1, 1, 16)),
    (4, {"tp": 4, "ranks_per_host": 12}, Degrees(1, 1, 1, 1, 4)),
]


def test_degrees_are_as_asked_and_the_rest_is_filled_in(subtests):
    for world, wished, expected in AS_ASKED:
        with subtests.test(world=world, **wished):
            assert resolve(world, **wished) == expected


IMPOSSIBLE = [
    (8, {"tp": 3}, "tp=3 does not divide 8 ranks.*expected 1, 2, 4 or 8: tp=2 or tp=4 is nearest"),
    (8, {"tp": 5}, "expected 1, 2, 4 or 8: tp=4 is nearest"),
    (4096, {"tp": 7}, "expected 1, 2, 4, 8, 16, …, 512, 1024, 2048 or 4096: tp=8 is nearest"),
    (8, {"dp_replicate": 2, "tp": 3}, "dp_replicate=2 x tp=3 = 6 does not divide 8 ranks.*tp=2 or tp=4 is nearest"),
    (8, {"dp_shard": 3}, "dp_shard=3 does not make 8 ranks.*dp_shard=8 is nearest"),
    (8, {"dp_shard": 2, "tp": 2}, "= 4 does not make 8 ranks.*dp_shard=4 or tp=4 is nearest"),
    (
        8,
        {"dp_shard": 3, "tp": 5},
        "= 15 does not make 8 ranks.*all but one of them at 1, and give that one 1, 2, 4 or 8",
    ),
    (8, {"tp": -1}, "dp_shard=-1 and tp=-1: only one degree can be the rest.*Give dp_shard or tp a number"),
    (8, {"tp": 0}, "unusable tp=0 .*a whole number from 1 on, or -1"),
    (8, {"pp": -2}, "unusable pp=-2"),
    (8, {"cp": 2.0}, r"unusable cp=2\.0"),
    (8, {"tp": "2"}, "unusable tp='2'"),
    (8, {"tp": True}, "unusable tp=True"),
    (0, {}, "unusable world_size=0"),
    (-1, {}, "unusable world_size=-1"),
    (24, {"tp": 12, "ranks_per_host": 4}, "tp=12 does not fit inside a host of 4 ranks; expected 1, 2 or 4: tp=4 is"),
    (24, {"tp": 12, "ranks_per_host": 4}, "tp_across_hosts=True"),
    (6, {"tp": 2, "ranks_per_host": [3, 3]}, "inside a host of 3 ranks; expected 1 or 3: tp=1 or tp=3 is nearest"),
    (9, {"tp": 3, "ranks_per_host": [6, 2, 1]}, "inside hosts of 1, 2 and 6 ranks; expected 1: tp=1 is nearest"),
    (
        8,
        {"tp": -1, "dp_shard": 1, "ranks_per_host": 4},
        r"tp=8 \(tp=-1, the rest of 8 ranks\) does not fit inside a host of 4",
    ),
    (8, {"ranks_per_host": [4, 2]}, "the hosts have 6 ranks together.*expected 8"),
    (8, {"ranks_per_host": 0}, "unusable ranks_per_host=0"),
]


def test_an_impossible_wish_is_refused_in_one_line_with_what_to_type(subtests):
    for world, wished, message in IMPOSSIBLE:
        with subtests.test(world=world, **wished):
            with pytest.raises(UsageError, match=message) as caught:
                resolve(world, **wished)
            assert "\n" not in str(caught.value)


degree = st.integers(1, 12)


@given(st.tuples(degree, degree, degree, degree, degree), st.sampled_from([None, *range(5)]))
def test_factors_of_a_world_are_accepted_and_any_of_them_may_be_the_rest(sizes, free):
    wished = dict(zip(DIMENSIONS, sizes, strict=True))
    if free is not None:
        wished[DIMENSIONS[free]] = -1
    assert tuple(resolve(math.prod(sizes), **wished).by_name().values()) == sizes


@given(st.integers(1, 5000), st.dictionaries(st.sampled_from(DIMENSIONS), st.integers(-2, 40)))
def test_what_comes_back_multiplies_to_the_world_or_is_refused(world, wished):
    try:
        degrees = resolve(world, **wished)
    except UsageError:
        return
    assert math.prod(degrees.by_name().values()) == world
    assert degrees.dp == degrees.dp_replicate * degrees.dp_shard
    assert all(getattr(degrees, name) == value for name, value in wished.items() if value != -1)


@given(st.integers(1, 5000), st.dictionaries(st.sampled_from(DIMENSIONS), st.integers(1, 40), min_size=1))
def test_each_change_that_an_error_names_is_legal(world, wished):
    try:
        resolve(world, **wished)
    except UsageError as error:
        named = re.search(r": ((?:\w+=\d+(?: or )?)+) is nearest", str(error))
        changes = re.findall(r"(\w+)=(\d+)", named[1]) if named else []
        for name, value in changes:
            resolve(world, **{**wished, name: int(value)})


@given(st.lists(st.integers(1, 16), min_size=1, max_size=6), st.integers(1, 16))
def test_tensor_parallel_is_accepted_exactly_if_no_group_of_it_crosses_hosts(hosts, tp):
    world = sum(hosts)
    owner = [index for index, ranks in enumerate(hosts) for _ in range(ranks)]
    fits = world % tp == 0 and all(owner[first] == owner[first + tp - 1] for first in range(0, world, tp))
    try:
        resolve(world, tp=tp, ranks_per_host=hosts)
    except UsageError:
        assert not fits
    else:
        assert fits
