r"""Read devices whose drivers keep their counters in small files, as a table says which.

    /sys/class/drm/card1/device/vendor                        "0x1002\n" AMD, "0x8086\n" Intel
    /sys/class/drm/card1/device/hwmon/hwmon4/power1_average   "312000000\n"   µW (Documentation/gpu/amdgpu/thermal.rst)
    /sys/class/drm/card1/device/gpu_busy_percent              "97\n"
    /sys/class/drm/card1/device/mem_info_vram_used            "51539607552\n" bytes
    /sys/class/drm/card1/device/ras/umc_err_count             "ue: 0\nce: 3\n"
    /sys/class/drm/card0/device/hwmon/hwmon3/energy1_input    "812345678901\n" µJ, i915 and xe
    /sys/class/drm/card0/gt/gt0/throttle_reason_pl1           "1\n"
    /sys/cray/pm_counters/accel0_power                        "345 W 1763942400123456 us\n"
    /sys/cray/pm_counters/energy                              "98765432 J 1763942400123456 us\n", of the whole host

A file that is not there is asked for once. A device of which no file can be read, as while it is reset, is missing in
that sample; after some of them it is said to have gone, and asked less often.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from typing import Any

    from ezpz.cluster.devices.visible_devices import Ranks

_HWMON = "device/hwmon/*/"
_INSIDE_A_CPU = "0000:00:02.0"  # Intel's GPU that is no device of its own, see `ezpz.cluster.devices.intel`

# Figure, whether it counts up, factor to its unit, and where it may be, the first that is there.
_AMD = (
    ("power", False, 1e-6, (_HWMON + "power1_average", _HWMON + "power1_input")),
    ("joules", True, 1e-6, (_HWMON + "energy1_input",)),
    ("clock", False, 1e-6, (_HWMON + "freq1_input",)),
    ("memory_clock", False, 1e-6, (_HWMON + "freq2_input",)),
    ("temperature", False, 1e-3, (_HWMON + "temp2_input", _HWMON + "temp1_input")),
    ("used", False, 1.0, ("device/gpu_busy_percent",)),
    ("memory", False, 1.0, ("device/mem_info_vram_used",)),
    ("memory_total", False, 1.0, ("device/mem_info_vram_total",)),
    ("errors", True, 1.0, ("device/ras/umc_err_count",)),
)
_INTEL = (
    ("joules", True, 1e-6, (_HWMON + "energy1_input",)),
    ("clock", False, 1.0, ("gt/gt0/rps_act_freq_mhz", "device/tile0/gt0/freq0/act_freq")),
    ("temperature", False, 1e-3, (_HWMON + "temp2_input", _HWMON + "temp1_input")),
)
_ACCELERATOR = (("power", False, 1.0, ("{}_power",)), ("joules", True, 1.0, ("{}_energy",)))
_WHOLE_HOST = (("power", False, 1.0, ("power",)), ("joules", True, 1.0, ("energy",)))
_REASONS = {
    "power cap": (
        *("gt/gt0/throttle_reason_pl1", "gt/gt0/throttle_reason_pl2"),
        *("device/tile0/gt0/freq0/throttle/reason_pl1", "device/tile0/gt0/freq0/throttle/reason_pl2"),
    ),
    "thermal limit": ("gt/gt0/throttle_reason_thermal", "device/tile0/gt0/freq0/throttle/reason_thermal"),
    "processor hot": ("gt/gt0/throttle_reason_prochot", "device/tile0/gt0/freq0/throttle/reason_prochot"),
}
_GONE = 3  # samples in a row without a figure, after which a device is said to have gone
_SELDOM = 12  # samples between two looks at one that has gone
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class _Device:
    """One device: where each figure of it is."""

    def __init__(self, name: str, number: str, base: str, table: Any, given: bool) -> None:
        self.name, self.number, self.base, self.given = name, number, base, given
        self.silent = 0  # samples in a row without a figure
        self.files = [
            (figure, counts, factor, path)
            for figure, counts, factor, paths in table
            if (path := _first(base, [each.format(number) for each in paths]))
        ]
        self.reasons = [
            (reason, path) for reason, paths in _REASONS.items() for each in paths if (path := _first(base, [each]))
        ]

    def row(self) -> dict[str, Any]:
        """Return what it shows now.

        Raises:
            OSError: Not one of its files can be read.
        """
        now: dict[str, float] = {}
        count: dict[str, float] = {}
        for figure, counts, factor, path in self.files:
            value = _value(path)
            if value is not None:
                (count if counts else now)[figure] = value * factor
        if self.files and not now and not count:
            raise OSError(self.base)
        why = [reason for reason, path in self.reasons if _value(path)]
        return {
            "id": self.number,
            "name": self.name,
            "given": self.given,
            "now": now,
            "count": count,
            "why": sorted(set(why)),
        }


class Files:
    """The devices of this launch's ranks on this host that no library is needed for.

    Args:
        ranks: The ranks, which say what devices they may use.
        root: Where ``/sys`` is, for tests.

    Raises:
        OSError: There is none.
    """

    name = "the files of the drivers"

    def __init__(self, ranks: Ranks, root: str = "/sys") -> None:
        self.problems: list[str] = []
        self._looks = 0
        amd = [card for card in _cards(root, "0x1002") if _value(f"{card}/device/mem_info_vram_total")]
        intel = [card for card in _cards(root, "0x8086") if not _slot(card).endswith(_INSIDE_A_CPU)]
        self._devices = _chosen(amd, ranks.amd(len(amd)), _AMD, "AMD") if amd else []
        if intel:
            seen, given = ranks.intel(sum(map(_tiles, intel)))
            cards = [place for place, card in enumerate(intel) for _ in range(_tiles(card))]
            both = {cards[number] for number in seen}, {cards[number] for number in given}
            self._devices += _chosen(intel, both, _INTEL, "Intel")
        cray = f"{root}/cray/pm_counters"
        names = _names(cray)
        numbers = sorted({match[0] for name in names if (match := re.match(r"accel\d+(?=_)", name))}, key=_last_number)
        if not self._devices and numbers:
            # Of NVIDIA's cards NVML tells more; whoever reads both leaves these out by their number.
            self._devices = [_Device("accelerator", number, cray, _ACCELERATOR, False) for number in numbers]
        self._host = _Device("host", "", cray, _WHOLE_HOST, False) if "energy" in names else None
        if not self._devices and self._host is None:
            raise OSError("no device keeps counters in files")
        for device in self._devices:
            if not {"power", "joules"} & {figure for figure, *_ in device.files}:
                self.problems.append(f"device {device.number} ({device.name}) has no counter of power or energy")

    def read(self) -> list[dict[str, Any]]:
        """Return what each device shows now."""
        rows = []
        self._looks += 1
        for device in self._devices:
            if device.silent >= _GONE and self._looks % _SELDOM:
                continue
            name = f"device {device.number} ({device.name})"
            try:
                rows.append(device.row())
            except OSError:
                device.silent += 1
                if device.silent == _GONE:
                    self.problems.append(f"{name} has gone: its files cannot be read")
                continue
            if device.silent >= _GONE:
                self.problems.append(f"{name} is back")
            device.silent = 0
        return rows

    def of_host(self) -> dict[str, Any]:
        """Return what the whole host shows: its power and energy, where it has counters of these."""
        try:
            return self._host.row() if self._host else {}
        except OSError:
            return {}


def _chosen(cards: list[str], found: tuple[set[int], set[int]], table: Any, vendor: str) -> list[_Device]:
    seen, given = found
    return [
        _Device(_text(f"{card}/device/product_name") or vendor, str(place), card, table, place in given)
        for place, card in enumerate(cards)
        if place in seen
    ]


def _cards(root: str, vendor: str) -> list[str]:
    """Return the cards of a vendor, by their place on the bus: in this order their software numbers them."""
    names = [name for name in _names(f"{root}/class/drm") if re.fullmatch(r"card\d+", name)]
    cards = [f"{root}/class/drm/{name}" for name in names]
    return sorted((card for card in cards if _text(f"{card}/device/vendor") == vendor), key=_slot)


def _slot(card: str) -> str:
    match = re.search(r"PCI_SLOT_NAME=(\S+)", _text(f"{card}/device/uevent"))
    return match[1] if match else card


def _tiles(card: str) -> int:
    """Return how many devices a card is to Level Zero: its tiles, unless it is told to show cards."""
    if os.environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE":
        return 1
    older = sum(re.fullmatch(r"gt\d+", name) is not None for name in _names(f"{card}/gt"))
    newer = sum(re.fullmatch(r"tile\d+", name) is not None for name in _names(f"{card}/device"))
    return max(1, older, newer)


def _first(base: str, paths: list[str]) -> str:
    """Return the first of several files that is there; a star stands for the only name in its place."""
    for path in paths:
        before, star, after = path.partition("*")
        folder = f"{base}/{before}".rstrip("/")
        options = [f"{folder}/{name}{after}" for name in _names(folder)] if star else [f"{base}/{path}"]
        for option in options:
            if _value(option) is not None:
                return option
    return ""


def _value(path: str) -> float | None:
    match = _NUMBER.search(_text(path))
    return float(match[0]) if match else None


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _last_number(name: str) -> int:
    return int(_NUMBER.findall(name)[-1])
