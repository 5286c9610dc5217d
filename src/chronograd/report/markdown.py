"""Writes a `Page` as Markdown: a README.md with one drawing per section beside it, as GitHub shows them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from chronograd.record import write_aside
from chronograd.figure import PALETTE
from chronograd.answer import Page, Section, Table

# A drawing is an image there, so it brings its own ground and stays legible on dark pages.
_PADDING, _GAP = 12.0, 14.0  # points
_WIDEST = 530.0  # points of panels side by side
_PX_PER_PT = 1.4  # as on an HTML page
_NAMES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_FONTS = "-apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def write_markdown(page: Page, folder: Path) -> list[Path]:
    """Write README.md and its drawings; returns what was written, README.md first.

    The same page gives the same bytes. Files of other names in the folder are left alone.
    Raises: MissingExtraError if there is a figure to draw and no matplotlib.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, str] = {}
    blocks = [head(page)]
    for number, section in enumerate(page.sections, 1):
        name = f"{number}-{_slug(section.title)}.svg"
        drawing = _drawing(section)
        if drawing is not None:
            drawings[name] = drawing
        blocks += _section(section, name if drawing is not None else "")
    if page.footer:
        blocks += ["---", markdown(page.footer)]
    texts = {"README.md": "\n\n".join(blocks) + "\n", **drawings}
    for name, text in texts.items():
        write_aside(folder / name, text)
    return [folder / name for name in texts]


def head(page: Page) -> str:
    """Title, subtitle, what was asked and the highlights."""
    blocks = [f"# {heading(page.title)}"]
    if page.subtitle:
        blocks.append(markdown(page.subtitle))
    if page.asked:
        blocks.append(table(Table(("asked", ""), page.asked)))
    if page.highlights:
        blocks.append(
            "\n".join(
                f"- **{markdown(h.value)}** {markdown(h.label)}" + (f" ({markdown(h.detail)})" if h.detail else "")
                for h in page.highlights
            )
        )
    return "\n\n".join(blocks)


def _section(section: Section, drawing: str) -> list[str]:
    blocks = [f"## {heading(section.title)}"]
    if section.intro:
        blocks.append(markdown(section.intro))
    if drawing:
        blocks.append(f"![{heading(section.title)}]({drawing})")
    return blocks + below(section)


def below(section: Section) -> list[str]:
    """What stands under a drawing: caption, table with notes, takeaway."""
    blocks = [markdown(section.caption)] if section.caption else []
    if section.table is not None and section.table.rows:
        blocks.append(table(section.table))
        blocks += [f"*{markdown(note)}*" for note in section.table.notes]
    return [*blocks, f"**Takeaway.** {markdown(section.takeaway)}"]


def table(data: Table) -> str:
    rule = ["---:" if i in data.right else "---" for i in range(len(data.columns))]
    rows = [[_cell(cell) for cell in row] for row in (data.columns, *data.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def _cell(text: str) -> str:
    return markdown(text).replace("\n", "<br>")


def heading(text: str) -> str:
    """Text of one line."""
    return markdown(" ".join(text.split()))


def markdown(text: str) -> str:
    r"""Text that no Markdown, HTML or formula is read from.

    >>> print(markdown("a|b <i> $1 to $2 snake_case"))
    a\|b &lt;i&gt; \$1 to \$2 snake\_case
    >>> print(markdown("1. first"))
    1\. first
    """
    escaped = re.sub(r"([\\`*_\[\]|$#~])", r"\\\1", html.escape(text, quote=False))
    return re.sub(r"(?m)^(\s*\d*)([-+.)]\s|=+\s*$|-+\s*$)", r"\1\\\2", escaped)


def _slug(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))[:48].rstrip("-") or "section"


# -- drawings ------------------------------------------------------------------------------------


def _drawing(section: Section) -> str | None:
    if section.figure_svg is not None:
        return standalone([section.figure_svg])
    if section.figure is None or not section.figure.panels:
        return None
    from chronograd.report import plots

    return standalone(plots.svgs(section.figure))


def standalone(drawings: Sequence[str]) -> str:
    """One `<svg>` of several, in rows, with light colours on a light ground.

    A drawing tells its size by its viewBox, in points; a single one that has none is left as it is.
    """
    light = [_light(drawing.strip()) for drawing in drawings]
    boxes = [re.search(r'^<svg\b[^>]*?viewBox="([^"]*)"', drawing) for drawing in light]
    if len(light) == 1 and boxes[0] is None:
        return light[0] if "xmlns=" in light[0] else light[0].replace("<svg", f"<svg {_NAMES}", 1)
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
    """A drawing at a place in another."""
    start, rest = drawing.split(">", 1)
    start = re.sub(r"\s(?:x|y|width|height|class|role)=\"[^\"]*\"", "", start)
    return f'{start} x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">{rest}'


def _light(drawing: str) -> str:
    """Colours of the palette in place of the variables that a page sets."""

    def color(match: re.Match[str]) -> str:
        return PALETTE[match[1]][0] if match[1] in PALETTE else match[0]

    return re.sub(r"var\(--c-(\w+)(?:,[^()]*)?\)", color, drawing)
