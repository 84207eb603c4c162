"""Calls of older FSDP and tensor parallel trainers, and of the older documentation."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import ezpz
from ezpz.history import WANDB_DISABLED
from ezpz.models.minimal import SequentialLinearNet
from ezpz.tp import get_tensor_parallel_rank, get_tensor_parallel_ranks, tdist

logger = ezpz.get_logger(__name__)
rank = ezpz.setup_torch("DDP", tensor_parallel_size=2, seed=7)
assert WANDB_DISABLED
assert tdist is dist
assert get_tensor_parallel_ranks() == [0, 1]
assert get_tensor_parallel_rank() == rank
mesh = init_device_mesh(str(ezpz.get_torch_device()), (1, 2), mesh_dim_names=("dp", "tp"))
safe = ezpz.init_device_mesh_safe(str(ezpz.get_torch_device()), (2, 1), mesh_dim_names=("dp", "tp"))
assert ezpz.dist.flatten_device_mesh_safe(safe["dp", "tp"], "all").size() == 2
device = f"{ezpz.get_torch_device(as_torch_device=False)}:{ezpz.get_local_rank()}"
total = torch.ones(2).to(ezpz.get_torch_device())
dist.all_reduce(total)
assert total.tolist() == [2.0, 2.0]
ezpz.dist.barrier(implementation="mpi4py")
assert ezpz.dist.all_reduce(rank + 1, op=dist.ReduceOp.MAX, implementation="torch") == 2
assert ezpz.dist.all_reduce(rank + 1, op=None) == 3
assert SequentialLinearNet(input_dim=4, output_dim=2, sizes=[8])(torch.ones(3, 4)).shape == (3, 2)
ezpz.write_localhost_to_hostfile(f"hosts-{rank}")
assert ezpz.get_nodes_from_hostfile(f"hosts-{rank}") == [ezpz.get_hostname()]
history = ezpz.history.History(
    report_dir="history", report_enabled=True, jsonl_path="m.jsonl", distributed_history=True
)
for step in range(4):
    logger.info(
        history.update({"train/iter": step, "train/loss": torch.tensor(1.0 / (step + 1))}).replace("train/", "")
    )
if rank == 0:
    dataset = history.finalize(run_name="mmm-fsdp", dataset_fname="train", warmup=0.25, plot=False)
    assert list(dataset["train_iter"].values) == [1, 2, 3]
    logger.info(f"{dataset=}")
    assert Path("m.jsonl").exists()
print("like_mmm ended", flush=True)
ezpz.cleanup()
