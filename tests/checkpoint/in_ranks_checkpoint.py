"""Run by pytest inside every rank of launches with 4, 2 and 1 ranks, in this order and over one folder.

Not collected by itself; `test_checkpoint_ranks.py` launches it. Four ranks save and go on; everybody who loads must go
on alike.
"""

import json
import os
import random
from pathlib import Path

import pytest
import torch
from small_llama import CLIP, Llama, adamw, batch_of, build, group_of_ranks, mean_loss, share_of, world_mean
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict

import ezpz
from ezpz.checkpoint import Checkpoints, choose, describe, export, find_latest, storage
from ezpz.dist.whole_tensors import gathered
from ezpz.errors import EzpzError, UsageError
from ezpz.train import EMA

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here

SHARED = Path(os.environ["CHECKPOINTS_OF_TEST"])
WORLD = int(os.environ["WORLD_SIZE"])
BEFORE, AFTER = 3, 5
SIZES = {"n_layers": 2}

four = pytest.mark.skipif(WORLD != 4, reason="said of 4 ranks")
fewer = pytest.mark.skipif(WORLD == 4, reason="said of another number of ranks than the 4 that saved")

# name: degrees of the mesh, arguments of wrap_model
CASES = {
    "ddp": ({}, {"strategy": "ddp"}),
    "zero1": ({}, {"strategy": "zero1"}),
    "fsdp": ({}, {"strategy": "fsdp", "activation_checkpoint": "full"}),
    "hsdp": ({"dp_replicate": 2}, {"strategy": "hsdp"}),
    "tp2 fsdp": ({"tp": 2}, {"strategy": "fsdp"}),
}

# DistributedDataParallel puts gradients into other buckets after its first step, so that a new process adds those of
# more than two ranks in another order than the old one would have.
ADDS_ANEW = {"ddp", "zero1"}


class Run:
    """A model in training, as a script has it."""

    def __init__(self, case, folder, *, seed=11, optimizer=None, tied=False, **more):
        degrees, wishes = CASES[case]
        self.mesh = ezpz.init_mesh(**degrees)
        plan = ezpz.llama_plan() if "tp" in degrees else None
        self.model = ezpz.wrap_model(
            build(seed, tied=tied, **SIZES), mesh=self.mesh, dtype="fp32", tp_plan=plan, **wishes
        )
        self.optimizer = optimizer(self.model) if optimizer else adamw(self.model)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.checkpoints = Checkpoints(
            folder, model=self.model, optimizer=self.optimizer, schedule=self.schedule, **more
        )

    def state(self):
        """Return every bit of this rank's model and optimizer."""
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        tensors = [*self.model.state_dict().values(), *(v for each in optimizer.state.values() for v in each.values())]
        parts = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
        return (
            [part.flatten().tolist() for part in parts],
            self.schedule.state_dict(),
            self.optimizer.param_groups[0]["lr"],
        )

    def train(self, first, steps):
        """Return the losses over all ranks."""
        part, parts = share_of(self.mesh)
        losses = []
        for step in range(first, first + steps):
            tokens, labels = (each.chunk(parts)[part] for each in batch_of(step))
            loss = mean_loss(self.model(tokens), labels)
            loss.backward()
            ezpz.clip_grad_norm_(self.model.parameters(), CLIP, mesh=self.mesh)
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            losses.append(world_mean(loss))
        return losses


def exported_as_plain(checkpoint, model, target):
    """Compare an export, which rank 0 alone makes, with the model of all ranks."""
    whole = {name: gathered(weight) for name, weight in get_model_state_dict(model).items()}
    if ezpz.get_rank() == 0:
        export(checkpoint, target)
        plain, alone = torch.load(target, weights_only=True), build(13, **SIZES)
        assert list(plain) == list(alone.state_dict())
        alone.load_state_dict(plain)
        for name, weight in alone.state_dict().items():
            assert torch.equal(weight, whole[name])
            assert weight.dtype == whole[name].dtype == plain[name].dtype


def is_equal(ours, reference):
    assert ours == reference


def names_in(folder):
    """Return what rank 0 sees in the folder of checkpoints beside its own lease, before it or anybody goes on."""
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return ezpz.broadcast([name for name in names if not name.startswith("lease-")])


def near(ours, reference):
    assert len(ours) == len(reference)
    assert max(abs(a - b) for a, b in zip(ours, reference, strict=True)) <= 2e-6  # the last bits of a loss near 4


