"""Measure what one rank of many spends on the initial weights of its part of a Llama, in CPU time and memory.

    python bench/initial_weights.py 8b 64        # the size of the model, ranks that share it under FSDP

The other ranks are simulated by torch's "fake" group; this one draws its part in earnest.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from ezpz.dist.block_draws import draw_part
from ezpz.dist.dense_init import named_tensors
from ezpz.dist.recorded_init import record
from ezpz.dist.whole_tensors import part_of
from ezpz.models import Llama
from ezpz.models.llama_config import LLAMA_SIZES


def build(size: str, ranks: int) -> torch.nn.Module:
    """Return the model without memory, cut over the ranks."""
    with torch.device("meta"):
        model = Llama(LLAMA_SIZES[size])
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fill(model: torch.nn.Module) -> int:
    """Draw this rank's part, as `ezpz.materialize` does, and return its bytes."""
    recording = record(model, list(named_tensors(model)))
    assert not recording.problem, recording.problem
    model.to_empty(device="cpu")
    held = 0
    for name, tensor in named_tensors(model).items():
        local = (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach()
        draw_part(local, tensor.shape, part_of(tensor), recording.writes[name], f"1 {recording.seeds[name]}")
        held += local.nbytes
    return held


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=sorted(LLAMA_SIZES))
    parser.add_argument("ranks", type=int)
    args = parser.parse_args()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=args.ranks)
    model = build(args.size, args.ranks)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    begun = time.process_time()
    held = fill(model)
    seconds = time.process_time() - begun
    above = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(
        f"{args.size} over {args.ranks} ranks: {seconds:.1f} CPU-s, {above / 2**30:.2f} GiB above the start, "
        f"{held / 2**30:.2f} GiB of it the part itself"
    )


if __name__ == "__main__":
    main()
