"""Batches as a function of the position: the same for every number of ranks, and every sample once."""

import time

import pytest
import torch

from ezpz.errors import UsageError
from ezpz.train import ImageBatches, TokenBatches, Tokens, shard_indices

X = torch.arange(10 * 4, dtype=torch.uint8).view(10, 2, 2)
Y = torch.arange(10)


def test_the_shards_of_all_ranks_are_all_samples_once(subtests):
    for world in (1, 2, 3, 4, 5):
        for samples in (1, 5, 10, 11):
            with subtests.test(samples=samples, world=world):
                shards = [shard_indices(samples, rank, world) for rank in range(world)]
                assert torch.cat(shards).tolist() == list(range(samples))
                assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_evaluation_sees_each_sample_once_and_all_ranks_yield_equally_often(subtests):
    for world in (1, 2, 3, 4, 5):
        with subtests.test(world=world):
            seen, counts = [], []
            for rank in range(world):
                parts = list(ImageBatches(X, Y, 3, rank=rank, world_size=world).once())
                seen += torch.cat([y for _, y in parts]).tolist()
                counts.append(len(parts))
                assert all(x.shape[1:] == (1, 2, 2) and x.dtype == torch.float32 and len(x) == len(y) for x, y in parts)
            assert seen == list(range(10))
            assert len(set(counts)) == 1


def test_a_rank_without_samples_left_yields_an_empty_batch():
    sizes = [[len(y) for _, y in ImageBatches(X, Y, 3, rank=rank, world_size=3).once()] for rank in range(3)]
    assert sizes == [[3, 0], [3, 0], [3, 1]]
    assert [len(y) for _, y in ImageBatches(X, Y, 3, rank=0, world_size=1).once(4)] == [4, 4, 2]


def test_the_global_batch_does_not_depend_on_the_number_of_ranks(subtests):
    stream = torch.arange(101)
    makers = (
        lambda size, **where: ImageBatches(X, Y, size, seed=4, **where),
        lambda size, **where: TokenBatches(stream, 5, size, seed=4, **where),
    )
    for world in (1, 2, 3, 6):
        with subtests.test(world=world):
            for make in makers:
                alone = make(6, rank=0, world_size=1)
                ranks = [make(6 // world, rank=rank, world_size=world) for rank in range(world)]
                for position in (0, 3, 17):
                    for whole, parts in zip(
                        alone(position), zip(*(one(position) for one in ranks), strict=True), strict=True
                    ):
                        assert torch.equal(whole, torch.cat(parts))


def test_images_become_numbers_from_0_to_1_with_a_channel():
    batches = ImageBatches(
        torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8), torch.tensor([3]), 2, rank=0, world_size=1
    )
    x, y = batches(0)
    assert (x.shape, x.dtype) == ((2, 1, 2, 2), torch.float32)
    assert x[0].flatten().tolist() == pytest.approx([0, 0.2, 0.4, 1])
    assert y.tolist() == [3, 3]
    real = torch.rand(4, 3, 2, 2)
    x, _ = ImageBatches(real, torch.arange(4), 4, rank=0, world_size=1)(0)
    assert torch.equal(x.sum(), real.sum()) or torch.allclose(x.sum(), real.sum())
    assert x.shape == real.shape


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint16])
def test_a_sequence_and_what_follows_each_of_its_tokens(dtype):
    stream = torch.arange(65_500, 65_500 + 23).clamp(max=65_535).to(dtype)
    batches = TokenBatches(stream, 4, 5, rank=0, world_size=1)
    assert len(batches) == 5  # 20 of 22 predictions
    x, y = batches(0)
    assert (x.dtype, y.dtype, x.shape, y.shape) == (torch.int64, torch.int64, (5, 4), (5, 4))
    assert x.is_contiguous()
    assert y.is_contiguous()
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert sorted(x.flatten().tolist()) == list(range(65_500, 65_520))
    assert torch.equal(y, x + 1)
    longest = TokenBatches(stream, 22, 1, rank=0, world_size=1)
    assert len(longest) == 1
    assert longest(7)[1][0, -1] == 65_522


def test_tokens_mean_their_part_to_train_with():
    tokens = Tokens("x", "", 100, torch.arange(50), torch.arange(50, 60))
    assert TokenBatches(tokens, 7, 1, rank=0, world_size=1)(0)[0].max() < 50


def test_what_does_not_fit_is_told():
    with pytest.raises(UsageError, match=r"sequences of 10 out of 10 tokens.*at least 11"):
        TokenBatches(torch.arange(10), 10, 1)
    with pytest.raises(UsageError, match="sequences of 0"):
        TokenBatches(torch.arange(10), 0, 1)
    with pytest.raises(UsageError, match="N labels"):
        ImageBatches(X, Y[:9], 2)
    with pytest.raises(UsageError, match="batch size 0"):
        ImageBatches(X, Y, 0)
    for wrong in ({"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}):
        with pytest.raises(UsageError, match="rank below the world size"):
            ImageBatches(X, Y, 2, **wrong)


def test_batches_can_be_kept_and_cut_on_a_device():
    x, y = ImageBatches(X, Y, 2, rank=0, world_size=1, device="meta")(0)
    assert (x.device.type, x.shape, y.device.type) == ("meta", (2, 1, 2, 2), "meta")
    x, y = TokenBatches(torch.arange(50), 4, 3, rank=0, world_size=1, device="meta")(2)
    assert (x.device.type, x.shape, y.device.type) == ("meta", (3, 4), "meta")


def test_what_a_run_records_of_its_batches():
    assert TokenBatches(torch.arange(50), 4, 3, rank=1, world_size=2, seed=9).describe() == {
        "samples": 12,
        "batch_size": 3,
        "global_batch_size": 6,
        "data_parallel": 2,
        "data_seed": 9,
        "seq_len": 4,
    }


def test_a_batch_costs_little_beside_a_step():
    batches = ImageBatches(
        torch.zeros(60_000, 28, 28, dtype=torch.uint8), torch.zeros(60_000, dtype=torch.int64), 64, rank=0, world_size=1
    )
    batches(0)
    best = min(_seconds(batches, position) for position in range(50))
    assert best < 2e-3  # of CPU, about 0.1 ms here


def _seconds(batches, position):
    began = time.thread_time()
    batches(position)
    return time.thread_time() - began
