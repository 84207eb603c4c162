"""Hold what older scripts import and today's ezpz has no like of, each in a few lines on what there is.

The stub of an older module, such as history.pyi, says which of them it offers; new code needs none. Libraries are
imported inside functions. Constants of older modules that would look at the machine or import a library are looked up
when they are first asked for, by ``__getattr__`` below.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ezpz.errors import MachineError, UsageError
from ezpz.log import get_logger
from ezpz.ranks import from_environ
from ezpz.track.older_calls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

# ezpz.configs

PathLike = Union[str, "os.PathLike[str]", Path]
ScalarLike = int | float | bool
HERE = Path(__file__).parents[1]
PROJECT_DIR = PROJECT_ROOT = HERE.parent.parent
BIN_DIR = HERE / "bin"
CONF_DIR = HERE / "conf"
UTILS, SAVEJOBENV, GETJOBENV = BIN_DIR / "utils.sh", BIN_DIR / "savejobenv", BIN_DIR / "getjobenv"


def __getattr__(name: str) -> object:
    values: dict[str, Callable[[], object]] = {
        "WORKING_DIR": Path.cwd,
        "LOGS_DIR": lambda: Path.cwd() / "logs",
        "OUTPUTS_DIR": lambda: Path.cwd() / "outputs",
        "NO_COLOR": lambda: not use_colored_logs(),
        "WANDB_DISABLED": lambda: not import_module("ezpz.track").verify_wandb(),
        "TORCH_DTYPES_MAP": _torch_dtypes,
        "STYLES": dict,
        "tdist": lambda: import_module("torch.distributed"),
        "get_device_name": lambda: import_module("ezpz.dist").device_name,
        "EzpzHandler": lambda: import_module("rich.logging").RichHandler,
        "OriginalRichHandler": lambda: import_module("rich.logging").RichHandler,
    }
    if name not in values:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return values[name]()


def _torch_dtypes() -> dict[str, Any]:
    import torch

    words = {
        torch.bfloat16: ("bf16", "bfloat16"),
        torch.float16: ("fp16", "float16", "half"),
        torch.float32: ("fp32", "float32"),
    }
    return {word: dtype for dtype, names in words.items() for word in names}


@dataclass(init=False)
class TrainConfig:
    """A training's settings, as Hydra's ``_target_: ezpz.configs.TrainConfig`` makes it; other keywords go to
    ``extras``.
    """

    framework: str = "pytorch"
    backend: str = "DDP"
    gas: int = 1
    use_wandb: bool = False
    seed: int | None = None
    port: str | None = None
    dtype: Any = None
    load_from: str | None = None
    save_to: str | None = None
    ds_config_path: str | None = None
    wandb_project_name: str | None = None
    ngpus: int | None = None
    extras: dict[str, Any] = field(default_factory=dict, repr=False)

    def __init__(self, **settings: Any) -> None:
        known = {name: one.default for name, one in self.__dataclass_fields__.items() if name != "extras"}
        for name, default in known.items():
            setattr(self, name, settings.pop(name, default))
        self.extras = settings

    def to_dict(self) -> dict[str, Any]:
        """Return all settings."""
        return asdict(self)


@dataclass
class ViTConfig:
    """Sizes of a vision transformer, under older names; `ezpz.models.ViTConfig` is what a model is made of."""

    img_size: int = 224
    patch_size: int = 16
    depth: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    mlp_dim: int = 3072
    dropout: float = 0.0
    attention_dropout: float = 0.0
    num_classes: int = 10


@dataclass
class timmViTConfig:  # noqa: N801  # the name that older code imports
    """The same of a larger one, with a batch size."""

    img_size: int = 224
    batch_size: int = 128
    num_heads: int = 16
    head_dim: int = 64
    depth: int = 24
    patch_size: int = 16
    hidden_dim: int = 1024
    mlp_dim: int = 4096
    dropout: float = 0.0
    attention_dropout: float = 0.0
    num_classes: int = 1000


@dataclass
class TrainArgs:
    """Settings of an older vision trainer."""

    img_size: int = 224
    batch_size: int = 128
    num_heads: int = 16
    head_dim: int = 64
    depth: int = 24
    patch_size: int = 16
    dtype: str = "bf16"
    compile: bool = False
    attn_type: str = "native"
    warmup: float = 0.1
    num_workers: int = 0
    max_iters: int = 100
    fsdp: bool | None = False
    format: str | None = ""
    cuda_sdpa_backend: str | None = ""


def command_exists(cmd: str) -> bool:
    """Tell whether a program is on PATH."""
    import shutil

    return shutil.which(cmd) is not None


cmd_exists = command_exists


def git_ds_info() -> None:
    """Log what run.json holds of every run: the commit of the current folder."""
    from ezpz.track.run_facts import collect_facts

    facts = collect_facts(os.environ, from_environ(os.environ), sys.argv)
    get_logger(__name__).info(f"git: {facts.get('git') or 'no commit'}")


def print_config(cfg: Any) -> None:
    """Print a configuration."""
    import rich

    rich.print(cfg)


# ezpz.examples


def get_example_outdir(module_name: str, base_dir: PathLike | None = None) -> Path:
    """Make and return ``outputs/<module>/<time>``, on all ranks the one of rank 0's clock; ``History`` makes its own.

    Args:
        module_name: Name of the program.
        base_dir: Instead of ``outputs`` in the current folder.
    """
    from ezpz.compat.dist_names import get_timestamp
    from ezpz.dist import broadcast

    time_of_start = os.environ.setdefault("EZPZ_LOG_TIMESTAMP", broadcast(get_timestamp()))
    outdir = (Path.cwd() / "outputs" if base_dir is None else Path(base_dir).expanduser()) / module_name / time_of_start
    outdir.mkdir(parents=True, exist_ok=True)
    return outdir


# ezpz.history and ezpz.utils


class StopWatch:
    """Say how long a block took, and pass it to wandb's running run as ``<wbtag>/dt`` where there is one.

    Args:
        msg: What took so long.
        wbtag: First part of the metric's name; without it nothing goes to wandb.
        iter: Recorded beside it as ``<wbtag>/iter``.
        commit: As in ``wandb.log``.
        prefix: Name of the pair in wandb.
        log_output: Also say it in the log.
    """

    def __init__(  # noqa: PLR0917  # in the order of older code
        self,
        msg: str,
        wbtag: str | None = None,
        iter: int | None = None,  # noqa: A002  # the name that older code passes
        commit: bool | None = False,
        prefix: str = "StopWatch/",
        log_output: bool = True,
    ) -> None:
        self.msg, self.log_output = msg, log_output
        self._tag, self._iter, self._commit, self._prefix = wbtag, iter, commit, prefix
        self._begin = 0.0

    def __enter__(self) -> StopWatch:  # noqa: PYI034  # `Self` needs Python 3.11
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._begin
        run = getattr(sys.modules.get("wandb"), "run", None)
        if self._tag is not None and run is not None:
            values = {f"{self._tag}/dt": seconds, **({f"{self._tag}/iter": self._iter} if self._iter else {})}
            try:
                run.log({self._prefix: values}, commit=self._commit)
            except Exception as trouble:  # noqa: BLE001  # whatever wandb raises, the block has succeeded
                get_logger(__name__).warning(f"wandb has refused {self._tag}/dt: {trouble}")
        if self.log_output:
            get_logger(__name__).info(f"{self.msg} took {seconds:.3f} seconds")

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with every call of it measured."""
        from functools import wraps

        @wraps(function)
        def timed(*args: Any, **keywords: Any) -> Any:
            with self:
                return function(*args, **keywords)

        return timed


