"""`chronograd plan` and `predict --layers` from a user's view."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.verbs.kinds import parse_bytes, parse_length

JOB = str(Path(__file__).parent.parent.parent / "examples" / "digits.yaml")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def words(text: str) -> str:
    """Return the output as on a screen of unlimited width."""
    return " ".join(text.split())


def test_largest_batch_with_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, "plan", JOB, "--largest-batch", "--on", "V100")
    assert "Tesla V100" in printed
    for part in ("params", "gradients", "optimizer", "buffers", "activations", "reserve", "assumed"):
        assert part in printed
    assert "fit in 16 GiB" in printed
    assert " GB" not in printed.replace("16 GB\n", "")  # one unit, but for the name of the card
    assert max(len(line) for line in printed.splitlines() if "yes" in line or "params" in line) <= 90
    data = json.loads(run(capsys, "plan", JOB, "--largest-batch", "--on", "V100", "--json"))
    fits = {row["batch"]: row["fits"] for row in data["memory"]}
    assert fits[data["largest_batch_per_device"]]
    assert not fits[data["largest_batch_per_device"] + 1]
    parts = ("parameters", "gradients", "optimizer_state", "buffers", "activations", "reserve")
    assert all(row["total"] == sum(row[part] for part in parts) for row in data["memory"])
    assert data["confirmed"] is None


@pytest.mark.parametrize(("option", "number"), [("--most", "0"), ("--most", "-1"), ("--probes", "0")])
def test_zero_settings_and_probes_are_refused(capsys: pytest.CaptureFixture[str], option: str, number: str) -> None:
    """Zero printed settings were once reported as no setting with a price."""
    verb = ["plan", "batch"] if option == "--probes" else ["plan"]
    assert main([*verb, JOB, "--on", "v100", option, number]) == 2
    assert f"Invalid value for '{option}': {number} is not in the range x>=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [("8k", "'8k' is not a whole number."), ("1.5", "'1.5' is not a whole number.")]
)
def test_wrong_numbers_are_refused_in_plain_words(capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    assert main(["predict", "llama-3-8b", "--on", "8xh100", "--micro-batch", text]) == 2
    assert said in capsys.readouterr().err


def test_largest_batch_of_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    one, several = (
        json.loads(run(capsys, "plan", JOB, "--largest-batch", "--on", place, "--json")) for place in ("v100", "8xV100")
    )
    assert (one["devices"], several["devices"]) == (1, 8)
    assert (several["device"], several["largest_batch_per_device"]) == ("v100", one["largest_batch_per_device"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict {job} cluster.count=4 --on 8xv100", "--on 8xv100 contradicts cluster.count=4"),
        ("predict scaling {job} cluster.device=t4 --on v100", "--on v100 contradicts cluster.device=t4"),
        ("predict server {job} cluster.count=2 --on 1xv100 --rate 9", "--on 1xv100 contradicts cluster.count=2"),
        ("plan batch {job} cluster.count=4 --on 8xv100", "--on 8xv100 contradicts cluster.count=4"),
        ("plan {job} cluster.count=4 --on v100", "write --counts 4"),
        ("plan inference {job} cluster.device=t4", "write --on t4"),
        ("plan {job} --on 4xv100", "write --on v100 --counts 4"),
        ("judge {job} cluster.count=4 --on 8xv100 9/s", "--on 8xv100 contradicts cluster.count=4"),
    ],
)
def test_contradicting_places_are_refused(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    """The count and the device of an option and of a field must agree: one of them was once ignored."""
    assert main(line.format(job=JOB).split()) == 2
    assert message in words(capsys.readouterr().err)


@pytest.mark.parametrize(
    "words",
    ["predict {job}", "plan {job}", "plan batch {job}", "judge {job} 9/s"],
)
def test_accelerators_are_not_predicted(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """The catalogue has their peaks, which alone do not give a step time."""
    for name in ("tpu-v5e", "trainium2"):
        assert main([*words.format(job=JOB).split(), "--on", name]) == 2
        assert f"{name} cannot be predicted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [("cluster.count=4 --on v100", 4), ("cluster.count=4 --on 4xv100", 4), ("--on v100", 1), ("--on 2xv100", 2)],
)
def test_predictions_and_verdicts_use_the_stated_count(
    capsys: pytest.CaptureFixture[str], line: str, expected: int
) -> None:
    predicted = json.loads(run(capsys, "predict", JOB, *line.split(), "--json"))
    assert predicted["cluster"]["count"] == expected
    judged = json.loads(run(capsys, "judge", JOB, *line.split(), "9 samples/s", "--json"))
    assert judged["setting"]["devices"] == expected


def test_batch_shrinks_with_memory_and_several_devices(capsys: pytest.CaptureFixture[str]) -> None:
    two = json.loads(run(capsys, "plan", JOB, "--largest-batch", "--on", "k80", "--on", "h100", "--json"))
    assert two[0]["largest_batch_per_device"] < two[1]["largest_batch_per_device"]
    less = json.loads(run(capsys, "plan", JOB, "--largest-batch", "--on", "h100", "--memory", "2GB", "--json"))
    assert less["capacity_bytes"] == 2_000_000_000
    assert less["largest_batch_per_device"] < two[0]["largest_batch_per_device"]
    any_gpu = json.loads(run(capsys, "plan", JOB, "cluster={}", "--largest-batch", "--memory", "24GB", "--json"))
    assert (any_gpu["device"], any_gpu["capacity_bytes"], any_gpu["reserve_bytes"]) == ("l4", 24 * 10**9, 2**30)


def test_fitting_settings_are_sorted_by_price(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", JOB, "--on", "V100", "--on", "A100", "--counts", "1,4", "--batches", "32,64")
    assert "per million samples" in words(run(capsys, *arguments))
    data = json.loads(run(capsys, *arguments, "--json"))
    assert data["evaluated"] == data["fit"] == 2**6  # devices, counts, batches, precisions, layouts, all-reduces
    assert sorted((row["device"], row["count"]) for row in data["settings"]) == [
        ("a100-40", 1),
        ("a100-40", 4),
        ("v100", 1),
        ("v100", 4),
    ]
    prices = [row["usd_per_million_samples"] for row in data["settings"]]
    assert prices == sorted(prices)


@pytest.mark.parametrize("goal", [(), ("--budget", "50", "--epochs-to-target", "3")])
def test_settings_with_too_many_samples_are_skipped(goal: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """1437 digits: 4 devices with 360 samples each need three too many, in two precisions and layouts."""
    arguments = ("plan", JOB, "--on", "V100", "--counts", "1,4", "--algorithm", "ring", *goal)
    data = json.loads(run(capsys, *arguments, "--batches", "359,360", "--json"))
    assert (data["evaluated"], data["too_large_for_the_data"]) == (12, 4)
    largest = max(row["count"] * row["batch_per_device"] for row in data["front" if goal else "settings"])
    assert largest <= 1437
    said = "Left out: 4 settings with a global batch larger than the 1,437 training samples"
    assert said in words(run(capsys, *arguments, "--batches", "359,360"))
    assert "Left out" not in run(capsys, *arguments, "--batches", "32")
    assert main([*arguments, "--batches", "2000,3000"]) == 2
    assert "the smallest global batch is 2,000, more than the 1,437 training samples" in capsys.readouterr().err


IMAGENET = {
    "network": {"name": "resnet20"},
    "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000, "samples": 1_281_167},
    "training": {"epochs": 90, "batch": 256},
}


def test_advice_for_fifty_dollars(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Accepts per cent and dollar signs; recommends half precision at a dated price with its host."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(IMAGENET))
    saved = str(tmp_path / "net.json.gz")
    run(capsys, "count", str(job), "--out", saved)
    plan = ("plan", str(job), "--trace", saved, "--batches", "16,32,64,128,256,512")
    first = run(capsys, *plan, "--to", "75%", "--budget", "$50")
    assert (
        first
        == run(capsys, *plan, "--target-accuracy", "0.75", "--budget", "50")
        == run(capsys, *plan, "--to", "75", "--budget", "50.0")
    )
    title, *rest = first.splitlines()
    assert title == "resnet20 on synthetic to 75 %: at most $50.00"
    advice, takes, price = (
        " ".join(rest).index(part)
        for part in ("We cannot promise the accuracy", "The run itself takes ", "The price is from 20")
    )
    assert 0 == advice < takes < price
    assert "Not searched: " in first
    data = json.loads(run(capsys, *plan, "--to", "75%", "--budget", "$50", "--json"))
    assert data["chosen"]["precision"] in ("bf16", "fp16")
    assert data["chosen"]["price"]["includes_host"]
    assert data["chosen"]["is_input_bound"] is False
    assert data["decoding"] is None  # synthetic images are not decoded
    slow = json.loads(run(capsys, *plan, "--to", "75%", "--budget", "$50", "--decode", "1", "--json"))
    assert slow["likeliest"]["is_input_bound"]
    paced = run(capsys, *plan, "--to", "75%", "--budget", "$500000", "--decode", "1")
    assert "Decoding on the host limits the speed" in words(paced)
    pinned = json.loads(run(capsys, *plan, "training.precision=fp32", "--budget", "50", "--json"))
    assert {row["precision"] for row in pinned["front"]} == {"fp32"}
    wide = json.loads(run(capsys, *plan, "--precisions", "fp32,bf16", "--budget", "50", "--on", "a100", "--json"))
    # Two precisions, four counts and six batches: of both cards, and of the one with 40 GB again with checkpointing, for its
    # largest batches do not fit without.
    assert wide["evaluated"] == 2 * 4 * 6 * (2 + 1)


def test_from_a_saved_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = str(tmp_path / "net.json.gz")
    run(capsys, "count", JOB, "--out", saved)
    assert "at most" in run(capsys, "plan", JOB, "--largest-batch", "--on", "V100", "--trace", saved)


def test_layers_with_possible_savings(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, "predict", JOB, "--on", "v100", "--layers")
    assert "layer2.0" in printed
    assert "the most time to win is in layer" in words(printed)
    assert "MFU" in printed
    assert "PPP" in printed
    assert "layer1.0.conv1" in run(capsys, "predict", JOB, "--on", "v100", "--layers", "--depth", "3")
    record = json.loads(run(capsys, "predict", JOB, "--on", "v100", "--layers", "--json"))
    assert len(record["tables"]["most_to_win"]) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("--largest-batch", "--memory", "lots"),
        ("--confirm",),
        ("--largest-batch", "--on", "v100", "--confirm"),
        ("--counts", "1,two"),
        ("--counts", "0"),
        ("--to", "much"),
        ("--to", "101%"),
        ("--to", "0"),
        ("--budget", "€50"),
        ("--budget", "-5"),
        ("--precisions", "fp31"),
        ("--decode", "-1"),
    ],
)
def test_unreadable_values_are_refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", JOB, *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("rest", ["0", "00", ",000", ""])
def test_rest_of_an_unquoted_amount_is_explained(rest: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell expands $50, $500, $5,000 and "$5" to these, because it has no fifth argument."""
    assert main(["plan", JOB, "--budget", rest]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "the shell replaces $5 in an unquoted $50; write '$50' or 50" in error


def test_lengths() -> None:
    assert [parse_length(t) for t in ("4096", "4k", "128K", "8,192")] == [4096, 4096, 131_072, 8192]
    for text in ("0", "k", "4.5k", "1e4", "-1", "4m", "9999999999"):
        with pytest.raises(ValueError, match="write a whole number of tokens"):
            parse_length(text)


def test_sizes() -> None:
    assert [parse_bytes(t) for t in ("1", "2GB", "2 GiB", "1.5k", "3mb")] == [1, 2 * 10**9, 2**31, 1500, 3 * 10**6]
    with pytest.raises(ValueError, match="write 16GB"):
        parse_bytes("GB")
