"""An `Answer` as Markdown: a README.md and one drawing per section, as GitHub shows them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from chronograd.answer import Answer, Section, Table
from chronograd.files import write_aside
from chronograd.report.svg import standalone


def write_markdown(page: Answer, folder: Path) -> list[Path]:
    """Write README.md and its drawings; return the files, README.md first.

    The same page gives the same bytes. Files with other names in the folder stay.

    Raises: MissingExtraError if there is a figure to draw and matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, str] = {}
    names = []
    for number, section in enumerate(page.sections, 1):
        name = f"{number}-{_slug(section.title)}.svg"
        drawing = _drawing(section)
        if drawing is not None:
            drawings[name] = drawing
        names.append(name if drawing is not None else "")
    texts = {"README.md": _text(page, names), **drawings}
    for name, text in texts.items():
        write_aside(folder / name, text)
    return [folder / name for name in texts]


def _text(page: Answer, drawings: Sequence[str]) -> str:
    """Return the Markdown of a page; `drawings` are the file names of its sections' drawings, empty for none."""
    blocks = [head(page)]
    for section, drawing in zip(page.sections, drawings, strict=True):
        blocks += _section(section, drawing)
    blocks += [f"*{markdown(note)}*" for note in page.notes]
    blocks += settings(page)
    if page.footer:
        blocks += ["---", markdown(page.footer)]
    return "\n\n".join(blocks) + "\n"


def head(page: Answer) -> str:
    """Return title, subtitle, summary, and the highlights."""
    blocks = [f"# {heading(page.title)}"]
    if page.subtitle:
        blocks.append(markdown(page.subtitle))
    if len(page.sections) > 1:
        blocks += [markdown(" ".join(sentences)) for sentences in page.opening_paragraphs()]
    if page.highlights:
        blocks.append(
            "\n".join(
                f"- **{markdown(h.value)}** {markdown(h.label)}" + (f" ({markdown(h.detail)})" if h.detail else "")
                for h in page.highlights
            )
        )
    return "\n\n".join(blocks)


def settings(page: Answer) -> list[str]:
    """Return the settings of the question, which stand last."""
    return ["## Settings", table(Table(("setting", ""), page.asked))] if page.asked else []


def _section(section: Section, drawing: str) -> list[str]:
    blocks = [f"## {heading(section.title)}"]
    if section.intro:
        blocks.append(markdown(section.intro))
    if drawing:
        blocks.append(f"![{heading(section.title)}]({drawing})")
    return blocks + below(section)


def below(section: Section) -> list[str]:
    """Return the parts below a drawing: caption, table with notes, takeaway."""
    blocks = [markdown(section.caption)] if section.caption else []
    if section.table is not None and section.table.rows:
        blocks.append(table(section.table))
        blocks += [f"*{markdown(note)}*" for note in section.table.notes]
    return [*blocks, f"**Takeaway.** {markdown(section.takeaway)}", *map(markdown, section.lines)]


def table(data: Table) -> str:
    rule = ["---:" if i in data.right else "---" for i in range(len(data.columns))]
    rows = [[markdown(cell).replace("\n", "<br>") for cell in row] for row in (data.columns, *data.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def heading(text: str) -> str:
    """Return text of one line."""
    return markdown(" ".join(text.split()))


def markdown(text: str) -> str:
    r"""Escape text so that it contains no Markdown, HTML or formula.

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
    if section.figure is None or not section.figure.panels:
        return None
    from chronograd.report import plots

    return standalone(plots.svgs(section.figure))