@pytest.fixture
def folder(tmp_path):
    """A folder that all ranks share."""
    return ezpz.broadcast(tmp_path)


@pytest.mark.parametrize("case", CASES if WORLD == 4 else ["ddp", "zero1"])
def test_a_run_goes_on_bitwise_with_the_same_ranks(case, tmp_path):
    folder = SHARED / case.replace(" ", "-") if WORLD == 4 else ezpz.broadcast(tmp_path)
    run = Run(case, folder)
    run.train(0, BEFORE)
    path, saved = run.checkpoints.save(BEFORE), run.state()
    unbroken = run.train(BEFORE, AFTER)
    assert path == folder / "checkpoints" / "step-00000003"
    assert run.checkpoints.latest == path == find_latest(folder)
    other = Run(case, folder, seed=12)
    assert other.checkpoints.load(path) == BEFORE
    assert other.state() == saved
    exported_as_plain(path, other.model, tmp_path / "weights.pt")
    agree = near if case in ADDS_ANEW and WORLD > 2 else is_equal
    agree(other.train(BEFORE, AFTER), unbroken)
    if ezpz.get_rank() == 0:
        (folder / "losses.json").write_text(json.dumps(unbroken))
        assert json.loads((path / "checkpoint.json").read_text())["model"].keys() == Llama(**SIZES).state_dict().keys()
    ezpz.barrier()


@four
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ("fsdp", "tp2 fsdp"),
        ("fsdp", "ddp"),
        ("fsdp", "zero1"),
        ("zero1", "fsdp"),
        ("tp2 fsdp", "hsdp"),
        ("ddp", "fsdp"),
    ],
)
def test_another_strategy_or_mesh_goes_on_alike(saved, loaded):
    goes_on(saved, loaded)


@fewer
@pytest.mark.parametrize(
    ("saved", "loaded"), [("fsdp", "fsdp"), ("zero1", "zero1"), ("tp2 fsdp", "ddp"), ("hsdp", "tp2 fsdp")]
)
def test_fewer_ranks_go_on_alike(saved, loaded):
    if WORLD == 1 and "tp2" in loaded:
        loaded = "fsdp"
    goes_on(saved, loaded)


def goes_on(saved, loaded):
    folder = SHARED / saved.replace(" ", "-")
    run = Run(loaded, folder, seed=12)
    assert run.checkpoints.load(find_latest(folder)) == BEFORE
    near(run.train(BEFORE, AFTER), json.loads((folder / "losses.json").read_text()))


def averaged(case, folder):
    """Return a run with an average of its weights."""
    run = Run(case, folder)
    run.ema = EMA(run.model, 0.5)
    run.checkpoints = Checkpoints(folder, model=run.model, optimizer=run.optimizer, schedule=run.schedule, ema=run.ema)
    return run


def train_averaged(run, first, steps):
    """Return the losses of the average, evaluated after each step, and the last loss of the weights."""
    found = []
    for step in range(first, first + steps):
        last = run.train(step, 1)
        run.ema.update()
        tokens, labels = batch_of(99)
        with run.ema.swapped(), torch.no_grad():
            found.append(world_mean(mean_loss(run.model(tokens), labels)))
    return [*found, *last]


