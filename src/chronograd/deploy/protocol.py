"""The Open Inference Protocol, version 2, over HTTP: read requests, write answers. JSON, and the extension for binary tensors.

Pure: bytes in, arrays out, and back. This module does not know a server or ONNX Runtime.

Source: KServe's "Open Inference Protocol", Triton's "Binary Tensor Data Extension", as used by `tritonclient.http`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from chronograd import door

Array = npt.NDArray[Any]

# Names of the protocol → types of numpy. BYTES are strings of any length. BF16 is missing: numpy has no such type.
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_AXES = 32
MAX_TENSORS = 1_000  # no model needs more, and each costs more than its bytes
BINARY_ADVICE = ": send binary data, which may be larger, or a picture with its Content-Type, such as image/jpeg"
LONG_BYTES = 256 * 2**10  # of JSON, which takes some 10 ms to read
_NUMBERS = {"b": (bool,), "u": (int,), "i": (int,), "f": (int, float), "O": (str,)}
# Parameters that change the meaning of a request and are not supported: refused, so that nobody misreads the answer.
_REFUSED = {
    "shared_memory_region": "shared memory",
    "classification": "classification",
    "sequence_id": "sequences",
}


class ProtocolError(Exception):
    """A request that cannot be answered. `status` is the HTTP status, `retry_after_s` the time to wait before another try."""

    def __init__(self, message: str, status: int = 400, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class TensorSpec:
    """Name, datatype and shape of an input or an output of a model; -1 for an axis of any length."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


def invented(datatype: str, shape: Sequence[int], random: np.random.Generator) -> Array:
    """Return random values of a tensor: numbers around 0; whole numbers 0 or 1, which every vocabulary has."""
    dtype = DATATYPES[datatype]
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "O":
        return np.full(shape, b"a", object)
    return random.integers(0, 2, shape).astype(dtype)


@dataclass(frozen=True)
class InferenceRequest:
    """A request to a model.

    Attributes:
        outputs: requested names in order, each with whether it is sent as binary; None for all.
        is_binary: how other outputs are sent.
        timeout_s: the client does not want the answer after this time.
    """

    inputs: dict[str, Array]
    outputs: dict[str, bool] | None = None
    id: str = ""
    is_binary: bool = False
    timeout_s: float | None = None

    def names(self, known: Sequence[str]) -> list[str]:
        """Return the outputs to compute, out of those of the model. Raises ProtocolError for an unknown one."""
        if self.outputs is None:
            return list(known)
        for name in self.outputs:
            if name not in known:
                raise ProtocolError(f"there is no output {_short(name)}; the model has {', '.join(known)}")
        return list(self.outputs)


def json_bytes(body: bytes, header_length: str | None) -> int:
    """Return the number of bytes of a body that are JSON. Raises ProtocolError.

    Args:
        header_length: the HTTP header HEADER_LENGTH, which states it; None if all are JSON.
    """
    if header_length is None:
        return len(body)
    # int() accepts more than digits: signs, spaces, underscores.
    if not (header_length.isascii() and header_length.isdigit()) or len(header_length) > 18:
        raise ProtocolError(f"{HEADER_LENGTH} is {_short(header_length)}; send the bytes of JSON as a number")
    end = int(header_length)
    if end > len(body):
        raise ProtocolError(f"{HEADER_LENGTH} is {end}, and the body has {len(body)} bytes")
    return end


def is_long(body: bytes, header_length: str | None = None) -> bool:
    """Return whether a body takes long to read: much JSON, or strings, which are read individually. Raises ProtocolError."""
    end = json_bytes(body, header_length)
    return end > LONG_BYTES or (len(body) > LONG_BYTES and any(mark in body[:end] for mark in (b"BYTES", b"\\")))


