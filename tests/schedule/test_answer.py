"""`schedule`: workloads as files, predicted speeds, and the answer."""

import json
import time
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
from chronograd.schedule import workload
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
        ("job,gpus,gpus\nresnet20,1,1\n", "has the column 'gpus' twice"),
        ("job,gpus\nresnet20,1e300\n", "line 2: gpus is '1e300'"),
        ("job,target\nresnet20,nan\n", "line 2: target is 'nan'"),
        ("job,weight\nresnet20,1e-300\n", "line 2: weight is '1e-300'"),
        ("job,deadline\nresnet20,0s\n", "line 2: deadline is '0s'"),
        ("job,arrival\nresnet20,-1\n", "line 2: arrival is '-1'"),
        ("job,arrival\nresnet20,1e16\n", "line 2: arrival is '1e16'"),
        ("name,job\na,resnet20\n\nA,resnet20\n", "lines 2 and 4: two jobs have the name 'A'"),
        ("name,job\n../../x,resnet20\n", "line 2: a job has the name '../../x'"),
        ("name,job\nschedule.json,resnet20\n", "line 2: a job has the name 'schedule.json'"),
        ("steps,batch,coefficients\n10,1,1,2,3,4,5\n", "line 2: coefficients are '1'"),
        ('[{"jobid": "application_1", "user": "u1"}]', "is JSON, and a workload is CSV"),
        ("job;arrival\nresnet20;0\n", "separates its columns with semicolons"),
        ("job\tarrival\nresnet20\t0\n", "separates its columns with tabs"),
        ('job\n"resnet20\n', "cannot read .*: unexpected end of data"),
        ("<html>\n", "is a web page"),
        ("a\0b\n", "is a binary file, not a workload"),
        ("", "is empty, not a workload"),
    ],
)
def test_a_wrong_line_is_reported(write, text, complaint):
    with pytest.raises(FileFormatError, match=complaint):
        read_workload(write(text))


@pytest.mark.parametrize(
    "text", ["1,2,3,4,5", "1;2;3;4;5", "1 2 3", "1 2 3 4 5 6", "1 2 3 4 -5", "1 2 3 4 nan", "1 2 3 4 x"]
)
def test_coefficients_are_four_or_five_numbers_with_spaces(write, text):
    with pytest.raises(FileFormatError, match="line 2: coefficients are '") as error:
        read_workload(write(f'coefficients,steps\n"{text}",10\n'))
    assert "write 5 numbers of synchronous steps, or 4 of asynchronous ones" in error.value.hint
    assert "separated by spaces" in error.value.hint


def test_an_arrival_of_no_time_is_the_start(write):
    lines = read_workload(write("job,arrival\nresnet20,0\nresnet20,0s\nresnet20,0.0 min\nresnet20,\n"))
    assert [line.arrival_s for line in lines] == [0, 0, 0, 0]


def test_lines_without_a_name_get_different_ones(write):
    text = "name,job\n,resnet20\n,resnet20\nresnet20-3,resnet20\n,resnet20\n,jobs/a.yaml\n,torchvision:resnet18\n"
    lines = read_workload(write(text))
    assert [line.name for line in lines] == [
        "resnet20", "resnet20-2", "resnet20-3", "resnet20-4", "a", "torchvision:resnet18"
    ]  # fmt: skip


def test_a_workload_has_a_limit_of_lines(write, monkeypatch):
    monkeypatch.setattr(workload, "MAX_JOBS", 3)
    header, line = "job,data\n", "resnet20,cifar10\n"
    assert len(read_workload(write(header + 3 * line))) == 3
    with pytest.raises(FileFormatError, match="a workload may have at most"):
        read_workload(write(header + 4 * line))


def test_twenty_thousand_lines_are_read_in_seconds(write):
    start = time.process_time()
    assert len(read_workload(write("job,gpus\n" + "resnet20,1\n" * 20_000))) == 20_000
    assert time.process_time() - start < 2


@pytest.mark.parametrize("name", ["..yaml", "events.jsonl.yaml"])
def test_a_job_file_whose_name_cannot_be_a_folder_is_refused(tmp_path, name):
    (tmp_path / name).write_text("")
    with pytest.raises(FileFormatError, match="a job has the name"):
        read_workload(tmp_path)


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
    assert lanes.lanes == ["resnet20", "resnet20-2"]
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


def test_a_small_batch_on_many_gpus_accumulates_only_on_few(write):
    """One GPU holds 256 samples of ResNet-50 in two parts, 256 GPUs hold one sample each, which has no parts."""
    path = write("job,data,gpus,epochs,batch\nresnet50,imagenet,256,1,256\nresnet50,imagenet,1,1,256\n")
    many, one = chronograd.schedule(path, on="256xv100", policy="fifo", draws=2).result.jobs
    assert many.waiting_s.value == 0
    assert one.end_s.value > 3 * many.end_s.value


def test_a_cluster_of_any_size_is_answered(write):
    """The speed of a job with servers is predicted for 256 workers and servers at most, of any other for 4,096 GPUs."""
    both = write(
        "coefficients,steps,batch,gpus,servers,job,data,epochs\n1 2 4 0 0.02,2000,40,2,2,,,\n,,,1,,resnet20,cifar10,1\n"
    )
    plan = chronograd.schedule(both, on="999999999xv100", policy="fifo", draws=2).result
    assert plan.gpus == 999_999_999
    for row, complaint in [("resnet20,cifar10,5000,10000", "at most 4,096"), ("resnet20,cifar10,1,64", "")]:
        path = write(f"job,data,gpus,batch\n{row}\n")
        if complaint:
            with pytest.raises(InputError, match="requests 5,000 GPUs or servers") as error:
                chronograd.schedule(path, on="10000xv100", policy="fifo", draws=2)
            assert complaint in error.value.hint


@pytest.mark.parametrize(
    "words",
    [
        *("--seed -1", "--seed 0.5", "--draws 1", "--draws nan", "--slots -1", "--count 0", "--count 1e9", "--gap nan", "--gap 0s"),
        *("--interval 0s", "--resize -1s", "--start inf", "--mtbf 0s", "--slow 200%", "--slow nan", "--reclaim x"),
    ],
)  # fmt: skip
def test_an_impossible_option_is_refused_in_one_sentence(write, words):
    path = write("job,data,epochs\nresnet20,cifar10,1\n")
    result = CliRunner().invoke(command, ["schedule", str(path), "--on", "4xv100", *words.split()])
    assert result.exit_code == 2
    assert result.output.count("Error: ") == 1


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
        ("job,data,gpus\nresnet20,cifar10,9\n", "resnet20 requests 9 GPUs, and the cluster has 4"),
        ("job,data,gpus,batch\nresnet20,cifar10,4,2\n", "resnet20 requests 4 GPUs, and its batch of 2 is enough for 2"),
        (SERVERS + "1 2 3 4 5,10,40,2,9\n", "job requests 9 servers, and the cluster has places for 4"),
        (SERVERS + "1 2 3 4 5,10,40,9,2\n", "job requests 9 GPUs, and the cluster has 4"),
        ("job,data,target\nresnet20,cifar10,99.9%\n", "resnet20"),
        ("job,data\nresnet50,cifar10\n", "state the column epochs"),
        ("name,job,data\na,resnet20,cifar10\nb,resnet2O,cifar10\n", "job b: unknown network 'resnet2O'"),
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
    assert "unknown policy 'lottery'; known: allox, fair" in result.output
