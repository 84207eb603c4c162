"""Small real networks trained on the CPU under a real `History`, for the tests of ``ezpz compare``.

One process trains all of them: importing torch costs more than a run. ``train`` writes a run folder as a trainer would,
and says in ``effective`` what the live objects hold, in the format of ``ezpz.view.effective``.
"""

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it

from ezpz.track import History

VOCABULARY, LENGTH, BATCH, WIDTH, HEADS, LAYERS = 24, 12, 16, 32, 2, 1


@dataclass(frozen=True)
class Recipe:
    """What a run is trained with; ``noise`` is the size of the rounding of weights that stands for other kernels."""

    model: str = "transformer"
    dtype: str = "float32"
    steps: int = 450
    lr: float = 3e-3
    decay_at: int = 0
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    init_seed: int = 1
    data_seed: int = 2
    dropout_seed: int = 3
    noise: float = 0.0
    noise_seed: int = 4
    attention: str = "sdpa"


class Block(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.recipe = recipe
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.attention_dropout = nn.Dropout(recipe.attention_dropout)
        self.hidden_dropout = nn.Dropout(recipe.hidden_dropout)

    def attend(self, x):
        batch, length, width = x.shape
        shape = (batch, length, HEADS, width // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        if self.recipe.attention == "sdpa" and not self.attention_dropout.p:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / (width // HEADS) ** 0.5
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            mixed = self.attention_dropout(scores.masked_fill(hidden, float("-inf")).softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + self.hidden_dropout(self.attend(self.attention_norm(x)))
        return x + self.hidden_dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))


class Transformer(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(recipe) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def build(recipe):
    torch.manual_seed(recipe.init_seed)
    if recipe.model == "transformer":
        model = Transformer(recipe)
    else:
        hidden = nn.Dropout(recipe.hidden_dropout)
        model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), hidden, nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    if recipe.noise:
        noisy = torch.Generator().manual_seed(recipe.noise_seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + recipe.noise * torch.randn(parameter.shape, generator=noisy))
    return model.to(getattr(torch, recipe.dtype))


@cache
def batches(model, data_seed, steps):
    """Return [(inputs, targets)]: text of a random Markov chain, or points of five classes that overlap."""
    world, order = torch.Generator().manual_seed(99), torch.Generator().manual_seed(data_seed)
    if model == "mlp":
        weights = torch.randn(20, 5, generator=world)
        x = torch.randn(steps, 128, 20, generator=order)
        return list(zip(x, (x @ weights + 3 * torch.randn(steps, 128, 5, generator=order)).argmax(-1), strict=True))
    chain = torch.softmax(2.5 * torch.randn(VOCABULARY, VOCABULARY, generator=world), -1)
    text = torch.randint(VOCABULARY, (steps * BATCH, 1), generator=order)
    for _ in range(LENGTH):
        text = torch.cat([text, torch.multinomial(chain[text[:, -1]], 1, generator=order)], 1)
    return [(part[:, :-1], part[:, 1:]) for part in text.view(steps, BATCH, LENGTH + 1)]


def loss_of(recipe, model, inputs, targets):
    inputs = inputs if recipe.model == "transformer" else inputs.to(getattr(torch, recipe.dtype))
    return F.cross_entropy(model(inputs).float().flatten(0, -2), targets.flatten())


def effective(recipe, model, optimizer):
    """Return what live objects say, as ``ezpz.view.effective`` writes it."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    total = sum((value.detach().double() * (1 + value.detach().double())).sum().item() for value in model.parameters())
    schedule = {str(step): recipe.lr * factor(recipe, step) for step in (0, 1, 45, 225, 449)}
    return {
        "model.parameters": sum(value.numel() for value in model.parameters()),
        "model.checksum": hashlib.sha256(repr(total).encode()).hexdigest()[:16],
        "model.dtypes": {recipe.dtype: sum(value.numel() for value in model.parameters())},
        **{f"dropout.{name}": module.p for name, module in layers.items()},
        "optimizer.class": type(optimizer).__name__,
        "optimizer.groups.0.lr": recipe.lr,
        "optimizer.groups.0.weight_decay": optimizer.param_groups[0]["weight_decay"],
        "schedule.class": "LambdaLR",
        "schedule.lr": schedule,
        "attention.backends": {"flash": recipe.attention == "sdpa", "math": True},
    }


def factor(recipe, step):
    return 0.1 if recipe.decay_at and step >= recipe.decay_at else 1.0


def train(folder, recipe, *, given=("model", "dtype", "steps", "lr")):
    """Train and leave a run folder behind; ``given`` names what the user wrote into the configuration."""
    model = build(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(recipe, step))
    told = effective(recipe, model, optimizer)
    torch.manual_seed(recipe.dropout_seed)
    history = History("small", folder)
    history.log_config({name: value for name, value in asdict(recipe).items() if name in given})
    for inputs, targets in batches(recipe.model, recipe.data_seed, recipe.steps):
        loss = loss_of(recipe, model, inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.update({"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"], "dt": 0.01}, summarize=False)
        schedule.step()
    history.finalize(plots=False, show=False)
    run = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**run, "effective": told}))
    return folder


CASES = {
    "first": {},
    "identical-rerun": {},
    "numerics-noise": {"noise": 4e-3},
    "dropout": {"hidden_dropout": 0.1},
    "dropout-other-seed": {"hidden_dropout": 0.1, "dropout_seed": 33},
    "lr-decay": {"decay_at": 300},
    "lr-decay-and-noise": {"decay_at": 300, "noise": 4e-3},
    "data-order": {"data_seed": 22},
    "init-seed": {"init_seed": 11},
    "higher-lr": {"lr": 1.1},  # times the base's
}
STORY = {  # one code path forgets to pass the dropouts on, whose default is 0.1
    "math": {"attention": "math"},
    "math-with-defaults": {"attention": "math", "attention_dropout": 0.1, "hidden_dropout": 0.1},
}
BASES = {"mlp": Recipe(model="mlp", lr=1e-3), "transformer": Recipe(), "transformer-bf16": Recipe(dtype="bfloat16")}


def main(folder, name):
    """Train every case of one base into ``folder``/CASE."""
    torch.set_num_threads(1)
    base = BASES[name]
    for case, changes in {**CASES, **(STORY if "transformer" in name else {})}.items():
        lr = base.lr * changes.get("lr", 1.0)
        train(folder / case, replace(base, **{**changes, "lr": lr}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
