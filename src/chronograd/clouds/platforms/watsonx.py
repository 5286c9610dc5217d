"""IBM watsonx.ai Runtime: a training for POST /ml/v4/trainings and `cpd-cli ml training create`.

It does not accept a custom container: a predefined software specification runs the command of a stored model definition. A
training has no fields for variables and a time limit; the command sets them itself, by env(1) and timeout(1).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from chronograd.clouds.fields import CloudPlatform, DocumentField, from_shell, shell_line
from chronograd.clouds.submission import Submission, fields_of, words_of

MODEL = "model_definition"
KINDS = ("container", "fs")


def _command(limit_s: int | None, environment: Mapping[str, str] | None, command: list[str], words: Any) -> str:
    before = ["env", *words_of(environment)] if environment else []
    before += ["timeout", str(limit_s)] if limit_s is not None else []
    return " ".join(filter(None, (shlex.join(before), shell_line(command, words))))


def _from_command(line: str) -> tuple[int | None, dict[str, str], list[str], dict[str, str]]:
    words, environment, limit_s = shlex.split(line), {}, None
    if words[0] == "env":
        end = next(i for i, word in enumerate(words) if i and "=" not in word)
        environment, words = fields_of(words[1:end]), words[end:]
    if words[0] == "timeout":
        limit_s, words = int(words[1]), words[2:]
    return (limit_s, environment, *from_shell(shlex.join(words)))


def _place(address: str) -> dict[str, Any]:
    kind, _, path = address.partition("://")
    return {"type": kind, "connection": {}, "location": {"path": path}}


def _address(place: Mapping[str, Any]) -> str:
    return f"{place['type']}://{place['location']['path']}"


def _mount(name: str, address: str) -> str:
    return "$RESULT_DIR" if name in ("output", "checkpoints") else f"$DATA_DIR/{address.partition('://')[2]}"


def _complain(asked: Submission) -> list[str]:
    told = []
    if asked.nodes > 1:
        told.append(
            f"it takes {asked.nodes} nodes, and how nodes of watsonx.ai find each other is not documented: use one"
        )
    if asked.checkpoints:
        told.append("--checkpoints has no field on watsonx.ai: the run directory is in --output all the time")
    if asked.spot:
        told.append("--spot: watsonx.ai rents nothing that is interrupted; leave it out")
    return told


PLATFORM = CloudPlatform(
    name="watsonx",
    title="watsonx.ai",
    file="watsonx.json",
    mark=(MODEL, None),
    instances="watsonx",
    slug=lambda text: text if text.strip() else "job",
    mount=_mount,
    schemes=tuple(f"{kind}://" for kind in KINDS),
    is_tag=lambda key, value: bool(key) and "=" not in key,
    is_secret=lambda reference: reference.startswith("crn:v1:"),
    needs={
        "image": "--image SOFTWARE_SPECIFICATION, such as pytorch-onnx_rt25.1-py3.12",
        "code": "--code ID of the model definition that is stored there",
        "project": "--project ID",
        "output": "--output container://PATH",
    },
    complain=_complain,
    is_shell=True,
    fields=(
        DocumentField("name", "name"),
        DocumentField(("limit_s", "environment", "command", "arguments"), f"{MODEL}.command", _command, _from_command),
        DocumentField("image", f"{MODEL}.software_spec.name"),
        DocumentField("code", f"{MODEL}.id"),
        DocumentField("instance", f"{MODEL}.hardware_spec.name"),
        DocumentField("nodes", f"{MODEL}.hardware_spec.num_nodes"),
        DocumentField(
            "data",
            "training_data_references",
            lambda data: [{"id": name, **_place(address)} for name, address in data.items()],
            lambda given: {one["id"]: _address(one) for one in given},
        ),
        DocumentField("output", "results_reference", _place, _address),
        DocumentField("tags", "tags", words_of, fields_of),
        DocumentField("project", "project_id"),
    ),
)
