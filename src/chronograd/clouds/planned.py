"""The choice of `plan --platforms`, saved or printed with --json, for `launch --plan`: fields of the job, and options of the
platform.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chronograd.errors import FileFormatError, InputError, problems
from chronograd.files import read_json
from chronograd.hardware.instances import InstanceCatalogue
from chronograd.job import Job

HINT = "write one with `chronograd plan JOB --platforms aws,gcp --save plan.json`"


class Chosen(BaseModel):
    """The parts of a plan's choice that a launch needs; other parts are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cloud: str
    platform: str
    instance: str
    region: str | None
    prices: str
    device: str
    count: int = Field(ge=1)
    machines: int = Field(ge=1)
    batch_per_device: int = Field(ge=1)
    precision: str
    channels_last: bool
    compile: bool | str
    activation_checkpointing: str


class _Plan(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    network: str
    dataset: str
    chosen: Chosen | None


@dataclass(frozen=True)
class Planned:
    """A plan's choice. Attributes: path: its file. network, dataset: of the planned job."""

    path: Path
    network: str
    dataset: str
    chosen: Chosen

    def fields(self, job: Job) -> list[str]:
        """Return overrides that turn a job into the planned one. Raises InputError for another network or data set."""
        for what, planned, own in (("network", self.network, job.network.name), ("data", self.dataset, job.data.name)):
            if planned != own:
                raise InputError(f"{self.path} is a plan for {what} {planned}, and the job has {own}", "plan this job")
        one = self.chosen
        backend = ["backend=ddp"] if one.count > 1 and job.backend == "single" else []
        return [
            f"cluster.device={one.device}",
            f"cluster.count={one.count}",
            f"cluster.per_node={one.count // one.machines}",
            f"training.batch={max(1, one.count * one.batch_per_device // job.training.augmentation.copies)}",
            f"training.precision={one.precision}",
            f"training.channels_last={json.dumps(one.channels_last)}",
            f"training.compile={json.dumps(one.compile)}",
            f"training.activation_checkpointing={one.activation_checkpointing}",
            *backend,
        ]

    def options(self, known: InstanceCatalogue) -> dict[str, Any]:
        """Return instance and spot of a submission; empty for a platform without its own machines. Raises InputError."""
        spot = {"spot": self.chosen.prices == "spot"}
        if not known.vendor:
            return spot
        if known.vendor.lower() != self.chosen.cloud:
            raise InputError(
                f"{self.path} chose {self.chosen.instance} of {self.chosen.cloud}, and {known.title} has machines of {known.vendor}",
                f"launch it for {self.chosen.platform}, or plan with --platforms {known.vendor.lower()}",
            )
        return {**spot, "instance": self.chosen.instance}

    def line(self) -> str:
        """Return a sentence with the parts of the choice that a platform's file cannot hold."""
        where = f" in {self.chosen.region}" if self.chosen.region else ""
        return f"The plan of {self.path.name} is for {self.chosen.cloud}{where}, {self.chosen.prices}: submit it there."


def read(path: Path) -> Planned:
    """Read the choice from the JSON of `plan --platforms`. Raises FileFormatError, InputError without a choice."""
    try:
        data = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"cannot read the plan {path}: {error}", HINT) from None
    if isinstance(data, dict) and isinstance(data.get("data"), dict):
        data = data["data"]  # a complete saved answer
    if not isinstance(data, dict) or "chosen" not in data or "places" not in data:
        raise FileFormatError(f"{path} is no plan among platforms", HINT)
    try:
        plan = _Plan.model_validate(data)
    except ValidationError as error:
        raise FileFormatError(f"{path} is no plan among platforms: {'; '.join(problems(error, _Plan))}", HINT) from None
    if plan.chosen is None:
        raise InputError(f"the plan {path} chose nothing: no setting keeps its goal", "plan with a looser goal")
    return Planned(path, plan.network, plan.dataset, plan.chosen)
