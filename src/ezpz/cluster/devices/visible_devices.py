"""Find which devices and processes of a host are this launch's: what variables give to its ranks, and their children.

    CUDA_VISIBLE_DEVICES=0,3   GPU-5d5b…     ROCR_VISIBLE_DEVICES=2,3   HIP_VISIBLE_DEVICES=0   ZE_AFFINITY_MASK=0,1
    LOCAL_RANK=1                             of those, the rank takes the second

The variables are those with which the process of a rank started. Without any, a rank has the device of its number; on a
shared host the other ones are somebody else's.
"""

from __future__ import annotations

from ezpz import proc
from ezpz.cluster.devices import intel
from ezpz.cluster.devices.mask_variables import listed, of_level_zero

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Found = tuple[set[int], set[int]]


class Ranks:
    """The ranks of this host.

    Args:
        pids: Their processes.
        environs: The variables of each, for tests; otherwise as the kernel keeps them.
    """

    def __init__(self, pids: Iterable[int], environs: Sequence[dict[str, str]] | None = None) -> None:
        self.pids = list(pids)
        self.environs = [_environ(pid) for pid in self.pids] if environs is None else list(environs)

    def processes(self) -> set[int]:
        """Return the ranks and what their first threads have started, and those in turn."""
        found, todo = set(self.pids), list(self.pids)
        while todo:
            pid = todo.pop()
            new = set(map(int, proc.read(pid, f"task/{pid}/children").split())) - found
            found |= new
            todo += new
        return found

    def nvidia(self, uuids: Sequence[str]) -> Found:
        """Return the numbers of the devices that are this launch's, and of those that a rank has as its own."""
        return self._found(len(uuids), lambda environ, cards: _left(environ, ("CUDA_VISIBLE_DEVICES",), cards, uuids))

    def amd(self, count: int) -> Found:
        """Return the same of AMD's cards: what ROCm leaves, and among those what HIP does."""
        hip = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        rocm = ("ROCR_VISIBLE_DEVICES",)
        return self._found(count, lambda environ, cards: _left(environ, hip, _left(environ, rocm, cards)))

    def intel(self, count: int) -> Found:
        """Return the same of Intel's devices, each a card or a tile."""
        return self._found(count, _of_intel)

    def _found(self, count: int, left: Callable[[Mapping[str, str], list[int]], list[int]]) -> Found:
        seen: set[int] = set()
        given: set[int] = set()
        for environ in self.environs:
            devices = list(range(count))
            visible = left(environ, devices)
            local = environ.get("LOCAL_RANK", "0")
            place = int(local) if local.isascii() and local.isdigit() else 0
            own = visible[0:1] if len(visible) == 1 else visible[place : place + 1]
            given.update(own)
            seen.update(own if visible is devices else visible)
        return seen, given


def _left(environ: Mapping[str, str], names: Sequence[str], visible: list[int], uuids: Sequence[str] = ()) -> list[int]:
    """Return the devices that the first of these masks leaves of those that are visible; all without one."""
    name = next((name for name in names if name in environ), None)
    if name is None:
        return visible
    left: list[int] = []
    for entry in listed(environ[name], len(visible)).entries:
        number = visible[int(entry)] if entry.isdigit() else _by_uuid(entry, uuids)
        if number is None:
            break
        left.append(number)
    return left


def _environ(pid: int) -> dict[str, str]:
    parts = (part.decode("utf-8", "replace").partition("=") for part in proc.environ(pid).split(b"\0") if part)
    return {name: value for name, _, value in parts}


def _of_intel(environ: Mapping[str, str], devices: list[int]) -> list[int]:
    mask = environ.get("ZE_AFFINITY_MASK", "").strip()
    return sorted(of_level_zero(mask, intel.hierarchy(environ), len(devices))[0]) if mask else devices


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    named = next((index for index, uuid in enumerate(uuids) if uuid.startswith(entry)), None)
    # Else it is that of a card that tells none now, which must not hide those behind it.
    return uuids.index("") if named is None and "" in uuids else named
