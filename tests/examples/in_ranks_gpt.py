"""Run by pytest inside every rank of a launch of 2 or 4: the character GPT follows one process; samples are all alike.

Not collected by itself; `test_gpt_trainer.py` launches it.
"""

import math
import os
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import ezpz
from ezpz.errors import UsageError
from ezpz.examples import gpt
from ezpz.models import GPT, GPTConfig
from ezpz.track import read_journal
from ezpz.train import TokenBatches, load_tokens, parameters_for_flops, parse, sample_tokens

SIZES = GPTConfig(vocab_size=65, n_layer=3, n_head=4, n_embd=32, block_size=16)
BATCH, STEPS, CLIP = 8, 6, 0.5  # the norm of every gradient here is larger, so that clipping is always at work
FOLDER = Path(os.environ["EZPZ_TEST_FOLDER"])
SMALL = [
    *("--preset", "debug", "--no_plots", "model.n_layer=1", "model.block_size=16", "train.max_iters=4"),
    *("train.warmup_iters=1", "train.eval_interval=2", "train.eval_iters=1", "train.sample_tokens=8"),
]


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    ezpz.cleanup()


def build(seed=11):
    ezpz.seed_everything(seed)
    return GPT(SIZES)


def batch_of(step):
    tokens = torch.randint(65, (BATCH, 17), generator=torch.Generator().manual_seed(100 + step))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model, x, y):
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


@cache
def alone():
    """Return loss and gradient norm of each step of one process, without ezpz around the model, and a sample."""
    model, steps = build(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = loss_of(model, *batch_of(step))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        assert norm > CLIP
        steps.append((loss.item(), norm.item()))
    return steps, sample_tokens(model, [1, 2], 30, context=16, seed=5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1", "hsdp"])
def test_it_follows_one_process(strategy):
    if strategy == "hsdp" and dist.get_world_size() < 4:
        pytest.skip("two ranks are either copies or parts")
    mesh = ezpz.init_mesh(dp_replicate=2) if strategy == "hsdp" else ezpz.init_mesh()
    model = ezpz.wrap_model(build(), strategy, mesh, "fp32")
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=1e-3)
    part, parts = ezpz.coordinate(mesh, "dp"), ezpz.degree(mesh, "dp")
    expected, sample = alone()
    for step in range(STEPS):
        loss = loss_of(model, *(each.chunk(parts)[part] for each in batch_of(step)))
        loss.backward()
        norm = ezpz.clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)
        optimizer.step()
        optimizer.zero_grad()
        mean = ezpz.all_reduce(loss.item(), "mean")
        assert mean == pytest.approx(expected[step][0], abs=1e-5)
        assert float(norm) == pytest.approx(expected[step][1], abs=1e-5)
    model.train()
    state = torch.get_rng_state()
    drawn = sample_tokens(model, [1, 2], 30, context=16, seed=5)
    assert drawn == sample
    assert ezpz.all_ranks_agree(drawn)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_a_sharded_model_has_the_weights_of_a_whole_one_bit_for_bit():
    with torch.device("meta"):
        dense, model = GPT(SIZES), GPT(SIZES)
    ezpz.materialize(dense, seed=11)
    model = ezpz.wrap_model(model, "fsdp", ezpz.init_mesh(), "fp32", seed=11)
    expected, found = dict(dense.named_parameters()), dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in found.items():
        assert torch.equal(parameter.full_tensor(), expected[name]), name
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.counted == dense.counted == parameters_for_flops(model)


def train(folder, *words):
    """Train in this world, and return the rows by step, on rank 0; of a step that was done twice the later row."""
    ezpz.init_mesh()
    gpt.run(parse(gpt.options(), [*SMALL, *words, "--outdir", str(FOLDER / folder)]))
    rows = read_journal(FOLDER / folder / "metrics.jsonl") if ezpz.get_rank() == 0 else []
    return {row["step"]: row["m"] for row in rows}


