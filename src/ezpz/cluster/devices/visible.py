"""Find which devices and processes of a host are this launch's: what variables give to its ranks, and their children.

    CUDA_VISIBLE_DEVICES=0,3   GPU-5d5b…     ROCR_VISIBLE_DEVICES=2,3   HIP_VISIBLE_DEVICES=0   ZE_AFFINITY_MASK=0,1
    LOCAL_RANK=1                             of those, the rank takes the second

The variables are those with which the process of a rank started. Without any, a rank has the device of its number; on a
shared host the other ones are somebody else's.
"""

from __future__ import annotations

from ezpz import proc

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
        return self._found(len(uuids), (("CUDA_VISIBLE_DEVICES",),), lambda word, _: _index_or_uuid(word, uuids))

    def amd(self, count: int) -> Found:
        """Return the same of AMD's cards: what ROCm leaves, and among those what HIP does."""
        return self._found(count, (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")), _index)

    def intel(self, count: int) -> Found:
        """Return the same of Intel's devices, each a card or a tile."""
        return self._found(count, (("ZE_AFFINITY_MASK",),), lambda word, left: _index(word.partition(".")[0], left))

    def _found(self, count: int, layers: Sequence[Sequence[str]], read: Callable[[str, int], int | None]) -> Found:
        seen: set[int] = set()
        given: set[int] = set()
        for environ in self.environs:
            visible, is_masked = list(range(count)), False
            for names in layers:
                name = next((name for name in names if name in environ), None)
                if name is None or (name == "ZE_AFFINITY_MASK" and not environ[name].strip()):
                    continue
                is_masked = True
                visible = _listed(environ[name], visible, read)
            local = environ.get("LOCAL_RANK", "0")
            place = int(local) if local.isascii() and local.isdigit() else 0
            own = visible[0:1] if len(visible) == 1 else visible[place : place + 1]
            given.update(own)
            seen.update(visible if is_masked else own)
        return seen, given


def _listed(text: str, visible: Sequence[int], read: Callable[[str, int], int | None]) -> list[int]:
    """Return those that a mask leaves: what is behind a word that names nothing is hidden."""
    left: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        place = read(word, len(visible))
        if place is None:
            break
        # A UUID is a name for the whole host's list, a number one for what is left.
        number = place if word.startswith("GPU-") else visible[place]
        if number not in left:
            left.append(number)
    return left


def _index(word: str, count: int) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and int(word) < count else None


def _environ(pid: int) -> dict[str, str]:
    parts = (part.decode("utf-8", "replace").partition("=") for part in proc.environ(pid).split(b"\0") if part)
    return {name: value for name, _, value in parts}


def _index_or_uuid(word: str, uuids: Sequence[str]) -> int | None:
    if word.startswith("GPU-"):
        named = next((index for index, uuid in enumerate(uuids) if uuid.startswith(word)), None)
        # Else it is that of a card that tells none now, which must not hide those behind it.
        return uuids.index("") if named is None and "" in uuids else named
    return _index(word, len(uuids))
