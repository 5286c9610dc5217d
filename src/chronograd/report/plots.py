"""Drawings of a `Figure` with matplotlib, as SVG for a page or as a matplotlib figure for a notebook.

The SVG is deterministic, keeps its text as text, and names its colours as CSS variables (`--c-accent`), which a page may set
for dark mode. A standalone drawing uses the light colours.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.errors import FileFormatError, InputError, MissingExtraError
from chronograd.figure import (
    PALETTE,
    ROLE_COLORS,
    SERIES_COLORS,
    Bar,
    Bars,
    Figure,
    Lanes,
    Lines,
    Panel,
    Picture,
    Pictures,
    Range,
    Ranges,
    Series,
)
from chronograd.files import as_asked
from chronograd.report import lanes, placement
from chronograd.report.svg import standalone


@contextmanager
def elsewhere() -> Iterator[None]:
    """Leave the working directory: matplotlib reads its settings (`matplotlibrc`) there, and a stranger's would run programs."""
    before = None
    with suppress(OSError):
        before = os.getcwd()
    os.chdir(Path(__file__).parent)
    try:
        yield
    finally:
        if before is not None:
            os.chdir(before)


try:
    with elsewhere():
        import matplotlib
        from matplotlib.axes import Axes
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Drawing
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch
        from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
        from matplotlib.transforms import ScaledTranslation
        from PIL import Image  # comes with matplotlib
except ImportError:
    raise MissingExtraError("matplotlib", "report", "drawing plots") from None

# Settings of the user, or of the folder of a notebook, would give other drawings.
_DEFAULTS = {name: value for name, value in matplotlib.rcParamsDefault.items() if not name.startswith("backend")}
COLORS = {name: light for name, (light, _) in PALETTE.items()}
# Widths in points: 1 pt of the drawing is about 1.4 px on the page, so text of 8.5 pt looks like 12 px.
WIDE, HALF = 620.0, 280.0  # a wide one has a variant of half the width, for small screens
MANY_POINTS = 40
MANY_BARS = 12  # a joined series with more points has a band instead of bars; a predicted one, a line without points
LABEL_LETTER, HANDLE = 4.9, 26.0  # points of a legend: the width of a letter, and of the handle before a label
APART = 6.5  # points between the bars of series at the same x: the width of their caps
SMALLEST_PICTURE = 36.0  # points
MAX_PIXELS = 4_000_000  # of one picture; matplotlib takes 16 bytes for each
_GAP, _LETTER, _LINE = 7.0, 4.5, 9.5  # points: between pictures; width of a letter and height of a line at 8 pt
_TITLE = 14.0  # height of a panel's title
_TITLE_LETTER = 4.6
_PLOT = 0.85  # share of a drawing's width, and of its height below the legend, within the axes
_RING, _NEXT_RING = 5.0, 4.0  # points: a hollow point, and how much larger one around it is
_MOST_RINGS = 20  # points of a series: among more, rings would meet others than those around which they are drawn
_TOLD, _FOUND = "predicted, 80 % interval", "measured, 80 % interval"
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "chronograd",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the layout does not depend on the machine
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "text.color": COLORS["ink"],
    "axes.labelcolor": COLORS["muted"],
    "axes.edgecolor": COLORS["rule"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "xtick.color": COLORS["rule"],
    "ytick.color": COLORS["rule"],
    "xtick.labelcolor": COLORS["muted"],
    "ytick.labelcolor": COLORS["muted"],
    "grid.color": COLORS["rule"],
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}


def svg(figure: Figure) -> str:
    """Return the drawings of the panels, joined."""
    return "\n".join(svgs(figure))


def svgs(figure: Figure) -> list[str]:
    """Return one `<svg>` per panel; nothing in it refers to anything outside."""
    width = WIDE if len(figure.panels) == 1 else HALF
    return [_svg(panel, width, "wide" if width == WIDE else "half") for panel in figure.panels]


def svgs_of_page(figure: Figure) -> list[str]:
    """Return the same, and for a wide drawing a narrow one for small screens; a page shows one of them. Pictures stay."""
    has_narrow = len(figure.panels) == 1 and not isinstance(figure.panels[0], Pictures)
    narrow = [_svg(figure.panels[0], HALF, "narrow")] if has_narrow else []
    return [*svgs(figure), *narrow]


