"""The data sets that can be fetched, and those that ezpz ships: files, sizes and the sums that prove them.

A sum of MNIST and CIFAR-10 is the one that several independent programs demand; the sums of Fashion-MNIST belong to the
files whose MD5 its authors publish (8d4fb7e6…, 25c81989…, bef4ecab…, bb300cfd…).
"""

from __future__ import annotations

from dataclasses import dataclass

from ezpz.errors import UsageError

__all__ = ["CATALOG", "SHIPPED", "DataSet", "Remote", "named"]


@dataclass(frozen=True)
class Remote:
    """One file of a data set, as its authors published it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set that lies on the net.

    Attributes:
        name: What users type, and the folder of its files inside the data folder.
        about: A few words.
        mirrors: Where the files lie, tried in this order; each ends with a slash.
        files: All of them are needed.
        elsewhere: Folders in which other programs keep the same files.
    """

    name: str
    about: str
    mirrors: tuple[str, ...]
    files: tuple[Remote, ...]
    elsewhere: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(remote.size for remote in self.files)


def _idx(*sizes_and_sums: tuple[int, str]) -> tuple[Remote, ...]:
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(Remote(name, size, told) for name, (size, told) in zip(names, sizes_and_sums, strict=True))


CATALOG = {
    "mnist": DataSet(
        "mnist",
        "70,000 handwritten digits, 28 x 28, grey",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        _idx(
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
        ("MNIST/raw",),
    ),
    "fashion_mnist": DataSet(
        "fashion_mnist",
        "70,000 pieces of clothing, 28 x 28, grey",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        _idx(
            (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        ("FashionMNIST/raw",),
    ),
    "cifar10": DataSet(
        "cifar10",
        "60,000 photographs of 10 kinds of things, 32 x 32, colour",
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            Remote(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
}

# name: (file beside this package's parent, a few words)
SHIPPED = {
    "digits": ("digits.csv.gz", "1,797 handwritten digits, 8 x 8, grey"),
    "shakespeare": ("shakespeare.txt.xz", "1,115,394 characters of plays"),
}


def named(name: str, source: str) -> DataSet:
    """Return the data set of this name.

    Raises:
        UsageError: There is none; the nearest name is offered.
    """
    if name in CATALOG:
        return CATALOG[name]
    from difflib import get_close_matches

    known = [*CATALOG, *SHIPPED]
    near = get_close_matches(name.lower().replace("-", "_"), known, n=1)
    hint = f" Did you mean {near[0]}?" if near else " `ezpz fetch --list` shows them."
    raise UsageError(f"unknown data set {name!r} (from {source}); expected one of {', '.join(known)}.{hint}")
