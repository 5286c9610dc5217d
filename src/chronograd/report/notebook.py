"""Writes an `Answer` as an executed notebook: the same sections, with the records inside so that it runs again."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section
from chronograd.errors import MissingExtraError, RunError
from chronograd.files import write_aside
from chronograd.report.markdown import below, head, heading, markdown

try:
    import nbformat.v4
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
except ImportError as error:
    raise MissingExtraError(error.name or "nbclient", "report", "writing a notebook") from None

CELL_TIMEOUT_S = 120
_v4: Any = nbformat.v4  # nbformat's functions have no types

_LOAD = """\
# The records and the plotted data, as JSON; they are all that this notebook needs.
import json

DATA = json.loads(r'''{payload}''')
"""
_READ = """\
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
from chronograd.record import Record
from chronograd.report import plots
from chronograd.figure import Figure
from chronograd.units import quantity

records = {name: Record.model_validate(data) for name, data in DATA["records"].items()}
figures = [data and Figure.from_json(data) for data in DATA["figures"]]
for name, record in records.items():
    print(f"{name}: {record.title} ({record.kind}, {record.created})")
    for key, q in record.quantities.items():
        print(f"    {key:32} {quantity(q.value, q.unit):>18}  {q.source or q.reason}")
"""


def write_notebook(page: Answer, path: str | Path) -> None:
    """Run the notebook of a page and write it. Raises RunError if a cell fails."""
    notebook = _v4.new_notebook(cells=_cells(page), metadata={"language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, km=_kernel(Path(folder)), timeout=CELL_TIMEOUT_S, record_timing=False)
        try:
            client.execute(cleanup_kc=True)
        except CellExecutionError as error:
            raise RunError(f"the notebook of {page.title!r} failed: {error.ename}: {error.evalue}") from None
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    write_aside(Path(path), _v4.writes(notebook) + "\n")


def _kernel(folder: Path) -> AsyncKernelManager:
    """ipykernel in the interpreter that runs this, reached by sockets in a folder where the system has them."""
    # Without folders of kernels, none that is registered for another interpreter can be found.
    kernels = KernelSpecManager(kernel_dirs=[])
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=kernels,
        connection_file=str(folder / "kernel.json"),
        transport="ipc" if os.name == "posix" else "tcp",
    )


def _cells(page: Answer) -> list[Any]:
    hidden = {"jupyter": {"source_hidden": True}}
    cells = [
        _v4.new_markdown_cell(head(page)),
        _v4.new_code_cell(_LOAD.format(payload=_payload(page)), metadata=hidden),
        _v4.new_code_cell(_READ.strip()),
    ]
    for number, section in enumerate(page.sections):
        cells += _section(number, section)
    cells += [_v4.new_markdown_cell(markdown(note)) for note in page.notes]
    if page.footer:
        cells.append(_v4.new_markdown_cell(markdown(page.footer)))
    return cells


def _section(number: int, section: Section) -> list[Any]:
    cells = [_v4.new_markdown_cell(f"## {heading(section.title)}\n\n{markdown(section.intro)}".strip())]
    if section.figure is not None:
        cells.append(_v4.new_code_cell(f"plots.draw(figures[{number}])"))
    elif section.figure_svg is not None:
        cells.append(_v4.new_code_cell(f'from IPython.display import SVG\n\nSVG(DATA["drawings"]["{number}"])'))
    cells.append(_v4.new_markdown_cell("\n\n".join(below(section))))
    return cells


def _payload(page: Answer) -> str:
    """JSON that a raw Python string in ''' can hold."""
    data = {
        "records": {name: record.model_dump(mode="json") for name, record in page.records.items()},
        "figures": [section.figure.to_json() if section.figure else None for section in page.sections],
        "drawings": {str(i): s.figure_svg for i, s in enumerate(page.sections) if s.figure_svg and not s.figure},
    }
    return json.dumps(data, ensure_ascii=True).replace("'", "\\u0027")
