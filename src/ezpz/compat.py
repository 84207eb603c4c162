"""Offer the names that older code uses, each working on today's functions; new code does not need them.

    rank = ezpz.setup(framework="pytorch", backend="DDP", seed=7)     wordplay, ngpt
    rank = ezpz.setup_torch("deepspeed", port="5432")                 Megatron-DeepSpeed: what `split_backend` is for

`ezpz` and `ezpz.dist` hand them out. `ezpz.dist.arguments` reads what ``backend`` means.
tests/dist/test_public_names.py lists who uses which name.

`MODULES` is the table of the modules that older code imports, such as ``ezpz.history``: each is a file of a few lines
that calls `offer`. `INSTEAD` answers for names that are not here, `GONE` for modules. What has no like today is in
`ezpz.compat_names`.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime, timedelta
from importlib import import_module

from ezpz.dist.arguments import check_framework, split_backend, whole_port
from ezpz.errors import MachineError, UsageError, did_you_mean
from ezpz.log import get_logger

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FrameType
    from typing import Any, NoReturn

# Module of older code -> file of today -> names in it, `older=today` where they differ.
MODULES: dict[str, dict[str, str]] = {
    "ezpz.history": {
        "ezpz.track": "History",
        "ezpz.compat": "get_timestamp summarize_dict",
        "ezpz.compat_names": "StopWatch WANDB_DISABLED format_pair",
        "ezpz.track.compat_history": "grab_tensor",
    },
    "ezpz.tp": {
        "torch": "tdist=distributed",
        "ezpz.dist": (
            "get_context_parallel_group get_context_parallel_rank get_context_parallel_world_size "
            "get_data_parallel_group get_data_parallel_rank get_data_parallel_world_size get_pipeline_parallel_group "
            "get_pipeline_parallel_rank get_pipeline_parallel_world_size get_tensor_parallel_group "
            "get_tensor_parallel_rank get_tensor_parallel_world_size"
        ),
        "ezpz.compat_names": (
            "destroy_tensor_parallel divide_and_check_no_remainder ensure_divisibility get_context_parallel_ranks "
            "get_data_parallel_ranks get_pipeline_parallel_ranks get_tensor_parallel_ranks "
            "get_tensor_parallel_src_rank initialize_tensor_parallel tensor_parallel_is_initialized"
        ),
    },
    "ezpz.utils": {
        "ezpz.dist": "breakpoint",
        "ezpz.compat": "get_max_memory_allocated get_max_memory_reserved get_timestamp summarize_dict",
        "ezpz.compat_names": (
            "Color NoColor dataset_from_h5pyfile dict_from_h5pyfile format_pair "
            "get_bf16_config_json get_current_memory_allocated get_current_memory_reserved "
            "get_flops_profiler_config_json get_fp16_config_json get_memory_metrics get_peak_flops=peak_of_name "
            "model_summary normalize reset_peak_memory_stats"
        ),
        "ezpz.track.compat_history": "dataset_to_h5pyfile grab_tensor save_dataset",
    },
    "ezpz.configs": {
        "ezpz.dist": "get_scheduler load_ds_config",
        "ezpz.compat_names": (
            "BIN_DIR CONF_DIR GETJOBENV HERE LOGS_DIR OUTPUTS_DIR PROJECT_DIR PROJECT_ROOT PathLike SAVEJOBENV "
            "ScalarLike TrainArgs TrainConfig UTILS ViTConfig WORKING_DIR cmd_exists=command_exists command_exists "
            "git_ds_info print_config timmViTConfig"
        ),
    },
    "ezpz.flops": {
        "ezpz.dist": "get_device_name=device_name",
        "ezpz.compat_names": (
            "compute_mfu estimate_model_flops estimate_model_flops_fake=estimate_model_flops "
            "get_peak_flops=peak_of_name try_estimate try_estimate_fake=try_estimate"
        ),
    },
    "ezpz.tracker": {"ezpz.track.trackers.own_backends": "TrackerBackend register_backend"},
    "ezpz.profile": {
        "ezpz.track": "Profile add_profile_option",
        "ezpz.compat_names": (
            "PyInstrumentProfiler get_context_manager get_profiling_context get_pytorch_profiler=get_torch_profiler "
            "get_torch_profiler"
        ),
    },
    "ezpz.log": {
        "logging": "getLogger",
        "rich.console": "Console",
        "rich.logging": "RichHandler",
        "ezpz.compat_names": "STYLES get_console get_file_logger get_rich_logger=plain_logger silence_noisy_loggers",
    },
    "ezpz.log.handler": {
        "rich.logging": "EzpzHandler=RichHandler OriginalRichHandler=RichHandler RichHandler",
    },
    "ezpz.log.config": {"ezpz.compat_names": "NO_COLOR STYLES use_colored_logs"},
    "ezpz.log.console": {
        "rich.console": "Console",
        "ezpz.compat_names": "get_console is_interactive use_colored_logs",
    },
    "ezpz.examples": {"ezpz.compat_names": "get_example_outdir"},
    "ezpz.models.minimal": {"ezpz.models.mlp": "SequentialLinearNet"},
}

_TP = "ezpz.init_mesh(tp=…) and wrap_model(tp_plan=…)"
_DEEPSPEED = 'a JSON file in DeepSpeed\'s own words, read by ezpz.load_ds_config, or wrap_model(model, "deepspeed")'
_MICRO = "ezpz.accumulating(model, last=…) around forward and backward"
_STATE = 'ezpz.checkpoint.Checkpoints(…, state={"data": loader})'
_GATHER = "ezpz.train.evaluate, or ezpz.gather_objects of the first loader.samples of a batch"
# Name of older code, with or without its module -> what to use.
INSTEAD = {
    "BaseHistory": "ezpz.History",
    "ColumnParallelLinear": _TP,
    "DistributedPdb": "ezpz.breakpoint(rank)",
    "DummyTqdmFile": "tqdm.write",
    "FSDP_SHARDING_STRATEGIES": 'wrap_model(model, "ddp" | "fsdp" | "hsdp" | "zero1")',
    "ForkedPdb": "ezpz.breakpoint(rank)",
    "HfDataTrainingArguments": "python3 -m ezpz.examples.llm, or your own dataclass",
    "HfModelArguments": "python3 -m ezpz.examples.llm, or your own dataclass",
    "HfProfileArguments": "--profile of the trainers, ezpz.add_profile_option",
    "MLflowBackend": 'History(trackers="mlflow")',
    "NullTracker": 'History(trackers="")',
    "ParallelEmbedding": _TP,
    "RowParallelLinear": _TP,
    "TorchDistributedEnvironment": "ezpz.setup_torch()",
    "Tracker": "History(trackers=…); ezpz.track.Tracker is what an own one answers",
    "WandbBackend": 'History(trackers="wandb")',
    "CSVBackend": 'History(trackers="csv")',
    "ZeroConfig": _DEEPSPEED,
    "all_gather_object": "ezpz.gather_objects",
    "build_mpiexec_thetagpu": "ezpz launch",
    "check_for_tarball": "a venv on a file system that all hosts see, or /tmp filled by your job script",
    "create_tarball": "tar",
    "format_compact_summary": "what History.update returns",
    "format_memory_summary": "what History.update returns",
    "get_cobalt_nodefile": "$HOSTFILE of ezpz_setup_job",
    "get_cobalt_resources": "ezpz where",
    "get_deepspeed_adamw_optimizer_config_json": _DEEPSPEED,
    "get_deepspeed_config_json": _DEEPSPEED,
    "get_deepspeed_warmup_decay_scheduler_config_json": _DEEPSPEED,
    "get_deepspeed_zero_config_json": _DEEPSPEED,
    "get_device": "ezpz.device()",
    "get_free_port": "ezpz.setup_torch(), which agrees on one",
    "get_git_branch_name": "run.json of a run, which holds the commit",
    "get_logging_config": "ezpz.get_logger",
    "init_process_group": "ezpz.setup_torch()",
    "make_hostfile_from_slurm_env": "$HOSTFILE of ezpz_setup_job",
    "make_tarfile": "tar",
    "plot_dataset": "ezpz plot",
    "print_config_tree": "rich.print",
    "print_json": "rich.print_json",
    "profiling_context_from_args": "ezpz.add_profile_option and ezpz.profile(args.profile)",
    "resolve_fsdp_strategy": 'wrap_model(model, "fsdp" | "hsdp", reshard_after_forward=…)',
    "run_bash_command": "subprocess.run",
    "run_ddp": "ezpz launch",
    "setup_torch_env": "ezpz.setup_torch()",
    "setup_tracker": "History(trackers=…)",
    "tplot": "ezpz plot",
    "tplot_dict": "ezpz plot",
    "write_deepspeed_zero12_auto_config": _DEEPSPEED,
    "write_deepspeed_zero3_auto_config": _DEEPSPEED,
    "write_generic_deepspeed_config": _DEEPSPEED,
    # What who knows accelerate looks for; docs/data.md has them in a table.
    "Accelerator": "ezpz.setup_torch() and ezpz.prepare(model, optimizer, loader)",
    "accumulate": _MICRO,
    "autocast": "dtype= of prepare and wrap_model",
    "backward": "(loss * loader.weight).backward()",
    "gather": _GATHER,
    "gather_for_metrics": _GATHER,
    "init_trackers": 'History(trackers="wandb")',
    "is_main_process": "ezpz.get_rank() == 0",
    "load_state": _STATE,
    "no_sync": _MICRO,
    "save_state": _STATE,
    "set_seed": "ezpz.setup_torch(seed=…)",
    "skip_first_batches": _STATE,
    "unwrap_model": "torch.distributed.checkpoint.state_dict.get_model_state_dict, whose names are the plain model's",
    "wait_for_everyone": "ezpz.barrier()",
}


_JOBS = "`ezpz where` and ezpz.get_dist_info(), in the shell ezpz_setup_job; no file in the home is written any more"
_PLOTS = "`ezpz plot`, and History's plot_all() and tplot_all()"
# Module of older code that is no more -> what to use; a file of its name in ezpz/gone answers for it.
GONE = {
    "ezpz.data": "the loaders of ezpz.train, and ezpz.prepare for your own data",
    "ezpz.doctor": "`ezpz doctor`",
    "ezpz.failover": "`launch --attempts N`",
    "ezpz.jobs": _JOBS,
    "ezpz.pbs": _JOBS,
    "ezpz.plot": _PLOTS,
    "ezpz.slurm": _JOBS,
    "ezpz.tinker": "the older package, or Tinker's own: fine-tuning as a service is another product",
    "ezpz.tplot": _PLOTS,
}


def refuse_module(module: str) -> NoReturn:
    """Answer the import of a module in `GONE`.

    Raises:
        ImportError: Always, with what to use.
    """
    raise ImportError(f"module {module!r} of the older ezpz is gone: use {GONE[module]}", name=module)


def offer(module: str) -> tuple[Callable[..., object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a module in `MODULES`; names are looked up when they are used.

    Args:
        module: ``__name__`` of the module.
    """
    home_of = {
        word.partition("=")[0]: (home, word.partition("=")[2] or word)
        for home, words in MODULES[module].items()
        for word in words.split()
    }

    def find(name: str, caller: FrameType | None = None) -> object:
        if name == "__all__":
            return sorted(home_of)
        if name not in home_of:
            refuse(module, name, home_of, caller or sys._getframe(1))  # noqa: SLF001  # it shows what the caller does
        home, today = home_of[name]
        value = getattr(import_module(home), today)
        setattr(sys.modules[module], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[module]), *home_of})


