"""Checks of jobs for the TensorFlow backends, and the command of their ranks. Imports neither TensorFlow nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from chronograd import trust
from chronograd.backends.plan import RankPlan, installed
from chronograd.backends.tensorflow.ports import PORTS
from chronograd.errors import JobError
from chronograd.job import GradientExchange, Job, Training
from chronograd.measure import environment

NEEDED = ("tensorflow", "keras", "torch", "safetensors", "psutil")
# Fields of `training` that these backends do not support: they accept a job only with the default.
NOT_TAKEN = (
    *(
        "augmentation",
        "trainable",
        "freeze_norm",
        "parameter_groups",
        "layer_decay",
        "accumulation",
        "ema_decay",
        "compile",
    ),
    *("activation_checkpointing", "zero_stage", "noise_scale_every"),
)
PRECISIONS = ("fp32", "tf32")


def is_there() -> tuple[bool, str]:
    """Return whether all requirements of these backends are installed. The launching process needs torch, the ranks do not."""
    return installed(NEEDED, "tensorflow")


def plan(job: Job, run: Path, arguments: Sequence[str], all_reduce: Mapping[str, bool], world_size: int) -> RankPlan:
    """Return the ranks of a job. Raises JobError for jobs that these backends cannot run.

    Args:
        all_reduce: values of `communication.all_reduce` that the backend supports, and whether each needs GPUs.
    """
    _check(job, all_reduce)
    command = trust.python("-m", "chronograd.backends.tensorflow.worker", str(run.absolute()), *arguments)
    # Keras must not choose another library; TensorFlow's log is for errors.
    return RankPlan(command, world_size, {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"})


def _check(job: Job, all_reduce: Mapping[str, bool]) -> None:
    _check_network(job)
    _check_training(job)
    chosen, communication = job.communication.all_reduce, job.communication
    if chosen not in all_reduce:
        raise JobError(
            f"communication.all_reduce is {chosen}, which backend {job.backend} does not have",
            f"it has {', '.join(all_reduce)}",
        )
    if all_reduce[chosen] and not on_gpus(job):
        raise JobError(
            f"communication.all_reduce is {chosen}, which TensorFlow does on GPUs only; this job runs on the CPU",
            f"write communication.all_reduce={next(iter(all_reduce))}",
        )
    if communication.compression != "none":
        raise JobError(
            f"communication.compression is {communication.compression}, which backend {job.backend} does not have",
            "write communication.compression=none",
        )
    if communication.bucket_bytes is not None and job.backend == "tf_mirrored":
        raise JobError(
            f"communication.bucket_bytes is {communication.bucket_bytes:,}; MirroredStrategy has no such size",
            "leave it out; tf_multiworker takes it",
        )
    defaults = GradientExchange()
    for field in ("servers", "staleness_aware"):
        if getattr(communication, field) != getattr(defaults, field):
            raise JobError(
                f"communication.{field} is {getattr(communication, field)}, which belongs to parameter servers",
                "leave it out, or write backend=parameter_server",
            )
    if job.cluster.max_restarts:
        raise JobError(
            f"cluster.max_restarts is {job.cluster.max_restarts}; backend {job.backend} does not restart by itself",
            "write cluster.max_restarts=0, and resume the run with `chronograd train --resume`",
        )


def on_gpus(job: Job) -> bool:
    """Return whether the ranks of a job on this machine use GPUs."""
    return job.cluster.device != "cpu" and bool(environment.gpus())


def _check_network(job: Job) -> None:
    name = job.network.name
    if name not in PORTS:
        raise JobError(
            f"network {name} has no Keras port, which backend {job.backend} needs",
            f"networks with a port: {', '.join(PORTS)}; other backends train any network",
        )
    if job.network.options:
        raise JobError(
            f"network.options is {job.network.options}; the Keras port of {name} has no options",
            "leave network.options out; classes and image size come from the data",
        )


def _check_training(job: Job) -> None:
    defaults = {name: Training.model_fields[name].get_default(call_default_factory=True) for name in NOT_TAKEN}
    differing = [name for name in NOT_TAKEN if getattr(job.training, name) != defaults[name]]
    if differing:
        seen = ", ".join(f"training.{name}={_shown(getattr(job.training, name))}" for name in differing)
        raise JobError(
            f"backend {job.backend} does not take {seen}",
            f"leave out {', '.join(f'training.{name}' for name in differing)}, or choose backend=ddp",
        )
    if job.training.precision not in PRECISIONS:
        raise JobError(
            f"training.precision is {job.training.precision}; backend {job.backend} has {' and '.join(PRECISIONS)}",
            "write training.precision=fp32, or choose backend=ddp",
        )


def _shown(value: object) -> str:
    return repr(value) if not hasattr(value, "model_dump") else str(value.model_dump(exclude_defaults=True))
