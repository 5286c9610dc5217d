"""The setting of a prediction: a job, and the objects behind its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Link
from chronograd.hardware.hosts import host
from chronograd.job import Job
from chronograd.predict.calibration import GRAPH_LAUNCH_S, MIN_HOST_SIGMA, Calibration
from chronograd.predict.collectives import Amount, Topology, algorithm_named
from chronograd.predict.relatives import calibration_for
from chronograd.predict.scaling import USUAL_STEP_SIGMA_LOG, topology_of

# In DataParallel all parameters and gradients cross the first GPU's link, one GPU after the other, and nothing hides them.
_DATA_PARALLEL = "reduce_to_one"
# Backends whose ranks are separate processes, as ZeRO requires.
_ZERO_BACKENDS = ("single", "ddp", "fsdp")


@dataclass(frozen=True)
class Setting:
    """All inputs of a prediction except the trace: a job, and the objects behind its names.

    Numbers of ranks and samples are those of `topology` and `batch_per_rank`; they may differ from the job's, or be arrays.
    `step_sigma_log` is for `straggler_wait_s`; `exchange_tensor_s` and `exchange_meeting_s` are for `upkeep_s`. `after_wait` is
    the factor of the time of the same work on ranks that wait for each other, as measured between processes of one machine.
    `alone` is the factor of the time of a single rank, if its calibration was measured next to other ranks.
    """

    job: Job
    device: Device
    calibration: Calibration
    topology: Topology
    algorithm: str
    batch_per_rank: Amount
    step_sigma_log: float
    exchange_tensor_s: float | None = None
    after_wait: float = 1.0
    exchange_meeting_s: float | None = None
    alone: float = 1.0

    @property
    def count(self) -> int:
        return int(self.topology.num_ranks)

    @property
    def nodes(self) -> int:
        return int(self.topology.num_nodes)

    @property
    def spread(self) -> float:
        """Return `step_sigma_log` for ranks that wait for each other, and 0 for a single rank."""
        return self.step_sigma_log if self.count > 1 else 0.0

    @property
    def link(self) -> Link | None:
        """Return the slowest link of an all-reduce; None on one device."""
        return self.topology.slowest_link if self.count > 1 else None


def setting_of(job: Job, algorithm: str | None = None, device: Device | None = None) -> Setting:
    """Return the setting that a job describes. Samples are computed images, so each augmented copy counts as one.

    The all-reduce is a ring unless `algorithm` names another; `data_parallel` reduces to one and overlaps nothing.

    Raises NotFoundError and InputError for names and precisions, and for jobs that cannot be predicted.
    """
    _check_is_predicted(job)
    cluster = job.cluster
    device = device or catalog.device(cluster.device)
    device.check_predicted()
    calibration = calibration_for(
        device,
        job.training.precision,
        cluster.threads,
        cluster.count,
        mode=job.mode,
        channels_last=job.training.channels_last,
        is_compiled=job.training.compile is True,
    )
    if cluster.host is not None and calibration.host_launch_s:
        launch_s, sigma = _host(cluster.host, job.mode)
        calibration = replace(calibration, host_launch_s=launch_s, host_sigma=sigma)
    if job.training.compile == "cuda-graphs":
        if device.kind != "gpu":
            raise InputError(
                f"training.compile is cuda-graphs, but {device.name} is not a GPU",
                "write training.compile=true or false",
            )
        calibration = replace(calibration, graph_launch_s=GRAPH_LAUNCH_S)
    if job.backend == "data_parallel":
        calibration = replace(calibration, overlap=0.0)
        algorithm = algorithm or _DATA_PARALLEL
    topology = topology_of(device, cluster.count, cluster.per_node, cluster.link, cluster.intra_link)
    if job.backend == "data_parallel" and topology.num_nodes > 1:
        raise InputError(
            f"backend data_parallel is one process on one machine, but cluster.count is {cluster.count} and a machine of "
            f"{device.name} has {topology.per_node}",
            f"write cluster.count={topology.per_node} or less, backend=ddp, or cluster.per_node={cluster.count} if your machine has {cluster.count}",
        )
    measured = device.calibration or {}
    tensor_s, meeting_s = (_seconds_of(measured, f"exchange_{of}_s") for of in ("tensor", "meeting"))
    # Without measurements, steps of GPUs vary like published ones.
    usual_spread = USUAL_STEP_SIGMA_LOG if device.kind == "gpu" else 0.0
    measured_spread = float(measured.get("step_sigma_log", usual_spread))
    return Setting(
        job,
        device,
        calibration,
        topology,
        algorithm_named(algorithm or "ring"),
        job.images_per_rank,
        measured_spread if cluster.step_sigma_log is None else cluster.step_sigma_log,
        tensor_s if job.backend in _ZERO_BACKENDS else None,
        float(measured.get("after_wait", 1.0)),
        meeting_s,
        _alone(calibration, measured),
    )


def _host(stated: str | float, mode: str) -> tuple[float, float]:
    """Return the seconds in which a stated host issues an operator, and the standard deviation of their logarithm."""
    if isinstance(stated, str):
        named = host(stated)
        return named.launch_s(mode), named.sigma_log
    return 1e-6 * stated, MIN_HOST_SIGMA


def _check_is_predicted(job: Job) -> None:
    """Raise InputError for a job whose step cannot be predicted."""
    if job.training.trainable == "head":
        raise InputError(
            "training.trainable is head: training of the last layer alone cannot be predicted yet",
            "measure it, or predict it with training.trainable=all, which is an upper bound",
        )
    if job.training.freeze_norm:
        raise InputError(
            "training.freeze_norm is true: a step without the statistics of batches cannot be predicted yet",
            "measure it, or leave the field out: that step takes a little longer",
        )
    if job.backend == "parameter_server":
        raise InputError(
            "backend is parameter_server, whose workers do not wait for each other; only synchronous steps can be predicted",
            "fit its speed from runs with `chronograd fit speed`, see what more workers do with `chronograd simulate "
            "speed`, or predict backend=ddp",
        )
    if job.backend == "tensor_parallel":
        raise InputError(
            "backend is tensor_parallel, whose step time is predicted for large models only",
            "name the config.json of the model, such as `chronograd predict llama-3-8b --on 8xh100 --tensor 2`, or measure the job",
        )
    if job.training.zero_stage and job.backend not in _ZERO_BACKENDS:
        raise InputError(
            f"training.zero_stage is {job.training.zero_stage}, but backend {job.backend} stores the whole state on every device",
            f"write training.zero_stage=0, or backend={' or '.join(_ZERO_BACKENDS)}",
        )


def _alone(calibration: Calibration, measured: Mapping[str, Any]) -> float:
    """Return the time of a piece of work on one core while no other rank runs, over that while the others run, at most 1.

    `calibrate` times some blocks both ways. An older calibration has the speed of the machine between its runs and within each.
    """
    if (share := calibration.provenance.get("alone_share")) is not None:
        return float(share)
    alone_s, beside_s = _seconds_of(measured, "pace_s"), _seconds_of(calibration.provenance, "pace_s")
    if (calibration.processes or 1) == 1 or not alone_s or not beside_s:
        return 1.0
    return min(alone_s / beside_s, 1.0)


def _seconds_of(measured: Mapping[str, Any], name: str) -> float | None:
    """Return a value of a device's measurements in seconds; None if it was never measured."""
    value = measured.get(name)
    return None if value is None else float(value)
