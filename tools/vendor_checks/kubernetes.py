"""Kubernetes' strict JSON schemas. A PyTorchJob must come back unchanged from Kubeflow's models; its pods use the schemas."""

import json
import sys

import kubernetes_validate
from kubeflow.training import models
from kubeflow.training.api_client import ApiClient

VERSION = kubernetes_validate.latest_version()
client = ApiClient()


def refused(document):
    if document.get("kind") == "List":
        return "; ".join(filter(None, map(refused, document["items"]))) or None
    if document.get("kind") == "PyTorchJob":
        return refused_by_kubeflow(document)
    try:
        kubernetes_validate.validate(document, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


def refused_by_kubeflow(document):
    """Return the differences after Kubeflow's models read a document: unknown fields vanish, and other types raise or
    change.
    """
    try:
        read = client._ApiClient__deserialize(document, models.KubeflowOrgV1PyTorchJob)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    back = client.sanitize_for_serialization(read)
    if back != with_text(document):
        return f"given back as {json.dumps(back)}"
    replicas = document["spec"]["pytorchReplicaSpecs"].values()
    pods = ({"apiVersion": "v1", "kind": "PodTemplate", "template": one["template"]} for one in replicas)
    return "; ".join(filter(None, map(refused, pods))) or None


def with_text(given):
    """Return the document with quantities as text, as in the models."""
    if isinstance(given, dict):
        return {
            k: {n: str(v) for n, v in one.items()} if k in ("limits", "requests") else with_text(one)
            for k, one in given.items()
        }
    return [with_text(one) for one in given] if isinstance(given, list) else given


given = json.load(sys.stdin)
print("RESULT " + json.dumps({"answers": [{"refused": refused(document)} for document in given["documents"]]}))
