"""Teach a small autoencoder with Hugging Face accelerate, with two batches to each optimizer step.

accelerate launch --cpu --num_processes 2 train_accelerate.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader


def signals(count):
    return torch.sin(torch.rand(count, 1) * torch.linspace(0, 6, 16))


def main():
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(7)

    model = nn.Sequential(nn.Linear(16, 4), nn.GELU(), nn.Linear(4, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    loader = DataLoader(signals(96), batch_size=8, shuffle=True)
    schedule = LinearLR(optimizer, total_iters=len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(batch), batch)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.print(f"step {step} loss {loss.item():.17g}", flush=True)

    model.eval()
    with torch.no_grad():
        batch = signals(100_000)
        loss = nn.functional.mse_loss(accelerator.unwrap_model(model)(batch), batch)
    accelerator.print(f"validation loss {loss.item():.17g}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
