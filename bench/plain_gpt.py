"""A GPT as one writes it in plain torch, fed as nanoGPT's script does: the peer of `ezpz.models.GPT` and its trainer.

Names of parameters are those of `ezpz.models.GPT`, so that both sides of a comparison begin with the same numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the name that every script of torch has for it


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.c_attn(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class PlainGPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocabulary, width),
                "wpe": nn.Embedding(context, width),
                "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width, bias=False),
            }
        )
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens):
        parts = self.transformer
        x = parts.wte(tokens) + parts.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in parts.h:
            x = block(x)
        return self.lm_head(parts.ln_f(x))


def adamw(model, lr, fused=None):
    """The optimizer of nanoGPT's script: two groups, and torch's default implementation on a CPU."""
    large = [each for each in model.parameters() if each.dim() > 1]
    small = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": large, "weight_decay": 0.1}, {"params": small, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=fused)


def memory_mapped(path, indices, context, device):
    """Batches as nanoGPT's script reads them: from a file of uint16, which it maps anew for every batch."""

    def batch(position):
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = (indices(position) * context).tolist()
        inputs, targets = (
            torch.stack([torch.from_numpy(data[at + ahead : at + ahead + context].astype(np.int64)) for at in starts])
            for ahead in (0, 1)
        )
        return inputs.to(device), targets.to(device)

    return batch
