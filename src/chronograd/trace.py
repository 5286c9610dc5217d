"""Trace: the work of one pass of a network. Pure data that can be saved, readable without torch.

An operator is semantic: an attention or a convolution is one operator, whichever kernels a device chooses. Every amount is
affine in the batch, `const + per_sample * batch`, so one trace serves every batch. Operators are in order of execution. A
storage begins before one operator and ends after another.

FLOPs are those of matrix work (convolution, GEMM, batched GEMM, attention): 1 MAC = 2 FLOPs. All other arithmetic (norms,
elementwise, pooling, ...) counts separately as `vector_flops`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from chronograd import door
from chronograd.errors import FileFormatError, problems
from chronograd.files import as_asked, write_aside
from chronograd.units import FLOPS_PER_MAC

FORMAT = "chronograd-trace"
VERSION = 2
# Limit of an unzipped file. The largest trace of timm has 3 MB.
MOST_BYTES = 64_000_000

PHASES = ("forward", "backward", "update")
MATRIX_KINDS = (
    "conv_1x1",
    "conv_3x3",
    "conv_kxk",
    "conv_depthwise",
    "conv_grouped",
    "gemm",
    "batched_gemm",
    "attention",
    "recurrent",
)
CONV_KINDS = MATRIX_KINDS[:5]
KINDS = (
    *MATRIX_KINDS,
    "norm",
    "softmax",
    "elementwise",
    "reduction",
    "pooling",
    "gather",
    "copy",
    "view",
    "update",
    "unknown",
)
ROLES = ("parameter", "buffer", "gradient", "optimizer_state", "activation", "input")
DTYPE_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "complex32", "int32", "uint32", "qint32"), 4),
    **dict.fromkeys(("float64", "complex64", "int64", "uint64"), 8),
    "complex128": 16,
}


def one_of(words: Iterable[str]) -> Any:
    """Return a schema for the allowed values of a text field in a file."""
    return GetPydanticSchema(lambda _, __: core_schema.literal_schema(list(words)))


# Allowed values in a file: integers that still fit 63 bits, like torch's sizes, and known words.
Whole = Annotated[int, Field(strict=True, gt=-(2**62), lt=2**62)]
Index = Annotated[int, Field(strict=True, ge=0)]
Size = Annotated[int, Field(strict=True, gt=0, lt=2**62)]
Phase = Annotated[str, one_of(PHASES)]
Kind = Annotated[str, one_of(KINDS)]


class Affine(NamedTuple):
    """An amount that grows with the batch: `const + per_sample * batch`.

    >>> Affine(10, 3).at(4)
    22
    """

    const: Whole
    per_sample: Whole

    def at(self, batch: int) -> int:
        return self.const + self.per_sample * batch

    def plus(self, other: Affine) -> Affine:
        return Affine(self.const + other.const, self.per_sample + other.per_sample)

    def times(self, factor: int) -> Affine:
        return Affine(self.const * factor, self.per_sample * factor)


ZERO = Affine(0, 0)
# A file has a plain number for a dimension that does not grow with the batch.
Shape = tuple[Annotated[Affine, BeforeValidator(lambda size: (size, 0) if isinstance(size, int) else size)], ...]


@dataclass(slots=True)
class Storage:
    """One allocation. `birth` and `death` are operator ids; -1 = before the first, None = to the end."""

    bytes: Affine
    role: Annotated[str, one_of(ROLES)]
    birth: Annotated[int, Field(strict=True, ge=-1)]
    death: Index | None = None


@dataclass(slots=True)
class Tensor:
    """A view of a storage. `shape` has one `Affine` per dimension; `name` is set for parameters and buffers."""

    storage: Index
    shape: Shape
    dtype: Annotated[str, one_of(DTYPE_BYTES)]
    name: str = ""

    def shape_at(self, batch: int) -> tuple[int, ...]:
        return tuple(d.at(batch) for d in self.shape)

    def numel_at(self, batch: int) -> int:
        return math.prod(d.at(batch) for d in self.shape)


@dataclass(slots=True)
class Operator:
    """One unit of work.

    Attributes:
        name: the operator's own name, such as `convolution`.
        module: path of the innermost module that called it; `call` counts that module's calls from 0.
        inputs, outputs: tensor ids.
        macs: multiply-adds of matrix work; FLOPs are twice that.
        vector_flops: all other arithmetic, one per element and elementary operation.
        read_bytes, written_bytes: bytes that cross the memory bus if nothing is fused or cached.
        forward: in a backward operator, the id of its forward operator.
    """

    phase: Phase
    kind: Kind
    name: str
    module: str
    call: Index
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    attributes: dict[str, Any]
    macs: Affine
    vector_flops: Affine
    read_bytes: Affine
    written_bytes: Affine
    forward: Index | None = None


class Window(BaseModel):
    """Attributes of a convolution that `Trace.columns` needs."""

    in_channels: Size
    out_channels: Size
    groups: Size
    kernel: list[Annotated[Size, Field(lt=2**31)]]


class Scores(BaseModel):
    """Attributes of attention that `Trace.columns` needs."""

    head_dim: Size
    keys: Size


class Steps(BaseModel):
    """Attributes of recurrent layers that `Trace.columns` needs."""

    layers: Size
    directions: Size
    steps: Size
    depth: Size
    width: Size


_PRODUCTS: dict[str, type[BaseModel]] = {
    **dict.fromkeys(CONV_KINDS, Window),
    "attention": Scores,
    "recurrent": Steps,
}


def _from_row(form: type) -> BeforeValidator:
    """Return a validator that turns a row of a file into fields by name."""
    names = [f.name for f in fields(form)]
    return BeforeValidator(lambda row: dict(zip(names, row, strict=True)))


def _storage_row(row: Sequence[Any]) -> dict[str, Any]:
    const, per_sample, role, birth, death = row
    return {"bytes": (const, per_sample), "role": role, "birth": birth, "death": death}


@dataclass
class Trace:
    """Operators and tensors of one pass, and the settings of the trace.

    Attributes:
        network: reference of the network, such as `torchvision:vgg19`.
        mode: `training` (forward, loss, backward) or `inference` (forward in evaluation mode).
        loss: the differentiated loss.
        input_shapes: one shape per network input; the batch is the dimension with `per_sample` 1.
        modules: path → class name of every module called.
        inputs: ids of the network's input tensors; `outputs`: ids of its return values.
        notes: notes for the reader, such as assumptions and parts that could not be traced.
        keras_extra: parameters that Keras counts for the same network in addition to ours and batch norm's statistics.
        fixed_batch: set if the trace is valid for this batch only.
        channels_last: whether images and convolutions are channels last in memory.
    """

    network: str
    mode: str
    loss: str
    input_shapes: list[Shape]
    operators: list[Annotated[Operator, _from_row(Operator)]] = field(default_factory=list)
    tensors: list[Annotated[Tensor, _from_row(Tensor)]] = field(default_factory=list)
    storages: list[Annotated[Storage, BeforeValidator(_storage_row)]] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    inputs: list[Index] = field(default_factory=list)
    outputs: list[Index] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    keras_extra: dict[str, Annotated[int, Field(strict=True)]] = field(default_factory=dict)
    fixed_batch: Size | None = None
    channels_last: bool = False

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one sample of the first input, without the batch."""
        first = self.input_shapes[0] if self.input_shapes else ()
        sizes = [size for size in first if not size.per_sample]
        return tuple(size.const for size in (sizes if len(sizes) < len(first) else first[1:]))

    @property
    def takes_images(self) -> bool:
        """Return whether the only input is a batch of images: channels, height, width."""
        return len(self.input_shapes) == 1 and len(self.sample_shape) == 3

    @property
    def takes_tokens(self) -> bool:
        """Return whether the only input is a batch of rows of integers."""
        dtypes = [self.tensors[i].dtype for i in self.inputs]
        return len(self.input_shapes) == 1 and len(self.sample_shape) == 1 and dtypes in (["int64"], ["int32"])

    # -- totals ---------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Tensor]:
        """Return parameters by name, each storage once: tied weights have the name of their first use."""
        return self._named["parameter"]

    def buffers(self) -> dict[str, Tensor]:
        return self._named["buffer"]

    @cached_property
    def _named(self) -> dict[str, dict[str, Tensor]]:
        """Return parameters and buffers by name; for several tensors of one storage, the first."""
        found: dict[str, dict[str, Tensor]] = {"parameter": {}, "buffer": {}}
        seen: set[int] = set()
        for t in self.tensors:
            role = self.storages[t.storage].role
            if t.name and role in found and t.storage not in seen:
                seen.add(t.storage)
                found[role][t.name] = t
        return found

    @cached_property
    def params(self) -> int:
        """Return the number of parameters, tied ones once."""
        return sum(t.numel_at(1) for t in self.parameters().values())

    @cached_property
    def trained_params(self) -> int:
        """Return the number of parameters that receive a gradient."""
        frozen = set(self.frozen)
        return sum(t.numel_at(1) for n, t in self.parameters().items() if n not in frozen)

    def select(self, phase: str | None = None, kinds: Iterable[str] | None = None) -> list[Operator]:
        wanted = set(kinds) if kinds is not None else None
        return [
            op
            for op in self.operators
            if (phase is None or op.phase == phase) and (wanted is None or op.kind in wanted)
        ]

    def macs(self, batch: int = 1, phase: str = "forward") -> int:
        """Return the multiply-adds of one phase at a batch."""
        return sum(op.macs.at(batch) for op in self.operators if op.phase == phase)

    def flops(self, batch: int = 1, phase: str | None = None) -> int:
        """Return the FLOPs of matrix work, 2 per MAC; of all phases if `phase` is None."""
        return FLOPS_PER_MAC * sum(op.macs.at(batch) for op in self.operators if phase is None or op.phase == phase)

    def uncounted(self) -> dict[str, int]:
        """Return the number of calls of each operator whose work is unknown. Their bytes are counted."""
        return dict(Counter(op.name for op in self.operators if op.kind == "unknown"))

    def live_bytes(self, batch: int) -> np.ndarray:
        """Return the bytes alive during each operator, shape (num_operators,), without allocator and workspace."""
        n = len(self.operators)
        change = np.zeros(n + 2, dtype=np.float64)
        for s in self.storages:
            size = s.bytes.at(batch)
            change[max(s.birth, 0)] += size
            if s.death is not None:
                change[min(s.death + 1, n + 1)] -= size
        return np.cumsum(change)[: max(n, 1)]

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Return the operators as NumPy columns, for vectorised prediction. Amounts have shape (num_operators, 2).

        `name` is an index into `operator_names`. Matrix work is a product (rows × depth) · (depth × width). `depth` is the length
        of the sum for one output, and `width` is the number of outputs that share an input row. `channels_last` and `strided`
        describe the layout of data in memory. `is_plain_attention` marks attention that fused kernels support. `groups` are
        those of a convolution, 1 for other operators. `transposed` and `kernel_dims` describe its kernel. `in_turn` is the
        number of products that run one after the other: layers × directions × steps of recurrent layers, 1 for other operators.
        """
        ops = self.operators
        kind_code = {k: i for i, k in enumerate(KINDS)}
        phase_code = {p: i for i, p in enumerate(PHASES)}
        name_code = {n: i for i, n in enumerate(self.operator_names)}
        amounts = ("macs", "vector_flops", "read_bytes", "written_bytes")
        table: dict[str, np.ndarray] = {
            "kind": np.array([kind_code[o.kind] for o in ops], dtype=np.int16),
            "phase": np.array([phase_code[o.phase] for o in ops], dtype=np.int8),
            "name": np.array([name_code[o.name] for o in ops], dtype=np.int32),
        }
        for name in amounts:
            values = np.array([getattr(o, name) for o in ops], dtype=np.float64)
            table[name] = values.reshape(len(ops), 2)
        products = np.array([self._product_of(o) for o in ops], dtype=np.float64).reshape(len(ops), 2, 2)
        table["depth"], table["width"] = products[:, 0], products[:, 1]
        for name in ("channels_last", "strided", "transposed"):
            table[name] = np.array([bool(o.attributes.get(name)) for o in ops], dtype=bool)
        kernels = [o.attributes.get("kernel", ()) if o.kind in CONV_KINDS else () for o in ops]
        table["kernel_dims"] = np.array([len(kernel) for kernel in kernels], dtype=np.int64)
        table["groups"] = np.array([o.attributes.get("groups", 1) for o in ops], dtype=np.int64)
        table["in_turn"] = np.array([self._in_turn(o) for o in ops], dtype=np.int64)
        table["is_plain_attention"] = np.array(
            [o.kind == "attention" and bool(o.inputs) and len(self.tensors[o.inputs[0]].shape) == 4 for o in ops],
            dtype=bool,
        )
        return table

    @cached_property
    def operator_names(self) -> list[str]:
        """Return the distinct names of operators, in order of appearance."""
        return list(dict.fromkeys(o.name for o in self.operators))

    def _in_turn(self, op: Operator) -> int:
        a = op.attributes
        return a["layers"] * a["directions"] * a["steps"] if op.kind == "recurrent" else 1

    def _product_of(self, op: Operator) -> tuple[Affine, Affine]:
        """Return depth and width of an operator's matrix product; ones without a product."""
        one = Affine(1, 0)
        a = op.attributes
        if op.kind in CONV_KINDS and a:
            depth = a["in_channels"] // a["groups"] * math.prod(a["kernel"])
            return Affine(depth, 0), Affine(a["out_channels"] // a["groups"], 0)
        if op.kind == "attention":
            return Affine(a["head_dim"], 0), Affine(a["keys"], 0)
        if op.kind == "recurrent":
            return Affine(a["depth"], 0), Affine(a["width"], 0)
        if op.kind in ("gemm", "batched_gemm") and len(op.inputs) > 1:
            left, right = (self.tensors[i].shape for i in op.inputs[-2:])
            return (left[-1] if left else one), (right[-1] if len(right) > 1 else one)
        return one, one

    # -- files ----------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, gzipped if the name ends in `.gz`. Raises InputError."""
        path = Path(path)
        text = json.dumps(self.to_json(), separators=(",", ":")).encode()
        if path.suffix == ".gz":
            text = gzip.compress(text, mtime=0)
        with as_asked(path):
            write_aside(path, text)

    def to_json(self) -> dict[str, Any]:
        head = {k: getattr(self, k) for k in _PARTS if k not in ("storages", "tensors", "operators")}
        return {
            "format": FORMAT,
            "version": VERSION,
            **head,
            "storages": [[*s.bytes, s.role, s.birth, s.death] for s in self.storages],
            "tensors": [[t.storage, _dims(t.shape), t.dtype, t.name] for t in self.tensors],
            "operator_fields": _OPERATOR,
            "operators": [[getattr(o, f) for f in _OPERATOR] for o in self.operators],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a saved trace. Raises FileFormatError if it is not one."""
        raw = door.read_bytes(path, "a trace", most_bytes=MOST_BYTES)
        try:
            data = json.loads(raw.decode())
            if b"\\u" in raw:  # half of a surrogate pair is not valid text, and nobody could write it
                json.dumps(data, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a readable trace: {error}", _REMAKE) from None
        return cls.from_json(data, str(path))

    @classmethod
    def from_json(cls, data: Any, where: str = "trace") -> Trace:
        if isinstance(data, dict) and data.keys() & {"architectures", "model_type"}:
            raise FileFormatError(
                f"{where} is the configuration of a large model, not a trace",
                f"write `chronograd count {where}` or `chronograd predict {where} --on 8xh100`",
            )
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise FileFormatError(f"{where} is not a Chronograd trace", _REMAKE)
        if data.get("version") != VERSION:
            raise FileFormatError(f"{where} has trace version {data.get('version')!r}, not {VERSION}", _REMAKE)
        try:
            missing = [name for name in _PARTS if name not in data]
            if missing:
                raise ValueError(f"{missing[0]} is missing")
            trace: Trace = _ADAPTER.validate_python(data)
            trace._check()
        except (TypeError, ValueError) as error:
            raise FileFormatError(f"{where} is damaged: {problems(error)[0]}", _REMAKE) from None
        return trace

    def _check(self) -> None:
        """Raise ValueError unless ids point into their tables and attributes have the values that `columns` needs."""
        ids_of_operators = (i for op in self.operators for i in (*op.inputs, *op.outputs))
        most_operators = max(len(self.operators), 1)
        for what, size, ids in (
            ("tensor", len(self.tensors), (*self.inputs, *self.outputs, *ids_of_operators)),
            ("storage", len(self.storages), (t.storage for t in self.tensors)),
            ("operator", len(self.operators), (s.birth for s in self.storages)),
            ("operator", most_operators, (s.death for s in self.storages if s.death is not None)),
            ("operator", most_operators, (op.forward for op in self.operators if op.forward is not None)),
        ):
            last = max(ids, default=-1)
            if last >= size:
                raise ValueError(f"it refers to {what} {last}, but its table has {size}")
        for op in self.operators:
            if op.kind in _PRODUCTS and (op.attributes or op.kind not in CONV_KINDS):
                _PRODUCTS[op.kind].model_validate(op.attributes)


_ADAPTER = TypeAdapter(Trace)
_PARTS = [f.name for f in fields(Trace)]
_OPERATOR = [f.name for f in fields(Operator)]
_REMAKE = "create it again with `chronograd count NETWORK --out FILE`"


def _dims(shape: tuple[Affine, ...]) -> list[int | Affine]:
    return [d.const if d.per_sample == 0 else d for d in shape]
