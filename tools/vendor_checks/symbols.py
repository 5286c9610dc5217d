"""The names in a vendor's package. Each function documents the form of its names."""

import functools
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path


def sagemaker(name):
    """Check an operation; `shape:NAME.MEMBER`; `ENUMERATION=VALUE`."""
    model = _service_model()
    if name.startswith("shape:"):
        shape, member = name.removeprefix("shape:").split(".")
        return member in model.shape_for(shape).members
    shape, sign, value = name.partition("=")
    return value in model.shape_for(shape).enum if sign else name in model.operation_names


@functools.cache
def _service_model():
    import botocore.session

    return botocore.session.get_session().get_service_model("sagemaker")


def vertex(name):
    """Check `services.NAME`; `types.MESSAGE.FIELD`; `ENUMERATION=VALUE`."""
    from google.cloud import aiplatform_v1

    enumeration, sign, value = name.partition("=")
    if sign:
        return value in getattr(aiplatform_v1, enumeration).__members__
    kind, first, *rest = name.split(".")
    if kind == "services":
        return importlib.util.find_spec(f"google.cloud.aiplatform_v1.services.{first}") is not None
    message = getattr(aiplatform_v1.types, first, None)
    return message is not None and all(field in message.pb().DESCRIPTOR.fields_by_name for field in rest)


def azureml(name):
    """Check a function of the package; `entities.CLASS`; `MLClient.MEMBER`."""
    return _has("azure.ai.ml", name)


def skypilot(name):
    """Check a member of a module; `schema:resources.PROPERTY`."""
    if name.startswith("schema:resources."):
        from sky.utils import schemas

        return name.removeprefix("schema:resources.") in schemas.get_resources_schema()["properties"]
    return _has("sky", name)


def _has(package, name):
    value = importlib.import_module(package)
    for part in name.split("."):
        inner = f"{getattr(value, '__name__', '')}.{part}"
        if hasattr(value, part):
            value = getattr(value, part)
        elif hasattr(value, "__path__") and importlib.util.find_spec(inner):
            value = importlib.import_module(inner)
        else:
            return False
    return True


def watsonx(name):
    """Check an interface of the types; `INTERFACE.MEMBER`."""
    text = (Path(sys.argv[1]) / "node_modules/@ibm-cloud/watsonx-ai/types/vml_v1.d.ts").read_text()
    interface, _, member = name.partition(".")
    body = re.search(rf"interface {interface}\b.*?\n}}", text, re.DOTALL)
    return body is not None and (not member or re.search(rf"\n    {member}\??:", body[0]) is not None)


def kubernetes(name):
    """Check `SCHEMA:PATH` in the JSON schemas."""
    import kubernetes_validate

    version = f"v{kubernetes_validate.latest_version()}-local-strict"
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / version
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]

    def resolved(schema):
        while "$ref" in schema or "items" in schema:
            schema = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema["items"]
        return schema

    file, _, path = name.partition(":")
    schema = json.loads((folder / f"{file}.json").read_text())
    for part in path.split("."):
        properties = resolved(schema).get("properties", {})
        if part not in properties:
            return False
        schema = properties[part]
    return True


given = json.load(sys.stdin)
print("RESULT " + json.dumps([globals()[given["platform"]](name) for name in given["names"]]))
