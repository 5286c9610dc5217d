"""Notes that the reader of a prediction needs in addition to its quantities."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from chronograd.hardware.hosts import host_of
from chronograd.job import Cluster, Job
from chronograd.predict.carrying import Shown
from chronograd.predict.collectives import Topology
from chronograd.predict.memory import Memory, may_not_fit, reserve_bytes
from chronograd.predict.scaling import is_this_processor
from chronograd.predict.setting import Setting
from chronograd.record import DOES_NOT_FIT
from chronograd.trace import CONV_KINDS, Trace
from chronograd.units import memory, si
from chronograd.words import how_many, layout_name

_MUCH_OF_HOST = 0.5
MFU_ABOVE_PEAK = (
    "an MFU above 100 % is not an error: FLOPs are those of direct convolutions. Winograd's algorithm, which this device uses for 3×3 "
    "convolutions, needs fewer multiplications (down to a quarter)"
)


def only_layout(job: Job, traces: Collection[Trace]) -> list[str]:
    """Return a sentence if a search that may choose the memory layout has a trace of one layout only."""
    (first, *others) = traces
    if others or "channels_last" in job.training.model_fields_set or not first.select(kinds=CONV_KINDS):
        return []
    layout = layout_name(first.channels_last)
    return [f"Memory layout {layout} only: a saved trace has one layout; name the network to search both."]


def notes_of(
    setting: Setting,
    needed: Memory,
    shown: Shown | None = None,
    factor: float = 1.0,
    mfu: float = 0.0,
    of_host: float = 0.0,
) -> list[str]:
    """Return the notes of a predicted record.

    Args:
        needed: memory of a rank. shown: an earlier measurement of the network; times were corrected for it by `factor`.
        mfu: predicted model FLOPs utilisation. of_host: share of the time that the host sets.
    """
    carried = [] if shown is None else [_carried(shown, factor)]
    return [
        *_of_memory(setting, needed),
        *carried,
        *([_of_host(setting)] if of_host > _MUCH_OF_HOST else []),
        *_of_threads(setting),
        *_of_compiler(setting),
        *_of_noise_scale(setting),
        *([MFU_ABOVE_PEAK] if mfu > 1 else []),
    ]


def of_network(setting: Setting, parts: Mapping[str, float]) -> list[str]:
    """Return a sentence on the assumed network if exchange takes longer than every other part of a step; `parts` in seconds."""
    others = [seconds for name, seconds in parts.items() if name != "communication_exposed_s"]
    is_largest = parts["communication_exposed_s"] >= max(others)
    return assumed_network(setting.job.cluster, setting.topology) if is_largest else []


def assumed_network(cluster: Cluster, topology: Topology) -> list[str]:
    """Return a sentence that names the network between nodes, if there are several nodes and the job does not state it."""
    if cluster.link is not None or topology.num_nodes < 2:
        return []
    rate = f"{topology.inter.name}, {si(topology.inter.bandwidth_bytes_per_s, 'B/s')} per {topology.inter.per}"
    return [
        f"exchange between nodes is the largest part of a step, over the usual network of {cluster.device} ({rate}). State yours "
        "with cluster.link=NAME; `chronograd devices --links` lists the names"
    ]


def _of_memory(setting: Setting, needed: Memory) -> Iterator[str]:
    reserve = reserve_bytes(setting.device)
    if needed.total + reserve > setting.device.usable_bytes:
        yield (
            f"{DOES_NOT_FIT}: a rank needs {memory(needed.total)} plus {memory(reserve)} for the framework; "
            f"{setting.device.name} has {memory(setting.device.usable_bytes)}"
        )
        return
    if note := may_not_fit(setting.device, setting.job.mode, needed.total):
        yield note


def _carried(shown: Shown, factor: float) -> str:
    return (
        f"times are corrected by {factor:.2f}: in the measurement the network took {shown.ratio:.2f} times the "
        "predicted time, and the rest of that error counts as specific to that device and way of running"
    )


def _of_host(setting: Setting) -> str:
    """Return a note on the host that sets the time, and whether it is stated, assumed, or that of the calibration."""
    launch_s, usual = setting.calibration.host_launch_s, host_of(setting.device)
    whose = f"assumed: {usual.processor}" if launch_s == usual.launch_s(setting.job.mode) else "of its calibration"
    whose = "as stated" if setting.job.cluster.host else whose
    return (
        f"the GPU waits for the host, which issues an operator in {launch_s * 1e6:.3g} µs ({whose}); `cluster.host` states another "
        "host, or its microseconds"
    )


def _of_threads(setting: Setting) -> Iterator[str]:
    """Yield a note if the calibration used another number of threads than a rank of the job has."""
    calibrated = setting.calibration.threads
    if calibrated is None or not is_this_processor(setting.device):
        return
    threads = setting.job.cluster.threads_per_rank(setting.device.num_units, int(setting.topology.on_node))
    if threads != calibrated:
        yield (
            f"this machine was calibrated with {calibrated} {'thread' if calibrated == 1 else 'threads'} a rank, and a rank of "
            f"the job has {threads}: `chronograd calibrate` measures both"
        )


def _of_compiler(setting: Setting) -> Iterator[str]:
    """Yield a note for compiled code on a CPU that was calibrated without the layout that a compiler chooses."""
    calibration = setting.calibration
    if calibration.is_compiled and calibration.origin != "measured" and is_this_processor(setting.device):
        yield (
            "compiled code on a CPU uses channels last, and this machine was not calibrated in that layout: `chronograd calibrate "
            "--layout nchw --layout nhwc` measures both"
        )


def _of_noise_scale(setting: Setting) -> Iterator[str]:
    every = setting.job.training.noise_scale_every
    if setting.job.mode == "training" and every:
        yield f"the gradient noise scale is measured every {how_many(every, 'steps')}; its time is left out"
