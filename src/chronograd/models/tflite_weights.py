"""Weights of the convolutions in a TFLite file, by the names of their layers.

A TFLite file holds an optimised graph. Batch norm is folded into the convolutions. Constants may be 16-bit; the graph converts
them to 32 bits. A tensor's name lists all operators that were merged into it. So the reader follows each convolution to
its constants, and takes the name of the layer from the first name of its weight.

The file is a FlatBuffer: tables whose fields have places relative to the table, by the numbers in TensorFlow's schema,
tensorflow/lite/schema/schema.fbs. Six of its tables are read here, so no package is needed, and every place is checked.
MediaPipe's packages for browsers append the file to others in an archive without a directory (`*_packed_assets.data`); the file
is recognised by its mark there.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chronograd import door
from chronograd.errors import FileFormatError

SUFFIXES = (".tflite", ".data")
MARK = b"TFL3"  # of the schema
MARK_AT = 4  # a FlatBuffer begins with the place of its root
HEAD_BYTES = 64 * 1024  # before the file in an archive, at most
MAX_TABLES = 100_000  # of a kind
# Numbers of operators and types in the schema.
CONVOLUTION, DEPTHWISE, DEQUANTISE = 3, 4, 6
DTYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
# Last part of the name of a weight that belongs to the operator and not to the layer.
_OPERATOR = re.compile(r"/(Conv2D|depthwise|separable_conv2d|BatchNorm/FusedBatchNorm(V\d)?)$")


def read(path: Path) -> dict[str, Tensor]:
    """Return weight and bias of each convolution as float32: LAYER.weight and LAYER.bias, dimensions in PyTorch's order.

    Raises: FileFormatError for another or a damaged file.
    """
    data = door.read_bytes(path, "a TFLite file")
    start = data.find(MARK, 0, HEAD_BYTES) - MARK_AT
    if start < 0:
        raise FileFormatError(
            f"{path} has no TFLite model: its mark {MARK.decode()} is missing",
            "name a .tflite file, or MediaPipe's archive with one",
        )
    data = data[start:]
    try:
        return _layers(_Table(data, _number(data, 0, "I")))
    except (struct.error, ValueError) as error:
        raise FileFormatError(
            f"cannot read the TFLite model in {path}: {error}", "download it again, or name a float16 or float32 model"
        ) from None


def _layers(model: _Table) -> dict[str, Tensor]:
    graphs = model.tables(2)
    if len(graphs) != 1:
        raise ValueError(f"it has {len(graphs)} graphs, not one")
    constants = _Constants(graphs[0].tables(0), model.tables(4))
    codes = model.tables(1)
    operators = [(_kind(codes, operator), operator) for operator in graphs[0].tables(3)]
    # A 16-bit constant by the place of its 32-bit result.
    sources = {
        _first(operator.numbers(2)): _first(operator.numbers(1)) for kind, operator in operators if kind == DEQUANTISE
    }
    layers: dict[str, Tensor] = {}
    for kind, operator in operators:
        if kind not in (CONVOLUTION, DEPTHWISE):
            continue
        weight_at, *bias_at = [sources.get(place, place) for place in operator.numbers(1)[1:3]] or [-1]
        name, weight = constants.read(weight_at, 4)
        name = _OPERATOR.sub("", name)
        if f"{name}.weight" in layers:
            raise ValueError(f"two convolutions have the name {name}")
        # Dimensions in the file: outputs, height, width, inputs; of a depthwise weight 1, height, width, outputs.
        layers[f"{name}.weight"] = weight.permute((0, 3, 1, 2) if kind == CONVOLUTION else (3, 0, 1, 2)).contiguous()
        if bias_at and bias_at[0] >= 0:
            layers[f"{name}.bias"] = constants.read(bias_at[0], 1)[1]
    if not layers:
        raise ValueError("it has no convolution")
    return layers


def _kind(codes: list[_Table], operator: _Table) -> int:
    """Return the code of an operator. Files of earlier versions have it in an 8-bit field."""
    number = operator.number(0, "I")
    if number >= len(codes):
        raise ValueError(f"an operator has the kind {number} of {len(codes)}")
    return max(codes[number].number(3, "i"), codes[number].number(0, "b"))


def _first(numbers: list[int]) -> int:
    if not numbers:
        raise ValueError("an operator has no input or output")
    return numbers[0]


@dataclass(frozen=True)
class _Constants:
    """The tensors of a graph, and the buffers with their values."""

    tensors: list[_Table]
    buffers: list[_Table]

    def read(self, place: int, dimensions: int) -> tuple[str, Tensor]:
        """Return the first name and the values of a constant tensor as float32. Raises ValueError for another tensor."""
        if not 0 <= place < len(self.tensors):
            raise ValueError(f"a convolution has tensor {place} of {len(self.tensors)}")
        tensor = self.tensors[place]
        name = tensor.bytes(3).decode().partition(";")[0]
        if not name.isprintable():
            raise ValueError(f"tensor {place} has a name that is not printable")
        kind, shape, buffer = tensor.number(1, "b"), tensor.numbers(0), tensor.number(2, "I")
        if kind not in DTYPES:
            raise ValueError(f"tensor {name} is neither float16 nor float32; quantised models are not supported")
        content = self.buffers[buffer].bytes(0) if buffer < len(self.buffers) else b""
        if not content:
            raise ValueError(f"tensor {name} is not a constant")
        values = np.frombuffer(content, DTYPES[kind])
        if len(shape) != dimensions or min(shape) < 1 or np.prod(shape, dtype=object) != len(values):
            raise ValueError(f"tensor {name} has the shape {tuple(shape)} and {len(values):,} values")
        return name, torch.from_numpy(values.astype(np.float32).reshape(shape))


@dataclass(frozen=True)
class _Table:
    """A table of a FlatBuffer at byte `at`. Fields have the numbers of the schema; a missing one is 0 or empty.

    Methods raise ValueError for places outside the file.
    """

    data: bytes
    at: int

    def number(self, field: int, form: str) -> int:
        """Return a whole number of the form of `struct`."""
        place = self._place(field)
        return _number(self.data, place, form) if place else 0

    def numbers(self, field: int) -> list[int]:
        """Return a vector of 32-bit whole numbers."""
        start, count = self._vector(field, 4)
        return list(struct.unpack_from(f"<{count}i", self.data, start))

    def bytes(self, field: int) -> bytes:
        """Return a vector of bytes or a text."""
        start, count = self._vector(field, 1)
        return self.data[start : start + count]

    def tables(self, field: int) -> list[_Table]:
        """Return a vector of tables."""
        start, count = self._vector(field, 4)
        if count > MAX_TABLES:
            raise ValueError(f"it has {count:,} tables of a kind, and {MAX_TABLES:,} are allowed")
        places = range(start, start + 4 * count, 4)
        return [_Table(self.data, place + _number(self.data, place, "I")) for place in places]

    def _place(self, field: int) -> int:
        """Return the place of a field; 0 if the table does not have it."""
        places = self.at - _number(self.data, self.at, "i")
        if 4 + 2 * field + 2 > _number(self.data, places, "H"):
            return 0
        offset = _number(self.data, places + 4 + 2 * field, "H")
        return self.at + offset if offset else 0

    def _vector(self, field: int, size: int) -> tuple[int, int]:
        """Return the start and the length of a vector with items of `size` bytes."""
        place = self._place(field)
        if not place:
            return 0, 0
        place += _number(self.data, place, "I")
        count = _number(self.data, place, "I")
        if place + 4 + size * count > len(self.data):
            raise ValueError(
                f"it ends at byte {len(self.data):,}, within {count:,} items of {size} bytes; was it cut off?"
            )
        return place + 4, count


def _number(data: bytes, place: int, form: str) -> int:
    """Return the number at a place. Raises ValueError if it is outside the data."""
    if not 0 <= place <= len(data) - struct.calcsize(f"<{form}"):
        raise ValueError(f"it refers to byte {place:,} of {len(data):,}; was it cut off?")
    number: int = struct.unpack_from(f"<{form}", data, place)[0]
    return number
