"""`schedule`: workloads as files, predicted speeds, and the answer."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import chronograd
from chronograd.cli.main import command
from chronograd.errors import FileFormatError, InputError
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet
from chronograd.predict.relatives import calibration_for
from chronograd.schedule.predicted import beside_others
from chronograd.schedule.workload import drawn, read_workload

SERVERS = "coefficients,steps,batch,gpus,servers\n"
OPTIMUS = "1.02 2.78 4.92 0 0.02,2000,40,2,2\n"


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "jobs.csv"
        path.write_text(text)
        return path

    return write


def test_a_workload_states_times_with_units(write):
    lines = read_workload(write("name,arrival,job,deadline,target\na,90,resnet20,2h,91%\n,10min,resnet20,,\n"))
    assert [(one.name, one.arrival_s, one.deadline_s, one.target) for one in lines] == [
        ("a", 90, 7200, 0.91), ("resnet20", 600, None, None),
    ]  # fmt: skip


def test_a_folder_of_job_files_arrives_at_the_start(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.yaml").write_text("network: {name: resnet20}\ndata: {name: cifar10}\n")
    (tmp_path / "notes.txt").write_text("")
    assert [(one.name, one.arrival_s) for one in read_workload(tmp_path)] == [("a", 0), ("b", 0)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("job,colour\nresnet20,red\n", "unknown column 'colour'"),
        ("job,gpus\nresnet20,none\n", "line 2: gpus is 'none'"),
        ("job,gpus\nresnet20,1.5\n", "line 2: gpus is '1.5'"),
        ("job,arrival\nresnet20,soon\n", "line 2: arrival is 'soon'"),
        ("job,deadline\nresnet20,0\n", "line 2: deadline is '0'"),
        ("name,gpus\na,1\n", "line 2 has no job"),
        ("job,gpus\nresnet20\n", "another number of fields"),
    ],
)
def test_a_wrong_line_is_reported(write, text, complaint):
    with pytest.raises(FileFormatError, match=complaint):
        read_workload(write(text))


def test_a_workload_without_jobs_is_refused(write, tmp_path):
    with pytest.raises(InputError, match="has no job"):
        read_workload(write("job,gpus\n"))


def test_drawn_jobs_follow_weights_and_a_poisson_process(write):
    lines = read_workload(write("name,job,weight,deadline\noften,resnet20,3,1h\nrare,resnet20,1,\n"))
    found = drawn(lines, 4000, 60, seed=0)
    assert found == drawn(lines, 4000, 60, seed=0)
    share = np.mean([one.name.startswith("often") for one in found])
    assert share == pytest.approx(0.75, abs=0.03)
    gaps = np.diff([one.arrival_s for one in found])
    assert gaps.mean() == pytest.approx(60, rel=0.06)
    assert gaps.std() == pytest.approx(60, rel=0.1)
    assert all(one.deadline_s is None or one.deadline_s == one.arrival_s + 3600 for one in found)


def test_published_sizes_are_drawn_by_their_number():
    """134 of 521 jobs request six GPUs, and 26 train on ImageNet."""
    lines = read_workload(Path(__file__).parents[2] / "examples" / "pollux-sizes.csv")
    assert sum(line.weight for line in lines) == 521
    found = drawn(lines, 20_000, 60.0, 0)
    assert np.mean([line.gpus == 6 for line in found]) == pytest.approx(134 / 521, rel=0.05)
    assert np.mean([line.data == "imagenet" for line in found]) == pytest.approx(26 / 521, rel=0.15)


def test_the_answer_compares_policies_and_states_its_assumptions(write):
    path = write(
        "job,data,gpus,epochs,batch,deadline,arrival\nresnet20,cifar10,2,200,128,3h,0\nresnet20,cifar10,1,100,64,,2min\n"
    )
    answer = chronograd.schedule(path, on="4xv100", policy="optimus,fifo", draws=5)
    plan = answer.result
    assert [row.policy for row in plan.policies] == ["optimus", "fifo"]
    assert plan.policies[1].restarts.value == 0
    assert plan.jobs[0].in_time == 1
    assert plan.policies[0].cost_usd is not None
    assert any("draws of work and speed" in line for line in answer.sections[0].lines)
    lanes, used = answer.sections[1].figure.panels
    assert lanes.lanes == ["resnet20", "resnet20"]
    assert 2 <= max(used.series[0].y) <= 4
    assert used.series[0].y[-1] == 0
    # Under FIFO a job runs at its requested size: the time is that of `predict`.
    alone = chronograd.predict("resnet20", "training.epochs=200", data="cifar10", batch=128, on="2xv100").result
    fifo = chronograd.schedule(path, on="4xv100", policy="fifo", draws=2).result
    assert fifo.jobs[0].end_s.value == pytest.approx(alone["training_time_s"].value, rel=0.35)


def test_a_schedule_is_saved_for_a_trace_viewer(write, tmp_path):
    path = write("name,job,data,gpus,epochs\nsmall,resnet20,cifar10,1,1\n")
    chronograd.schedule(path, on="2xv100", policy="fifo", draws=2, timeline=tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["small"]


@pytest.mark.parametrize("words", [{"slurm": True}, {"partition": "gpu"}])
def test_options_of_slurm_need_a_run(write, words):
    with pytest.raises(InputError, match="add --"):
        chronograd.schedule(write("job,data,epochs\nresnet20,cifar10,1\n"), on="2xv100", **words)


def test_a_job_on_this_machine_shares_it_with_others():
    """Two ranks at once were calibrated at half the speed of one alone."""
    plain = from_datasheet(catalog.device("cpu"))
    alone = replace(plain, processes=1, threads=1, provenance={"pace_s": 1.0})
    beside = replace(alone, processes=2, peak_flops_per_s=plain.peak_flops_per_s / 2, provenance={"pace_s": 2.0})
    device = catalog.device("cpu").model_copy(
        update={"name": "local", "calibration": {"pace_s": 1.0, "settings": [alone.to_table(), beside.to_table()]}}
    )
    for processes in (1, 2):
        found = calibration_for(beside_others(device), threads=1, processes=processes)
        assert found.peak_flops_per_s == beside.peak_flops_per_s
        assert found.provenance["alone_share"] == 1
    assert calibration_for(device, threads=1, processes=1).peak_flops_per_s == plain.peak_flops_per_s
    assert beside_others(catalog.device("v100")) == catalog.device("v100")


def test_a_job_whose_batch_does_not_fit_accumulates(write):
    path = write("job,data,gpus,epochs,batch\nresnet50,imagenet,1,1,512\n")
    few, many = (chronograd.schedule(path, on=f"{n}xv100", policy="optimus", draws=2).result for n in (1, 8))
    assert few.jobs[0].end_s.value > 3 * many.jobs[0].end_s.value


def test_parameter_servers_are_scheduled_by_their_coefficients(write):
    result = CliRunner().invoke(
        command,
        ["schedule", str(write(SERVERS + OPTIMUS)), "--on", "8xv100", "--policy", "fifo", "--draws", "2", "--json"],
    )
    plan = json.loads(result.output)
    step_s = 1.02 * 40 / 2 + 2.78 + 4.92 * 2 / 2 + 0.02 * 2
    assert plan["jobs"][0]["end_s"]["value"] == pytest.approx(2000 * step_s)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("job,data,gpus\nresnet20,cifar10,9\n", "requests 9 workers"),
        ("job,data,target\nresnet20,cifar10,99.9%\n", "resnet20"),
        ("job,data\nresnet50,cifar10\n", "state the column epochs"),
        ("coefficients,steps\n1 2 3,10\n", "coefficients"),
    ],
)
def test_impossible_jobs_are_refused(write, row, complaint):
    with pytest.raises(InputError) as error:
        chronograd.schedule(write(row), on="4xv100")
    assert complaint in f"{error.value} {error.value.hint}"


def test_an_unknown_policy_is_reported(write):
    result = CliRunner().invoke(
        command, ["schedule", str(write(SERVERS + OPTIMUS)), "--on", "4xv100", "--policy", "lottery"]
    )
    assert result.exit_code == 2
    assert "unknown policy 'lottery'; known: fair" in result.output
