"""SkyPilot: a task for `sky launch` and `sky jobs launch`, which choose a cloud that has the accelerators."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from chronograd.clouds.fields import CloudPlatform, Document, DocumentField, from_shell, shell_line, slug
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import Submission

IMAGE = "docker:"
MOUNTS = "/mnt/"


def _run(limit_s: int | None, command: list[str], words: Mapping[str, str]) -> str:
    before = f"timeout {limit_s} " if limit_s is not None else ""
    return before + shell_line(command, words)


def _from_run(line: str) -> tuple[int | None, list[str], dict[str, str]]:
    words, limit_s = shlex.split(line), None
    if words[0] == "timeout":
        limit_s, words = int(words[1]), words[2:]
    return (limit_s, *from_shell(shlex.join(words)))


def _mounts(data: Mapping[str, str] | None, output: str | None, checkpoints: str | None) -> dict[str, Any]:
    kept = {"output": output, "checkpoints": checkpoints}
    places = {**(data or {}), **{name: address for name, address in kept.items() if address}}
    return {MOUNTS + name: {"source": address, "mode": "MOUNT"} for name, address in places.items()}


def _from_mounts(mounts: Mapping[str, Any]) -> tuple[dict[str, str], str | None, str | None]:
    places = {path.removeprefix(MOUNTS): one["source"] for path, one in mounts.items()}
    output, checkpoints = places.pop("output", None), places.pop("checkpoints", None)
    return places, output, checkpoints


def _fold(document: Document, asked: Submission) -> Document:
    """Request machines without accelerators by their CPUs."""
    resources = document["resources"]
    if ":" not in resources["accelerators"]:
        resources["cpus"] = resources.pop("accelerators")
    return document


def _unfold(document: Document) -> Document:
    resources = dict(document["resources"])
    if "cpus" in resources and "accelerators" not in resources:
        resources["accelerators"] = resources.pop("cpus")
    return {**document, "resources": resources}


def _normal(document: Document) -> Document:
    """Return a task whose accelerators are NAME:COUNT; SkyPilot also takes NAME and {NAME: COUNT}. A choice of several stays."""
    resources = document.get("resources")
    accelerators = resources.get("accelerators") if isinstance(resources, dict) else None
    if isinstance(accelerators, str):
        accelerator, _, number = accelerators.partition(":")
        accelerators = {accelerator: number or 1}
    if not isinstance(resources, dict) or not isinstance(accelerators, dict) or len(accelerators) != 1:
        return document
    ((name, count),) = accelerators.items()
    return {**document, "resources": {**resources, "accelerators": f"{name}:{count}"}}


def _is_tag(key: str, value: str) -> bool:
    """Return whether labels of every cloud can hold a tag."""
    return bool(re.fullmatch(r"[a-z]([a-z0-9_-]{0,61}[a-z0-9])?", key) and re.fullmatch(r"[a-z0-9_-]{0,63}", value))


def _complain(asked: Submission) -> list[str]:
    wrong = [name for name, reference in asked.secrets.items() if reference != f"env:{name}"]
    return [
        f"secret {name} is to come from the variable of the same name: --secret {name}=env:{name}" for name in wrong
    ]


PLATFORM = CloudPlatform(
    name="skypilot",
    title="SkyPilot",
    file="skypilot.yaml",
    mark=("run", None),
    instances="skypilot",
    slug=lambda text: slug(text, 60).lower(),
    mount=lambda name, address: MOUNTS + name,
    schemes=("s3://", "gs://", "r2://", "cos://", "https://", "oci://", "nebius://"),
    is_tag=_is_tag,
    is_secret=lambda reference: reference.startswith("env:"),
    needs={"image": "--image REGISTRY/NAME:TAG"},
    derived=lambda asked: {"resources.cpus": f"{asked.cores}+"} if asked.cores else {},
    normal=_normal,
    fold=_fold,
    unfold=_unfold,
    complain=_complain,
    is_shell=True,
    tool=Tool(
        program="sky",
        install="pip install skypilot",
        who=(),
        login="sky check",
        words=lambda path, document: [
            *("jobs", "launch", "--yes", "--detach-run"),
            *(word for name in document.get("secrets", {}) for word in ("--secret", name)),
            path,
        ],
    ),
    fields=(
        DocumentField("name", "name"),
        DocumentField("instance", "resources.accelerators"),
        DocumentField(
            "image", "resources.image_id", lambda image: IMAGE + image, lambda text: text.removeprefix(IMAGE)
        ),
        DocumentField("disk_gb", "resources.disk_size"),
        DocumentField("spot", "resources.use_spot"),
        DocumentField("restarts", "resources.job_recovery.max_restarts_on_errors"),
        DocumentField("tags", "resources.labels"),
        DocumentField("nodes", "num_nodes"),
        DocumentField(("data", "output", "checkpoints"), "file_mounts", _mounts, _from_mounts),
        DocumentField("environment", "envs"),
        DocumentField(
            "secrets", "secrets", lambda given: dict.fromkeys(given), lambda given: {n: f"env:{n}" for n in given}
        ),
        DocumentField(("limit_s", "command", "arguments"), "run", _run, _from_run),
    ),
)
