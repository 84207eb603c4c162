"""Run by pytest inside every rank of one launch: what `findings` says of models, optimizers, data and meshes.

Not collected by itself; `test_data_in_ranks.py` launches it.
"""

import logging
import re
import sys

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ezpz
from ezpz.errors import UsageError
from ezpz.train.model_modes import begin_training
from ezpz.train.silent_faults import findings

RANKS = 2


@pytest.fixture(scope="session", autouse=True)
def group_of_ranks():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    torch.distributed.barrier()
    ezpz.cleanup()


@pytest.fixture(autouse=True)
def without_a_mesh():
    ezpz.init_mesh()


def build():
    ezpz.seed_everything(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def said(*given, **more):
    return [(each.kind, each.text) for each in findings(*given, **more)]


def only(found, kind, pattern):
    assert [each for each, _ in found] == [kind], found
    assert re.search(pattern, found[0][1]), found
    return found[0][1]


def with_hooks():
    model = build()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: torch.distributed.all_reduce(each.grad))
    return model


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


SHARED = {
    **{name: (lambda name=name: ezpz.wrap_model(build(), name)) for name in ("ddp", "fsdp", "zero1", "none")},
    "torch's DDP": lambda: DistributedDataParallel(build()),
    "a part under torch's DDP": lambda: Outer(DistributedDataParallel(build())),
    "torch's FSDP2": lambda: fully_shard(build(), mesh=init_device_mesh("cpu", (RANKS,))),
    "averaged by hand": with_hooks,
    "compiled": lambda: torch.compile(ezpz.wrap_model(build(), "ddp")),
}


@pytest.mark.parametrize("name", SHARED)
def test_nothing_is_said_of_a_model_that_ranks_share(name):
    model = SHARED[name]()
    optimizer = ezpz.make_optimizer(model, torch.optim.AdamW, lr=1e-3)
    assert said(model, optimizer, ezpz.prepare([1, 2, 3, 4], batch_size=2)) == []


def test_a_model_per_rank_is_an_error_unless_it_is_asked_for():
    model = build()
    text = only(
        said(model, torch.optim.AdamW(model.parameters())), "error", "Sequential is not wrapped: each of 2 ranks"
    )
    assert "`model = ezpz.wrap_model(model)`" in text
    assert '`wrap_model(model, "none")` is for a model per rank' in text


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_same_model_on_every_stage_is_said_and_a_stage_of_its_own_is_not(strategy):
    mesh = ezpz.init_mesh(pp=2)
    only(said(ezpz.wrap_model(build(), strategy, mesh)), "warning", r"pp=2 .* gradient norms are √2 times too large")
    stage = nn.Linear(4, 8) if ezpz.get_rank() else nn.Linear(8, 2)
    assert said(ezpz.wrap_model(stage, strategy, mesh)) == []
    ezpz.seed_everything(ezpz.get_rank())
    assert said(ezpz.wrap_model(nn.Linear(4, 4), strategy, mesh)) == []


