from ezpz.compat.dist_names import flatten_device_mesh_safe as flatten_device_mesh_safe
from ezpz.compat.dist_names import get_hostfile_with_fallback as get_hostfile_with_fallback
from ezpz.compat.dist_names import get_max_memory_allocated as get_max_memory_allocated
from ezpz.compat.dist_names import get_max_memory_reserved as get_max_memory_reserved, get_timestamp as get_timestamp
from ezpz.compat.dist_names import init_deepspeed as init_deepspeed, init_device_mesh_safe as init_device_mesh_safe
from ezpz.compat.dist_names import setup as setup, setup_mlflow as setup_mlflow, setup_tensorflow as setup_tensorflow
from ezpz.compat.dist_names import setup_torch_DDP as setup_torch_DDP
from ezpz.compat.dist_names import setup_torch_distributed as setup_torch_distributed, summarize_dict as summarize_dict
from ezpz.compat.dist_names import wrap_model_for_ddp as wrap_model_for_ddp, wrap_model_for_fsdp as wrap_model_for_fsdp
from ezpz.compat.dist_names import wrap_model_for_fsdp2 as wrap_model_for_fsdp2, wrap_with_ddp as wrap_with_ddp
from ezpz.compat.dist_names import wrap_with_fsdp as wrap_with_fsdp, wrap_with_fsdp2 as wrap_with_fsdp2
from ezpz.compat.dist_names import write_hostfile_from_list_of_hosts as write_hostfile_from_list_of_hosts
from ezpz.compat.dist_names import write_localhost_to_hostfile as write_localhost_to_hostfile
from ezpz.compat.module_names import TORCH_DTYPES_MAP as TORCH_DTYPES_MAP, check as check
from ezpz.compat.module_names import get_memory_metrics as get_memory_metrics
from ezpz.dist.adamw import decay_groups as decay_groups, make_adamw as make_adamw
from ezpz.dist.backend import get_torch_backend as get_torch_backend
from ezpz.dist.clip import clip_grad_norm_ as clip_grad_norm_
from ezpz.dist.collectives import all_ranks_agree as all_ranks_agree, all_reduce as all_reduce, barrier as barrier
from ezpz.dist.collectives import broadcast as broadcast, gather_objects as gather_objects, set_timeout as set_timeout
from ezpz.dist.debugger import breakpoint as breakpoint
from ezpz.dist.deepspeed import load_ds_config as load_ds_config
from ezpz.dist.device import device_name as device_name, empty_cache as empty_cache
from ezpz.dist.device import get_device_properties as get_device_properties, get_torch_device as get_torch_device
from ezpz.dist.device import get_torch_device_type as get_torch_device_type, is_bf16_supported as is_bf16_supported
from ezpz.dist.device import make_event as make_event, max_memory_allocated as max_memory_allocated
from ezpz.dist.device import memory_allocated as memory_allocated, reset_peak_memory as reset_peak_memory
from ezpz.dist.device import synchronize as synchronize, total_memory as total_memory
from ezpz.dist.ending import cleanup as cleanup
from ezpz.dist.info import get_dist_info as get_dist_info, log_dict_as_bulleted_list as log_dict_as_bulleted_list
from ezpz.dist.info import print_dist_setup as print_dist_setup
from ezpz.dist.job_around import get_cpus_per_node as get_cpus_per_node, get_gpus_per_node as get_gpus_per_node
from ezpz.dist.job_around import get_hostname as get_hostname, get_local_rank as get_local_rank
from ezpz.dist.job_around import get_machine as get_machine
from ezpz.dist.job_around import get_node_index as get_node_index, get_nodes_from_hostfile as get_nodes_from_hostfile
from ezpz.dist.job_around import get_num_nodes as get_num_nodes, get_rank as get_rank, get_scheduler as get_scheduler
from ezpz.dist.job_around import get_world_size as get_world_size, get_world_size_in_use as get_world_size_in_use
from ezpz.dist.job_around import get_world_size_total as get_world_size_total, query_environment as query_environment
from ezpz.dist.mesh import axis as axis, coordinate as coordinate, degree as degree, fsdp_mesh as fsdp_mesh
from ezpz.dist.mesh import get_mesh as get_mesh, init_mesh as init_mesh
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
from ezpz.dist.seeds import data_seed as data_seed, seed_dropout as seed_dropout, seed_everything as seed_everything
from ezpz.dist.sharding import make_optimizer as make_optimizer
from ezpz.dist.setup_rank import setup_torch as setup_torch
from ezpz.dist.tensor_parallel import check_divisible as check_divisible, llama_plan as llama_plan
from ezpz.dist.tensor_parallel import loss_parallel as loss_parallel
from ezpz.dist.timing import timeit as timeit, timeitlogit as timeitlogit
from ezpz.dist.weighting import accumulating as accumulating, scale_loss as scale_loss
from ezpz.dist.wrap import wrap_model as wrap_model
from ezpz.log import get_logger as get_logger
from ezpz.track import setup_wandb as setup_wandb, verify_wandb as verify_wandb
