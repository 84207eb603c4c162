"""The shortest honest use of ezpz: every rank learns to imitate a network that it cannot see.

    launch python3 -m ezpz.examples.minimal

Nothing here but torch and a few calls of ezpz: set up, wrap, record, clean up.
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
    parser.add_argument("--outdir", metavar="DIR", help="the run's folder (outputs/minimal/<time>)")
    args = parser.parse_args()

    ezpz.setup_torch(seed=42)  # this rank's device, the process group, and the same seed everywhere
    device = ezpz.device()
    teacher = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
    student = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))
    model = ezpz.wrap_model(student, "ddp", dtype="fp32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    with ezpz.History("minimal", args.outdir) as history:
        for step in range(args.max_iters):
            begin = time.perf_counter()
            generator = torch.Generator().manual_seed(ezpz.data_seed(42, step))  # another batch on every rank
            inputs = torch.randn(64, 32, generator=generator).to(device)
            with torch.no_grad():
                targets = teacher(inputs)
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ezpz.synchronize()  # an accelerator only queues what is asked for: wait, or dt is the time of the queueing
            line = history.update({"iter": step, "loss": loss.item(), "dt": time.perf_counter() - begin})
            if step % 10 == 0 and ezpz.get_rank() == 0:
                print(line)
    ezpz.cleanup()


if __name__ == "__main__":
    main()
