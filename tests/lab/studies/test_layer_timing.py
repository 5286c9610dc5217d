"""Layer timing: the smoke size, files of other machines, traces, and page values for known times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chronograd.errors import FileFormatError
from chronograd.figure import Bars
from chronograd.measure.layer_times import LayerTime, LayerTimes, LayerTiming, Product
from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.layer_timing import study
from chronograd_lab.studies.layer_timing.queue import queue_of
from chronograd_lab.studies.layer_timing.study import NOT_MEASURED, STUDY

PAGE = Path(__file__).parents[3] / "docs" / "studies" / "layer-timing" / "results.json"


def timing(median: float) -> LayerTiming:
    return LayerTiming(median=median, low=0.9 * median, high=1.1 * median)


def gpu_times() -> LayerTimes:
    """Return a pass of 1 ms whose two layers take 0.9 and 0.6 ms if the host waits for them."""
    layers = [
        LayerTime(name="conv", module="Conv2d", kind="conv_3x3", flops=1e9, synchronised_s=9e-4, unsynchronised_s=6e-4,
                  product=Product(m=64, n=1024, k=576), product_s=4.5e-4, predicted_s=5e-4),
        LayerTime(name="relu", module="ReLU", kind="elementwise", flops=1e6, synchronised_s=6e-4, unsynchronised_s=3e-4,
                  predicted_s=3e-4),
    ]  # fmt: skip
    return LayerTimes(
        network="small", device="cuda", device_name="NVIDIA H100 80GB HBM3", threads=1, batch=1, precision="fp32",
        channels_last=False, input_shape=[3, 32, 32], repeats=20, whole=timing(1e-3), issued=timing(8e-4), queued=timing(9e-4),
        synchronised=timing(1.5e-3), unsynchronised=timing(9e-4), layers=layers, predicted_s=8e-4, predicted_on="H100",
    )  # fmt: skip


def trace(path: Path) -> Path:
    """Write three kernels of 10 µs, launched at 0, 4 and 8 µs in 2 µs each; the host waits until 35 µs and launches one more.

    The device begins at 5 µs and works until 35 µs; the last kernel runs from 40 to 45 µs.
    """

    def event(name: str, category: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": start,
            "dur": duration,
            "tid": 1,
            "pid": 1,
            "args": args,
        }

    events = [event("cudaLaunchKernel", "cuda_runtime", 4 * i, 2, correlation=i) for i in range(3)]
    events += [event("gemm", "kernel", 5 + 10 * i, 10, correlation=i, device=0) for i in range(3)]
    events.append(event("cudaDeviceSynchronize", "cuda_runtime", 10, 25))
    events.append(event("cudaLaunchKernel", "cuda_runtime", 36, 2, correlation=3))
    events.append(event("gemm", "kernel", 40, 5, correlation=3, device=0))
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def conducted(tmp_path: Path, *truth: Path) -> Results:
    runner = StudyRunner(tmp_path, STUDY.name, "smoke", lambda _: None, truth=truth)
    results = STUDY.conduct(runner, STUDY.sizes["smoke"])
    results.save(tmp_path / "results.json")
    return Results.load(tmp_path / "results.json")


def test_queue_of_known_times(tmp_path: Path) -> None:
    queue = queue_of(trace(tmp_path / "trace.json"))
    assert queue.kernels == 4
    # From 0 to the end of the last launch at 38, minus 25 of waiting by the host.
    assert queue.host_s == pytest.approx(13e-6)
    assert queue.device_s == pytest.approx(35e-6)
    assert queue.together_s == pytest.approx(45e-6)
    assert queue.one_by_one_s == pytest.approx(48e-6)
    # 3, 9, 15 and 2 µs between a launch's end and its kernel's start.
    assert queue.delay_s == pytest.approx(6e-6)


def test_smoke_size_without_a_gpu(tmp_path: Path) -> None:
    results = conducted(tmp_path)
    page = STUDY.page(results)
    assert render_html(page).startswith("<!doctype html>")
    first = page.sections[0].table
    assert first is not None
    gpu = [row for row in first.rows if NOT_MEASURED in row]
    assert [row[1] for row in gpu] == [
        "NVIDIA H200 SXM5 141 GB, fp32, batch 1",
        "NVIDIA H200 SXM5 141 GB, fp32, batch 32",
    ]
    assert page.sections[-1].title == "What fell short"
    assert len(results.notes) == 2
    (row,) = results.rows["passes"]
    assert row["network"] == "resnet8"
    assert not {"Events between the layers", "Why they differ on a GPU"} & {s.title for s in page.sections}
    layers = results.rows["layers"]
    assert sum(r["synchronised_s"] for r in layers if r["product"]) == pytest.approx(row["with_product_s"])
    assert sum(r["product_s"] or 0 for r in layers) == pytest.approx(row["products_s"])


def test_gpu_files_and_trace_are_added(tmp_path: Path) -> None:
    gpu_times().save(tmp_path / "gpu.json")
    results = conducted(tmp_path, tmp_path / "gpu.json", trace(tmp_path / "trace.json"))
    assert results.notes == []
    page = STUDY.page(results)
    found = study.values(results)
    sums, events, queues, _, products, predicted, *layers = page.sections
    place = "NVIDIA H100 80GB HBM3, fp32, batch 1"
    assert found["sums"]["H100_fp32_1"] == {k: pytest.approx(1.5) for k in ("least", "most", "last")} | {"where": place}
    assert sums.table is not None
    assert ["small", place, "1 ms", "800 µs", "1.5 ms", "900 µs", "450 µs", "800 µs", "900 µs"] in [
        list(r) for r in sums.table.rows
    ]
    assert not any(NOT_MEASURED in row for row in sums.table.rows)
    assert (events.title, found["between"]["above"], found["between"]["of"]) == ("Events between the layers", 0, 1)
    assert queues.title == "Why they differ on a GPU"
    assert found["queue"]["kernels"] == 4
    assert found["queue"]["share"] == pytest.approx(48 / 45)
    # Batch 1 and 32 of a small network: its kernels take less time than the host's launches.
    assert found["host"] == {"longer": 2, "of": 2}
    assert products.table is not None
    assert ["small", place, "450 µs", "900 µs", "50 %", "1 ms", "45 %"] in [list(r) for r in products.table.rows]
    for section, label in ((products, "ms, matrix product alone"), (predicted, "ms, predicted")):
        assert section.figure is not None
        assert section.figure.panels[0].y_label == label
    assert predicted.table is not None
    # The prediction is 20 % too short for the pass; for layers by factors of 1.8 and 2, median 1.9.
    row = next(list(r) for r in predicted.table.rows if r[0] == "small")
    assert row[2:6] == ["1 ms", "800 µs", "−20 %", "1.90 ×"]
    assert layers[-1].title == f"Layers of small on {place}"
    longest = study.blocks(results)[layers[-1].title].values
    assert longest == {"share": pytest.approx(0.6), "count": 1, "of": 2, "names": "conv"}
    assert render_html(page).startswith("<!doctype html>")


def test_events_between_layers_may_exceed_the_pass() -> None:
    """A host that needs 0.95 of 1 ms leaves gaps that events include."""
    row = study._pass_row(gpu_times()) | {"predicted_s": None}
    slow = row | {"network": "deep", "issued_s": 9.5e-4, "unsynchronised_s": 2.2e-3}
    published = Results.load(PAGE)
    results = replace(published, rows={**published.rows, "passes": [published.rows["passes"][0], row, slow]})
    between = study.values(results)["between"]
    assert (between["above"], between["of"], between["most"]["network"]) == (1, 2, "deep")
    assert between["most"]["share"] == pytest.approx(2.2)
    table = study.blocks(results)["Events between the layers"].table
    assert table is not None
    assert list(table.rows[1])[2:] == ["1 ms", "950 µs", "95 %", "2.2 ms", "220 %"]


@pytest.mark.parametrize(
    ("field", "factor", "sentence"),
    [
        ("synchronised_s", 0.6, "On a GPU, the times of the layers add up to more than the whole pass"),
        ("products_s", 3, "The way around is to time the matrix product"),
        ("unsynchronised_s", 0.5, "The times between events add up to more"),
    ],
)
def test_different_times_contradict_the_page(field: str, factor: float, sentence: str) -> None:
    published = Results.load(PAGE)
    for row in published.rows["passes"]:
        row[field] *= factor
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(published)


def test_results_without_a_gpu_have_tables() -> None:
    published = Results.load(PAGE)
    rows = {**published.rows, "queues": [], "passes": [r for r in published.rows["passes"] if r["device"] == "cpu"]}
    page = STUDY.page_or_plain(replace(published, rows=rows))
    assert "a value of the page cannot be computed" in page.opening()[1]
    assert page.sections[0].table is not None


def test_each_timing_method_has_a_colour_and_a_label() -> None:
    figure = study._sums([study._pass_row(gpu_times())], []).figure
    assert figure is not None
    (panel,) = figure.panels
    assert isinstance(panel, Bars)
    assert [list(bar.segments) for bar in panel.bars] == [[name] for name in study.SUMS.values()]
    assert len({panel.colors[name] for name in study.SUMS.values()}) == len(study.SUMS)


def test_unknown_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(FileFormatError, match="neither times of layers nor a trace"):
        study._queue_row(tmp_path / "other.json")


def test_host_and_device_are_predicted_separately() -> None:
    """The host takes longer at batch 1 and the kernels at batch 64. The pass takes slightly longer than either."""
    few, many = (study._predicted("resnet50-v1", "h100", batch) for batch in (1, 64))
    assert few["host_s"] > few["layers_s"]
    assert many["host_s"] < many["layers_s"]
    for row in (few, many):
        longer = max(row["host_s"], row["layers_s"])
        assert longer <= row["pass_s"] < 1.2 * longer
