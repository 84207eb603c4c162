"""A Llama-style model of 33 million parameters: tensor parallel within a host, FSDP across hosts, two steps."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

import ezpz

VOCABULARY, WIDTH, LAYERS, HEADS, INNER, LENGTH, TP = 32000, 256, 20, 8, 720, 64, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.feed(self.after(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def tensor_parallel(model, mesh):
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {
                "before": SequenceParallel(),
                "after": SequenceParallel(),
                "attention": PrepareModuleInput(**whole),
                "attention.q": ColwiseParallel(),
                "attention.k": ColwiseParallel(),
                "attention.v": ColwiseParallel(),
                "attention.out": RowwiseParallel(output_layouts=Shard(1)),
                "feed": PrepareModuleInput(**whole),
                "feed.gate": ColwiseParallel(),
                "feed.up": ColwiseParallel(),
                "feed.down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )


def main():
    ezpz.setup_torch(seed=0)
    mesh = init_device_mesh("cpu", (ezpz.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
    model = Llama()
    print(f"parameters={sum(p.numel() for p in model.parameters())}")
    tensor_parallel(model, mesh["tp"])
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    print(f"local={sum(p.to_local().numel() for p in model.parameters())}")
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(VOCABULARY, (1, LENGTH + 1))
    for _ in range(2):
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("two steps done")


if __name__ == "__main__":
    main()
