"""Values derived from a trace are cached once per trace, for its lifetime."""

from __future__ import annotations

import gc
from pathlib import Path

from chronograd.count.cached import cached_trace
from chronograd.job import from_dict
from chronograd.predict.derived import _DERIVED, derived
from chronograd.predict.prediction import predict
from chronograd.predict.traffic import traffic
from chronograd.trace import Trace

JOB = from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}, "cluster": {"device": "v100"}})


def loaded(folder: Path) -> Trace:
    """Return a trace without cached values."""
    cached_trace("lenet5").save(folder / "net.json")
    return Trace.load(folder / "net.json")


def test_prediction_does_not_change_the_trace(tmp_path: Path) -> None:
    trace = loaded(tmp_path)
    fields = set(vars(trace))
    predict(trace, JOB)
    assert vars(trace).keys() - fields <= {"columns", "operator_names", "params", "trained_params", "_named"}
    assert trace == loaded(tmp_path)


def test_key_is_derived_once_per_trace(tmp_path: Path) -> None:
    one, equal = loaded(tmp_path), loaded(tmp_path)
    assert derived(one, "number", lambda: 1) == 1
    assert derived(one, "number", lambda: 2) == 1
    assert derived(equal, "number", lambda: 3) == 3
    assert traffic(one, "fp16") is traffic(one, "bf16")
    assert traffic(one, "fp32") is not traffic(one, "fp16")


def test_cache_is_freed_with_the_trace(tmp_path: Path) -> None:
    trace = loaded(tmp_path)
    predict(trace, JOB)
    name = id(trace)
    assert {"work", "families"} <= _DERIVED[name].keys()
    del trace
    gc.collect()
    assert name not in _DERIVED
