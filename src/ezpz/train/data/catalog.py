"""Data sets that have a name of their own: those that ezpz ships, and what Hugging Face calls the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ezpz.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    import os

_C4 = "allenai/c4/en/c4-train.00000-of-01024.json.gz"  # 319 MB, of which texts are taken

# name: (what follows hf: in its long name, a few words)
HUB = {
    "mnist": ("ylecun/mnist", "70,000 handwritten digits, 28 x 28, grey"),
    "fashion_mnist": ("zalando-datasets/fashion_mnist", "70,000 pieces of clothing, 28 x 28, grey"),
    "cifar10": ("uoft-cs/cifar10", "60,000 photographs of 10 kinds of things, 32 x 32, colour"),
    "c4": (f"{_C4}:train[:100000]", "100,000 English texts of the web"),
    "c4_test": (f"{_C4}:train[:2000]", "2,000 of them"),
}
# name: (file beside this package's parent, a few words)
SHIPPED = {
    "digits": ("digits.csv.gz", "1,797 handwritten digits, 8 x 8, grey"),
    "shakespeare": ("shakespeare.txt.xz", "1,115,394 characters of plays"),
}
# name of data that was made -> what to type instead
GONE = {"markov": "shakespeare, or random to time a machine"}


def refuse_gone(name: str, source: str) -> None:
    """Refuse the name of data that is no more.

    Raises:
        UsageError: It is one.
    """
    if name in GONE:
        raise UsageError(f"the data set {name} is gone (from {source}); type {GONE[name]}.")


def hub_name(name: str, source: str) -> str:
    """Return how Hugging Face calls a data set, without the hf: of such names.

    Args:
        name: What was typed.
        source: Where it was typed, for errors.

    Raises:
        UsageError: There is none of that name; the nearest is offered.
    """
    if name.startswith("hf:"):
        return name.removeprefix("hf:")
    if name in HUB:
        return HUB[name][0]
    refuse_gone(name, source)
    known = [*HUB, *SHIPPED]
    hint = did_you_mean(name.lower().replace("-", "_"), known, otherwise=" `ezpz fetch --list` shows them.")
    raise UsageError(f"unknown data set {name!r} (from {source}); expected one of {', '.join(known)}, hf:NAME.{hint}")


def fetch(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Have a data set on this machine, e.g. on a login host for compute hosts without a network.

    For one process; `load_images` and `load_tokens` do it for all ranks.

    Args:
        name: One of ``ezpz fetch --list``, or ``hf:NAME``.
        folder: Where `datasets` keeps it; its own cache ($HF_HOME) by default.

    Returns:
        The data set's folder; the file where it ships with ezpz.

    Raises:
        UsageError: There is no such data set, or `datasets` is not installed.
        MachineError: There is no network.
    """
    if name in SHIPPED:
        return Path(__file__).parents[1] / SHIPPED[name][0]
    from ezpz.train.data.hugging_face_data import load

    loaded = load(hub_name(name, "fetch"), folder)
    parts = loaded.values() if isinstance(loaded, dict) else [loaded]
    return Path(next(file["filename"] for rows in parts for file in rows.cache_files)).parent
