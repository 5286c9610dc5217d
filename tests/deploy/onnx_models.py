"""Small ONNX models, built by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: dict[str, Any] | None = None) -> Path:  # fmt: skip
    """Save a model of nodes; inputs and outputs are (name, type, shape)."""
    import onnx
    from onnx import helper, numpy_helper

    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(*one) for one in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(model.SerializeToString())
    aside.rename(path)
    return path


def scale(path: Path, factor: float = 2.0, rows: Any = "n") -> Path:
    """Build a model: `y` is `x` times a factor, and `total` the sum of each row of `y`."""
    from onnx import TensorProto, helper

    return save(
        path,
        [
            helper.make_node("Mul", ["x", "factor"], ["y"]),
            helper.make_node("ReduceSum", ["y", "axes"], ["total"], keepdims=0),
        ],
        [("x", TensorProto.FLOAT, [rows, 4])],
        [("y", TensorProto.FLOAT, [rows, 4]), ("total", TensorProto.FLOAT, [rows])],
        {"factor": np.float32(factor), "axes": np.array([1], np.int64)},
    )


def classifier(path: Path, about: dict[str, Any], side: int = 2, width: int | None = None) -> Path:
    """Build colour logits: red of the top left pixel, green of the top right one, blue of the bottom left one."""
    import onnx
    from onnx import TensorProto, helper

    width = width or side
    chosen = np.zeros((3 * side * width, 3), np.float32)
    for colour, place in enumerate((0, width - 1, (side - 1) * width)):
        chosen[colour * side * width + place, colour] = 1
    is_inside = (about.get("preprocessing") or {}).get("place") == "inside"
    cast = [helper.make_node("Cast", ["pixels"], ["images"], to=TensorProto.FLOAT)] if is_inside else []
    name, kind = ("pixels", TensorProto.UINT8) if is_inside else ("images", TensorProto.FLOAT)
    save(
        path,
        [
            *cast,
            helper.make_node("Flatten", ["images"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["logits"]),
        ],
        [(name, kind, ["n", 3, side, width])],
        [("logits", TensorProto.FLOAT, ["n", 3])],
        {"w": chosen},
    )
    model = onnx.load(path)
    helper.set_model_props(model, {"chronograd": json.dumps(about)})
    onnx.save(model, path)
    return path


def heavy(path: Path, layers: int = 6, width: int = 512) -> Path:
    """Build products with matrices larger than the caches, so that batching saves time."""
    from onnx import TensorProto, helper

    random = np.random.default_rng(0)
    weights = {f"w{i}": random.standard_normal((width, width)).astype(np.float32) / width**0.5 for i in range(layers)}
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(layers)]
    return save(
        path,
        nodes,
        [("x", TensorProto.FLOAT, ["n", width])],
        [("y", TensorProto.FLOAT, ["n", width])],
        weights,
    )


def centred(path: Path) -> Path:
    """Build a model that subtracts the mean over all rows, so each answer depends on the other rows."""
    from onnx import TensorProto, helper

    return save(
        path,
        [
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["x", "m"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 4])],
    )


def lookup(path: Path) -> Path:
    """Build a lookup in a table of three rows; another index fails."""
    from onnx import TensorProto, helper

    return save(
        path,
        [helper.make_node("Gather", ["table", "index"], ["y"])],
        [("index", TensorProto.INT64, ["n"])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        {"table": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )


def detector(path: Path, about: dict[str, Any]) -> Path:
    """Build a detector of four boxes in two classes, with scores proportional to the input's mean.

    The first two boxes overlap.
    """
    import onnx
    from onnx import TensorProto, helper

    scores = np.array([[[0.1, 0.9, 0.0], [0.1, 0.8, 0.7], [0.1, 0.6, 0.0], [0.9, 0.1, 0.0]]], np.float32)
    boxes = np.array([[[0, 0, 0.5, 0.5], [0, 0, 0.5, 0.4], [0.5, 0.5, 1.2, 1], [0, 0, 1, 1]]], np.float32)
    save(
        path,
        [
            helper.make_node("Cast", ["pixels"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3], keepdims=0),
            helper.make_node("ReduceMean", ["m"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Unsqueeze", ["mean", "last"], ["each"]),
            helper.make_node("Mul", ["each", "at_white"], ["scores"]),
            helper.make_node("Mul", ["each", "zero"], ["none"]),
            helper.make_node("Add", ["none", "places"], ["boxes"]),
        ],
        [
            (
                "pixels",
                TensorProto.UINT8 if about["preprocessing"]["place"] == "inside" else TensorProto.FLOAT,
                ["n", 3, 6, 8],
            )
        ],
        [("scores", TensorProto.FLOAT, ["n", 4, 3]), ("boxes", TensorProto.FLOAT, ["n", 4, 4])],
        {"at_white": scores, "places": boxes, "zero": np.float32(0), "last": np.array([2], np.int64)},
    )
    model = onnx.load(path)
    helper.set_model_props(model, {"chronograd": json.dumps(about)})
    onnx.save(model, path)
    return path


def text(path: Path) -> Path:
    """Build a model that returns its strings unchanged."""
    from onnx import TensorProto, helper

    return save(
        path,
        [helper.make_node("Identity", ["words"], ["same"])],
        [("words", TensorProto.STRING, ["n", "m"])],
        [("same", TensorProto.STRING, ["n", "m"])],
    )