@pytest.mark.parametrize("case", ["ddp", "fsdp", "tp2 fsdp"] if WORLD == 4 else ["ddp", "zero1"])
def test_an_average_lies_where_the_weights_do_and_goes_on_with_other_ranks(case, tmp_path):
    folder = SHARED / "ema"
    if WORLD == 4 and case == "ddp":
        run = averaged("fsdp", folder)
        train_averaged(run, 0, BEFORE)
        path = run.checkpoints.save(BEFORE)
        for name, average in run.ema.tensors().items():
            assert average.to_local().numel() <= -(-average.shape[0] // WORLD) * (average[0].numel() or 1), name
        whole = {name: gathered(each) for name, each in run.ema.tensors().items()}
        unbroken = train_averaged(run, BEFORE, AFTER)
        plain = averaged("fsdp", folder)
        plain.checkpoints.load(path)
        assert plain.train(BEFORE, AFTER)[-1] == unbroken[-1]  # evaluation has changed no weight
        if ezpz.get_rank() == 0:
            found = torch.load(export(path, tmp_path / "ema.pt", ema=True).path, weights_only=True)
            assert found.keys() == whole.keys()
            assert all(torch.equal(found[name], whole[name]) for name in whole)
            (folder / "losses.json").write_text(json.dumps(unbroken))
        ezpz.barrier()
    other = averaged(case, folder)
    assert other.checkpoints.load(folder / "checkpoints" / "step-00000003") == BEFORE
    assert other.ema.updates == BEFORE
    near(train_averaged(other, BEFORE, AFTER), json.loads((folder / "losses.json").read_text()))


class Pair:
    """Two networks in training, one against the other, each with a strategy and an optimizer of its own."""

    def __init__(self, folder, generator, critic):
        torch.manual_seed(31 + len(generator))
        nets = {"generator": nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), "critic": nn.Linear(3, 1)}
        strategies = {"generator": generator, "critic": critic}
        self.nets = {word: ezpz.wrap_model(net, strategies[word], dtype="fp32") for word, net in nets.items()}
        make = ezpz.make_optimizer
        self.optimizers = {
            "generator": make(self.nets["generator"], torch.optim.Adam, lr=0.01),
            "critic": make(self.nets["critic"], torch.optim.SGD, lr=0.1, momentum=0.9),
        }
        self.checkpoints = Checkpoints(folder, model=self.nets, optimizer=self.optimizers)

    def train(self, first, steps):
        """Return the losses over all ranks."""
        losses = []
        for step in range(first, first + steps):
            noise = torch.randn(8, 5, generator=torch.Generator().manual_seed(step)).chunk(WORLD)[ezpz.get_rank()]
            for word, sign in (("critic", 1), ("generator", -1)):
                loss = sign * self.nets["critic"](self.nets["generator"](noise)).exp().mean()
                loss.backward()
                self.optimizers[word].step()
                for each in self.optimizers.values():
                    each.zero_grad()
                losses.append(world_mean(loss))
        return losses


def test_two_models_and_their_optimizers_go_on_with_other_ranks_and_strategies():
    folder = SHARED / "pair"
    if WORLD == 4:
        run = Pair(folder, "fsdp", "ddp")
        run.train(0, BEFORE)
        run.checkpoints.save(BEFORE)
        unbroken = run.train(BEFORE, AFTER)
        if ezpz.get_rank() == 0:
            (folder / "losses.json").write_text(json.dumps(unbroken))
        ezpz.barrier()
    unbroken = json.loads((folder / "losses.json").read_text())
    for strategies in (("fsdp", "ddp"), ("ddp", "fsdp"), ("ddp", "zero1")):
        other = Pair(folder, *strategies)
        assert other.checkpoints.load(folder / "checkpoints" / "step-00000003") == BEFORE
        near(other.train(BEFORE, AFTER), unbroken)


@four
def test_tied_weights_and_a_run_before_its_first_step(folder):
    run = Run("fsdp", folder, tied=True)
    fresh = run.checkpoints.save(0)
    assert not run.optimizer.state  # saving has not made one
    unbroken = run.train(0, 2)
    path = run.checkpoints.save(2)
    unbroken += run.train(2, 2)
    other = Run("fsdp", folder, seed=12, tied=True)
    other.train(0, 1)
    assert other.checkpoints.load(fresh) == 0
    assert other.train(0, 4) == unbroken
    assert other.checkpoints.load(path) == 2
    assert other.train(2, 2) == unbroken[2:]


@four
def test_untied_weights_are_refused_by_a_tied_model_on_all_ranks(folder):
    path = Run("fsdp", folder).checkpoints.save(0)
    with pytest.raises(UsageError, match=r"is no copy of .*, as in this model") as refused:
        Checkpoints(folder, model=Run("fsdp", folder, tied=True).model).load(path)
    assert len(set(ezpz.gather_objects(str(refused.value)))) == 1


def norms(case):
    torch.manual_seed(4)
    degrees, wishes = CASES[case]
    layers = [part for _ in range(4) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())]
    return ezpz.wrap_model(nn.Sequential(*layers), wishes["strategy"], ezpz.init_mesh(**degrees), dtype="fp32")


