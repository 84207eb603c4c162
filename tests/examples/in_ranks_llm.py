"""Run by pytest inside every rank of launches of 2 and 4: meshes follow one process, and runs resume bit for bit.

Not collected by itself; `test_llm_trainer.py` launches it, and has trained in one process into
$EZPZ_TEST_FOLDER/one before.
"""

import os
from pathlib import Path

import pytest
import torch

import ezpz
import ezpz.dist.mesh as meshes
from ezpz.errors import UsageError
from ezpz.examples import llm
from ezpz.track import read_journal
from ezpz.train import parse

HERE = Path(os.environ["EZPZ_TEST_FOLDER"])
COPIES, SHARDS = "--training.data_parallel_replicate_degree", "--training.data_parallel_shard_degree"
TENSOR = "--training.tensor_parallel_degree"
# What is asked for -> how many ranks see different data.
MESHES = {
    2: {"fsdp": ([], 2), "tp": ([TENSOR, 2], 1), "copies": ([COPIES, 2, SHARDS, 1], 2)},
    4: {
        "fsdp": ([], 4),
        "fsdp with recompute by operation": (
            ["activation_checkpoint.mode=selective", "activation_checkpoint.selective_ac_option=op"],
            4,
        ),
        "hsdp": ([COPIES, 2], 4),
        "fsdp x tp": ([TENSOR, 2], 2),
        "fsdp x tp without loss parallel": ([TENSOR, 2, "training.enable_loss_parallel=false"], 2),
    },
}
CASES = [(ranks, name) for ranks in MESHES for name in MESHES[ranks]]


@pytest.fixture(autouse=True, scope="module")
def group_of_ranks():
    ezpz.setup_torch()
    yield
    ezpz.cleanup()


def train(folder, words, *, batch):
    """Train in this world; return the rows on rank 0. The mesh of one case is not that of the next."""
    meshes._made.clear()
    small = [*os.environ["EZPZ_TEST_WORDS"].split(), "--training.batch_size", batch, "--outdir", folder]
    llm.run(parse(llm.options(), [*map(str, [*small, *words])]))
    return [row["m"] for row in read_journal(folder / "metrics.jsonl")] if ezpz.get_rank() == 0 else []


@pytest.mark.parametrize(("ranks", "name"), CASES)
def test_every_mesh_follows_one_process(ranks, name):
    if ranks != ezpz.get_world_size():
        pytest.skip("another number of ranks")
    words, parts = MESHES[ranks][name]
    rows = train(HERE / f"{ranks}-{name.replace(' ', '-')}", words, batch=8 // parts)
    if rows:
        whole = [row["m"] for row in read_journal(HERE / "one" / "metrics.jsonl")]
        assert [row["step"] for row in rows] == [row["step"] for row in whole] == list(range(1, 7))
        for row, one in zip(rows, whole, strict=True):
            assert row["grad_norm"] == pytest.approx(one["grad_norm"], rel=2e-5)
            if parts == 1:  # the loss of a row is that of this rank's part of the data
                assert row["loss"] == pytest.approx(one["loss"], abs=1e-5)
            if "global_avg_loss" in one:
                assert row["global_avg_loss"] == pytest.approx(one["global_avg_loss"], abs=1e-5)
        assert rows[-1]["val_loss"] == pytest.approx(whole[-1]["val_loss"], abs=1e-4)


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit():
    world = ezpz.get_world_size()
    saved = ["--checkpoint.enable_checkpoint", "--checkpoint.interval=2"]
    words = [TENSOR, 2] if world == 4 else []
    folder = HERE / f"saved-{world}"
    whole = train(folder, [*words, *saved], batch=2)
    where = folder / "checkpoints" / "step-00000002"
    rest = train(HERE / f"resumed-{world}", [*words, "--resume", where], batch=2)
    if rest:
        assert [row["step"] for row in rest] == [3, 4, 5, 6]
        assert [(row["loss"], row["grad_norm"]) for row in rest] == [
            (row["loss"], row["grad_norm"]) for row in whole[2:]
        ]
        assert rest[-1]["val_loss"] == whole[-1]["val_loss"]


def test_weights_leave_and_come_back_in_hugging_faces_files():
    world = ezpz.get_world_size()
    folder = HERE / f"kept-{world}"
    kept = ["--checkpoint.enable_checkpoint", "--checkpoint.last_save_in_hf", "--checkpoint.model_weights_only"]
    words = [TENSOR, 2] if world == 4 else []
    rows = train(folder, [*words, *kept], batch=2)
    assert (folder / "hugging_face" / "config.json").exists()
    for path, more in (
        (folder / "hugging_face", ["--checkpoint.initial_load_in_hf"]),
        (folder / "weights" / "checkpoints" / "step-00000006", []),
    ):
        begin = [
            "--checkpoint.initial_load_path",
            path,
            *more,
            "training.steps=1",
            "training.warmup_steps=0",
            "optimizer.lr=1e-9",
        ]
        again = train(HERE / f"again-{world}-{len(more)}", begin, batch=2)
        if again:
            assert again[-1]["val_loss"] == pytest.approx(rows[-1]["val_loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([TENSOR, 3], "3"),
        ([COPIES, 3], "dp_replicate=3 does not divide"),
        (
            ["training.dataset=shakespeare", "model.vocab_size=16"],
            "--model.vocab_size 16 is too small: shakespeare has 258 different tokens",
        ),
        (["training.dataset=nowhere.txt"], "nowhere.txt"),
        (["training.dataset=shakespeare", "model.tokenizer_path=nowhere/tokenizer.model"], "nowhere/tokenizer.model"),
        (["--checkpoint.initial_load_path", "nowhere", "--checkpoint.initial_load_in_hf"], "nowhere"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(words, told):
    folder = HERE / "refused"
    with pytest.raises(UsageError) as caught:
        train(folder, words, batch=2)
    assert told in str(caught.value)
    assert ezpz.all_ranks_agree(str(caught.value))
    assert not folder.exists()


def test_a_trace_and_a_copy_for_tensorboard_stand_in_the_runs_folder():
    folder = HERE / f"looked-{ezpz.get_world_size()}"
    words = ["--profiling.enable_profiling", "profiling.profile_freq=3", "--metrics.enable_tensorboard"]
    rows = train(folder, words, batch=2)
    if rows:
        assert len(list((folder / "profile_traces").glob("*.json.gz"))) == 2
        assert list((folder / "trackers" / "tensorboard").glob("events.out.tfevents.*"))


def test_deterministic_kernels_train_too():
    try:
        assert (
            train(HERE / f"deterministic-{ezpz.get_world_size()}", ["--training.deterministic"], batch=2)
            or ezpz.get_rank()
        )
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