@cache
def by_hand():
    """Return the gradients' norm of each step, and the loss in the end, as plain torch has them on the whole batch."""
    tokens = load_tokens("shakespeare")
    ezpz.seed_everything(42)
    with torch.device("meta"):
        model = GPT(GPTConfig(65, n_layer=1, n_head=4, n_embd=128, block_size=16))
    ezpz.materialize(model)
    table = model.transformer.wpe.weight  # of positions, which do not decay
    decays = [(each.dim() > 1 and each is not table, each) for each in model.parameters()]
    matrices, others = ([each for found, each in decays if found == wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    batches = TokenBatches(tokens.train, 16, 8, rank=0, world_size=1, seed=42)
    norms = []
    for step in range(4):
        for group in optimizer.param_groups:
            # The first step warms up; then the rate falls along a cosine until step 300.
            group["lr"] = 5e-4 + 4.5e-3 * (1 + math.cos(math.pi * max(0, step - 1) / 299)) / 2
        loss_of(model, *batches(step)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
    held_out = TokenBatches(tokens.test, 16, 8, rank=0, world_size=1)
    with torch.no_grad():
        spread = torch.tensor([place * len(held_out) // 8 for place in range(8)])
        return norms, loss_of(model, *held_out.take(spread)).item()


@pytest.mark.parametrize("words", [["train.backend=fsdp"], ["optimizer.gas=2", "train.eval_iters=2"]])
def test_every_backend_trains_as_plain_torch_does(words):
    accumulated = 2 if "optimizer.gas=2" in words else 1
    rows = train(f"plain-{accumulated}", f"model.batch_size={8 // dist.get_world_size() // accumulated}", *words)
    norms, val_loss = by_hand()  # on all ranks: they read the text together
    if rows:
        assert [rows[step]["grad_norm"] for step in range(4)] == pytest.approx(norms, abs=2e-5)
        assert [step for step, row in rows.items() if "val_loss" in row] == [1, 3]
        assert rows[3]["val_loss"] == pytest.approx(val_loss, abs=2e-5)


def test_it_resumes_bit_for_bit():
    each = f"model.batch_size={8 // dist.get_world_size()}"
    words = (each, "train.backend=FSDP", "train.save_interval=2", "model.dropout=0.1")
    whole = train("whole", *words)
    again = train("again", *words, "--resume", str(FOLDER / "whole" / "checkpoints" / "step-00000002"))
    told = ("loss", "grad_norm", "lr", "train_loss", "val_loss")
    if whole:
        assert list(again) == [2, 3]
        for step, row in again.items():
            assert [row.get(name) for name in told] == [whole[step].get(name) for name in told]


class Told(gpt.Evaluation):
    def __call__(self, model, done):
        return {"train_loss": 3.0, "val_loss": {0: 4.0, 2: 3.0, 4: 3.5}[done]}


def test_a_checkpoint_is_saved_after_the_best_evaluation_only(monkeypatch):
    monkeypatch.setattr(gpt, "Evaluation", Told)
    train("best", "model.batch_size=1")
    train("always", "model.batch_size=1", "train.always_save_checkpoint=true")
    folders = [(FOLDER / folder / "checkpoints").glob("step-*") for folder in ("best", "always")]
    found = [sorted(int(path.name.removeprefix("step-")) for path in folder) for folder in folders]
    assert found == [[2], [2, 4]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.prompt=100 %"], "characters that the text has not: '10%' (from the command line); expected some of"),
        (["data=nowhere.txt"], "cannot read nowhere.txt"),
        (["data=owt", f"data.root_path={FOLDER}"], f"no data for openwebtext: {FOLDER}/openwebtext/train.bin is not"),
        (["model.vocab_size=64"], "65 different characters (from its files), too many for a vocabulary of 64"),
        (["model.block_size=200000"], "cannot cut sequences of 200000 out of 111540 tokens"),
        (["model.n_head=5"], "n_head=5 does not divide n_embd=128"),
        (["optimizer.min_lr=1"], "optimizer.min_lr=1.0 is above optimizer.learning_rate=0.005"),
        (["train.warmup_iters=300"], "train.warmup_iters=300 is not below optimizer.lr_decay_iters=300"),
        (["--resume", "nowhere"], "cannot resume from 'nowhere'"),
    ],
)
def test_what_does_not_fit_is_the_same_error_on_every_rank(words, told):
    with pytest.raises(UsageError) as caught:
        train("refused", *words)
    assert told in str(caught.value)
    assert ezpz.all_ranks_agree(str(caught.value))
    assert not (FOLDER / "refused").exists()
