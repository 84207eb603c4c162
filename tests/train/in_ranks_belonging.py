"""What model, optimizer, schedule and data know of each other; pytest runs this file inside every rank."""

import copy
import functools
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset

import ezpz
from ezpz.dist import mesh as meshes
from ezpz.errors import UsageError
from ezpz.train import ImageBatches, Loop, evaluate

LR, EPOCHS = 0.1, 3
PLAN = {"0": "colwise", "2": "rowwise"}


@pytest.fixture(scope="module", autouse=True)
def group_of_ranks():
    ezpz.setup_torch(seed=0)
    torch.set_num_threads(1)
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture(autouse=True)
def without_a_mesh():
    """What a test before has made last is no mesh of this one."""
    meshes._made.clear()


class Rows:
    """Stands in for a history."""

    def __init__(self):
        self.rows = []

    def update(self, row, **_):
        self.rows.append(row)

    def sync(self):
        pass


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator))


def mean(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def loader(ranks):
    """A step of 16 samples on all ranks that see different data."""
    return DataLoader(data(), batch_size=16 // ranks)


@functools.cache
def by_one_process(kind=torch.optim.SGD):
    """The losses of plain torch."""
    model, losses = network(), []
    optimizer = kind(model.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for batch in loader(1):
            loss = mean(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def by_loop(model, optimizer, of, ranks):
    rows = Rows()
    Loop(model, optimizer, mean, data=of, epochs=EPOCHS, log_every=10**6).run(rows)
    mine = torch.tensor([row["loss"] for row in rows.rows], dtype=torch.float64)
    dist.all_reduce(mine)
    assert len(mine) == EPOCHS * 2
    return (mine / dist.get_world_size()).tolist()


def by_hand(model, optimizer, batches):
    """The user's own loop."""
    losses = []
    for _ in range(EPOCHS):
        for batch in batches:
            loss = mean(model, batch) * batches.weight
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(ezpz.all_reduce(loss.item(), "mean"))
    return losses


def follows(losses, kind=torch.optim.SGD):
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(by_one_process(kind)), rtol=1e-4, atol=1e-5)


def layouts():
    """Meshes of torch's own, with the dimensions by which their users call them."""
    world = dist.get_world_size()
    if world > 1:
        yield init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp_shard", "tp"))
        yield init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    yield init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))


@pytest.mark.parametrize("own_loop", [False, True])
def test_the_models_own_mesh_cuts_the_data(own_loop):
    for mesh in layouts():
        model = ezpz.wrap_model(network(), "fsdp", mesh, tp_plan=PLAN)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        ezpz.init_mesh()  # of something else, later
        ranks = ezpz.degree(mesh, "dp")
        if own_loop:
            follows(by_hand(model, optimizer, ezpz.prepare(model, loader(ranks))[1]))
            if ranks < dist.get_world_size():
                with pytest.raises(UsageError, match=rf"cut over {ranks} ranks, .*ezpz\.prepare\(model, loader\)"):
                    next(iter(ezpz.prepare(loader(ranks))))
            ezpz.init_mesh(dp_shard=-1, tp=dist.get_world_size() // ranks)
            del model, optimizer
            assert len(ezpz.prepare(loader(ranks))) == 2  # a model that is gone says nothing
        else:
            follows(by_loop(model, optimizer, loader(ranks), ranks))


def test_a_mesh_that_does_not_say_who_sees_which_data_is_refused():
    for names in (None, ("data",)):
        with pytest.raises(UsageError, match=r"dimensions? .*expected dp or pp"):
            ezpz.wrap_model(network(), "ddp", init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=names))


STRATEGIES = ["ddp", "fsdp", "zero1"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_call_makes_all_ready_in_their_order(strategy, kind):
    model = network()
    optimizer = kind(model.parameters(), lr=LR)
    world = dist.get_world_size()
    batches, model, optimizer = ezpz.prepare(loader(world), model, optimizer, strategy=strategy)
    follows(by_hand(model, optimizer, batches), kind)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_optimizer_of_the_weights_before_trains_as_expected_or_is_refused_before_its_first_step(strategy):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    model, batches = ezpz.wrap_model(model, strategy), ezpz.prepare(loader(dist.get_world_size()))
    if strategy == "fsdp":
        with pytest.raises(UsageError, match=r"SGD holds 4 of 4 weights .*such as 0\.weight.*ezpz\.prepare\(model, op"):
            by_hand(model, optimizer, batches)
        with pytest.raises(UsageError, match="SGD holds 4 of 4"):
            Loop(model, optimizer, mean, data=batches, epochs=1)
        model.zero_grad()
        model, optimizer = ezpz.prepare(model, optimizer)  # it is not too late
    follows(by_hand(model, optimizer, batches))


def test_groups_state_and_schedule_of_an_optimizer_stay():
    plain = network()
    twin = copy.deepcopy(plain)
    made = []
    for model in (plain, twin):
        groups = [{"params": list(model[0].parameters()), "lr": LR}, {"params": list(model[2].parameters())}]
        optimizer = torch.optim.Adam(groups, lr=LR / 2)
        mean(model, data()[:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        made.append((model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)))
    wrapped = ezpz.prepare(*made[0], strategy="fsdp")
    for model, optimizer, schedule in (wrapped, made[1]):
        for _ in range(3):
            mean(model, data()[:]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    for name, each in wrapped[0].named_parameters():
        torch.testing.assert_close(each.full_tensor(), dict(twin.named_parameters())[name], rtol=1e-5, atol=1e-6)
    assert [group["lr"] for group in wrapped[1].param_groups] == [LR / 8, LR / 16]


def test_an_optimizer_that_keeps_its_list_of_weights_gets_the_new_ones():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=LR)
    model, optimizer = ezpz.prepare(model, optimizer, strategy="fsdp")
    # A hook of somebody else, registered while ours is there.
    kept = register_optimizer_step_pre_hook(lambda *_: None)

    def closure():
        optimizer.zero_grad()
        loss = mean(model, data()[:])
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(3)]
    kept.remove()
    assert losses[2] < losses[0]


def test_what_has_nothing_to_train_is_only_moved():
    model, teacher = network(), network().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    world = dist.get_world_size()
    loss = nn.CrossEntropyLoss()
    model, teacher, loss, optimizer, batches = ezpz.prepare(
        model, teacher, loss, optimizer, loader(world), find_unused_parameters=True
    )
    assert type(teacher) is nn.Sequential
    assert model.find_unused_parameters
    follows(by_hand(model, optimizer, batches))


class Odd(nn.Module):
    """A model with what confuses those who look into it."""

    def __init__(self):
        super().__init__()
        self.inside = network()
        self.register_buffer("wide", torch.ones(1).expand(5))
        self.register_buffer("sparse", torch.eye(3).to_sparse_csr())
        self.register_buffer("statistics", torch.full((2,), float(dist.get_rank())))

    @property
    def module(self):
        return self

    def forward(self, x):
        return self.inside(x)


def test_healthy_scripts_are_not_refused():
    model = Odd()
    ezpz.prepare(loader(1))
    evaluate(ezpz.wrap_model(model, "fsdp"), ezpz.prepare(model, loader(dist.get_world_size()))[1], mean)
    assert model.statistics.tolist() == [0.0, 0.0]
    apart = nn.parallel.DistributedDataParallel(Odd().inside, broadcast_buffers=False)
    ezpz.check(apart, torch.optim.SGD(apart.parameters(), lr=LR))
    wrapped = ezpz.wrap_model(network(), "fsdp", ignored_params={(kept := network())[0].weight})
    ezpz.check(wrapped, torch.optim.SGD([*wrapped.parameters(), *kept.parameters()], lr=LR))


def test_what_does_not_belong_together_is_refused():
    model, other = ezpz.wrap_model(network()), ezpz.wrap_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    strange = torch.optim.SGD(other.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.ExponentialLR(strange, 0.5)
    each = {"data": loader(dist.get_world_size()), "epochs": 1}
    with pytest.raises(UsageError, match="SGD holds none of the model's weights"):
        Loop(model, strange, mean, **each)
    with pytest.raises(UsageError, match="ExponentialLR is the schedule of another optimizer"):
        Loop(model, optimizer, mean, schedule=schedule, **each)
    with pytest.raises(UsageError, match="ExponentialLR is the schedule of another optimizer"):
        ezpz.prepare(model, optimizer, schedule)
    plain = network()
    fresh = torch.optim.SGD(plain.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.ExponentialLR(fresh, 0.5)
    with pytest.raises(UsageError, match="strategy='zero1' makes the optimizer anew, and this one has a schedule"):
        ezpz.prepare(plain, fresh, schedule, strategy="zero1")
    with pytest.raises(UsageError, match="strategy='fsdp' is for a model that is not wrapped yet"):
        ezpz.prepare(model, optimizer, strategy="fsdp")
    for strategy in ("ddp", "fsdp", "zero1"):
        with pytest.raises(UsageError, match=r"SGD holds none of the model's weights.*\(from prepare\)"):
            ezpz.prepare(network(), torch.optim.SGD(network().parameters(), lr=LR), strategy=strategy)
    with pytest.raises(UsageError, match="batch_size=4 is for data"):
        ezpz.prepare(model, optimizer, batch_size=4)
    with pytest.raises(UsageError, match="nothing to prepare"):
        ezpz.prepare()


def test_a_loader_is_of_one_cut_of_the_data():
    if dist.get_world_size() == 1:
        return
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp_shard", "tp"))
    model = ezpz.wrap_model(network(), "fsdp", mesh, tp_plan=PLAN)
    whole = ezpz.wrap_model(network(), "fsdp")
    _, batches = ezpz.prepare(whole, DataLoader(data(), batch_size=4))
    assert len(ezpz.prepare(model, DataLoader(data(), batch_size=4))[1]) == 2 * len(batches)
    with pytest.raises(UsageError, match="the loader is for a model on"):
        evaluate(model, batches, mean)
    for of in (model, whole):  # each by its own mesh, whichever was wrapped last
        means = evaluate(of, ezpz.prepare(DataLoader(data(), batch_size=4)), mean)
        assert means["loss"] == pytest.approx(mean(network(), data()[:]).item(), rel=1e-5)


def test_a_later_mesh_of_another_model_changes_no_norm():
    norms = []
    for later in (False, True):
        model, rows = ezpz.wrap_model(network()), Rows()
        other = ezpz.wrap_model(network(), "fsdp", ezpz.init_mesh(pp=dist.get_world_size())) if later else None
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        Loop(model, optimizer, mean, data=loader(dist.get_world_size()), epochs=1, max_norm=1e9, log_every=10**6).run(
            rows
        )
        norms.append([row["grad_norm"] for row in rows.rows])
        del other
    assert norms[0] == norms[1]


def test_batches_of_a_position_are_cut_as_the_model_is():
    if dist.get_world_size() == 1:
        return
    images = torch.zeros(64, 1, 2, 4), torch.zeros(64, dtype=torch.int64)
    apart = ImageBatches(*images, 4, rank=dist.get_rank(), world_size=dist.get_world_size())
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = ezpz.wrap_model(network(), "fsdp", mesh, tp_plan=PLAN)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    Loop(model, optimizer, mean, ImageBatches(*images, 4), steps=1, batch_size=4)
    with pytest.raises(UsageError, match=r"batches of \d+ samples on all ranks \(from ImageBatches\), where"):
        Loop(model, optimizer, mean, apart, steps=1, batch_size=4)


def test_the_models_own_number_format_counts():
    model = ezpz.wrap_model(network(), "ddp", dtype="fp16")
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=LR), Rows()
    seen = []

    def tiny(model, batch):
        loss = mean(model, batch) * 1e-6  # its gradients are nothing in float16, unless scaled
        loss.register_hook(lambda grad: seen.append(grad.item()))
        return loss

    Loop(model, optimizer, tiny, data=loader(dist.get_world_size()), epochs=1, log_every=10**6).run(rows)
    assert all(scale > 1 for scale in seen), seen


def test_metrics_may_be_numbers_and_a_float_is_no_count():
    model = ezpz.wrap_model(network())
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=LR), Rows()
    batches = loader(dist.get_world_size())
    both = lambda model, batch: (mean(model, batch), {"accuracy": 0.25, "top": torch.tensor(1.0)})  # noqa: E731
    Loop(model, optimizer, both, data=batches, epochs=1, accumulate=2, log_every=10**6).run(rows)
    assert [(row["accuracy"], row["top"]) for row in rows.rows] == [(0.25, 1.0)]
    assert evaluate(model, ezpz.prepare(batches), both)["accuracy"] == 0.25
    counted = lambda model, batch: (mean(model, batch) * 4, 4, {"accuracy": 0.5})  # noqa: E731
    Loop(model, optimizer, counted, data=batches, epochs=1, log_every=10**6).run(rows)
    assert rows.rows[-1]["accuracy"] == 0.5
    for count, train in itertools.product((torch.tensor(1.0), 0.0, True, torch.tensor(True)), (True, False)):
        strange = lambda model, batch, count=count: (mean(model, batch), count)  # noqa: E731
        loop = Loop(model, optimizer, strange, data=batches, epochs=1)
        run = functools.partial(loop.run, rows)
        with pytest.raises(UsageError, match=r"unusable count .*return `loss, {\"accuracy\": accuracy}`"):
            (run if train else functools.partial(evaluate, model, ezpz.prepare(batches), strange))()


def test_a_wrapped_model_can_still_be_copied_and_an_average_of_it_kept():
    model = ezpz.wrap_model(network(), "none")
    twin = copy.deepcopy(model)
    assert torch.equal(twin[0].weight, model[0].weight)
