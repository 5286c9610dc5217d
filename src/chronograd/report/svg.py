"""Drawings joined into one standalone SVG: a picture on a page, or a file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from chronograd.figure import PALETTE

# There a drawing is an image, so it has its own ground and stays legible on dark pages.
_PADDING, _GAP = 12.0, 14.0  # points
_WIDEST = 640.0  # points of panels side by side
_PX_PER_PT = 1.4  # as on an HTML page
_NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_FONTS = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def standalone(drawings: Sequence[str]) -> str:
    """Join drawings into one `<svg>`, in rows, with light colours on a light ground.

    A drawing has its size in its viewBox, in points.
    """
    light = [_light(drawing.strip()) for drawing in drawings]
    boxes = [re.search(r'^<svg\b[^>]*?viewBox="([^"]*)"', drawing) for drawing in light]
    rows: list[list[tuple[str, float, float]]] = [[]]  # drawing, width, height
    for drawing, box in zip(light, boxes, strict=True):
        assert box is not None, "plots always write a viewBox"
        w, h = (float(v) for v in box[1].replace(",", " ").split()[2:])
        if rows[-1] and sum(taken + _GAP for _, taken, _ in rows[-1]) + w > _WIDEST:
            rows.append([])
        rows[-1].append((drawing, w, h))
    placed, bottom, right = [], _PADDING - _GAP, 0.0
    for row in rows:
        bottom, x = bottom + _GAP + max(h for _, _, h in row), _PADDING
        for drawing, w, h in row:
            placed.append(_place(drawing, x, bottom - h, w, h))
            right, x = max(right, x + w), x + w + _GAP
    w, h = right + _PADDING, bottom + _PADDING
    return "\n".join(
        [
            f'<svg {_NAMES} role="img" '
            f'viewBox="0 0 {w:g} {h:g}" width="{w * _PX_PER_PT:.0f}" height="{h * _PX_PER_PT:.0f}">',
            f"<style>text {{ font-family: {_FONTS} !important; }}</style>",
            f'<rect width="100%" height="100%" rx="4" fill="{PALETTE["ground"][0]}"/>',
            *placed,
            "</svg>\n",
        ]
    )


def _place(drawing: str, x: float, y: float, width: float, height: float) -> str:
    """Place a drawing inside another."""
    start, rest = drawing.split(">", 1)
    start = re.sub(r"\s(?:x|y|width|height|class|role)=\"[^\"]*\"", "", start)
    return f'{start} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">{rest}'


def _light(drawing: str) -> str:
    """Replace the variables that a page sets by colours of the palette."""

    def color(match: re.Match[str]) -> str:
        return PALETTE[match[1]][0] if match[1] in PALETTE else match[0]

    return re.sub(r"var\(--c-(\w+)(?:,[^()]*)?\)", color, drawing)