def draw(figure: Figure) -> Drawing:
    """Return a matplotlib figure with its panels side by side, on a light ground."""
    width = WIDE if len(figure.panels) == 1 else HALF * len(figure.panels)
    height = max(_height(panel, width / len(figure.panels)) for panel in figure.panels)
    with _style():
        drawing = Drawing(figsize=(width / 72, height / 72), dpi=130, facecolor=COLORS["ground"])
        _set_layout(drawing, figure.panels)
        parts = drawing.subfigures(1, len(figure.panels), squeeze=False)[0]
        for part, panel in zip(parts, figure.panels, strict=True):
            part.set_facecolor(COLORS["ground"])
            _draw(part, panel, width / len(figure.panels))
        drawing.draw_without_rendering()  # fixes the layout while the style is set
    return drawing


def save(figure: Figure, path: Path) -> None:
    """Write a standalone drawing, SVG or PNG by the ending of the name. Raises InputError for another ending, and if it fails."""
    is_png = path.suffix.lower() == ".png"
    if not is_png and path.suffix.lower() != ".svg":
        raise InputError(f"{path} is not the name of a picture", "name a file that ends in .svg or .png")
    with as_asked(path):
        if is_png:
            draw(figure).savefig(path, format="png")
        else:
            path.write_text(standalone(svgs(figure)), encoding="utf-8")


def _set_layout(drawing: Drawing, panels: Sequence[Panel]) -> None:
    """Set the layout: grids of pictures here, all else by matplotlib."""
    if all(isinstance(panel, Pictures) for panel in panels):
        drawing.set_layout_engine("none")


