"""How many accelerators one host offers, found without torch.

EZPZ_NGPU_PER_HOST=4                              the user's word
CUDA_VISIBLE_DEVICES=0,1  ROCR_VISIBLE_DEVICES=0  a mask that the user or the scheduler set
SLURM_GPUS_ON_NODE=4                              what Slurm granted on each host of the job
nvidia-smi -L                                     "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)", one line per device
/sys/class/kfd/kfd/topology/nodes/*/simd_count    AMD: a device has compute units, a CPU has none
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ezpz.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

__all__ = ["Devices", "count_devices"]

_MASKS = (
    ("CUDA_VISIBLE_DEVICES", "cuda"),
    ("ROCR_VISIBLE_DEVICES", "cuda"),
    ("HIP_VISIBLE_DEVICES", "cuda"),
)
_MOST_KFD_NODES = 64


class Devices(NamedTuple):
    """Accelerators of one host: how many, which kind torch calls them, and where the answer came from."""

    count: int  # type: ignore[assignment]  # the field is what readers expect; tuple.count is not used
    kind: str
    origin: str


def count_devices(environ: Mapping[str, str], read: Read, run: Run) -> Devices:
    """Return the accelerators that each host offers.

    Raises:
        UsageError: ``EZPZ_NGPU_PER_HOST`` is not a whole number.
    """
    wish = environ.get("EZPZ_NGPU_PER_HOST", "")
    if wish:
        if not wish.isdigit():
            raise UsageError(
                f"cannot read the number of devices: {wish!r} (from EZPZ_NGPU_PER_HOST); expected a whole number. "
                "Run `unset EZPZ_NGPU_PER_HOST` or give it one."
            )
        return Devices(int(wish), "cuda" if int(wish) else "cpu", "EZPZ_NGPU_PER_HOST")
    if environ.get("TORCH_DEVICE", "").startswith("cpu"):
        return Devices(0, "cpu", "TORCH_DEVICE")
    for name, kind in _MASKS:
        if name in environ:
            shown = [word for word in environ[name].split(",") if word.strip() not in {"", "-1", "NoDevFiles"}]
            return Devices(len(shown), kind if shown else "cpu", name)
    granted = environ.get("SLURM_GPUS_ON_NODE", "")
    if granted.isdigit():
        return Devices(int(granted), "cuda", "SLURM_GPUS_ON_NODE")
    return _nvidia(read, run) or _amd(read) or Devices(0, "cpu", "no driver found")


def _nvidia(read: Read, run: Run) -> Devices | None:
    # The driver's own file answers "none" in microseconds; the tool takes a second on a host with many devices.
    if read("/proc/driver/nvidia/version") is None:
        return None
    count = sum(line.startswith("GPU ") for line in (run(["nvidia-smi", "-L"]) or "").splitlines())
    return Devices(count, "cuda", "nvidia-smi -L") if count else None


def _amd(read: Read) -> Devices | None:
    count = 0
    for node in range(_MOST_KFD_NODES):
        text = read(f"/sys/class/kfd/kfd/topology/nodes/{node}/properties")
        if text is None:
            break
        words = text.split()
        count += dict(zip(words[::2], words[1::2], strict=False)).get("simd_count", "0") != "0"
    return Devices(count, "cuda", "/sys/class/kfd/kfd/topology/nodes") if count else None
