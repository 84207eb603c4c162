r"""Intel: DRM lists the cards; Level Zero shows each card, or each tile of it, as a device.

/sys/class/drm/card1/device/uevent       "DRIVER=i915\nPCI_CLASS=38000\nPCI_ID=8086:0BD5\n…PCI_SLOT_NAME=0000:18:00.0\n"
/sys/class/drm/card1/gt/gt1/id           i915: there is a second tile
/sys/class/drm/card1/device/tile1/gt1/…  xe: the same
ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE       cards; FLAT and COMBINED: tiles. Unset: FLAT, so Intel's GPU optimization guide
                                         (2024.1, "Exposing the Device Hierarchy")

A discrete card is not known by its class: Data Center cards are 0x038000, Arc cards 0x030000 like the GPU inside a
CPU, which in turn is 0x038000 on a host without a screen. The GPU inside a CPU is always at 0000:00:02.0; it is not
counted.
"""

from __future__ import annotations

from ezpz.cluster.devices.device_answer import Devices, refusal

TYPE_CHECKING = False  # `typing` costs 5 ms; type checkers know this spelling
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ezpz.cluster.allocation import Read, Run

KIND = "xpu"
LOOKED = "/sys/class/drm"
_INSIDE_A_CPU = "0000:00:02.0"
_LONGEST_GAP = 16  # card numbers without a card between two cards
_HIERARCHIES = ("FLAT", "COMPOSITE", "COMBINED")
_MOST_TILES = 8
# A file that is there when the tile is: i915; xe numbers its GTs through all tiles, one or two per tile.
_SECOND_TILE = ("gt/gt{0}/id", "device/tile{0}/gt{0}/freq0/min_freq", "device/tile{0}/gt{1}/freq0/min_freq")


def exists(environ: Mapping[str, str], read: Read) -> int | None:
    """Return how many devices the hierarchy makes of the discrete cards, or None without one."""
    match = tiles(read)
    if not match:
        return None
    return len(match) if hierarchy(environ) == "COMPOSITE" else sum(match)


def probe(environ: Mapping[str, str], read: Read, run: Run) -> Devices:
    """Return the cards or tiles; no process is needed."""
    del run
    count = exists(environ, read) or 0
    return Devices(count, KIND if count else "cpu", f"{LOOKED}, {hierarchy(environ)}")


def hierarchy(environ: Mapping[str, str]) -> str:
    """Return what Level Zero calls a device.

    Raises:
        UsageError: ``ZE_FLAT_DEVICE_HIERARCHY`` is none of the three.
    """
    output = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "")
    if output and output not in _HIERARCHIES:
        raise refusal("the device hierarchy", "ZE_FLAT_DEVICE_HIERARCHY", output, "FLAT, COMPOSITE or COMBINED")
    return output or "FLAT"


def tiles(read: Read) -> list[int]:
    """Return the tiles of each discrete card."""
    return [_tiles(card, read) for card, slot in _cards(read) if slot != _INSIDE_A_CPU]


def overlooked(read: Read) -> str:
    """Return a sentence about the GPU inside the CPU, which is not counted; empty without one."""
    if not any(slot == _INSIDE_A_CPU for _, slot in _cards(read)):
        return ""
    return (
        f"the Intel GPU inside the CPU ({_INSIDE_A_CPU}) is not counted; to use it, run "
        "`export TORCH_DEVICE=xpu EZPZ_NGPU_PER_HOST=1`"
    )


def _cards(read: Read) -> list[tuple[str, str]]:
    cards = []
    number = gap = 0
    while gap <= _LONGEST_GAP:
        text = read(f"{LOOKED}/card{number}/device/uevent")
        gap = gap + 1 if text is None else 0
        facts = dict(line.partition("=")[::2] for line in (text or "").splitlines())
        if facts.get("PCI_ID", "").startswith("8086:") and facts.get("DRIVER") in {"i915", "xe"}:
            cards.append((f"{LOOKED}/card{number}", facts.get("PCI_SLOT_NAME", "")))
        number += 1
    return cards


def _tiles(card: str, read: Read) -> int:
    for tile in range(1, _MOST_TILES):
        if all(read(f"{card}/{path.format(tile, 2 * tile)}") is None for path in _SECOND_TILE):
            return tile
    return _MOST_TILES
