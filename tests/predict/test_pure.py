"""Pure bf16: parameters, buffers and everything else in half precision, without autocast."""

from __future__ import annotations

import numpy as np
import pytest

from chronograd.count.network import trace_network
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.job import Job, changed, from_dict
from chronograd.predict.memory import footprint_of_job
from chronograd.predict.prediction import predict
from chronograd.predict.traffic import traffic
from chronograd.trace import Trace

PURE = "training.param_dtype=bf16"


def job_of(*changes: str) -> Job:
    data = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 640}
    plain = from_dict({"network": {"name": "resnet20"}, "data": data, "training": {"batch": 64, "precision": "bf16"}})
    return changed(plain, ["cluster.device=a100-80", *changes])


def test_parameters_take_two_bytes_without_casts() -> None:
    job, pure = job_of(), job_of(PURE)
    trace, other = trace_job(job), trace_job(pure)
    params = 269_722  # ResNet-20 with 10 classes (He et al. 2016, with batch norm)
    memory = footprint_of_job(other, pure).at(1)
    assert (memory.parameters, memory.optimizer_state) == (2 * params, 2 * params)
    assert footprint_of_job(trace, job).at(1).parameters == 4 * params
    assert not traffic(other, "bf16").cast.any()
    assert traffic(trace, "bf16").cast.any()
    assert footprint_of_job(other, pure).at(64).total < footprint_of_job(trace, job).at(64).total


def test_work_is_unchanged() -> None:
    autocast, pure = (trace_job(job_of(*more)) for more in ((), (PURE,)))
    assert np.array_equal(autocast.columns["macs"], pure.columns["macs"])


def test_step_has_no_casts_and_sends_half_the_bytes() -> None:
    many = ("cluster.count=8", "backend=ddp", "training.batch=512")
    autocast, pure = (predict(trace_job(job), job) for job in (job_of(*many), job_of(*many, PURE)))
    assert pure.value("step_time_s") < autocast.value("step_time_s")
    sent = [record.provenance.gradient_bytes for record in (autocast, pure)]
    assert sent[0] == 2 * sent[1]


def test_tokens_stay_integers() -> None:
    data = {"name": "synthetic", "shape": [16], "classes": 100, "samples": 64}
    training = {"batch": 4, "precision": "bf16", "param_dtype": "bf16"}
    options = {"layers": 2, "width": 64, "heads": 4}
    job = from_dict(
        {"task": "language", "network": {"name": "gpt2-small", "options": options}, "data": data, "training": training}
    )
    trace = trace_job(job)
    assert {tensor.dtype for tensor in trace.parameters().values()} == {"bfloat16"}
    assert [trace.tensors[i].dtype for i in trace.inputs] == ["int64"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((PURE, "training.precision=fp32"), "also write training.precision=bf16"),
        ((PURE, "training.precision=fp16"), "also write training.precision=bf16"),
        ((PURE, "backend=parameter_server", "cluster.count=2"), "single, ddp, data_parallel have"),
    ],
)
def test_unsupported_pure_precision_is_refused(changes: tuple[str, ...], message: str) -> None:
    with pytest.raises(ChronogradError, match=message):
        job_of(*changes)


def test_saved_trace_has_one_type(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "resnet20.json.gz"
    trace_network("resnet20", {}, input_shape=(3, 32, 32), num_classes=10).save(path)
    assert isinstance(trace_job(job_of(), path), Trace)
    with pytest.raises(ChronogradError, match="param_dtype=fp32; the job has"):
        trace_job(job_of(PURE), path)
