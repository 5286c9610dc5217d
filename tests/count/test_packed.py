"""The packed form of a cached trace holds the whole trace, and damage is detected."""

from __future__ import annotations

import pytest

from chronograd.count.network import trace_network
from chronograd.count.packed import pack, unpack
from chronograd.trace import Trace


@pytest.fixture(scope="module", params=["resnet20", "gpt2-small"])
def trace(request: pytest.FixtureRequest) -> Trace:
    options = {"layers": 2, "width": 64, "heads": 4} if request.param == "gpt2-small" else {}
    shape = (16,) if options else None
    return trace_network(request.param, options, input_shape=shape)


def test_packed_trace_round_trips(trace: Trace) -> None:
    again = unpack(pack(trace))
    assert again.to_json() == Trace.from_json(again.to_json()).to_json()
    assert again.to_json() == Trace.from_json(_through_json(trace)).to_json()
    assert again.flops(7) == trace.flops(7)
    assert again.live_bytes(3).tolist() == trace.live_bytes(3).tolist()


def _through_json(trace: Trace) -> object:
    import json

    return json.loads(json.dumps(trace.to_json()))


@pytest.mark.parametrize("at", [3, 30, -1])
def test_one_damaged_byte_is_detected(trace: Trace, at: int) -> None:
    raw = bytearray(pack(trace))
    raw[at] ^= 1
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(raw))
    with pytest.raises(ValueError, match="damaged"):
        unpack(bytes(raw[:50]))


def test_other_types_are_refused() -> None:
    trace = trace_network("lenet5")
    trace.operators[0].attributes["kernel"] = object()
    with pytest.raises(ValueError, match="object is not plain data"):
        pack(trace)
