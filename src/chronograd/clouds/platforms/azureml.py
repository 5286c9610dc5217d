"""Azure Machine Learning: a command job on serverless compute, in the format of `az ml job create --file`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chronograd.clouds.fields import CloudPlatform, Document, DocumentField, from_shell, shell_line
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import Submission

SCHEMA = "https://azuremlschemas.azureedge.net/latest/commandJob.schema.json"
MAX_LETTERS = 256


def _inputs(data: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"type": "uri_folder", "path": address, "mode": "ro_mount"} for name, address in data.items()}


def _data(inputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: one["path"] for name, one in inputs.items()}


def _folder(address: str) -> dict[str, str]:
    return {"type": "uri_folder", "path": address, "mode": "rw_mount"}


def _mount(name: str, address: str) -> str:
    side = "outputs" if name in ("output", "checkpoints") else "inputs"
    return f"${{{{{side}.{name}}}}}"


def _derived(asked: Submission) -> dict[str, Any]:
    derived: dict[str, Any] = {"$schema": SCHEMA, "type": "command"}
    if asked.nodes > 1:  # one process on each node, which starts its ranks
        derived["distribution"] = {"type": "pytorch", "process_count_per_instance": 1}
    if asked.role:
        derived["identity"] = {"type": "managed"}
    return derived


def _resembles(document: Document) -> bool:
    """Return whether a document has the schema of Azure ML, or names things that Azure ML stores."""
    stored = (str(document.get(key)) for key in ("environment", "compute", "code", "component"))
    return "azuremlschemas" in str(document.get("$schema")) or any(one.startswith("azureml:") for one in stored)


PLATFORM = CloudPlatform(
    name="azureml",
    title="Azure ML",
    file="azureml.yaml",
    mark=("type", "command"),
    resembles=_resembles,
    instances="azureml",
    slug=lambda text: text if text.strip() else "job",
    mount=_mount,
    schemes=("azureml://", "azureml:", "https://", "wasbs://"),
    is_tag=lambda key, value: 0 < len(key) <= MAX_LETTERS and len(value) <= MAX_LETTERS,
    is_secret=lambda reference: reference.startswith("https://") and ".vault.azure.net/secrets/" in reference,
    needs={"image": "--image REGISTRY.azurecr.io/NAME:TAG", "output": "--output azureml://datastores/STORE/paths/PATH"},
    derived=_derived,
    is_shell=True,
    tool=Tool(
        program="az",
        install="pip install azure-cli; az extension add --name ml",
        who=("account", "show"),
        login="az login; az configure --defaults group=RESOURCE-GROUP workspace=WORKSPACE",
        words=lambda path, _: ["ml", "job", "create", "--file", path],
    ),
    fields=(
        DocumentField("name", "display_name"),
        DocumentField(("command", "arguments"), "command", shell_line, from_shell),
        DocumentField("image", "environment.image"),
        DocumentField("code", "code"),
        DocumentField("instance", "resources.instance_type"),
        DocumentField("nodes", "resources.instance_count"),
        DocumentField("data", "inputs", _inputs, _data),
        DocumentField("output", "outputs.output", _folder, lambda one: one["path"]),
        DocumentField("checkpoints", "outputs.checkpoints", _folder, lambda one: one["path"]),
        DocumentField("limit_s", "limits.timeout"),
        DocumentField("spot", "queue_settings.job_tier", lambda _: "spot", lambda text: text == "spot"),
        DocumentField("environment", "environment_variables"),
        DocumentField("tags", "tags"),
        DocumentField("role", "identity.client_id"),
        DocumentField("project", "experiment_name"),
    ),
)
