"""Answers that cost time and seldom change, kept as JSON in ``$XDG_CACHE_HOME/ezpz`` (``~/.cache/ezpz``).

Whoever keeps an answer puts into its key what it depends on; a file that is missing, foreign or broken is an answer
that is not there, and a home that cannot be written only costs the time again.
"""

from __future__ import annotations

import json
import os

from ezpz.files import own_folder, read_object, write_whole

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def kept(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return what is kept under a name; empty when nothing is."""
    path = _path(environ, name)
    try:
        is_ours = os.stat(path).st_uid == os.getuid()
    except OSError:
        return {}
    return read_object(path) if is_ours else {}


def keep(environ: Mapping[str, str], name: str, value: Mapping[str, Any]) -> None:
    """Keep a value under a name."""
    path = _path(environ, name)
    if not (environ.get("XDG_CACHE_HOME") or os.path.isdir(environ.get("HOME", ""))):
        return  # a service without a home: none is made for it
    try:
        own_folder(os.path.dirname(path), mode=0o755)  # data sets in it may be for others
        write_whole(path, json.dumps(value))
    except OSError:
        pass  # the time is spent again next time


def forget(environ: Mapping[str, str], name: str) -> None:
    """Have a value not be kept any more."""
    try:
        os.unlink(_path(environ, name))
    except OSError:
        pass  # nothing is kept, or not by this user


def state_of(path: str) -> str:
    """Return a text that changes when a file does: its real path, size and time of change."""
    real = os.path.realpath(path)
    try:
        content = os.stat(real)
    except OSError:
        return real
    return f"{real} {content.st_size} {content.st_mtime_ns}"


def _path(environ: Mapping[str, str], name: str) -> str:
    home = environ.get("HOME", "")
    folder = environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
    return os.path.join(folder, "ezpz", f"{name}.json") if folder else os.devnull + "/none"
