"""Output of every verb as text and as JSON, compared completely with the files in `verbs/`. The inputs do not change.

CHRONOGRAD_REFRESH_GOLDEN=1 writes the files again; review the changes in the diff. A missing file fails.

- Text is compared exactly, with standard error below a rule, on a terminal of 80 columns. NAME-110.txt has the text of 110 columns
  if it differs. No line may be wider, and no word may be broken.
- JSON is compared by value, with floats within the tolerance of the case.
- Values that vary are replaced: times within the last hour by NOW, a date of today by TODAY, versions by VERSIONS, and the
  current folder by HERE.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from chronograd.cli.main import main
from chronograd.hardware import market

HERE = Path(__file__).parent
INPUTS, GOLDEN = HERE / "inputs", HERE / "verbs"
IS_REFRESHING = os.environ.get("CHRONOGRAD_REFRESH_GOLDEN") == "1"
ERROR_RULE = "--- standard error ---\n"
WIDE = "-110"
TIME_LEFT = re.compile(r", about [^()]* left(?=\))")
A_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\+00:00|Z)")


@dataclass(frozen=True)
class Case:
    """A command line and the compared parts of its output.

    Attributes:
        line: after `chronograd`, in a copy of `inputs/`; --json is added for JSON.
        status: exit status.
        outputs: `text`, `json` or both; `shape` compares only the keys of JSON with figures of this machine.
        rows: names of the compared entries, if the list may grow.
        tolerance: relative tolerance of floats in JSON. Sums may differ in their last digits between processors.
        is_slow: whether `make test` skips it.
        is_verbatim: whether it is a script or a line to copy, which may exceed the width.
    """

    name: str
    line: str
    status: int = 0
    outputs: tuple[str, ...] = ("text", "json")
    rows: tuple[str, ...] = ()
    tolerance: float = 1e-9
    is_slow: bool = False
    is_verbatim: bool = False


TEXT, JSON, SHAPE = ("text",), ("json",), ("shape",)
# An optimiser's stopping point varies, so its results have fewer reliable digits.
FITTED = 1e-5
CASES = [
    Case("help", "--help", outputs=TEXT),
    Case("no-such-verb", "contrast a b", status=2),
    # count
    Case("count-network", "count lenet5"),
    Case("count-job", "count job.yaml"),
    Case("count-show-work", "count job.yaml --show-work"),
    Case("count-trace", "count net.json.gz --batch 32 --optimizer adamw"),
    Case("count-inference", "count small-cnn --mode inference --batch 4 --input 3,16,16 --classes 5"),
    Case("count-out", "count job.yaml --out counted.json.gz", outputs=TEXT),
    Case("count-unknown", "count lenet6", status=2),
    Case("count-large", "count mixtral-8x7b --input 4096"),
    Case("plan-large-refused", "plan mixtral-8x7b --on h100", status=2),
    Case("predict-large-refused", "predict mixtral-8x7b --on 8xh100 --expert 3", status=2),
    # predict
    Case("predict-one", "predict job.yaml --trace net.json.gz --on v100"),
    Case("predict-several", "predict job.yaml --trace net.json.gz --on v100 --on 2xt4"),
    Case("predict-ring", "predict job.yaml --trace net.json.gz --on 4xv100 backend=ddp"),
    Case("predict-nodes", "predict job.yaml --trace net.json.gz --on 16xv100 cluster.per_node=8 cluster.link=ethernet-10g"),
    Case("predict-scaling", "predict job.yaml --trace net.json.gz --on v100 --scaling strong --counts 1,2,4"),
    Case("predict-weak", "predict job.yaml --trace net.json.gz --on v100 --scaling weak --counts 1,2,4"),
    Case("predict-layers", "predict job.yaml --trace net.json.gz --on v100 --layers"),
    Case("predict-paleo", "predict job.yaml --trace net.json.gz --on 2xk80 --model paleo"),
    Case("predict-carried", "predict job.yaml --trace net.json.gz --on v100 --measured-on measured-1"),
    Case("predict-figure", "predict job.yaml --trace net.json.gz --on v100 --measured-on t4=20000/s"),
    Case("predict-inference", "predict job.yaml --inference --trace asked.json.gz --on v100 --on t4 --batch 1,8,64"),
    Case("predict-inference-one", "predict job.yaml --inference --trace asked.json.gz --on v100 --batch 8"),
    Case("predict-print-config", "predict job.yaml --on v100 training.batch=64 --print-config", outputs=TEXT),
    Case("predict-bad-field", "predict job.yaml training.bach=64 --on v100", status=2),
    Case("predict-bad-device", "predict job.yaml --trace net.json.gz --on v1000", status=2),
    # measure, train, run: the results of their jobs differ from run to run
    Case("measure", "measure job.yaml --steps 2 --warmup 1 --out m", outputs=SHAPE),
    Case("measure-taken", "measure job.yaml --out measured-1", status=1),
    Case("train-finished", "train --resume trained"),
    Case("train-nothing", "train", status=2),
    Case("run-print-config", "run job.yaml training.epochs=1 --print-config", outputs=TEXT),
    # launch
    Case("launch-slurm", "launch slurm job.yaml --dry-run backend=ddp cluster.count=2 --time 01:00:00 --python python3",
         is_verbatim=True),
    Case("launch-slurm-nodes", "launch slurm job.yaml --dry-run backend=ddp cluster.device=v100 cluster.count=16 "
         "cluster.per_node=8 --partition gpu --account lab --interface ib0 --sbatch=--mem=0 --python python3", is_verbatim=True),
    Case("launch-sweep", "launch slurm job.yaml --dry-run --sweep training.batch=32,64 --python python3",
         is_verbatim=True),
    Case("launch-ray", "launch ray job.yaml", status=2),
    Case("launch-sagemaker", "launch sagemaker job.yaml --dry-run backend=ddp cluster.device=v100 cluster.count=8 "
         "--role arn:aws:iam::123456789012:role/training --output s3://bucket/runs "
         "--image 123456789012.dkr.ecr.us-east-1.amazonaws.com/chronograd:0.1", outputs=TEXT, is_verbatim=True),
    Case("launch-sagemaker-nothing-given", "launch sagemaker job.yaml --dry-run", status=2),
    Case("launch-kubernetes", "launch kubernetes job.yaml --dry-run --image ghcr.io/lab/chronograd:0.1", outputs=TEXT,
         is_verbatim=True),
    Case("platforms", "platforms"),
    Case("platforms-compare", "platforms --compare"),
    Case("platforms-fields", "platforms --fields"),
    # compare
    Case("compare", "compare predicted.json measured-2"),
    Case("compare-runs", "compare measured-1 measured-2"),
    Case("compare-gate-fails", "compare measured-1 measured-2 --fail-if 'step_time > 5%'", status=1),
    Case("compare-gate-holds", "compare measured-2 measured-1 --fail-if 'step_time > 5%' --fail-if 'throughput < -5%'"),
    Case("compare-no-record", "compare measured-1 nowhere", status=2),
    # judge
    Case("judge-slow", "judge job.yaml --trace net.json.gz --on v100 '20000 images/s'"),
    Case("judge-impossible", "judge job.yaml --trace net.json.gz --on 2xt4 '0.01 us/image'"),
    Case("judge-run", "judge measured-1 --trace net.json.gz --on cpu"),
    Case("judge-nothing", "judge job.yaml --on v100", status=2),
    # explain
    Case("explain-trained", "explain trained"),
    Case("explain-measured", "explain measured-2"),
    Case("explain-across", "explain measured-1 measured-2"),
    Case("explain-quiet", "explain measured-1 loop"),
    Case("explain-loop", "explain loop"),
    Case("explain-wall-times", "explain wall-times.csv"),
    # report
    Case("report", "report predicted.json measured-1 measured-2 trained"),
    Case("report-scaled", "report scaled --out pages/scaled.html"),
    Case("report-servers", "report servers"),
    # plan
    Case("plan-largest-batch", "plan job.yaml --trace net.json.gz --largest-batch --on v100 --on t4"),
    Case("plan-largest-in-memory", "plan job.yaml --trace net.json.gz --largest-batch --on v100 --memory 2GB"),
    Case("plan-settings", "plan job.yaml --trace net.json.gz --on v100 --on t4 --counts 1,2 --batches 32,64"),
    Case("plan-inference", "plan job.yaml --inference --trace asked.json.gz --on v100 --on t4 --counts 1,2 --latency 5ms"),
    Case("plan-goal", "plan job.yaml --trace net.json.gz --on v100 --on t4 --counts 1,2 --batches 32,64 --epochs-to-target 2000 "
         "--noise-scale 100:900 --budget 1 --deadline 1h", tolerance=1e-6),
    Case("plan-goal-missed", "plan job.yaml --trace net.json.gz --on v100 --counts 1 --batches 32 --epochs-to-target 200000 "
         "--noise-scale 900 --deadline 1m --prices on-demand", tolerance=1e-6),
    Case("plan-platforms", "plan job.yaml --trace net.json.gz --on v100 --on t4 --on a100-40 --counts 1,2,8 --batches 32,64 "
         "--epochs-to-target 200000 --noise-scale 100:900 --deadline 40m --platforms aws,gcp,azure,ibm --data-in ibm "
         "--data-size 20GB", tolerance=1e-6),
    Case("plan-platforms-unknown", "plan job.yaml --trace net.json.gz --platforms aws,gpc", status=2),
    Case("plan-platforms-without-a-price", "plan job.yaml --trace net.json.gz --platforms ibm", status=2),
    # calibrate: figures of this machine
    Case("calibrate-links-refused", "calibrate links --hosts node1,node2", status=2),
    # simulate
    Case("simulate-pushes", "simulate staleness --pushes 1,2,3,4 --pushes 2.5,5"),
    Case("simulate-softsync", "simulate staleness --compute exponential:1 --learners 4 --softsync 2 --push 0.1 --updates 12 --seed 1"),
    Case("simulate-speed", "simulate speed --coefficients 1.02,2.78,4.92,0,0.02 --batch 40 --servers 4 --workers 1:6"),
    Case("simulate-speed-asynchronous", "simulate speed --coefficients 2.83,3.92,0,0.11 --servers 4 --workers 1,2,4 --steps 1000"),
    Case("simulate-all-reduce", "simulate speed --batch 128 --servers 4 --workers 1,2,4 --steps 1000 --all-reduce"),
    # fit
    Case("fit-device", "fit device throughputs.csv --device v100 --precision fp32 --layout nchw --phase inference --torch 2.4",
         tolerance=FITTED),
    Case("fit-loss", "fit loss accuracy.csv --to 0.2 --at 30 --schedule constant", tolerance=FITTED),
    Case("fit-accuracy", "fit loss accuracy.csv --metric accuracy --to 0.93 --fraction 0.5 --earlier 2", tolerance=FITTED),
    Case("fit-loss-of-run", "fit loss trained --family last", tolerance=FITTED),
    Case("forecast", "forecast accuracy.csv --to 93% --fraction 0.5 --pace 95", tolerance=FITTED),
    Case("forecast-cosine", "forecast accuracy.csv --to 92% --fraction 0.5 --pace 95 --schedule cosine", tolerance=FITTED),
    Case("forecast-no-column", "forecast accuracy.csv --metric f1", status=2),
    Case("fit-speed", "fit speed speeds.csv --at 16,8", tolerance=FITTED),
    Case("fit-batch", "fit batch batch-32 batch-128 batch-256 --to 0.85 --batches 32,64,128", tolerance=FITTED),
    # study, data, label
    Case("study-list", "study list", rows=("cutout", "transfer", "staleness")),
    Case("study-unknown", "study run cutoff --size smoke", status=2),
    Case("data-digits", "data digits"),
    Case("data-synthetic", "data synthetic shape=[1,8,8] classes=3 samples=30"),
    Case("label-help", "label --help", outputs=TEXT, is_verbatim=True),
    # evaluate, annotate: tests/train checks their results on images
    Case("evaluate-help", "evaluate --help", outputs=TEXT, is_verbatim=True),
    Case("evaluate-no-weights", "evaluate trained", status=2),
    Case("annotate-help", "annotate --help", outputs=TEXT, is_verbatim=True),
    Case("annotate-no-detector", "annotate picture.jpg --model trained", status=2),
    # export: tests/deploy compares its files with PyTorch
    Case("export-help", "export --help", outputs=TEXT, is_verbatim=True),
    # doctor, validate
    Case("doctor", "doctor job.yaml", outputs=SHAPE, is_slow=True),
    Case("validate", "validate throughputs.csv --device v100 --precision fp32 --layout nchw --phase inference --torch 2.4 --calibrate 10",
         tolerance=FITTED),
    # devices
    Case("devices", "devices", rows=("v100", "t4", "cpu")),
    Case("devices-one", "devices v100"),
    Case("devices-links", "devices --links", rows=("nvlink2", "ethernet-10g")),
    Case("devices-link", "devices nvlink2 --links"),
    Case("devices-prices", "devices t4 --prices"),
    # records
    Case("records", "records --in ."),
    Case("records-chosen", "records --in . --kind measured --job small-cnn --device cpu", outputs=TEXT),
    Case("records-none", "records --in . --job resnet50"),
    Case("records-predicted", "records predicted.json"),
    Case("records-measured", "records measured-2"),
    Case("records-trained", "records trained"),
    Case("records-servers", "records servers"),
    Case("records-loop", "records loop"),
    Case("records-scaled", "records scaled"),
    Case("records-seeds", "records seeds"),
    Case("records-unknown", "records nowhere", status=2),
]  # fmt: skip
PAIRS = [
    pytest.param(case, output, id=f"{case.name}-{output}", marks=[pytest.mark.slow] if case.is_slow else [])
    for case in CASES
    for output in case.outputs
]


@pytest.fixture(autouse=True)
def _inputs_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a copy of the inputs: lines name files by relative paths, and their output is discarded."""
    shutil.copytree(INPUTS, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(market, "today", lambda: date(2026, 11, 22))  # the age of prices depends on it


@pytest.mark.parametrize(("case", "output"), PAIRS)
def test_output_is_unchanged(
    case: Case, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(case.line)
    status = main(words if output == "text" else [*words, "--json"])
    out, err = capsys.readouterr()
    assert status == case.status, f"{out}{err}"
    if output == "text":
        monkeypatch.setenv("COLUMNS", "110")
        assert main(words) == case.status
        wide = capsys.readouterr().out
        if not case.is_verbatim:
            _check_fits(out, 80, wide)
            _check_fits(wide, 110, wide)
        narrow, wide = (_picked_lines(text, case.rows) if case.rows else text for text in (out, wide))
        _compare_text(GOLDEN / f"{case.name}.txt", _without_here_and_now(narrow + (ERROR_RULE + err if err else "")))
        _compare_text(GOLDEN / f"{case.name}{WIDE}.txt", _without_here_and_now(wide) if wide != narrow else None)
    else:
        data = _without_versions(json.loads(_without_here_and_now(out)))
        data = [entry for entry in data if entry["name"] in case.rows] if case.rows else data
        _compare_json(GOLDEN / f"{case.name}.json", _shape(data) if output == "shape" else data, case.tolerance)


def test_every_golden_file_has_a_case() -> None:
    suffixes = {"text": "txt", "json": "json", "shape": "json"}
    assert {path.name for path in GOLDEN.iterdir() if not path.stem.endswith(WIDE)} == {
        f"{case.name}.{suffixes[output]}" for case in CASES for output in case.outputs
    }


def test_changed_value_is_detected() -> None:
    """Check the comparison itself: keys, numbers, lengths and types."""
    data = {"a": [1, 2.0], "b": None, "c": True}
    assert _differences(data, {"a": [1, 2.0 * (1 + 1e-12)], "b": None, "c": True}, 1e-9) == []
    for other in ({"a": [1, 2.0]}, {**data, "d": 0}, {**data, "a": [1]}, {**data, "a": [2, 2.0]}, {**data, "a": [1, 2.1]},
                  {**data, "b": 0}, {**data, "c": 1}, {**data, "a": {}}):  # fmt: skip
        assert _differences(data, other, 1e-9), other
    assert _differences([], 5, 1e-9)


# -- comparing -------------------------------------------------------------------------------------------


def _compare_text(path: Path, text: str | None) -> None:
    """Compare text with a golden file. None means no text and no file."""
    if IS_REFRESHING and text is None:
        path.unlink(missing_ok=True)
    elif IS_REFRESHING and text is not None:
        path.write_text(text)
    assert path.exists() == (text is not None), f"{path.name}; CHRONOGRAD_REFRESH_GOLDEN=1 writes it"
    assert text is None or text == path.read_text()


def _check_fits(text: str, width: int, wider: str) -> None:
    """Check that no line is wider and no word is broken (all words occur in a wider text). Lines to copy may be longer."""
    words = set(re.sub("[─└┌]", "", wider).split())
    for line in re.sub("[─└┌]", "", text.partition("--full shows")[0]).splitlines():
        assert len(line) <= width or " " not in line.strip(), f"wider than {width}: {line}"
        assert set(line.split()) <= words, f"broken words: {set(line.split()) - words}"


def _compare_json(path: Path, data: Any, tolerance: float) -> None:
    # Keep golden values that differ in the last digits only, so that a diff shows real changes.
    if IS_REFRESHING and not (path.exists() and not _differences(json.loads(path.read_text()), data, tolerance)):
        path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    assert path.exists(), f"no {path.name}; CHRONOGRAD_REFRESH_GOLDEN=1 writes it"
    assert _differences(json.loads(path.read_text()), data, tolerance) == []


def _differences(golden: Any, data: Any, tolerance: float, where: str = "") -> list[str]:
    """Return each difference between two JSON values."""
    if isinstance(golden, dict) and isinstance(data, dict):
        lacking = [f"{where}.{key}: only in {side}" for keys, side in
                   ((golden.keys() - data.keys(), "the golden file"), (data.keys() - golden.keys(), "the output")) for key in keys]  # fmt: skip
        shared = [key for key in golden if key in data]
        return sorted(lacking) + [
            d for k in shared for d in _differences(golden[k], data[k], tolerance, f"{where}.{k}")
        ]
    if isinstance(golden, list) and isinstance(data, list) and len(golden) == len(data):
        pairs = enumerate(zip(golden, data, strict=True))
        return [d for i, (one, other) in pairs for d in _differences(one, other, tolerance, f"{where}[{i}]")]
    if isinstance(golden, float) and isinstance(data, float):
        is_same = math.isclose(golden, data, rel_tol=tolerance, abs_tol=1e-12)
    else:
        is_same = type(golden) is type(data) and golden == data
    return [] if is_same else [f"{where}: {golden!r:.200} became {data!r:.200}"]


def _shape(data: Any) -> Any:
    """Return only the keys: for a list, those of any entry. A stall occurs on busy machines only."""
    if isinstance(data, dict):
        return {key: _shape(value) for key, value in data.items() if key != "stall_s"}
    if isinstance(data, list):
        return [{key: "VALUE" for entry in data if isinstance(entry, dict) for key in entry}]
    return "VALUE"


# -- values that vary --------------------------------------------------------------------------------------


def _without_here_and_now(text: str) -> str:
    """Replace the current folder by HERE and times within the last hour by NOW, and remove the remaining time."""

    def replaced(match: re.Match[str]) -> str:
        age = datetime.now(UTC) - datetime.fromisoformat(match[0])
        return "NOW" if abs(age.total_seconds()) < 3600 else match[0]

    return A_TIME.sub(replaced, TIME_LEFT.sub("", text).replace(str(Path.cwd()), "HERE"))


def _without_versions(data: Any) -> Any:
    """Replace versions, and the date of a new prediction by TODAY."""
    if isinstance(data, dict):
        return {key: _normalized(key, value) for key, value in data.items()}
    return [_without_versions(entry) for entry in data] if isinstance(data, list) else data


def _normalized(key: str, value: Any) -> Any:
    # A test may start before midnight.
    days = [(datetime.now(UTC) - timedelta(days=ago)).date().isoformat() for ago in (0, 1)]
    return "VERSIONS" if key == "versions" else "TODAY" if key == "date" and value in days else _without_versions(value)


def _picked_lines(text: str, rows: tuple[str, ...]) -> str:
    """Return the lines of some rows. Collapse spaces: the widest entry of a column may be in another row."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line.split(" ", 1)[0] in rows)


def test_only_predictions_have_the_current_date() -> None:
    """Entries of a catalogue have the date of their source."""
    assert {path.name.partition("-")[0] for path in GOLDEN.iterdir() if "TODAY" in path.read_text()} == {"predict"}
