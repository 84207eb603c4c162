"""CIFAR-10's binary version, read from its archive: nothing is unpacked to the disk, and nothing is unpickled.

    cifar-10-binary.tar.gz
      cifar-10-batches-bin/data_batch_1.bin … data_batch_5.bin   10,000 records each, 50,000 for training
      cifar-10-batches-bin/test_batch.bin                        10,000 records

    a record: 06  3b 2b 32 …        the label, then 3072 bytes: 32 x 32 red, row by row, then green, then blue

Source: A. Krizhevsky, "The CIFAR-10 dataset", the section on the binary version.
"""

from __future__ import annotations

import tarfile
import zlib
from typing import TYPE_CHECKING, Any

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = 1 + 3 * 32 * 32
_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("cifar-10-batches-bin/test_batch.bin",)


def read_cifar10(path: Path) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images ``(N, 3, 32, 32)`` and labels ``(N,)``, both uint8 numpy arrays, for training and for testing.

    Raises:
        UsageError: The archive is cut, or is another one.
    """
    import numpy as np

    wanted = {*_TRAIN, *_TEST}
    members: dict[str, tuple[Any, Any]] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:  # in the order of the file: a gzip cannot be read backwards
                content = archive.extractfile(member) if member.name in wanted and member.isreg() else None
                if content is not None:
                    members[member.name] = read_records(content.read(), f"{path}:{member.name}")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise _unusable(str(path), str(error)) from error
    missing = sorted(wanted - members.keys())
    if missing:
        raise _unusable(str(path), f"it has no {missing[0]}")
    parts = []
    for names in (_TRAIN, _TEST):
        images, labels = zip(*(members[name] for name in names), strict=True)
        parts.append((np.concatenate(images), np.concatenate(labels)))
    return parts[0], parts[1]


def read_records(data: bytes, source: str) -> tuple[Any, Any]:
    """Return images ``(N, 3, 32, 32)`` and labels ``(N,)`` of one file of records.

    Raises:
        UsageError: It has no whole number of records, or a label above 9.
    """
    import numpy as np

    if not data or len(data) % _RECORD:
        raise _unusable(source, f"it has {len(data)} bytes, no multiple of {_RECORD}")
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise _unusable(source, f"it has a label {labels.max()}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _unusable(source: str, problem: str) -> UsageError:
    return UsageError(
        f"cannot read {source}: {problem} (from the file); expected CIFAR-10's binary version. Delete it and type "
        "`ezpz fetch cifar10`."
    )
