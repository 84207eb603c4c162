"""Train the small networks of pairs.toml, each under a real `History`, one after another in one process per rank.

    python tests/view/train_pairs.py FOLDER NAME…

A run differs from the plain one by what its table sets; the fields are explained at the top of pairs.toml. Several
ranks train one and the same network under DDP (`launch -n 2 python tests/view/train_pairs.py …`).
"""

import os
import random
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everybody calls it
from torch.utils.data import DataLoader, Dataset

import ezpz

STEPS, BATCH, WORDS, LENGTH = 320, 16, 48, 24
TABLE = Path(__file__).with_name("pairs.toml")


def table():
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(TABLE.read_text())


class Net(nn.Module):
    """A bag of the words before, and one hidden layer."""

    def __init__(self, *, dropout=0.0, width=48, activation="gelu", skip=False, eps=1e-5, bias=True):
        super().__init__()
        self.words = nn.Embedding(WORDS + 8, width)
        self.norm = nn.LayerNorm(width, eps=eps)
        self.up, self.down = nn.Linear(width, 96), nn.Linear(96, width)
        self.head = nn.Linear(width, WORDS + 8, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.activation, self.skip = activation, skip

    def forward(self, x):
        h = self.words(x)
        h = h + h.cumsum(1) / torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        inner = self.up(self.norm(h))
        inner = F.relu(inner) if self.activation == "relu" else F.gelu(inner, approximate=APPROXIMATE[self.activation])
        y = self.down(inner)
        if self.skip and self.training:  # stochastic depth of its own
            y = y * (torch.rand(y.shape[0], 1, 1) > 0.2) / 0.8
        return self.head(self.drop(h + y))


APPROXIMATE = {"gelu": "none", "tanh": "tanh"}


class Text(Dataset):
    """Sentences in which a word mostly tells the next one."""

    def __init__(self, *, size=2000, broken=None, tokenizer=0, shuffled=False, other_half=False):
        world = torch.Generator().manual_seed(3)
        follows = torch.randint(0, WORDS, (WORDS,), generator=world)
        text = [torch.randint(0, WORDS, (size, 1), generator=world)]
        for _ in range(LENGTH):
            noise = torch.randint(0, WORDS, (size, 1), generator=world)
            text.append(torch.where(torch.rand(size, 1, generator=world) < 0.25, noise, follows[text[-1]]))
        self.x = torch.cat(text, 1)
        if broken is not None:
            self.x[broken] = 0
        if tokenizer:
            self.x = torch.where(self.x > WORDS - 6, self.x + tokenizer, self.x)
        self.y = self.x[:, 1:].clone()
        if shuffled:
            self.y = self.y[torch.randperm(size, generator=torch.Generator().manual_seed(1))]
        if other_half:
            self.y[size // 2 :] = self.y[size // 2 :].flip(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return self.x[place, :-1], self.y[place]


def optimizer_of(model, settings):
    settings = {"lr": 3e-3, "weight_decay": 0.1, **settings}
    if settings.pop("class", "AdamW") == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    parameters = list(model.parameters())
    if settings.pop("decay_only_matrices", False):
        flat = {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0}
        parameters = [{"params": [each for each in parameters if each.dim() > 1]}, flat]
    return torch.optim.AdamW(parameters, **settings)


def set_up(run):
    """Set what a whole process has; return the model."""
    os.environ.update(run.get("env", {}), EZPZ_COMPARE_DATA="0" if run.get("sees_no_difference") else "1")
    torch.set_num_threads(run.get("threads", 1))
    torch.use_deterministic_algorithms(run.get("deterministic", False))
    torch.manual_seed(run.get("seed", 0))
    random.seed(0)
    model = Net(**run.get("model", {}))
    with torch.no_grad():
        for each in model.parameters() if "perturbed" in run else ():
            each.mul_(1 + run["perturbed"] * torch.randn_like(each))
    return model


def loader_of(run):
    data = dict(run.get("data", {}))
    only = data.pop("only_rank", None)
    order = torch.Generator().manual_seed(run.get("order", 7))
    text = Text(**(data if only in {None, ezpz.get_rank()} else {}))
    loader = DataLoader(text, batch_size=run.get("batch", BATCH), shuffle=True, generator=order, drop_last=True)
    return loader if run.get("own_loader") else ezpz.prepare(loader)


def batches(loader, steps):
    step = 0
    while step < steps:
        for batch in loader:
            yield step, batch
            step += 1
            if step == steps:
                return


def change(run, step, model, optimizer):
    """Do what the table wants at this step."""
    for name, at in run.get("at", {}).items():
        if step != at:
            continue
        if name == "state_lost":
            optimizer.state.clear()
        elif name == "frozen":
            model.words.weight.requires_grad_(False)
        elif name == "eval":
            model.eval()
        elif name == "lr_halved":
            optimizer.param_groups[0]["lr"] *= 0.5
        elif name == "other_betas":
            optimizer.param_groups[0]["betas"] = (0.8, 0.999)
        elif name == "bit_flipped":
            with torch.no_grad():
                model.up.weight[3, 5] += 64.0


def backward(run, model, x, y):
    """Return the loss of a step; the gradients are those of its parts."""
    parts, total = run.get("accumulate", 1), 0.0
    divided = 1 if run.get("forgets_to_divide") else parts
    for inputs, targets in zip(x.chunk(parts), y.chunk(parts), strict=True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=run.get("autocast", False)):
            z = model(inputs)
        smooth = run.get("label_smoothing", 0.0)
        loss = F.cross_entropy(z.float().flatten(0, 1), targets.flatten(), label_smoothing=smooth) / divided
        loss.backward()
        total += loss.item()
    return total


def train(folder, run):
    net = set_up(run)
    loader = loader_of(run)
    model = ezpz.wrap_model(net, "ddp") if ezpz.get_world_size() > 1 else net
    optimizer = optimizer_of(net, run.get("optimizer", {}))
    steps = run.get("steps", STEPS)
    cosine = "cosine" in run and torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, run["cosine"])
    torch.manual_seed(run.get("torch_seed", run.get("seed", 0)))
    history = ezpz.History("pair", folder)
    shown = {} if run.get("hides_schedule") or not cosine else {"scheduler": cosine}
    history.log_config({"lr": 3e-3, "seed": 0, **run.get("config", {})}, model=model, optimizer=optimizer, **shown)
    for step, (x, y) in batches(loader, steps):
        at = run.get("at", {})
        targets = y.flip(0) if step == at.get("labels_flipped") else y
        optimizer.zero_grad()
        loss = backward(run, model, x, targets)
        if "clip" in run:
            nn.utils.clip_grad_norm_(model.parameters(), run["clip"])
        if not ("skips_every" in run and step % run["skips_every"] == 0):
            optimizer.step()
        if cosine:
            cosine.step()
        change(run, step, net, optimizer)
        rate = {"lr": optimizer.param_groups[0]["lr"]} if run.get("logs_lr") else {}
        history.update({"loss": loss, **rate} if step % run.get("logs_every", 1) == 0 else {"speed": 1.0}, step=step)
    history.finalize(plots=False, show=False)
    for name in run.get("env", {}):
        del os.environ[name]


def main(folder, names):
    if "WORLD_SIZE" in os.environ:
        ezpz.setup_torch(seed=0)
    runs = table()["runs"]
    for name in names:
        train(folder / name, runs[name])
    if "WORLD_SIZE" in os.environ:
        ezpz.cleanup()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
