"""A model in ONNX, ready to run: its inputs and outputs, and whether its requests can be merged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import files
from chronograd.deploy import METADATA, batching
from chronograd.deploy.protocol import Array, ProtocolError, TensorSpec, invented
from chronograd.errors import FileFormatError
from chronograd.simulate.queueing import GAIN, best_rows
from chronograd.units import seconds

MAX_MODEL_BYTES = 2**31  # maximum size of one Protocol Buffers file; larger models have external data
ASSUMED = 8  # elements of an axis of any length, such as that of a text, in the trial of a model
Stamp = tuple[int, int, int] | None  # inode, size and time of change; None if the file does not exist
# Types of ONNX Runtime → datatypes of the protocol.
_DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    **{f"tensor(uint{bits})": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"tensor(int{bits})": f"INT{bits}" for bits in (8, 16, 32, 64)},
}


@dataclass
class OnnxModel:
    """A session of ONNX Runtime with its inputs and outputs.

    Attributes:
        stamps: of its files when they were read.
        session: of ONNX Runtime.
        most_rows: of a batch of several requests; 1 if each runs alone, for the reason in `why_alone`.
        times: seconds of a batch by its rows, timed when the model was loaded.
        about: metadata that `chronograd export` has written into the file; empty for another file.
    """

    path: Path
    stamps: dict[Path, Stamp]
    session: Any
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    most_rows: int = 1
    why_alone: str = ""
    times: dict[int, float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output_names(self) -> list[str]:
        return [spec.name for spec in self.outputs]

    def is_on_disk(self) -> bool:
        """Return whether its files are unchanged since they were read."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())

    def run(self, inputs: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
        """Return the outputs of these names. Raises ProtocolError if the model cannot run with these inputs."""
        feeds = {name: _as_text(array, name) if array.dtype == object else array for name, array in inputs.items()}
        try:
            outputs: list[Array] = self.session.run(list(names), feeds)
        except Exception as error:  # ONNX Runtime has a class for each status, of RuntimeError and of Exception
            raise ProtocolError(f"the model cannot run with these inputs: {_first_line(error)}") from None
        return outputs

    def batching_words(self) -> str:
        """Describe whether requests are merged, and the gain, or the reason why not."""
        if self.most_rows == 1:
            return f"individually: {self.why_alone}"
        alone, merged = self.times.get(1), self.times.get(self.most_rows)
        gain = f", {seconds(merged)} where one takes {seconds(alone)}" if alone and merged else ""
        return f"up to {self.most_rows} together{gain}"


def load(path: Path, *, most_rows: int = 32, threads: int | None = None) -> OnnxModel:
    """Read a model and try it.

    Args:
        most_rows: maximum of a batch of requests; fewer if they do as well, 1 if batches do not pay.
        threads: of ONNX Runtime for one run; one for each core by default.

    Raises: FileFormatError for a file that is not a model, or a model that the protocol cannot serve.
    """
    import onnxruntime

    stamp = _stamp(path)
    content, data_files = _read(path)
    stamps = {path: stamp, **{one: _stamp(one) for one in data_files}}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors raise; warnings are about speed on other devices
    if threads is not None:
        options.intra_op_num_threads = threads
    available = onnxruntime.get_available_providers()
    providers = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in available]
    # From memory, so that the checked bytes run; by its path if it has further files.
    source = str(path) if data_files else content
    try:
        session = onnxruntime.InferenceSession(source, options, providers=providers)
    except Exception as error:
        raise FileFormatError(f"ONNX Runtime cannot load {path}: {_first_line(error)}") from None
    model = OnnxModel(
        path,
        stamps,
        session,
        _specs(session.get_inputs(), path),
        _specs(session.get_outputs(), path),
        about=_about(session),
    )
    model.why_alone = _why_no_rows(session)
    if most_rows == 1:
        model.why_alone = "batching is off"
    if not model.why_alone:
        _try_batches(model, most_rows)
    return model


