"""Times of a network's layers on the device of this machine, in this process: `measure layers`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch

from chronograd.answer import Answer, Column, Section, Table
from chronograd.count.layers import layers as counted_layers
from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError, InputError, RunError
from chronograd.figure import Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.measure import environment
from chronograd.measure.layer_clock import Key, PassTimes, product_seconds, time_passes
from chronograd.measure.layer_times import OUTSIDE, LayerTime, LayerTimes, Product
from chronograd.models import registry
from chronograd.models.layout import laid_out, lay_out
from chronograd.predict.calibration import Calibration
from chronograd.predict.compute import operator_seconds, phase_seconds
from chronograd.predict.relatives import calibration_for
from chronograd.trace import CONV_KINDS, Operator, Trace
from chronograd.train.rank_context import RankContext, rank_context_from_environment
from chronograd.train.step import AUTOCAST, DTYPES, autocast, set_matrix_arithmetic
from chronograd.units import percent, seconds, whole_percent
from chronograd.words import kind_name, time_unit

Say = Callable[[str], None]


def measure_layers(
    job: Job, *, repeats: int = 20, warmup: int = 5, on: str | None = None, say: Say = lambda text: None
) -> LayerTimes:
    """Time the layers of a job's network in inference, at the job's batch: with and without waiting, the whole pass, and
    products alone.

    Args:
        repeats, warmup: timed passes of each kind, after this number of others.
        on: a device of the catalogue to predict for; by default this machine's, if it is known.
        say: called with a word about the progress.

    Raises: as `trace_job`; InputError for a device that this machine lacks; RunError if memory is full.
    """
    if job.cluster.count != 1:
        raise InputError(f"cluster.count is {job.cluster.count}", "layers are timed on one device: cluster.count=1")
    if job.training.compile:
        raise InputError("a compiled network has no separate layers", "leave training.compile out")
    job = changed(job, ["mode=inference"])
    say("counting the work of the network")
    trace = trace_job(job)
    place = rank_context_from_environment(job)
    try:
        return _timed(job, trace, place, repeats, warmup, on, say)
    except torch.cuda.OutOfMemoryError as error:
        raise RunError(f"{job.network.name} at batch {job.training.batch} does not fit memory: {error}") from None


def _timed(
    job: Job, trace: Trace, place: RankContext, repeats: int, warmup: int, on: str | None, say: Say
) -> LayerTimes:
    training, device = job.training, place.device
    calibration, on_device, why_not = _calibration(job, place, on)
    operators = _launched(trace)
    say(f"timing {warmup} + {repeats} passes of each kind")
    times = _passes(job, operators, device, repeats, warmup)
    say("timing matrix products separately")
    products = _products_s(trace, operators, training.batch, device, AUTOCAST.get(training.precision, torch.float32))
    predicted: dict[Key, float] = {}
    pass_s = None
    if calibration is not None:
        pass_s, predicted = predicted_pass(trace, training.batch, calibration)
    described = {(row.name, row.call): row for row in counted_layers(trace, training.batch)}
    rows = []
    for key, synchronised_s in times.synchronised_s.items():
        layer = described.get(key)
        product, product_s = products.get(key, (None, None))
        rows.append(
            LayerTime(
                name=key[0],
                call=key[1],
                module=layer.module if layer else "",
                kind=layer.kind if layer else "",
                flops=layer.flops + layer.vector_flops if layer else 0,
                synchronised_s=synchronised_s,
                unsynchronised_s=times.unsynchronised_s[key],
                product=product,
                product_s=product_s,
                predicted_s=predicted.get(key, 0.0) if predicted else None,
            )
        )
    return LayerTimes(
        network=job.network.name,
        device=device.type,
        device_name=_name_of(device),
        threads=place.threads,
        batch=training.batch,
        precision=training.precision,
        channels_last=training.channels_last,
        input_shape=list(card(job.data).shape),
        repeats=repeats,
        whole=times.whole,
        issued=times.issued,
        queued=times.queued,
        synchronised=times.synchronised,
        unsynchronised=times.unsynchronised,
        layers=rows,
        predicted_s=pass_s,
        predicted_on=on_device,
        why_not=why_not,
        versions=environment.versions(),
    )


def _passes(
    job: Job, operators: Mapping[Key, Sequence[int]], device: torch.device, repeats: int, warmup: int
) -> PassTimes:
    """Time the passes of the network on random samples; free its memory afterwards."""
    training, data = job.training, card(job.data)
    set_matrix_arithmetic(training.precision, device)
    torch.manual_seed(training.seed)
    network = registry.build(
        job.network.name, job.network.options, input_shape=data.shape, num_classes=data.num_classes
    )
    network.requires_grad_(False).eval().to(device)
    if training.is_pure:
        network.to(DTYPES[training.param_dtype])
    shape = (training.batch, *data.shape)
    inputs = torch.randint(data.num_classes, shape) if job.is_text else torch.randn(shape)
    inputs = inputs.to(device) if job.is_text else inputs.to(device, DTYPES[training.param_dtype])
    if training.channels_last:
        lay_out(network)
        inputs = laid_out(inputs)

    def forward() -> None:
        with torch.inference_mode(), autocast(training, device):
            network(inputs)

    # Modules that run operators themselves. Operators of the network itself belong to no layer.
    modules = dict(network.named_modules(remove_duplicate=False))
    own = {name: modules[name] for name, _ in operators if name and name in modules}
    return time_passes(forward, own, device, repeats, warmup)


def _launched(trace: Trace) -> dict[Key, list[int]]:
    """Return operators of the forward pass by their layer, in order of appearance, without views, which run nothing."""
    operators: dict[Key, list[int]] = defaultdict(list)
    for index, op in enumerate(trace.operators):
        if op.phase == "forward" and op.kind != "view":
            operators[(op.module, op.call)].append(index)
    return dict(operators)


def product_of(op: Operator, trace: Trace, batch: int) -> Product | None:
    """Return the matrix product of a convolution or a linear layer; None for another operator, and for a transposed
    convolution.
    """
    attributes = op.attributes
    out = trace.tensors[op.outputs[0]].shape_at(batch) if op.outputs else ()
    if op.kind in CONV_KINDS and attributes and not attributes["transposed"]:
        groups = attributes["groups"]
        return Product(
            m=attributes["out_channels"] // groups,
            n=out[0] * math.prod(out[2:]),
            k=attributes["in_channels"] // groups * math.prod(attributes["kernel"]),
            groups=groups,
        )
    if op.kind == "gemm" and out:
        depth = op.macs.at(batch) // math.prod(out)
        return Product(m=out[-1], n=math.prod(out[:-1]), k=depth) if depth else None
    return None


def _products_s(
    trace: Trace, operators: Mapping[Key, Sequence[int]], batch: int, device: torch.device, dtype: torch.dtype
) -> dict[Key, tuple[Product, float]]:
    """Return the product of each layer that has one, and its seconds; products of the same size are timed once."""
    known: dict[Product, float] = {}
    timed: dict[Key, tuple[Product, float]] = {}
    for key, indices in operators.items():
        products = [product_of(trace.operators[i], trace, batch) for i in indices]
        for product in filter(None, products):
            if product not in known:
                known[product] = product_seconds(product, device, dtype)
            timed[key] = product, timed.get(key, (product, 0.0))[1] + known[product]
    return timed


def _calibration(job: Job, place: RankContext, on: str | None) -> tuple[Calibration | None, str, str]:
    """Return the calibration of the device, its title, and why there is none. Raises NotFoundError for an unknown name."""
    named = None if on is None else catalog.device(on)
    try:
        device = named or _device_here(place.device)
        training = job.training
        calibration = calibration_for(
            device, training.precision, place.threads, 1, mode="inference", channels_last=training.channels_last
        )
    except ChronogradError as error:
        return None, "", f"{error.message}; {error.hint}" if error.hint else error.message
    return calibration, predicted_on(device, calibration), ""


def predicted_on(device: Device, calibration: Calibration) -> str:
    """Return the title of a device and the origin of its calibration, for `LayerTimes.predicted_on`."""
    return f"{device.title}, {calibration.origin} calibration"


def _device_here(device: torch.device) -> Device:
    """Return the device of this machine. Raises InputError if the catalogue lacks it, or the processor was never calibrated."""
    name = _name_of(device)
    if device.type == "cuda":
        gpu = catalog.of_driver_name(name)
        if gpu is None:
            raise InputError(f"{name} is not in the catalogue", "name a similar device with --on")
        return gpu
    local = catalog.device("local")
    if local.kind != "cpu" or local.title != name:
        raise InputError(f"the device 'local' is not {name}", "`chronograd calibrate` measures this one")
    return local


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else environment.processor_name()


def predicted_pass(trace: Trace, batch: int, calibration: Calibration) -> tuple[float, dict[Key, float]]:
    """Return the seconds of the whole pass, launches included, and those of the device by layer.

    Operators of the network itself belong to no layer.
    """
    times = operator_seconds(trace, batch, calibration)
    by_layer: dict[Key, float] = defaultdict(float)
    for key, indices in _launched(trace).items():
        by_layer[key if key[0] else (OUTSIDE, 0)] += float(times[list(indices)].sum())
    return phase_seconds(trace, times, calibration)["forward"], dict(by_layer)


# -- the answer ------------------------------------------------------------------------------------


def layers_answer(times: LayerTimes) -> Answer[LayerTimes]:
    """Return layers as a table, their sums and the whole pass, and the prediction."""
    title = (
        f"Layers of {times.network} on {times.device_name}, batch {times.batch}, {times.precision}, "
        f"{times.repeats} passes of each kind"
    )
    notes = [] if times.predicted_s is not None else [f"not predicted: {times.why_not}"]
    return Answer(
        title, sections=[sums_section(times), layers_section(times)], data=times.to_json(), notes=notes, result=times
    )


def sums_section(times: LayerTimes) -> Section:
    """Return the whole pass and the sums over layers."""
    whole_s = times.whole.median
    rows = [
        ("whole pass, device waited for at its ends", whole_s, times.whole),
        ("until the host has asked for all of it", times.issued.median, times.issued),
        ("one of several passes in the queue", times.queued.median, times.queued),
        ("layers, device waited for after each", times.synchronised.median, times.synchronised),
        ("layers, nothing waited for", times.unsynchronised.median, times.unsynchronised),
        ("matrix products, each in a loop by itself", times.products_s, None),
    ]
    if times.predicted_s is not None and times.predicted_layers_s is not None:
        rows += [
            ("predicted: whole pass", times.predicted_s, None),
            ("predicted: sum of the layers", times.predicted_layers_s, None),
        ]
    unit, length = time_unit([value for _, value, _ in rows])
    bars = [
        Bar(
            label,
            "predicted" if label.startswith("predicted") else "measured",
            {"time": float(f"{value / length:.6g}")},
            None if spread is None else spread.low / length,
            None if spread is None else spread.high / length,
            note=seconds(value),
        )
        for label, value, spread in rows
    ]
    return Section(
        title="The whole pass and the sums over its layers",
        takeaway=sums_sentence(times),
        figure=Figure([Bars(unit, "what is timed", bars, {"time": "accent"})]),
        table=Table.of(
            rows,
            (
                Column("what is timed", lambda row: row[0]),
                Column("median", lambda row: row[1], "s"),
                Column("lowest tenth", lambda row: row[2] and row[2].low, "s", empty=""),
                Column("highest tenth", lambda row: row[2] and row[2].high, "s", empty=""),
                Column("of the whole pass", lambda row: row[1] / whole_s, format=whole_percent),
            ),
        ),
    )


def sums_sentence(times: LayerTimes) -> str:
    """Describe the differences of the sums from the whole pass."""
    whole_s = times.whole.median
    parts = (
        f"The whole pass takes {seconds(whole_s)}; its layers, with a wait after each, {seconds(times.synchronised.median)} "
        f"({percent(times.synchronised.median / whole_s, 0)}), not waited for {seconds(times.unsynchronised.median)} "
        f"({percent(times.unsynchronised.median / whole_s, 0)}), their matrix products alone {seconds(times.products_s)} "
        f"({percent(times.products_s / whole_s, 0)})"
    )
    if times.predicted_s is None:
        return f"{parts}."
    return f"{parts}; predicted {seconds(times.predicted_s)} ({percent(times.predicted_s / whole_s, 0)})."


def layers_section(times: LayerTimes) -> Section:
    """Return one row per layer, in order of execution."""
    longest = max(times.layers, key=lambda layer: layer.synchronised_s)
    share = longest.synchronised_s / sum(layer.synchronised_s for layer in times.layers)

    on = f" Predicted for {times.predicted_on}." if times.predicted_on else ""
    return Section(
        title="Layers",
        takeaway=f"{longest.label} takes longest, {seconds(longest.synchronised_s)}, {percent(share, 0)} of the waited time.",
        intro=f"Medians of {times.repeats} passes; FLOPs are 2 per MAC, and those of all other arithmetic.{on}",
        table=Table.of(times.layers, _LAYER, drop=("product m × n × k", "kind", "FLOPs")).without_empty_columns(),
    )


def _product(layer: LayerTime) -> str:
    one = layer.product
    if one is None:
        return ""
    size = f"{one.m:,} × {one.n:,} × {one.k:,}"
    return f"{one.groups} × ({size})" if one.groups > 1 else size


_LAYER = (
    Column("layer", "label"),
    Column("kind", lambda layer: kind_name(layer.kind)),
    Column("FLOPs", lambda layer: layer.flops or None, "FLOP", empty=""),
    Column("waited for", "synchronised_s", "s"),
    Column("not waited for", "unsynchronised_s", "s"),
    Column("product m × n × k", _product, format=str),
    Column("product", "product_s", "s", empty=""),
    Column("predicted", "predicted_s", "s", empty=""),
)
