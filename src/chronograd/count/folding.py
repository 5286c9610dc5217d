"""Layers in a short form for readers: repeated blocks once, and modules instead of their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from chronograd.count.layers import CountedLayer

_AMOUNTS = ("params", "activations", "macs")
_COMPARED = ("call", "kind", "output_shape", *_AMOUNTS)
REPEATED = "N ×: amounts of all N blocks; the indented rows show the first"


def at_depth(rows: Sequence[CountedLayer], depth: int, modules: Mapping[str, str]) -> list[CountedLayer]:
    """Return one row for adjacent rows of one module, named by `depth` parts, with the sums of its layers.

    Args:
        modules: class of each module, by name.
    """
    merged: list[CountedLayer] = []
    for name, group in groupby(rows, key=lambda row: ".".join(row.name.split(".")[:depth])):
        members = list(group)
        if all(row.name == name for row in members):
            merged += members
        else:
            merged.append(replace(members[-1], name=name, call=0, kind=modules.get(name, ""), **_sums(members)))
    return merged


def folded(rows: Sequence[CountedLayer], modules: Mapping[str, str], start: int = 0) -> list[CountedLayer]:
    """Merge adjacent blocks that differ only in their number: one row for all of them, and the indented rows of one.

    Receptive fields may differ; the row of all has that of the last.

    Args:
        start: index of the first part of a name that may be the number of a block.
    """
    groups = [(block, list(group)) for block, group in groupby(rows, key=lambda row: _block(row.name, start))]
    result: list[CountedLayer] = []
    while groups:
        (block, first), *groups = groups
        if block is None:
            result += first
            continue
        path, number = block
        num_like = 0
        while num_like < len(groups) and _is_like(groups[num_like], (path, number + num_like + 1), first):
            num_like += 1
        inner = folded(first, modules, len(path) + 1)
        if not num_like:
            result += inner
            continue
        members = [*first, *(row for _, group in groups[:num_like] for row in group)]
        groups = groups[num_like:]
        name = ".".join((*path, str(number)))
        kind = modules.get(name, "") if len(first) > 1 else members[-1].kind
        name_of_all = f"{num_like + 1} × {name} … {number + num_like}"
        result.append(replace(members[-1], name=name_of_all, call=0, kind=kind, **_sums(members)))
        result += [replace(row, name=f"  {_within(row.name, name)}") for row in inner] if len(first) > 1 else []
    return result


def _block(name: str, start: int) -> tuple[tuple[str, ...], int] | None:
    """Return the path of the numbered block that contains a layer, and its number."""
    parts = name.split(".")
    at = next((i for i in range(start, len(parts)) if parts[i].isdigit()), None)
    return None if at is None else (tuple(parts[:at]), int(parts[at]))


def _is_like(
    group: tuple[Any, Sequence[CountedLayer]], block: tuple[tuple[str, ...], int], first: Sequence[CountedLayer]
) -> bool:
    """Return whether a group is that block, with the same layers as the first."""

    def layers(rows: Sequence[CountedLayer]) -> list[tuple[Any, ...]]:
        return [(row.name.split(".")[len(block[0]) + 1 :], *(getattr(row, name) for name in _COMPARED)) for row in rows]

    return group[0] == block and layers(group[1]) == layers(first)


def _within(name: str, block: str) -> str:
    """Return the name of a layer within a block; a dot for the block itself."""
    return name.replace(f"{block}.", "", 1) if f"{block}." in name else "."


def _sums(rows: Sequence[CountedLayer]) -> dict[str, Any]:
    return {name: sum(getattr(row, name) for row in rows) for name in _AMOUNTS}
