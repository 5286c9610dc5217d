"""The notebook runs in a kernel of this interpreter, has the page's contents, and predicts a changed job."""

from __future__ import annotations

import nbformat
import pytest

from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.count.network import trace_network
from chronograd.errors import RunError
from chronograd.predict.answer import predict_jobs
from chronograd.predict.prediction import predict
from chronograd.report.notebook import code_cell, execute, markdown, write_notebook
from chronograd.report.runs import generic_page
from chronograd.units import seconds


@pytest.mark.slow
def test_notebook_runs_and_has_the_page_contents(everything, tmp_path):
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
    assert max(len(c.source) for c in notebook.cells) < 2000
    assert Answer.load(tmp_path / "report.json").records == page.records
    printed = "".join(o.text for c in code for o in c.outputs if o.output_type == "stream")
    assert all(f"{name}: " in printed for name in page.records)
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for section in page.sections:
        assert f"**Takeaway.** {markdown(section.takeaway)}" in prose
        assert f"## {markdown(section.title)}" in prose
    assert notebook.metadata.kernelspec.name == "python3"
    assert "Ask again" in prose


@pytest.mark.slow
def test_changed_batch_is_predicted_again(tmp_path):
    data = {"network": {"name": "resnet8"}, "data": {"name": "digits"}, "cluster": {"device": "v100", "count": 2},
            "training": {"batch": 64}, "backend": "ddp"}  # fmt: skip
    answer = predict_jobs(trace_network("resnet8", input_shape=(1, 8, 8), num_classes=10), [jobs.from_dict(data)])
    write_notebook(answer, tmp_path / "mine.ipynb")
    notebook = nbformat.read(tmp_path / "mine.ipynb", as_version=4)
    (cell,) = (c for c in notebook.cells if "chronograd.predict" in c.source)
    assert "batch = 128  # of the job: 64" in cell.source
    printed = "".join(o.text for o in cell.outputs if o.output_type == "stream")
    job = jobs.changed(jobs.from_dict(data), ["training.batch=128"])
    assert (
        seconds(predict(trace_network("resnet8", input_shape=(1, 8, 8), num_classes=10), job).value("step_time_s"))
        in printed
    )


@pytest.mark.slow
def test_cell_that_takes_too_long_is_reported(tmp_path):
    endless = code_cell("import time\nwhile True:\n    time.sleep(1)")
    with pytest.raises(RunError, match="a cell of the notebook of 'mine' takes longer than 1 s"):
        execute([endless], tmp_path / "a.ipynb", "mine", timeout_s=1)
    assert not list(tmp_path.iterdir())