def _svg(panel: Panel, width: float, css_class: str) -> str:
    stream = io.StringIO()
    with _style():
        drawing = Drawing(figsize=(width / 72, _height(panel, width) / 72))
        _set_layout(drawing, [panel])
        FigureCanvasSVG(drawing)
        _draw(drawing, panel, width)
        drawing.savefig(stream, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    return _tidy(stream.getvalue(), css_class)


_METADATA = ("Date", "Creator", "Format", "Type")


def _tidy(text: str, css_class: str) -> str:
    """Return the bare `<svg>` element: no prolog, no metadata, no unused ids, colours as variables."""
    text = text[text.index("<svg") :]
    before, _, after = text.partition("<metadata>")
    text = before.rstrip() + after.partition("</metadata>")[2]
    text = re.sub(r'(<g|<svg|<use|<path|<text) id="[A-Za-z0-9]+_[0-9]+"', r"\1", text)
    text = re.sub(r'(<image [^>]*?matrix\(([\d.]+)[^>]*?) style="image-rendering[^"]*"', _smoothed, text)
    for old, content in re.findall(
        r'<(?:clipPath|path) id="([mp][0-9a-f]{10})"(.*?)(?:</clipPath>|/>)', text, re.DOTALL
    ):
        # matplotlib hashes before rounding, so another processor's last digit would give another drawing.
        text = text.replace(old, old[0] + css_class[0] + hashlib.sha256(content.encode()).hexdigest()[:10])
    head, body = text.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None, "matplotlib always writes a viewBox"
    for name, color in COLORS.items():
        body = body.replace(color, f"var(--c-{name}, {color})")
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {names} class="{css_class}" role="img" {box[0]}>{body.strip()}'


def _smoothed(image: re.Match[str]) -> str:
    """Smooth an image that is shrunk, where pixels would be missing, in letters too. Enlarged images keep sharp pixels."""
    css_pixels_of_each = float(image[2]) * 96 / 72
    return image[0] if css_pixels_of_each >= 1 else image[1]


@contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcParams.update(_DEFAULTS | _RC)
        # Text stays text, so the reader's own fonts draw a glyph that this font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _height(panel: Panel, width: float) -> float:
    """Return the height of the drawing and of the legend above it."""
    if isinstance(panel, Pictures):
        return _Grid.of(panel, width).height
    if isinstance(panel, Bars):
        labels, plot = (
            _segments(panel),
            44 + _row_height([bar.label for bar in panel.bars], width, 22) * len(panel.bars),
        )
    elif isinstance(panel, Lanes):
        labels, plot = lanes.parts(panel), lanes.height(panel)
    elif isinstance(panel, Ranges):
        names = [one.label for one in panel.ranges]
        labels, plot = [_TOLD, _FOUND], 48 + _row_height(names, width, 19) * len(names)
    else:
        labels = [s.label for s in panel.series]
        plot = (0.46 * width if width == WIDE else 0.8 * width) + _TITLE * bool(panel.title)
        if panel.x_names:
            plot += _Names.of(panel, width).room
    return plot + (_legend_height(labels, width) if len(labels) > 1 else 0.0)


def _draw(target: Any, panel: Panel, width: float) -> None:
    if isinstance(panel, Pictures):
        _pictures(target, panel, width)
        return
    axes: Axes = target.subplots()
    axes.tick_params(length=2.5, width=0.8)
    if isinstance(panel, Bars):
        handles = _bars(axes, panel, width)
    elif isinstance(panel, Lanes):
        lanes.draw(axes, panel, COLORS, width)
        _ticks(axes.xaxis, False)
        handles = {part: Patch(color=face) for part, face in lanes.faces(panel, COLORS).items()}
    elif isinstance(panel, Ranges):
        handles = _ranges(axes, panel.ranges, width)
    else:
        handles = _lines(axes, panel, width)
    axes.set_xlabel(textwrap.fill(panel.x_label, int(0.85 * width / _LETTER)))
    axes.set_ylabel(textwrap.fill(panel.y_label, int(0.7 * _height(panel, width) / _LETTER)))
    if isinstance(panel, Lines) and panel.title:
        axes.set_title(panel.title, loc="left", fontsize=8.5, color=COLORS["ink"], pad=5)
    if len(handles) > 1:
        _legend(target, handles, width)


def _legend_labels(labels: Sequence[str], width: float) -> list[str]:
    """Return whole labels, in lines if one is wider than the drawing."""
    return [textwrap.fill(label, int((width - HANDLE) / LABEL_LETTER)) for label in labels]


def _legend_columns(labels: Sequence[str], width: float) -> int:
    lengths = [max(map(len, label.split("\n"))) * LABEL_LETTER + HANDLE for label in _legend_labels(labels, width)]
    if sum(lengths) <= width:
        return len(labels)
    return max(1, min(len(labels), int(width / max(lengths))))


def _legend_height(labels: Sequence[str], width: float) -> float:
    lines = max(label.count("\n") + 1 for label in _legend_labels(labels, width))
    return 12.5 * lines * -(-len(labels) // _legend_columns(labels, width))


def _legend(target: Any, handles: dict[str, Any], width: float) -> None:
    target.legend(
        handles.values(),
        _legend_labels(list(handles), width),
        loc="outside upper left",
        ncols=_legend_columns(list(handles), width),
        frameon=False,
        handlelength=1.6,
        columnspacing=1.4,
        labelcolor=COLORS["ink"],
        borderpad=0.2,
        borderaxespad=0.1,
    )


# -- series against a number ---------------------------------------------------------------------


def _lines(axes: Axes, panel: Lines, width: float) -> dict[str, Any]:
    axes.grid(axis="y")
    strength = min(0.15, 0.6 / max(1, len(panel.series)))  # opacity of a band: many of them stay readable
    handles, shifts = {}, _shifts(panel, width)
    for s, color, shift in zip(panel.series, _colors(panel), shifts, strict=True):
        handles[s.label] = _SERIES[s.role](axes, s, COLORS[color], strength)
        if shift:
            _move(axes, handles[s.label], shift)
    _nest_rings(panel, handles)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    beside = max(shifts, default=0.0) + 5.0 if any(shifts) else 0.0  # points that moved bars extend beyond the data
    axes.margins(x=max(0.04, beside / (0.8 * width - 2 * beside)), y=0.08)
    _ticks(axes.xaxis, panel.log_x, panel.x_ticks)
    _ticks(axes.yaxis, panel.log_y)
    if panel.x_names:
        _name_ticks(axes, panel, width)
    _marks(axes, panel, width)
    if panel.from_zero:  # last, because an axis with a fixed limit no longer adapts to the data
        axes.set_ylim(bottom=0)
    if panel.most_y is not None and axes.get_ylim()[1] > panel.most_y:
        axes.set_ylim(top=panel.most_y)
    _notes(axes, panel, width)
    return handles


def _nest_rings(panel: Lines, handles: dict[str, Any]) -> None:
    """Draw hollow points of several series at the same place as rings around each other, where a series has few points."""
    rings = [s for s in panel.series if s.role == "predicted" and s.is_scatter and len(s.x) <= _MOST_RINGS]
    for i, s in enumerate(rings):
        points = {(x, y) for x, y in zip(s.x, s.y, strict=True) if y is not None}
        around = sum(any(_is_near(a, b) for a in points for b in zip(t.x, t.y, strict=True)) for t in rings[:i])
        handles[s.label].set_markersize(_RING + _NEXT_RING * around)


def _is_near(a: tuple[float, float], b: tuple[float, float | None]) -> bool:
    return a[0] == b[0] and b[1] is not None and math.isclose(a[1], b[1], rel_tol=0.02, abs_tol=1e-9)


def _colors(panel: Lines) -> list[str]:
    """Return names of PALETTE, one per series: its own, that of its role, or the next free one if several of a role have none."""
    free_of_role = {
        role: [s for s in panel.series if s.role == role and not s.color] for role in ("measured", "predicted")
    }
    own = [s.color or ("" if len(free_of_role.get(s.role, ())) > 1 else ROLE_COLORS[s.role]) for s in panel.series]
    free = [color for color in SERIES_COLORS if color not in own] or list(SERIES_COLORS)
    taken = 0
    for i, color in enumerate(own):
        if not color:
            own[i] = free[taken % len(free)]
            taken += 1
    return own


def _shifts(panel: Lines, width: float) -> list[float]:
    """Return the shift of each series to the right, in points, so that bars at the same x stand side by side."""
    barred = [i for i, s in enumerate(panel.series) if _has_bars(s)]
    shifts = [0.0] * len(panel.series)
    places = [math.log10(x) if panel.log_x else x for i in barred for x in panel.series[i].x]
    distinct = sorted(set(places))
    if len(barred) < 2 or len(distinct) == len(places):
        return shifts
    apart = APART
    if len(distinct) > 1:
        gap = min(b - a for a, b in pairwise(distinct))
        gap_pt = gap / (distinct[-1] - distinct[0]) * 0.8 * width
        apart = min(APART, 0.6 * gap_pt / (len(barred) - 1))
    if apart >= 1:
        for rank, i in enumerate(barred):
            shifts[i] = apart * (rank - (len(barred) - 1) / 2)
    return shifts


def _move(axes: Axes, drawn: Any, right: float) -> None:
    """Move a drawn element by points; the limits of the axes stay those of its data."""
    drawing = axes.get_figure(root=True)
    assert drawing is not None, "axes that are drawn on have a figure"
    for artist in drawn.get_children():
        artist.set_transform(artist.get_transform() + ScaledTranslation(right / 72, 0, drawing.dpi_scale_trans))


@dataclass(frozen=True)
class _Names:
    """Names of ticks as lines of text. If they do not fit side by side, they are slanted, on one line each."""

    names: list[list[str]]
    is_slanted: bool

    @classmethod
    def of(cls, panel: Lines, width: float) -> _Names:
        letters = int(0.85 * width / len(panel.x_names) / _LETTER)
        names = [textwrap.wrap(name, max(1, letters), break_long_words=False) or [""] for name in panel.x_names]
        if all(len(lines) <= 3 and max(map(len, lines)) <= letters for lines in names):
            return cls(names, False)
        return cls([[name] for name in panel.x_names], True)

    @property
    def room(self) -> float:
        """Return the height in points beyond that of one line."""
        if self.is_slanted:
            return 0.5 * _LETTER * max(len(lines[0]) for lines in self.names)
        return _LINE * (max(map(len, self.names)) - 1)


def _name_ticks(axes: Axes, panel: Lines, width: float) -> None:
    names = _Names.of(panel, width)
    if names.is_slanted:
        axes.set_xticks(list(panel.x_ticks), [lines[0] for lines in names.names], rotation=30, ha="right",
                        rotation_mode="anchor")  # fmt: skip
    else:
        # Each line is a separate text, so that it is centred in the font of any page.
        axes.set_xticks(list(panel.x_ticks), [""] * len(panel.x_ticks))
        for x, lines in zip(panel.x_ticks, names.names, strict=True):
            for row, line in enumerate(lines):
                axes.annotate(line, (x, 0), (0, -5 - _LINE * row), xycoords=axes.get_xaxis_transform(), va="top",
                              textcoords="offset points", ha="center", color=COLORS["muted"])  # fmt: skip
        axes.xaxis.labelpad = names.room + _LINE + 1
    ticks = sorted(panel.x_ticks)
    if not panel.log_x and len(ticks) > 1:
        half = min(b - a for a, b in pairwise(ticks)) / 2
        axes.set_xlim(ticks[0] - half, ticks[-1] + half)


def _predicted(axes: Axes, s: Series, color: str, strength: float) -> Any:
    x, y, low, high = _known(s)
    if s.is_scatter:
        return axes.plot(x, y, "o", color=color, markersize=_RING, markerfacecolor="none", markeredgewidth=1.2)[0]
    alone = len(x) == 1
    if 1 < len(x) <= MANY_BARS:
        style: dict[str, Any] = {
            "marker": "o",
            "markersize": 3.6,
            "markerfacecolor": COLORS["ground"],
            "markeredgewidth": 1.1,
        }
        (line,) = axes.plot(x, y, color=color, zorder=3, **style)
    else:
        (line,) = axes.plot(
            x, y, color=color, marker="_" if alone else "", markersize=12, markeredgewidth=1.6, zorder=3
        )
    if alone and s.low:
        axes.vlines(x, low, high, color=color, linewidth=7, alpha=0.2, zorder=2)
    elif s.low:
        axes.fill_between(x, low, high, color=color, alpha=strength, linewidth=0, zorder=2)
    return line


def _measured(axes: Axes, s: Series, color: str, strength: float) -> Any:
    x, y, low, high = _known(s)
    if _has_band(s):
        marker = "o" if len(x) <= MANY_POINTS else ""
        axes.fill_between(x, low, high, color=color, alpha=strength, linewidth=0, zorder=2)
        return axes.plot(x, y, color=color, linewidth=1.1, marker=marker, markersize=2.2, zorder=3)[0]
    if len(x) > MANY_POINTS and s.is_joined:
        return axes.plot(x, y, color=color, linewidth=1.1, zorder=3)[0]
    if len(x) > MANY_POINTS:
        axes.plot(x, y, ".", color=color, markersize=3, alpha=0.5, markeredgewidth=0, zorder=2.5)
        return Line2D([], [], linestyle="", marker="o", color=color, markersize=3)
    lengths = [
        [max(0.0, v - a) for v, a in zip(y, low, strict=True)],
        [max(0.0, b - v) for v, b in zip(y, high, strict=True)],
    ]
    return axes.errorbar(
        x,
        y,
        yerr=lengths if s.low else None,
        fmt="o-" if s.is_joined else "o",
        color=color,
        linewidth=0.9,
        markersize=4,
        capsize=3,
        elinewidth=1.2,
        zorder=4,
    )


def _has_bars(s: Series) -> bool:
    return s.role == "measured" and bool(s.low) and len(s.x) <= (MANY_BARS if s.is_joined else MANY_POINTS)


def _has_band(s: Series) -> bool:
    """Return whether a measured series has too many points for bars."""
    return s.is_joined and bool(s.low) and len(s.x) > MANY_BARS


def _reference(axes: Axes, s: Series, color: str, _: float) -> Any:
    x, y = _known(s)[:2]
    (line,) = axes.plot(x, y, color=color, linewidth=1, linestyle=(0, (4, 3)), zorder=1.5)
    return line


_SERIES: dict[str, Callable[[Axes, Series, str, float], Any]] = {
    "predicted": _predicted,
    "measured": _measured,
    "reference": _reference,
}


def _known(s: Series) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return the points that have a value; a missing bound equals the value."""
    lows, highs = s.low or s.y, s.high or s.y
    kept = [
        (x, y, y if a is None else a, y if b is None else b)
        for x, y, a, b in zip(s.x, s.y, lows, highs, strict=True)
        if y is not None
    ]
    x, y, low, high = ([row[i] for row in kept] for i in range(4))
    return x, y, low, high


def _marks(axes: Axes, panel: Lines, width: float) -> None:
    style: dict[str, Any] = {"color": COLORS["muted"], "linewidth": 0.9, "linestyle": (0, (2, 2)), "zorder": 1}
    text: dict[str, Any] = {"color": COLORS["muted"], "fontsize": 7.5, "textcoords": "offset points"}
    upright = [mark for mark in panel.marks if mark.axis == "x"]
    for mark in panel.marks:
        if mark.axis == "x":
            axes.axvline(mark.at, **style)
        else:
            axes.axhline(mark.at, **style)
            axes.annotate(mark.label, (0, mark.at), (3, 2), xycoords=axes.get_yaxis_transform(), ha="left",
                          va="bottom", **text)  # fmt: skip
    wide = _PLOT * width
    lines = [wide * _fraction(mark.at, axes.get_xlim(), panel.log_x) for mark in upright]
    places = placement.beside_lines([mark.label for mark in upright], lines, wide)
    for mark, (row, is_left) in zip(upright, places, strict=True):
        axes.annotate(mark.label, (mark.at, 1), (-3 if is_left else 3, -1 - _LINE * row), va="top",
                      xycoords=axes.get_xaxis_transform(), ha="right" if is_left else "left", **text)  # fmt: skip


def _notes(axes: Axes, panel: Lines, width: float) -> None:
    """Print notes next to their points, where they cover the fewest lines, points and other notes."""
    if not any(s.notes for s in panel.series):
        return
    wide, tall = _PLOT * width, _PLOT * (_height(panel, width) - _legend_height([s.label for s in panel.series], width))
    x_ends, y_ends = axes.get_xlim(), axes.get_ylim()
    notes: list[tuple[float, float, str, str]] = []
    points, covered = [], []
    for s, color in zip(panel.series, _colors(panel), strict=True):
        kept = [(x, y, i) for i, (x, y) in enumerate(zip(s.x, s.y, strict=True)) if y is not None]
        own = [(wide * _fraction(x, x_ends, panel.log_x), tall * _fraction(y, y_ends, panel.log_y)) for x, y, _ in kept]
        covered += [placement.Box.around(x, y, 2.5) for x, y in own] + (placement.along(own) if _has_line(s) else [])
        if s.notes:
            notes += [(x, y, s.notes[i], color) for x, y, i in kept]
            points += own
    for (x, y, note, color), side in zip(
        notes, placement.sides(points, [note for _, _, note, _ in notes], covered), strict=True
    ):
        axes.annotate(note, (x, y), (side.right, side.up), textcoords="offset points", fontsize=7, color=COLORS[color],
                      ha=side.across, va=side.along)  # fmt: skip


def _has_line(s: Series) -> bool:
    return s.role == "reference" or s.is_joined or (s.role == "predicted" and not s.is_scatter)


def _fraction(value: float, ends: tuple[float, float], is_log: bool) -> float:
    """Return the place of a value on an axis: 0 at its start, 1 at its end."""
    low, high, at = (math.log10(v) if is_log else v for v in (*ends, value))
    return (at - low) / (high - low)


def _ticks(axis: Any, is_log: bool, fixed: Sequence[float] = ()) -> None:
    """Set plain numbers at few places; on a log axis at 1, 2, 5 over less than two and a half decades, at more over less than one."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: _number(v)))
    axis.set_minor_formatter(NullFormatter())
    if fixed:
        axis.set_major_locator(FixedLocator(fixed))
        axis.set_minor_locator(NullLocator())
    elif is_log:
        low, high = axis.get_view_interval()
        decades = math.log10(high / low)
        close = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=close if decades < 2.5 else (1.0,), numticks=9))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) < 1e-3:
        digits, exponent = f"{value:.3e}".split("e")
        power = str(int(exponent)).translate(_SUPERSCRIPT)
        number = digits.rstrip("0").rstrip(".")
        return f"10{power}" if number == "1" else f"{number}·10{power}".replace("-", "\u2212")
    return f"{value:.4g}".replace("-", "\u2212")


