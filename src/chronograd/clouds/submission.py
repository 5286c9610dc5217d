"""A job with its platform options, independent of any platform; and its form in a command line.

A platform starts one process on each node: `python -m chronograd.clouds.entry FIELD=VALUE...`. The fields are those that the
job states. Values are JSON of plain ASCII without characters that a shell, Kubernetes or a template would interpret.
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
# Sections of a job whose fields are written individually; the others are a single field.
SECTIONS = ("network", "data", "training", "cluster", "communication", "reinforcement")
# The argument for words without a field on a platform, as one JSON object.
UNSAID = "launch"
# Arguments with paths in the container; they follow from the other fields.
PLACES = ("mount", "run", "out", "meet", "nodes")
# Inside JSON's strings anything else becomes \\uXXXX.
_NOT_SAFE = re.compile(r"""[^\w .,:{}\[\]"/+=@\\-]""", re.ASCII)
_PLAIN = re.compile(r"[A-Za-z][\w./:@+-]*", re.ASCII)


class Submission(BaseModel):
    """A request to one platform: the job, and options that are independent of any platform. A platform's file has the same
    content.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    job: Job
    name: str
    """Any text; if a platform allows fewer characters, the arguments have the full text."""
    image: str = ""
    """The container image, or for watsonx the name of a software specification. It has Chronograd installed."""
    framework_version: str | None = None
    code: str | None = None
    """Reference to your code stored on the platform, if it requires one: the model definition of watsonx."""
    instance: str
    """Name of the instance type in the platform's catalogue."""
    nodes: int
    devices: int
    """GPUs of a node; 0 on CPUs."""
    disk_gb: int = 100
    """Temporary disk space of a node."""
    data: dict[str, str] = Field(default_factory=dict)
    """Channels: name and address. `data` replaces the path in `data.name`, `weights` that in `network.weights`."""
    output: str | None = None
    """Address of the run directory after the job has ended."""
    checkpoints: str | None = None
    """Address that survives an interruption; it holds the run directory while the job runs."""
    limit_s: int | None = None
    max_cost_usd: float | None = None
    """Upper limit on the cost, which shortens the time limit."""
    spot: bool = False
    restarts: int = 0
    """Number of times that the platform restarts the job after a failure."""
    environment: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict)
    """Variable and the reference of a secret stored on the platform, never its value."""
    tags: dict[str, str] = Field(default_factory=dict)
    role: str | None = None
    """Role or service account of the job."""
    project: str | None = None
    """Project, space or namespace of the job."""

    @property
    def framework(self) -> str:
        """Return the framework that trains, which follows from the backend."""
        return "tensorflow" if self.job.backend.startswith("tf_") else "pytorch"

    @property
    def cores(self) -> int | None:
        """Return the CPU cores of a node's ranks, if the job has GPUs and states its threads."""
        threads, ranks = self.job.cluster.threads, 1 if self.job.backend == "data_parallel" else self.devices
        return threads * ranks if threads and ranks and self.devices else None


_SHORT = {"disk_gb": "disk", "limit_s": "time", "max_cost_usd": "max_cost", "environment": "env", "secrets": "secret",
          "tags": "tag"}  # fmt: skip
# The words that a user states, and the option of `chronograd launch` for each.
OPTIONS = {name: _SHORT.get(name, name) for name in Submission.model_fields if name not in ("job", "nodes", "devices")}


def submission(job: Job, catalogue: InstanceCatalogue, cores: int = 0, **options: Any) -> Submission:
    """Place a job on instances of a platform. `options` are fields of `Submission`; those that are None are left out.

    Args:
        cores: virtual CPUs that a node needs, see `choose`.

    Raises: InputError if the platform has no instances that fit, or a cost limit is set and no price is known.
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
    """Return the time limit, or the time that the cost limit pays for if that is less."""
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
    """Return the dollars per hour of all nodes, from the job's price of a device, else the price table; None if neither has
    one.
    """
    if job.cluster.price_usd_per_hour is not None:
        return job.cluster.price_usd_per_hour * max(1, instance.count) * nodes
    if not catalogue.vendor or not instance.priced_as:
        return None
    offers = market.offers(instance.device, "spot" if spot else "on-demand")
    own = [p for p in offers if p.vendor == catalogue.vendor and p.instance == instance.priced_as]
    return float(own[0].usd_per_hour(instance.count)) * nodes if own else None


# -- fields in a command line --------------------------------------------------------------------------


def encode(value: Any) -> str:
    r"""Return a value as one word of safe characters: a plain name unchanged, other values as JSON.

    >>> encode("resnet20"), encode(0.1), encode("$(rm)")
    ('resnet20', '0.1', '"\\u0024\\u0028rm\\u0029"')
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and decode(value) == value:
        return value
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return _NOT_SAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def decode(text: str) -> Any:
    """Return the value of an `encode`d word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def job_fields(job: Job) -> dict[str, str]:
    """Return the fields that a job states, `training.batch` and so on, with their values encoded."""
    fields: dict[str, str] = {}
    for section, value in jobs.stated(job).items():
        if section in SECTIONS:
            fields.update({f"{section}.{name}": encode(own) for name, own in value.items()})
        else:
            fields[section] = encode(value)
    return fields


def job_of(fields: Mapping[str, str]) -> Job:
    """Return the job of `job_fields`. Raises JobError."""
    data: dict[str, Any] = {}
    for name, text in fields.items():
        section, dot, field = name.partition(".")
        if dot:
            data.setdefault(section, {})[field] = decode(text)
        else:
            data[name] = decode(text)
    return jobs.from_dict(data, "the job in the file")


def words_of(fields: Mapping[str, str]) -> list[str]:
    """Return `NAME=VALUE` for each field."""
    return [f"{name}={value}" for name, value in fields.items()]


def fields_of(words: Sequence[str]) -> dict[str, str]:
    """Return the fields of `words_of`. Raises FileFormatError for a word that is not FIELD=VALUE."""
    fields = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise FileFormatError(f"{word[:80]!r} among the arguments is not FIELD=VALUE")
        fields[name] = value
    return fields
