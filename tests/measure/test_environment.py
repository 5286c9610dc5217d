"""The environment as data, and peak memory."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest
import torch

from chronograd.measure.environment import environment, slice_s
from chronograd.measure.memory import PeakMemory


def test_environment_is_json_without_host_name() -> None:
    found = environment()
    text = json.dumps(found)
    assert {"created", "platform", "versions", "processor", "cores", "ram_bytes", "gpus"} <= found.keys()
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["cores"] >= 1
    name = socket.gethostname()
    assert name == "localhost" or name not in text


def test_environment_needs_no_torch() -> None:
    code = (
        "import sys; from chronograd.measure.environment import environment; environment(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scheduler_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Linux 6.6, a waking thread waits for the end of a slice, which grows with the cores up to 8."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for cores, slice_ms in ((1, 0.7), (2, 1.4), (8, 2.8), (64, 2.8)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert slice_s("6.18.44-fc") == pytest.approx(slice_ms / 1000)
    assert slice_s("6.6.1") == pytest.approx(3e-3)
    assert slice_s("6.1.0-21-amd64") == slice_s("5.15.0") == 0


def test_peak_memory_includes_freed_memory() -> None:
    """Allocate and free 200 MB in a new process, because the peak belongs to the process."""
    code = (
        "import torch; from chronograd.measure.memory import PeakMemory\n"
        "m = PeakMemory(torch.device('cpu')); x = torch.ones(50_000_000); del x; print(m.peak_bytes())"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 190e6 < int(printed) < 260e6
    assert "resident" in PeakMemory(torch.device("cpu")).source