_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# -- bars and ranges -----------------------------------------------------------------------------


def _segments(panel: Bars) -> list[str]:
    return list(dict.fromkeys(name for bar in panel.bars for name in bar.segments))


def _row_labels(labels: Sequence[str], width: float) -> list[str]:
    """Return labels of rows; in a narrow drawing, in lines of less than half its width."""
    return list(labels) if width == WIDE else [textwrap.fill(label, int(0.42 * width / _LETTER)) for label in labels]


def _row_height(labels: Sequence[str], width: float, least: float) -> float:
    lines = max((label.count("\n") + 1 for label in _row_labels(labels, width)), default=1)
    return max(least, (_LINE + 0.8) * lines + 4)


def _bars(axes: Axes, panel: Bars, width: float) -> dict[str, Any]:
    names = _segments(panel)
    colors = {name: COLORS[panel.colors.get(name, "accent")] for name in names}
    for row, bar in enumerate(panel.bars):
        _bar(axes, row, bar, colors)
    axes.set_yticks(range(len(panel.bars)), _row_labels([bar.label for bar in panel.bars], width))
    axes.set_ylim(len(panel.bars) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0, labelcolor=COLORS["ink"])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    longest = max((_end(bar) for bar in panel.bars), default=0.0)
    note_pt = 8 + 4.2 * max((len(bar.note) for bar in panel.bars), default=0)
    plot_pt = max((0.8 if width == WIDE else 0.5) * width, 1.7 * note_pt)
    axes.set_xlim(0, (longest or 1.0) * (1.03 + note_pt / (plot_pt - note_pt)))
    _ticks(axes.xaxis, False)
    solid = {name for bar in panel.bars if bar.role != "predicted" for name in bar.segments}
    return {name: Patch(color=_face(colors[name], name not in solid)) for name in names}


