"""Kubeflow's PyTorchJob: a master and workers. Its operator starts them and sets their addresses."""

from __future__ import annotations

import copy
from typing import Any

from chronograd.clouds.fields import CloudPlatform, Document, DocumentField, get, slug
from chronograd.clouds.platforms import kubernetes
from chronograd.clouds.submission import Submission
from chronograd.job import SHARDED

REPLICAS = "spec.pytorchReplicaSpecs"
MASTER = f"{REPLICAS}.Master"
POD = f"{MASTER}.template.spec"


def _derived(asked: Submission) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec.runPolicy.backoffLimit": 0,
        "spec.runPolicy.cleanPodPolicy": "None",  # keeps pods, so that their output can be read
        f"{MASTER}.restartPolicy": "OnFailure" if asked.restarts else "Never",
        f"{POD}.containers.0.name": "pytorch",  # the operator requires this name
        **kubernetes.derived_pod(POD, asked),
    }


def _fold(document: Document, asked: Submission) -> Document:
    kubernetes.fold_tags(document)
    kubernetes.fold_pod(get(document, POD))
    replicas = get(document, REPLICAS)
    replicas["Master"]["replicas"] = 1
    if asked.nodes > 1:
        replicas["Worker"] = {**copy.deepcopy(replicas["Master"]), "replicas": asked.nodes - 1}
    return document


def _unfold(document: Document) -> Document:
    opened = copy.deepcopy(document)
    kubernetes.unfold_tags(opened)
    replicas = get(opened, REPLICAS)
    replicas["Master"]["replicas"] = sum(int(one.get("replicas", 1)) for one in replicas.values())
    kubernetes.unfold_pod(get(opened, POD))
    return opened


PLATFORM = CloudPlatform(
    name="pytorchjob",
    title="PyTorchJob",
    file="pytorchjob.yaml",
    mark=("kind", "PyTorchJob"),
    instances="kubernetes",
    slug=lambda text: slug(text.lower(), 52),
    mount=kubernetes.mount,
    schemes=(kubernetes.SCHEME,),
    is_tag=kubernetes.is_tag,
    is_secret=kubernetes.is_secret,
    needs={"image": "--image REGISTRY/NAME:TAG"},
    derived=_derived,
    fold=_fold,
    unfold=_unfold,
    complain=kubernetes.complain,
    tool=kubernetes.TOOL,
    backends=("single", "ddp", *SHARDED, "data_parallel"),
    fields=(
        DocumentField("name", "metadata.name"),
        DocumentField("project", "metadata.namespace"),
        DocumentField("tags", "metadata.labels"),
        DocumentField("nodes", f"{MASTER}.replicas"),
        DocumentField("limit_s", "spec.runPolicy.activeDeadlineSeconds"),
        DocumentField("restarts", "spec.runPolicy.backoffLimit"),
        *kubernetes.pod_fields(POD),
    ),
)
