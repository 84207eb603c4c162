"""Find versions of packages by the names of their metadata: nothing is imported, and no file is opened.

``importlib.metadata`` reads more and costs 45 ms of CPU to import, on every host that is looked at.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["installed_versions"]


def installed_versions(folders: Iterable[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages that are in these folders; the first folder counts, as for an import.

    ``torch-2.13.0+cpu.dist-info`` has the version 2.13.0+cpu. A folder that cannot be listed has none.

    Args:
        folders: Where a Python looks for modules.
        packages: Names that need no normalisation: lower case, without dots and dashes.
    """
    pattern = re.compile(rf"({'|'.join(packages)})-(.+?)(?:-py3\.\d+)?\.(?:dist|egg)-info")
    found: dict[str, str] = {}
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = pattern.fullmatch(name)
            if match:
                found.setdefault(match[1], match[2])
    return found
