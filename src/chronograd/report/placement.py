"""Places of labels in a drawing, so that they cover neither each other nor lines and points. All lengths are points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

LETTER, HEIGHT = 4.5, 7.0  # of a label at 7 to 8 pt


@dataclass(frozen=True)
class Box:
    left: float
    bottom: float
    right: float
    top: float

    @classmethod
    def around(cls, x: float, y: float, half: float) -> Box:
        return cls(x - half, y - half, x + half, y + half)

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.bottom < other.top and other.bottom < self.top
        )


@dataclass(frozen=True)
class Side:
    """The place of a label next to its point: the distance of its edge, and its alignment in the words of matplotlib."""

    right: float
    up: float
    across: str
    along: str

    def box(self, x: float, y: float, label: str) -> Box:
        wide = LETTER * len(label)
        left = x + self.right - wide * {"left": 0.0, "center": 0.5, "right": 1.0}[self.across]
        bottom = y + self.up - HEIGHT * {"bottom": 0.0, "center": 0.5, "top": 1.0}[self.along]
        return Box(left, bottom, left + wide, bottom + HEIGHT)


# In order of preference.
SIDES = (
    Side(4.0, 3.0, "left", "bottom"),
    Side(-4.0, 3.0, "right", "bottom"),
    Side(4.0, -3.0, "left", "top"),
    Side(-4.0, -3.0, "right", "top"),
    Side(0.0, 5.0, "center", "bottom"),
    Side(0.0, -5.0, "center", "top"),
    Side(6.0, 0.0, "left", "center"),
    Side(-6.0, 0.0, "right", "center"),
)


def sides(points: Sequence[tuple[float, float]], labels: Sequence[str], covered: Sequence[Box]) -> list[Side]:
    """Return a side of each point for its label: the first that covers the fewest other labels, and of those the fewest boxes."""
    printed: list[Box] = []
    chosen = []
    for (x, y), label in zip(points, labels, strict=True):

        def hits(side: Side, x: float = x, y: float = y, label: str = label) -> tuple[int, int]:
            box = side.box(x, y, label)
            return sum(map(box.meets, printed)), sum(map(box.meets, covered))

        chosen.append(min(SIDES, key=hits))
        printed.append(chosen[-1].box(x, y, label))
    return chosen


def along(points: Sequence[tuple[float, float]]) -> list[Box]:
    """Return small boxes along the line through points."""
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(points):
        count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / 2))
        boxes += [Box.around(x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count, 0.8) for i in range(count + 1)]
    return boxes


def beside_lines(labels: Sequence[str], lines: Sequence[float], length: float) -> list[tuple[int, bool]]:
    """Return places for the labels of vertical lines: the row, 0 at the top, and whether it is left of its line.

    No label overlaps another or leaves the axis. As far as possible, none crosses another line.

    Args:
        lines: distances of the lines from the start of an axis of `length`.

    >>> beside_lines(["first knee", "second knee"], [100.0, 110.0], 300.0)
    [(0, True), (0, False)]
    """
    used: list[tuple[int, float, float]] = []
    places: dict[int, tuple[int, bool]] = {}
    for i in sorted(range(len(lines)), key=lambda number: lines[number]):
        size = 4 + LETTER * len(labels[i])
        ends = {True: (lines[i] - size, lines[i]), False: (lines[i], lines[i] + size)}

        def faults(place: tuple[int, bool], ends: dict[bool, tuple[float, float]] = ends) -> tuple[bool, int, int]:
            low, high = ends[place[1]]
            overlaps = any(row == place[0] and low < end and start < high for row, start, end in used)
            crossed = sum(low < line < high for line in lines)
            return overlaps or low < 0 or high > length, crossed, place[0]

        places[i] = min(((row, is_left) for row in range(len(lines)) for is_left in (False, True)), key=faults)
        used.append((places[i][0], *ends[places[i][1]]))
    return [places[i] for i in range(len(lines))]
