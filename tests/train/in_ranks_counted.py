"""Every counted token weighs the same, however it lies over ranks and micro-batches; pytest runs this in every rank.

Not collected by itself; `test_counting.py` launches it. The reference is plain torch on the whole batch, in every rank.
"""

import re
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from small_llama import SEQUENCE, VOCABULARY, group_of_ranks
from small_llama import build as build_sized
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import ezpz
from ezpz.dist.tensor_parallel import llama_plan, loss_parallel
from ezpz.train import Loop, evaluate
from ezpz.train.counting import Weighed

__all__ = ["group_of_ranks"]  # a fixture, which pytest finds by its name here

ROWS, STEPS, CLIP, LR = 8, 2, 0.05, 0.05
# degrees of the mesh, arguments of wrap_model
CASES = {
    "ddp": ({}, {"strategy": "ddp"}),
    "zero1": ({}, {"strategy": "zero1"}),
    "fsdp": ({}, {"strategy": "fsdp"}),
    "hsdp": ({"dp_replicate": 2}, {"strategy": "hsdp"}),
    "tp": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": llama_plan(sequence_parallel=False)}),
    "sequence parallel": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": llama_plan()}),
    "loss parallel": ({"tp": 2}, {"strategy": "fsdp", "tp_plan": llama_plan(loss_parallel=True)}),
}


def build():
    return build_sized(n_layers=2)


class Rows(list):
    """A history that keeps its rows in memory."""

    def update(self, row, **_):
        self.append(row)

    def rates_count(self, _):
        pass

    def sync(self):
        pass


