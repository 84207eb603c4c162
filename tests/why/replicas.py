"""Train small models on four gloo ranks, each in another way, and record a run of each: FOLDER [WAY…].

`PLANTED` says of ways that go wrong what the run has to find, as (kind, ranks); all other ways are healthy.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import ezpz

STEPS = 110
PLANTED = {
    "changes_on_one_rank": ("weights-differ", [2]),
    "changes_a_bit_on_rank_0": ("weights-differ", [0]),
    "begins_with_other_weights": ("weights-differ", [0, 1, 2, 3]),
    "has_other_learning_rate": ("weights-differ", [1]),
    "loads_frozen_weights_on_one_rank": ("weights-differ", [3]),
    "changes_in_one_replica_of_a_shard": ("weights-differ", [1, 3]),
    "reads_a_loader_without_a_sampler": ("same-batches", [0, 1, 2, 3]),
    "gives_tokens_by_keyword": ("same-batches", [0, 1, 2, 3]),
}
WAYS = {}


def way(train):
    WAYS[train.__name__] = train
    return train


class Run:
    """What ways have in common: this rank, a model, an optimizer, steps."""

    def __init__(self, history):
        self.history, self.rank, self.world, self.step = history, dist.get_rank(), dist.get_world_size(), 0

    def net(self, seed=0, *between):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(16, 32), *between, nn.Tanh(), nn.Linear(32, 4))
        torch.manual_seed(100 + self.rank)
        return net

    def ddp(self, *between, **options):
        return DistributedDataParallel(self.net(0, *between), **options)

    def batch(self):
        x = torch.randn(8, 16)
        return x, x[:, :4].argmax(1)

    def learn(self, loss, optimizer, before=lambda: None):
        optimizer.zero_grad()
        loss.backward()
        before()
        optimizer.step()
        self.record(loss)

    def record(self, loss):
        self.history.update({"loss": loss.item()}, step=self.step, summarize=False)
        self.step += 1

    def train(self, model, optimizer=None, steps=STEPS, before=lambda: None, change=lambda: None):
        optimizer = optimizer or sgd(model)
        for _ in range(steps):
            change()
            x, y = self.batch()
            self.learn(functional.cross_entropy(model(x), y), optimizer, before)

    def mean(self, tensor):
        dist.all_reduce(tensor)
        tensor /= self.world


def sgd(model, rate=0.1):
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], rate)


# What goes wrong


@way
def changes_on_one_rank(run):
    model = run.ddp()

    def change():
        if run.rank == 2 and run.step == 20:
            model.module[0].weight.data[0, 0] += 3

    run.train(model, change=change)


@way
def changes_a_bit_on_rank_0(run):
    model = run.ddp()

    def change():
        if run.rank == 0 and run.step == 60:
            model.module[2].bias.data.view(torch.int32)[1] ^= 1 << 12

    run.train(model, torch.optim.AdamW(model.parameters(), 1e-3), change=change)


@way
def begins_with_other_weights(run):
    model = run.net(run.rank)
    run.train(model, before=lambda: [run.mean(each.grad) for each in model.parameters()])


@way
def has_other_learning_rate(run):
    model = run.ddp()
    run.train(model, sgd(model, 0.2 if run.rank == 1 else 0.1))


@way
def loads_frozen_weights_on_one_rank(run):
    model = run.net()
    model[0].requires_grad_(False)
    model[0].weight.data += run.rank == 3
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run.train(model, optimizer, before=lambda: [run.mean(each.grad) for each in model[2].parameters()])


@way
def changes_in_one_replica_of_a_shard(run):
    model = sharded(run, 2)

    def change():
        if run.rank == 1 and run.step == 20:
            model[0].weight.to_local().data[0, 0] += 3

    run.train(model, change=change)


@way
def reads_a_loader_without_a_sampler(run):
    model = run.ddp()
    train_on(run, model, DataLoader(data(), 8))


@way
def gives_tokens_by_keyword(run):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 4)

        def forward(self, ids=None):
            return self.head(self.embed(ids).mean(1))

    torch.manual_seed(0)
    model, chance = DistributedDataParallel(Words()), torch.Generator().manual_seed(9)
    optimizer = sgd(model)
    for _ in range(STEPS):
        run.learn(model(ids=torch.randint(50, (8, 6), generator=chance)).pow(2).mean(), optimizer)


# Healthy: models and batches that are meant to differ, or to be the same


@way
def trains_a_model_per_rank(run):
    run.train(run.net(run.rank))


@way
def trains_a_model_per_rank_from_the_same_weights(run):
    run.train(run.net())


@way
def averages_weights_every_8_steps(run):
    model = run.net()

    def change():
        if run.step % 8 == 0:
            for each in model.parameters():
                run.mean(each.data)

    run.train(model, change=change)


@way
def repairs_what_was_different(run):
    model = run.ddp()

    def change():
        if run.rank == 1 and run.step == 20:
            model.module[0].weight.data[0, 0] += 3
        if run.step == 40:
            for each in model.parameters():
                dist.broadcast(each.data, 0)

    run.train(model, change=change)


def adversaries(run, generator, critic, noise):
    steps = sgd(generator, 0.01), sgd(critic, 0.01)
    for _ in range(STEPS // 2):
        z = noise()
        with torch.no_grad():
            made = generator(z)
        loss = critic(made).mean() - critic(torch.randn(8, 4)).mean()
        steps[1].zero_grad()
        loss.backward()
        steps[1].step()
        run.learn(-getattr(critic, "module", critic)(generator(z)).mean(), steps[0])


@way
def trains_a_gan_per_rank(run):
    adversaries(run, run.net(run.rank), nn.Linear(4, 1), lambda: torch.randn(8, 16))


@way
def trains_a_gan_with_the_same_noise_on_all_ranks(run):
    chance = torch.Generator().manual_seed(7)
    critic = DistributedDataParallel(nn.Linear(4, 1))
    adversaries(run, run.ddp(), critic, lambda: torch.randn(8, 16, generator=chance))


@way
def has_batch_norms_of_each_rank(run):
    run.train(DistributedDataParallel(run.net(0, nn.BatchNorm1d(32)), broadcast_buffers=False))


@way
def drops_out_by_rank(run):
    run.train(run.ddp(nn.Dropout(0.2)))


@way
def accumulates_gradients(run):
    model = run.ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        for micro in range(3):
            with model.no_sync() if micro < 2 else contextlib.nullcontext():
                x, y = run.batch()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.record(loss)


@way
def keeps_an_average_of_each_rank(run):
    model = run.ddp()
    average = torch.optim.swa_utils.AveragedModel(model.module)
    run.train(model, change=lambda: average.update_parameters(model.module) if run.rank else None)


@way
def trains_an_adapter(run):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(16, 4).requires_grad_(False)  # the weights of each rank
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 4, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    run.train(DistributedDataParallel(Adapted()))


@way
def computes_in_half_precision(run):
    model = DistributedDataParallel(run.net().bfloat16())
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = run.batch()
        run.learn(functional.cross_entropy(model(x.bfloat16()).float(), y), optimizer)


@way
def computes_with_autocast(run):
    model = run.ddp()
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = run.batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        run.learn(loss, optimizer)


def sharded(run, replicas):
    from torch.distributed.fsdp import fully_shard

    shape = (replicas, run.world // replicas)
    model = run.net()
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
    return model


@way
def shards_all(run):
    run.train(sharded(run, 1))


@way
def shards_in_two_replicas(run):
    run.train(sharded(run, 2))


@way
def splits_layers_over_ranks(run):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(run.net(), init_device_mesh("cpu", (run.world,)), plan)
    torch.manual_seed(5)
    run.train(model, torch.optim.SGD(model.parameters(), 0.1, foreach=False))


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(_context, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_context, gradient):
        return gradient


@way
def splits_layers_by_hand(run):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.one, self.two = nn.LayerNorm(16), nn.Linear(16, 8), nn.Linear(8, 4, bias=False)

        def forward(self, x):
            return Summed.apply(self.two(torch.tanh(self.one(self.norm(x)))))

    torch.manual_seed(run.rank)
    model = Split()
    torch.manual_seed(5)
    run.train(model)


@way
def evaluates_on_all_ranks(run):
    model, chance = run.ddp(), torch.Generator().manual_seed(3)

    def evaluate():
        if run.step % 10 == 0:
            model.eval()
            for _ in range(5):
                model.module(torch.randn(8, 16, generator=chance))
            model.train()

    run.train(model, change=evaluate)


@way
def evaluates_with_gradients(run):
    model, chance = run.ddp(), torch.Generator().manual_seed(3)
    run.train(model, change=lambda: model.module(torch.randn(8, 16, generator=chance)))


@way
def takes_its_part_of_each_batch(run):
    model, chance = run.ddp(), torch.Generator().manual_seed(1)
    optimizer = sgd(model)
    for _ in range(STEPS):
        x = torch.randn(8 * run.world, 16, generator=chance)[run.rank :: run.world]
        run.learn(model(x).pow(2).mean(), optimizer)


@way
def takes_its_part_in_the_model(run):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = run.net()

        def forward(self, x):
            return self.net(x[run.rank :: run.world])

    model, chance = DistributedDataParallel(Part()), torch.Generator().manual_seed(1)
    optimizer = sgd(model)
    for _ in range(STEPS):
        run.learn(model(torch.randn(8 * run.world, 16, generator=chance)).pow(2).mean(), optimizer)


@way
def has_one_batch(run):
    model, x = run.ddp(), torch.ones(8, 16)
    optimizer = sgd(model)
    for _ in range(STEPS):
        run.learn(model(x).pow(2).mean(), optimizer)


def data():
    chance = torch.Generator().manual_seed(3)
    x = torch.randn(1024, 16, generator=chance)
    return TensorDataset(x, x[:, :4].argmax(1))


def train_on(run, model, loader, epochs=1):
    optimizer = sgd(model)
    for _ in range(epochs):
        for x, y in loader:
            run.learn(functional.cross_entropy(model(x), y), optimizer)


@way
def reads_a_loader_with_a_sampler(run):
    train_on(run, run.ddp(), DataLoader(data(), 8, sampler=DistributedSampler(data())), epochs=3)


@way
def divides_the_state_of_the_optimizer(run):
    model = run.ddp()
    run.train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))


@way
def is_compiled(run):  # the last: a process that has compiled something is not asked for its batches
    run.train(torch.compile(run.ddp(), backend="eager"))


def main(folder, *names):
    ezpz.setup_torch(backend="gloo")
    for name in names or WAYS:
        with ezpz.History(name, outdir=f"{folder}/{name}") as history:
            WAYS[name](Run(history))
            history.finalize(plots=False, show=False)
    ezpz.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
