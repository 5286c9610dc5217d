"""Google Vertex AI: a CustomJob of `projects.locations.customJobs.create`; `gcloud ai custom-jobs create` takes its jobSpec."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from chronograd.clouds.fields import (
    CloudPlatform,
    Document,
    DocumentField,
    bucket_path,
    escaped,
    get,
    pairs,
    put,
    unescaped,
    unpaired,
)
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import Submission, fields_of, words_of

POOLS = "jobSpec.workerPoolSpecs"
FIRST = f"{POOLS}.0"
CONTAINER = f"{FIRST}.containerSpec"
MAX_TAGS = 64


def _machine(instance: str, devices: int) -> Document:
    machine, _, accelerator = instance.partition(":")
    if not accelerator:
        return {"machineType": machine}
    return {"machineType": machine, "acceleratorType": accelerator.partition(":")[0], "acceleratorCount": devices}


def _instance(machine: Document) -> tuple[str, int]:
    name, count = str(machine["machineType"]), int(machine.get("acceleratorCount", 0))
    return (f"{name}:{machine['acceleratorType']}:{count}" if "acceleratorType" in machine else name), count


def _seconds(text: str) -> int:
    if not re.fullmatch(r"-?\d+s", text):
        raise ValueError(f"scheduling.timeout is {text!r:.40}; it is seconds such as 7200s")
    return int(text[:-1])


def _is_tag(key: str, value: str) -> bool:
    return bool(re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) and re.fullmatch(r"[a-z0-9_-]{0,63}", value))


def _camel_case(value: Any) -> Any:
    """Return data with keys in the case of the REST API; labels have keys of the user."""
    if isinstance(value, list):
        return [_camel_case(one) for one in value]
    if not isinstance(value, dict):
        return value
    names = {key: re.sub(r"_([a-z])", lambda match: match[1].upper(), key) for key in value}
    return {names[key]: one if key == "labels" else _camel_case(one) for key, one in value.items()}


def _normal(document: Document) -> Document:
    """Return a CustomJob of the REST API. Python's client writes names with underscores, and gcloud takes the jobSpec alone."""
    renamed: Document = _camel_case(document)
    return {"displayName": "job", "jobSpec": renamed} if "workerPoolSpecs" in renamed else renamed


def _fold(document: Document, asked: Submission) -> Document:
    """Put the first node in a separate pool, which the others look for."""
    if asked.nodes > 1:
        pools = get(document, POOLS)
        pools.append(copy.deepcopy(pools[0]))
        pools[0]["replicaCount"], pools[1]["replicaCount"] = 1, asked.nodes - 1
    return document


def _unfold(document: Document) -> Document:
    pools = get(document, POOLS)
    opened = copy.deepcopy(document)
    put(opened, POOLS, [{**pools[0], "replicaCount": sum(int(pool.get("replicaCount", 1)) for pool in pools)}])
    return opened


def _derived(asked: Submission) -> dict[str, Any]:
    return {"jobSpec.scheduling.restartJobOnWorkerRestart": True} if asked.restarts else {}


def _complain(asked: Submission) -> list[str]:
    told = []
    if asked.disk_gb < 100:
        told.append(f"--disk is {asked.disk_gb} GB; a boot disk of Vertex AI has 100 at least")
    if len(asked.tags) > MAX_TAGS:
        told.append(f"there are {len(asked.tags)} tags; Vertex AI has {MAX_TAGS} labels at most")
    return told


def _sent(path: str, document: Mapping[str, Any]) -> list[str]:
    """Return gcloud's arguments: the specification as a file, name and labels as options."""
    labels = ",".join(f"{key}={value}" for key, value in document.get("labels", {}).items())
    words = ["ai", "custom-jobs", "create", f"--display-name={document['displayName']}", f"--config={path}"]
    return [*words, *([f"--labels={labels}"] if labels else [])]


PLATFORM = CloudPlatform(
    name="vertex",
    title="Vertex AI",
    file="vertex.json",
    mark=("jobSpec", None),
    resembles=lambda document: "jobSpec" in _normal(document),
    instances="vertex",
    slug=lambda text: text[:128] if text.strip() else "job",
    mount=lambda name, address: f"/gcs/{bucket_path(address)}",
    schemes=("gs://",),
    is_tag=_is_tag,
    is_secret=lambda reference: bool(re.fullmatch(r"projects/[^/]+/secrets/[^/]+/versions/[^/]+", reference)),
    needs={"image": "--image REGION-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG", "output": "--output gs://BUCKET/PATH"},
    derived=_derived,
    normal=_normal,
    fold=_fold,
    unfold=_unfold,
    complain=_complain,
    tool=Tool(
        program="gcloud",
        install="install the Google Cloud CLI (cloud.google.com/sdk)",
        who=("auth", "print-access-token"),
        login="gcloud auth login; gcloud config set project ID; gcloud config set ai/region REGION",
        words=_sent,
        part="jobSpec",
    ),
    fields=(
        DocumentField("name", "displayName"),
        DocumentField("command", f"{CONTAINER}.command"),
        DocumentField("arguments", f"{CONTAINER}.args", words_of, fields_of),
        DocumentField("image", f"{CONTAINER}.imageUri"),
        DocumentField(("instance", "devices"), f"{FIRST}.machineSpec", _machine, _instance),
        DocumentField("nodes", f"{FIRST}.replicaCount"),
        DocumentField("disk_gb", f"{FIRST}.diskSpec.bootDiskSizeGb"),
        DocumentField("output", "jobSpec.baseOutputDirectory.outputUriPrefix"),
        DocumentField("limit_s", "jobSpec.scheduling.timeout", lambda s: f"{s}s", _seconds),
        DocumentField("spot", "jobSpec.scheduling.strategy", lambda _: "SPOT", lambda text: text == "SPOT"),
        DocumentField(
            "environment", f"{CONTAINER}.env", pairs("name", "value", escaped), unpaired("name", "value", unescaped)
        ),
        DocumentField("tags", "labels"),
        DocumentField("role", "jobSpec.serviceAccount"),
    ),
)