def read_request(body: bytes, header_length: str | None = None, most_json_bytes: int | None = None) -> InferenceRequest:
    """Read the body of an inference request, with `json_bytes` bytes of JSON. Raises ProtocolError for any error in it."""
    end = json_bytes(body, header_length)
    if most_json_bytes is not None and end > most_json_bytes:
        raise ProtocolError(f"the body has {end} bytes of JSON; at most {most_json_bytes} are read{BINARY_ADVICE}", 413)
    data = _object(_read_json(body[:end]), "the request")
    parameters = _parameters(data, "the request")
    binary = memoryview(body)[end:]
    inputs: dict[str, Array] = {}
    offset = 0
    for item in _objects(data, "inputs"):
        name = _name(item, "an input")
        if name in inputs:
            raise ProtocolError(f"input {_short(name)} is there twice")
        own = _parameters(item, f"input {_short(name)}")
        datatype, shape, count = _shape(item, name)
        size = own.get("binary_data_size")
        if size is None:
            if "data" not in item:
                raise ProtocolError(f"input {_short(name)} has neither data nor a binary_data_size")
            inputs[name] = _of_json(item["data"], name, datatype, shape, count)
            continue
        if "data" in item:
            raise ProtocolError(f"input {_short(name)} has both data and a binary_data_size; send one")
        if type(size) is not int or size < 0:
            raise ProtocolError(f"binary_data_size of input {_short(name)} is {_short(size)}; send a number of bytes")
        if offset + size > len(binary):
            raise ProtocolError(
                f"input {_short(name)} has {size} bytes of binary data, and {len(binary) - offset} are left in the body"
            )
        inputs[name] = _of_binary(binary[offset : offset + size], name, datatype, shape, count)
        offset += size
    if offset != len(binary):
        raise ProtocolError(f"{len(binary) - offset} bytes of the body belong to no input")
    is_binary = _flag(parameters, "binary_data_output", False)
    outputs = None
    if data.get("outputs"):
        outputs = {}
        for item in _objects(data, "outputs"):
            name = _name(item, "an output")
            if name in outputs:
                raise ProtocolError(f"output {_short(name)} is asked for twice")
            outputs[name] = _flag(_parameters(item, f"output {_short(name)}"), "binary_data", is_binary)
    asked_id = data.get("id", "")
    if not isinstance(asked_id, str):
        raise ProtocolError(f"id is {_short(asked_id)}; send a string")
    return InferenceRequest(inputs, outputs, asked_id, is_binary, _timeout_s(parameters))


def check_load(body: bytes) -> None:
    """Raise ProtocolError if a request to load a model asks for anything but the model's own files."""
    data = _object(_read_json(body), "the request") if body else {}
    for name in _parameters(data, "the request"):
        if name == "config" or name.startswith("file:"):
            raise ProtocolError(
                f"the parameter {_short(name)} is not supported: a model is loaded from its own file; leave it out"
            )


