"""The verbs as Python functions: their names, no early import of torch, and their answers."""

from __future__ import annotations

import inspect
import json
import pydoc
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import chronograd
from chronograd import api
from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.cli.main import main
from chronograd.errors import InputError

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "examples" / "digits.yaml"
INPUTS = Path(__file__).parent / "golden" / "inputs"
BY_HAND = {"keep_freed_memory", "record", "show"}


def test_every_verb_is_a_function_of_the_package() -> None:
    assert set(chronograd.__all__) == BY_HAND | set(api.declared())
    assert all(callable(getattr(chronograd, name)) for name in chronograd.__all__)
    assert set(chronograd.__all__) <= set(dir(chronograd))
    with pytest.raises(AttributeError, match="no attribute 'predikt'"):
        chronograd.predikt  # noqa: B018


def test_unknown_name_is_no_attribute() -> None:
    for module in (chronograd, chronograd.api):
        with pytest.raises(AttributeError, match="has no attribute 'predikt'"):
            getattr(module, "predikt")  # noqa: B009, as an attribute mypy would refuse it
        assert not hasattr(module, "_private")


def test_functions_do_not_hide_subpackages() -> None:
    from chronograd.predict.prediction import predict as of_the_room

    assert of_the_room is not chronograd.predict
    assert chronograd.predict.prediction.predict is of_the_room  # type: ignore[attr-defined]


def test_predicting_from_a_trace_needs_no_torch() -> None:
    trace, job = INPUTS / "net.json.gz", INPUTS / "job.yaml"
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'torchvision')))\n"
        "import chronograd; assert 'numpy' not in sys.modules\n"
        "from chronograd.trace import Trace\n"
        f"answer = chronograd.predict({str(job)!r}, on='v100', trace=Trace.load({str(trace)!r}))\n"
        "print(answer.records['v100'].value('step_time_s'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_function_answer_equals_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the data of the answer."""
    for verb, arguments, answer in (
        ("count", ["lenet5"], chronograd.count("lenet5")),
        ("compare", [INPUTS / "measured-1", INPUTS / "measured-2"],
         chronograd.compare(INPUTS / "measured-1", INPUTS / "measured-2")),
        ("explain", [INPUTS / "measured-1", INPUTS / "measured-2"],
         chronograd.explain(INPUTS / "measured-1", INPUTS / "measured-2")),
        ("fit", ["loss", INPUTS / "accuracy.csv", "--metric", "accuracy", "--to", "0.9"],
         chronograd.fit("loss", INPUTS / "accuracy.csv", metric="accuracy", target=0.9)),
        ("plan", [DIGITS, "--on", "v100", "--counts", "1,2"], chronograd.plan(DIGITS, on=["v100"], counts=[1, 2])),
    ):  # fmt: skip
        assert main([verb, *map(str, arguments), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(answer.as_data())), verb


def test_failed_gate_has_its_exit_status() -> None:
    answer = chronograd.compare(INPUTS / "measured-1", INPUTS / "measured-2", fail_if=["step_time > 5%"])
    assert (answer.exit_status, answer.data["failed"]) == (1, True)


def test_job_is_predicted_on_several_named_devices() -> None:
    answer = chronograd.predict(jobs.load(DIGITS), "training.batch=128", on=["v100", "8xh100"])
    assert list(answer.records) == ["v100", "8xh100"]
    assert answer.records["8xh100"].global_batch == 128


def test_module_needs_an_input_shape() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    with pytest.raises(InputError, match="input_shape"):
        chronograd.count(network)
    counted = chronograd.count(network, input_shape=(3, 2, 2))
    assert counted.data["params"] == 12 * 5 + 5
    predicted = chronograd.predict(network, on="v100", input_shape=(3, 2, 2), batch=8)
    assert predicted.records["v100"].value("throughput_samples_per_s") == pytest.approx(
        8 / predicted.records["v100"].value("step_time_s")
    )


def test_report_joins_runs(tmp_path: Path) -> None:
    answer = chronograd.report(INPUTS / "measured-1", INPUTS / "measured-2", out=tmp_path / "page.html")
    assert isinstance(answer, Answer)
    assert len(answer.records) == 2
    assert all(section.takeaway in (tmp_path / "page.html").read_text() for section in answer.sections[:1])


def test_custom_module_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "own_module.py"))
    printed = capsys.readouterr().out
    assert "Predicted: step time" in printed
    assert "Time of a step" in printed
    assert (tmp_path / "runs" / "own-module" / "record.json").exists()


def test_python_docs_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL):
        exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("v100: ")
    assert any(re.fullmatch(r"\d+ x (v100|t4), batch \d+: \d+\.\d ms", line) for line in printed)
    assert printed[-1] == "61706 416520"


def test_notebook_displays_an_answer_as_html() -> None:
    """The test uses a separate process, as IPython's shell exists once per process."""
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "import chronograd\n"
        "shown, _ = shell.display_formatter.format(chronograd.count('resnet8'))\n"
        "print(shown['text/plain'])\n"
        "print(shown['text/html'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    plain, title = done.stdout.splitlines()[:2]
    assert plain.startswith("<Answer 'Work of resnet8': 75.3 k parameters")
    assert len(plain) < 500
    assert title == "<h3>Work of resnet8</h3>"
    assert '<td style="text-align: left">parameters</td><td style="text-align: right">75,290</td>' in done.stdout


def test_results_have_the_typed_fields_of_the_json() -> None:
    trace = str(INPUTS / "net.json.gz")
    counted = chronograd.count(trace)
    assert counted.result.layers[0].params == counted.data["layers"][0]["params"]
    options = chronograd.plan(str(INPUTS / "job.yaml"), trace=trace, on=["v100", "t4"], budget=10.0).result.options
    assert options.cheapest.dollars <= options.fastest.dollars
    found = chronograd.compare(INPUTS / "measured-1", INPUTS / "measured-2").result
    assert (
        found.quantities[0].ratio == found.b[found.quantities[0].name].value / found.a[found.quantities[0].name].value
    )
    assert inspect.signature(chronograd.compare).return_annotation == "Answer[Comparison | GateOutcome]"


def test_function_has_the_help_and_signature_of_its_verb() -> None:
    for name in chronograd.__all__:
        verb = getattr(api, name)
        assert getattr(chronograd, name).__doc__ == verb.__doc__
        assert inspect.signature(getattr(chronograd, name)) == inspect.signature(verb)
    printed = pydoc.plain(pydoc.render_doc(chronograd.count))
    assert "Count parameters, MACs, FLOPs, bytes, activations and receptive fields." in printed
