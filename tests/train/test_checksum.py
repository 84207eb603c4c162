"""Sums of batches: the same for the same values, another one for others, and none where the host cannot know."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ezpz.train.data.checksum import combined, sum_of


@dataclass
class Record:
    x: object
    note: str = "a"


class Pair(NamedTuple):
    x: object
    y: object


def large(seed):
    return torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


VALUES = {
    "small": (torch.tensor([1, 2]), torch.tensor([1, 3])),
    "large": (large(1), large(2)),
    "bfloat16": (large(1).bfloat16(), large(2).bfloat16()),
    "bool": (torch.tensor([True]), torch.tensor([False])),
    "transposed": (large(1).transpose(1, 2), large(2).transpose(1, 2)),
    "numpy": (np.arange(3), np.arange(1, 4)),
    "text": ("a text", "another"),
}


def test_equal_batches_have_equal_sums_and_others_have_not(subtests):
    wrappings = {
        "bare": lambda x: x,
        "tuple": lambda x: (x, 1),
        "dict": lambda x: {"x": [x]},
        "dataclass": Record,
        "named tuple": lambda x: Pair(x, 2),
    }
    for kind, wrap in wrappings.items():
        for name, (one, other) in VALUES.items():
            with subtests.test(f"{name} in {kind}"):
                again = one.clone() if isinstance(one, torch.Tensor) else one
                assert sum_of(wrap(one)) == sum_of(wrap(again))
                assert sum_of(wrap(one))[0] != sum_of(wrap(other))[0]


def test_the_short_way_has_the_sums_of_the_long_one(subtests):
    for batch in ((torch.arange(5), large(3)), [torch.rand(4), torch.zeros(2, 2).bool()]):
        with subtests.test(type(batch).__name__):
            assert sum_of(batch) == sum_of(Pair(*batch)) == sum_of(dict(enumerate(batch)))


def test_a_form_names_types_and_sizes():
    assert sum_of((torch.zeros(2, 3), torch.zeros(2).long()))[1] == "float32[2,3] int64[2]"
    assert sum_of({"x": np.zeros(4, np.float32), "n": 3})[1] == "float32[4] int"
    assert sum_of(torch.zeros(2, 3).t())[1] == "float32[3,2]'"


def test_one_value_in_a_thousand_images_is_a_sample_of_many():
    """Of a large tensor four pieces are looked at: a change of half of it is seen."""
    one, other = large(1), large(1)
    other[32:] += 1
    assert sum_of(one) != sum_of(other)


def test_odd_batches_do_no_harm():
    for odd in (torch.zeros(0), torch.zeros(2, requires_grad=True), torch.tensor(3.0)):
        assert sum_of(odd) is not None
    for nothing in ((), None, {}):
        assert sum_of(nothing) is None


def test_what_cannot_be_read_has_no_sum():
    class Broken:
        dtype = "broken"

        def tobytes(self):
            raise RuntimeError("no")

    assert sum_of(Broken()) is None


def test_a_batch_on_a_device_has_the_sum_of_its_samples_or_none():
    away = torch.zeros(4, device="meta")
    assert sum_of((away, torch.zeros(2))) is None
    picked = torch.tensor([3, 1])
    assert sum_of(away, picked) == sum_of((away, away), picked.clone())
    assert sum_of(away, picked)[1] == "samples int64[2]"
    assert sum_of(away, picked) != sum_of(away, torch.tensor([1, 3]))


def test_sums_of_a_step_count_their_order():
    one, two = sum_of(torch.tensor(1)), sum_of(torch.tensor(2))
    assert combined(one, two)[0] != combined(two, one)[0]
    assert combined(one, two)[1] == one[1]
    assert combined(one, None) is None
