"""Example options for each platform, with made-up addresses: for pages and tests."""

from __future__ import annotations

from typing import Any

IMAGE = "registry.example.com/lab/chronograd:0.1"
TAGS = {"team": "vision", "cost-centre": "1234"}
COMMON: dict[str, Any] = {
    "image": IMAGE,
    "name": "digits-resnet20",
    "limit_s": 7200,
    "framework_version": "2.14.1",
    "environment": {"NCCL_DEBUG": "WARN"},
    "tags": TAGS,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "sagemaker": {
        **COMMON,
        "role": "arn:aws:iam::123456789012:role/training",
        "output": "s3://lab-results/digits",
        "checkpoints": "s3://lab-checkpoints/digits",
        "spot": True,
        "restarts": 2,
        "secrets": {"HF_TOKEN": "arn:aws:secretsmanager:us-east-1:123456789012:secret:hf"},
    },
    "vertex": {
        **COMMON,
        "role": "training@lab.iam.gserviceaccount.com",
        "output": "gs://lab-results/digits",
        "checkpoints": "gs://lab-checkpoints/digits",
        "spot": True,
        "restarts": 2,
        "secrets": {"HF_TOKEN": "projects/lab/secrets/hf/versions/1"},
    },
    "azureml": {
        **COMMON,
        "output": "azureml://datastores/results/paths/digits",
        "checkpoints": "azureml://datastores/checkpoints/paths/digits",
        "project": "digits",
        "spot": True,
        "restarts": 2,
        "secrets": {"HF_TOKEN": "https://lab.vault.azure.net/secrets/hf"},
    },
    "watsonx": {
        **COMMON,
        "image": "pytorch-onnx_rt25.1-py3.12",
        "code": "4cedab6d-e8e4-4214-b81a-2ddb122db2ab",
        "project": "12ac4cf1-252f-424b-b52d-5cdd9814987f",
        "output": "container://results/digits",
        "secrets": {"HF_TOKEN": "crn:v1:bluemix:public:secrets-manager:us-south:a/1:2:secret:3"},
    },
    "skypilot": {
        **COMMON,
        "output": "s3://lab-results/digits",
        "checkpoints": "s3://lab-checkpoints/digits",
        "spot": True,
        "restarts": 2,
        "secrets": {"HF_TOKEN": "env:HF_TOKEN"},
    },
    "kubernetes": {
        **COMMON,
        "role": "training",
        "project": "lab",
        "output": "pvc://results/digits",
        "checkpoints": "pvc://checkpoints/digits",
        "spot": True,
        "restarts": 2,
        "secrets": {"HF_TOKEN": "hugging-face/token"},
    },
}
OPTIONS["pytorchjob"] = OPTIONS["kubernetes"]
# The address of a user's data set.
DATA = {
    "sagemaker": "s3://lab-data/voc",
    "vertex": "gs://lab-data/voc",
    "azureml": "azureml://datastores/data/paths/voc",
    "watsonx": "container://data/voc",
    "skypilot": "s3://lab-data/voc",
    "kubernetes": "pvc://data/voc",
    "pytorchjob": "pvc://data/voc",
}
