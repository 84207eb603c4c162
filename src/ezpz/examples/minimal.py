"""The shortest honest use of ezpz: every rank learns to imitate a network that it cannot see.

    launch python3 -m ezpz.examples.minimal

Nothing here but torch and four calls of ezpz: set up, wrap, record, clean up.
"""

import argparse
import time

import torch
from torch import nn

import ezpz


def main() -> None:
    """Train a small network and leave a run folder."""
    parser = argparse.ArgumentParser(prog="ezpz.examples.minimal", description="The shortest honest use of ezpz.")
    parser.add_argument("--max_iters", "--max-iters", type=int, default=200, metavar="N", help="steps to train (200)")
    steps = parser.parse_args().max_iters

    ezpz.setup_torch(seed=42)  # this rank's device, the process group, and the same seed everywhere
    device = ezpz.get_torch_device()
    teacher = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    student = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
    model = ezpz.wrap_model(student, "ddp", dtype="fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    logger = ezpz.get_logger("ezpz.examples.minimal")

    with ezpz.History("minimal") as history:
        for step in range(steps):
            begin = time.perf_counter()
            generator = torch.Generator().manual_seed(ezpz.data_seed(42, step))  # another batch on every rank
            inputs = torch.randn(64, 32, generator=generator).to(device)
            with torch.no_grad():
                targets = teacher(inputs)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logger.info(history.update({"iter": step, "loss": loss, "dt": time.perf_counter() - begin}))
    ezpz.cleanup()


if __name__ == "__main__":
    main()
