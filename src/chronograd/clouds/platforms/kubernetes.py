"""Kubernetes: a Job, indexed if it has several nodes, in the format of `kubectl apply --filename`.

Data and results are on volumes of the cluster: `pvc://CLAIM/PATH`. Spot machines are requested by Karpenter's label.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from chronograd.clouds.fields import CloudPlatform, Document, DocumentField, escaped, get, slug, unescaped
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import Submission, fields_of, words_of

GPU_KEY, PRODUCT_KEY = r"nvidia\.com/gpu", r"nvidia\.com/gpu\.product"
PRODUCT = "nvidia.com/gpu.product"
SCHEME = "pvc://"
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


def is_tag(key: str, value: str) -> bool:
    """Return whether a label or an annotation can hold a tag. The value of an annotation may be any text."""
    return bool(_KEY.fullmatch(key)) and len(key.rpartition("/")[0]) <= 253


def is_secret(reference: str) -> bool:
    """Return whether a reference is the name of a secret, and a key in it."""
    return bool(re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+", reference))


def mount(name: str, address: str) -> str:
    """Return the path of a channel in the container."""
    return f"/mnt/{name}"


def _env(environment: Mapping[str, str] | None, secrets: Mapping[str, str] | None) -> list[Any]:
    plain = [{"name": name, "value": escaped(value)} for name, value in (environment or {}).items()]
    return plain + [
        {"name": name, "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), reference.split("/"), strict=False))}}
        for name, reference in (secrets or {}).items()
    ]


def _from_env(given: Sequence[Any]) -> tuple[dict[str, str], dict[str, str]]:
    environment = {one["name"]: unescaped(one["value"]) for one in given if "value" in one}
    references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in given if "valueFrom" in one}
    return environment, {name: f"{secret['name']}/{secret['key']}" for name, secret in references.items()}


def _places(data: Mapping[str, str] | None, output: str | None, checkpoints: str | None) -> dict[str, str]:
    kept = {"output": output, "checkpoints": checkpoints}
    return {**(data or {}), **{name: address for name, address in kept.items() if address}}


def _from_places(places: Mapping[str, str]) -> tuple[dict[str, str], str | None, str | None]:
    data = dict(places)
    return data, data.pop("output", None), data.pop("checkpoints", None)


def pod_fields(pod: str) -> tuple[DocumentField, ...]:
    """Return the fields of a pod, for any owner. `fold_pod` converts volumes and the instance to the pod's form."""
    container = f"{pod}.containers.0"
    return (
        DocumentField("image", f"{container}.image"),
        DocumentField("command", f"{container}.command"),
        DocumentField("arguments", f"{container}.args", words_of, fields_of),
        DocumentField("instance", f"{pod}.nodeSelector.{PRODUCT_KEY}"),
        DocumentField("devices", f"{container}.resources.limits.{GPU_KEY}"),
        DocumentField(
            "disk_gb",
            f"{container}.resources.requests.ephemeral-storage",
            lambda gb: f"{gb}G",
            lambda text: int(text.removesuffix("G")),
        ),
        DocumentField(("data", "output", "checkpoints"), f"{pod}.volumes", _places, _from_places),
        DocumentField(
            "spot",
            f"{pod}.nodeSelector.karpenter\\.sh/capacity-type",
            lambda _: "spot",
            lambda text: text == "spot",
        ),
        DocumentField(("environment", "secrets"), f"{container}.env", _env, _from_env),
        DocumentField("role", f"{pod}.serviceAccountName"),
    )


def fold_pod(pod: Document) -> None:
    """Convert volumes and their mounts, and turn an instance into the label of a node."""
    container, places = pod["containers"][0], pod.pop("volumes", {})
    product = pod["nodeSelector"].pop(PRODUCT).rpartition(":")[0]
    if product:
        pod["nodeSelector"][PRODUCT] = product
    if not pod["nodeSelector"]:
        del pod["nodeSelector"]
    claims = {address: address.removeprefix(SCHEME).partition("/") for address in places.values()}
    names = {claim: f"volume-{i}" for i, claim in enumerate(dict.fromkeys(claim for claim, _, _ in claims.values()))}
    pod["volumes"] = [
        *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()),
        # shared memory through which NCCL exchanges data between ranks of one node
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    container["volumeMounts"] = [
        *(
            {"name": names[claims[address][0]], "mountPath": mount(name, address)}
            | ({"subPath": claims[address][2]} if claims[address][2] else {})
            for name, address in places.items()
        ),
        {"name": "shm", "mountPath": "/dev/shm"},
    ]


def derived_pod(pod: str, asked: Submission) -> dict[str, Any]:
    """Return the CPU cores of a node's ranks, which follow from the threads of the job."""
    return {f"{pod}.containers.0.resources.requests.cpu": str(asked.cores)} if asked.cores else {}