@pytest.mark.skipif(WORLD == 1, reason="said of several ranks")
@pytest.mark.parametrize("case", ["ddp", "fsdp", "hsdp"])
def test_statistics_in_a_checkpoint_and_in_evaluation_are_the_first_rank_s(case, folder):
    if case == "hsdp" and WORLD < 4:
        pytest.skip("said of 4 ranks")
    model = norms(case)
    generator = torch.Generator().manual_seed(ezpz.get_rank())
    for _ in range(3):
        model(torch.randn(4, 8, generator=generator) + ezpz.get_rank())
    own = {name: each.clone() for name, each in model.named_buffers()}
    first = ezpz.broadcast(own)
    assert ezpz.get_rank() == 0 or any(not torch.equal(own[name], first[name]) for name in own)
    checkpoints = Checkpoints(folder, model=model)
    path = checkpoints.save(3)
    inputs = [torch.randn(4, 8, generator=torch.Generator().manual_seed(9))]

    def loss(net, x):
        return net(x).pow(2).mean()

    before = ezpz.train.evaluate(model, inputs, loss)
    other = norms(case)
    assert Checkpoints(folder, model=other).load(path) == 3
    assert ezpz.train.evaluate(other, inputs, loss) == before
    for net in (model, other):
        assert all(torch.equal(each, first[name]) for name, each in net.named_buffers())
    model.train()
    model(torch.randn(4, 8, generator=generator))  # ranks differ again
    held = ezpz.broadcast({name: each.clone() for name, each in model.named_buffers()})
    ezpz.train.evaluate(model, inputs, loss)
    assert all(torch.equal(each, held[name]) for name, each in model.named_buffers())
    ezpz.init_mesh()


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.drop = nn.Linear(8, 8), nn.Dropout()

    def forward(self, x):
        return self.drop(self.line(x))