def check_inputs(inputs: Mapping[str, Array], specs: Sequence[TensorSpec]) -> None:
    """Check inputs against those of a model: names, datatypes, shapes. Raises ProtocolError."""
    known = {spec.name: spec for spec in specs}
    for name in inputs:
        if name not in known:
            raise ProtocolError(f"there is no input {_short(name)}; the model has {', '.join(known)}")
    for name, spec in known.items():
        if name not in inputs:
            raise ProtocolError(f"input {name} is missing")
        array = inputs[name]
        if array.dtype != DATATYPES[spec.datatype]:
            raise ProtocolError(f"input {name} is {datatype_of(array)}, and the model takes {spec.datatype}")
        fits = array.ndim == len(spec.shape) and all(
            want in (-1, got) for want, got in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            raise ProtocolError(
                f"input {name} has shape {list(array.shape)}, and the model takes {list(spec.shape)} (-1: any)"
            )


def write_request(
    inputs: Mapping[str, Array], *, is_binary: bool, outputs: Sequence[str] = ()
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of an inference request, with all tensors as binary or all as JSON. For clients."""
    data: dict[str, Any] = {"inputs": []}
    chunks: list[bytes] = []
    for name, array in inputs.items():
        data["inputs"].append(_tensor(name, array, is_binary, chunks))
    if outputs:
        data["outputs"] = [{"name": name, "parameters": {"binary_data": is_binary}} for name in outputs]
    else:
        data["parameters"] = {"binary_data_output": is_binary}
    return _message(data, chunks)


def write_answer(
    model: str, version: str, request: InferenceRequest, outputs: Mapping[str, Array]
) -> tuple[dict[str, str], bytes]:
    """Return headers and body of the answer to a request: the requested outputs in its order.

    Raises: ProtocolError if the request asked for JSON, which cannot express a value.
    """
    data: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        data["id"] = request.id
    chunks: list[bytes] = []
    asked = dict.fromkeys(outputs, request.is_binary) if request.outputs is None else request.outputs
    data["outputs"] = [_tensor(name, outputs[name], binary, chunks) for name, binary in asked.items()]
    return _message(data, chunks)


def read_answer(body: bytes, header_length: str | None = None) -> dict[str, Array]:
    """Return the outputs of an answer by name; they have the form of a request's inputs. Raises ProtocolError."""
    end = len(body) if header_length is None else int(header_length)
    data = _object(_read_json(body[:end]), "the answer")
    as_request = {"inputs": data.get("outputs")}
    head = json.dumps(as_request).encode()
    return read_request(head + body[end:], str(len(head))).inputs


def decompressed(body: bytes, encoding: str, most_bytes: int, advice: str = "") -> bytes:
    """Undo the `Content-Encoding` of a body. Raises ProtocolError for another encoding, a broken or too long body."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise ProtocolError(f"Content-Encoding {_short(encoding)} is not read; send gzip, deflate, or plain", 415)
    unpack = zlib.decompressobj(31 if encoding == "gzip" else 15)
    try:
        data = unpack.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"the body is not {encoding}: {error}") from None
    if len(data) > most_bytes:
        raise ProtocolError(f"the body is longer than {most_bytes} bytes once it is unpacked{advice}", 413)
    if not unpack.eof or unpack.unused_data:
        raise ProtocolError(f"the body is not {encoding} from its beginning to its end")
    return data


def datatype_of(array: Array) -> str:
    """Return the protocol's name of an array's type. Raises ProtocolError if it has none."""
    for name, dtype in DATATYPES.items():
        if dtype == array.dtype:
            return name
    raise ProtocolError(f"the protocol has no name for {array.dtype}", 500)


def _read_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ProtocolError("the JSON is nested too deeply") from None
    except ValueError as error:
        if (kind := door.kind_of(text)) is not None and kind.key == "picture":
            form = "image/" + kind.what.rpartition("(")[2].rstrip(")").lower()
            raise ProtocolError(f"the body is {kind.what}; send it with the header Content-Type: {form}", 415) from None
        raise ProtocolError(f"the body is not JSON: {_cut(str(error))}") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is {_short(value)}; send a JSON object")
    return value


def _objects(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = data.get(key)
    if not isinstance(items, list) or not items:
        raise ProtocolError(f"{key} is {_short(items)}; send a list of at least one tensor")
    if len(items) > MAX_TENSORS:
        raise ProtocolError(f"{key} has {len(items)} tensors; at most {MAX_TENSORS} are read")
    return [_object(item, f"an item of {key}") for item in items]


def _name(item: dict[str, Any], what: str) -> str:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise ProtocolError(f"the name of {what} is {_short(name)}; send a string")
    return name


def _parameters(item: dict[str, Any], what: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    parameters = {} if parameters is None else _object(parameters, f"parameters of {what}")
    for name, text in _REFUSED.items():
        if parameters.get(name):
            raise ProtocolError(f"{what} asks for {text} ({name}), which this server does not support")
    return parameters


def _flag(parameters: dict[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise ProtocolError(f"{name} is {_short(value)}; send true or false")
    return value


def _timeout_s(parameters: dict[str, Any]) -> float | None:
    timeout = parameters.get("timeout")  # microseconds, as in Triton
    if timeout is None or timeout == 0:
        return None
    if type(timeout) is not int or not 0 < timeout < 2**63:
        raise ProtocolError(f"timeout is {_short(timeout)}; send microseconds as a whole number")
    return timeout / 1e6


def _shape(item: dict[str, Any], name: str) -> tuple[str, tuple[int, ...], int]:
    """Return datatype, shape and number of elements of a tensor."""
    datatype, shape = item.get("datatype"), item.get("shape")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ProtocolError(f"datatype of input {_short(name)} is {_short(datatype)}; known: {', '.join(DATATYPES)}")
    is_shape = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if not is_shape or len(shape) > MAX_AXES:  # type: ignore[arg-type]
        raise ProtocolError(
            f"shape of input {_short(name)} is {_short(shape)}; send a list of at most {MAX_AXES} whole numbers"
        )
    return datatype, tuple(shape), math.prod(shape)  # type: ignore[arg-type]


def _of_json(data: Any, name: str, datatype: str, shape: tuple[int, ...], count: int) -> Array:
    """Return a tensor from numbers in a list, flat or nested like its shape."""
    if not isinstance(data, list):
        raise ProtocolError(f"data of input {_short(name)} is {_short(data)}; send a list")
    flat, lengths = data, [len(data)]
    while flat and type(flat[0]) is list:
        length = len(flat[0])
        if any(type(part) is not list or len(part) != length for part in flat) or len(lengths) >= MAX_AXES:
            raise ProtocolError(f"lists in data of input {_short(name)} differ in length or depth")
        flat = list(chain.from_iterable(flat))
        lengths.append(length)
    is_nested_otherwise = len(lengths) > 1 and tuple(lengths) != shape
    if len(flat) != count or is_nested_otherwise:
        seen = f"shape {lengths}" if is_nested_otherwise else f"{len(flat)} elements"
        raise ProtocolError(f"data of input {_short(name)} has {seen}, and its shape is {list(shape)}")
    dtype = DATATYPES[datatype]
    for kind in set(map(type, flat)):
        if kind not in _NUMBERS[dtype.kind]:
            one = next(value for value in flat if type(value) is kind)
            raise ProtocolError(f"data of input {_short(name)} has {_short(one)}, which is not a {datatype}")
    try:
        if dtype.kind == "O":
            array = np.empty(count, object)
            array[:] = [text.encode() for text in flat]
        elif dtype.kind == "f":
            with np.errstate(over="raise"):
                array = np.array(flat, np.float64).astype(dtype)
        else:
            array = np.array(flat, dtype)
    except (OverflowError, FloatingPointError):
        raise ProtocolError(f"data of input {_short(name)} has a number that {datatype} cannot hold") from None
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ProtocolError(f"data of input {_short(name)} has a string that is not text") from None
    return _shaped(array, name, shape)


def _of_binary(data: memoryview, name: str, datatype: str, shape: tuple[int, ...], count: int) -> Array:
    """Return a tensor from its elements in row-major order, little-endian."""
    dtype = DATATYPES[datatype]
    if dtype.kind == "O":
        array = np.empty(count if count <= len(data) // 4 else 0, object)
        array[:] = _strings(data, name, count)
        return _shaped(array, name, shape)
    if len(data) != count * dtype.itemsize:
        raise ProtocolError(
            f"input {_short(name)} of {datatype} and shape {list(shape)} takes {count * dtype.itemsize} bytes, "
            f"and binary_data_size is {len(data)}"
        )
    if not count:
        return _shaped(np.empty(0, dtype), name, shape)
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
        raise ProtocolError(f"input {_short(name)} of BOOL has a byte that is neither 0 nor 1")
    array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    # Kernels may read whole vectors, which must begin at a multiple of their element; bytes after JSON begin anywhere.
    return _shaped(array if array.flags.aligned else array.copy(), name, shape)


def _shaped(array: Array, name: str, shape: tuple[int, ...]) -> Array:
    try:
        return array.reshape(shape)
    except ValueError as error:  # such as lengths with product 0 that numpy cannot count without the 0
        raise ProtocolError(f"input {_short(name)} cannot be read: {_cut(str(error))}") from None


def _strings(data: memoryview, name: str, count: int) -> list[bytes]:
    """Return strings, each preceded by its length in four bytes."""
    strings: list[bytes] = []
    offset = 0
    while offset < len(data):
        start = offset + 4
        end = start + int.from_bytes(data[offset:start], "little")
        if start > len(data) or end > len(data):
            raise ProtocolError(f"a string of input {_short(name)} ends beyond its binary data")
        strings.append(bytes(data[start:end]))
        offset = end
    if len(strings) != count:
        raise ProtocolError(
            f"binary data of input {_short(name)} has {len(strings)} strings, and its shape takes {count}"
        )
    return strings


def _tensor(name: str, array: Array, is_binary: bool, chunks: list[bytes]) -> dict[str, Any]:
    """Return a tensor of a message; append its bytes to `chunks` if it is binary."""
    tensor: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
    if is_binary:
        chunk = _binary(array)
        chunks.append(chunk)
        tensor["parameters"] = {"binary_data_size": len(chunk)}
        return tensor
    if array.dtype.kind == "O":
        tensor["data"] = [_text(value, name) for value in array.ravel()]
        return tensor
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProtocolError(
            f"{name} has values that are not finite, which JSON cannot express: ask for binary data", 422
        )
    tensor["data"] = array.ravel().tolist()
    return tensor


def _binary(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    strings = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel()]
    return b"".join(len(string).to_bytes(4, "little") + string for string in strings)


def _text(value: Any, name: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise ProtocolError(
            f"{name} has bytes that are not text, which JSON cannot express: ask for binary data", 422
        ) from None


def _message(data: dict[str, Any], chunks: list[bytes]) -> tuple[dict[str, str], bytes]:
    head = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    if not chunks:
        return {"Content-Type": "application/json"}, head
    return {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, b"".join([head, *chunks])


def _short(value: Any) -> str:
    """Return a value for a message; of a long one only kind and beginning, without formatting all of it."""
    if isinstance(value, dict):
        return f"an object of {len(value)} fields"
    if isinstance(value, list) and (len(value) > 8 or any(isinstance(one, list | dict | str) for one in value)):
        return f"a list of {len(value)}"
    if isinstance(value, str) and len(value) > 80:
        value = value[:77] + "..."
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return "a number of more than 63 bits"
    return _cut(ascii(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
