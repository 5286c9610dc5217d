"""Ways to run a step: searched ways, fields fixed by a job, and agreement with single predictions."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.data.trace_job import trace_layouts
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.plan.search import SearchSpace, search
from chronograd.plan.settings import largest_batch
from chronograd.plan.ways import Way, ways_of
from chronograd.predict.prediction import predict_step
from chronograd.predict.setting import setting_of
from chronograd.trace import Trace

NAMES = ("a100-40", "v100", "p100", "k80")


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [trace_network("resnet20", channels_last=layout) for layout in (False, True)]


def job_of(**training: object) -> jobs.Job:
    data = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 50_000}
    return jobs.from_dict(
        {"network": {"name": "resnet20"}, "data": data, "training": training, "cluster": {"device": "v100"}}
    )


def ways(traces: list[Trace], name: str, **training: object) -> set[str]:
    return {way.short for way in ways_of(job_of(**training), catalog.device(name), traces)}


def test_default_search_has_autocast_and_fp32_in_both_layouts(traces: list[Trace]) -> None:
    assert {short for short in ways(traces, "a100-40") if "bf16" in short} == {
        "bf16",
        "bf16 NHWC",
        "bf16 +ckpt",
        "bf16 NHWC +ckpt",
    }
    assert {short.split()[0] for short in ways(traces, "a100-40")} == {"bf16", "fp32"}
    assert {short.split()[0] for short in ways(traces, "v100")} == {"fp16", "fp32"}
    assert {short.split()[0] for short in ways(traces, "p100")} == {"fp32"}  # fp16 without tensor cores gives no gain
    assert {short.split()[0] for short in ways(traces, "cpu")} == {"fp32"}


def test_fields_of_the_job_are_fixed(traces: list[Trace]) -> None:
    pinned = {"precision": "fp32", "channels_last": True, "activation_checkpointing": "none"}
    assert ways(traces, "a100-40", **pinned) == {"fp32 NHWC"}
    assert ways(traces, "a100-40", **{**pinned, "compile": True}) == {"fp32 NHWC comp."}
    assert ways(traces, "a100-40", **{**pinned, "compile": "cuda-graphs"}) == {"fp32 NHWC graphs"}
    pure = {**pinned, "precision": "bf16", "param_dtype": "bf16"}
    assert ways(traces, "a100-40", **pure) == {"pure bf16 NHWC"}
    of_graphs = search(
        traces, job_of(**pinned, compile="cuda-graphs"), SearchSpace([catalog.device("a100-40")], [1], [1], ("ring",))
    )
    eager = search(
        traces, job_of(**pinned, compile=False), SearchSpace([catalog.device("a100-40")], [1], [1], ("ring",))
    )
    assert [str(way) for way in of_graphs.ways] == ["fp32 channels-last in CUDA graphs"]
    assert of_graphs.columns["step_time_s"][0] < 0.7 * eager.columns["step_time_s"][0]
    assert ways(traces[:1], "a100-40", precision="tf32") == {"tf32", "tf32 +ckpt"}
    found = search(
        traces,
        job_of(**pinned),
        SearchSpace([catalog.device("a100-40")], [1], [32], ("ring",), precisions=["fp32", "bf16"]),
    )
    assert {str(way) for way in found.ways} == {"fp32 channels-last", "bf16 channels-last"}
    with pytest.raises(InputError, match="k80 has no bf16"):
        search(traces, job_of(precision="bf16"), SearchSpace([catalog.device("k80")], [1], [32], ("ring",)))


def test_compiled_is_searched_only_if_calibrated(traces: list[Trace]) -> None:
    device = catalog.device("a100-40")
    compiled = {"origin": "measured", "precision": "bf16", "peak_flops_per_s": 1e14, "vector_flops_per_s": 1e13,
                "bandwidth_bytes_per_s": 1e12, "is_compiled": True, "rates": []}  # fmt: skip
    own = device.model_copy(update={"calibration": {"settings": [compiled]}})
    assert any(way.compile for way in ways_of(job_of(), own, traces))
    assert not any(way.compile for way in ways_of(job_of(), device, traces))


def test_rows_match_single_predictions(traces: list[Trace]) -> None:
    job, devices = job_of(), [catalog.device(name) for name in NAMES]
    found = search(traces, job, SearchSpace(devices, [1, 4], [16, 2**15], ("ring",)))
    assert {way.precision for way in found.ways} == {"bf16", "fp16", "fp32"}
    assert len(
        {
            tuple(row)
            for row in np.stack([found.columns[n] for n in ("way", "device", "count", "batch_per_rank")]).T.tolist()
        }
    ) == len(found.columns["way"])
    for i in range(len(found.columns["way"])):
        row = {name: column[i].item() for name, column in found.columns.items()}
        way = found.ways[row["way"]]
        one = way.of(
            jobs.changed(
                job, [f"cluster.count={row['count']}", f"training.batch={row['count'] * row['batch_per_rank']}"]
            )
        )
        step = predict_step(traces[way.channels_last], setting_of(one, device=devices[row["device"]]))
        assert row["step_time_s"] == pytest.approx(step.seconds, rel=1e-9)
        assert np.ceil(row["memory_bytes"]) == pytest.approx(step.memory.total, abs=5)


def test_checkpointing_is_tried_if_memory_is_short(traces: list[Trace]) -> None:
    roomy = search(traces, job_of(), SearchSpace([catalog.device("v100")], [1], [16], ("ring",)))
    assert {way.activation_checkpointing for way in roomy.ways} == {"none"}
    most = max(largest_batch(trace, job_of(precision="fp16")).batch for trace in traces)
    large = int(1.1 * most)
    devices = [catalog.device("v100"), catalog.device("a100-80")]
    tight = search(traces, job_of(), SearchSpace(devices, [1], [16, large], ("ring",), precisions=["fp16"]))
    again = [w for w, way in enumerate(tight.ways) if way.activation_checkpointing == "blocks"]
    of_again = np.isin(tight.columns["way"], again)
    assert set(tight.columns["device"][of_again].tolist()) == {0}
    is_large = (tight.columns["batch_per_rank"] == large) & (tight.columns["device"] == 0)
    assert not tight.columns["fits"][is_large & ~of_again].any()
    assert tight.columns["fits"][is_large & of_again].all()


def test_gain_of_a_way_is_the_ratio_of_steps(traces: list[Trace]) -> None:
    found = search(traces, job_of(), SearchSpace([catalog.device("a100-40")], [1], [512], ("ring",)))
    row = next(i for i, w in enumerate(found.columns["way"]) if found.ways[w] == Way("bf16", channels_last=True))
    slower = dict(found.times_as_slow(row))
    assert {str(way) for way in slower} == {"fp32", "tf32 channels-last", "bf16"}
    fp32 = predict_step(
        traces[0], setting_of(job_of(batch=512, precision="fp32"), device=catalog.device("a100-40"))
    ).seconds
    assert slower[Way("fp32")] == pytest.approx(fp32 / found.columns["step_time_s"][row])
    assert slower[Way("fp32")] > slower[Way("bf16")] > 1


def test_trace_layouts_of_a_job(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert [trace.channels_last for trace in trace_layouts(job_of())] == [False, True]
    assert [trace.channels_last for trace in trace_layouts(job_of(channels_last=True))] == [True]
    saved = tmp_path / "last.json.gz"
    trace_layouts(job_of(channels_last=True))[0].save(saved)
    assert [trace.channels_last for trace in trace_layouts(job_of(), saved)] == [True]
    with pytest.raises(InputError, match="channels_last=True; the job has"):
        trace_layouts(job_of(channels_last=False), saved)