class Position:
    """The state of something that differs between ranks."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value, "history": torch.arange(self.value)}

    def load_state_dict(self, state):
        self.value = state["value"]
        assert torch.equal(state["history"], torch.arange(self.value))


@four
def test_random_numbers_and_objects_of_every_rank_go_on(folder):
    import numpy as np

    ezpz.init_mesh()
    ezpz.seed_everything(3)
    model = ezpz.wrap_model(Noise(), "ddp", dtype="fp32")
    ezpz.seed_dropout(3)
    position = Position(5 + ezpz.get_rank())
    checkpoints = Checkpoints(folder, model=model, state={"position": position})

    def draw():
        return model(torch.ones(2, 8)).tolist(), random.random(), np.random.rand()  # noqa: NPY002  # what old scripts use

    draw()
    random.gauss(0, 1)  # leaves a second number behind, which is state
    path = checkpoints.save(1)
    expected = [draw(), random.gauss(0, 1)]
    assert len({str(each) for each in ezpz.gather_objects(expected[0][0])}) == 4  # ranks drop differently
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # what old scripts use
    position.value = 0
    assert checkpoints.load(path) == 1
    assert [draw(), random.gauss(0, 1)] == expected
    assert position.value == 5 + ezpz.get_rank()
    masks = ezpz.gather_objects(expected[0][0])
    # Now ranks 0 and 1 are one replica and go on with the numbers of place 0, ranks 2 and 3 of place 1.
    ezpz.init_mesh(tp=2)
    model = Noise()  # of no mesh of its own
    Checkpoints(folder, model=model, state={"position": position}).load(path)
    assert draw()[0] == masks[ezpz.get_rank() // 2]
    ezpz.init_mesh()


@four
def test_an_asynchronous_save_holds_the_moment_at_which_it_was_asked(folder):
    run = Run("fsdp", folder, asynchronous=True, keep=1)
    run.train(0, 2)
    first = run.checkpoints.save(2)
    unbroken = run.train(2, 2)
    second = run.checkpoints.save(4)
    assert run.checkpoints.latest in {first, second}  # saving again has finished the first
    unbroken += run.train(4, 2)
    run.checkpoints.wait()
    assert run.checkpoints.latest == second == find_latest(folder)
    assert names_in(folder) == ["step-00000004"]
    other = Run("fsdp", folder, seed=12)
    assert other.checkpoints.load(second) == 4
    assert other.train(4, 2) == unbroken[2:]
    assert run.checkpoints.save(6, wait=True).exists()


def break_writing_on(monkeypatch, rank):
    def write(self, data):
        self.problem = OSError(28, "No space left on device", self.name)
        raise self.problem

    if ezpz.get_rank() == rank:
        monkeypatch.setattr(storage._Stream, "write", write)


@four
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_cannot_write_fails_the_save_on_all_ranks_alike(folder, monkeypatch, rank):
    run = Run("ddp", folder)
    before = run.checkpoints.save(1)
    with monkeypatch.context() as patch:
        break_writing_on(patch, rank)
        with pytest.raises(EzpzError, match=f"rank {rank}: No space left on device") as failed:
            run.checkpoints.save(2)
    assert len(set(ezpz.gather_objects(str(failed.value)))) == 1
    assert "\n" not in str(failed.value)
    assert names_in(folder) == [before.name]
    assert run.checkpoints.save(2) == run.checkpoints.latest


@four
def test_an_asynchronous_save_that_fails_is_told_later_and_ends_nothing(folder, monkeypatch, capsys):
    run = Run("ddp", folder, asynchronous=True)
    with monkeypatch.context() as patch:
        break_writing_on(patch, 3)
        run.checkpoints.save(1)
        while not run.checkpoints._pending[0].done():  # nothing public ends with it and tells nobody of the problem
            pass
        assert run.checkpoints.latest is None
    capsys.readouterr()
    run.checkpoints.save(2)
    said = capsys.readouterr().out.splitlines()
    assert sum("rank 3: No space left on device" in line for line in said) == (ezpz.get_rank() == 0)
    run.checkpoints.wait()
    with monkeypatch.context() as patch:
        break_writing_on(patch, 3)
        run.checkpoints.save(3)
        with pytest.raises(EzpzError, match="rank 3: No space left on device"):
            run.checkpoints.wait()
    run.checkpoints.wait()  # it is raised once
    assert [found.step for found in describe(folder)] == [2]


@four
def test_what_does_not_fit_is_refused_by_all_ranks_before_anything_is_changed(folder):
    path = find_latest(SHARED / "fsdp")
    other = ezpz.wrap_model(ezpz.models.MLP(4, (3,), 2), "fsdp", ezpz.init_mesh(), dtype="fp32")
    before = [each.full_tensor().clone() for each in other.parameters()]
    with pytest.raises(UsageError, match=r"another model: it lacks .*; it lacks .* and [0-9]+ more") as refused:
        Checkpoints(folder, model=other).load(path)
    assert len(set(ezpz.gather_objects(str(refused.value)))) == 1
    assert all(torch.equal(a, b.full_tensor()) for a, b in zip(before, other.parameters(), strict=True))
    sgd = Run("fsdp", folder, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match="its optimizer is AdamW, and this one is SGD"):
        sgd.checkpoints.load(path)
    amsgrad = Run("fsdp", folder, optimizer=lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True))
    losses = amsgrad.train(0, 1)
    with pytest.raises(UsageError, match="the checkpoint has no 'max_exp_avg_sq' of"):
        amsgrad.checkpoints.load(path)
    again = Run("fsdp", folder, optimizer=lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True))
    assert losses + amsgrad.train(1, 2) == again.train(0, 3)
    with pytest.raises(UsageError, match="there is nothing"):
        again.checkpoints.load(folder / "step-00000001")


@pytest.mark.skipif(WORLD == 1, reason="said of several ranks")
def test_all_ranks_hear_of_damage_before_anything_is_changed_and_choose_the_sound_one(folder):
    run = Run("fsdp", folder)
    first = run.checkpoints.save(1)
    run.train(0, 1)
    newest, last = run.checkpoints.save(2), f"__{WORLD - 1}_0.distcp"
    if ezpz.get_rank() == 0:
        data = (newest / last).read_bytes()
        (newest / last).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    run.train(1, 1)
    before = run.state()
    ezpz.barrier()
    with pytest.raises(UsageError, match=rf"{last} is damaged: .* Nothing was loaded") as refused:
        run.checkpoints.load(newest)
    assert len(set(ezpz.gather_objects(str(refused.value)))) == 1
    assert run.state() == before
    with pytest.raises(UsageError, match=rf"cannot resume from .*{last} is damaged"):
        choose(str(newest), name="x", outdir=None)
    assert choose("auto", name="x", outdir=str(folder)) == (folder, first)
    assert names_in(folder) == ["damaged-step-00000002", "step-00000001"]
    assert run.checkpoints.load(first) == 1


def test_rank_0_chooses_for_all_ranks(folder):
    assert choose("none", name="x", outdir=None) == (None, None)
    named = choose(str(SHARED / "fsdp"), name="x", outdir=None)
    assert named == (SHARED / "fsdp", SHARED / "fsdp" / "checkpoints" / "step-00000003")
    with pytest.raises(UsageError, match="there is nothing"):
        choose(str(folder / "nowhere"), name="x", outdir=None)
