"""Names that public code takes from `ezpz` and `ezpz.dist`, and how it calls them: each is here and takes them so.

A row is: where the name is taken from, the name, one call as that project writes it, the project. Values stand for
those of the project. What is left out, and what to use instead, stands in docs/dist.md.
"""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ezpz
import ezpz.dist

MEGATRON = "argonne-lcf/Megatron-DeepSpeed"
VIT = "Eugene29/Megatron-DeepSpeed_ViT"
MMM = "saforem2/mmm"
WORDPLAY = "saforem2/wordplay"
NGPT = "saforem2/ngpt"
L2HMC = "saforem2/l2hmc-qcd"
SWIFT = "stockeh/swift"
TITAN = "saforem2/torchtitan, experiments/ezpz"
GUIDES = "scripts after the older package's documentation and examples"


def call(*args, **kwargs):
    return args, kwargs


USES = [
    ("ezpz", "setup_torch", call("deepspeed"), f"{MEGATRON}, finetune_llama.py"),
    ("ezpz", "setup_torch", call(backend="DDP"), f"{MEGATRON}, hf_to_zero.py"),
    ("ezpz.dist", "setup_torch", call(backend="deepspeed", port="5432"), f"{MEGATRON}, pretrain_llama.py"),
    ("ezpz", "setup_torch", call(), f"{MEGATRON}, pretrain_gpt_alcf.py"),
    ("ezpz", "setup_torch", call(backend="deepspeed"), f"{VIT}, pretrain_vision_classify.py"),
    ("ezpz", "setup_torch", call("DDP", tensor_parallel_size=2, seed=7), f"{MMM}, examples/fsdp_tp.py"),
    ("ezpz", "setup_torch", call(seed=7, backend="DDP", port="2345"), f"{L2HMC}, __main__.py"),
    ("ezpz", "setup_torch", call(backend="DDP"), SWIFT),
    ("ezpz.distributed", "setup_torch", call(tensor_parallel_size=1, seed=0), TITAN),
    ("ezpz", "setup", call(framework="pytorch", backend="DDP", seed=7), f"{WORDPLAY}, __main__.py"),
    ("ezpz", "setup", call(backend="DDP", seed=7), f"{MMM}, examples/vit.py"),
    ("ezpz.dist", "setup", call(framework="pytorch", backend="deepspeed", seed=7), NGPT),
    ("ezpz", "setup_tensorflow", call("float32"), f"{L2HMC}, __main__.py"),
    ("ezpz", "setup_torch_distributed", call(backend="DDP", port="29500"), GUIDES),
    ("ezpz.dist", "setup_torch_DDP", call(port="2345", timeout=3600), GUIDES),
    ("ezpz.dist", "check", call(), GUIDES),
    ("ezpz", "cleanup", call(), GUIDES),
    ("ezpz", "get_rank", call(), f"{MEGATRON}, {MMM}, {WORDPLAY}, {SWIFT}"),
    ("ezpz.distributed", "get_rank", call(), TITAN),
    ("ezpz", "get_local_rank", call(), f"{MEGATRON}, {MMM}, {WORDPLAY}, {SWIFT}"),
    ("ezpz", "get_world_size", call(), f"{MEGATRON}, {MMM}, {WORDPLAY}, {SWIFT}"),
    ("ezpz.dist", "get_world_size", call(), f"{MEGATRON}, pretrain_llama.py"),
    ("ezpz", "get_world_size", call(in_use=True), GUIDES),
    ("ezpz", "get_world_size", call(total=True), GUIDES),
    ("ezpz", "get_torch_device", call(), f"{MEGATRON}, {MMM}, {WORDPLAY}, {SWIFT}"),
    ("ezpz", "get_torch_device", call(as_torch_device=False), f"{MMM}, examples/fsdp_tp.py"),
    ("ezpz", "get_torch_device", call(as_torch_device=True), SWIFT),
    ("ezpz", "get_torch_device_type", call(), f"{MEGATRON}, {MMM}, {SWIFT}"),
    ("ezpz.dist", "get_torch_device_type", call(), f"{MEGATRON}, {VIT}"),
    ("ezpz.distributed", "get_torch_device_type", call(), TITAN),
    ("ezpz", "get_torch_backend", call(), f"{MMM}, train.py"),
    ("ezpz.dist", "synchronize", call(), f"{MEGATRON}, megatron/training.py"),
    ("ezpz", "synchronize", call("cuda:0"), SWIFT),
    ("ezpz", "get_max_memory_allocated", call("cuda:0"), SWIFT),
    ("ezpz", "get_max_memory_reserved", call("cuda:0"), SWIFT),
    ("ezpz", "get_logger", call("train"), f"{MEGATRON}, {MMM}, {WORDPLAY}, {SWIFT}, {TITAN}"),
    ("ezpz", "timeitlogit", call(rank=0), f"{MEGATRON}, pretrain_gpt_alcf.py"),
    ("ezpz.dist", "timeitlogit", call(rank=0), f"{MEGATRON}, megatron/training.py"),
    ("ezpz", "timeitlogit", call(rank=0, verbose=False), f"{WORDPLAY}, trainer.py"),
    ("ezpz.dist", "timeit", call(print), GUIDES),
    ("ezpz", "breakpoint", call(0), f"{MEGATRON}, megatron/core/pipeline_parallel/schedules.py"),
    ("ezpz", "setup_wandb", call(project_name="p"), f"{MEGATRON}, {MMM}"),
    ("ezpz", "setup_wandb", call(project_name="p", config={}), f"{WORDPLAY}, {SWIFT}"),
    ("ezpz", "setup_wandb", call("p"), GUIDES),
    ("ezpz.dist", "setup_wandb", call(project_name="p", config={}), f"{NGPT}, {MEGATRON}, pretrain_llama.py"),
    ("ezpz", "verify_wandb", call(), GUIDES),
    ("ezpz.distributed", "verify_wandb", call(), TITAN),
    ("ezpz", "History", call(), f"{MMM}, {SWIFT}"),
    ("ezpz", "get_hostname", call(), f"{MEGATRON}, megatron/core/pipeline_parallel/schedules.py"),
    ("ezpz", "get_gpus_per_node", call(), f"{MEGATRON}, ALCF/helpers.sh"),
    ("ezpz", "get_machine", call(), SWIFT),
    ("ezpz.distributed", "get_machine", call(), TITAN),
    ("ezpz.dist", "get_node_index", call(), GUIDES),
    ("ezpz", "get_num_nodes", call(hostfile="hosts"), GUIDES),
    ("ezpz.dist", "get_nodes_from_hostfile", call("hosts"), GUIDES),
    ("ezpz.dist", "get_world_size_total", call(), GUIDES),
    ("ezpz.dist", "get_cpus_per_node", call(), GUIDES),
    ("ezpz", "get_scheduler", call(), GUIDES),
    ("ezpz", "get_dist_info", call(), GUIDES),
    ("ezpz", "get_dist_info", call(framework="pytorch", verbose=True), GUIDES),
    ("ezpz", "print_dist_setup", call(framework="pytorch"), GUIDES),
    ("ezpz.dist", "query_environment", call(), GUIDES),
    ("ezpz.dist", "log_dict_as_bulleted_list", call({}, name="CONFIG"), GUIDES),
    ("ezpz", "seed_everything", call(42), GUIDES),
    ("ezpz", "summarize_dict", call({}), MMM),
    ("ezpz", "load_ds_config", call("ds_config.yaml"), f"{WORDPLAY}, trainer.py"),
    ("ezpz", "get_timestamp", call(), GUIDES),
    ("ezpz", "get_timestamp", call("%d"), GUIDES),
    ("ezpz", "barrier", call(), GUIDES),
    ("ezpz.dist", "broadcast", call("x", root=0), GUIDES),
    ("ezpz", "wrap_model", call("model", use_fsdp=True, dtype="bf16"), GUIDES),
    ("ezpz", "wrap_model", call("model", use_fsdp=False), GUIDES),
    ("ezpz.dist", "wrap_with_ddp", call("model"), GUIDES),
    ("ezpz.dist", "init_deepspeed", call(), GUIDES),
    ("ezpz.dist", "barrier", call(implementation="mpi"), GUIDES),
    ("ezpz.dist", "all_reduce", call(1.0, implementation="torch"), GUIDES),
    ("ezpz", "wrap_model_for_ddp", call("model"), GUIDES),
    ("ezpz", "wrap_model_for_fsdp", call("model", dtype="bfloat16"), GUIDES),
    ("ezpz", "wrap_model_for_fsdp2", call("model", dtype="bf16", device_mesh=None), GUIDES),
    ("ezpz", "init_device_mesh_safe", call("cpu", (2, 1), mesh_dim_names=("dp", "tp")), GUIDES),
    ("ezpz.distributed", "flatten_device_mesh_safe", call("mesh", "dp", device_type="xpu"), GUIDES),
    ("ezpz", "write_localhost_to_hostfile", call("hosts"), GUIDES),
    ("ezpz", "write_hostfile_from_list_of_hosts", call(["n1"], "hosts"), GUIDES),
    ("ezpz", "get_hostfile_with_fallback", call(), GUIDES),
    ("ezpz", "get_memory_metrics", call("cuda", prefix="train/"), GUIDES),
    ("ezpz.history", "History", call(keys=["loss"], jsonl_path="m.jsonl", report_dir="r"), GUIDES),
    ("ezpz.history", "StopWatch", call("forward", wbtag="t", iter=3, commit=False), GUIDES),
    ("ezpz.history", "summarize_dict", call({}, precision=3), L2HMC),
    ("ezpz.utils", "model_summary", call("model", verbose=False, depth=2), GUIDES),
    ("ezpz.flops", "try_estimate", call("model", input_shape=(2, 3)), GUIDES),
    ("ezpz.flops", "compute_mfu", call(1e9, 0.1), GUIDES),
    ("ezpz.profile", "get_context_manager", call(rank=0, outdir="out"), MEGATRON),
    (
        "ezpz.profile",
        "get_profiling_context",
        call("torch", wait=1, warmup=1, active=3, repeat=1, rank_zero_only=True),
        GUIDES,
    ),
    ("ezpz.models.minimal", "SequentialLinearNet", call(input_dim=2, output_dim=1, sizes=[3]), GUIDES),
    ("ezpz.configs", "TrainConfig", call(seed=1, backend="DDP", other=2), f"{NGPT}, Hydra's _target_"),
    ("ezpz.log", "get_file_logger", call("name", level="INFO", fname="f"), GUIDES),
]


