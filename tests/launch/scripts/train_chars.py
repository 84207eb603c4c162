"""Teach a small transformer the characters of a file; settings stand at the top, and --name=value changes them.

python train_chars.py --batch_size=4
torchrun --standalone --nproc_per_node=2 train_chars.py --device=cpu --backend=gloo
"""

import os
import sys
from ast import literal_eval
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

# ------------------------------------------------------------------------------
data = __file__
device = "cuda"
backend = "nccl"
dtype = "float32"
context = 32
batch_size = 6
accumulation = 4  # in all; ranks share them
max_steps = 5
eval_batches = 200
width = 48
learning_rate = 3e-3
grad_clip = 1.0
# ------------------------------------------------------------------------------
for word in sys.argv[1:]:
    name, _, value = word.removeprefix("--").partition("=")
    assert name in globals(), f"unknown setting {name}"
    try:
        globals()[name] = literal_eval(value)
    except (SyntaxError, ValueError):
        globals()[name] = value  # a word

ddp = int(os.environ.get("RANK", "-1")) != -1
rank, world_size = 0, 1
if ddp:
    init_process_group(backend=backend)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    assert accumulation % world_size == 0
    accumulation //= world_size
master = rank == 0
torch.manual_seed(1337 + rank)
autocast = nullcontext() if dtype == "float32" else torch.autocast(device.split(":")[0], getattr(torch, dtype))


def get_batch():
    text = np.memmap(data, dtype=np.uint8, mode="r")
    starts = torch.randint(len(text) - context, (batch_size,)).tolist()
    windows = torch.stack([torch.from_numpy(text[at : at + context + 1].astype(np.int64)) for at in starts])
    return windows[:, :-1].to(device), windows[:, 1:].to(device)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(context, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.output = nn.Linear(width, 256, bias=False)
        self.output.weight = self.tokens.weight
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, x, y):
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        hidden = self.tokens(x) + self.places(torch.arange(length, device=x.device))
        logits = self.output(self.block(hidden, src_mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


model = raw_model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99))
if ddp:
    model = DistributedDataParallel(model, device_ids=[torch.device(device)] if "cuda" in device else None)

x, y = get_batch()
for step in range(max_steps):
    for part in range(accumulation):
        if ddp:
            model.require_backward_grad_sync = part == accumulation - 1
        with autocast:
            loss = model(x, y) / accumulation
        x, y = get_batch()
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master:
        print(f"step {step} loss {loss.item() * accumulation:.17g}", flush=True)

raw_model.eval()
with torch.no_grad():
    losses = [raw_model(*get_batch()).item() for _ in range(eval_batches)]
if master:
    print(f"validation loss {sum(losses) / len(losses):.17g}", flush=True)
if ddp:
    destroy_process_group()
