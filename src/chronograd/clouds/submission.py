"""A job with what a platform must know beside it, in words of no platform; and how it travels in a command line.

A platform starts one process on each node: `python -m chronograd.clouds.entry FIELD=VALUE...`. The fields are those that the
job states. Values are JSON of plain ASCII without anything that a shell, Kubernetes or a template could take for its own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from chronograd import job as jobs
from chronograd.clouds.instances import choose
from chronograd.errors import FileFormatError, InputError
from chronograd.hardware import market
from chronograd.hardware.instances import Instance, InstanceCatalogue
from chronograd.job import Job

ENTRY = ("python", "-m", "chronograd.clouds.entry")
# Sections of a job whose fields are written one by one; all else is a field itself.
SECTIONS = ("network", "data", "training", "cluster", "communication", "reinforcement")
# What has no field on a platform travels here, as one JSON object.
UNSAID = "launch"
# Arguments that say where things are in the container; they follow from the rest.
PLACES = ("mount", "run", "out", "meet", "nodes")
# Inside JSON's strings anything else becomes \\uXXXX.
_NOT_SAFE = re.compile(r"""[^\w .,:{}\[\]"/+=@\\-]""", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z][\w./:@+-]*", re.ASCII)


class Submission(BaseModel):
    """What one platform is asked for: the job, and the rest in words of no platform. A file of a platform says the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    job: Job
    name: str
    """Any text; a platform that takes less has the text itself among the arguments."""
    image: str = ""
    """The container image, or of watsonx the name of a software specification. It has this package installed."""
    framework_version: str | None = None
    code: str | None = None
    """What the platform keeps of one's own code, where it wants to be told: the model definition of watsonx."""
    instance: str
    """Name of the instance type in the platform's catalogue."""
    nodes: int
    devices: int
    """GPUs of a node; 0 on CPUs."""
    disk_gb: int = 100
    """Of a node, for what is not kept."""
    data: dict[str, str] = Field(default_factory=dict)
    """Channels: name and address. `data` takes the place of the path in `data.name`, `weights` of `network.weights`."""
    output: str | None = None
    """Address of what is left when the job has ended: the run directory."""
    checkpoints: str | None = None
    """Address that outlives an interruption; the run directory is there while the job runs."""
    limit_s: int | None = None
    max_cost_usd: float | None = None
    """The time limit is no longer than this pays for."""
    spot: bool = False
    restarts: int = 0
    """Times that the platform starts the job again after it has failed."""
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    """Variable and the reference of a secret that the platform keeps, never its value."""
    tags: dict[str, str] = Field(default_factory=dict)
    role: str | None = None
    """Role or service account that the job acts as."""
    project: str | None = None
    """Project, space or namespace that it belongs to."""

    @property
    def framework(self) -> str:
        """What trains: it follows from the backend."""
        return "tensorflow" if self.job.backend.startswith("tf_") else "pytorch"

    @property
    def cores(self) -> int | None:
        """CPU cores of a node's ranks, where the job has GPUs and states its threads."""
        threads, ranks = self.job.cluster.threads, 1 if self.job.backend == "data_parallel" else self.devices
        return threads * ranks if threads and ranks and self.devices else None


OPTIONS = tuple(name for name in Submission.model_fields if name not in ("job", "nodes", "devices"))


def submission(job: Job, catalogue: InstanceCatalogue, cores: int = 0, **options: Any) -> Submission:
    """A job placed on instances of a platform. `options` are fields of `Submission`; those that are None are left out.

    Args:
        cores: virtual CPUs that a node needs, see `choose`.

    Raises: InputError if the platform has no instances that fit, or no price is known by which a cost could be limited.
    """
    options = {name: value for name, value in options.items() if value is not None}
    instance, nodes = choose(catalogue, job, options.pop("instance", None), cores)
    for word in ("output", "checkpoints"):
        if options.get(word):
            options[word] = options[word].rstrip("/")
    options["data"] = {name: address.rstrip("/") for name, address in options.get("data", {}).items()}
    options["limit_s"] = _limit_s(job, instance, nodes, catalogue, options)
    options.setdefault("name", f"{job.data.name.partition(':')[0]}-{Path(job.network.name).name}")
    return Submission(job=job, instance=instance.name, nodes=nodes, devices=instance.count, **options)


def _limit_s(
    job: Job, instance: Instance, nodes: int, catalogue: InstanceCatalogue, options: Mapping[str, Any]
) -> int | None:
    """The time limit, or what the cost limit pays for if that is less."""
    limit, cost = options.get("limit_s"), options.get("max_cost_usd")
    if cost is None or cost <= 0:
        return limit
    hour = usd_per_hour(job, instance, nodes, catalogue, options.get("spot", False))
    if hour is None:
        raise InputError(
            f"no price of {instance.name} is known, so {cost:g} dollars are no time limit",
            "write cluster.price_usd_per_hour=DOLLARS of one device, or give --time",
        )
    paid = max(1, math.floor(cost / hour * 3600))
    return int(paid if limit is None else min(limit, paid))


def usd_per_hour(job: Job, instance: Instance, nodes: int, catalogue: InstanceCatalogue, spot: bool) -> float | None:
    """Dollars an hour of all nodes: by the job's own price of a device, else the price table; None if neither has one."""
    if job.cluster.price_usd_per_hour is not None:
        return job.cluster.price_usd_per_hour * max(1, instance.count) * nodes
    if not catalogue.vendor or not instance.priced_as:
        return None
    offers = market.offers(instance.device, "spot" if spot else "on-demand")
    own = [p for p in offers if p.vendor == catalogue.vendor and p.instance == instance.priced_as]
    return float(own[0].usd_per_hour(instance.count)) * nodes if own else None


# -- fields in a command line --------------------------------------------------------------------------


def encode(value: Any) -> str:
    """A value as one word of safe characters: a plain name as it is, all else as JSON.

    >>> encode("resnet20"), encode(0.1), encode("$(rm)")
    ('resnet20', '0.1', '"\\\\u0024\\\\u0028rm\\\\u0029"')
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and decode(value) == value:
        return value
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return _NOT_SAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def decode(text: str) -> Any:
    """What `encode` wrote."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def job_fields(job: Job) -> dict[str, str]:
    """The fields that a job states, `training.batch` and so on, with their values encoded."""
    fields: dict[str, str] = {}
    for section, value in jobs.stated(job).items():
        if section in SECTIONS:
            fields.update({f"{section}.{name}": encode(own) for name, own in value.items()})
        else:
            fields[section] = encode(value)
    return fields


def job_of(fields: Mapping[str, str]) -> Job:
    """The job that `job_fields` wrote. Raises JobError."""
    data: dict[str, Any] = {}
    for name, text in fields.items():
        section, dot, field = name.partition(".")
        if dot:
            data.setdefault(section, {})[field] = decode(text)
        else:
            data[name] = decode(text)
    return jobs.from_dict(data, "the job in the file")


def words_of(fields: Mapping[str, str]) -> list[str]:
    """`NAME=VALUE` for each field."""
    return [f"{name}={value}" for name, value in fields.items()]


def fields_of(words: Sequence[str]) -> dict[str, str]:
    """What `words_of` wrote. Raises FileFormatError for a word that is none."""
    fields = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise FileFormatError(f"{word[:80]!r} among the arguments is not FIELD=VALUE")
        fields[name] = value
    return fields
