"""A writer of small TFLite files for tests: tables by the numbers of their fields in TensorFlow's schema."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

CONVOLUTION, DEPTHWISE, DEQUANTISE, ADD = 3, 4, 6, 0
FLOAT32, FLOAT16, INT8 = 0, 1, 9


def tflite(root: dict[int, Any]) -> bytes:
    """Return the file of a table. A value is a number, bytes, a text, a list of numbers or a list of tables."""
    data = bytearray(b"\0\0\0\0TFL3")
    struct.pack_into("<I", data, 0, _table(data, root))
    return bytes(data)


def _table(data: bytearray, fields: dict[int, Any]) -> int:
    count = max(fields, default=-1) + 1
    places = len(data)
    data += struct.pack("<HH", 4 + 2 * count, 4 + 4 * len(fields))
    data += struct.pack(f"<{count}H", *(4 + 4 * list(fields).index(n) if n in fields else 0 for n in range(count)))
    at = len(data)
    data += struct.pack("<i", at - places) + bytes(4 * len(fields))
    for position, value in enumerate(fields.values()):
        place = at + 4 + 4 * position
        if isinstance(value, int):
            struct.pack_into("<i", data, place, value)
        else:
            struct.pack_into("<I", data, place, len(data) - place)
            _vector(data, value)
    return at


def _vector(data: bytearray, value: Any) -> None:
    data += struct.pack("<I", len(value))
    if isinstance(value, str | bytes):
        data += value.encode() if isinstance(value, str) else value
        return
    start = len(data)
    data += bytes(4 * len(value))
    for position, item in enumerate(value):
        place = start + 4 * position
        if isinstance(item, int):
            struct.pack_into("<i", data, place, item)
        else:
            struct.pack_into("<I", data, place, _table(data, item) - place)


class Model:
    """The tensors and operators of a graph, as a file at the end."""

    def __init__(self) -> None:
        self.tensors: list[dict[int, Any]] = []
        self.operators: list[dict[int, Any]] = []
        self.buffers: list[dict[int, Any]] = [{}]
        self.kinds: list[int] = []

    def constant(self, name: str, values: Any, kind: int = FLOAT32) -> int:
        array = np.asarray(values).astype({FLOAT32: "<f4", FLOAT16: "<f2", INT8: "i1"}[kind])
        self.buffers.append({0: array.tobytes()})
        return self._add({0: list(array.shape), 1: kind, 2: len(self.buffers) - 1, 3: name})

    def result(self, name: str = "x") -> int:
        return self._add({0: [1], 1: FLOAT32, 2: 0, 3: name})

    def operator(self, kind: int, inputs: list[int], output: int) -> int:
        if kind not in self.kinds:
            self.kinds.append(kind)
        self.operators.append({0: self.kinds.index(kind), 1: inputs, 2: [output]})
        return output

    def widened(self, constant: int) -> int:
        """Add an operator that converts a 16-bit constant to 32 bits; return its result."""
        return self.operator(DEQUANTISE, [constant], self.result("wide"))

    def file(self, graphs: int = 1) -> bytes:
        codes = [{0: kind, 3: kind} for kind in self.kinds]
        graph = {0: self.tensors, 1: [0], 2: [0], 3: self.operators}
        return tflite({0: 3, 1: codes, 2: [graph] * graphs, 3: "made in a test", 4: self.buffers})

    def _add(self, tensor: dict[int, Any]) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1
