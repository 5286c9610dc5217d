"""Job logs of clusters as workloads. The samples have the documented form of the published logs."""

import gzip
import json

import pytest

import chronograd
from chronograd.errors import FileFormatError, InputError
from chronograd.schedule.traces import LoggedJob, read_log
from chronograd.schedule.workload import read_workload


def attempt(start, end, *nodes):
    detail = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(count)]} for i, count in enumerate(nodes)]
    return {"start_time": start, "end_time": end, "detail": detail}


def philly(number, submitted, *attempts, status="Pass"):
    return {
        "status": status, "vc": "ee9e8c", "jobid": f"application_1506638472019_{number}",
        "attempts": list(attempts), "submitted_time": submitted, "user": "ce2f4c",
    }  # fmt: skip


# A job of 16 GPUs on two nodes whose first attempt failed after 74 s. One that never started. One that was still running. One of a
# GPU that was submitted before all others.
PHILLY = [
    philly(
        14199, "2017-10-07 01:11:39",
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8, 8), attempt("2017-10-07 01:13:30", "2017-10-07 02:13:30", 8, 8),
    ),
    philly(14200, "2017-10-07 01:12:00", status="Killed"),
    philly(14201, "2017-10-07 01:12:00", attempt("2017-10-07 01:20:00", None, 1), status="Failed"),
    philly(14198, "2017-10-07 01:10:39", attempt("2017-10-07 01:10:50", "2017-10-07 01:12:30", 1)),
]  # fmt: skip

HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
"""


def test_a_log_of_philly_gives_the_time_of_all_attempts(tmp_path):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY, indent=4))
    log = read_log(path)
    assert log.left_out == 2
    assert log.jobs == [
        LoggedJob("application_1506638472019_14198", 0, 1, 100),
        LoggedJob("application_1506638472019_14199", 60, 16, 74 + 3600),
    ]


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_log_of_helios_gives_jobs_with_gpus(tmp_path, is_packed):
    path = tmp_path / ("cluster_log.csv.gz" if is_packed else "cluster_log.csv")
    path.write_bytes(gzip.compress(HELIOS.encode()) if is_packed else HELIOS.encode())
    log = read_log(path)
    assert log.left_out == 1
    assert log.jobs == [LoggedJob("1425511", 0, 1, 36848), LoggedJob("1425512", 26, 4, 249)]


def test_left_out_jobs_are_reported(tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    said = []
    lines = read_workload(path, said.append)
    assert [(line.name, line.arrival_s, line.gpus, line.duration_s) for line in lines] == [
        ("1425511", 0, 1, 36848),
        ("1425512", 26, 4, 249),
    ]
    assert "1 job without a GPU or a time left out" in said[0]


def test_jobs_of_a_log_run_for_their_time(tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    plan = chronograd.schedule(path, on="8xv100", policy="fifo", draws=2).result
    assert [job.end_s.value for job in plan.jobs] == pytest.approx([36848, 26 + 249])
    with pytest.raises(InputError, match="1425512 requests 4 GPUs, and the cluster has 2"):
        chronograd.schedule(path, on="2xv100", policy="fifo")


def test_a_job_with_a_duration_takes_longer_on_fewer_gpus(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("name,gpus,duration\na,4,1h\nb,4,1h\n")
    plan = chronograd.schedule(path, on="4xv100", policy="fair", draws=2).result
    assert [job.end_s.value for job in plan.jobs] == pytest.approx([7200, 7200])


def test_a_damaged_log_is_reported(tmp_path):
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS.replace("2020-06-09 18:41:27,2020", "yesterday,2020"))
    with pytest.raises(FileFormatError, match="line 3: Invalid isoformat string: 'yesterday'"):
        read_workload(path)
    path.write_text(json.dumps([{**PHILLY[0], "submitted_time": None}]))
    with pytest.raises(FileFormatError, match="job 1 is damaged"):
        read_workload(path)
    path.write_text('[{"name": "a"}]')
    with pytest.raises(FileFormatError, match="is JSON, and a workload is CSV"):
        read_workload(path)


def test_a_log_without_a_usable_job_is_refused(tmp_path):
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(PHILLY[1:3]))
    with pytest.raises(InputError, match="has no job"):
        read_workload(path)


@pytest.mark.parametrize("batches", ["256", "30:", "60:512 30:256", "0:64", "30:0", "30:256,60:512"])
def test_batches_are_epochs_and_batches_in_order(tmp_path, batches):
    path = tmp_path / "jobs.csv"
    path.write_text(f'job,data,epochs,batches\nresnet20,cifar10,90,"{batches}"\n')
    with pytest.raises(FileFormatError, match="line 2: batches are "):
        read_workload(path)


def test_a_batch_that_grows_makes_a_job_faster(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text(
        "name,job,data,epochs,batch,batches\nsmall,resnet20,cifar10,90,32,\nlarge,resnet20,cifar10,90,512,\n"
        "grows,resnet20,cifar10,90,32,30:512\n"
    )
    lanes = chronograd.schedule(path, on="4xv100", policy="fifo", draws=2).sections[1].figure.panels[0]
    small, large, grows = (
        max(span.end for span in lanes.spans if span.lane == i) for i in range(3)
    )  # as expected, not drawn
    assert grows == pytest.approx(small / 3 + large * 2 / 3)
    assert large < grows < small


def test_a_workload_of_too_many_jobs_is_drawn_from(tmp_path, monkeypatch):
    monkeypatch.setattr("chronograd.schedule.log.MAX_JOBS", 1)
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    with pytest.raises(InputError, match="has 2 jobs") as error:
        chronograd.schedule(path, on="8xv100")
    assert "draw at most 1 of them with --count" in error.value.hint
    assert len(chronograd.schedule(path, on="8xv100", count=1, draws=2).result.jobs) == 1