def test_ranks_of_one_sequence_are_told_that_they_do_the_same_work(monkeypatch):
    mesh = ezpz.init_mesh(cp=2)
    model = ezpz.wrap_model(build(), "fsdp", mesh)
    monkeypatch.delitem(sys.modules, "torch.distributed.tensor.experimental._context_parallel", raising=False)
    only(said(model), "warning", "cp=2 .* get the same batch and do the same work")
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor.experimental._context_parallel", nn)
    assert said(model) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_weights_that_come_or_thaw_behind_wrap_model(strategy):
    plain = build()
    plain[0].weight.requires_grad_(False)
    model = ezpz.wrap_model(plain, strategy)
    assert said(model, ezpz.make_optimizer(model, torch.optim.SGD, lr=0.1)) == []
    plain[2].adapter = nn.Parameter(torch.zeros(2))
    text = only(
        said(model, torch.optim.SGD(model.parameters(), lr=0.1)), "error", r"1 weight \(.*2\.adapter\) came into"
    )
    assert "nothing averages their gradients" in text
    del plain[2].adapter
    plain[0].weight.requires_grad_(True)
    found = said(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if strategy == "fsdp":  # which asks each weight whether it is trained
        assert found == []
    else:
        only(found, "error", "1 of 4 weights came into the model, or began to be trained, behind wrap_model")


def test_weights_that_no_optimizer_has_and_those_of_nobody():
    model = ezpz.wrap_model(build(), "ddp")
    head = torch.optim.SGD(list(model.parameters())[2:], lr=0.1)
    only(said(model, head), "warning", r"2 weights \(module\.0\.weight, module\.0\.bias\) of 4 are in no group of SGD")
    scale = nn.Parameter(torch.ones(()))
    both = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    only(said(model, both), "warning", "1 of 5 weights of SGD are not the model's")
    only(said(model, torch.optim.SGD([scale], lr=0.1)), "error", "SGD holds none of the model's weights")


def test_a_loader_that_is_not_cut_or_cut_for_another_mesh():
    data = TensorDataset(torch.zeros(8, 4))
    model = ezpz.wrap_model(build(), "ddp")
    only(said(model, loader=DataLoader(data)), "warning", "each of 2 ranks goes through all samples")
    cut = DataLoader(data, sampler=DistributedSampler(data))
    assert said(model, loader=cut) == []
    mesh = ezpz.init_mesh(tp=2)
    plan = {"0": "colwise", "2": "rowwise"}
    model = ezpz.wrap_model(build(), "none", mesh, tp_plan=plan)
    text = only(said(model, loader=cut), "error", r"DistributedSampler gives this rank part [01] of 2")
    assert "1 data-parallel place" in text
    assert said(model, loader=DataLoader(data)) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_a_wrapped_model_that_is_in_evaluation_as_a_whole_is_set_to_training(strategy):
    model = ezpz.wrap_model(build().eval(), strategy)
    begin_training(model)
    assert all(module.training for module in model.modules())
    model[1].eval() if strategy == "fsdp" else model.module[1].eval()
    begin_training(model)
    assert [module.training for module in model.modules()].count(False) == 1


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp", "ddp"])
def test_weights_that_one_rank_alone_has_loaded_are_missed_where_each_keeps_a_part_of_its_own(caplog, strategy):
    mesh = ezpz.init_mesh(dp_replicate=2) if strategy == "hsdp" else ezpz.init_mesh()
    said = []
    for loads in (True, False):
        model = build()
        if loads and ezpz.get_rank() == 0:
            nn.init.zeros_(model[2].weight)
        logger = logging.getLogger("ezpz.dist.seeds")
        logger.addHandler(caplog.handler)
        ezpz.wrap_model(model, strategy, mesh)
        logger.removeHandler(caplog.handler)
        said.append(len([each for each in caplog.records if "has other weights on other ranks" in each.getMessage()]))
        caplog.clear()
    # The copies of hsdp and ddp get the first rank's.
    assert said == [int(strategy == "fsdp" and ezpz.get_rank() == 0), 0]


STEPS = {
    "at each micro-batch": (lambda _last: True, True),
    "at the last one": (lambda last: last, False),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp", "none"])
def test_a_step_by_gradients_that_no_rank_has_exchanged_is_refused(strategy, steps):
    """Inside of `accelerator.accumulate` such a step does nothing; here ranks would part, or train nothing."""
    takes_step, is_refused = STEPS[steps]
    model = ezpz.wrap_model(build(), strategy)
    other = ezpz.wrap_model(build())
    optimizer, its = (ezpz.make_optimizer(each, torch.optim.SGD, lr=0.1) for each in (model, other))
    numbers = torch.full((2, 4), float(ezpz.get_rank()))
    for index in range(4):
        last = index % 2 == 1
        with ezpz.accumulating(model, last=last):
            model(numbers).sum().backward()
        other(numbers).sum().backward()
        its.step()  # of another model, whose gradients all ranks have
        if takes_step(last):
            if is_refused and strategy != "none":
                with pytest.raises(
                    UsageError, match=r"accumulating\(.*, last=False\).*Type `if last: optimizer\.step\(\)"
                ):
                    optimizer.step()
                break
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_micro_batches_that_are_dropped_refuse_no_later_step(strategy):
    model = ezpz.wrap_model(build(), strategy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ezpz.accumulating(model, last=False):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.zero_grad()
    with torch.no_grad():
        model(torch.ones(2, 4))
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_forward_of_the_module_inside_is_refused_at_the_first_step(strategy):
    model = ezpz.wrap_model(build(), strategy)
    optimizer = ezpz.make_optimizer(model, torch.optim.SGD, lr=0.1)
    model.module(torch.ones(2, 4)).sum().backward()
    with pytest.raises(UsageError, match=r"the forward of the wrapped model was not called \(model\.module"):
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
