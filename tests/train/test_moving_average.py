"""`EMA`: what it averages, where the model has it, and how it goes through checkpoints and a loop."""

import contextlib

import pytest

from ezpz.checkpoint import Checkpoints, export
from ezpz.errors import UsageError

torch = pytest.importorskip("torch")

from ezpz.train import EMA, Loop  # noqa: E402  # needs torch


def net(dtype=torch.float32):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(dtype)
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(requires_grad=False)
    return model


def change(model, by=1.0):
    with torch.no_grad():
        for each in model.parameters():
            each.add_(by)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_is_what_the_formula_says_and_leaves_frozen_weights_alone(warmup):
    model = net()
    ema, first = EMA(model, 0.75, warmup=warmup), model[0].weight.detach().clone()
    by_hand = first.clone()
    for step in range(3):
        change(model)
        ema.update()
        decay = min(0.75, (1 + step) / (10 + step)) if warmup else 0.75
        by_hand = decay * by_hand + (1 - decay) * model[0].weight.detach()
    found = ema.tensors()
    assert torch.allclose(found["0.weight"], by_hand, atol=1e-6)
    assert found["0.weight"] is found["1.weight"]
    assert "1.bias" not in found
    assert ema.updates == 3


def test_small_steps_of_short_formats_are_not_lost():
    model = net(torch.bfloat16)
    ema = EMA(model, 0.999)
    change(model)
    for _ in range(300):
        ema.update()
    moved = (ema.tensors()["0.weight"] - (model[0].weight.float() - 1)).mean().item()
    assert moved == pytest.approx(1 - 0.999**300, abs=0.01)


def test_the_model_has_its_own_weights_again_behind_the_block_and_an_exception(tmp_path):
    model = net(torch.bfloat16)
    ema, checkpoints = EMA(model, 0.5), Checkpoints(tmp_path, model=model)
    change(model)
    ema.update()
    own = [each.detach().clone() for each in model.parameters()]
    with contextlib.suppress(KeyError), ema.swapped():
        assert not torch.equal(model[0].weight, own[0])
        with pytest.raises(UsageError, match="one block at a time"):
            ema.swapped().__enter__()
        checkpoints.complete(ema=ema)
        with pytest.raises(UsageError, match="Save behind the block"):
            checkpoints.save(1)
        raise KeyError
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), own, strict=True))
    checkpoints.save(1)


class Rows(list):
    def update(self, row, **_):
        self.append((row["loss"], row["test"]))

    def sync(self):
        pass


def train(folder, steps, *, resume=None, has_ema=True):
    torch.manual_seed(3 if resume is None else 4)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ema, rows = EMA(model, 0.5) if has_ema else None, Rows()
    loop = Loop(
        model,
        optimizer,
        lambda model, batch: model(batch).pow(2).mean(),
        lambda position: torch.randn(4, 3, generator=torch.Generator().manual_seed(position)),
        steps=steps,
        batch_size=4,
        ema=ema,
        log=lambda _: None,
        save_every=2,
        resume=resume,
        checkpoints=Checkpoints(folder, model=model),
        eval_every=1,
        evaluate=lambda: {"test": model.weight.sum().item()},
    )
    loop.run(rows)
    return rows, model, ema


def test_a_loop_follows_every_step_evaluates_the_average_and_resumes_it(tmp_path, capsys):
    unbroken, model, ema = train(tmp_path / "a", 6)
    assert unbroken[-1][1] == pytest.approx(ema.tensors()["weight"].sum().item())
    assert unbroken[-1][1] != pytest.approx(model.weight.sum().item())
    train(tmp_path / "b", 2)
    path = tmp_path / "b" / "checkpoints" / "step-00000002"
    assert train(tmp_path / "b", 6, resume=path)[0] == unbroken[2:]
    assert train(tmp_path / "b", 6, resume=path, has_ema=False)[0] != []
    found = torch.load(export(tmp_path / "a/checkpoints/step-00000006", tmp_path / "x.pt", ema=True).path)
    assert torch.equal(found["weight"], ema.tensors()["weight"])
    train(tmp_path / "c", 2, has_ema=False)
    path = tmp_path / "c" / "checkpoints" / "step-00000002"
    assert train(tmp_path / "c", 4, resume=path)[2].updates == 2
    assert "it has no average of weights: that begins anew with its weights" in capsys.readouterr().out
    with pytest.raises(UsageError, match="cannot export an average of weights: the checkpoint has none"):
        export(path, tmp_path / "y.pt", ema=True)


def test_what_cannot_be_averaged_is_refused(tmp_path):
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="unusable decay="):
            EMA(net(), decay)
    with pytest.raises(UsageError, match="averages another model"):
        Checkpoints(tmp_path, model=net(), ema=EMA(net()))
    one, two = net(), net()
    pair = Checkpoints(tmp_path, model={"one": one, "two": two}, ema=EMA(two))
    found = torch.load(export(pair.save(1), tmp_path / "x.pt", ema=True).path)
    assert "two.0.weight" in found