def refuse(module: str, name: str, known: Iterable[str], frame: FrameType) -> None:
    """Raise what a missing name of a module costs, with what to use instead of a name of older code.

    Args:
        module: The module that was asked.
        name: What it lacks.
        known: Names that it has, for a hint at a slip of the finger.
        frame: That of the caller. ``from module import name`` replaces the text of every AttributeError by its own.

    Raises:
        ImportError: In such an import.
        AttributeError: Everywhere else, so that ``hasattr`` works.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        raise AttributeError(text, name=name)
    if name in INSTEAD:
        text += f": use {INSTEAD[name]}"
    else:
        text += (
            did_you_mean(name, known).replace(" Did", ". Did")
            or ': the page "Older scripts" of the documentation lists what to use instead'
        )
    from opcode import opmap

    if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        raise ImportError(text, name=name)
    raise AttributeError(text, name=name)


def setup(  # noqa: PLR0917  # in the order of older code
    framework: str = "pytorch",
    backend: str = "DDP",
    port: str | int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    ngpus: int | None = None,
) -> int:
    """Make this process a rank, as `setup_torch` does.

    Args:
        framework: ``pytorch``.
        backend: As in `split_backend`.
        port: Port of rank 0's store.
        seed: As in `setup_torch`.
        precision: Never had an effect on PyTorch; a warning names it. Use ``wrap_model(dtype=…)``.
        ngpus: Likewise; the launcher decides.

    Returns:
        The rank.

    Raises:
        UsageError: Another framework, or an unusable backend or port.
    """
    check_framework(framework)
    idle = [f"{name}={value}" for name, value in (("precision", precision), ("ngpus", ngpus)) if value is not None]
    if idle:
        get_logger(__name__).warning(
            f"setup: {', '.join(idle)} has no effect; see wrap_model(dtype=…) and `launch --ppn`."
        )
    return _setup_torch(backend, port, seed=seed)


def setup_torch_distributed(
    backend: str = "DDP", port: str | int | None = None, timeout: str | float | timedelta | None = None, **more: Any
) -> dict[str, int]:
    """Make this process a rank and return ``world_size``, ``rank`` and ``local_rank``.

    Args:
        backend: As in `split_backend`.
        port: Port of rank 0's store, as a number or as text.
        timeout: Time limit of one collective, in seconds or as timedelta.
        more: Keywords of `setup_torch`.
    """
    from ezpz.dist.job import query_environment

    _setup_torch(backend, port, timeout=timeout if isinstance(timeout, timedelta | None) else float(timeout), **more)
    return query_environment()


def setup_torch_DDP(  # noqa: N802  # the name that older code imports
    port: str | int | None = None, timeout: str | float | timedelta | None = None, backend: str = "DDP"
) -> dict[str, int]:
    """Do as `setup_torch_distributed` does, with the port first."""
    return setup_torch_distributed(backend, port, timeout)


def setup_tensorflow(precision: str | None = None, ngpus: int | None = None) -> int:
    """Refuse TensorFlow, clearly.

    Raises:
        UsageError: Always.
    """
    del precision, ngpus
    check_framework("tensorflow")
    raise AssertionError  # check_framework has raised


def check(framework: str = "pytorch", backend: str = "DDP", port: str | int | None = None) -> int:
    """Set up and log one line per rank; `python3 -m ezpz.test_dist` checks more."""
    from ezpz.dist.info import print_dist_setup

    rank = setup(framework, backend, port)
    print_dist_setup()
    return rank


def init_deepspeed(**more: Any) -> None:
    """Call ``deepspeed.init_distributed``, which adopts the group that `setup_torch` has made.

    Args:
        more: Its keywords.

    Raises:
        MachineError: DeepSpeed cannot be imported.
    """
    try:
        deepspeed = import_module("deepspeed")
    except ImportError as error:
        raise MachineError(
            f"no DeepSpeed: {error} (from init_deepspeed); expected it beside torch. Run `pip install deepspeed`, or "
            "use DDP or FSDP."
        ) from None
    deepspeed.init_distributed(**more)


def wrap_with_ddp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "ddp", …)``."""
    return _wrap(model, "ddp", more)