def _face(color: str, is_light: bool) -> tuple[float, float, float, float]:
    return (*matplotlib.colors.to_rgb(color), 0.42 if is_light else 1.0)


def _bar(axes: Axes, row: int, bar: Bar, colors: dict[str, str]) -> None:
    left = 0.0
    axes.barh(row, sum(bar.segments.values()), height=0.62, color=COLORS["ground"])  # hides the grid behind light bars
    for name, value in bar.segments.items():
        face = _face(colors[name], bar.role == "predicted")
        axes.barh(row, value, left=left, height=0.62, color=face, edgecolor=COLORS["ground"], linewidth=0.6)
        left += value
    if bar.low is not None and bar.high is not None:
        reach = [[max(0.0, left - bar.low)], [max(0.0, bar.high - left)]]
        axes.errorbar(left, row, xerr=reach, fmt="none", ecolor=COLORS["ink"], capsize=2.5, elinewidth=1)
    axes.annotate(bar.note, (_end(bar), row), (5, 0), textcoords="offset points", va="center", fontsize=7.5,
                  color=COLORS["ink"])  # fmt: skip


def _end(bar: Bar) -> float:
    return max(sum(bar.segments.values()), bar.high or 0.0)


def _ranges(axes: Axes, ranges: Sequence[Range], width: float) -> dict[str, Any]:
    handles: dict[str, Any] = {}
    for row, r in enumerate(ranges):
        low, high = r.measured_low or 1.0, r.measured_high or 1.0
        if r.low and r.high:
            axes.hlines(row, r.low, r.high, color=COLORS["accent"], linewidth=8, alpha=0.2)
        handles[_TOLD] = axes.plot(r.value, row, "|", color=COLORS["accent"], markersize=9, markeredgewidth=2)[0]
        handles[_FOUND] = axes.errorbar(
            1.0,
            row,
            xerr=[[max(0.0, 1 - low)], [max(0.0, high - 1)]],
            fmt="o",
            color=COLORS["ink"],
            markersize=4,
            capsize=3,
        )
    axes.axvline(1.0, color=COLORS["muted"], linewidth=0.9, zorder=0)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.75), max(high, 1.33))
    _ticks(axes.xaxis, True)
    axes.set_yticks(range(len(ranges)), _row_labels([r.label for r in ranges], width))
    axes.set_ylim(len(ranges) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, labelcolor=COLORS["ink"])
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    return handles


