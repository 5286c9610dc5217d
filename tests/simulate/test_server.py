"""Server predictions: latency by load, replicas for a bound, cost, and a measured server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.simulate.queueing import Server, at_rate
from chronograd.simulate.server import FRONTEND, ServerDemand, of_operators, server_answer

TRACE = trace_network("resnet20", mode="inference")
JOB = jobs.from_dict(
    {
        "network": {"name": "resnet20"},
        "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10},
        "training": {"batch": 64},
        "cluster": {"device": "v100"},
        "mode": "inference",
    }
)
SERVED = of_operators(TRACE, JOB, Server({1: 0.0}), 32, FRONTEND)


def at_request_rate(rate: float, **asked: Any) -> Any:
    """Return the record at a rate."""
    (record,) = server_answer([SERVED], ServerDemand((rate,), **asked)).records.values()
    return record


def test_rate_summary() -> None:
    answer = server_answer([SERVED], ServerDemand((50.0,)))
    (record,) = answer.records.values()
    names = ("latency_p50_s", "latency_p95_s", "latency_p99_s")
    values = [record.value(name) for name in names]
    assert values == sorted(values)
    assert values[0] >= SERVED.server.seconds[0] + FRONTEND.travel_s
    for name in (*names, "latency_mean_s"):
        assert record[name].low < record[name].value < record[name].high
    assert record.value("offered_requests_per_s") == 50
    assert record.value("knee_requests_per_s") < record.value("most_requests_per_s")
    per_hour = record.value("cost_usd_per_hour")
    assert record.value("cost_usd_per_million_requests") == pytest.approx(per_hour / 3600 / 50 * 1e6)
    assert answer.sections[0].takeaway.startswith("At 50 requests/s, one server of resnet20 on v100")


def test_replicas_share_requests() -> None:
    """Two replicas at twice the rate have the same load as one."""
    one, two = at_request_rate(200.0), at_request_rate(400.0, replicas=2)
    assert two.value("latency_p99_s") == one.value("latency_p99_s")
    assert two.value("cost_usd_per_hour") == pytest.approx(2 * one.value("cost_usd_per_hour"))
    assert two.value("cost_usd_per_million_requests") == pytest.approx(one.value("cost_usd_per_million_requests"))


def test_replicas_needed_for_a_bound() -> None:
    bound_s = 3 * SERVED.server.lone_s
    rate = 5 * SERVED.server.most_per_s
    record = at_request_rate(rate, p99_s=bound_s)
    assert record.cluster.count > 5
    assert at_rate(SERVED.server, rate / record.cluster.count).holds(bound_s)
    assert not at_rate(SERVED.server, rate / (record.cluster.count - 1)).holds(0.98 * bound_s)
    (section, _) = server_answer([SERVED], ServerDemand((rate,), bound_s, replicas=2)).sections
    assert f"{record.cluster.count} are needed" in section.takeaway


def test_unreachable_bound_is_reported() -> None:
    (section, _) = server_answer([SERVED], ServerDemand((10.0,), SERVED.server.lone_s / 2)).sections
    assert "No number of servers answers 99 % within" in section.takeaway
    assert "a lone request takes" in section.takeaway


def test_overload_is_refused_or_queued() -> None:
    """The model rejects requests if it is the bottleneck; the reading thread queues them without limit."""
    rate = 2 * SERVED.server.most_per_s
    record = at_request_rate(rate)
    assert SERVED.server.most_per_s == 1 / SERVED.server.loop_s
    assert record["latency_p99_s"].value is None
    assert record.value("throughput_requests_per_s") == pytest.approx(rate / 2)
    assert (
        "one server of resnet20 on v100 in fp32 falls behind"
        in server_answer([SERVED], ServerDemand((rate,))).sections[0].takeaway
    )
    slow = replace(SERVED, server=SERVED.server.slower(20))
    rate = 2 * slow.server.most_per_s
    answer = server_answer([slow], ServerDemand((rate,)))
    (record,) = answer.records.values()
    assert record.value("throughput_requests_per_s") == pytest.approx(rate / 2, rel=0.03)
    assert "are refused because the queue is full" in answer.sections[0].takeaway


def test_replica_is_one_device() -> None:
    with pytest.raises(InputError, match="a replica of a server is one device") as caught:
        of_operators(TRACE, jobs.changed(JOB, ["cluster.count=8", "backend=ddp"]), Server({1: 0.0}), 32, FRONTEND)
    assert caught.value.hint == "--on v100 --replicas 8"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "resnet20", "--serve", "--on", "v100", "--p99", "20ms"]
    assert main([*words, "--rate", "100,300", "--json"]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert [record["quantities"]["offered_requests_per_s"]["value"] for record in data["records"]] == [100, 300]
    assert data["within_p99_requests_per_s"] > 0
    out = tmp_path / "predicted.json"
    assert main([*words, "--rate", "100", "--batch", "8", "--batch-wait", "1", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "keeps it" in shown
    assert "the knee, where the mean latency is twice" in " ".join(shown.split())
    assert main(["compare", str(out), str(out)]) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("resnet20 --rate 5", "No such option '--rate'"),
        ("resnet20 --serve --rate 0", "write requests per second above 0"),
        ("resnet20 --serve --rate x", "write numbers such as"),
        ("resnet20 --serve --p99 soon", "cannot read the latency"),
        ("resnet20 --serve --batch 1,8", "give one number"),
        ("resnet20 --serve --layers", "No such option '--layers'"),
        ("resnet20 --serve --on 2xv100", "a replica of a server is one device"),
        ("resnet20 --serve --threads 2", "--threads is of an ONNX file"),
        ("net.onnx --serve --on v100", "an ONNX file is timed on this machine"),
        pytest.param("net.onnx --serve", "there is no file net.onnx", marks=pytest.mark.serve),
    ],
)
def test_invalid_server_options(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *line.split()]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.serve
@pytest.mark.slow
def test_onnx_file_is_timed_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Compare the two files by quantity. The study `serving` measures their accuracy on a quiet machine."""
    from tests.deploy import onnx_models

    from chronograd.deploy.timing import serving

    model = onnx_models.heavy(tmp_path / "heavy.onnx")
    predicted, loads = tmp_path / "predicted.json", tmp_path / "loads"
    assert main(["predict", str(model), "--serve", "--rate", "60", "--threads", "1", "--out", str(predicted)]) == 0
    with serving(model, "--threads", "1") as url:
        assert main(["load", url, "--rate", "60", "--seconds", "3", "--out", str(loads)]) == 0
    capsys.readouterr()
    assert main(["compare", str(predicted), str(loads / "60-per-s.json"), "--json"]) == 0
    by_name = {one["name"]: one for one in json.loads(capsys.readouterr().out)["quantities"]}
    files = (predicted, loads / "60-per-s.json")
    before, after = (json.loads(file.read_text())["quantities"] for file in files)
    for name in ("latency_mean_s", "latency_p50_s", "throughput_requests_per_s"):
        assert min(before[name]["value"], after[name]["value"]) > 0
        assert by_name[name]["ratio"] == pytest.approx(after[name]["value"] / before[name]["value"])
    assert after["throughput_requests_per_s"]["value"] <= after["offered_requests_per_s"]["value"]
