"""A small Llama, and its training by one process and by many ranks; for files that pytest runs inside every rank."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

import ezpz
from ezpz.dist.clip import clip_grad_norm_
from ezpz.dist.mesh import coordinate, degree
from ezpz.dist.sharding import make_optimizer
from ezpz.dist.tensor_parallel import loss_parallel

VOCABULARY, WIDTH, HEADS, SEQUENCE, BATCH, STEPS = 256, 64, 4, 32, 8, 6
CLIP = 0.25  # below every gradient norm of these models, so that clipping is always at work


@pytest.fixture(scope="session", autouse=True)
def group_of_ranks():
    ezpz.setup_torch(seed=7)
    torch.set_num_threads(1)
    yield
    if dist.is_initialized():  # pytest takes the fixture of each file that imports it for another one
        dist.barrier()
        ezpz.cleanup()


class Attention(nn.Module):
    def __init__(self, n_kv_heads):
        super().__init__()
        self.size = WIDTH // HEADS
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, n_kv_heads * self.size, bias=False)
        self.wv = nn.Linear(WIDTH, n_kv_heads * self.size, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, angles):
        batch, sequence, _ = x.shape
        q, k, v = (each(x).view(batch, sequence, -1, self.size).transpose(1, 2) for each in (self.wq, self.wk, self.wv))
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        q, k = (each * cos + each.roll(self.size // 2, -1) * sin for each in (q, k))
        y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x):
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, n_kv_heads):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed_forward = Attention(n_kv_heads), FeedForward()

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles=angles)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, n_kv_heads=2, n_layers=4, *, tied=False):
        super().__init__()
        self.n_heads, self.n_kv_heads = HEADS, n_kv_heads
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block(n_kv_heads) for _ in range(n_layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight
        turns = torch.arange(SEQUENCE)[:, None] / 10 ** torch.arange(WIDTH // HEADS)
        self.register_buffer("angles", turns, persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        return self.output(self.norm(x))


def build(seed=11, **sizes):
    ezpz.seed_everything(seed)
    return Llama(**sizes)


def batch_of(step, size=BATCH):
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(VOCABULARY, (size, SEQUENCE + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def mean_loss(logits, labels):
    return cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))


def adamw(model, **more):
    return make_optimizer(model, torch.optim.AdamW, lr=3e-3, **more)


def world_mean(value):
    value = value.detach().double().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def alone(steps=STEPS, size=BATCH, model=None, **sizes):
    """Loss and gradient norm of each step of one process, without anything of ezpz around the model."""
    model = model or build(**sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        tokens, labels = batch_of(step, size)
        loss = mean_loss(model(tokens), labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        assert norm > CLIP
        yield loss.item(), norm.item()


def share_of(mesh):
    """Return which part of the batch is this rank's, and of how many."""
    return coordinate(mesh, "dp"), degree(mesh, "dp")


def together(model, mesh, *, steps=STEPS, cut_logits=False):
    optimizer = adamw(model)
    part, parts = share_of(mesh)
    for step in range(steps):
        tokens, labels = (each.chunk(parts)[part] for each in batch_of(step))
        if cut_logits:
            with loss_parallel():
                loss = mean_loss(model(tokens), labels)
                loss.backward()
            loss = loss.full_tensor()
        else:
            loss = mean_loss(model(tokens), labels)
            loss.backward()
        norm = clip_grad_norm_(model.parameters(), CLIP, mesh=mesh)
        optimizer.step()
        optimizer.zero_grad()
        yield world_mean(loss), float(norm)


def apart(ours, reference):
    """Return the largest differences in loss and in gradient norm."""
    ours, reference = list(ours), list(reference)
    assert len(ours) == len(reference)
    return tuple(max(abs(a[i] - b[i]) for a, b in zip(ours, reference, strict=True)) for i in (0, 1))


def follows(ours, reference, loss=1e-5, norm=1e-5):
    differences = apart(ours, reference)
    assert differences[0] <= loss, differences
    assert differences[1] <= norm, differences
