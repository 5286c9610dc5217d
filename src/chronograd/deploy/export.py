"""A PyTorch network as an ONNX file: exported with a batch of any size, loaded again, checked, and described.

torch.export captures the graph. Traces of the machine (paths in stack traces) are removed. One entry `chronograd` is added to
the metadata, JSON for the server, with the network, its weights and the normalisation of pixels.
"""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from chronograd.count.calls import Called, Values
from chronograd.count.failures import types_of
from chronograd.deploy import METADATA
from chronograd.errors import ExportError, InputError, require
from chronograd.files import disk_full

# The default version of the operators that PyTorch 2.11 to 2.14 export to.
OPSET = 20
# Versions that its exporter supports: torch.onnx._internal.exporter's TORCHLIB_OPSET, and ONNX_MAX_OPSET.
OPSETS = (18, 23)
BATCH = "batch"
EXAMPLES = 2  # samples for capturing a network
_MAX_LETTERS = 300


@dataclass(frozen=True)
class Port:
    """An input or output of a graph. `shape` has a name where the size is free."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} ({', '.join(map(str, self.shape))})"


@dataclass(frozen=True)
class Graph:
    """The description of an ONNX file. `operators` counts its nodes by kind; `num_bytes` includes its external data."""

    opset: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: Mapping[str, int]
    num_bytes: int


def require_onnx() -> None:
    """Raise MissingExtraError unless the packages that export and run ONNX are installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, "onnx", "ONNX")


def write_onnx(
    network: nn.Module,
    example: Tensor | Values,
    path: Path,
    *,
    input_name: str = "input",
    opset: int = OPSET,
    about: Mapping[str, Any] | None = None,
) -> Graph:
    """Export a network, load the file again and check it.

    Outputs get the names of the network's attribute `output_names`. Without it, a single output is `logits`, a mapping gives
    its keys, and others are `output_0` and so on.

    Args:
        network: in evaluation mode; a `Called` for several tensors. example: `EXAMPLES` samples, where only shape and type
            matter.
        path: the file; more than 2 GB of weights lie next to it, in PATH.data.
        about: its metadata.

    Raises: InputError if the network does not run on such samples; ExportError, with the reason, if it cannot be exported, its
    file does not pass the checker, or it accepts only the example's batch.
    """
    require_onnx()
    import onnx

    tensors = (example,) if isinstance(example, Tensor) else example.tensors
    sizes: list[Any] = [
        {} if at is None else {at: BATCH} for at in ((0,) if isinstance(example, Tensor) else example.batch_dims)
    ]
    names = _output_names(network, tensors)
    with quiet():
        try:
            program = torch.onnx.export(
                network,
                tensors,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=(tuple(sizes),) if isinstance(network, Called) else tuple(sizes),
                input_names=network.input_names if isinstance(network, Called) else [input_name],
                output_names=names,
                verbose=False,
            )
            assert program is not None
            program.save(path)
        except Exception as error:
            for cause in (error, error.__cause__, error.__context__):
                if isinstance(cause, OSError) and (full := disk_full(path, cause)) is not None:
                    raise full from None
            raise ExportError(f"the network cannot be exported: {reason(error)}", _HINT) from error
    model = onnx.load(str(path), load_external_data=False)
    _tidy(model, about or {})
    onnx.save(model, str(path))
    check_onnx(path)
    graph = read_graph(path)
    _check_graph(graph, opset, [port.name for port, size in zip(graph.inputs, sizes, strict=False) if 0 not in size])
    return graph


def check_onnx(path: Path) -> None:
    """Raise ExportError for a file that does not pass the checker of ONNX, which also infers its shapes."""
    require_onnx()
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker's own errors, and those of its shape inference
        raise ExportError(f"the graph is not valid: {first_line(error)}", _HINT) from error


_HINT = "rewrite what the message names: an ONNX graph does not branch on values, and has the operators of ONNX only"


def read_graph(path: Path) -> Graph:
    """Describe an ONNX file. Raises ExportError for another file."""
    require_onnx()
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's error, which depends on its implementation
        raise ExportError(f"{path.name} is not an ONNX file: {first_line(error)}") from error
    opsets = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    beside = path.with_name(path.name + ".data")
    weights = {one.name for one in model.graph.initializer}
    return Graph(
        opset=opsets[0] if opsets else 0,
        inputs=tuple(_port(one) for one in model.graph.input if one.name not in weights),
        outputs=tuple(_port(one) for one in model.graph.output),
        operators=Counter(node.op_type for node in _nodes(model)),
        num_bytes=path.stat().st_size + (beside.stat().st_size if beside.exists() else 0),
    )


def metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a file by `write_onnx`; empty for another file."""
    require_onnx()
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    texts = [one.value for one in model.metadata_props if one.key == METADATA]
    return dict(json.loads(texts[0])) if texts else {}


def reason(error: BaseException) -> str:
    """Return why an export failed, in a line: the cause, and the line of the network's code; without the exporter's advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    calls = _CALL.findall(str(error))
    file, line, code = calls[-1] if calls else ("", "", "")
    return first_line(error) + (f" ({Path(file).name}:{line}: {code.strip()})" if calls else "")


_CALL = re.compile(r'File "([^"]+)", line (\d+), in \w+\n +(.+)')


def first_line(error: BaseException) -> str:
    """Return kind and first line of an error, and the next one if that ends with a colon."""
    text = ""
    for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines():
        text = f"{text} {line.strip(' -')}".strip()
        if text and not text.endswith(":"):
            break
    text = text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} …"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def flat(outputs: Any) -> list[Tensor]:
    """Return the tensors that a network returns, in the order of their export."""
    return [one for one in pytree.tree_leaves(outputs) if isinstance(one, Tensor)]


def _output_names(network: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    try:
        with torch.no_grad():
            outputs = network(*tensors)
    except Exception as error:
        shape = ", ".join(
            f"{'x'.join(map(str, one.shape[1:]))}:{str(one.dtype).removeprefix('torch.')}" for one in tensors
        )
        if _runs_on_one(network, tensors):
            raise ExportError(
                f"the network runs on a batch of 1 only; on {EXAMPLES} samples of {shape}: {first_line(error)}",
                "take the size of the batch from tensors (x.shape[0]), not from numbers stored in the network",
            ) from error
        raise InputError(
            f"the network cannot run on samples of {shape}: {first_line(error)}",
            f"{types_of(network)}: give the shape and type that it takes, --input SHAPE:DTYPE, or name its data set with --data",
        ) from error
    if isinstance(outputs, Tensor):
        return ["logits"]
    tensors, own = flat(outputs), getattr(network, "output_names", None)
    if isinstance(own, tuple) and len(own) == len(tensors):
        return list(own)
    if isinstance(outputs, Mapping) and len(outputs) == len(tensors):
        return [str(name) for name in outputs]
    return [f"output_{number}" for number in range(len(tensors))]


def _runs_on_one(network: nn.Module, tensors: Sequence[Tensor]) -> bool:
    """Return whether the network runs on the first sample of each tensor alone."""
    try:
        with torch.no_grad():
            network(*(one[:1] for one in tensors))
    except Exception:
        return False
    return True


def _check_graph(graph: Graph, opset: int, without_batch: Sequence[str] = ()) -> None:
    """Raise ExportError if the exporter wrote another graph than requested.

    Args:
        without_batch: inputs whose first dimension is not the batch.
    """
    if graph.opset != opset:
        raise ExportError(
            f"opset {opset} was requested, and the exporter could only write {graph.opset}",
            f"write --opset {graph.opset}",
        )
    for port in (*graph.inputs, *graph.outputs):
        batch = port.shape if without_batch else port.shape[:1]
        if port.name not in without_batch and batch and all(isinstance(size, int) for size in batch):
            raise ExportError(
                f"{port} has one batch size only: values that the network computes from its batch are fixed at {EXAMPLES}",
                "take sizes of the batch from tensors (x.shape[0]), not from numbers or lists stored in the network",
            )


def _port(value: Any) -> Port:
    import onnx

    tensor = value.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
    shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
    return Port(value.name, dtype, shape)


def _nodes(model: Any) -> Iterator[Any]:
    """Yield all nodes, including those of functions and of the branches of conditions."""
    waiting: list[Sequence[Any]] = [model.graph.node, *(function.node for function in model.functions)]
    while waiting:
        for node in waiting.pop():
            yield node
            for attribute in node.attribute:
                waiting += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]


def _tidy(model: Any, about: Mapping[str, Any]) -> None:
    """Remove stack traces and notes of the exporter, and add the metadata `about`."""
    for part in (*_nodes(model), *model.graph.input, *model.graph.output, *model.graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    for part in (model, model.graph, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    if about:
        model.metadata_props.add(key=METADATA, value=json.dumps(about))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings and log: libraries warn about deprecations, and print graphs that do not export."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
