"""`compare --fail-if`: exit status, one line per condition, and JSON."""

from __future__ import annotations

import json

import pytest

from chronograd.cli.main import main
from chronograd.record import Quantity, Record


@pytest.fixture(autouse=True)
def _records(tmp_path, monkeypatch):
    """Write runs of 100, 150 and 104 ms with a deviation of 3 %."""
    monkeypatch.chdir(tmp_path)
    for name, step_time_s in (("main", 0.1), ("slow", 0.15), ("near", 0.104)):
        made = Record(kind="measured", title=name, cluster={"ran_on": "x", "threads": 2 if name == "near" else 1})
        made.put("step_time_s", Quantity(value=step_time_s, unit="s", std=0.03 * step_time_s, n=30))
        made.put("memory_peak_bytes", Quantity(value=1e8, unit="B", n=1))
        made.save(f"{name}.json")


def gate(capsys, *arguments):
    status = main(["compare", *arguments])
    return status, capsys.readouterr()


def test_slower_run_fails_and_equal_run_passes(capsys):
    conditions = ("--fail-if", "step_time > 5%", "--fail-if", "memory_peak > 10%")
    status, told = gate(capsys, "main.json", "slow.json", *conditions)
    assert status == 1
    title, takeaway, slower, _, memory, *_ = told.out.splitlines()
    assert (title, takeaway) == ("Regression gate", "1 of 2 conditions fail.")
    assert slower.split()[:6] == ["fails", "step_time", ">", "5%:", "+50.0", "%,"]
    assert "95 % interval +13.7 % to +97.9 %; 1 against 1 run" in " ".join(told.out.split())
    assert memory.split()[:5] == ["passes", "memory_peak", ">", "10%:", "+0.0"]
    assert gate(capsys, "main.json", "main.json", "--fail-if", "step_time > 10%")[0] == 0


def test_repeated_runs_give_the_run_to_run_spread(capsys, tmp_path):
    """The gate uses run directories of the same job in the folder, and skips those of other jobs."""
    for number, (step_time_s, network) in enumerate(
        [(0.1, "a"), (0.101, "a"), (0.099, "a"), (0.1005, "a"), (0.2, "b"), (0.12, "a")]
    ):
        run = tmp_path / "runs" / f"r{number}"
        run.mkdir(parents=True)
        (run / "steps.0.jsonl").write_text("")
        made = Record(kind="measured", title=run.name, cluster={"ran_on": "x"}, job={"network": {"name": network}})
        made.put("step_time_s", Quantity(value=step_time_s, unit="s", std=0.01 * step_time_s, n=30))
        made.save(run / "record.json")
    status, told = gate(capsys, "runs/r0", "runs/r5", "--fail-if", "step_time > 5%", "--json")
    (condition,) = json.loads(told.out)["conditions"]
    assert status == 1
    assert condition["spread"] == "1 against 1 run; interval from their spread and that of 3 other runs of the same job"
    assert condition["spread_is_assumed"] is False


def test_inconclusive_comparison_fails_with_strict(capsys):
    arguments = ("main.json", "near.json", "--fail-if", "step_time > 5%")
    status, told = gate(capsys, *arguments)
    assert status == 0
    words = " ".join(told.out.split())
    assert "cannot tell step_time > 5%: +4.0 %" in words
    assert "give at least 3 runs of each" in words
    assert "No condition fails. Inconclusive: 1 of 1" in words
    assert told.out.endswith("note: A and B differ in threads 1 and 2\n")
    assert gate(capsys, *arguments, "--strict")[0] == 1


def test_as_json(capsys):
    status, told = gate(capsys, "main.json", "slow.json", "--fail-if", "step_time > 5%", "--json")
    found = json.loads(told.out)
    (condition,) = found["conditions"]
    assert status == 1
    assert found["failed"] is True
    assert condition["verdict"] == "fails"
    assert condition["unit"] == "%"
    assert condition["change"] == pytest.approx(50)
    assert condition["limit"] == pytest.approx(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["main.json", "slow.json", "--fail-if", "step_tim > 5%"], "did you mean step_time"),
        (["main.json", "slow.json", "--fail-if", "nonsense"], "cannot read the condition"),
        (["main.json", "slow.json", "--fail-if", "test_accuracy < -1%"], "has no test_accuracy"),
        (["main.json", "nowhere", "--fail-if", "step_time > 5%"], "no record at nowhere"),
        (["main.json", "slow.json", "--strict"], "--strict without a condition"),
        (["main.json", "slow.json", "--paired"], "--paired without a condition"),
        (["main.json", "slow.json", "--paired", "--fail-if", "step_time > 5%"], "3 or more; you gave 1 and 1"),
        (["jobs", "lenet5", "lenet5", "--rounds", "2"], "2 is not in the range"),
        (["jobs", "lenet5", "lenet5", "--fail-if", "step_tim > 5%"], "did you mean step_time"),
    ],
)
def test_undecidable_gate_exits_with_2(capsys, arguments, message):
    status, told = gate(capsys, *arguments)
    assert status == 2
    assert message in told.err
    assert "Traceback" not in told.err


def test_table_without_conditions_is_unchanged(capsys):
    status, told = gate(capsys, "main.json", "slow.json")
    assert status == 0
    assert "B − A" in told.out
    assert "1.500" in told.out
