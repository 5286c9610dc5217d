"""Amazon SageMaker: the request of CreateTrainingJob, in the format of boto3's `create_training_job(**request)`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from chronograd.clouds.fields import (
    MISSING,
    CloudPlatform,
    Document,
    DocumentField,
    get,
    job_arguments,
    pairs,
    slug,
    unpaired,
)
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import Submission
from chronograd.job import SHARDED

MAX_PARAMETERS, MAX_LETTERS, MAX_ENVIRONMENT, MAX_TAGS = 100, 2500, 512, 50
# SageMaker's longest time limit of a job, and its default.
MAX_SECONDS, USUAL_SECONDS = 28 * 86400, 86400
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+")


def _is_tag(key: str, value: str) -> bool:
    is_sayable = all(unicodedata.category(c)[0] in "LZN" or c in "_.:/=+-@" for c in key + value)
    return is_sayable and 1 <= len(key) <= 128 and len(value) <= 256 and not key.lower().startswith("aws:")


def _channels(data: Mapping[str, str]) -> list[Any]:
    return [
        {
            "ChannelName": name,
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": address,
                    "S3DataDistributionType": "FullyReplicated",
                }
            },
            "InputMode": "FastFile",
        }
        for name, address in data.items()
    ]


def _data(channels: list[Any]) -> dict[str, str]:
    return {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in channels}


def _mount(name: str, address: str) -> str:
    return {"output": "/opt/ml/model", "checkpoints": "/opt/ml/checkpoints"}.get(name, f"/opt/ml/input/data/{name}")


def _derived(asked: Submission) -> dict[str, Any]:
    derived: dict[str, Any] = {"AlgorithmSpecification.TrainingInputMode": "File"}
    if asked.checkpoints:
        derived["CheckpointConfig.LocalPath"] = _mount("checkpoints", asked.checkpoints)
    if asked.spot:  # the limit for training plus waiting for machines
        derived["StoppingCondition.MaxWaitTimeInSeconds"] = 2 * (asked.limit_s or USUAL_SECONDS)
    return derived


def _complain(asked: Submission) -> list[str]:
    return [*_spot(asked), *_complain_of_fields(asked)]


def _spot(asked: Submission) -> list[str]:
    """Complain of --output without --checkpoints: SageMaker uploads it when a job ends, so an interrupted job finds nothing there."""
    if asked.spot and asked.output and not asked.checkpoints:
        return ["--spot without --checkpoints: SageMaker uploads --output only when the job ends, so an interrupted run would "
                "start over; give --checkpoints ADDRESS"]  # fmt: skip
    return []


def _complain_of_fields(asked: Submission) -> list[str]:
    told = []
    if asked.job.backend in SHARDED and asked.nodes > 1:
        told.append(
            f"backend {asked.job.backend} writes a checkpoint from all ranks into one folder, and {asked.nodes} nodes of SageMaker share none"
        )
    if asked.role and not _ROLE.fullmatch(asked.role):
        told.append(f"--role is {asked.role!r:.80}, which is no ARN such as arn:aws:iam::123456789012:role/training")
    if (asked.limit_s or 0) > MAX_SECONDS:
        told.append(f"--time is {asked.limit_s:,} s; SageMaker ends a job after 28 days, {MAX_SECONDS:,} s")
    if asked.restarts > 30:
        told.append(f"--restarts is {asked.restarts}; SageMaker starts a job again at most 30 times")
    arguments = job_arguments(PLATFORM, asked)
    long = [name for name, text in arguments.items() if len(text) > MAX_LETTERS]
    if long:
        told.append(
            f"{long[0]} takes {len(arguments[long[0]]):,} letters; a hyper-parameter has {MAX_LETTERS:,} at most"
        )
    if len(arguments) > MAX_PARAMETERS:
        told.append(f"the job takes {len(arguments)} hyper-parameters; SageMaker has {MAX_PARAMETERS} at most")
    told += [
        f"variable {name} has {len(value):,} letters; SageMaker has {MAX_ENVIRONMENT} at most"
        for name, value in asked.environment.items()
        if len(value) > MAX_ENVIRONMENT
    ]
    if len(asked.tags) > MAX_TAGS:
        told.append(f"there are {len(asked.tags)} tags; SageMaker has {MAX_TAGS} at most")
    return told


def _faults(document: Document) -> list[str]:
    """Report spot training without a limit on waiting for machines, which CreateTrainingJob refuses."""
    is_spot = get(document, "EnableManagedSpotTraining") is True
    if is_spot and get(document, "StoppingCondition.MaxWaitTimeInSeconds") is MISSING:
        return ["spot training needs StoppingCondition.MaxWaitTimeInSeconds, which is missing"]
    return []


PLATFORM = CloudPlatform(
    name="sagemaker",
    title="SageMaker",
    file="sagemaker.json",
    mark=("AlgorithmSpecification", None),
    instances="sagemaker",
    slug=lambda text: slug(text, 63),
    mount=_mount,
    schemes=("s3://",),
    is_tag=_is_tag,
    is_secret=lambda reference: bool(re.fullmatch(r"arn:aws[a-z-]*:(secretsmanager|ssm):[^\s]+", reference)),
    needs={
        "role": "--role arn:aws:iam::123456789012:role/training",
        "output": "--output s3://BUCKET/PATH",
        "image": "--image ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME:TAG",
    },
    derived=_derived,
    complain=_complain,
    faults=_faults,
    tool=Tool(
        program="aws",
        install="pip install awscli",
        who=("sts", "get-caller-identity"),
        login="aws configure",
        words=lambda path, _: ["sagemaker", "create-training-job", "--cli-input-json", f"file://{path}"],
    ),
    fields=(
        DocumentField("name", "TrainingJobName"),
        DocumentField("command", "AlgorithmSpecification.ContainerEntrypoint"),
        DocumentField("arguments", "HyperParameters"),
        DocumentField("image", "AlgorithmSpecification.TrainingImage"),
        DocumentField("instance", "ResourceConfig.InstanceType"),
        DocumentField("nodes", "ResourceConfig.InstanceCount"),
        DocumentField("disk_gb", "ResourceConfig.VolumeSizeInGB"),
        DocumentField("data", "InputDataConfig", _channels, _data),
        DocumentField("output", "OutputDataConfig.S3OutputPath"),
        DocumentField("checkpoints", "CheckpointConfig.S3Uri"),
        DocumentField("limit_s", "StoppingCondition.MaxRuntimeInSeconds"),
        DocumentField("spot", "EnableManagedSpotTraining"),
        DocumentField("restarts", "RetryStrategy.MaximumRetryAttempts"),
        DocumentField("environment", "Environment"),
        DocumentField("tags", "Tags", pairs("Key", "Value"), unpaired("Key", "Value")),
        DocumentField("role", "RoleArn"),
    ),
)
