"""The `chronograd devices` command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.hardware.catalog import Device, devices, links, prices


@pytest.fixture(autouse=True)
def _no_user_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "240")  # whole sentences, whole cells


def run(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> str:
    assert main(["devices", *args]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 else captured.err


def test_table_lists_every_device(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys).splitlines()
    first_words = {line.split()[0] for line in lines if line.strip()}
    assert first_words >= {d.name for d in devices()}
    k80 = next(line for line in lines if line.split()[:1] == ["k80"])
    assert k80.split()[:7] == ["k80", "24", "GiB", "480", "GB/s", "8.73", "–"]
    assert "$1.80" in k80  # two GPUs at AWS's price per GPU with the host, which is the same for all machine sizes


def test_device_shows_every_source(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "K80")
    device = next(d for d in devices() if d.name == "k80")
    for source in device.source:
        assert source.source[:40] in text
        assert source.tag in text
    assert "18.2 FLOP/byte" in text
    assert "k80-gk210" in text, "says which of two like names this is"
    assert "p2.16xlarge" in text


def test_links_and_one_link(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--links")
    assert all(k.name in text for k in links())
    page = run(capsys, "loopback", "--links")
    assert "Gloo all-reduce" in page
    assert "placeholder" in page


def test_prices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "p5.48xlarge" in run(capsys, "--prices")
    assert "p5.48xlarge" not in run(capsys, "t4", "--prices")
    assert "No price of titan-xp" in run(capsys, "titan-xp", "--prices")
    assert max(len(line) for line in run(capsys, "h100", "--prices").splitlines()[3:-2]) <= 80


def test_newer_prices_are_saved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    newer = tmp_path / "newer.csv"
    newer.write_text("vendor,instance,device,count,price_usd_per_hour,kind,includes_host,date,tag,source\n"
                     "Mine,pod,titan-xp,1,0.1,on-demand,true,2020-01-01,assumed,me\n")  # fmt: skip
    assert "1 price from" in " ".join(run(capsys, "--prices", "--update", str(newer)).split())
    assert "$0.10 an hour on demand is the least" in run(capsys, "titan-xp", "--prices")
    assert "--update applies to all prices" in run(capsys, "--update", str(newer), status=2)
    assert "--update applies to all prices" in run(capsys, "v100", "--prices", "--update", str(newer), status=2)


def test_json_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert [d["name"] for d in json.loads(run(capsys, "--json"))] == [d.name for d in devices()]
    assert Device.model_validate(json.loads(run(capsys, "h100", "--json"))).name == "h100"
    assert json.loads(run(capsys, "--links", "nvlink2", "--json"))["bandwidth_bytes_per_s"] == 150e9
    rows = json.loads(run(capsys, "--prices", "--json"))
    assert len(rows) == len(prices())
    assert all(row["source"] and row["date"] for row in rows)
    assert rows[0]["usd_per_device_hour"] == rows[0]["price_usd_per_hour"] / rows[0]["count"]


def test_invalid_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" in run(capsys, "v10", status=2)
    assert "chronograd calibrate" in run(capsys, "local", status=2)
    assert "two lists" in run(capsys, "--links", "--prices", status=2)
    assert main(["devices", "v10", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "unknown device 'v10'"