def _read(path: Path) -> tuple[bytes, list[Path]]:
    """Return the bytes of a model, and the files of its external data, all in the model's folder.

    Raises: FileFormatError.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        content = files.read_bytes(path, MAX_MODEL_BYTES)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror}") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
        if not proto.graph.node and not proto.graph.output:
            raise ValueError("it has no graph")
    except (DecodeError, ValueError) as error:
        raise FileFormatError(f"{path} is not an ONNX model, or incomplete: {error}") from None
    places = {entry.value for tensor in _tensors(proto) for entry in tensor.external_data if entry.key == "location"}
    folder = os.path.realpath(path.parent)
    for place in places:
        real = os.path.realpath(os.path.join(folder, place))
        if os.path.isabs(place) or os.path.commonpath([real, folder]) != folder:
            raise FileFormatError(
                f"{path} has external data at {place!r}, outside its folder", "keep a model and its data in one folder"
            )
        if not os.path.isfile(real):
            raise FileFormatError(f"{path} has external data at {place!r}, which does not exist")
    return content, [path.parent / place for place in sorted(places)]


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _tensors(message: Any) -> Iterator[Any]:
    """Yield every tensor of a model at any depth: initializers, attributes, those of inner graphs and of functions."""
    from google.protobuf.message import Message

    waiting = [message]
    while waiting:
        one = waiting.pop()
        if one.DESCRIPTOR.name == "TensorProto":
            yield one
            continue
        for descriptor, value in one.ListFields():
            if descriptor.message_type is not None:
                waiting += [value] if isinstance(value, Message) else list(value)


def _about(session: Any) -> Mapping[str, Any]:
    try:
        about = json.loads(session.get_modelmeta().custom_metadata_map.get(METADATA, "{}"))
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _specs(arguments: Sequence[Any], path: Path) -> list[TensorSpec]:
    for one in arguments:
        if one.type not in _DATATYPES:
            raise FileFormatError(f"{path}: {one.name} is a {one.type}, which the Open Inference Protocol cannot carry")
    return [
        TensorSpec(one.name, _DATATYPES[one.type], tuple(n if isinstance(n, int) else -1 for n in one.shape))
        for one in arguments
    ]


def _why_no_rows(session: Any) -> str:
    """Return why the declared first axis cannot be one of independent rows; empty if it may be."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    for one in (*inputs, *outputs):
        if not one.shape or isinstance(one.shape[0], int):
            return f"the first axis of {one.name} has a fixed length"
    return "" if inputs else "it has no inputs"


def _try_batches(model: OnnxModel, most_rows: int) -> None:
    """Run the model to determine whether rows are independent, and the best number of rows of a batch."""
    random = np.random.default_rng(0)

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        return model.run(inputs, model.output_names)

    rows = [example(model.inputs, random) for _ in range(2)]
    try:
        model.why_alone = batching.why_not_merged(run, *rows)
        if model.why_alone:
            return
        model.times = batching.time_batches(
            lambda count: run({name: np.repeat(array, count, axis=0) for name, array in rows[0].items()}), most_rows
        )
    except ProtocolError as error:
        model.why_alone = f"it did not run with random inputs: {error}"
        return
    model.most_rows = best_rows(model.times)
    if model.most_rows == 1:
        model.why_alone = f"a batch saves less than {100 * GAIN:.0f} % of the time of a row"


def example(specs: Sequence[TensorSpec], random: np.random.Generator) -> dict[str, Array]:
    """Return one row of random inputs."""
    shapes = {spec.name: (1, *(n if n >= 0 else ASSUMED for n in spec.shape[1:])) for spec in specs}
    return {spec.name: invented(spec.datatype, shapes[spec.name], random) for spec in specs}


def _as_text(array: Array, name: str) -> Array:
    """Return strings in ONNX Runtime's form."""
    text = np.empty(array.shape, object)
    try:
        text.ravel()[:] = [value.decode() for value in array.ravel()]
    except UnicodeDecodeError:
        raise ProtocolError(f"a string of input {name} is not UTF-8") from None
    return text


def _first_line(error: Exception) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 300 else line[:297] + "..."
