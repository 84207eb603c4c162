"""The mesh: on four real ranks in one launch, in a simulated world of thousands, and around torch's own limits."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ezpz.dist.mesh import init_mesh, new_groups
from ezpz.errors import MachineError

HERE = Path(__file__).parent
IN_RANKS = [str(HERE / f"in_ranks_{name}.py") for name in ("mesh", "clip", "materialize")]


@pytest.mark.dear
@pytest.mark.slow
def test_meshes_clipping_and_materialisation_on_four_ranks(run_cli, clean_env):
    pytest_in_rank = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "--color=no", "--timeout=120"]
    launch = [sys.executable, "-m", "ezpz.launch", "-n", "4", sys.executable, *pytest_in_rank, *IN_RANKS]
    done = run_cli(launch, clean_env, 280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" passed") == 4, done.stdout
    assert " skipped" not in done.stdout


def test_without_a_process_group_the_error_says_what_to_call():
    with pytest.raises(MachineError, match=r"init_mesh needs a process group.*Call `ezpz\.setup_torch\(\)` first"):
        init_mesh()


SIMULATED = """
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from ezpz.dist.mesh import axis, coordinate, fsdp_mesh, init_mesh, stage_mesh

dist.init_process_group("fake", store=FakeStore(), rank=4000, world_size=4096)
mesh = init_mesh(tp=8)
print(mesh.shape, mesh.device_type, coordinate(mesh, "dp"), dist.get_process_group_ranks(mesh.get_group("tp")))
mesh = init_mesh(pp=4, dp_replicate=4, cp=2, tp=8)
print(mesh.shape, fsdp_mesh(mesh).shape, axis(mesh, "dp").size(), stage_mesh(mesh).size())
"""

# Torch's fake backend serves xpu too and cannot split, like xccl; what remains is to let torch believe in the device.
XPU = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from ezpz.dist.mesh import axis, fsdp_mesh, init_mesh
from ezpz.dist.parallel_groups import get_pipeline_parallel_group

dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=16)
dist.group.WORLD.bound_device_id = torch.device("xpu", 5)
torch.accelerator.is_available = lambda: True
torch.accelerator.current_accelerator = lambda: torch.device("xpu")
try:
    init_device_mesh("xpu", (2, 8), mesh_dim_names=("dp_shard", "tp"))
except RuntimeError as error:
    print(error)
mesh = init_mesh(dp_replicate=2, cp=2, tp=2, device_type="xpu")
groups = [*mesh.get_all_groups(), *fsdp_mesh(mesh).get_all_groups(), axis(mesh, "dp").get_group()]
groups += [get_pipeline_parallel_group(), dist.group.WORLD]
print({str(group.bound_device_id) for group in groups})
"""


ALONE = """
import torch.distributed as dist
import ezpz
from ezpz.dist import parallel_groups
from ezpz.dist.mesh import axis, fsdp_mesh, get_mesh, init_mesh

ezpz.setup_torch()
mesh = init_mesh()
print(mesh.mesh_dim_names, mesh.shape, fsdp_mesh(mesh) is mesh is axis(mesh, "dp"), axis(mesh, "tp"))
print(parallel_groups.get_tensor_parallel_group() is dist.group.WORLD)
ezpz.cleanup()
print(get_mesh())
"""


def said(program, env):
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_simulated_world_of_4096_ranks_has_its_meshes(clean_env):
    assert said(SIMULATED, clean_env) == [
        f"(512, 8) cpu 500 {list(range(4000, 4008))}",
        "(4, 4, 16, 2, 8) (4, 32) 64 1024",
    ]


@pytest.mark.slow
def test_a_world_of_one_has_a_mesh_too(clean_env):
    assert said(ALONE, {**clean_env, "EZPZ_LOG_LEVEL": "ERROR"})[-3:] == [
        "('dp_shard',) (1,) True None",
        "True",
        "None",
    ]


@pytest.mark.slow
def test_meshes_on_xpu_are_made_where_torch_alone_fails_and_all_groups_know_the_tile(clean_env):
    assert said(XPU, clean_env) == [
        "No backend for the parent process group or its backend does not support splitting",
        "{'xpu:5'}",
    ]


class Group:
    """A process group bound to a device, as far as `new_groups` looks at it."""

    def __init__(self, *, splits):
        self.bound_device_id = "xpu:3"
        self.splits = splits

    def _get_backend(self, device):
        assert device == "xpu:3"
        return SimpleNamespace(supports_splitting=self.splits)


@pytest.fixture
def world(monkeypatch, request):
    import torch.distributed as dist

    group = Group(splits=request.param)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=group))
    return group


@pytest.mark.parametrize("world", [False], indirect=True)
def test_a_backend_that_cannot_split_is_not_asked_to_and_new_groups_keep_the_device(world):
    made = SimpleNamespace(bound_device_id=None)
    with new_groups() as keep_device:
        assert world.bound_device_id is None  # what makes DeviceMesh call new_group
        keep_device([made, world])
    assert (made.bound_device_id, world.bound_device_id) == ("xpu:3", "xpu:3")


@pytest.mark.parametrize("world", [False], indirect=True)
def test_the_device_is_bound_again_when_making_groups_fails(world):
    with pytest.raises(RuntimeError, match="no store"), new_groups():
        raise RuntimeError("no store")
    assert world.bound_device_id == "xpu:3"


@pytest.mark.parametrize("world", [True], indirect=True)
def test_a_backend_that_can_split_does_unless_not_all_ranks_take_part(world):
    with new_groups():
        assert world.bound_device_id == "xpu:3"
    with new_groups(split=False):
        assert world.bound_device_id is None
    assert world.bound_device_id == "xpu:3"
