"""The job of a large model from the user's words, with the usual values of the field for everything that they leave out.

The words name a packaged model, a file of Hugging Face with `KEY=VALUE` for its keys, or a job file whose `network.name` is one of
these. Short options and `FIELD=VALUE` set fields of the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.configs import find
from chronograd.configs.answer import length_of
from chronograd.configs.description import ModelDescription
from chronograd.configs.readers import describe
from chronograd.errors import InputError, JobError
from chronograd.hardware import catalog
from chronograd.job import Job, changed, fields_of_place, with_ranks
from chronograd.large.limits import check
from chronograd.large.setting import LargeSetting
from chronograd.words import dotted, how_many

# Fields of a job that a short option sets.
SHORT: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sequence": lambda length: {"data.shape": [length]},
    "precision": lambda name: {"large.fp8": True} if name == "fp8" else {"training.precision": name},
    "batch": lambda size: {"training.batch": size},
    "fsdp": lambda _: {"training.zero_stage": 3},
    "zero": lambda stage: {"training.zero_stage": stage},
    "tensor": lambda ranks: {"cluster.layout.tensor": ranks},
    "pipeline": lambda stages: {"cluster.layout.pipeline": stages},
    "context": lambda ranks: {"cluster.layout.context": ranks},
    "expert": lambda ranks: {"cluster.layout.expert": ranks},
    "recompute": lambda name: {"large.recompute": name},
    "lora": lambda rank: {"large.adapter_rank": rank},
    "qlora": lambda rank: {"large.adapter_rank": rank, "large.base_bits": 4},
}
RECIPE = "large-model"
# The batch of a job until its layout is known: enough for any number of ranks.
_UNKNOWN_BATCH = 10**9
# Micro-batches per pipeline stage, so that the bubble takes less than a fifth of a step.
_PER_STAGE = 4
# Fields whose other values no prediction of a large model knows, with their only value.
_ONLY = {
    "mode": "training",
    "task": "language",
    "network.weights": None,
    "network.inputs": (),
    "training.trainable": "all",
    "training.parameter_groups": (),
    "training.ema_decay": 0.0,
    "training.loss": "cross_entropy",
    "training.activation_checkpointing": "none",
    "training.noise_scale_every": 0,
    "communication.compression": "none",
}
SELECTIVE = (
    "selective recomputation as in Megatron, of the products inside attention (that of torchtitan stores every second matrix product, "
    "and needs less memory)"
)
_INSTEAD = {
    "training.activation_checkpointing": "write large.recompute=full instead",
    "mode": "`chronograd count` gives the bytes of its weights, the FLOPs of a forward pass, and the cache of a model that generates text",
}


@dataclass(frozen=True)
class AskedLarge:
    """A large model with its job.

    Attributes:
        stated: fields of the job that the user stated, such as `training.batch`.
        has_micro_batch: whether the user stated the sequences of a micro-batch.
        device: the user's name for the device, which may mean several cards.
        chosen: values that `defaults.first_that_fits` chose instead of the usual ones, in words.
        enough: changes with which a setting fits, in words, if no unstated value is enough.
    """

    setting: LargeSetting
    stated: frozenset[str] = frozenset()
    has_micro_batch: bool = False
    device: str = ""
    chosen: tuple[str, ...] = ()
    enough: tuple[str, ...] = ()

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the values that the user did not state, in words."""
        return tuple(_assumed(self.setting, self.stated, self.has_micro_batch))


def ask_large(
    what: str | os.PathLike[str] | Job,
    words: Sequence[str] = (),
    short: Mapping[str, Any] | None = None,
    place: str | None = None,
    micro_batch: int | None = None,
) -> AskedLarge:
    """Return a large model and its job, checked against each other, with the usual values for all that the user did not state.

    `defaults.first_that_fits` changes those with which it does not fit.

    Args:
        what: a job file or a job, or the reference of a large model; see `configs.find`.
        words: `FIELD=VALUE` of the job, and `KEY=VALUE` of the `config.json`.
        short: values of the options of `SHORT`.
        place: such as `8xh100`.
        micro_batch: sequences of a micro-batch.
    Raises: JobError, FileFormatError or InputError for anything that cannot be right.
    """
    fields = _fields(words)
    changes = [*_of_options(short or {}, fields), *fields, *([] if place is None else fields_of_place(place, fields))]
    is_job = isinstance(what, Job) or is_job_file(what)
    job = _job(what, changes)
    model = _model(job)
    length = length_of(model, job.network.name, _length(job), "data.shape")
    of_user = what.model_dump(mode="json", exclude_unset=True) if isinstance(what, Job) else _stated(what)
    names = {name for name, _ in dotted(jobs.override(of_user, changes))}
    batch = _batch(job, names, micro_batch, is_job=is_job)
    name = job.cluster.device
    device = [f"cluster.device={catalog.device(name).name}"] if "cluster.device" in names else []
    job = with_ranks(changed(job, [f"data.shape=[{length}]", *device, *_precision(job, names), *batch]))
    setting = LargeSetting(model, job)
    _check(setting, names)
    return AskedLarge(setting, frozenset(names), micro_batch is not None, name)


