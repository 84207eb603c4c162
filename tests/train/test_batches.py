import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ezpz.errors import UsageError
from ezpz.train import BatchIndices, TokenBatches


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


def test_tokens_are_cut_at_other_places_in_each_epoch_and_each_is_seen_once():
    length, tokens = 8, torch.arange(100)
    batches = TokenBatches(tokens, length, 1, rank=0, world_size=1, seed=4, shift=True)
    places = []
    for epoch in range(6):
        begins = []
        for place in range(len(batches)):
            inputs, targets = batches(epoch * len(batches) + place)
            assert (inputs + 1 == targets).all()
            begins.append(int(inputs[0, 0]))
        seen = torch.cat([torch.arange(begin, begin + length) for begin in begins])
        assert len(seen.unique()) == len(seen) >= len(tokens) - 2 * length
        places.append(begins[0] % length)
        assert {begin % length for begin in begins} == {places[-1]}
    assert len(set(places)) > 2
    plain = TokenBatches(tokens, length, 1, rank=0, world_size=1, seed=4)
    assert {int(plain(place)[0][0, 0]) % length for place in range(30)} == {0}


def test_shifted_batches_are_those_of_any_number_of_ranks():
    alone = TokenBatches(torch.arange(100), 8, 4, rank=0, world_size=1, seed=4, shift=True)
    ranks = [TokenBatches(torch.arange(100), 8, 2, rank=rank, world_size=2, seed=4, shift=True) for rank in (0, 1)]
    for position in (0, 2, 7, 11):  # 11 samples an epoch: some batches have samples of two
        both = torch.cat([each(position)[0] for each in ranks])
        assert torch.equal(alone(position)[0], both)
    with pytest.raises(UsageError, match=r"8 out of 15 tokens .* at least 16 tokens with shift=True"):
        TokenBatches(torch.arange(15), 8, 4, shift=True)
