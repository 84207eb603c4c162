"""Run the smoke test, ``ezpz.test_dist``: as ``ezpz test``, and as older programs of this name start it.

``launch python3 -m ezpz framework=pytorch backend=DDP`` trains its model under that backend: words of the form
``key=value`` (``null`` is nothing). Keys besides those below are options of `ezpz.test_dist`: ``train_iters=20``.
"""

from __future__ import annotations

import json
import os

from ezpz.errors import EzpzError, UsageError, did_you_mean, end_with
from ezpz.launch.python_of_ranks import module_line_of_ranks

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_DEFAULTS: dict[str, Any] = {
    "framework": "pytorch",
    "backend": "DDP",
    "ds_config_path": None,
    "port": None,
    "seed": None,
    "use_wandb": True,
    "wandb_project_name": None,
    "precision": None,
    "ngpus": None,
}


def main(argv: Sequence[str]) -> int:
    """Launch ``python3 -m ezpz.test_dist`` with ``argv`` and return the exit code of the run."""
    if {"-h", "--help"} & set(argv):
        from ezpz.test_dist import parse_args

        parse_args(["--help"])
    from ezpz.launch.entry import main as launch

    try:
        line = module_line_of_ranks("ezpz.test_dist", os.environ)
    except EzpzError as error:
        return end_with(error)
    return launch(["--", *line, *argv])


def main_configured(words: Sequence[str]) -> int:
    """Train as the words say, and return the exit code."""
    try:
        return _run(_parse(words))
    except EzpzError as error:
        return end_with(error)


def _run(config: dict[str, Any]) -> int:
    import ezpz
    from ezpz.dist.arguments import check_framework
    from ezpz.test_dist import main as smoke

    check_framework(config["framework"])
    strategy = _strategy(config["backend"])
    if config["ngpus"] is not None:
        raise UsageError(
            f"ngpus={config['ngpus']} has no effect here: the launcher decides. Use `launch --ppn {config['ngpus']} …`."
        )
    options = _smoke_options({key: value for key, value in config.items() if key not in _DEFAULTS})
    for key, option in (("seed", "seed"), ("precision", "dtype"), ("ds_config_path", "ds-config")):
        if config[key] is not None:
            options.append(f"--{option}={config[key]}")
    if config["use_wandb"] in {False, "false", "False"}:
        os.environ["WANDB_MODE"] = "disabled"
    elif config["wandb_project_name"]:
        os.environ["WANDB_PROJECT"] = config["wandb_project_name"]
    rank = ezpz.setup_torch(backend=config["backend"], port=config["port"])
    if rank == 0:
        ezpz.get_logger(__name__).info(json.dumps(config, indent=4))
    return smoke([f"--strategy={strategy}", *options])


def _strategy(backend: str) -> str:
    from ezpz.dist.arguments import split_backend

    _, trainer = split_backend(backend)
    if trainer is None:
        raise UsageError(
            f"backend={backend} moves tensors and trains nothing (from the command line); expected DDP, FSDP or "
            f"deepspeed. Use backend=DDP, and TORCH_BACKEND={backend} for the collectives."
        )
    return trainer


def _parse(words: Sequence[str]) -> dict[str, Any]:
    from ezpz.test_dist import options

    config = dict(_DEFAULTS)
    known = [*_DEFAULTS, *(name.replace("-", "_") for name in options())]
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            hint = did_you_mean(key, known).replace("?", "=…?")
            raise UsageError(
                f"unknown key {word!r} (from the command line); expected key=value with one of "
                f"{', '.join(known)}.{hint}"
            )
        config[key] = None if value in {"null", "None", ""} else value
    return config


def _smoke_options(given: dict[str, Any]) -> list[str]:
    """Return the command line of the smoke test; its switches are given as ``no_plots=true``."""
    from ezpz.test_dist import options

    takes_value, words = options(), []
    for key, value in given.items():
        name = key.replace("_", "-")
        if takes_value[name]:
            words.append(f"--{name}={value}")
        elif str(value).lower() in {"true", "1", "yes"}:
            words.append(f"--{name}")
        elif str(value).lower() not in {"false", "0", "no", "none"}:
            raise UsageError(f"{key}={value} is a switch (from the command line); expected true or false.")
    return words
