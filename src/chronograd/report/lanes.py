"""The picture of processes over time, drawn from its panel; `simulate.simulations` makes panels of asynchronous SGD.

`plots` calls it with axes of matplotlib, which this module does not import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chronograd.figure import Lanes

_KEY = "above a push: its staleness; in a bar: the version it is computed on"
# Points: height of a lane; height of title, server and axis together; width of a letter at 7 pt.
_LANE, _BELOW, _LETTER = 25.0, 74.0, 4.2
_BAR, _TOP = 0.4, -0.14  # in lanes: height of a bar, and its upper edge


def parts(panel: Lanes) -> list[str]:
    """Return the parts in the order of a cycle."""
    found = {span.part for span in panel.spans}
    return [part for part in panel.colors if part in found]


def faces(panel: Lanes, colors: Mapping[str, str]) -> dict[str, Any]:
    """Return colour and opacity of each part."""
    return {part: (colors[panel.colors[part]], 0.42 if panel.role == "predicted" else 1.0) for part in parts(panel)}


def height(panel: Lanes) -> float:
    """Return the height in points, without a legend."""
    return _BELOW + _LANE * len(panel.lanes)


def draw(axes: Any, panel: Lanes, colors: Mapping[str, str], width: float) -> None:
    """Draw bars of the learners' work, and behind them a line from each push down to the server's versions.

    Numbers over bars are staleness, those below the server's line its versions, where there is room. Without versions there is
    no server.
    """
    end = max([at for at, _ in panel.versions] or [span.end for span in panel.spans])
    server = len(panel.lanes) + 0.1
    faced, points_per_x = faces(panel, colors), 0.84 * width / end
    noted = colors["muted" if panel.role == "predicted" else "ground"]
    for span in panel.spans:
        low, tall = (_TOP + _BAR, 0.12) if span.is_beside else (_TOP, _BAR)
        box = {"width": span.end - span.start, "height": tall, "left": span.start, "align": "edge", "zorder": 2.5}
        axes.barh(span.lane + low, color=colors["ground"], **box)  # hides lines behind light bars
        axes.barh(span.lane + low, color=faced[span.part], edgecolor=colors["ground"], linewidth=0.5, **box)
        if span.note and (span.end - span.start) * points_per_x > _LETTER * (len(span.note) + 1.5):
            axes.annotate(span.note, (span.start, span.lane + _TOP + _BAR / 2), (3, 0), textcoords="offset points",
                          va="center", fontsize=6.5, color=noted, zorder=3)  # fmt: skip
    free = [-math.inf] * len(panel.lanes)  # for each lane, points from the left from where the next number has room
    for push in panel.pushes:
        axes.vlines(push.at, push.lane + _TOP, server, color=colors["muted"], linewidth=0.5, alpha=0.55, zorder=1.5)
        middle, half = push.at * points_per_x, _LETTER * len(str(push.staleness)) / 2
        right = max(0.0, free[push.lane] - (middle - half))
        free[push.lane] = middle + right + half + 3
        axes.annotate(str(push.staleness), (push.at, push.lane + _TOP), (right, 1.5), textcoords="offset points",
                      ha="center", va="bottom", fontsize=7.5, color=colors["ink" if push.staleness else "muted"])  # fmt: skip
    rows = {row + 0.06: name for row, name in enumerate(panel.lanes)}
    if panel.versions:
        axes.set_title(_KEY, loc="right", fontsize=7, color=colors["muted"], pad=4)
        _draw_server(axes, panel, server, points_per_x, colors)
        rows[server] = "server's version"
    axes.set_yticks([*rows], [*rows.values()])
    axes.set_ylim(max(rows) + 0.62, -0.62)
    axes.set_xlim(0, end * 1.015)
    axes.tick_params(axis="y", length=0, labelcolor=colors["ink"])
    axes.spines["left"].set_visible(False)


def _draw_server(axes: Any, panel: Lanes, server: float, points_per_x: float, colors: Mapping[str, str]) -> None:
    """Draw the server's line, a dot for each version, and a hollow dot for a push that waits for its update."""
    axes.axhline(server, color=colors["muted"], linewidth=0.9, zorder=1.6)
    applied = {at for at, _ in panel.versions}
    waiting = [push.at for push in panel.pushes if push.at not in applied]
    dots = {"color": colors["accent"], "markersize": 3.6, "linestyle": "", "marker": "o", "zorder": 3}
    axes.plot(waiting, [server] * len(waiting), **{**dots, "markerfacecolor": colors["ground"]})
    axes.plot([at for at, _ in panel.versions], [server] * len(panel.versions), **dots)
    _number_versions(axes, panel, server, points_per_x, colors["accent"])


def _number_versions(axes: Any, panel: Lanes, server: float, points_per_x: float, color: str) -> None:
    """Number the versions: the last one at an instant, without those that would touch the previous number."""
    latest = {0.0: panel.versions[0][1] - 1, **dict(panel.versions)}
    free = -math.inf
    for at, version in latest.items():
        half = _LETTER * len(str(version)) / 2
        if at * points_per_x - half >= free:
            axes.annotate(str(version), (at, server), (0, -4), textcoords="offset points", ha="center", va="top",
                          fontsize=7, color=color)  # fmt: skip
            free = at * points_per_x + half + 2
