"""Tell the files of the user's own code from those of Python, of installed packages and of ezpz."""

from __future__ import annotations

import re

__all__ = ["is_ezpzs", "is_users"]

# ezpz's own files, wherever the rank's Python has them: it need not be the launcher's. A user's folder may be called
# ezpz too.
_OWN = re.compile(
    r"/ezpz/(?:(?:cli|cluster|dist|launch|models|track|train)/"
    r"|(?:__init__|__main__|errors|log|progress|ranks|test_dist)\.py$)"
)
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|/lib(?:64)?/(?:python|pypy)3[.\d]*t?/|/python3\d+\.zip/|^<frozen "
)


def is_ezpzs(file: str) -> bool:
    """Tell whether a file, as Python names it, is one of ezpz."""
    return bool(_OWN.search(file))


def is_users(file: str) -> bool:
    """Tell whether a file, as Python names it, is neither Python's, nor an installed package's, nor one of ezpz."""
    return not _LIBRARY.search(file) and not is_ezpzs(file)
