"""The launches of this user that run on this host: a file each, from which ``ezpz kill`` and ``ezpz stacks`` know them.

    /tmp/ezpz-1000/launches/5f3a90c2.json      {"pid": 4711, "born": "8812345", "place": "n01 pid:[4026531836]", …}

A file counts while its process lives and is the one that wrote it: pids come again, times of birth do not.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ezpz.errors import LaunchError
from ezpz.launch.folder import private_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Index", "is_running"]


class Index:
    """This user's running launches on this host; an object of it holds at most the one that its process is."""

    def __init__(self) -> None:
        self._path = ""

    def enter(self, launch_id: str, told: Mapping[str, Any]) -> None:
        """Add this process's launch; without a place to write, the run goes on unlisted.

        Args:
            launch_id: The launch's id.
            told: ``started`` (seconds since 1970-01-01 UTC), ``socket``, ``command``, ``hosts``, ``world_size``, ``folder``.
        """
        import json

        pid = os.getpid()
        entry = {**told, "launch_id": launch_id, "pid": pid, "born": _born(pid), "place": _place()}
        try:
            path = os.path.join(private_folder("launches"), launch_id.replace("/", "+") + ".json")
            write_whole(path, json.dumps(entry))
        except (OSError, LaunchError):
            return
        self._path = path

    def leave(self) -> None:
        """Take this process's launch out again, and with it those that were killed and could not."""
        if self._path:
            _remove(self._path)
            self._path = ""
            try:
                self.running()
            except (OSError, LaunchError):
                pass  # the next to look will do it

    def running(self) -> list[dict[str, Any]]:
        """Return the running launches, the oldest first; files of those that are over are removed.

        Raises:
            LaunchError: The folder is not this user's.
        """
        folder = private_folder("launches")
        found = []
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            entry = _read(path) if name.endswith(".json") else {}
            if entry.get("place") != _place():
                continue  # of another host or container with the same TMPDIR: not ours to judge
            if is_running(entry):
                found.append(entry)
            else:
                _remove(path)
        return sorted(found, key=lambda entry: float(entry.get("started", 0)))


def is_running(entry: Mapping[str, Any]) -> bool:
    """Tell whether the process that wrote an entry still lives."""
    pid = entry.get("pid")
    return isinstance(pid, int) and pid > 0 and bool(entry.get("born")) and _born(pid) == entry["born"]


def _read(path: str) -> dict[str, Any]:
    import json

    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # another has seen that it is over


def _born(pid: int) -> str:
    """Return when a process was born, in the system's own words; empty when it is gone or a zombie."""
    if sys.platform == "darwin":
        from ezpz.cluster import probe

        return (probe.run(["ps", "-o", "lstart=", "-p", str(pid)]) or "").strip()
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()  # proc(5): the state is field 3, the start field 22
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]


def _place() -> str:
    """Return what tells this host's table of processes from another's."""
    try:
        table = os.readlink("/proc/self/ns/pid")
    except OSError:  # macOS
        table = ""
    return f"{os.uname().nodename} {table}".strip()
