"""A transformer of seven billion parameters on a small machine: exact, in seconds, within a gigabyte."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from chronograd.count.network import trace_network

LAYERS, WIDTH, FFN, VOCAB, HEADS = 32, 4096, 11_008, 32_000, 32

CHILD = """
import json, re, resource, sys, time
from chronograd.count.layers import summary
from chronograd.count.network import trace_network

found = summary(trace_network("llama-7b"))
used = resource.getrusage(resource.RUSAGE_SELF)
try:  # this program only; ru_maxrss may start at its parent's value
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
except OSError:
    peak = used.ru_maxrss
keys = ("params", "macs", "flops_forward", "flops_backward", "uncounted")
print(json.dumps({**{k: getattr(found, k) for k in keys}, "cpu_s": used.ru_utime + used.ru_stime, "peak_bytes": peak * 1024}))
"""


def parameters(vocab: int, layers: int, width: int, ffn: int, kv_width: int) -> int:
    """Return the number of parameters: embedding and head, projections, gated perceptron, norms."""
    return 2 * vocab * width + layers * (2 * width * (width + kv_width) + 3 * width * ffn + 2 * width) + width


def macs(vocab: int, layers: int, width: int, ffn: int, kv_width: int, tokens: int) -> int:
    """Return the MACs: every weight but the embedding for each token, plus dense attention."""
    weights = layers * (2 * width * (width + kv_width) + 3 * width * ffn) + vocab * width
    return tokens * weights + layers * 2 * tokens * tokens * width


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    """Return the count from a separate process."""
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_count_is_exact(counted: dict[str, float]) -> None:
    found = counted
    assert found["params"] == parameters(VOCAB, LAYERS, WIDTH, FFN, WIDTH) == 6_738_415_616
    expected = macs(VOCAB, LAYERS, WIDTH, FFN, WIDTH, 2048)
    assert found["macs"] == expected
    assert found["flops_forward"] == 2 * expected
    # The embedding is trained, so every product has both gradients.
    assert found["flops_backward"] == 4 * expected
    assert found["uncounted"] == {}


def test_within_15_cpu_seconds_and_a_gibibyte(counted: dict[str, float]) -> None:
    """Imports included."""
    found = counted
    assert found["cpu_s"] < 15
    assert found["peak_bytes"] < 2**30


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("sequence", [6, 32])
def test_small_transformers_follow_the_formula(kv_heads: int, sequence: int) -> None:
    layers, width, ffn, vocab, heads = 3, 32, 40, 50, 4
    options = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads, "ffn": ffn, "vocab": vocab}
    traced = trace_network("llama-7b", {**options, "sequence": sequence})
    kv_width = width // heads * kv_heads
    assert traced.params == parameters(vocab, layers, width, ffn, kv_width)
    expected = macs(vocab, layers, width, ffn, kv_width, sequence)
    assert (traced.macs(), traced.macs(1, "backward")) == (expected, 2 * expected)
    assert traced.macs(5) == 5 * expected
    assert len(traced.select("forward", ["attention"])) == layers