def unfold_pod(pod: Document) -> None:
    """Undo `fold_pod`."""
    container = pod["containers"][0]
    count = get(container, f"resources.limits.{GPU_KEY}")
    selector = pod.setdefault("nodeSelector", {})
    selector[PRODUCT] = f"{selector[PRODUCT]}:{count}" if PRODUCT in selector else "cpu"
    claims = {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in pod.pop("volumes", [])
        if "persistentVolumeClaim" in one
    }
    mounts = [one for one in container.pop("volumeMounts", []) if one["name"] in claims]
    pod["volumes"] = {
        one["mountPath"].removeprefix("/mnt/"): SCHEME
        + claims[one["name"]]
        + (f"/{one['subPath']}" if one.get("subPath") else "")
        for one in mounts
    }


def fold_tags(document: Document) -> None:
    """Move tags that are not valid labels to the annotations."""
    tags = document["metadata"].pop("labels", {})
    labels = {key: value for key, value in tags.items() if _VALUE.fullmatch(value)}
    if labels:
        document["metadata"]["labels"] = labels
    if len(labels) < len(tags):
        document["metadata"]["annotations"] = {key: value for key, value in tags.items() if key not in labels}


def unfold_tags(document: Document) -> None:
    """Undo `fold_tags`."""
    metadata = document["metadata"]
    tags = {**metadata.pop("labels", {}), **metadata.pop("annotations", {})}
    if tags:
        metadata["labels"] = tags


def complain(asked: Submission) -> list[str]:
    """Return errors that matter only to pods."""
    told = []
    for address in (*asked.data.values(), asked.output or "", asked.checkpoints or ""):
        claim, _, path = address.removeprefix(SCHEME).partition("/")
        if address.startswith(SCHEME) and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", claim):
            told.append(
                f"{address!r:.80} names no claim: write pvc://CLAIM/PATH, CLAIM of lower-case letters and digits"
            )
        if ".." in path.split("/"):
            told.append(f"{address!r:.80} has a part `..`, which Kubernetes refuses in a path on a volume")
    return told


TOOL = Tool(
    program="kubectl",
    install="install kubectl (kubernetes.io/docs/tasks/tools)",
    who=("auth", "whoami"),
    login="kubectl config use-context NAME",
    words=lambda path, _: ["create", "--filename", path],
)
POD = "spec.template.spec"


def _derived(asked: Submission) -> dict[str, Any]:
    derived: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec.backoffLimit": 0,
        f"{POD}.restartPolicy": "Never",
        f"{POD}.containers.0.name": "ranks",
        **derived_pod(POD, asked),
    }
    if asked.nodes > 1:
        derived |= {"spec.parallelism": asked.nodes, "spec.completionMode": "Indexed"}
    return derived


def _fold(document: Document, asked: Submission) -> Document:
    """Add a service without an address, so that pods of several nodes find the first by its name."""
    fold_tags(document)
    fold_pod(get(document, POD))
    if asked.nodes == 1:
        return document
    name, namespace = document["metadata"]["name"], document["metadata"].get("namespace")
    get(document, POD)["subdomain"] = name
    get(document, f"{POD}.containers.0.args").extend([f"meet={name}-0.{name}", f"nodes={asked.nodes}"])
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"batch.kubernetes.io/job-name": name},
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, document]}


def _unfold(document: Document) -> Document:
    items = document.get("items", [document])
    opened: Document = copy.deepcopy(next(one for one in items if one["kind"] == "Job"))
    unfold_tags(opened)
    unfold_pod(get(opened, POD))
    return opened


PLATFORM = CloudPlatform(
    name="kubernetes",
    title="Kubernetes",
    file="kubernetes.yaml",
    mark=("kind", "Job"),
    resembles=lambda document: "apiVersion" in document and "kind" in document,
    instances="kubernetes",
    slug=lambda text: slug(text.lower(), 52),  # leaves room for the pod's number
    mount=mount,
    schemes=(SCHEME,),
    is_tag=is_tag,
    is_secret=is_secret,
    needs={"image": "--image REGISTRY/NAME:TAG"},
    derived=_derived,
    fold=_fold,
    unfold=_unfold,
    complain=complain,
    tool=TOOL,
    fields=(
        DocumentField("name", "metadata.name"),
        DocumentField("project", "metadata.namespace"),
        DocumentField("tags", "metadata.labels"),
        DocumentField("nodes", "spec.completions"),
        DocumentField("limit_s", "spec.activeDeadlineSeconds"),
        DocumentField("restarts", "spec.backoffLimit"),
        *pod_fields(POD),
    ),
)