def work_of(what: str | os.PathLike[str] | Job, words: Sequence[str]) -> tuple[Job, int | None, int]:
    """Return the job of a large model, the tokens of a sequence if it states them, and the sequences of a rank in a step.

    Args:
        what: a job file or a job.
        words: as in `ask_large`.
    Raises: as `ask_large`, but the job needs no devices.
    """
    job = _job(what, _fields(words))
    is_stated = job.training.batch != _UNKNOWN_BATCH
    return job, _length(job), -(-job.training.batch // with_ranks(job).replicas) if is_stated else 1


def _fields(words: Sequence[str]) -> list[str]:
    """Return `FIELD=VALUE` of the job as they are, and `KEY=VALUE` of the `config.json` as fields of the job."""
    return [word if _is_field(word) else f"network.options.{word}" for word in words]


def _job(what: str | os.PathLike[str] | Job, changes: Sequence[str]) -> Job:
    """Return the job of a large model with changes, and with the usual values of the fields that it does not state."""
    is_file = not isinstance(what, Job) and is_job_file(what)
    where = "the job" if isinstance(what, Job) else f"{'' if is_file else 'the job of '}{os.fspath(what)}"
    return jobs.from_dict(_filled(jobs.override(_stated(what), changes)), where)


def with_changes(setting: LargeSetting, changes: Sequence[str]) -> LargeSetting:
    """Return a setting with other fields of its job. The batch stays, and so does the micro-batch, unless they change it.

    Raises: JobError if the setting is impossible.
    """
    job = changed(setting.job, changes)
    if not any(change.startswith(("training.batch=", "training.accumulation=")) for change in changes):
        parts = max(job.training.batch // (job.replicas * setting.micro_batch), 1)
        job = changed(job, [f"training.accumulation={parts}"])
    other = replace(setting, job=job)
    check(other)
    return other


def is_job_file(what: str | os.PathLike[str]) -> bool:
    """Return whether this is a job file rather than the reference of a large model, which may be a path as well."""
    return jobs.is_job_file(what) and find.find(what) is None


def _is_field(word: str) -> bool:
    """Return whether a word sets a field of the job, or nothing; else it sets a key of the `config.json`."""
    key, sign, _ = word.partition("=")
    return not sign or key.partition(".")[0].strip() in Job.model_fields


def _stated(what: str | os.PathLike[str] | Job) -> dict[str, Any]:
    """Return the fields that a job states, or a job of a named model with nothing else."""
    if isinstance(what, Job):
        return jobs.resolved(what)
    return jobs.plain(Path(what)) if is_job_file(what) else {"network": {"name": find.packaged_name(os.fspath(what))}}


def _of_options(short: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """Return short options as `FIELD=VALUE`. Raises InputError for two that set the same field."""
    setters = {word.partition("=")[0].strip(): word for word in fields}
    found = []
    for option, value in short.items():
        for field, own in SHORT[option](value).items():
            if field in setters:
                raise InputError(f"{setters[field]} and --{option} both set {field}", "give one of them")
            setters[field] = f"--{option}"
            found.append(f"{field}={own}")
    return found


def _filled(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stated fields with the usual ones of a large model."""
    usual: dict[str, dict[str, Any]] = {
        "network": {},
        "data": {"name": jobs.TOKENS},
        "training": {"recipe": RECIPE, "batch": _UNKNOWN_BATCH},
        "large": {},
    }
    given = {name: {} if stated.get(name) is None else stated[name] for name in usual}
    sections = {name: {**usual[name], **own} if isinstance(own, dict) else own for name, own in given.items()}
    return {"task": "language", **stated, **sections}


def _model(job: Job) -> ModelDescription:
    path = find.find(job.network.name)
    if path is None:
        raise JobError(
            f"network.name is {job.network.name}, which is no large model", "name a config.json, or such as llama-3-8b"
        )
    return describe(find.load(Path(path)), job.network.name, job.network.options)


def _length(job: Job) -> int | None:
    shape = job.data.shape
    if shape is not None and len(shape) != 1:
        raise JobError(f"data.shape is {list(shape)}, and a large model reads rows of tokens", "write [8192]")
    return None if shape is None else shape[0]


def _batch(job: Job, stated: set[str], micro_batch: int | None, *, is_job: bool) -> list[str]:
    """Return the batch and its number of micro-batches as overrides. Raises InputError for a contradiction.

    A job, or a job file, without `training.accumulation` has one micro-batch, as for all networks.
    """
    replicas, parts = job.replicas, job.training.accumulation
    has_parts = "training.accumulation" in stated
    layout = job.cluster.layout
    if "training.batch" not in stated:
        if not has_parts and not is_job and layout is not None and layout.pipeline > 1:
            parts = _PER_STAGE * layout.pipeline
        return [f"training.batch={replicas * parts * (micro_batch or 1)}", f"training.accumulation={parts}"]
    batch = job.training.batch
    if micro_batch is None and (has_parts or is_job):
        return []
    own = replicas * (micro_batch or 1)
    if batch % own or (has_parts and micro_batch is not None and batch != own * parts):
        raise InputError(
            f"a batch of {batch:,} sequences cannot be divided into micro-batches of {micro_batch or 1} on "
            f"{how_many(replicas, 'data-parallel ranks')}" + (f" in {how_many(parts, 'parts')}" if has_parts else ""),
            f"write a multiple of {own}, or another --micro-batch",
        )
    return [f"training.accumulation={batch // own}"]


def _precision(job: Job, stated: set[str]) -> list[str]:
    """Return fp16 as an override if the user states no precision and the device has no bf16."""
    peaks = catalog.device(job.cluster.device).peak_flops_per_s if "cluster.device" in stated else {}
    is_open = not stated & {"training.precision", "training.recipe"}
    return ["training.precision=fp16"] if is_open and "fp16" in peaks and "bf16" not in peaks else []


def _check(setting: LargeSetting, stated: set[str]) -> None:
    """Raise InputError for fields that no prediction of a large model knows, and for an impossible layout."""
    job = setting.job
    if "cluster.device" not in stated:
        raise InputError(f"on which devices does {job.network.name} train?", "add --on, such as --on 8xh100")
    device = catalog.device(job.cluster.device)
    device.check_predicted()
    if device.kind != "gpu":
        raise InputError(f"{device.name} is no GPU, and a large model is predicted on GPUs", "such as --on 8xh100")
    device.peak(job.training.precision)
    for field, only in _ONLY.items():
        value = attrgetter(field)(job)
        if value != only:
            raise JobError(
                f"{field} is {value}, which is not predicted for a large model",
                _INSTEAD.get(field, f"leave {field} out"),
            )
    if job.backend not in ("single", "ddp"):
        instead = "backend=ddp training.zero_stage=3 (or --fsdp)" if job.backend == "fsdp" else "backend=ddp"
        raise JobError(f"backend is {job.backend}, which is not predicted for a large model", f"write {instead}")
    check(setting)


def _assumed(setting: LargeSetting, stated: frozenset[str], has_micro_batch: bool) -> list[str]:
    """Return the values that the user did not state, in words."""
    training, cluster = setting.training, setting.job.cluster
    node = catalog.device(cluster.device).node
    has_nodes = setting.ranks > (cluster.per_node or node.devices_per_node)
    sizes = (
        [] if has_micro_batch else [f"micro-batches of {how_many(setting.micro_batch, 'sequences')} (--micro-batch)"]
    )
    sizes.append(f"{how_many(setting.micro_batches, 'micro-batches')} per rank and step (--batch)")
    words = {
        "data.shape": f"sequences of {how_many(setting.sequence, 'tokens')}{'' if setting.model.is_fixed else ' (--sequence)'}",
        "training.batch": "; ".join(sizes),
        "training.accumulation": sizes[0] if "training.batch" in stated and not has_micro_batch else "",
        "training.optimizer": "AdamW" if training.optimizer == "adamw" else "",
        "training.precision": f"{training.precision} mixed precision (--precision)",
        "training.zero_stage": _sharding(setting, stated),
        "cluster.per_node": f"{node.devices_per_node} devices per node (cluster.per_node)" if has_nodes else "",
        "cluster.link": f"nodes joined by {node.inter_link} (cluster.link)" if has_nodes else "",
        "large.attention": "fused attention (large.attention)",
        "large.kernels": "fused norms and loss, as in Megatron (large.kernels=eager is Transformers)",
        "large.recompute": f"{recomputation(setting)} (--recompute)",
        "": SELECTIVE if setting.options.recompute == "selective" else "",
        "large.loss": "all logits in memory (large.loss)",
    }
    if "training.recipe" in stated:
        words |= {"training.optimizer": "", "training.precision": ""}
    return [text for name, text in words.items() if text and name not in stated]


def sharding(setting: LargeSetting) -> str:
    """Return the sharding over the data-parallel ranks in words."""
    return ("not sharded", "optimizer states sharded", "gradients sharded", "fully sharded")[
        setting.training.zero_stage
    ]


def recomputation(setting: LargeSetting) -> str:
    """Return the recomputation in words."""
    return {"none": "no"}.get(setting.options.recompute, setting.options.recompute) + " recomputation"


def _sharding(setting: LargeSetting, stated: frozenset[str]) -> str:
    """Return the sharding and layout if the user stated neither, in words."""
    if setting.training.zero_stage:
        return f"{sharding(setting)} over the data-parallel ranks (--fsdp, --zero)"
    has_layout = any(name.startswith("cluster.layout.") for name in stated)
    if setting.ranks == 1 or has_layout:
        return ""
    return f"data parallelism, with the whole model on each of {setting.ranks} ranks (--fsdp, --tensor, --pipeline)"
