"""Run by pytest inside both ranks of one launch: ezpz on a device that torch knows only through its registries.

The device is `outoftree/hostram.cpp`; nothing named cuda, xpu or mps takes part, so that whatever of ours reached for
one of them would fail here. Not collected by itself; `test_out_of_tree.py` builds the device and launches this.
"""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).with_name("outoftree")))
import hostram

import ezpz
from ezpz.dist import device as devices
from ezpz.dist import torch_support

compiled = hostram.register()
STEPS, BATCH = 6, 8


@pytest.fixture(scope="module", autouse=True)
def _group():
    ezpz.setup_torch(seed=7)
    yield
    dist.barrier()
    ezpz.cleanup()


@pytest.fixture
def device():
    return ezpz.device()


def test_it_is_chosen_bound_and_served_by_its_own_backend(device, monkeypatch):
    assert device == torch.device("hostram", ezpz.get_local_rank())
    assert torch.hostram.current_device() == ezpz.get_local_rank()
    assert (ezpz.get_torch_device_type(), ezpz.get_torch_backend()) == ("hostram", "ramccl")
    assert dist.get_backend_config() == "cpu:gloo,hostram:ramccl"
    monkeypatch.delenv("TORCH_DEVICE")
    kinds = devices.device_types()
    assert kinds.index("xpu") < kinds.index("hostram") < kinds.index("mps")


def test_sums_cross_the_ranks_on_the_device_and_on_the_cpu(device):
    for where in (device, torch.device("cpu")):
        value = torch.full((3,), float(ezpz.get_rank() + 1), device=where)
        dist.all_reduce(value)
        assert value.device == where
        assert value.tolist() == [3.0, 3.0, 3.0]


def test_gloo_averages_where_support_says_so():
    if not torch_support.average_is_supported("cpu"):
        pytest.skip(f"gloo of torch {torch.__version__} is not trusted to")
    for size in (1, 3, 4096):
        mine, part = torch.full((2 * size,), float(ezpz.get_rank())), torch.empty(size)
        dist.reduce_scatter(part, list(mine.clone().chunk(2)), op=dist.ReduceOp.AVG)
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        assert set(mine.tolist()) == set(part.tolist()) == {0.5}


def test_a_mesh_of_two_dimensions_works_though_the_backend_cannot_split(device):
    dist.group.WORLD.bound_device_id = device
    with pytest.raises(RuntimeError, match="does not support splitting"):
        dist.device_mesh.init_device_mesh(device.type, (1, ezpz.get_world_size()))
    mesh = ezpz.init_mesh(dp_replicate=ezpz.get_world_size())
    assert (mesh.device_type, list(mesh.get_coordinate())) == (device.type, [ezpz.get_rank(), 0])


def test_the_guarded_calls_ask_its_module_and_miss_nothing(device):
    before = devices.memory_allocated()
    block = torch.empty(1000, device=device)
    assert devices.memory_allocated() - before == block.numel() * 4
    devices.synchronize()
    devices.reset_peak_memory()
    devices.empty_cache()
    assert devices.get_device_properties() == {"name": "hostram", "total_memory": 0}
    assert devices.max_memory_allocated() == 0
    assert devices.is_bf16_supported()


class Tied(torch.nn.Module):
    """Embedding and output share their weights, as in most language models."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in "ab")
        self.norm = torch.nn.LayerNorm(16)
        self.output = torch.nn.Linear(16, 32, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.output(self.norm(hidden))


def fresh():
    torch.manual_seed(3)
    return Tied()


def train(model, where, part=slice(None)):
    """Loss of this part of the batch, and total norm of the gradients, of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(5)
    told = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 32, (BATCH, 9), generator=generator)[part].to(where)
        scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        told.append((loss.item(), norm.item()))
    return told


def check_like_one_process(model, device):
    half = BATCH // 2
    mine = train(model, device, slice(half * ezpz.get_rank(), half * (ezpz.get_rank() + 1)))
    alone = train(fresh(), torch.device("cpu"))
    losses = torch.tensor([loss for loss, _ in mine], dtype=torch.float64)
    dist.all_reduce(losses)
    assert alone[-1][0] < alone[0][0]
    assert (losses / 2).tolist() == pytest.approx([loss for loss, _ in alone], abs=1e-5)
    assert [norm for _, norm in mine] == pytest.approx([norm for _, norm in alone], abs=1e-5)


def test_a_model_moves_there_whole(device):
    model = torch_support.move_model(fresh(), device)
    assert {parameter.device for parameter in model.parameters()} == {device}
    assert model.output.weight is model.embedding.weight
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_fsdp2_follows_one_process_on_a_cpu(device):
    torch_support.check_fsdp2(device.type)
    model = torch_support.move_model(fresh(), device)
    mesh = dist.device_mesh.init_device_mesh(device.type, (ezpz.get_world_size(),))
    shard = torch_support.fsdp2().fully_shard
    for block in model.blocks:
        shard(block, mesh=mesh)
    shard(model, mesh=mesh)
    assert torch_support.sum_gradients(model, device.type)
    started = compiled.launches()
    check_like_one_process(model, device)
    assert compiled.launches() > started
    local = model.blocks[0][0].weight.to_local()
    assert (local.device, local.shape) == (device, (8, 16))


def test_ddp_follows_one_process_on_a_cpu(device):
    model = torch_support.move_model(fresh(), device)
    check_like_one_process(torch.nn.parallel.DistributedDataParallel(model, device_ids=[device]), device)
