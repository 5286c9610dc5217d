"""`chronograd predict` for clusters: --scaling, --model paleo, --timeline; `records --timeline`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.count.network import trace_network
from chronograd.data.decoding import counted_input
from chronograd.hardware import market
from chronograd.hardware.catalog import Price
from chronograd.rundir import RunDir
from chronograd.rundir.steps import StepLine

ROOT = Path(__file__).parent.parent.parent
JOB = """
network: {name: alexnet-v2}
data: {name: synthetic, shape: [3, 224, 224], classes: 1000, samples: 8192}
training: {recipe: sgd, batch: 2048}
cluster: {device: k80}
backend: ddp
"""


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the options of a job and of its network's trace."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "job.yaml").write_text(JOB)
    trace_network("alexnet-v2").save(folder / "net.json.gz")
    return ["predict", str(folder / "job.yaml"), "--trace", str(folder / "net.json.gz")]


def test_scaling_table(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--on", "v100", "--scaling", "strong", "--counts", "1,2,4,8"]) == 0
    text = capsys.readouterr().out
    assert "Strong scaling of alexnet-v2 on v100" in text
    assert "8 ranks are predicted to give" in text
    assert {"1", "2", "4", "8"} <= {line.split()[0] for line in text.splitlines() if "predicted" in line.split()[1:2]}
    assert main([*arguments, "--on", "v100", "--scaling", "weak", "--counts", "1,16", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["count"] for row in table["rows"]] == [1, 16]
    assert table["rows"][1]["nodes"] == 2
    assert table["mode"] == "weak"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("network.name=vgg16", "is of network alexnet-v2; the job has vgg16"),
        ("data.shape=[3, 32, 32]", "is of samples of shape (3, 224, 224); the job has (3, 32, 32) (synthetic)"),
        ("data.classes=10", "is of 1,000 classes; the job has 10 (synthetic)"),
        ("training.channels_last=true", "is of training.channels_last=False"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "plan"])
def test_trace_of_another_job_is_refused(
    arguments: list[str], verb: str, override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, *arguments[1:], override, "--on", "v100"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "chronograd count JOB --out FILE" in error
    as_network = [word for word in arguments if word not in ("--trace", arguments[-1])]
    is_refused = override.startswith("network") or main([*as_network, f"network.name={arguments[-1]}", override]) == 2
    assert is_refused


IMAGENET = ["data.name=imagenet", "data.shape=null", "data.classes=null", "data.samples=null"]


def test_scaling_table_includes_the_wait_for_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*arguments, *IMAGENET, "--on", "v100", "--precision", "fp16"]
    assert main([*arguments, "backend=single", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--scaling", "strong", "--counts", "1,8", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert table["rows"][0]["step_time_s"] == pytest.approx(one["quantities"]["step_time_s"]["value"])
    assert table["rows"][0]["throughput_samples_per_s"] == pytest.approx(8 * 140)
    assert table["notes"][0] == f"1 × v100: {one['notes'][-1]}"
    assert "limited by its input" in one["notes"][-1]
    assert main([*arguments, "--scaling", "strong", "--counts", "1"]) == 0
    assert "note: 1 × v100: limited by its input" in capsys.readouterr().out


def test_timeline_shows_the_wait_for_input(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*arguments, *IMAGENET, "--on", "v100", "--precision", "fp16", "backend=single"]
    assert main([*arguments, "--timeline", str(tmp_path / "step.json"), "--json"]) == 0
    input_s = json.loads(capsys.readouterr().out)["quantities"]["input_s"]["value"]
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [e["dur"] for e in events if e["name"] == "input"] == pytest.approx([1e6 * input_s], rel=1e-4)


@pytest.mark.parametrize("model", ["operators", "paleo"])
def test_stated_input_rate_limits_both_models(
    arguments: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--model", model, "cluster.input_samples_per_s=10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["quantities"]
    assert found["step_time_s"]["value"] == pytest.approx(2048 / 10)
    assert found["input_stall_s"]["value"] < found["input_s"]["value"] + 1e-12


def test_decoding_rate_is_unknown_without_a_device_price(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    price = market.price_of("mi250", count=8)
    assert price is None
    assert main([*arguments, *IMAGENET, "--on", "8xmi250", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(n.startswith("decoding on the host is not included: no price of mi250 is known") for n in notes)
    assert main([*arguments, *IMAGENET, "--on", "8xmi250", "cluster.input_samples_per_s=99999", "--json"]) == 0
    assert not any("not counted" in n for n in json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"vcpus": None}, "the price table has no virtual CPUs of v i"),
        ({"includes_host": False}, "v i is priced without its host"),
    ],
)
def test_decoding_rate_is_unknown_without_cpu_count(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], why: str
) -> None:
    known = {"vcpus": 8.0, "includes_host": True, "vendor": "v", "instance": "i", "device": "v100", "count": 1}
    dated = {"price_usd_per_hour": 1.0, "kind": "on-demand", "date": "2026-11-01", "tag": "assumed", "source": "here"}
    job = jobs.from_dict({"network": {"name": "alexnet"}, "data": {"name": "imagenet"}, "cluster": {"device": "v100"}})
    offer = Price.model_validate({**known, **dated, **change})
    monkeypatch.setattr(market, "price_of", lambda device, count: offer)
    found = counted_input(job, 1e-3)
    assert found is not None
    assert found[0] is job
    assert f"decoding on the host is not included: {why}" in found[1]
    assert counted_input(job.model_copy(update={"mode": "inference"}), 1e-3) is None


def test_more_ranks_than_the_default_batch(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--on", "128xv100", "--json"]) == 0
    arguments = [*arguments, "cluster.count=100", "--json"]
    assert json.loads(capsys.readouterr().out)["cluster"]["count"] == 128
    assert main([*arguments, "--scaling", "strong", "--counts", "1,100"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][1]["batch_per_rank"] == 21
    assert main([*arguments, "training.scale_by_ranks=[learning_rate]"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["training"]["learning_rate"] == pytest.approx(10)


def test_batch_larger_than_the_data_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "data.samples=2048"]) == 0
    assert main([*arguments, "data.samples=2047"]) == 2
    assert "training.batch is 2,048, more than the 2,047 training samples" in capsys.readouterr().err


def test_paleo_writes_a_record(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--model", "paleo", "--ppp", "0.62", "--ppp-comm", "0.72", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    # AlexNet v2 on a K80 at batch 2048: 3365.3 ms (PALEO's released code).
    assert record["quantities"]["step_time_s"]["value"] == pytest.approx(3.3653, abs=5e-5)
    assert record["quantities"]["step_time_s"]["source"].startswith("PALEO (PPP 0.62 and 0.72)")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--model", "paleo", "--ppp", "1.5"], "ppp is 1.5"),
        (["--scaling", "strong", "--counts", "1,two"], "write whole numbers"),
        (["--scaling", "weak", "--counts", "0"], "write whole numbers"),
        (["--algorithm", "buterfly", "--on", "2xk80"], "did you mean butterfly"),
        (["--timeline", "no/such/folder/step.json"], "cannot write"),
        (["--timeline", "step.json", "--on", "k80", "--on", "v100"], "--timeline takes one setting"),
        (["--scaling", "strong", "--out", "record.json"], "No such option '--out'"),
        (
            ["--scaling", "strong", "--measured-on", "v100=100/s"],
            "No such option '--measured-on'",
        ),
        (["--scaling", "strong", "--layers"], "No such option '--layers'"),
        (["--scaling", "strong", "--depth", "1"], "No such option '--depth'"),
        (
            ["--timeline", "step.json", "--measured-on", "v100=100/s"],
            "--timeline cannot be corrected by a measurement",
        ),
    ],
)
def test_mistakes_get_one_message(
    arguments: list[str], wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, *wrong]) == 2
    assert message in capsys.readouterr().err


def test_timelines_of_a_prediction_and_of_a_run(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "step.json"
    assert main([*arguments, "--on", "8xv100", "--timeline", str(saved)]) == 0
    assert "step time" in capsys.readouterr().out
    assert {"forward", "backward", "communication"} <= {
        e.get("cat") for e in json.loads(saved.read_text())["traceEvents"]
    }
    run = RunDir.create(out=tmp_path / "run")
    with run.step_writer() as lines:
        lines.write(StepLine(step=1, mode="parts", step_time_s=0.3, forward_s=0.1, backward_s=0.2))
    assert main(["records", str(run.path), "--timeline", str(saved)]) == 0
    assert [e["name"] for e in json.loads(saved.read_text())["traceEvents"] if e["ph"] == "X"] == [
        *("step 1", "forward", "backward")
    ]
    assert main(["records", "--timeline", str(saved)]) == 2
