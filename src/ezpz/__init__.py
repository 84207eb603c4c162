"""Start distributed PyTorch the same way everywhere, and tell the truth about what happened.

Every public name below is imported when it is first used (PEP 562), so that ``import ezpz`` costs milliseconds and
loads neither torch nor numpy. Editors complete the names through the ``TYPE_CHECKING`` block.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would double the cost of this import; type checkers know this spelling
if TYPE_CHECKING:
    from ezpz.cluster import Allocation as Allocation
    from ezpz.cluster import detect as detect
    from ezpz.dist import accumulating as accumulating
    from ezpz.dist import all_ranks_agree as all_ranks_agree
    from ezpz.dist import all_reduce as all_reduce
    from ezpz.dist import axis as axis
    from ezpz.dist import barrier as barrier
    from ezpz.dist import breakpoint as breakpoint  # noqa: A004  # the name that users know
    from ezpz.dist import broadcast as broadcast
    from ezpz.dist import check as check
    from ezpz.dist import check_divisible as check_divisible
    from ezpz.dist import cleanup as cleanup
    from ezpz.dist import clip_grad_norm_ as clip_grad_norm_
    from ezpz.dist import coordinate as coordinate
    from ezpz.dist import data_seed as data_seed
    from ezpz.dist import degree as degree
    from ezpz.dist import device_name as device_name
    from ezpz.dist import empty_cache as empty_cache
    from ezpz.dist import fsdp_mesh as fsdp_mesh
    from ezpz.dist import gather_objects as gather_objects
    from ezpz.dist import get_context_parallel_group as get_context_parallel_group
    from ezpz.dist import get_context_parallel_rank as get_context_parallel_rank
    from ezpz.dist import get_context_parallel_world_size as get_context_parallel_world_size
    from ezpz.dist import get_cpus_per_node as get_cpus_per_node
    from ezpz.dist import get_data_parallel_group as get_data_parallel_group
    from ezpz.dist import get_data_parallel_rank as get_data_parallel_rank
    from ezpz.dist import get_data_parallel_world_size as get_data_parallel_world_size
    from ezpz.dist import get_device_properties as get_device_properties
    from ezpz.dist import get_dist_info as get_dist_info
    from ezpz.dist import get_gpus_per_node as get_gpus_per_node
    from ezpz.dist import get_hostname as get_hostname
    from ezpz.dist import get_local_rank as get_local_rank
    from ezpz.dist import get_machine as get_machine
    from ezpz.dist import get_max_memory_allocated as get_max_memory_allocated
    from ezpz.dist import get_max_memory_reserved as get_max_memory_reserved
    from ezpz.dist import get_mesh as get_mesh
    from ezpz.dist import get_node_index as get_node_index
    from ezpz.dist import get_nodes_from_hostfile as get_nodes_from_hostfile
    from ezpz.dist import get_num_nodes as get_num_nodes
    from ezpz.dist import get_pipeline_parallel_group as get_pipeline_parallel_group
    from ezpz.dist import get_pipeline_parallel_rank as get_pipeline_parallel_rank
    from ezpz.dist import get_pipeline_parallel_world_size as get_pipeline_parallel_world_size
    from ezpz.dist import get_rank as get_rank
    from ezpz.dist import get_scheduler as get_scheduler
    from ezpz.dist import get_tensor_parallel_group as get_tensor_parallel_group
    from ezpz.dist import get_tensor_parallel_rank as get_tensor_parallel_rank
    from ezpz.dist import get_tensor_parallel_world_size as get_tensor_parallel_world_size
    from ezpz.dist import get_timestamp as get_timestamp
    from ezpz.dist import get_torch_backend as get_torch_backend
    from ezpz.dist import get_torch_device as get_torch_device
    from ezpz.dist import get_torch_device_type as get_torch_device_type
    from ezpz.dist import get_world_size as get_world_size
    from ezpz.dist import get_world_size_in_use as get_world_size_in_use
    from ezpz.dist import get_world_size_total as get_world_size_total
    from ezpz.dist import init_deepspeed as init_deepspeed
    from ezpz.dist import init_mesh as init_mesh
    from ezpz.dist import is_bf16_supported as is_bf16_supported
    from ezpz.dist import llama_plan as llama_plan
    from ezpz.dist import load_ds_config as load_ds_config
    from ezpz.dist import log_dict_as_bulleted_list as log_dict_as_bulleted_list
    from ezpz.dist import loss_parallel as loss_parallel
    from ezpz.dist import make_event as make_event
    from ezpz.dist import make_optimizer as make_optimizer
    from ezpz.dist import materialize as materialize
    from ezpz.dist import max_memory_allocated as max_memory_allocated
    from ezpz.dist import memory_allocated as memory_allocated
    from ezpz.dist import peak_flops as peak_flops
    from ezpz.dist import print_dist_setup as print_dist_setup
    from ezpz.dist import query_environment as query_environment
    from ezpz.dist import reset_peak_memory as reset_peak_memory
    from ezpz.dist import scale_loss as scale_loss
    from ezpz.dist import seed_dropout as seed_dropout
    from ezpz.dist import seed_everything as seed_everything
    from ezpz.dist import set_timeout as set_timeout
    from ezpz.dist import setup as setup
    from ezpz.dist import setup_tensorflow as setup_tensorflow
    from ezpz.dist import setup_torch as setup_torch
    from ezpz.dist import setup_torch_DDP as setup_torch_DDP
    from ezpz.dist import setup_torch_distributed as setup_torch_distributed
    from ezpz.dist import summarize_dict as summarize_dict
    from ezpz.dist import synchronize as synchronize
    from ezpz.dist import timeit as timeit
    from ezpz.dist import timeitlogit as timeitlogit
    from ezpz.dist import total_memory as total_memory
    from ezpz.dist import wrap_model as wrap_model
    from ezpz.dist import wrap_with_ddp as wrap_with_ddp
    from ezpz.dist import wrap_with_fsdp as wrap_with_fsdp
    from ezpz.dist import wrap_with_fsdp2 as wrap_with_fsdp2
    from ezpz.errors import EzpzError as EzpzError
    from ezpz.log import get_logger as get_logger
    from ezpz.progress import heartbeat as heartbeat
    from ezpz.track import History as History
    from ezpz.track import add_profile_option as add_profile_option
    from ezpz.track import histogram as histogram
    from ezpz.track import profile as profile
    from ezpz.track import setup_wandb as setup_wandb
    from ezpz.track import verify_wandb as verify_wandb

__version__ = "0.1.0"

_HOMES = {
    "cluster": ("Allocation", "detect"),
    "dist": (
        "accumulating",
        "all_ranks_agree",
        "all_reduce",
        "axis",
        "barrier",
        "breakpoint",
        "broadcast",
        "check",
        "check_divisible",
        "cleanup",
        "clip_grad_norm_",
        "coordinate",
        "data_seed",
        "degree",
        "device_name",
        "empty_cache",
        "fsdp_mesh",
        "gather_objects",
        "get_context_parallel_group",
        "get_context_parallel_rank",
        "get_context_parallel_world_size",
        "get_cpus_per_node",
        "get_data_parallel_group",
        "get_data_parallel_rank",
        "get_data_parallel_world_size",
        "get_device_properties",
        "get_dist_info",
        "get_gpus_per_node",
        "get_hostname",
        "get_local_rank",
        "get_machine",
        "get_max_memory_allocated",
        "get_max_memory_reserved",
        "get_mesh",
        "get_node_index",
        "get_nodes_from_hostfile",
        "get_num_nodes",
        "get_pipeline_parallel_group",
        "get_pipeline_parallel_rank",
        "get_pipeline_parallel_world_size",
        "get_rank",
        "get_scheduler",
        "get_tensor_parallel_group",
        "get_tensor_parallel_rank",
        "get_tensor_parallel_world_size",
        "get_timestamp",
        "get_torch_backend",
        "get_torch_device",
        "get_torch_device_type",
        "get_world_size",
        "get_world_size_in_use",
        "get_world_size_total",
        "init_deepspeed",
        "init_mesh",
        "is_bf16_supported",
        "llama_plan",
        "load_ds_config",
        "log_dict_as_bulleted_list",
        "loss_parallel",
        "make_event",
        "make_optimizer",
        "materialize",
        "max_memory_allocated",
        "memory_allocated",
        "peak_flops",
        "print_dist_setup",
        "query_environment",
        "reset_peak_memory",
        "scale_loss",
        "seed_dropout",
        "seed_everything",
        "set_timeout",
        "setup",
        "setup_tensorflow",
        "setup_torch",
        "setup_torch_DDP",
        "setup_torch_distributed",
        "summarize_dict",
        "synchronize",
        "timeit",
        "timeitlogit",
        "total_memory",
        "wrap_model",
        "wrap_with_ddp",
        "wrap_with_fsdp",
        "wrap_with_fsdp2",
    ),
    "errors": ("EzpzError",),
    "log": ("get_logger",),
    "progress": ("heartbeat",),
    "track": ("History", "add_profile_option", "histogram", "profile", "setup_wandb", "verify_wandb"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = (
    "checkpoint",
    "cluster",
    "dist",
    "distributed",
    "errors",
    "examples",
    "launch",
    "log",
    "models",
    "progress",
    "ranks",
    "track",
    "train",
)

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # a list at run time; editors read the block above


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _HOME_OF:
        value: object = getattr(import_module(f"ezpz.{_HOME_OF[name]}"), name)
    elif name in _PACKAGES:
        value = import_module(f"ezpz.{name}")
    else:
        raise AttributeError(f"module 'ezpz' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
