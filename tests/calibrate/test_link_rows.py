"""Links fitted from published rows: synthetic rows that follow the formulas, the public tables, and bad files."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path
from statistics import fmean

import pytest

from chronograd.calibrate import link_rows
from chronograd.calibrate.link_rows import link_from
from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError
from chronograd.hardware import catalog
from chronograd.predict.collectives import ring

DEEPBENCH = Path(os.environ.get("CHRONOGRAD_MEASURED", "")) / "deepbench" / "allreduce.csv"


def written(path: Path, head: str, *rows: str) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_one_all_reduce_gives_the_bandwidth(tmp_path: Path) -> None:
    latency_s = catalog.link("pcie3").latency_s
    seconds = float(ring(67e6, 8, latency_s, 8.7e9))
    found = link_from(written(tmp_path / "a.csv", "ranks,bytes,seconds", f"8,67000000,{seconds}"), "here")
    assert found.link.latency_s == latency_s
    assert found.link.bandwidth_bytes_per_s == pytest.approx(8.7e9)
    assert found.error < 1e-9


def test_deepbench_rows_give_latency_and_bandwidth(tmp_path: Path) -> None:
    rows = [f"8,{n},{1e3 * float(ring(4 * n, 8, 20e-6, 6e9))}" for n in (100_000, 3_000_000, 64_000_000)]
    link = link_from(written(tmp_path / "a.csv", "n_accelerators,n_floats,mean_ms", *rows), "here").link
    assert (link.latency_s, link.bandwidth_bytes_per_s) == pytest.approx((20e-6, 6e9), rel=1e-6)


@pytest.mark.parametrize(
    ("head", "row", "error"),
    [
        ("a,b", "1,2", FileFormatError),
        ("ranks,bytes,seconds", "8,none,1", FileFormatError),
        ("ranks,bytes,seconds", "1,100,1", FileFormatError),
        ("ranks,bytes,seconds", "8,100,0.00001", InputError),
        ("ranks,network,batch_per_rank,device,samples_per_s", "8,resnet20,128,v100,1000", FileFormatError),
        ("ranks,network,batch_per_rank,device,precision,samples_per_s", "8,resnet20,128,v100,amp,1000", InputError),
    ],
)
def test_uninformative_rows_are_refused(tmp_path: Path, head: str, row: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        link_from(written(tmp_path / "a.csv", head, row), "here")


@pytest.mark.parametrize(
    ("head", "rows", "message"),
    [
        (
            "ranks,bytes,seconds,device",
            ["8,67108864,0.01,v100", "8,67108864,0.02,k80"],
            "more than one device: v100, k80",
        ),
        (
            "ranks,bytes,seconds,algorithm",
            ["8,67108864,0.01,NCCL", "8,1e8,0.02,MPI"],
            "more than one algorithm: NCCL, MPI",
        ),
    ],
)
def test_rows_of_several_links_are_refused(tmp_path: Path, head: str, rows: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        link_from(written(tmp_path / "a.csv", head, *rows), "here")
    assert "in the file" in (error.value.hint or "")
    assert link_from(written(tmp_path / "a.csv", head, rows[0], rows[0]), "here").rows == 2


def test_scaling_rows_state_their_precision(tmp_path: Path) -> None:
    head = "ranks,network,batch_per_rank,device,precision,samples_per_s"
    for text, precision in (("amp", "fp16"), ("bf16", "bf16")):
        path = written(tmp_path / "a.csv", head, f"8,resnet20,128,v100,{text},1000")
        assert link_rows._scaled(path, 2, link_rows._rows(path)[0]).precision == precision
    for text in ("", "int3"):
        with pytest.raises(FileFormatError, match=f"line 2: precision is '{text}'"):
            link_from(written(tmp_path / "a.csv", head, f"8,resnet20,128,v100,{text},1000"), "here")


def test_catalogue_link_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    before = catalog.link("nvlink2")
    path = written(tmp_path / "a.csv", "ranks,bytes,seconds", "4,67108864,0.009145")
    assert main(["calibrate", "links", "--from", str(path), "--name", "nvlink2"]) == 2
    assert "nvlink2 is a link of the catalogue" in " ".join(capsys.readouterr().err.split())
    assert catalog.link("nvlink2") == before


def test_saved_link_works_with_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = written(tmp_path / "a.csv", "ranks,bytes,seconds", "4,67108864,0.009145")
    assert main(["calibrate", "links", "--from", str(path), "--name", "pcie-here", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert catalog.link("pcie-here").bandwidth_bytes_per_s == pytest.approx(told["link"]["bandwidth_bytes_per_s"])
    assert 10.5e9 < catalog.link("pcie-here").bandwidth_bytes_per_s < 11.5e9
    assert main(["calibrate", "links", "--from", str(path), "--name", "pcie-here"]) == 0
    assert "messages of a quarter to four times" in " ".join(capsys.readouterr().out.split())
    assert main(["calibrate", "links", "--from", str(path)]) != 0
    assert main(["calibrate", "links", "--like", "pcie4"]) != 0


def test_predicted_scaling_yields_the_original_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chronograd import job as jobs
    from chronograd.data.trace_job import trace_job
    from chronograd.predict.prediction import predict_step
    from chronograd.predict.setting import setting_of

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    slow = catalog.link("pcie3").model_copy(update={"name": "slow", "bandwidth_bytes_per_s": 0.7e9})
    slow.save(catalog.user_link_path("slow"))

    def rate(ranks: int) -> float:
        given = {
            "network": {"name": "torchvision:resnet18"},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
            "training": {"batch": 16 * ranks},
            "cluster": {"device": "v100", "count": ranks, "intra_link": "slow", "step_sigma_log": 0.0},
            "backend": "ddp",
        }
        job = jobs.from_dict(given)
        return 16 * ranks / predict_step(trace_job(job), setting_of(job)).seconds

    rows = [f"{ranks},torchvision:resnet18,16,v100,fp32,{rate(ranks)}" for ranks in (1, 8)]
    path = written(tmp_path / "a.csv", "ranks,network,batch_per_rank,device,precision,samples_per_s", *rows)
    found = link_from(path, "here")
    assert found.link.bandwidth_bytes_per_s == pytest.approx(0.7e9, rel=0.01)
    assert (found.kind, found.rows) == ("scaling rows", 1)


@pytest.mark.skipif(not DEEPBENCH.is_file(), reason="CHRONOGRAD_MEASURED has no all-reduces of DeepBench")
def test_one_all_reduce_predicts_others_of_the_machine(tmp_path: Path) -> None:
    """The seed picks one row per machine, GPU count and NCCL version that latency does not dominate."""
    machines: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(DEEPBENCH.read_text().splitlines()):
        machines.setdefault((row["device"], row["n_accelerators"], row["algorithm"]), []).append(row)
    errors, before = [], []
    draw = random.Random(0)
    for (_, count, algorithm), rows in sorted(machines.items()):
        usable = [row for row in rows if int(row["n_floats"]) > 1_000_000]
        if len(rows) < 3 or not algorithm.startswith("NCCL"):
            continue
        chosen = draw.choice(usable)
        line = f"{count},{chosen['n_floats']},{chosen['mean_ms']}"
        link = link_from(written(tmp_path / "a.csv", "ranks,n_floats,mean_ms", line), "one").link
        for row in rows:
            if row is not chosen:
                size, ranks, seconds = 4 * int(row["n_floats"]), int(count), float(row["mean_ms"]) / 1e3
                errors.append(abs(float(ring(size, ranks, link.latency_s, link.bandwidth_bytes_per_s)) / seconds - 1))
                before.append(float(ring(size, ranks, 5.7e-6, 15.75e9)) / seconds)
    assert len(errors) > 40
    assert fmean(before) < 0.5
    assert fmean(errors) < 0.10