class Color:
    """Codes that colour text on a terminal."""

    black, red, green, yellow, blue, magenta, cyan, white = (f"\x1b[{code}m" for code in range(30, 38))
    reset = "\x1b[39m"


class NoColor:
    """The same without colour."""

    black = red = green = yellow = blue = magenta = cyan = white = reset = ""


def format_pair(k: str, v: Any, precision: int = 6) -> str:
    """Return ``loss=0.120000``; of a mapping or sequence one line per value, ``a.b=1`` or ``a[0]=1``."""
    if isinstance(v, dict):
        return "\n".join(format_pair(f"{k}.{name}", value, precision) for name, value in v.items())
    if isinstance(v, (list, tuple, set)):
        values = sorted(v, key=repr) if isinstance(v, set) else v
        return "\n".join(format_pair(f"{k}[{place}]", value, precision) for place, value in enumerate(values))
    return f"{k}={shown(v, precision)}"


def normalize(name: str) -> str:
    """Return a name as package indexes compare it: lower case, with single dashes."""
    import re

    return re.sub(r"[-_.]+", "-", name).lower()


def model_summary(model: Any, verbose: bool = False, depth: int = 1, input_size: Sequence[int] | None = None) -> str:
    """Return a line per part of a model, down to a depth, with its number of parameters; and log them on rank 0.

    Args:
        model: A ``torch.nn.Module``.
        verbose: Log it as well; the text is returned in any case.
        depth: Levels of parts.
        input_size: Ignored: nothing is run.
    """
    del input_size
    lines = [f"{type(model).__name__}: {sum(each.numel() for each in model.parameters()):,} parameters"]
    for name, part in model.named_modules():
        level = name.count(".") + 1
        if name and level <= depth:
            count = sum(each.numel() for each in part.parameters())
            lines.append(f"{'  ' * level}{name.rpartition('.')[2]}: {type(part).__name__}, {count:,}")
    text = "\n".join(lines)
    if verbose:
        get_logger(__name__).info(text)
    return text


