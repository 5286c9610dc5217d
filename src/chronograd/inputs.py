"""Inputs of a network as text: `3x224x224`, `tokens:128:int64`, `step::int64`, `memory:10xNx64`, `mask:=10x10:bool`.

A word is NAME:SHAPE:DTYPE. NAME and DTYPE are optional: an input without a name is positional. SHAPE is that of one sample, and
the batch comes before it. An `N` in the shape states another place for the batch. A shape after `=` is whole: that input has no
batch. An empty shape is one number per sample.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from chronograd.errors import InputError
from chronograd.trace import DTYPE_BYTES

DTYPES = {
    **{name: name for name in DTYPE_BYTES},
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "long": "int64",
    "int": "int64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
}
# Usual losses; see `chronograd.count.losses`.
LOSSES = ("cross_entropy", "mse", "sum")
FORM = "write NAME:SHAPE:DTYPE, such as 3x224x224, tokens:128:int64, step::int64 or mask:=10x10:bool"
_SHAPE = re.compile(r"(=?)((?:\d+|N)(?:[x,](?:\d+|N))*)?")
_REFERENCE = re.compile(r".+\.py:[A-Za-z_]\w*|[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Input:
    """One tensor that a network takes.

    Attributes:
        shape: without the batch dimension.
        dtype: torch's name; empty for the network's own.
        name: of a keyword argument; empty for a positional one.
        batch_dim: place of the batch in the whole shape; None for an input that all samples share.
    """

    shape: tuple[int, ...]
    dtype: str = ""
    name: str = ""
    batch_dim: int | None = 0

    @classmethod
    def parse(cls, text: str) -> Input:
        """Read one word. Raises InputError."""
        parts = [part.strip() for part in text.split(":")]
        name = dtype = ""
        if len(parts) > 1 and parts[-1] in DTYPES and (len(parts) > 2 or _SHAPE.fullmatch(parts[0])):
            dtype = DTYPES[parts.pop()]
        if len(parts) > 1:
            name = parts.pop(0)
        found = _SHAPE.fullmatch(parts[0]) if len(parts) == 1 else None
        if found is None or not text.strip() or (name and not name.isidentifier()):
            raise InputError(f"the input {text!r} is not a shape", FORM)
        sizes = re.split("[x,]", found[2]) if found[2] else []
        if sizes.count("N") > 1 or (found[1] and "N" in sizes):
            raise InputError(f"the input {text!r} states its batch more than once", FORM)
        shape = tuple(int(size) for size in sizes if size != "N")
        if any(size < 1 for size in shape):
            raise InputError(f"input shape is {shape}", "every dimension is at least 1, such as 3,224,224")
        batch_dim = None if found[1] else sizes.index("N") if "N" in sizes else 0
        return cls(shape, dtype, name, batch_dim)

    @property
    def is_plain(self) -> bool:
        """Return whether the input states only the shape of a sample."""
        return not self.dtype and not self.name and self.batch_dim == 0

    def __str__(self) -> str:
        sizes = list(map(str, self.shape))
        if self.batch_dim:
            sizes.insert(self.batch_dim, "N")
        words = ("=" if self.batch_dim is None else "") + "x".join(sizes)
        return ":".join([*([self.name] if self.name else []), words, *([self.dtype] if self.dtype else [])])


def is_reference(text: str) -> bool:
    """Return whether a word names a function or object with the inputs, such as `FILE.py:example_inputs`."""
    try:
        Input.parse(text)
    except InputError:
        return _REFERENCE.fullmatch(text) is not None
    return False


def check_loss(word: str) -> None:
    """Raise InputError unless a word is a usual loss or names a function."""
    if word not in LOSSES and not is_reference(word):
        raise InputError(
            f"loss is {word!r}",
            f"write {', '.join(LOSSES)}, or FILE.py:NAME, a function (outputs, inputs) of one number",
        )


def check(words: Sequence[str]) -> None:
    """Raise InputError unless the words are inputs, or a single word names an object with the inputs."""
    if len(words) == 1 and is_reference(words[0]):
        return
    named = False
    for word in words:
        one = Input.parse(word)
        if named and not one.name:
            raise InputError(f"the input {word!r} has no name but follows a named input", "put positional inputs first")
        named = bool(one.name)
