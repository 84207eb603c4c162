"""Distributions as metrics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import TrackError
from ezpz.track import histogram, read_journal
from ezpz.track.distribution import MOST_BINS, Histogram


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 20))
def test_every_finite_value_is_counted_once(values, bins):
    found = histogram([*values, float("nan"), float("inf")], bins)
    assert sum(found.counts) == len(values)
    assert len(found.edges) == len(found.counts) + 1 == bins + 1


def test_a_range_of_its_own_gives_every_step_the_same_edges():
    one, two = (histogram(np.arange(n), 4, (0.0, 8.0)) for n in (3, 100))
    assert one.edges == two.edges == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert sum(two.counts) == 9  # what lies outside is not counted


def test_what_is_no_binning_is_refused(subtests):
    for arguments in [(0,), (MOST_BINS + 1,), (2.5,), (4, (1.0, 1.0))]:
        with subtests.test(str(arguments)), pytest.raises(TrackError, match="1 to 512 bins"):
            histogram([1.0], *arguments)


def test_histograms_are_recorded_and_read_back_also_those_of_others(history):
    line = history.update({"grad": histogram([0.0, 1.0, 1.0], 2), "lr": 0.1})
    assert line == "grad=[2_bins,0..1] lr=0.1"
    assert read_journal(history.outdir)[0]["m"]["grad"] == Histogram([1, 2], [0.0, 0.5, 1.0])

    class Foreign:
        histogram, bins = np.array([1, 2]), np.array([0.0, 0.5, 1.0])

    history.update({"h": Foreign()})
    assert read_journal(history.outdir)[1]["m"]["h"] == Histogram([1, 2], [0.0, 0.5, 1.0])


WRONG = [
    Histogram([1, 2], [0.0, 1.0]),
    Histogram([], [0.0]),
    Histogram([1], [1.0, 0.0]),
    Histogram([float("nan")], [0.0, 1.0]),
    Histogram([1], [0.0, float("inf")]),
]


def test_a_histogram_that_is_none_is_refused(subtests, history):
    for wrong in WRONG:
        with subtests.test(str(wrong)):
            with pytest.raises(TrackError, match="cannot record metric 'h'"):
                history.update({"h": wrong})
            assert read_journal(history.outdir) == []


def test_tensors_of_torch_are_counted_in_any_precision():
    torch = pytest.importorskip("torch")
    values = torch.tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
    for given_as in (values, values.to(torch.bfloat16), values.reshape(2, 2), values.detach().int()):
        assert histogram(given_as, 3).counts == [1, 1, 2]
