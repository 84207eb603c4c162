"""Run by pytest inside every rank of one launch of 4: the ways to cut a model train the same, and a run resumes.

Not collected by itself; `test_trainers.py` launches it.
"""

import os
from pathlib import Path

import pytest
import torch

import ezpz
import ezpz.dist.mesh as meshes
from ezpz.errors import UsageError
from ezpz.examples import fsdp, fsdp_tp, vit
from ezpz.track import read_journal
from ezpz.train import evaluate, parse, shard_indices

SMALL = [
    "--preset",
    "debug",
    "--n_layers",
    "1",
    "--max_iters",
    "3",
    "--eval_samples",
    "16",
    "--no_plots",
    "--seq_len",
    "16",
]
WHOLE = ["--global_batch_size", "8"]


@pytest.fixture(autouse=True, scope="module")
def group_of_ranks():
    ezpz.setup_torch()
    yield
    ezpz.cleanup()


def train(trainer, folder, *words):
    """Train in this world and return the rows, on rank 0; the mesh of one case is not that of the next."""
    meshes._made.clear()
    trainer.run(parse(trainer.options(), [*map(str, words), "--outdir", str(folder)]))
    return read_journal(folder / "metrics.jsonl") if ezpz.get_rank() == 0 else []


@pytest.fixture
def folder(request):
    """A folder that all ranks name alike."""
    return Path(os.environ["EZPZ_TEST_FOLDER"], request.node.name.replace("[", "-").replace("]", "").replace(" ", "-"))


CUTS = {
    "tp without sequence parallel": ["--tp", "2", "--no_sequence_parallel"],
    "loss parallel": ["--tpsize=2", "--loss-parallel"],
    "copies of tp": ["--dp-replicate=2", "--tp", "2"],
    "copies with recompute": ["--dp_replicate", "2", "--activation_checkpoint", "full"],
    "ddp with accumulation": ["--strategy", "ddp", "--accumulate", "2"],
    "zero1": ["--strategy", "zero1"],
}


@pytest.fixture(scope="module")
def plain():
    rows = train(fsdp_tp, Path(os.environ["EZPZ_TEST_FOLDER"], "plain"), *SMALL, *WHOLE)
    return [row["m"] for row in rows]


@pytest.mark.parametrize("cut", CUTS)
def test_every_way_to_cut_the_language_model_learns_the_same(plain, folder, cut):
    rows = train(fsdp_tp, folder, *SMALL, *WHOLE, *CUTS[cut])
    if rows:
        assert rows[-1]["m"]["val_loss"] == pytest.approx(plain[-1]["val_loss"], abs=2e-4)
        assert rows[0]["m"]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], abs=2e-5)


def test_the_language_model_resumes_where_it_was_and_ends_the_same(plain, folder):
    train(fsdp_tp, folder, *SMALL, *WHOLE, "--save_freq", "2", "--keep", "5")
    where = folder / "checkpoints" / "step-00000002"
    rows = train(fsdp_tp, folder.with_name("resumed"), *SMALL, *WHOLE, "--tp", "2", "--resume", where)
    if rows:
        assert [row["step"] for row in rows] == [2]
        assert rows[-1]["m"]["val_loss"] == pytest.approx(plain[-1]["val_loss"], abs=2e-4)


def test_the_vision_transformer_resumes_under_another_strategy_and_ends_the_same(folder):
    """Its weights are not drawn before the load: what the load forgot would be NaN."""
    words = ["--preset=debug", "--max_iters=4", "--depth=1", "--samples=64", "--eval_samples=20", "--no_plots"]
    whole = train(vit, folder, *words, "--batch_size=4", "--save_freq", "2", "--keep", "5")
    where = folder / "checkpoints" / "step-00000002"
    more = ["--batch_size=4", "--strategy", "ddp", "--resume", where]
    rows = train(vit, folder.with_name("vit-resumed"), *words, *more)
    if rows:
        assert [row["step"] for row in rows] == [2, 3]
        assert rows[-1]["m"]["loss"] == pytest.approx(whole[-1]["m"]["loss"], abs=2e-4)
        assert rows[-1]["m"]["val_loss"] == pytest.approx(whole[-1]["m"]["val_loss"], abs=2e-4)


