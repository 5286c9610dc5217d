"""JSON Schemas of `--json` output: published in docs/schemas, generated from the golden files and checked against them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.golden.test_verbs import CASES, GOLDEN

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
GROUPS = ("fit", "simulate", "study", "calibrate")  # verbs whose second word is part of their name
A_NAME = re.compile(r"[a-z][a-z0-9_]*")
# Their keys depend on a table or a user: network families, kinds of operators, rows.
MAPS = ("families", "share_by_family", "left_out")


def verb_of(line: str) -> str:
    words = line.split()
    return "-".join(words[:2]) if words[0] in GROUPS and not words[1].startswith("-") else words[0]


def outputs() -> dict[str, list[tuple[str, Any]]]:
    """Return name and data of every golden file of a verb, without errors and without files that store keys only."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for case in CASES:
        path = GOLDEN / f"{case.name}.json"
        if "json" in case.outputs and path.exists():
            data = json.loads(path.read_text())
            is_error = isinstance(data, dict) and set(data) == {"error", "hint"}
            found.setdefault("error" if is_error else verb_of(case.line), []).append((case.name, data))
    return found


def schema_of(values: Sequence[Any]) -> dict[str, Any]:
    """Return the common schema: types, object keys (required if all values have them), items of lists."""
    kinds = {
        kind: own
        for kind in (dict, list, str, bool, int, float, type(None))
        if (own := [v for v in values if type(v) is kind])
    }
    if float in kinds:
        kinds.pop(int, None)
    schemas = [_SCHEMAS[kind](own) for kind, own in kinds.items()]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _object(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = list(dict.fromkeys(key for value in values for key in value))
    if any(A_NAME.fullmatch(key) is None for key in keys):  # keys such as counts or layer names: a map
        return {"type": "object", "additionalProperties": schema_of([v for value in values for v in value.values()])}
    properties = {key: _property(key, [value[key] for value in values if key in value]) for key in keys}
    return {
        "type": "object",
        "properties": properties,
        "required": [k for k in keys if all(k in value for value in values)],
    }


def _property(key: str, values: Sequence[Any]) -> dict[str, Any]:
    if key in MAPS and all(isinstance(value, dict) for value in values):
        items = [item for value in values for item in value.values()]
        return {"type": "object", **({"additionalProperties": schema_of(items)} if items else {})}
    return schema_of(values)


def _list(values: Sequence[list[Any]]) -> dict[str, Any]:
    items = [item for value in values for item in value]
    return {"type": "array", "items": schema_of(items)} if items else {"type": "array"}


_SCHEMAS: dict[type, Any] = {
    dict: _object,
    list: _list,
    str: lambda _: {"type": "string"},
    bool: lambda _: {"type": "boolean"},
    int: lambda _: {"type": "integer"},
    float: lambda _: {"type": "number"},
    type(None): lambda _: {"type": "null"},
}


@pytest.mark.parametrize("verb", outputs())
def test_output_matches_published_schema(verb: str) -> None:
    path = SCHEMAS / f"{verb}.json"
    if os.environ.get("CHRONOGRAD_REFRESH_GOLDEN"):
        SCHEMAS.mkdir(exist_ok=True)
        title = "what a failing verb prints" if verb == "error" else f"chronograd {verb.replace('-', ' ')} --json"
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        path.write_text(json.dumps(schema | schema_of([data for _, data in outputs()[verb]]), indent=1) + "\n")
    assert path.exists(), f"no {path.name}; CHRONOGRAD_REFRESH_GOLDEN=1 writes it"
    schema = json.loads(path.read_text())
    for _, data in outputs()[verb]:
        jsonschema.validate(data, schema)


def test_every_schema_belongs_to_a_verb() -> None:
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(outputs())


def test_schema_allows_other_network_families() -> None:
    """Families and operators depend on the validated table."""
    schema = json.loads((SCHEMAS / "validate.json").read_text())
    data = json.loads((GOLDEN / "validate.json").read_text())
    data["families"] = {"resnet": {"n": 2, "mape": 0.1, "bias": -0.1}}
    data["worst_rows"][0]["share_by_family"] = {"attention": 1.0}
    jsonschema.validate(data, schema)
    data["families"]["vit"] = {"n": 1}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_missing_key_and_changed_type_are_detected() -> None:
    schema = schema_of([{"a": 1, "b": {"1": 0.5}}, {"a": 2, "b": {}, "c": None}])
    jsonschema.validate({"a": 3, "b": {"7": 1.5}}, schema)
    for wrong in ({"b": {}}, {"a": "3", "b": {}}, {"a": 3, "b": {"7": "x"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
