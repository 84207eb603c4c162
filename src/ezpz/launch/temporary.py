"""Make temporary folders that say whose they are, and remove those that killed processes have left.

    /tmp/ezpz-1000/agents-5f3a90c2/.owner-9d1c07ab-4711-8812345    the host's table of processes, the pid, and its birth

A folder is removed when each process that it names lived in the table of processes that this one lives in, and is gone:
pids come again, times of birth do not. What other hosts and containers with the same TMPDIR have made stays, and so
does all of it where nothing tells a table from another (macOS, or no /proc).
"""

from __future__ import annotations

import os
from binascii import crc32

from ezpz import proc
from ezpz.errors import MachineError
from ezpz.files import private_folder, remove_folder

TYPE_CHECKING = False  # `typing` costs 5 ms in every agent; type checkers know this spelling
if TYPE_CHECKING:
    from types import TracebackType

_OWNER = ".owner-"


class TemporaryFolder:
    """A context manager for a new folder of this user alone, which is removed at the end, with all that is in it.

    Those that killed processes have left beside it go first.

    Args:
        kind: The beginning of its name.
        base: The folder around it; empty for that of this user in TMPDIR.

    Raises:
        MachineError: It cannot be made.
    """

    def __init__(self, kind: str, base: str = "") -> None:
        folder = base or private_folder()
        self.path = os.path.join(folder, f"{kind}-{os.urandom(4).hex()}")
        try:
            os.mkdir(self.path, 0o700)
        except OSError as error:
            source = "XDG_STATE_HOME, HOME or --log-dir" if base else "TMPDIR"
            raise MachineError(
                f"cannot make a folder in {folder} (from {source}): {error.strerror}; expected room and permission. "
                f"Set {source.partition(',')[0]} to another folder."
            ) from None
        mark_own(self.path)

    def __enter__(self) -> str:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_folder(self.path)


def mark_own(folder: str) -> None:
    """Say in a folder that is there that this process needs it, and remove those beside it that killed ones have left.

    A folder that several processes say this of stays until all of them are gone; where it cannot be said, it stays.
    """
    pid = os.getpid()
    try:
        os.close(os.open(os.path.join(folder, f"{_OWNER}{_table()}-{pid}-{proc.start_time(pid)}"), os.O_CREAT, 0o600))
    except OSError:
        return  # the disk is full; or another user has made the folder, or nobody
    _remove_left(os.path.dirname(folder))


def _remove_left(base: str) -> None:
    """Remove the folders that processes which are gone have left in another one; links are not followed."""
    try:
        with os.scandir(base) as entries:
            folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for folder in folders:
        try:
            is_ours = folder.stat(follow_symlinks=False).st_uid == os.getuid()
            owners = [name[len(_OWNER) :] for name in os.listdir(folder.path) if name.startswith(_OWNER)]
        except OSError:
            continue  # another has removed it meanwhile; or it is closed
        if is_ours and owners and all(map(_is_gone, owners)):
            remove_folder(folder.path)


def _is_gone(owner: str) -> bool:
    """Tell whether a process that a folder names is known to be gone."""
    table, pid, born = (*owner.split("-"), "", "")[:3]
    return bool(born) and table != "" and table == _table() and proc.start_time(pid) != born


def _table() -> str:
    """Return a name of the table of processes that this one lives in, until its host starts again; empty where it has
    none.
    """
    boot, space = proc.read("sys", "kernel/random/boot_id"), proc.link("self", "ns/pid")
    return f"{crc32(boot + space.encode()):08x}" if boot and space else ""
