"""The notebook runs in a kernel of this interpreter and says what the page says."""

from __future__ import annotations

import nbformat
import pytest

from chronograd.report.notebook import markdown, write_notebook
from chronograd.report.runs import generic_page


@pytest.mark.slow
def test_notebook_is_executed_and_has_what_the_page_has(everything, tmp_path):
    everything["trained"].title = "it's '''quoted''' and \\ <b>"
    page = generic_page(everything)
    path = tmp_path / "report.ipynb"
    write_notebook(page, path)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert [c.execution_count for c in code] == list(range(1, len(code) + 1))
    images = [o for c in code for o in c.outputs if "image/svg+xml" in o.get("data", {})]
    assert len(images) == len(page.sections)
    printed = "".join(o.text for c in code for o in c.outputs if o.output_type == "stream")
    assert all(f"{name}: " in printed for name in page.records)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for section in page.sections:
        assert f"**Takeaway.** {markdown(section.takeaway)}" in prose
        assert f"## {markdown(section.title)}" in prose
    assert notebook.metadata.kernelspec.name == "python3"
