"""Ask the tools of a host how its devices and the user's quotas are: ECC errors, throttled clocks, room that is left.

NVIDIA's answer, one line per device:

$ nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total,clocks_event_reasons.hw_slowdown,...
0, 0, Not Active, Not Active
1, 2, Active, Not Active

AMD's, of which the last two columns are read by their titles:

$ rocm-smi --showrasinfo umc --csv
device,Block,Status,Correctable error,Uncorrectable error
card0,UMC,ENABLED,0,3

Quotas, blocks of 1 KiB; a star marks what is over its soft limit, and 0 is no limit:

$ quota -w
Disk quotas for user ada (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
      nas:/home  990000  900000 1000000               12       0       0
$ lfs quota -q -u ada /lustre/project
/lustre/project  990000* 900000 1000000 6d 12 0 0 -
"""

from __future__ import annotations

import os

from ezpz.cluster import probe

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ezpz.cluster.allocation import Read

__all__ = ["device_health", "quotas"]

_REASONS = "clocks_event_reasons.hw_slowdown,clocks_event_reasons.hw_thermal_slowdown"
_NVIDIA = (
    "nvidia-smi",
    f"--query-gpu=index,ecc.errors.uncorrected.volatile.total,{_REASONS}",
    "--format=csv,noheader,nounits",
)
_AMD = ("rocm-smi", "--showrasinfo", "umc", "--csv")
_INTEL = ("xpu-smi", "dump", "-d", "-1", "-m", "20,35", "-n", "1")  # uncorrectable memory errors, throttle reason
_PCI = "/proc/bus/pci/devices"
_NVIDIA_VENDOR = "\t10de"  # of a line "0700\t10de20b0\t…"
_WORDS = 200  # characters of what a tool says
_KIB = 1024
_LIMIT = 4.0  # seconds for a tool, which may have to wake devices or ask a file server


def device_health(environ: Mapping[str, str], read: Read = probe.read) -> list[dict[str, Any]]:
    """Return ``device``, ``errors`` (uncorrected memory errors; None where not counted) and ``throttled`` of each
    device that a vendor's tool knows of; empty without such a tool. Of a tool that fails on a host with its devices
    one entry has ``tool`` and ``problem``, what it says.
    """
    from ezpz.files import find_program

    for words, rows_of in ((_NVIDIA, _nvidia), (_AMD, _amd), (_INTEL, _intel)):
        if find_program(words[0], environ.get("PATH")):
            output, problem = _ask(words, environ)
            found = rows_of([[cell.strip() for cell in line.split(",")] for line in output.splitlines()])
            if problem and not found and words is _NVIDIA and _NVIDIA_VENDOR in (read(_PCI) or ""):
                return [{"tool": words[0], "problem": problem}]
            return found
    return []


def _nvidia(rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    return [
        {"device": row[0], "errors": _count(row[1]), "throttled": "Active" in row[2:]}
        for row in rows
        if len(row) > 2 and row[0].isdecimal()
    ]


def _amd(rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    return [
        {"device": row[0].removeprefix("card"), "errors": _count(row[-1]), "throttled": False}
        for row in rows
        if len(row) > 2 and row[0].startswith("card")
    ]


def _intel(rows: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Read ``Timestamp, DeviceId, errors, throttle reason``; a device that is not throttled has ``Not Throttled``."""
    return [
        {
            "device": row[1],
            "errors": _count(row[2]),
            "throttled": row[3].lower() not in {"", "n/a", "not throttled", "none", "0"},
        }
        for row in rows
        if len(row) > 3 and row[1].isdecimal()
    ]


def _ask(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return what a tool prints, whatever its exit code (``quota`` ends with 1 where a limit is exceeded), and what it
    says where it fails: on stderr, else on stdout.
    """
    import subprocess

    try:
        done = subprocess.run(
            words, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT, check=False
        )
    except OSError as error:
        return "", error.strerror or ""
    except subprocess.TimeoutExpired:
        return "", f"no answer within {_LIMIT:g} s"
    output = done.stdout.decode(errors="replace")
    said = (done.stderr.decode(errors="replace") or output).split("\n")
    line = next((" ".join(line.split()) for line in said if line.strip()), f"it ended with {done.returncode}")
    return output, line[:_WORDS] if done.returncode else ""


def _count(text: str) -> int | None:
    try:
        return int(float(text))
    except ValueError:  # "[N/A]": a device without ECC
        return None


def quotas(environ: Mapping[str, str], paths: Sequence[str]) -> list[dict[str, Any]]:
    """Return where less than a twentieth of a quota is left: ``place``, ``what`` (``room`` or ``files``), ``used`` and
    ``limit``, in bytes or files. `paths` are asked for by Lustre's tool, which wants one.
    """
    from ezpz.files import find_program

    texts = []
    if find_program("quota", environ.get("PATH")):
        texts.append(_ask(("quota", "-w"), environ)[0])
    if find_program("lfs", environ.get("PATH")):
        user = environ.get("USER") or str(os.getuid())
        texts += [_ask(("lfs", "quota", "-q", "-u", user, path), environ)[0] for path in paths]
    found = [nearly for text in texts for line in text.splitlines() for nearly in _nearly_full(line.split())]
    return [each for place, each in enumerate(found) if each not in found[:place]]


def _nearly_full(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return what is nearly used up by a line of words: place, blocks, quota, limit, [grace], files, quota, limit."""
    numbers = [word.rstrip("*") for word in words[1:]]
    if len(numbers) < 6 or not all(number.isdecimal() for number in numbers[:3]):
        return []
    rest = numbers[3:] if numbers[3].isdecimal() and len(numbers) < 8 and _is_files(numbers[3:6]) else numbers[4:]
    found = []
    for what, three, unit in (("room", numbers[:3], _KIB), ("files", rest[:3], 1)):
        if len(three) < 3 or not all(number.isdecimal() for number in three):
            continue
        used, soft, hard = (int(number) * unit for number in three)
        limit = soft or hard
        if limit and used > 0.95 * limit:
            found.append({"place": words[0], "what": what, "used": used, "limit": limit})
    return found


def _is_files(three: Sequence[str]) -> bool:
    return all(number.isdecimal() for number in three)
