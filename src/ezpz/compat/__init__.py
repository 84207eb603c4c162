"""Answer for names and modules of the older package that are not here: say what to use instead.

Older names that work are in stubs: those of `ezpz` and `ezpz.dist` in dist/__init__.pyi, those of an older module, such
as `ezpz.history`, in the stub beside its file. What has no like today is in `dist_names` and `module_names`, which new
code does not need. tests/dist/test_public_names.py lists who uses which name.
"""

from __future__ import annotations

from ezpz.errors import did_you_mean

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import NoReturn

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
    "text_baselines": "what counting reaches on Shakespeare, in docs/data.md",
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
# Module of older code whose name a package of today has -> what to use.
OTHER_NOW = {"ezpz.jobs": _JOBS}
# Module of older code that is no more -> what to use; a file of its name in gone/ answers for it.
GONE = {
    "ezpz.data": "the loaders of ezpz.train, and ezpz.prepare for your own data",
    "ezpz.doctor": "`ezpz doctor`",
    "ezpz.failover": "`launch --attempts N`",
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
    elif module in OTHER_NOW:
        text += f": use {OTHER_NOW[module]}"
    else:
        text += (
            did_you_mean(name, known).replace(" Did", ". Did")
            or ': the page "Older scripts" of the documentation lists what to use instead'
        )
    from opcode import opmap

    if frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        raise ImportError(text, name=name)
    raise AttributeError(text, name=name)
