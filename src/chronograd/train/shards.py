"""Files of sharded tensors: each rank writes its parts, and reads the parts that it needs.

A file of a rank has the parts of that rank, and in its metadata, as JSON, the offset of each part within its tensor. Any number of
ranks can read the files of any other number. A tensor that no rank shares is in the file of rank 0, with the offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypeIs

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# Key of the metadata.
OFFSETS = "offsets"


def is_shared(tensor: Tensor) -> TypeIs[DTensor]:
    """Return whether ranks share a tensor. Its class takes half a second to import, so processes without such tensors do not."""
    return hasattr(tensor, "device_mesh")


def own_part(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Return the part of a tensor that this rank stores, and its offset."""
    if not is_shared(tensor):
        return tensor, (0,) * tensor.ndim
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(offset)


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor. Every rank has to call it if ranks share it."""
    return tensor.full_tensor() if is_shared(tensor) else tensor


def save_parts(tensors: Mapping[str, Tensor], path: Path, rank: int) -> None:
    """Save the parts of a rank; of tensors that no rank shares, only as rank 0."""
    parts = {name: own_part(t) for name, t in tensors.items() if rank == 0 or is_shared(t)}
    offsets = {name: offset for name, (_, offset) in parts.items()}
    save_tensors(
        {name: part for name, (part, _) in parts.items()}, path, {OFFSETS: json.dumps(offsets, sort_keys=True)}
    )


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Save tensors on the CPU, contiguous and without shared memory, as the format requires."""
    plain = {
        name: t.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }
    save_file(plain, path, metadata)


class PartFiles:
    """The tensors in some files, read by part. Used as a context manager.

    Raises: SafetensorError, OSError, KeyError, ValueError for files that are not of these tensors.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._open = ExitStack()
        self._parts: dict[str, list[tuple[Any, tuple[int, ...], tuple[int, ...]]]] = {}

    def __enter__(self) -> Self:
        for path in self._paths:
            file: Any = self._open.enter_context(safe_open(path, framework="pt"))
            offsets = json.loads((file.metadata() or {}).get(OFFSETS, "{}"))
            for name in file.keys():  # noqa: SIM118
                shape = tuple(file.get_slice(name).get_shape())
                self._parts.setdefault(name, []).append((file, tuple(offsets.get(name, (0,) * len(shape))), shape))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def names(self) -> list[str]:
        return sorted(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        ends = [[o + n for o, n in zip(offset, shape, strict=True)] for _, offset, shape in self._parts[name]]
        return tuple(map(max, zip(*ends, strict=True)))

    def read(self, name: str, like: Tensor) -> Tensor:
        """Return a tensor: this rank's part if `like` is shared and has its shape, otherwise the whole one."""
        if is_shared(like) and self.shape(name) == tuple(like.shape):
            tensor: Tensor = torch.empty_like(like)
        else:
            tensor = torch.empty(self.shape(name), dtype=self._parts[name][0][0].get_tensor(name).dtype)
        self.read_into(tensor, name)
        return tensor

    def read_into(self, tensor: Tensor, name: str) -> None:
        """Copy a stored tensor into this rank's part of a tensor. Raises ValueError for another shape."""
        if self.shape(name) != tuple(tensor.shape):
            raise ValueError(f"{name} has shape {self.shape(name)} there, and {tuple(tensor.shape)} here")
        part, start = own_part(tensor.detach())
        for file, offset, shape in self._parts[name]:
            low = [max(a, b) for a, b in zip(start, offset, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, part.shape, offset, shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            theirs = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offset, strict=True))
            ours = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))
            stored = file.get_slice(name)[theirs] if shape else file.get_tensor(name)
            part[ours] = cast(Tensor, stored).to(part.device)
