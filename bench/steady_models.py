"""The models of the trainers with made-up batches of their shapes, for `ezpz.train.Loop` and for a plain loop of torch.

There are two of each, one for either side.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plain_gpt
import torch
from torch.nn.functional import cross_entropy

import ezpz
from ezpz import train
from ezpz.examples import fsdp, fsdp_tp, vit
from ezpz.models import CNN, GPT, LLAMA_SIZES, MLP, GPTConfig, Llama, VisionTransformer, ViTConfig

POSITIONS = 8  # different batches, which come again and again


@dataclass
class Side:
    """What one of the two loops trains."""

    model: object
    optimizer: object
    schedule: object


@dataclass
class Case:
    """One model, and what both loops do with it alike."""

    name: str
    batch_size: int
    compute_loss: object
    batches: object
    max_norm: float
    cost: object
    sides: tuple  # of ezpz, and of plain torch
    plain_batches: object = None  # where plain torch takes them in another way


def sides(make, lr):
    """Two copies of a model, each with an optimizer and a schedule of its own."""
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        model = make().to(ezpz.device())
        # The same optimizer on both sides: which one is faster is another question.
        found.append(side(model, torch.optim.AdamW(model.parameters(), lr=lr, fused=True)))
    return tuple(found)


def side(model, optimizer):
    return Side(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1e6)))


def pairs(inputs, targets):
    """A function from position to batch, on the device, out of tensors whose first dimension counts positions."""
    device = ezpz.device()
    inputs, targets = inputs.to(device), targets.to(device)
    return lambda position: (inputs[position % POSITIONS], targets[position % POSITIONS])


def images(batch_size, channels, size, classes):
    shape = (POSITIONS, batch_size)
    return pairs(torch.rand(*shape, channels, size, size), torch.randint(classes, shape))


def classified(model, batch):
    inputs, targets = batch
    logits = model(inputs)
    return cross_entropy(logits, targets), {"accuracy": (logits.argmax(dim=1) == targets).float().mean()}


def mlp():
    batches = pairs(torch.rand(POSITIONS, 64, 64), torch.randint(10, (POSITIONS, 64)))
    both = sides(lambda: MLP(64, (1024, 512, 256, 128), 10), 1e-3)
    return Case("MLP (test_dist)", 64, classified, batches, 0.0, train.Cost(6 * 756_874), both)


def cnn():
    flops = train.count_flops(CNN(), torch.empty(1, 1, 28, 28))
    return Case("CNN (fsdp)", 64, fsdp.compute_loss, images(64, 1, 28, 10), 0.0, train.Cost(flops), sides(CNN, 1e-3))


def llama(name, size, batch_size, seq_len):
    config = LLAMA_SIZES[size]
    tokens = torch.randint(config.vocab_size, (POSITIONS, batch_size, seq_len + 1))
    batches = pairs(tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous())
    both = sides(lambda: Llama(config), 1e-4)
    counted = train.parameters_for_flops(both[0].model)
    per_token = train.transformer_flops(counted, config.n_layers, config.n_heads, config.head_dim, seq_len)
    return Case(name, batch_size, fsdp_tp.compute_loss, batches, 1.0, train.Cost(per_token * seq_len, seq_len), both)


def small_vit():
    sizes = vit.PRESETS["debug"]
    config = ViTConfig(
        *(sizes[name] for name in ("image_size", "patch_size", "depth", "n_heads", "head_dim", "classes"))
    )
    both = sides(lambda: VisionTransformer(config), 1e-4)
    flops = train.count_flops(both[0].model, torch.empty(1, 3, 32, 32))
    return Case("ViT debug (vit)", 32, vit.compute_loss, images(32, 3, 32, 10), 1.0, train.Cost(flops), both)


def gpt(name, layers, heads, width, recipe=False):
    """A GPT on Shakespeare, 12 x 64 tokens as nanoGPT's README has for a CPU.

    `recipe`: plain torch optimizes and reads as nanoGPT's script does.
    """
    context, batch_size, device = 64, 12, ezpz.device()
    tokens = train.load_tokens("shakespeare")
    models = [
        make(tokens.vocabulary, layers, heads, width, context).to(device)
        for make in (lambda *sizes: GPT(GPTConfig(*sizes)), plain_gpt.PlainGPT)
    ]
    models[1].load_state_dict(models[0].state_dict())
    both = tuple(
        side(model, plain_gpt.adamw(model, 1e-4, fused))
        for model, fused in zip(models, (True, None if recipe else True), strict=True)
    )
    batches = train.TokenBatches(tokens.train, context, batch_size, device=device)
    indices = train.BatchIndices(len(batches), batch_size)
    per_token = train.transformer_flops(models[0].counted, layers, heads, width // heads, context)
    return Case(
        *(name, batch_size, fsdp_tp.compute_loss, batches, 1.0, train.Cost(per_token * context, context), both),
        plain_batches=from_file(tokens.train, indices, context, device) if recipe else None,
    )


def from_file(tokens, indices, context, device):
    folder = tempfile.TemporaryDirectory(prefix="ezpz-tokens-")
    path = Path(folder.name, "train.bin")
    np.asarray(tokens, dtype=np.uint16).tofile(path)
    batches = plain_gpt.memory_mapped(path, indices, context, device)
    batches.folder = folder  # goes when nobody wants batches any more
    return batches


CASES = {
    "mlp": mlp,
    "cnn": cnn,
    "llama": lambda: llama("Llama debug (fsdp_tp)", "debug", 16, 64),
    "llama10m": lambda: llama("Llama 10m (fsdp_tp)", "10m", 2, 128),
    "vit": small_vit,
    "gpt": lambda: gpt("GPT 4 x 128 (gpt)", 4, 4, 128),
    "gpt10m": lambda: gpt("GPT 6 x 384 (gpt)", 6, 6, 384),
    "nanogpt": lambda: gpt("nanoGPT's own way", 4, 4, 128, recipe=True),
}