def test_sixteen_bits_are_near_to_thirty_two(plain, folder):
    rows = train(fsdp_tp, folder, *SMALL, *WHOLE, "--dtype", "fp16")
    if rows:
        assert rows[0]["m"]["loss"] == pytest.approx(plain[0]["loss"], abs=2e-2)
        assert rows[-1]["m"]["val_loss"] < rows[0]["m"]["loss"]


def test_the_images_are_tested_all_of_them_by_any_strategy(folder):
    found = []
    for strategy in ("fsdp", "ddp"):
        words = ["--preset", "debug", "--epochs", "1", "--strategy", strategy, "--no_plots"]
        found.append(train(fsdp, folder.with_name(f"cnn-{strategy}"), *words))
    if found[0]:
        (first,), (second,) = found
        assert first["m"]["epoch"] == 1
        assert first["m"]["test_acc"] == pytest.approx(second["m"]["test_acc"], abs=1.2)
        correct = first["m"]["test_acc"] * 360 / 100  # of all 360 test images, which four ranks share
        assert correct == pytest.approx(round(correct), abs=1e-3)


@pytest.mark.parametrize("attention", ["math", "flash"])
def test_every_attention_and_real_images_of_another_size(folder, attention):
    words = [
        "--preset=debug",
        "--max-iters=2",
        "--dataset=digits",
        "--image_size=16",
        "--eval_samples=20",
        "--no_plots",
    ]
    rows = train(vit, folder, *words, "--attn", attention, "--dtype", "bf16" if attention == "flash" else "fp32")
    if rows:
        assert set(rows[-1]["m"]) >= {"accuracy", "val_loss", "val_accuracy", "grad_norm", "lr"}
        right = rows[-1]["m"]["val_accuracy"] * 20
        assert right == pytest.approx(round(right), abs=1e-3)


@pytest.mark.parametrize(
    ("trainer", "words", "told"),
    [
        (fsdp_tp, ["--preset", "debug", "--tp", "3"], "n_heads=4 cannot be cut into tp=3"),
        (fsdp_tp, ["--preset", "debug", "--tp", "4"], "n_kv_heads=2 cannot be cut into tp=4"),
        (fsdp_tp, ["--preset", "debug", "--global_batch_size", "6"], "expected for example 4 or 8"),
        (fsdp_tp, ["--preset", "debug", "--resume", "nowhere"], "cannot resume from 'nowhere'"),
        (fsdp_tp, ["--preset", "debug", "--dataset", "nowhere.txt", "--no_plots"], "nowhere.txt"),
        (fsdp_tp, ["--preset", "debug", "--dp_replicate", "3"], "dp_replicate=3 does not divide 4 ranks"),
        (fsdp, ["--preset", "debug", "--batch_size", "400"], "expected at most 1437"),
        (vit, ["--preset", "debug", "--patch_size", "7"], "cannot be cut into patches of 7"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(trainer, words, told, folder):
    with pytest.raises(UsageError) as caught:
        train(trainer, folder, *words)
    assert told in str(caught.value)
    assert ezpz.all_ranks_agree(str(caught.value))
    assert not folder.exists()


def test_dropout_differs_between_ranks_once_a_model_is_wrapped(folder):
    train(fsdp, folder, "--preset", "debug", "--epochs", "1", "--batch_size", "256", "--no_plots")
    assert len(set(ezpz.gather_objects(torch.initial_seed()))) == 4


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize("samples", [3, 26])
def test_uneven_shards_are_evaluated_as_by_one_process(strategy, samples):
    """With 3 samples one of four ranks has none; with 26 in batches of 4 two have a batch more than the others."""
    ezpz.init_mesh()
    ezpz.seed_everything(5)
    x, y = torch.randn(samples, 6), torch.randint(3, (samples,))
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))

    def compute(model, batch):
        logits = model(batch[0])
        loss = torch.nn.functional.cross_entropy(logits, batch[1])
        return loss, {"accuracy": (logits.argmax(1) == batch[1]).float().mean()}

    network.eval()
    expected, more = compute(network, (x, y))
    network.train()
    model = ezpz.wrap_model(network, strategy, dtype="fp32")
    mine = shard_indices(samples).split(4)
    found = evaluate(model, ((x[part], y[part]) for part in mine), compute)
    assert model.training
    assert found["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert found["accuracy"] == pytest.approx(more["accuracy"].item(), abs=1e-6)
    assert ezpz.all_ranks_agree(found)
    assert evaluate(model, [], compute) == {}