summarize_model = model_summary


def get_current_memory_allocated(device: Any = None) -> int:
    """Return the bytes that are allocated now."""
    now: int = import_module("ezpz.dist").memory_allocated(device)
    return now


def get_current_memory_reserved(device: Any = None) -> int:
    """Return the bytes that torch's allocator holds now; on a device without an allocator what is allocated."""
    import torch

    kind = import_module("ezpz.dist").get_torch_device_type()
    ask = getattr(getattr(torch, kind, None), "memory_reserved", None)
    return get_current_memory_allocated(device) if ask is None else int(ask(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peaks of memory begin anew."""
    import_module("ezpz.dist").reset_peak_memory(device)


def check(model: Any = "pytorch", *others: Any, **named: Any) -> Any:
    """Look at what belongs together before the first step: `ezpz.train.silent_faults.check`.

    In older scripts ``check("pytorch", "DDP", port)`` set up and logged one line per rank, and it still does.
    """
    if isinstance(model, str) or {"framework", "backend", "port"} & named.keys():
        from ezpz.compat.dist_names import check as set_up

        return set_up(*(() if "framework" in named else (model,)), *others, **named)
    from ezpz.train.silent_faults import check as look

    return look(model, *others, **named)


def get_memory_metrics(device: Any = None, *, reset_peak: bool = True, prefix: str = "") -> dict[str, float]:
    """Return ``mem_alloc``, ``mem_peak_alloc``, ``mem_reserved`` and ``mem_peak_reserved`` in GiB; nothing on a CPU.

    Args:
        device: By default this rank's.
        reset_peak: Let the peaks begin anew.
        prefix: Written before each name, such as ``train/``.
    """
    from ezpz.compat.dist_names import get_max_memory_reserved
    from ezpz.dist import get_torch_device_type, max_memory_allocated

    kind = str(device).partition(":")[0] if device is not None else get_torch_device_type()
    if kind in {"cpu", "mps"} or os.environ.get("EZPZ_TRACK_MEMORY") == "0":
        return {}
    where = None if str(device) == kind else device
    values = {
        "mem_alloc": get_current_memory_allocated(where),
        "mem_peak_alloc": max_memory_allocated(where),
        "mem_reserved": get_current_memory_reserved(where),
        "mem_peak_reserved": get_max_memory_reserved(where),
    }
    if reset_peak:
        reset_peak_memory_stats(where)
    return {f"{prefix}{name}": value / 2**30 for name, value in values.items()}


def dataset_from_h5pyfile(hfile: PathLike) -> Any:
    """Return what `dataset_to_h5pyfile` or a history wrote, in memory."""
    from ezpz.track.lazy_dataset import open_dataset

    return open_dataset(Path(hfile))


def dict_from_h5pyfile(hfile: PathLike) -> dict[str, Any]:
    """Return the variables of such a file as numpy arrays."""
    dataset = dataset_from_h5pyfile(hfile)
    return {str(name): dataset[name].values for name in dataset.data_vars}


def get_bf16_config_json(enabled: bool = True) -> dict[str, Any]:
    """Return DeepSpeed's ``bf16``."""
    return {"enabled": enabled}


def get_fp16_config_json(enabled: bool = True) -> dict[str, Any]:
    """Return DeepSpeed's ``fp16``."""
    return {"enabled": enabled}


def get_flops_profiler_config_json(
    enabled: bool = True, profile_step: int = 1, module_depth: int = -1, top_modules: int = 1, detailed: bool = True
) -> dict[str, Any]:
    """Return DeepSpeed's ``flops_profiler``."""
    return {
        "enabled": enabled,
        "profile_step": profile_step,
        "module_depth": module_depth,
        "top_modules": top_modules,
        "detailed": detailed,
    }


# ezpz.flops


def get_peak_flops(device_name: str | None = None) -> float | None:
    """Return the most bf16 FLOP/s of a device by its name, such as ``A100`` or ``H100 SXM``; None where it is unknown.

    Args:
        device_name: By default this rank's device.
    """
    from ezpz.dist.peaks import peak_flops, peak_of

    peak = peak_flops() if device_name is None else peak_of(device_name)
    return None if peak is None else peak.flops


def estimate_model_flops(model: Any, input_shape: Sequence[int], *, device: Any = None, backward: bool = True) -> int:
    """Return the FLOPs of one forward, and of its backward, counted by torch without running the model.

    Args:
        model: Before `wrap_model`. With an embedding in it the input is token ids, otherwise floats.
        input_shape: Shape of the whole batch.
        device: Ignored: nothing runs on a device.
        backward: Count the backward too, which does twice what the forward does.

    Raises:
        UsageError: The model is wrapped, or gives no tensor.
    """
    del device
    import torch

    has_tokens = any(isinstance(each, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for each in model.modules())
    own = next(model.parameters(), torch.empty(0)).dtype
    shape = torch.empty(tuple(input_shape), dtype=torch.long if has_tokens else own, device="meta")
    flops: float = import_module("ezpz.train.flops").count_flops(model, shape)
    return int(flops if backward else flops / 3)


def try_estimate(model: Any, input_shape: Sequence[int], *, device: Any = None, backward: bool = True) -> int:
    """Return what `estimate_model_flops` does, or 0 with one warning where it cannot count."""
    try:
        return estimate_model_flops(model, input_shape, device=device, backward=backward)
    except Exception as error:  # noqa: BLE001  # a figure beside a training; whatever a foreign model raises
        get_logger(__name__).warning(f"no FLOPs of {type(model).__name__}: {type(error).__name__}: {error}")
        return 0


estimate_model_flops_fake, try_estimate_fake = estimate_model_flops, try_estimate


def compute_mfu(
    model_flops: float, step_duration: float, *, device_name: str | None = None, peak_flops: float | None = None
) -> float:
    """Return the model FLOPs utilisation in percent; 0 where the device's peak is unknown, as older code expects.

    Args:
        model_flops: FLOPs of one step on one device.
        step_duration: Its seconds.
        device_name: Name of the device; by default this rank's.
        peak_flops: FLOP/s of one device, instead.
    """
    peak = peak_flops or get_peak_flops(device_name)
    return 100.0 * model_flops / step_duration / peak if peak and step_duration > 0 else 0.0


# ezpz.tp


def initialize_tensor_parallel(
    tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, context_parallel_size: int = 1, **more: Any
) -> None:
    """Make the mesh, as ``setup_torch(tensor_parallel_size=…)`` does; backends and time-outs are the world's own."""
    del more
    from ezpz.dist import init_mesh

    init_mesh(tp=tensor_parallel_size, pp=pipeline_parallel_size, cp=context_parallel_size)


def tensor_parallel_is_initialized() -> bool:
    """Tell whether there is a mesh."""
    return import_module("ezpz.dist").get_mesh() is not None


def destroy_tensor_parallel() -> None:
    """Do nothing: the mesh's groups end with the world's."""


def _ranks_of(name: str) -> list[int]:
    """Return the ranks of the world in this rank's group of a dimension."""
    import torch.distributed as dist

    group = getattr(import_module("ezpz.dist"), f"get_{name}_parallel_group")()
    return list(map(int, dist.get_process_group_ranks(group)))


def get_tensor_parallel_ranks() -> list[int]:
    """Return the ranks that share this rank's layers."""
    return _ranks_of("tensor")


def get_data_parallel_ranks() -> list[int]:
    """Return the ranks that see other data."""
    return _ranks_of("data")


def get_pipeline_parallel_ranks() -> list[int]:
    """Return the ranks of this rank's pipeline."""
    return _ranks_of("pipeline")


def get_context_parallel_ranks() -> list[int]:
    """Return the ranks that share this rank's sequences."""
    return _ranks_of("context")


def get_tensor_parallel_src_rank() -> int:
    """Return the first of the ranks that share this rank's layers."""
    return get_tensor_parallel_ranks()[0]


def ensure_divisibility(numerator: int, denominator: int) -> None:
    """Refuse numbers that do not divide.

    Raises:
        UsageError: They do not.
    """
    if numerator % denominator:
        raise UsageError(f"{numerator} is not divisible by {denominator} (from ensure_divisibility).")


def divide_and_check_no_remainder(numerator: int, denominator: int) -> int:
    """Return a whole quotient.

    Raises:
        UsageError: There is none.
    """
    ensure_divisibility(numerator, denominator)
    return numerator // denominator


# ezpz.log


def use_colored_logs() -> bool:
    """Tell whether lines on stdout are coloured."""
    from ezpz.visible import use_color

    return use_color(sys.stdout)


def get_console(**more: Any) -> Any:
    """Return rich's console of this process; keywords make a new one."""
    if more:
        from rich.console import Console

        known = {"width", "color_system", "force_terminal", "stderr", "soft_wrap", "record", "file"}
        return Console(**{name: value for name, value in more.items() if name in known})
    import rich

    return rich.get_console()


def is_interactive() -> bool:
    """Tell whether this is a notebook or Python's own prompt."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def get_rich_logger(name: str | None = None, level: str | None = None) -> logging.Logger:
    """Return `ezpz.get_logger`'s logger."""
    return get_logger(name or "ezpz", level)


def get_file_logger(
    name: str | None = None, level: str = "INFO", rank_zero_only: bool = True, fname: str | None = None
) -> logging.Logger:
    """Return a logger that also writes to ``<fname>.log``: of rank 0 alone, or of every rank to ``<fname>-<rank>.log``.

    Raises:
        UsageError: The level is none, or the file cannot be written.
    """
    rank = from_environ(os.environ).rank
    logger = get_logger(name or "ezpz", level, rank_zero_only=rank_zero_only)
    if rank == 0 or not rank_zero_only:
        path = f"{fname or 'ezpz'}.log" if rank_zero_only else f"{fname or 'ezpz'}-{rank}.log"
        try:
            handler = logging.FileHandler(path, delay=False)
        except OSError as error:
            raise UsageError(f"cannot write the log {path}: {error.strerror} (from get_file_logger).") from error
        handler.setFormatter(logging.Formatter("[%(asctime)s][%(levelname)s][%(name)s] %(message)s"))
        logger.addHandler(handler)
    return logger


def silence_noisy_loggers(*, extra: Sequence[str] | None = None, level: int = logging.WARNING, **more: Any) -> None:
    """Let loggers of well-known libraries speak from a level on."""
    del more
    names = ("datasets", "filelock", "fsspec", "httpcore", "httpx", "huggingface_hub", "matplotlib", "PIL")
    for name in (*names, "transformers", "urllib3", "wandb", *(extra or ())):
        logging.getLogger(name).setLevel(level)


# ezpz.profile


def get_context_manager(
    rank: int | None = None,
    outdir: str | None = None,
    strict: bool | None = True,
    *,
    profiler_type: str = "pyinstrument",
    rank_zero_only: bool = True,
    **more: Any,
) -> AbstractContextManager[Any]:
    """Return a block that samples where Python's time goes; one that does nothing on ranks that are not asked.

    Args:
        rank: Profile this rank alone.
        outdir: Folder of the profile.
        strict: Only where the variable ``PYINSTRUMENT_PROFILER`` is set.
        profiler_type: ``pyinstrument``, or ``torch`` for a trace of operations.
        rank_zero_only: Profile rank 0 alone.
        more: Keywords of torch's profiler.
    """
    if profiler_type in {"torch", "pytorch"}:
        return get_profiling_context(profiler_type, 1, 1, 3, 1, rank_zero_only, outdir=outdir, strict=False, **more)
    if strict and os.environ.get("PYINSTRUMENT_PROFILER", "0").lower() in {"", "0", "false"}:
        return nullcontext()
    return PyInstrumentProfiler(rank, outdir, rank_zero_only)


def get_profiling_context(  # noqa: PLR0917  # in the order of older code
    profiler_type: str,
    wait: int,
    warmup: int,
    active: int,
    repeat: int,
    rank_zero_only: bool,
    *recorded: bool,
    outdir: PathLike | None = None,
    strict: bool | None = True,
    **more: Any,
) -> AbstractContextManager[Any]:
    """Return a block that profiles: ``torch`` yields torch's profiler, whose ``step`` is called at every step.

    Args:
        profiler_type: ``torch`` (``pytorch``) or ``pyinstrument``.
        wait: Steps to leave out, as in ``torch.profiler.schedule``.
        warmup: Steps that warm up.
        active: Steps that are recorded.
        repeat: Times that this is done.
        rank_zero_only: Profile rank 0 alone.
        recorded: Ignored by position; name them.
        outdir: Folder of the files; ``profile`` in the current folder otherwise.
        strict: Of pyinstrument: only where the variable ``PYINSTRUMENT_PROFILER`` is set.
        more: ``record_shapes``, ``with_stack``, ``with_flops``, ``with_modules``, ``profile_memory``, ``acc_events``.
    """
    del recorded
    if profiler_type == "pyinstrument":
        return get_context_manager(
            None if not rank_zero_only else 0, None if outdir is None else str(outdir), strict, rank_zero_only=True
        )
    if profiler_type not in {"torch", "pytorch"}:
        raise UsageError(
            f"unknown profiler {profiler_type!r} (from get_profiling_context); expected torch or pyinstrument."
        )
    import torch

    plan = torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    profiler: AbstractContextManager[Any] = get_torch_profiler(
        schedule=plan, rank_zero_only=rank_zero_only, outdir=outdir, **more
    )
    return profiler


def get_torch_profiler(  # noqa: PLR0917  # in the order of older code
    rank: int | None = None,
    schedule: Any = None,
    on_trace_ready: Any = None,
    rank_zero_only: bool = True,
    profile_memory: bool = False,
    record_shapes: bool = True,
    with_stack: bool = True,
    with_flops: bool = True,
    with_modules: bool = True,
    acc_events: bool = False,
    outdir: PathLike | None = None,
) -> Any:
    """Return ``torch.profiler.profile``, which writes Chrome traces; a block of nothing on ranks that are not asked.

    Args:
        rank: This process's rank, as callers pass it.
        schedule: As in ``torch.profiler.profile``.
        on_trace_ready: As there; traces are written to ``outdir`` otherwise.
        rank_zero_only: Profile rank 0 alone.
        profile_memory: As there.
        record_shapes: As there.
        with_stack: As there.
        with_flops: As there.
        with_modules: As there.
        acc_events: As there, where this torch has it.
        outdir: Folder of the traces; ``profile`` in the current folder otherwise.
    """
    own = from_environ(os.environ).rank if rank is None else rank
    if rank_zero_only and own != 0:
        return nullcontext()
    import inspect

    import torch

    known = inspect.signature(torch.profiler.profile.__init__).parameters
    more: dict[str, Any] = {"acc_events": acc_events} if "acc_events" in known else {}
    ready = on_trace_ready or torch.profiler.tensorboard_trace_handler(str(outdir or "profile"), f"rank-{own:04d}")
    return torch.profiler.profile(
        schedule=schedule,
        on_trace_ready=ready,
        profile_memory=profile_memory,
        record_shapes=record_shapes,
        with_stack=with_stack,
        with_flops=with_flops,
        with_modules=with_modules,
        **more,
    )


get_pytorch_profiler = get_torch_profiler


@contextmanager
def PyInstrumentProfiler(  # noqa: N802  # older code uses it as a class
    rank: int | None = None, outdir: str | None = None, rank_zero_only: bool = False, **more: Any
) -> Iterator[Any]:
    """Sample where Python's time goes in a block, and write it as HTML and text to ``ezpz_pyinstrument_profiles``.

    Args:
        rank: Profile this rank alone.
        outdir: Folder instead of the one above, which is in the current folder.
        rank_zero_only: Profile rank 0 alone.
        more: Ignored.

    Raises:
        MachineError: pyinstrument is not installed.
    """
    del more
    own = from_environ(os.environ).rank
    if own != rank if rank is not None else rank_zero_only and own != 0:
        yield None
        return
    try:
        profiler: Any = import_module("pyinstrument").Profiler()
    except ImportError as error:
        raise MachineError(
            f"no pyinstrument: {error} (from PyInstrumentProfiler). Run `pip install 'pyinstrument>=4.6,<6'`."
        ) from None
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()
        folder = Path(outdir or "ezpz_pyinstrument_profiles")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank-{own:04d}-{time.strftime('%Y-%m-%d-%H%M%S')}"
        path.with_suffix(".html").write_text(profiler.output_html(), encoding="utf-8")
        path.with_suffix(".txt").write_text(profiler.output_text(), encoding="utf-8")
