import pytest
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import UsageError
from ezpz.train import BatchIndices


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 4), st.integers(0, 9))
def test_the_slices_of_all_ranks_are_the_global_batch(samples, batch, world, step):
    alone = BatchIndices(samples, batch * world, seed=5)(step).tolist()
    parts = [BatchIndices(samples, batch, rank=rank, world_size=world, seed=5)(step).tolist() for rank in range(world)]
    assert [index for part in parts for index in part] == alone


def test_an_epoch_visits_every_sample_once_and_each_epoch_anew():
    batches = BatchIndices(10, 4, seed=1)
    stream = [index for step in range(5) for index in batches(step).tolist()]
    first, second = stream[:10], stream[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_step_does_not_depend_on_the_steps_before_it():
    batches = BatchIndices(10, 4, seed=1)
    later = batches(7).tolist()
    assert batches(0).tolist() == BatchIndices(10, 4, seed=1)(0).tolist()
    assert batches(7).tolist() == later == BatchIndices(10, 4, seed=1)(7).tolist()


@pytest.mark.parametrize("sizes", [(0, 4), (10, 0)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(UsageError):
        BatchIndices(*sizes)
