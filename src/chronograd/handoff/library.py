"""A training library that starts a layout from a configuration, and a way to start it on all nodes."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chronograd.errors import InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.large.layouts import Expressible
from chronograd.large.setting import LargeSetting


@dataclass(frozen=True)
class TrainingLibrary:
    """A library that trains in the layout of a configuration.

    Attributes:
        title, version: the version whose keys are written.
        source: where the keys are documented, with the date.
        expressible: the layouts that its configuration can state.
        file: a function that returns the name of the configuration.
        write: a function that returns its text.
        start: a function that returns the shell line that each node runs; MASTER_ADDR is the address of the first node.
        refused: a function that returns other parts of a setting that it cannot state, in words.
        yours: a function that returns what the user's own program or command must set, in words.
        usual: fields that its models usually have, each with a description in words. They apply unless the user states them.
    """

    title: str
    version: str
    source: str
    expressible: Expressible
    file: Callable[[LargeSetting], str]
    write: Callable[[LargeSetting], str]
    start: Callable[[LargeSetting], str]
    yours: Callable[[LargeSetting], list[str]]
    refused: Callable[[LargeSetting], list[str]] = lambda setting: []
    usual: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Starter:
    """A way to run one shell line on every node.

    Attributes:
        file: name of the file.
        write: a function of a setting and the shell line that returns its text.
        command: how to use the file, from its folder.
    """

    file: str
    write: Callable[[LargeSetting, str], str]
    command: str


@dataclass(frozen=True)
class Nodes:
    """The nodes of a setting, all with the same number of devices."""

    count: int
    devices: int


def nodes_of(setting: LargeSetting) -> Nodes:
    """Return the nodes. Raises InputError if the devices do not fill them."""
    cluster = setting.job.cluster
    devices = min(cluster.per_node or catalog.device(cluster.device).node.devices_per_node, setting.ranks)
    if setting.ranks % devices:
        raise InputError(
            f"{setting.ranks} devices do not fill nodes of {devices}",
            f"give a multiple of {devices} devices, or cluster.per_node",
        )
    return Nodes(setting.ranks // devices, devices)


def torchrun(setting: LargeSetting, program: str) -> str:
    """Return the shell line that starts the ranks of a node by torchrun. MASTER_ADDR is the address of the first node."""
    nodes = nodes_of(setting)
    meeting = '--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:29500"' if nodes.count > 1 else "--standalone"
    return f"torchrun --nnodes={nodes.count} --nproc-per-node={nodes.devices} {meeting} {program}"


def short_name(setting: LargeSetting) -> str:
    """Return the name of the model with letters, digits and hyphens only."""
    name = Path(setting.job.network.name)
    stem = name.parent.name if name.name == "config.json" else name.stem if name.suffix == ".json" else name.name
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "model"


def names(kind: str) -> tuple[str, ...]:
    """Return the names of all `libraries` or `starters`."""
    folder = importlib.import_module(f"chronograd.handoff.{kind}")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder.__path__)))


def library(name: str) -> TrainingLibrary:
    """Return a library. Raises NotFoundError."""
    found: TrainingLibrary = _member("libraries", name).LIBRARY
    return found


def starter(name: str) -> Starter:
    """Return a way to start. Raises NotFoundError."""
    found: Starter = _member("starters", name).STARTER
    return found


def _member(kind: str, name: str):  # type: ignore[no-untyped-def]  # a module of the folder
    if name not in names(kind):
        raise NotFoundError("target of --write", name, (*names("libraries"), *names("starters")))
    return importlib.import_module(f"chronograd.handoff.{kind}.{name}")