def test_a_name_that_public_code_uses_is_here_and_takes_its_arguments(subtests):
    for place, name, use, project in USES:
        with subtests.test(f"{place}.{name}", use=use, project=project):
            value = getattr(import_module(place), name)
            args, kwargs = use
            inspect.signature(value).bind(*args, **kwargs)


def test_no_file_of_the_package_hides_a_name_that_it_offers():
    """Importing `ezpz.dist.setup_rank`, the file, would make it what `from ezpz.dist import setup` gives."""
    folder = Path(ezpz.dist.__file__).parent
    assert {path.stem for path in folder.glob("*.py")}.isdisjoint(ezpz.dist.__all__)
    # The module `ezpz.profile` can be called, and does then what the function of that name did.
    assert {path.stem for path in folder.parent.iterdir()} & set(ezpz.__all__) <= {"profile"}


def test_what_is_offered_at_the_top_is_the_same_thing_in_dist():
    for name in set(ezpz.__all__) & set(ezpz.dist.__all__):
        assert getattr(ezpz, name) is getattr(ezpz.dist, name)


OLDER = """
import ezpz as ez
from ezpz.dist import setup, setup_torch, setup_wandb, get_world_size, cleanup, seed_everything, query_environment
rank = ez.setup_torch("deepspeed", port="5432")
assert (rank, setup(framework="pytorch", backend="DDP", seed=1)) == (0, 0)
assert ez.setup_torch_distributed(backend="DDP", port="29500") == dict(world_size=1, rank=0, local_rank=0)
assert ez.dist.get_torch_device_type() == "cpu"
import torch
total = torch.ones(1)
torch.distributed.all_reduce(total)
assert ez.distributed.get_rank() == 0 and total.item() == get_world_size() == 1
try:
    ez.setup_tensorflow()
except ez.EzpzError as error:
    print(error)
cleanup()
"""


@pytest.mark.slow
def test_an_older_scripts_lines_run(run_cli, clean_env):
    done = run_cli([sys.executable, "-c", OLDER], {**clean_env, "TORCH_DEVICE": "cpu"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ezpz starts PyTorch" in done.stdout
