"""Draw SVG: places of values, axes and their ticks, lines. Colours are left to the style sheet."""

from __future__ import annotations

from math import ceil, isnan
from typing import TYPE_CHECKING, Any, NamedTuple

from ezpz.view.axes import compacted, nice_ticks
from ezpz.view.report.markup import shown

if TYPE_CHECKING:
    from collections.abc import Iterable


class Frame(NamedTuple):
    """The size of a picture and, inside of it, where its plot lies: all in pixels."""

    width: int
    height: int
    left: int = 58
    top: int = 8
    right: int = 14
    bottom: int = 26

    @property
    def inside(self) -> tuple[int, int]:
        """Width and height of the plot."""
        return self.width - self.left - self.right, self.height - self.top - self.bottom

    @property
    def box(self) -> list[int]:
        """Left, top, width and height of the plot."""
        return [self.left, self.top, *self.inside]


_DIGIT = 7.2  # pixels of a digit of a label
_BESIDE = 8  # pixels between a label and the plot


def with_room(frame: Frame, ends: tuple[float, float]) -> Frame:
    """Return a frame that has room for the labels of values between two ends."""
    longest = max(map(len, compacted(*nice_ticks(*ends))))
    return frame._replace(left=max(frame.left, ceil(_DIGIT * longest) + _BESIDE))


WIDE, HALF, NARROW = Frame(1180, 320), Frame(572, 220), Frame(400, 250, left=46)


def place(values: Any, ends: tuple[float, float], size: float, *, upward: bool = False) -> Any:
    """Return where values lie between two ends, in pixels; halves keep 1e308 and its opposite apart."""
    import numpy as np

    low, high = ends
    with np.errstate(over="ignore", invalid="ignore"):
        share = (np.asarray(values, dtype=np.float64) / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
        share = np.clip(share, -4.0, 5.0)  # far outside is outside; drawing programs dislike huge coordinates
    return (1.0 - share) * size if upward else share * size


def span(steps: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis of steps, which are two even for one step."""
    known = list(steps)
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    return (low - 1.0, high + 1.0) if low == high else (low, high)


def path(xs: Any, ys: Any) -> str:
    """Return a line through points; NaN is a gap, and a point between two gaps stays as a dot."""
    pieces: list[list[str]] = [[]]
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if isnan(y):
            pieces.append([])
        else:
            pieces[-1].append(f"{x:.1f},{y:.1f}".replace(".0", ""))
    return "".join(f"M{' '.join(piece)}{'h0' if len(piece) == 1 else ''}" for piece in pieces if piece)


def dots(xs: Any, ys: Any) -> str:
    """Return a dot for each point."""
    return "".join(f"M{x:.1f},{y:.1f}h0" for x, y in zip(xs.tolist(), ys.tolist(), strict=True) if not isnan(y))


def axis_x(frame: Frame, ends: tuple[float, float], *, whole: bool = True) -> str:
    """Return the axis of steps below a plot; with ``whole=False`` of something else."""
    width, height = frame.inside
    ticks, labels = nice_ticks(*ends, whole=whole)
    bottom = frame.top + height
    parts = [f'<path class="axis" d="M{frame.left},{bottom}h{width}"/>']
    for x, label in zip(place(ticks, ends, width).tolist(), compacted(ticks, labels), strict=True):
        at = frame.left + x
        # Labels at the very ends would leave the picture.
        anchor = "end" if at > frame.width - 24 else "middle"
        at_text = min(at, frame.width - 2) if anchor == "end" else at
        parts.append(f'<path class="axis" d="M{at:.1f},{bottom}v4"/>')
        parts.append(f'<text x="{at_text:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{shown(label)}</text>')
    return f'<g class="xa">{"".join(parts)}</g>'


def axis_y(frame: Frame, ends: tuple[float, float], suffix: str = "") -> str:
    """Return the axis of values left of a plot, with a line across it for each tick."""
    width, height = frame.inside
    ticks, labels = nice_ticks(*ends)
    parts = []
    for y, label in zip(place(ticks, ends, height, upward=True).tolist(), compacted(ticks, labels), strict=True):
        at = frame.top + y
        parts.append(f'<path class="rule" d="M{frame.left},{at:.1f}h{width}"/>')
        parts.append(
            f'<text x="{frame.left - _BESIDE}" y="{at + 4:.1f}" text-anchor="end">{shown(label)}{suffix}</text>'
        )
    return f'<g class="ya">{"".join(parts)}</g>'


def marks(frame: Frame, ends: tuple[float, float], restarts: Iterable[float]) -> str:
    """Return an upright line at each step at which the run was started again."""
    width, height = frame.inside
    inside = [step for step in restarts if ends[0] <= step <= ends[1]]
    places = place(inside, ends, width).tolist()
    return "".join(
        f'<path class="restart" d="M{frame.left + x:.1f},{frame.top}v{height}">'
        f"<title>restart at step {step:.0f}</title></path>"
        for step, x in zip(inside, places, strict=True)
    )


def plot(frame: Frame, inside: str) -> str:
    """Return the plot itself: what leaves its box is not seen, except that dots at the sides stay round."""
    left, top, width, height = frame.box
    room = 4
    return (
        f'<svg class="plot" x="{left - room}" y="{top}" width="{width + 2 * room}" height="{height}" '
        f'viewBox="{-room} 0 {width + 2 * room} {height}" overflow="hidden">{inside}</svg>'
    )
