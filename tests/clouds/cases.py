"""Jobs rendered for every platform, and deliberately wrong jobs; the vendors' checkers receive the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.clouds import fields, registry
from chronograd.clouds.example import DATA, OPTIONS
from chronograd.clouds.fields import Document
from chronograd.clouds.submission import Submission, submission
from chronograd.job import Job

ROOT = Path(__file__).parents[2]
PLATFORMS = registry.names()


def digits(platform: str) -> Job:
    return jobs.load(ROOT / "examples" / "digits.yaml")


def scaling(platform: str) -> Job:
    """Return ResNet-50 on two nodes of eight H100. watsonx.ai has neither, so its job uses one V100."""
    few = platform == "watsonx"
    return jobs.from_dict(
        {
            "network": {"name": "torchvision:resnet50"},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
            "training": {"batch": 64 if few else 1024, "precision": "fp16" if few else "bf16", "epochs": 25},
            "cluster": {"device": "v100", "count": 1} if few else {"device": "h100", "count": 16, "max_restarts": 2},
            "backend": "single" if few else "ddp",
        }
    )


def detection(platform: str) -> Job:
    return jobs.from_dict(
        {
            "task": "detection",
            "network": {"name": "ssd-mobilenet-v1"},
            "data": {"name": "voc:/data/VOC2007"},
            "training": {"batch": 32},
            "cluster": {"device": "v100" if platform == "watsonx" else "t4"},
        }
    )


def reinforcement(platform: str) -> Job:
    return jobs.load(ROOT / "examples" / "cartpole.yaml")


def language(platform: str) -> Job:
    """Return a language model in shards on one node of eight GPUs. watsonx.ai has none, so its job uses one V100."""
    few = platform == "watsonx"
    cluster = ["cluster.device=v100"] if few else ["cluster.device=h100", "cluster.count=8", "backend=fsdp"]
    zero = [] if few else ["training.zero_stage=3"]
    return jobs.load(ROOT / "examples" / "language.yaml", [*cluster, *zero])


JOBS: dict[str, Callable[[str], Job]] = {
    "digits": digits,
    "scaling": scaling,
    "detection": detection,
    "reinforcement": reinforcement,
    "language": language,
}


def submission_of(platform: str, job: str, /, **options: Any) -> Submission:
    """Return a job on a platform with the options of the example."""
    chosen = {**OPTIONS[platform], **({"data": {"data": DATA[platform]}} if job == "detection" else {}), **options}
    return submission(JOBS[job](platform), registry.platform(platform).catalogue, **chosen)


def document(platform: str, name: str = "scaling") -> Document:
    return fields.document(registry.platform(platform), submission_of(platform, name))


@dataclass(frozen=True)
class Wrong:
    """A file that is wrong in one place.

    Attributes:
        path, value: the place and its wrong value; MISSING removes it.
        says: part of our error message.
        vendor: whether the vendor's own software also refuses the file.
    """

    name: str
    platform: str
    path: str
    value: Any
    says: str
    vendor: bool
    of: str = "scaling"

    def document(self) -> Document:
        made = copy.deepcopy(document(self.platform, self.of))
        if self.value is fields.MISSING:
            parent, _, last = self.path.rpartition(".")
            del (fields.get(made, parent) if parent else made)[last]
        else:
            fields.put(made, self.path, self.value)
        return made


_S, _V = "ResourceConfig", "jobSpec.workerPoolSpecs.0"
_K = "items.1.spec.template.spec"
_P = "spec.pytorchReplicaSpecs.Master.template.spec.containers.0.args"
_BACKEND = fields.get(document("pytorchjob", "digits"), _P).index("backend=single")
WRONG = (
    Wrong("unknown instance type", "sagemaker", f"{_S}.InstanceType", "ml.p9.48xlarge", "unknown instance type", True),
    Wrong("missing role", "sagemaker", "RoleArn", fields.MISSING, "no role", True),
    Wrong("role that is no ARN", "sagemaker", "RoleArn", "SageMakerTrainingExecutionRole", "no ARN", False),
    Wrong("negative time limit", "sagemaker", "StoppingCondition.MaxRuntimeInSeconds", -60, "time limit is -60", True),
    Wrong("more than 28 days", "sagemaker", "StoppingCondition.MaxRuntimeInSeconds", 3_000_000, "28 days", False),
    Wrong("secret in plain text", "sagemaker", "Environment.AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMIK7MDENG", "plain text", False),
    Wrong("key of a service among the tags", "sagemaker", "Tags.0.Value", "AKIAIOSFODNN7EXAMPLE", "looks like a key", False),
    Wrong("bucket of another cloud", "sagemaker", "OutputDataConfig.S3OutputPath", "gs://lab/out", "such as s3://", False),
    Wrong("a node too many", "sagemaker", f"{_S}.InstanceCount", 3, "asks for 3 nodes", False),
    Wrong("31 restarts", "sagemaker", "RetryStrategy.MaximumRetryAttempts", 31, "at most 30", False),
    Wrong("3 GPUs on an 8-GPU type", "vertex", f"{_V}.machineSpec.acceleratorCount", 3, "unknown instance type", False),
    Wrong("unknown accelerator", "vertex", f"{_V}.machineSpec.acceleratorType", "NVIDIA_H900", "unknown instance type", True),
    Wrong("time limit without its unit", "vertex", "jobSpec.scheduling.timeout", "7200", "cannot be read", True),
    Wrong("disk below the least", "vertex", f"{_V}.diskSpec.bootDiskSizeGb", 10, "100 at least", False),
    Wrong("no image", "azureml", "environment.image", "", "no image", False),
    Wrong("time limit in words", "azureml", "limits.timeout", "2 hours", "valid integer", True),
    Wrong("unknown size", "azureml", "resources.instance_type", "Standard_ND9000", "unknown instance type", False),
    Wrong("five nodes", "watsonx", "model_definition.hardware_spec.num_nodes", 5, "asks for 5 nodes", False),
    Wrong("no model definition", "watsonx", "model_definition.id", fields.MISSING, "no code", True),
    Wrong("GPUs that nobody rents", "skypilot", "resources.accelerators", "H100:3", "unknown instance type", False),
    Wrong("secret with its value", "skypilot", "envs.HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz0123456789", "plain text", False),
    Wrong("nodes that are no number", "skypilot", "num_nodes", "two", "valid integer", True),
    Wrong("negative limit of a Job", "kubernetes", "items.1.spec.activeDeadlineSeconds", -1, "time limit is -1", False),
    Wrong("3 GPUs of nodes with 8", "kubernetes", f"{_K}.containers.0.resources.limits.nvidia\\.com/gpu", 3, "unknown instance", False),
    Wrong("a path out of the volume", "kubernetes", f"{_K}.containers.0.volumeMounts.0.subPath", "../../etc", "`..`", False),
    Wrong("parallelism in words", "kubernetes", "items.1.spec.parallelism", "all", "parallelism", True),
    Wrong("TensorFlow under PyTorchJob", "pytorchjob", f"{_P}.{_BACKEND}",
          "backend=tf_mirrored", "backend tf_mirrored", False, "digits"),
    Wrong("replicas in words", "pytorchjob", "spec.pytorchReplicaSpecs.Worker.replicas", "one", "cannot be read", True),
    Wrong("a misspelt limit", "pytorchjob", "spec.runPolicy.activeDeadlineSecond", 60, "activeDeadlineSecond is 60", True),
)  # fmt: skip
