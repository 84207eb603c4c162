"""A Llama in small, with all that is awkward to shard: rope tables that are no parameters, norms, a tied output."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

VOCAB, DIM, HEADS, HIDDEN, LENGTH = 50, 32, 4, 48, 8


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def reset_parameters(self):
        nn.init.ones_(self.weight)

    def forward(self, x):
        return functional.rms_norm(x, x.shape[-1:]) * self.weight


class Rope(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", self.make(), persistent=False)

    def make(self):
        angles = torch.outer(torch.arange(LENGTH), 100.0 ** (-torch.arange(0, DIM // HEADS, 2) / 8))
        return torch.polar(torch.ones_like(angles), angles)

    def reset_buffers(self):
        self.table = self.make()

    def forward(self, x):  # batch, length, heads, head size
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * self.table[:, None]).flatten(-2)


class Attention(nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rope = rope
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, DIM // HEADS)) for part in (self.q, self.k, self.v))
        q, k = self.rope(q), self.rope(k)
        out = functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=True)
        return self.o(out.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.norm1, self.norm2 = Norm(DIM), Norm(DIM)
        self.attention = Attention(rope)
        self.up, self.down = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, DIM)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.silu(self.up(self.norm2(x))))


class Llama(nn.Module):
    def __init__(self, *, tied=False, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.rope = Rope()
        self.layers = nn.ModuleList(Block(self.rope) for _ in range(layers))
        self.norm = Norm(DIM)
        self.output = nn.Linear(DIM, VOCAB, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def tensor_parallel(model, mesh):
    """Cut the linear layers of the blocks only: norms and embeddings stay off the mesh, as many plans leave them."""
    plan = dict.fromkeys(("attention.q", "attention.k", "attention.v", "up"), ColwiseParallel())
    plan |= {"attention.o": RowwiseParallel(), "down": RowwiseParallel()}
    for layer in model.layers:
        parallelize_module(layer, mesh, plan)
    return model


def sharded(model, mesh):
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def loss_of(model):
    tokens = torch.arange(2 * LENGTH).reshape(2, LENGTH) * 7 % VOCAB
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
