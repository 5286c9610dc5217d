"""An `Answer` as one HTML file that needs no network, no server and no script."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section
from chronograd.errors import MissingExtraError
from chronograd.figure import PALETTE
from chronograd.files import as_asked, write_aside
from chronograd.record import Record
from chronograd.units import quantity
from chronograd.words import dotted, first_sentence, tight

try:
    import jinja2
    from markupsafe import Markup
except ImportError:
    raise MissingExtraError("jinja2", "report", "writing a page") from None

# The page cuts a longer table; the embedded JSON has every row.
MAX_ROWS = 500
LONGEST_LINE = 56  # letters in a cell or an answer without wrapping


def render_html(page: Answer) -> str:
    """Return the page as text. All text from records and names is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tight"] = tight
    environment.tests["long"] = is_long
    folder = resources.files("chronograd.report")
    template = environment.from_string((folder / "template.html.j2").read_text(encoding="utf-8"))
    return template.render(
        page=page,
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        palette=PALETTE,
        sections=[_section(i, section) for i, section in enumerate(page.sections, 1)],
        groups=_groups(page.records),
        records=[_record(name, record) for name, record in page.records.items()],
        embedded=_embedded(page),
    )


def is_long(text: str) -> bool:
    """Return whether a cell is prose, which is wrapped, and not a value or a name, which are not."""
    return any(len(line) > LONGEST_LINE for line in text.splitlines())


def _section(number: int, section: Section) -> dict[str, Any]:
    drawing = None
    if section.figure is not None:
        from chronograd.report import plots

        drawing = Markup("\n".join(plots.svgs_of_page(section.figure)))
    rows = section.rows()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows[:MAX_ROWS]]
    numeric = {i for i, name in enumerate(columns) if all(_is_number(row.get(name)) for row in rows)}
    return {
        "id": f"section-{number}",
        "section": section,
        "heading": first_sentence(section.takeaway)[0],
        "more": first_sentence(section.takeaway)[1],
        "svg": drawing,
        "data": {"columns": columns, "rows": cells, "right": numeric, "more": max(0, len(rows) - MAX_ROWS)},
    }


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " × ".join(map(str, value))
    return str(value)


def _record(name: str, record: Record) -> dict[str, Any]:
    """Return the provenance of a figure, for the last section."""
    return {
        "name": name,
        "title": record.title,
        "header": [
            (n, text if len(text) <= 200 else text[:199] + "…")
            for n, value in dotted(
                {"cluster": record.cluster.model_dump(), "provenance": record.provenance.model_dump()}
            )
            for text in [f"{value:.6g}" if isinstance(value, float) else str(value)]
        ],
        "notes": record.notes,
        "missing": [(n, q.reason) for n, q in record.quantities.items() if q.value is None],
        "quantities": [(n, quantity(q.value, q.unit), q.source) for n, q in record.quantities.items()],
    }


def _groups(records: Mapping[str, Record]) -> list[list[str]]:
    """Group records that differ only in their number of devices, one row each."""
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for name, record in records.items():
        versions = "\n".join(f"{k} {v}" for k, v in record.versions.items()) or "–"
        key = (
            record.kind,
            record.cluster.device or "–",
            record.backend or "–",
            versions,
            record.created[:10],
        )
        groups.setdefault(key, []).append((name, record.world))
    rows = []
    for (kind, device, backend, versions, date), members in groups.items():
        counts = ", ".join(map(str, sorted({n for _, n in members})))
        names = [name for name, _ in members]
        named = "\n".join(names) if len(names) <= 2 else f"{names[0]} …\n{names[-1]}"
        rows.append([named, kind, f"{counts} × {device}", backend, versions, date])
    return rows


def _embedded(page: Answer) -> Markup:
    """Return records and plotted data as JSON that cannot end its script element."""
    sections: Sequence[dict[str, Any]] = [
        {"title": s.title, "takeaway": s.takeaway, "data": list(s.rows())} for s in page.sections
    ]
    records = {name: record.model_dump(mode="json") for name, record in page.records.items()}
    text = json.dumps({"records": records, "sections": sections}, ensure_ascii=True, default=str)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def write_page(page: Answer, out: Path, with_notebook: bool = False) -> list[Path]:
    """Write a page, and optionally an executed notebook next to it; return the files. Raises InputError if that fails."""
    text = render_html(page)
    with as_asked(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_aside(out, text)
    if not with_notebook:
        return [out]
    from chronograd.report.notebook import write_notebook

    write_notebook(page, out.with_suffix(".ipynb"))
    return [out, out.with_suffix(".ipynb")]
