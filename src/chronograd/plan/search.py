"""A search over every device, way to run a step, device count, batch and all-reduce, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.hardware import market
from chronograd.hardware.catalog import Device, Precision, device, devices
from chronograd.job import Job
from chronograd.plan.settings import evaluate
from chronograd.plan.ways import Way, ways_of
from chronograd.predict.compute import without_basis
from chronograd.predict.prediction import rank_work
from chronograd.predict.setting import setting_of
from chronograd.record import ROUGH
from chronograd.trace import Trace

ALGORITHMS = ("ring", "tree")  # NCCL chooses one of these


@dataclass(frozen=True)
class SearchSpace:
    """The settings to search.

    Attributes:
        devices: see `devices_of`.
        counts: numbers of devices.
        batches: samples per step of one device.
        algorithms: all-reduce algorithms.
        precisions: see `ways_of`.
        global_batch: samples per step of all devices, instead of `batches`.
        samples: training samples in an epoch; settings with a larger global batch are left out.
    """

    devices: Sequence[Device]
    counts: Sequence[int]
    batches: Sequence[int]
    algorithms: Sequence[str] = ALGORITHMS
    precisions: Sequence[Precision] = ()
    global_batch: int | None = None
    samples: int | None = None


@dataclass(frozen=True, eq=False)
class Search:
    """Settings, and the lists that their columns index.

    Attributes:
        columns: those of `settings.evaluate`, and `way`.
        devices, ways, algorithms: the lists that these columns index.
        traces: traces by layout: channels last or not.
    """

    columns: dict[str, np.ndarray]
    devices: Sequence[Device]
    ways: Sequence[Way]
    algorithms: Sequence[str]
    traces: dict[bool, Trace]
    job: Job

    @property
    def network(self) -> str:
        return next(iter(self.traces.values())).network

    def times_as_slow(self, row: int) -> list[tuple[Way, float]]:
        """Return other ways to run a setting with their relative step time: in wider precisions, and in the other layout.

        Pure bf16 has no comparison, because its traces contain no fp32 tensors.
        """
        setting = {name: column[row].item() for name, column in self.columns.items()}
        way, on = self.ways[setting["way"]], self.devices[setting["device"]]
        plain = replace(way, precision="fp32", channels_last=False)
        others = [replace(way, channels_last=not way.channels_last)]
        if way.precision != "fp32" and way.param_dtype == "fp32":
            others = [plain, *([replace(way, precision="tf32")] if way.precision != "tf32" else []), *others]
        slowdowns = []
        for other in dict.fromkeys(others):
            if other == way or other.precision not in on.peak_flops_per_s or other.channels_last not in self.traces:
                continue
            trace, algorithm = self.traces[other.channels_last], self.algorithms[setting["algorithm"]]
            at = evaluate(trace, other.of(self.job), [on], [setting["count"]], [setting["batch_per_rank"]], [algorithm])
            slowdowns.append((other, float(at["step_time_s"][0]) / setting["step_time_s"]))
        return slowdowns

    def rough(self, row: int) -> list[str]:
        """Return sentences on parts of a setting's time that no measurement supports, as `predict` states them."""
        on, way = self.devices[self.columns["device"][row]], self.ways[self.columns["way"][row]]
        trace = self.traces[way.channels_last]
        setting = setting_of(way.of(self.job), device=on)
        times, _ = rank_work(trace, int(self.columns["batch_per_rank"][row]), setting)
        return [f"{ROUGH}: {text}" for text in without_basis(trace, times, setting.calibration)]


def devices_of(job: Job, names: Sequence[str], precisions: Sequence[Precision] = ()) -> list[Device]:
    """Return the named devices; else all GPUs that can be rented and support the given precisions."""
    if names:
        named = [device(name) for name in names]
        for one in named:
            one.check_predicted()
        return named
    asked = set(precisions) or ({job.training.precision} if "precision" in job.training.model_fields_set else set())
    is_priced = job.cluster.price_usd_per_hour is not None
    return [
        d
        for d in devices()
        if d.kind == "gpu"
        and (not asked or asked & d.peak_flops_per_s.keys())
        and (is_priced or any(offer.includes_host for offer in market.offers(d)))
    ]


def search(traces: Trace | Sequence[Trace], job: Job, space: SearchSpace) -> Search:
    """Evaluate every setting of a space, each in every way of `ways_of`.

    Args:
        traces: traces of the job's network, one for each layout to search.

    Raises: InputError as `settings.evaluate`, and for a device without any of the precisions.
    """
    by_layout = {one.channels_last: one for one in ([traces] if isinstance(traces, Trace) else traces)}
    on: dict[Way, list[int]] = {}
    for index, one in enumerate(space.devices):
        ways = list(ways_of(job, one, list(by_layout.values()), space.precisions))
        if not ways:
            one.peak(
                space.precisions[0] if space.precisions else job.training.precision
            )  # raises an error that lists its precisions
        for way in ways:
            on.setdefault(way, []).append(index)
    tables: dict[Way, dict[str, np.ndarray]] = {}
    for way, indices in sorted(on.items(), key=lambda item: item[0].activation_checkpointing, reverse=True):
        plain = tables.get(replace(way, activation_checkpointing="none"))
        if plain is not None:  # checkpointing pays only where memory is short
            short = set(plain["device"][~plain["fits"]].tolist())
            indices = [index for index in indices if index in short]
        if indices:
            own = [space.devices[index] for index in indices]
            table = evaluate(
                by_layout[way.channels_last], way.of(job), own, space.counts, space.batches, space.algorithms
            )
            tables[way] = {**table, "device": np.array(indices)[table["device"]]}
    columns = {name: np.concatenate([table[name] for table in tables.values()]) for name in next(iter(tables.values()))}
    columns["way"] = np.repeat(np.arange(len(tables)), [len(table["device"]) for table in tables.values()])
    return Search(columns, space.devices, list(tables), space.algorithms, by_layout, job)
