r"""AMD: the KFD topology lists what ROCm can use; one node per CPU socket, GPU, or part of a GPU (GCD, partition).

/sys/class/kfd/kfd/topology/nodes/N/properties   "cpu_cores_count 0\nsimd_count 440\n…": compute units make it a device
/sys/module/amdgpu/initstate                     "live": the driver is loaded
amd-smi list                                     "GPU: 0\n    BDF: 0000:83:00.0\n    UUID: 89ff74b5-…", one block each
rocm-smi --showid                                "GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300X OAM", five lines each

The properties of a GPU that the job's cgroup hides cannot be read, while those of later nodes can: a gap is no end.
"""

from __future__ import annotations

import re
from time import monotonic

from ezpz.cluster.devices.device_answer import Devices

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ezpz.cluster.allocation import Read, Run

KIND = "cuda"
LOOKED = "/sys/class/kfd"
_NODES = "/sys/class/kfd/kfd/topology/nodes"
_LONGEST_GAP = 64  # eight GPUs in eight partitions each, all hidden
_TOOLS = ((["amd-smi", "list"], r"^GPU: (\d+)\s*$"), (["rocm-smi", "--showid"], r"^GPU\[(\d+)\]"))
_ABSENT_WITHIN = 0.5  # seconds: a tool that is not there fails at once, one that hangs has used up the time


def exists(environ: Mapping[str, str], read: Read) -> int | None:
    """Return how many devices KFD shows: None without the driver, 0 where KFD cannot be read."""
    del environ
    if read(f"{_NODES}/0/properties") is None:
        return 0 if (read("/sys/module/amdgpu/initstate") or "").startswith("live") else None
    count = node = gap = 0
    while gap <= _LONGEST_GAP:
        text = read(f"{_NODES}/{node}/properties")
        gap = gap + 1 if text is None else 0
        words = (text or "").split()
        count += dict(zip(words[::2], words[1::2], strict=False)).get("simd_count", "0") != "0"
        node += 1
    return count or None  # amdgpu may drive a screen only


def probe(environ: Mapping[str, str], read: Read, run: Run, clock: Callable[[], float] = monotonic) -> Devices:
    """Return the devices of KFD, or of AMD's tools where KFD cannot be read; count 0 where no source tells."""
    count = exists(environ, read)
    if count:
        return Devices(count, KIND, _NODES)
    for argv, line in _TOOLS:
        start = clock()
        text = run(argv)
        if text is not None:
            count = len(set(re.findall(line, text, re.MULTILINE)))
            return Devices(count, KIND if count else "cpu", " ".join(argv))
        if clock() - start > _ABSENT_WITHIN:
            break
    note = (
        f"the AMD driver is loaded, but {_NODES} cannot be read and neither amd-smi nor rocm-smi answered; "
        "run `export EZPZ_NGPU_PER_HOST=N` with the right number"
    )
    return Devices(0, "cpu", _NODES, (note,))
