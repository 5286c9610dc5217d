"""CPU cores of a rank and a cloud machine, from the images that GPUs train and a core decodes."""

from __future__ import annotations

import math
import re

import pytest

from chronograd import job as jobs
from chronograd.clouds import fields, registry, rendering
from chronograd.data.trace_job import trace_job
from chronograd.hardware import catalog, market
from chronograd.job import Job
from chronograd.launch import answer
from chronograd.launch.slurm.script import Options
from chronograd.plan.renting import PHOTOGRAPHS
from chronograd.predict.prediction import predict

IMAGENET = {
    "network": {"name": "resnet50"},
    "data": {"name": "imagenet:/nowhere/imagenet"},
    "training": {"batch": 256, "precision": "bf16", "channels_last": True},
    "cluster": {"device": "a100-40"},
}
PLACES = {"kubernetes": "pvc://shared/i", "pytorchjob": "pvc://shared/i", "skypilot": "s3://bucket/i"}


def make_job(*overrides: str) -> Job:
    return jobs.changed(jobs.from_dict(IMAGENET), list(overrides))


def needed_cores(job: Job) -> int:
    """Return the cores for one GPU at the throughput that `predict` states."""
    planned = jobs.changed(job, ["data.name=imagenet"])
    throughput = predict(trace_job(planned), planned)["throughput_samples_per_s"].value
    assert throughput is not None
    return math.ceil(throughput / job.cluster.count / PHOTOGRAPHS.per_vcpu)


def requested_cores(job: Job, options: Options = Options()) -> tuple[int, str]:  # noqa: B008
    text = answer.script(job, (), options).result.script
    (cores,) = re.findall(r"^#SBATCH --cpus-per-task=(\d+)$", text, re.M)
    assert f"--cpus-per-task={cores} " in text  # srun, too
    return int(cores), text


def test_rank_gets_cores_for_its_gpu() -> None:
    cores, text = requested_cores(make_job())
    assert cores == needed_cores(make_job()) > 10
    assert re.search(
        r"# Assumed: the GPUs of a node train [\d,]+ images/s, and a CPU core decodes 140 \(80 to 250\)", text
    )


def test_ranks_of_a_node_share_its_cores() -> None:
    job = make_job("backend=ddp", "cluster.count=16", "training.batch=4096")
    assert abs(requested_cores(job)[0] - needed_cores(job)) <= 1  # rounded up per node and per rank
    together = make_job("backend=data_parallel", "cluster.count=4", "training.batch=1024")
    assert abs(requested_cores(together)[0] - 4 * needed_cores(together)) <= 3


def test_cores_are_limited_by_available_machines() -> None:
    job = make_job("network.name=resnet18", "cluster.device=h100")
    most = max(p.vcpus / p.count for p in market.offers(catalog.device("h100")) if p.vcpus and p.includes_host)
    cores, text = requested_cores(job)
    assert cores == int(most) < needed_cores(job)
    assert f"decoding limits the speed to {int(most) * 140:,} images/s" in text


@pytest.mark.parametrize(
    ("overrides", "options", "cores"),
    [
        ([], Options(cpus_per_task=3), 3),
        (["cluster.threads=5"], Options(), 5),
        (["cluster.device=cpu"], Options(), 1),
        (["data.loading=resident"], Options(), 1),  # decodes nothing during training
        (["data.name=digits", "training.batch=64", "network.name=resnet20"], Options(), 1),
    ],
)
def test_stated_cores_or_one_without_decoding(overrides: list[str], options: Options, cores: int) -> None:
    found, text = requested_cores(make_job(*overrides), options)
    assert found == cores
    assert "a CPU core decodes" not in text


def test_unknown_need_is_reported() -> None:
    cores, text = requested_cores(make_job("data.name=folder:/nowhere/pictures"))
    assert cores == 1
    assert "# The CPU cores that decode the images are unknown: there is no folder /nowhere/pictures" in text


def test_array_gets_the_largest_need() -> None:
    text = answer.script(make_job(), ["training.batch=8,256"], Options()).result.script
    assert f"--cpus-per-task={needed_cores(make_job())}\n" in text
    assert needed_cores(make_job("training.batch=8")) < needed_cores(make_job())


@pytest.mark.parametrize("name", PLACES)
def test_platform_file_requests_cores_of_a_node(name: str) -> None:
    job = make_job("backend=ddp", "cluster.count=8", "cluster.per_node=8", "training.batch=2048")
    options = {"image": "lab/c:1", "data": {"data": PLACES[name]}, "output": PLACES[name] + "-out"}
    made = rendering.rendered(name, job, options)
    each = made.asked.job.cluster.threads
    assert each is not None
    assert abs(each - needed_cores(job)) <= 1
    leaves = dict(fields.leaves(fields.load(registry.platform(name), made.text)))
    (cores,) = (text for path, text in leaves.items() if path.endswith(("requests.cpu", "resources.cpus")))
    assert int(cores.rstrip("+")) == 8 * each
    assert any(f"The file asks for {8 * each}." in line for line in made.lines())
    assert fields.read(registry.platform(name), made.text) == made.asked
    stated = rendering.rendered(name, jobs.changed(job, ["cluster.threads=2"]), options)
    assert stated.asked.job.cluster.threads == 2


def test_smallest_sufficient_cloud_machine() -> None:
    options = {"image": "lab/c:1", "data": {"data": "s3://bucket/i"}, "output": "s3://bucket/o",
               "role": "arn:aws:iam::123456789012:role/training"}  # fmt: skip
    slow = make_job("cluster.device=t4", "training.batch=64", "training.precision=fp16")
    fast = jobs.changed(slow, ["network.name=resnet18"])
    assert needed_cores(slow) <= 4 < needed_cores(fast)
    for job in (slow, fast):
        made = rendering.rendered("sagemaker", job, options)
        assert made.asked.instance == ("ml.g4dn.xlarge" if needed_cores(job) <= 4 else "ml.g4dn.2xlarge")
        assert f"{made.asked.instance} has " in "".join(made.lines())
        assert made.asked.job.cluster.threads is None  # ranks share all cores of their machine