# -- pictures ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Grid:
    """Places of pictures, in points. A row that is too long continues in the next line.

    Attributes:
        lines: label, and for each picture its title, wrapped, and its pixels.
        heights: of titles and of pictures, line by line.
    """

    left: float
    side: float
    lines: list[tuple[str, list[tuple[str, Any]]]]
    heights: list[tuple[float, float]]

    @property
    def height(self) -> float:
        return sum(title + picture + _GAP for title, picture in self.heights)

    @classmethod
    def of(cls, panel: Pictures, width: float) -> _Grid:
        pixels = [[_pixels(p) for p in row.pictures] for row in panel.rows]
        labels = [textwrap.fill(row.label, 18 if width == WIDE else 12, break_long_words=False) for row in panel.rows]
        left = max((len(line) * 4.9 + 8 for label in labels for line in label.split("\n") if line), default=0.0)
        most = max((len(row) for row in pixels), default=0) or 1
        words = (word for row in panel.rows for p in row.pictures for word in p.title.split())
        narrowest = max(SMALLEST_PICTURE, min(72.0, _TITLE_LETTER * max(map(len, words), default=0)))
        columns = min(most, max(1, int((width - left + _GAP) / (narrowest + _GAP))))
        columns = -(-most // -(-most // columns))  # equal lines if a row needs several
        finest = max((p.shape[1] for row in pixels for p in row), default=1)
        side = min((width - left + _GAP) / columns - _GAP, max(72.0, min(220.0, finest)))
        lines, heights = [], []
        for row, label, images in zip(panel.rows, labels, pixels, strict=True):
            titles = [_wrapped(p.title, int(side / _TITLE_LETTER)) for p in row.pictures]
            for start in range(0, len(images), columns):
                part = slice(start, start + columns)
                lines.append((label if start == 0 else "", list(zip(titles[part], images[part], strict=True))))
                tall = max(title.count("\n") + 1 if title else 0 for title in titles[part])
                heights.append(
                    (tall * _LINE + 4 if tall else 0.0, max(side * p.shape[0] / p.shape[1] for p in images[part]))
                )
        return cls(left, side, lines, heights)


def _pixels(picture: Picture) -> Any:
    try:
        image = Image.open(io.BytesIO(base64.b64decode(picture.png_base64)), formats=["PNG"])
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"it has {image.width:,} × {image.height:,} pixels, more than {MAX_PIXELS:,}")
        return np.asarray(image.convert("RGBA"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # what Pillow raises
        raise FileFormatError(f"picture {picture.title!r} is damaged: {error}", "make it again") from None


def _wrapped(title: str, letters: int) -> str:
    return "\n".join(textwrap.fill(line, max(1, letters)) for line in title.split("\n"))


def _pictures(target: Any, panel: Pictures, width: float) -> None:
    grid = _Grid.of(panel, width)
    height = target.bbox.height * 72 / target.dpi
    top = height
    for (label, pictures), (title_height, picture_height) in zip(grid.lines, grid.heights, strict=True):
        top -= title_height
        target.text(0, (top - picture_height / 2) / height, label, ha="left", va="center", fontsize=8)
        for column, (title, pixels) in enumerate(pictures):
            left, tall = grid.left + column * (grid.side + _GAP), grid.side * pixels.shape[0] / pixels.shape[1]
            axes = target.add_axes((left / width, (top - tall) / height, grid.side / width, tall / height))
            axes.imshow(pixels, interpolation="none", aspect="auto")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, linewidth=0.5)
            middle = (left + grid.side / 2) / width
            for row, line in enumerate(reversed(title.split("\n"))):
                target.text(middle, (top + 4 + _LINE * row) / height, line, ha="center", va="baseline", fontsize=7.5,
                            color=COLORS["muted"])  # fmt: skip
        top -= picture_height + _GAP
