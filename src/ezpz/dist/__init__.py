"""Who am I? Rank, device, backend, mesh, wrapping, collectives: what a user's script imports.

Nothing here loads torch until a function needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.dist.accelerator import device_name as device_name
    from ezpz.dist.accelerator import empty_cache as empty_cache
    from ezpz.dist.accelerator import get_device_properties as get_device_properties
    from ezpz.dist.accelerator import is_bf16_supported as is_bf16_supported
    from ezpz.dist.accelerator import make_event as make_event
    from ezpz.dist.accelerator import max_memory_allocated as max_memory_allocated
    from ezpz.dist.accelerator import memory_allocated as memory_allocated
    from ezpz.dist.accelerator import reset_peak_memory as reset_peak_memory
    from ezpz.dist.accelerator import synchronize as synchronize
    from ezpz.dist.accelerator import total_memory as total_memory
    from ezpz.dist.backend import get_torch_backend as get_torch_backend
    from ezpz.dist.clip import clip_grad_norm_ as clip_grad_norm_
    from ezpz.dist.collectives import all_ranks_agree as all_ranks_agree
    from ezpz.dist.collectives import all_reduce as all_reduce
    from ezpz.dist.collectives import barrier as barrier
    from ezpz.dist.collectives import broadcast as broadcast
    from ezpz.dist.collectives import gather_objects as gather_objects
    from ezpz.dist.debugger import breakpoint as breakpoint  # noqa: A004  # the name that users know
    from ezpz.dist.device import get_torch_device as get_torch_device
    from ezpz.dist.device_type import get_torch_device_type as get_torch_device_type
    from ezpz.dist.ending import cleanup as cleanup
    from ezpz.dist.info import get_dist_info as get_dist_info
    from ezpz.dist.info import log_dict_as_bulleted_list as log_dict_as_bulleted_list
    from ezpz.dist.info import print_dist_setup as print_dist_setup
    from ezpz.dist.job import get_cpus_per_node as get_cpus_per_node
    from ezpz.dist.job import get_gpus_per_node as get_gpus_per_node
    from ezpz.dist.job import get_hostname as get_hostname
    from ezpz.dist.job import get_local_rank as get_local_rank
    from ezpz.dist.job import get_machine as get_machine
    from ezpz.dist.job import get_node_index as get_node_index
    from ezpz.dist.job import get_nodes_from_hostfile as get_nodes_from_hostfile
    from ezpz.dist.job import get_num_nodes as get_num_nodes
    from ezpz.dist.job import get_rank as get_rank
    from ezpz.dist.job import get_scheduler as get_scheduler
    from ezpz.dist.job import get_world_size as get_world_size
    from ezpz.dist.job import get_world_size_in_use as get_world_size_in_use
    from ezpz.dist.job import get_world_size_total as get_world_size_total
    from ezpz.dist.job import query_environment as query_environment
    from ezpz.dist.legacy import check as check
    from ezpz.dist.legacy import get_max_memory_allocated as get_max_memory_allocated
    from ezpz.dist.legacy import get_max_memory_reserved as get_max_memory_reserved
    from ezpz.dist.legacy import get_timestamp as get_timestamp
    from ezpz.dist.legacy import init_deepspeed as init_deepspeed
    from ezpz.dist.legacy import load_ds_config as load_ds_config
    from ezpz.dist.legacy import setup as setup
    from ezpz.dist.legacy import setup_tensorflow as setup_tensorflow
    from ezpz.dist.legacy import setup_torch_DDP as setup_torch_DDP
    from ezpz.dist.legacy import setup_torch_distributed as setup_torch_distributed
    from ezpz.dist.legacy import summarize_dict as summarize_dict
    from ezpz.dist.legacy import wrap_with_ddp as wrap_with_ddp
    from ezpz.dist.legacy import wrap_with_fsdp as wrap_with_fsdp
    from ezpz.dist.legacy import wrap_with_fsdp2 as wrap_with_fsdp2
    from ezpz.dist.mesh import axis as axis
    from ezpz.dist.mesh import coordinate as coordinate
    from ezpz.dist.mesh import degree as degree
    from ezpz.dist.mesh import fsdp_mesh as fsdp_mesh
    from ezpz.dist.mesh import get_mesh as get_mesh
    from ezpz.dist.mesh import init_mesh as init_mesh
    from ezpz.dist.meta_init import materialize as materialize
    from ezpz.dist.parallel_groups import get_context_parallel_group as get_context_parallel_group
    from ezpz.dist.parallel_groups import get_context_parallel_rank as get_context_parallel_rank
    from ezpz.dist.parallel_groups import get_context_parallel_world_size as get_context_parallel_world_size
    from ezpz.dist.parallel_groups import get_data_parallel_group as get_data_parallel_group
    from ezpz.dist.parallel_groups import get_data_parallel_rank as get_data_parallel_rank
    from ezpz.dist.parallel_groups import get_data_parallel_world_size as get_data_parallel_world_size
    from ezpz.dist.parallel_groups import get_pipeline_parallel_group as get_pipeline_parallel_group
    from ezpz.dist.parallel_groups import get_pipeline_parallel_rank as get_pipeline_parallel_rank
    from ezpz.dist.parallel_groups import get_pipeline_parallel_world_size as get_pipeline_parallel_world_size
    from ezpz.dist.parallel_groups import get_tensor_parallel_group as get_tensor_parallel_group
    from ezpz.dist.parallel_groups import get_tensor_parallel_rank as get_tensor_parallel_rank
    from ezpz.dist.parallel_groups import get_tensor_parallel_world_size as get_tensor_parallel_world_size
    from ezpz.dist.peaks import peak_flops as peak_flops
    from ezpz.dist.seeds import data_seed as data_seed
    from ezpz.dist.seeds import seed_dropout as seed_dropout
    from ezpz.dist.seeds import seed_everything as seed_everything
    from ezpz.dist.sharding import make_optimizer as make_optimizer
    from ezpz.dist.startup import setup_torch as setup_torch
    from ezpz.dist.tensor_parallel import check_divisible as check_divisible
    from ezpz.dist.tensor_parallel import llama_plan as llama_plan
    from ezpz.dist.tensor_parallel import loss_parallel as loss_parallel
    from ezpz.dist.timeouts import set_timeout as set_timeout
    from ezpz.dist.timing import timeit as timeit
    from ezpz.dist.timing import timeitlogit as timeitlogit
    from ezpz.dist.weighting import accumulating as accumulating
    from ezpz.dist.weighting import scale_loss as scale_loss
    from ezpz.dist.wrap import wrap_model as wrap_model
    from ezpz.log import get_logger as get_logger

_NAMES = {
    "startup": ("setup_torch",),
    "sharding": ("make_optimizer",),
    "accelerator": (
        "device_name",
        "empty_cache",
        "get_device_properties",
        "is_bf16_supported",
        "make_event",
        "max_memory_allocated",
        "memory_allocated",
        "reset_peak_memory",
        "synchronize",
        "total_memory",
    ),
    "backend": ("get_torch_backend",),
    "clip": ("clip_grad_norm_",),
    "collectives": ("all_ranks_agree", "all_reduce", "barrier", "broadcast", "gather_objects"),
    "debugger": ("breakpoint",),
    "device": ("get_torch_device",),
    "device_type": ("get_torch_device_type",),
    "ending": ("cleanup",),
    "info": ("get_dist_info", "log_dict_as_bulleted_list", "print_dist_setup"),
    "job": (
        "get_cpus_per_node",
        "get_gpus_per_node",
        "get_hostname",
        "get_local_rank",
        "get_machine",
        "get_node_index",
        "get_nodes_from_hostfile",
        "get_num_nodes",
        "get_rank",
        "get_scheduler",
        "get_world_size",
        "get_world_size_in_use",
        "get_world_size_total",
        "query_environment",
    ),
    "legacy": (
        "check",
        "get_max_memory_allocated",
        "get_max_memory_reserved",
        "get_timestamp",
        "init_deepspeed",
        "load_ds_config",
        "setup",
        "setup_tensorflow",
        "setup_torch_DDP",
        "setup_torch_distributed",
        "summarize_dict",
        "wrap_with_ddp",
        "wrap_with_fsdp",
        "wrap_with_fsdp2",
    ),
    "mesh": ("axis", "coordinate", "degree", "fsdp_mesh", "get_mesh", "init_mesh"),
    "meta_init": ("materialize",),
    "parallel_groups": (
        "get_context_parallel_group",
        "get_context_parallel_rank",
        "get_context_parallel_world_size",
        "get_data_parallel_group",
        "get_data_parallel_rank",
        "get_data_parallel_world_size",
        "get_pipeline_parallel_group",
        "get_pipeline_parallel_rank",
        "get_pipeline_parallel_world_size",
        "get_tensor_parallel_group",
        "get_tensor_parallel_rank",
        "get_tensor_parallel_world_size",
    ),
    "peaks": ("peak_flops",),
    "seeds": ("data_seed", "seed_dropout", "seed_everything"),
    "tensor_parallel": ("check_divisible", "llama_plan", "loss_parallel"),
    "timeouts": ("set_timeout",),
    "timing": ("timeit", "timeitlogit"),
    "weighting": ("accumulating", "scale_loss"),
    "wrap": ("wrap_model",),
}
_OTHERS = {"log": ("get_logger",), "track": ("setup_wandb", "verify_wandb")}  # names that older code takes from here
_HOME_OF = {
    **{name: f"dist.{home}" for home, names in _NAMES.items() for name in names},
    **{name: home for home, names in _OTHERS.items() for name in names},
}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOME_OF:
        raise AttributeError(f"module 'ezpz.dist' has no attribute {name!r}")
    return getattr(import_module(f"ezpz.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