def wrap_with_fsdp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", …)``: FSDP2, whose parameters are sharded one by one."""
    return _wrap(model, "fsdp", more)


def wrap_with_fsdp2(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", …)``."""
    return _wrap(model, "fsdp", more)


def wrap_model_for_ddp(model: Any, **more: Any) -> Any:
    """Return ``wrap_model(model, "ddp", …)``."""
    return _wrap(model, "ddp", more)


def wrap_model_for_fsdp(model: Any, dtype: str = "bfloat16", **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", dtype=…)``: FSDP2, whose parameters are sharded one by one."""
    return _wrap(model, "fsdp", {"dtype": dtype, **more})


def wrap_model_for_fsdp2(model: Any, dtype: str = "bfloat16", **more: Any) -> Any:
    """Return ``wrap_model(model, "fsdp", dtype=…)``."""
    return _wrap(model, "fsdp", {"dtype": dtype, **more})


def init_device_mesh_safe(
    device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None
) -> Any:
    """Return ``torch.distributed.init_device_mesh(…)``, on backends too that cannot split a group (Intel's xccl).

    `ezpz.init_mesh` does so by itself, checks the degrees and remembers the mesh.
    """
    from torch.distributed.device_mesh import init_device_mesh

    from ezpz.dist.mesh import new_groups

    with new_groups() as keep_device:
        mesh = init_device_mesh(str(device_type), tuple(mesh_shape), mesh_dim_names=mesh_dim_names)
        keep_device(mesh.get_all_groups())
    return mesh


def flatten_device_mesh_safe(submesh: Any, mesh_dim_name: str, *, device_type: str | None = None) -> Any:
    """Return several dimensions of a mesh as one, on backends too that cannot split a group (Intel's xccl)."""
    del device_type  # the mesh knows it
    from ezpz.dist.mesh import new_groups

    with new_groups() as keep_device:
        joined = submesh._flatten(mesh_dim_name)  # noqa: SLF001  # torch documents it under this name
        keep_device(joined.get_all_groups())
    return joined


def write_localhost_to_hostfile(hostfile: str | os.PathLike[str]) -> None:
    """Write this host's name into a host file.

    Raises:
        UsageError: The file cannot be written.
    """
    write_hostfile_from_list_of_hosts([import_module("ezpz.dist").get_hostname()], hostfile)


def write_hostfile_from_list_of_hosts(hosts: Iterable[str], hostfile: str | os.PathLike[str]) -> None:
    """Write a host file, one host per line.

    Raises:
        UsageError: The file cannot be written.
    """
    text = "".join(f"{host}\n" for host in hosts)
    try:
        with open(hostfile, "w", encoding="utf-8") as file:  # noqa: PTH123  # pathlib would cost every import of this
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"cannot write the host file {os.fspath(hostfile)}: {error.strerror} (from the call that names it); "
            "expected a folder that exists and has room. Name another file."
        ) from error


def get_hostfile_with_fallback(hostfile: str | os.PathLike[str] | None = None) -> Any:
    """Return the path of a host file: the one that is given or that ``HOSTFILE`` or ``PBS_NODEFILE`` names.

    Returns:
        A ``pathlib.Path``. Without any, ``hostfile`` in the current folder, written now with the hosts of this job.

    Raises:
        UsageError: It cannot be written.
    """
    from pathlib import Path

    named = hostfile or os.environ.get("HOSTFILE") or os.environ.get("PBS_NODEFILE")
    if named:
        return Path(named)
    path = Path("hostfile").absolute()
    write_hostfile_from_list_of_hosts(import_module("ezpz.dist.job").job()[2], path)
    return path


def setup_mlflow(project_name: str | None = None, **more: Any) -> None:
    """Say, once, that a history itself copies its rows to MLflow; there is no run to return.

    Args:
        project_name: The experiment; ``MLFLOW_EXPERIMENT_NAME`` names it here.
        more: Ignored.
    """
    del more
    name = f"MLFLOW_EXPERIMENT_NAME={project_name} " if project_name else ""
    get_logger(__name__).warning(
        f'setup_mlflow starts no run: History(trackers="mlflow"), or {name}EZPZ_TRACKERS=mlflow, copies rows there.'
    )


def get_max_memory_allocated(device: Any = None) -> int:
    """Return ``max_memory_allocated`` in bytes."""
    most: int = import_module("ezpz.dist.accelerator").max_memory_allocated(device)
    return most


def get_max_memory_reserved(device: Any = None) -> int:
    """Return the most bytes that torch's allocator held on the device; on one without an allocator what was
    allocated.
    """
    import torch

    from ezpz.dist.device import get_torch_device_type

    ask = getattr(getattr(torch, get_torch_device_type(), None), "max_memory_reserved", None)
    return get_max_memory_allocated(device) if ask is None else int(ask(device))


def get_timestamp(fstr: str | None = None) -> str:
    """Return this host's local time as ``2026-11-20-162001``, or in another format of ``strftime``."""
    return datetime.now().astimezone().strftime(fstr or "%Y-%m-%d-%H%M%S")


def summarize_dict(d: Mapping[str, object], precision: int = 6, keys_to_skip: Iterable[str] | None = None) -> str:
    """Return ``step=10 loss=0.047000``: floats with ``precision`` digits after the point, everything else as it is."""
    summarize = import_module("ezpz.track.compat_history").summarize
    skipped = set(keys_to_skip or ())
    text: str = summarize({key: value for key, value in d.items() if key not in skipped}, precision)
    return text


def _setup_torch(backend: str, port: str | int | None, **more: Any) -> int:
    from ezpz.dist.startup import setup_torch

    collective, _ = split_backend(backend)
    return setup_torch(backend=collective, port=whole_port(port), **more)


def _wrap(model: Any, strategy: str, more: dict[str, Any]) -> Any:
    # Older code names the mesh `device_mesh`.
    known = {("mesh" if name == "device_mesh" else name): value for name, value in more.items()}
    return import_module("ezpz.dist.wrap").wrap_model(model, strategy, **known)