def padded(step):
    """A step's whole batch: rows of very different lengths, and two of which nothing counts."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(VOCABULARY, (ROWS, SEQUENCE + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    for row, length in enumerate((SEQUENCE, 3, 0, 17, 1, 0, 29, 5)):
        targets[row, length:] = -100
    return inputs, targets


def summed(model, batch):
    inputs, targets = batch
    logits = model(inputs)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)
    counts = targets != -100
    right = torch.zeros(()) if isinstance(logits, DTensor) else (logits.argmax(2) == inputs)[counts].float().mean()
    return loss, counts.sum(), {"copied": right.nan_to_num()}


def alone(clip):
    """Yield loss and gradients of each step by one process, without anything of ezpz around the model."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        inputs, targets = padded(step)
        logits = model(inputs)
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or torch.inf)
        copied = (logits.argmax(2) == inputs)[targets != -100].float().mean()
        yield loss.item(), norm.item(), copied.item(), [each.grad.clone() for each in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()


def together(mesh, wishes, *, clip, accumulate, compute_loss=summed, weigh=None):
    """Return rows and whole gradients of each step of a `Loop`."""
    model = ezpz.wrap_model(build(), mesh=mesh, dtype="fp32", **wishes)
    optimizer = ezpz.make_optimizer(model, torch.optim.SGD, lr=LR)
    part, parts = ezpz.coordinate(mesh, "dp"), ezpz.degree(mesh, "dp")

    def batches(position):
        step, micro = divmod(position, accumulate)
        rows = torch.arange(ROWS).tensor_split(accumulate)[micro].tensor_split(parts)[part]
        batch = tuple(each[rows] for each in padded(step))
        return batch if weigh is None else weigh(step, rows, batch)

    gradients, rows = [], Rows()
    step = optimizer.step

    def recorded(*args, **more):
        whole = [each.grad.full_tensor() if hasattr(each.grad, "full_tensor") else each.grad for each in held]
        gradients.append([each.clone() for each in whole])
        return step(*args, **more)

    held = list(model.parameters())
    optimizer.step = recorded
    cut = loss_parallel() if wishes.get("tp_plan") == CASES["loss parallel"][1]["tp_plan"] else nullcontext()
    loop = Loop(
        *(model, optimizer, compute_loss, batches),
        steps=STEPS,
        batch_size=ROWS // accumulate // parts,
        accumulate=accumulate,
        max_norm=clip,
    )
    with cut:
        loop.run(rows)
    return rows, gradients


def same(rows, gradients, clip, *, cut=False):
    for row, ours, (loss, norm, right, theirs) in zip(rows, gradients, alone(clip), strict=True):
        assert row["loss"] == pytest.approx(loss, abs=5e-6 if cut else 1e-6)  # cut: a softmax is added up in parts
        assert not {name for name in row if name != name.strip()}  # what the loop keeps for itself
        if not cut:
            assert row["copied"] == pytest.approx(right, abs=1e-6)
        if clip:
            assert norm > clip
            assert row["grad_norm"] == pytest.approx(norm, abs=1e-6)
        furthest = max((one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True))
        assert furthest <= 1e-6


CHOSEN = [(name, accumulate, clip) for name in CASES for accumulate in (1, 2) for clip in (CLIP, 0.0)]


@pytest.mark.parametrize(("name", "accumulate", "clip"), CHOSEN)
def test_gradients_are_those_of_one_process(name, accumulate, clip):
    degrees, wishes = CASES[name]
    mesh = ezpz.init_mesh(**degrees)
    rows, gradients = together(mesh, wishes, clip=clip, accumulate=accumulate)
    same(rows, gradients, clip, cut=name == "loss parallel")


def test_a_mean_and_the_samples_that_count_are_as_one_process():
    """A rank whose batches are repeated ones, with weight 0, changes nothing."""
    mesh = ezpz.init_mesh()
    last = ezpz.get_world_size() - 1

    def mean(model, batch):
        return model(batch[0]).logsumexp(2).mean()

    def weigh(step, rows, batch):
        mine = ezpz.get_rank() != last
        return Weighed(batch if mine else tuple(each[:1] * 0 for each in batch), float(len(rows) if mine else 0))

    rows, gradients = together(mesh, {"strategy": "ddp"}, clip=0.0, accumulate=2, compute_loss=mean, weigh=weigh)
    model, parts = build(), ezpz.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        chosen = torch.cat(
            [half.tensor_split(parts)[rank] for half in torch.arange(ROWS).tensor_split(2) for rank in range(last)]
        )
        loss = mean(model, tuple(each[chosen] for each in padded(step)))
        loss.backward()
        assert rows[step]["loss"] == pytest.approx(loss.item(), abs=1e-6)
        for one, other in zip(gradients[step], model.parameters(), strict=True):
            assert (one - other.grad).abs().max() <= 1e-6
        optimizer.step()
        optimizer.zero_grad()


def test_float16_scales_sums_by_a_nominal_count():
    """A sum of 26 losses scaled by 65,536 would be infinite in float16: every first step would be left out."""
    model = ezpz.wrap_model(build(), "ddp", ezpz.init_mesh(), dtype="fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    mine = torch.arange(ROWS).tensor_split(ezpz.get_world_size())[ezpz.get_rank()]
    loop = Loop(
        *(model, optimizer, summed, lambda position: tuple(each[mine] for each in padded(0))),
        steps=8,
        batch_size=len(mine),
        dtype="fp16",
        max_norm=CLIP,
    )
    rows = Rows()
    loop.run(rows)
    losses = [row["loss"] for row in rows]
    assert losses == sorted(set(losses), reverse=True)  # a step that was left out would not change the loss
    assert len(losses) == 8
    assert ezpz.all_ranks_agree(losses)


def test_evaluation_weighs_by_the_count():
    model = build()
    mesh = ezpz.init_mesh()
    part, parts = ezpz.coordinate(mesh, "dp"), ezpz.degree(mesh, "dp")
    inputs, targets = padded(0)
    rows = torch.arange(3).tensor_split(parts)[part]  # fewer than ranks, if there are four
    mine = [tuple(each[row : row + 1] for each in (inputs, targets)) for row in rows]
    with torch.no_grad():
        loss = cross_entropy(model(inputs[:3]).flatten(0, 1), targets[:3].flatten()).item()
    assert evaluate(model, mine, summed)["loss"] == pytest.approx(loss, abs=1e-6)
    nothing = [tuple(each[2:3] for each in (inputs, targets))]
    assert evaluate(model, nothing, summed) == {}


def test_windows_and_epochs_weigh_steps_by_their_tokens():
    """The mean of a window is that over all its tokens, not over its steps."""
    model = ezpz.wrap_model(build(), "ddp", ezpz.init_mesh(), dtype="fp32")
    lengths = (SEQUENCE, 1, 9, 2)
    sums, counts, most, lines = [], [], [], []

    def batches(position):
        inputs, targets = (each[ezpz.get_rank() :][:1].clone() for each in padded(position))
        targets[:] = inputs
        targets[:, lengths[position] if ezpz.get_rank() else 1 :] = -100
        return inputs, targets

    def compute_loss(model, batch):
        loss, count, _ = summed(model, batch)
        sums.append(ezpz.all_reduce(loss.detach().double()).item())
        counts.append(ezpz.all_reduce(int(count)))
        most.append(loss.item() / int(count))
        return loss, count

    for how in ({"window": 2}, {"epoch_steps": 4}):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loop = Loop(*(model, optimizer, compute_loss, batches), steps=4, batch_size=1, log=lines.append, **how)
        loop.run(Rows())
    told = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in lines]  # lines have five digits
    for each, (first, end) in zip(told, ((0, 1), (1, 2), (2, 4)), strict=False):
        mean = sum(sums[first:end]) / sum(counts[first:end])
        assert float(each["loss"]) == pytest.approx(mean, rel=1e-3)
        assert float(each["max"]) == pytest.approx(ezpz.all_reduce(max(most[first:end]), "max"), rel=1e-3)
    assert float(told[-1]["train_loss"]) == pytest.approx(sum(sums[4:]) / sum(counts[4:]), rel=1e-3)


def test_one_reduction_per_step_beside_the_backward():
    counted, reduce = [], dist.all_reduce

    def watched(tensor, *args, **more):
        counted.append((tensor.numel(), more.get("async_op", False)))
        return reduce(tensor, *args, **more)

    dist.all_reduce = watched
    try:
        together(ezpz.init_mesh(), {"strategy": "ddp"}, clip=CLIP, accumulate=2)
    finally:
        dist.all_reduce = reduce
    assert [size for size, beside in counted if beside] == [3] * STEPS  # count, loss and one further mean
    assert not [size for size, beside in counted if not beside]


def test_a_mean_beside_ignored_targets_is_warned_of_once(monkeypatch):
    warned = []
    monkeypatch.setattr("ezpz.log.logging.Logger.warning", lambda self, text, *args, **more: warned.append(text))

    def mean(model, batch):
        return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).nan_to_num()

    together(ezpz.init_mesh(), {"strategy": "ddp"}, clip=0.0, accumulate=2, compute_loss=mean)
    is_whole = dist.get_world_size() == 4 and dist.get_rank() == 0  # its first batch is the one row without padding
    assert len([text for text in warned if "ignored targets (-100)" in text]) == (not is_whole), warned
