"""An `Answer` as an executed notebook: its records lie in a file next to it, and its cells can ask again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Section
from chronograd.data.datasets import card
from chronograd.errors import ChronogradError, MissingExtraError, RunError
from chronograd.files import write_aside
from chronograd.hardware import catalog
from chronograd.job import from_dict
from chronograd.models import names
from chronograd.report.markdown import below, head, heading, markdown, settings

try:
    import nbformat.v4
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError
except ImportError as error:
    raise MissingExtraError(error.name or "nbclient", "report", "writing a notebook") from None

CELL_TIMEOUT_S = 120
_v4: Any = nbformat.v4  # nbformat's functions have no types
text_cell, code_cell = _v4.new_markdown_cell, _v4.new_code_cell

_READ = """\
%matplotlib inline
%config InlineBackend.figure_formats = ["svg"]
from pathlib import Path

import chronograd
from chronograd.answer import Answer
from chronograd.report import plots

page = Answer.load(Path({file!r}))  # beside this notebook: records, figures and tables
records = page.records
for name, record in records.items():
    print(f"{{name}}: {{record.title}} ({{record.kind}}, {{record.created}})")
"""
_ASK = """\
from chronograd import job as jobs

job = jobs.from_dict(records[{name!r}].job.model_dump())
batch = {batch}  # of the job: {was}
again = chronograd.predict(job, f"training.batch={{batch}}", on={device!r})
chronograd.show(again)
"""
_ASK_TEXT = "## Ask again\n\nChange the batch, the device or any field of the job, such as `training.precision=bf16`, and run the cell."


def write_notebook(page: Answer, path: str | Path) -> None:
    """Run the notebook of a page and write it, and NAME.json next to it, which it reads. Raises RunError if a cell fails."""
    path = Path(path)
    data = save_beside(page, path)
    execute(_cells(page, data), path, page.title)


def save_beside(page: Answer, path: Path) -> Path:
    """Write the input of the notebook of a page: NAME.json, whose path is returned."""
    data = path.with_suffix(".json")
    page.save(data)
    return data


def execute(cells: list[Any], path: Path, title: str, timeout_s: int = CELL_TIMEOUT_S) -> None:
    """Run the cells in the folder of a notebook and write it with their output; they import no modules from there.

    Raises RunError if a cell fails or takes longer than `timeout_s`.
    """
    notebook = _v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python"}})
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, km=_kernel(Path(folder)), timeout=timeout_s, record_timing=False,
                                extra_arguments=["--InteractiveShellApp.ignore_cwd=True"],
                                resources={"metadata": {"path": str(path.parent.resolve())}})  # fmt: skip
        try:
            client.execute(cleanup_kc=True, env={**os.environ, "PYTHONSAFEPATH": "1"})
        except CellExecutionError as error:
            raise RunError(f"the notebook of {title!r} failed: {error.ename}: {error.evalue}") from None
        except CellTimeoutError:
            reason = f"a cell of the notebook of {title!r} takes longer than {timeout_s} s"
            raise RunError(reason, "run it again while the machine is less busy") from None
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    write_aside(path, _v4.writes(notebook) + "\n")


def _kernel(folder: Path) -> AsyncKernelManager:
    """Return an ipykernel in this interpreter, connected by sockets in a folder if the system supports them."""
    # Without folders of kernels, no kernel of another interpreter can be used.
    kernels = KernelSpecManager(kernel_dirs=[])
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=kernels,
        connection_file=str(folder / "kernel.json"),
        transport="ipc" if os.name == "posix" else "tcp",
    )


def _cells(page: Answer, data: Path) -> list[Any]:
    cells = [text_cell(head(page)), code_cell(_READ.format(file=data.name).strip())]
    for number, section in enumerate(page.sections):
        cells += section_cells(f"page.sections[{number}]", section)
    cells += _asking(page)
    cells += [text_cell(markdown(note)) for note in page.notes]
    cells += [text_cell("\n\n".join(settings(page)))] if page.asked else []
    if page.footer:
        cells.append(text_cell(markdown(page.footer)))
    return cells


def section_cells(place: str, section: Section, level: int = 2) -> list[Any]:
    """Return the cells of one section of a page.

    Args:
        place: code that names the section in the notebook.
        level: of its heading.
    """
    cells = [text_cell(f"{'#' * level} {heading(section.title)}\n\n{markdown(section.intro)}".strip())]
    if section.figure is not None:
        cells.append(code_cell(f"plots.draw({place}.figure)"))
    cells.append(text_cell("\n\n".join(below(section))))
    return cells


def _asking(page: Answer) -> list[Any]:
    """Return a cell that predicts again with a changed batch; none if no record has a job that can be predicted here."""
    for name, record in page.records.items():
        try:
            job = from_dict(record.job.model_dump())
            catalog.device(record.device)
            names.check(job.network.name)
            card(job.data)
        except ChronogradError:
            continue
        batch = job.training.batch
        code = _ASK.format(name=name, batch=2 * batch, was=batch, device=f"{record.world}x{record.device}")
        return [text_cell(_ASK_TEXT), code_cell(code.strip())]
    return []
