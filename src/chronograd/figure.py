"""Figure: a plot as plain data. `plots` draws it; a page also shows the same data as a table.

Predictions are lines with a band, measurements are points with bars. The axis label names the unit of the values. Pictures are
PNG in base64, so that a figure is JSON.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chronograd.errors import MissingExtraError
from chronograd.files import open_plain
from chronograd.record import Number

Role = Literal["predicted", "measured", "reference"]
Numbers = Sequence[Number | None]


@dataclass(frozen=True)
class Series:
    """One line with a band (predicted), points with bars (measured) or a dashed line (reference).

    `low` and `high` are empty or as long as `y`, such as mean ± standard deviation over seeds. `color` is a name of PALETTE. If
    it is empty, the role has a colour; several measured series then get one each. A predicted scatter has hollow points instead
    of a line. A joined measured series has a thin line through its points. `notes`, one per point or none, are printed next to
    the points.
    """

    label: str
    role: Role
    x: Sequence[Number]
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    color: str = ""
    is_scatter: bool = False
    is_joined: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Mark:
    """A labelled line across the whole axis, such as a target."""

    axis: Literal["x", "y"]
    at: float
    label: str


@dataclass(frozen=True)
class Lines:
    """Series against a number. `x_ticks`, if given, are the only ticks, such as world sizes. `most_y` is the end of the y axis
    if no value can be larger.

    `x_names` replace the numbers of the ticks: a categorical axis. `title` distinguishes one of several panels.
    """

    x_label: str
    y_label: str
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False
    x_ticks: Sequence[Number] = ()
    x_names: Sequence[str] = ()
    title: str = ""
    most_y: Number | None = None
    kind: Literal["lines"] = "lines"

    def __post_init__(self) -> None:
        if self.x_names and len(self.x_names) != len(self.x_ticks):
            raise ValueError(
                f"{len(self.x_names)} x_names for {len(self.x_ticks)} x_ticks of {self.y_label!r}; give one name per tick"
            )

    def data(self) -> list[dict[str, Any]]:
        names = dict(zip(self.x_ticks, self.x_names, strict=True)) if self.x_names else {}
        rows = []
        for s in self.series:
            for i, (x, y) in enumerate(zip(s.x, s.y, strict=True)):
                row: dict[str, Any] = {"series": s.label, self.x_label: names.get(x, x), self.y_label: y}
                if s.low and s.high:
                    row |= {"low": s.low[i], "high": s.high[i]}
                rows.append(row)
        return rows


@dataclass(frozen=True)
class Bar:
    """A stacked bar: segment → length. `low` and `high` bound the whole; `note` is printed at its end."""

    label: str
    role: Role
    segments: dict[str, float]
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, top to bottom; measured ones solid, predicted ones light. `colors`: segment → PALETTE."""

    x_label: str
    y_label: str
    bars: Sequence[Bar]
    colors: dict[str, str] = field(default_factory=dict)
    kind: Literal["bars"] = "bars"

    def data(self) -> list[dict[str, Any]]:
        return [
            {self.y_label: b.label, "segment": name, self.x_label: value}
            for b in self.bars
            for name, value in b.segments.items()
        ]


@dataclass(frozen=True)
class Range:
    """A predicted value and interval, and the measured one, both relative to the measured value."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None


@dataclass(frozen=True)
class Ranges:
    """Predictions divided by measurements, one line each, on a logarithmic axis around 1."""

    x_label: str
    y_label: str
    ranges: Sequence[Range]
    kind: Literal["ranges"] = "ranges"

    def data(self) -> list[dict[str, Any]]:
        return [asdict(r) for r in self.ranges]


@dataclass(frozen=True)
class Picture:
    """A PNG in base64, as `png_base64` returns it, and its title of one or more lines."""

    title: str
    png_base64: str

    def __post_init__(self) -> None:
        if not self.png_base64.startswith(_PNG_HEAD):
            raise ValueError(f"picture {self.title!r} is not PNG in base64; make it with png_base64")


@dataclass(frozen=True)
class PictureRow:
    """Pictures side by side, with a label at their left."""

    label: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Pictures:
    """A grid of pictures, drawn without smoothing. `rows` may differ in length; their left edges are aligned."""

    rows: Sequence[PictureRow]
    x_label: str = ""
    y_label: str = ""
    kind: Literal["pictures"] = "pictures"

    def __post_init__(self) -> None:
        if not any(row.pictures for row in self.rows):
            raise ValueError(f"none of {len(self.rows)} rows has a picture; give one, or leave the panel out")

    def data(self) -> list[dict[str, Any]]:
        """Return label and title of each picture, without its pixels."""
        return [{"row": row.label, "picture": p.title.replace("\n", ", ")} for row in self.rows for p in row.pictures]


@dataclass(frozen=True)
class Span:
    """The activity of a lane between two times. A parallel one, such as a push while the next gradient is computed, is drawn
    below it. `note` is printed in it if there is room.
    """

    lane: int
    part: str
    start: float
    end: float
    note: str = ""
    is_beside: bool = False


@dataclass(frozen=True)
class Push:
    """A gradient that arrives: the time `at`, the version of the weights, and its staleness."""

    lane: int
    at: float
    version: int
    staleness: int


@dataclass(frozen=True)
class Lanes:
    """Processes over time, a lane each, top to bottom; for asynchronous SGD also the server's versions.

    Attributes:
        versions: time and number of each, in order; none without a server. Pushes at other times wait for their update.
        colors: part → PALETTE. `role`: predicted spans are light, measured ones solid.
    """

    x_label: str
    lanes: Sequence[str]
    spans: Sequence[Span]
    pushes: Sequence[Push]
    versions: Sequence[tuple[float, int]]
    colors: dict[str, str]
    role: Role = "predicted"
    y_label: str = ""
    kind: Literal["lanes"] = "lanes"

    def data(self) -> list[dict[str, Any]]:
        if not self.versions:
            return [
                {"part": self.lanes[s.lane], "does": s.part, self.x_label: s.start, "until": s.end} for s in self.spans
            ]
        return [
            {"learner": self.lanes[p.lane], self.x_label: p.at, "version": p.version, "staleness": p.staleness}
            for p in self.pushes
        ]


Panel = Annotated[Lines | Bars | Ranges | Pictures | Lanes, Field(discriminator="kind")]


@dataclass(frozen=True)
class Figure:
    """One panel across the page, or several side by side."""

    panels: Sequence[Panel]

    def rows(self) -> list[dict[str, Any]]:
        """Return the plotted values, one row per point or segment."""
        return [row for panel in self.panels for row in panel.data()]


# Every PNG begins with these bytes, which are whole groups of base64.
_PNG_HEAD = base64.b64encode(b"\x89PNG\r\n").decode()


def png_base64(pixels_HWC: npt.NDArray[np.uint8]) -> str:
    """Return the PNG of 8-bit pixels, in base64.

    Args:
        pixels_HWC: uint8, with 1 (grey), 3 (RGB) or 4 (RGBA) channels; grey pixels may lack the axis.

    Raises: ValueError for another type or shape, MissingExtraError without Pillow.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "report", "making pictures") from None
    grey = pixels_HWC[:, :, 0] if pixels_HWC.ndim == 3 and pixels_HWC.shape[2] == 1 else pixels_HWC
    is_picture = grey.ndim == 2 or (grey.ndim == 3 and grey.shape[2] in (3, 4))
    if grey.dtype != np.uint8 or not is_picture or not grey.size:
        raise ValueError(
            f"pixels of {pixels_HWC.dtype}, shape {pixels_HWC.shape}, are no picture; "
            "give uint8 pixels of shape height × width × 1, 3 or 4"
        )
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(grey)).save(stream, format="PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def save_gif(path: Path, pictures: Sequence[npt.NDArray[np.uint8]], seconds_each: float, width: int) -> None:
    """Save pictures (height, width, 3) as an endless GIF. Raises MissingExtraError without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "report", "making pictures") from None
    images = [Image.fromarray(pixels) for pixels in pictures]
    if images[0].width > width:
        size = (width, round(images[0].height * width / images[0].width))
        images = [image.resize(size, Image.Resampling.BOX) for image in images]
    palettes = [image.quantize(64) for image in images]
    palettes[0].save(
        path, format="GIF", save_all=True, append_images=palettes[1:], duration=round(1000 * seconds_each), loop=0
    )


def gif_moments(path: Path, count: int) -> list[tuple[int, str]]:
    """Return `count` pictures of a GIF, evenly from the first to the last: the number of each, and a PNG in base64."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "report", "showing pictures") from None
    with open_plain(path) as stream, Image.open(stream) as image:
        total = getattr(image, "n_frames", 1)
        chosen = sorted({round(i * (total - 1) / max(count - 1, 1)) for i in range(count)})
        moments = []
        for number in chosen:
            image.seek(number)
            moments.append((number, png_base64(np.asarray(image.convert("RGB")))))
    return moments


# Name → colour on a light and on a dark ground. Hues are those of Okabe and Ito 2008, which people with colour-blindness can
# distinguish, toned down for large areas.
PALETTE = {
    "ink": ("#1d2026", "#e8e6e1"),
    "muted": ("#656b75", "#a0a5ae"),
    "rule": ("#dcdad4", "#3a3e45"),
    "ground": ("#fefefd", "#1d2025"),
    "accent": ("#2b5fa8", "#82b1f2"),
    "sky": ("#4a9cc9", "#6cbbe6"),
    "blue": ("#33619e", "#6f9fdd"),
    "orange": ("#df9a2f", "#e9b05a"),
    "vermilion": ("#c9532c", "#ec835d"),
    "green": ("#2e8b6c", "#5fbf9d"),
    "purple": ("#8e6aa8", "#bb98d6"),
    "rose": ("#b8567f", "#e08aae"),
    "teal": ("#2a7f8f", "#5fb6c6"),
    "brown": ("#8a6a45", "#c3a078"),
    "grey": ("#8d9199", "#8b9099"),
}
ROLE_COLORS: dict[Role, str] = {"predicted": "accent", "measured": "ink", "reference": "muted"}
PART_COLORS = {
    "input": "sky",
    "transfer": "purple",
    "forward": "blue",
    "backward": "orange",
    "exposed communication": "vermilion",
    "update": "green",
    "not split": "grey",
}
SERIES_COLORS = ("teal", "rose", "brown", "accent", "purple", "green", "vermilion", "orange", "sky", "grey")
