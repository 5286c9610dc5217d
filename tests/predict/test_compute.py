"""Operator and step times in closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from chronograd import job as jobs
from chronograd.compare.scaling import predict_scaling
from chronograd.count.cached import cached_trace
from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.errors import FileFormatError, InputError
from chronograd.hardware import catalog, market
from chronograd.predict.calibration import CLASSES, PARTS, Calibration, ClassRate, calibrations, from_datasheet
from chronograd.predict.compute import Work, operator_seconds, phase_seconds, sigma_log, update_seconds
from chronograd.predict.memory import peak_memory
from chronograd.predict.prediction import predict, predict_step, rank_work
from chronograd.predict.relatives import calibration_for
from chronograd.predict.setting import setting_of
from chronograd.record import STEP_PARTS
from chronograd.trace import CONV_KINDS, PHASES, ZERO, Affine, Operator, Storage, Tensor, Trace

JOB = {
    "network": {"name": "net"},
    "data": {"name": "digits"},
    "training": {"recipe": "sgd", "batch": 8, "epochs": 2},
    "cluster": {"device": "v100"},
}


def linear_trace(rows: int = 1, depth: int = 1000, width: int = 500) -> Trace:
    """Return the trace of one linear layer: y = x·W forward, both gradients backward."""
    trace = Trace("net", "training", "sum", [])
    trace.storages = [
        Storage(Affine(4 * depth * width, 0), "parameter", -1),
        Storage(Affine(0, 4 * rows * depth), "input", -1),
        Storage(Affine(0, 4 * rows * width), "activation", 0, 1),
        Storage(Affine(4 * depth * width, 0), "gradient", 1),
    ]
    trace.tensors = [
        Tensor(0, (Affine(depth, 0), Affine(width, 0)), "float32", "weight"),
        Tensor(1, (Affine(0, rows), Affine(depth, 0)), "float32"),
        Tensor(2, (Affine(0, rows), Affine(width, 0)), "float32"),
        Tensor(3, (Affine(depth, 0), Affine(width, 0)), "float32"),
    ]
    trace.inputs, trace.outputs = [1], [2]
    macs = Affine(0, rows * depth * width)
    moved = Affine(4 * depth * width, 4 * rows * depth)
    forward = Operator("forward", "gemm", "mm", "", 0, (1, 0), (2,), {}, macs, ZERO, moved, Affine(0, 4 * rows * width))
    backward = replace(forward, phase="backward", inputs=(1, 2), outputs=(3,), forward=0)
    trace.operators = [forward, backward]
    return trace


def calibration(**changes: object) -> Calibration:
    """Return a calibration with 1 TFLOP/s, 100 GB/s, all classes at their peak, and no launch cost."""
    perfect = {name: ClassRate(compute=1.0, bandwidth=1.0, weights=1.0) for name in CLASSES}
    base = Calibration("measured", "fp32", 1e12, 1e12, 1e11, perfect, sigma=0.1)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_operator_time_is_a_smooth_maximum() -> None:
    trace, batch = linear_trace(), 64
    compute = 2 * 64 * 1000 * 500 / 1e12
    memory = (4 * 64 * 1000 + 4 * 64 * 500) / 1e11
    weights = 4 * 1000 * 500 / 1e11
    expected = (compute**4 + memory**4) ** 0.25 + weights
    assert operator_seconds(trace, batch, calibration())[0] == pytest.approx(expected, rel=1e-12)


def test_half_filled_products_run_at_half_rate() -> None:
    full = 2 * 64 * 1000 * 500 / 1e12
    for half in ({"depth": 1000.0}, {"width": 500.0}, {"rows": 64.0}, {"out_width": 1.0}):
        rates = {name: ClassRate(compute=1.0, bandwidth=1e9, weights=1e9, **half) for name in CLASSES}
        assert operator_seconds(linear_trace(), 64, calibration(classes=rates))[0] == pytest.approx(2 * full, rel=1e-6)


def test_short_image_rows_underuse_cpu_registers() -> None:
    """ResNet-20 on 8 × 8 images has rows of 8, 4 and 2 pixels, doubled if one operator computes two gradients."""
    work = Work.of(trace_network("resnet20", input_shape=(1, 8, 8), num_classes=10), 64)
    of = {phase: work.out_width[work.class_index == CLASSES.index(f"conv_3x3.{phase}")] for phase in PHASES[:2]}
    assert set(of["forward"]) == {8.0, 4.0, 2.0}
    assert set(np.round(of["backward"] ** 2)) == {64.0, 128.0, 32.0, 8.0}
    assert from_datasheet(catalog.device("cpu")).classes["conv_3x3.forward"].out_width > 0
    assert from_datasheet(catalog.device("v100")).classes["conv_3x3.forward"].out_width == 0


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_odd_dimensions_are_slower_in_half_precision(batch: int) -> None:
    """ResNet-20's classifier has 64 × 10 weights, for forward and two gradients. The batch size does not count."""
    odd, even = (trace_network("resnet20", input_shape=(3, 32, 32), num_classes=k) for k in (10, 16))
    assert Work.of(odd, batch, "bf16").is_unaligned.sum() == 3
    assert not Work.of(odd, batch).is_unaligned.any()
    assert not Work.of(even, batch, "bf16").is_unaligned.any()
    work = Work.of(odd, batch, "bf16").chosen(Work.of(odd, batch, "bf16").is_unaligned)
    aligned = replace(work, is_unaligned=np.zeros(3, dtype=bool))
    rates = calibration()
    assert work.terms(rates).compute == pytest.approx(3 * aligned.terms(rates).compute)


def test_launch_cost_and_cache_speedup() -> None:
    rates = {name: ClassRate(compute=1e9, bandwidth=1.0, weights=1e9) for name in CLASSES}
    slow = {name: replace(rate, launch_s=1e-3) for name, rate in rates.items()}
    plain = operator_seconds(linear_trace(), 1, calibration(classes=rates))[0]
    assert operator_seconds(linear_trace(), 1, calibration(classes=slow))[0] == pytest.approx(plain + 1e-3)
    cached = calibration(classes=rates, cache_bytes=1e12, cache_speedup=2.0)
    assert operator_seconds(linear_trace(), 1, cached)[0] == pytest.approx(plain / 2, rel=1e-3)


def test_host_limits_a_pass_on_a_fast_device() -> None:
    """Issue one operator forward and, at 0.7 of the cost, one backward; device time is first negligible, then dominant."""
    trace, batch = linear_trace(), 4
    issued = calibration(host_launch_s=1.0)
    times = operator_seconds(trace, batch, issued)
    assert phase_seconds(trace, times, issued) == pytest.approx({"forward": 1.0, "backward": 0.7})
    assert Work.of(trace, batch).total_seconds(issued) == pytest.approx(1.7)
    hidden = calibration(host_launch_s=1e-9)
    assert Work.of(trace, batch).total_seconds(hidden) == pytest.approx(times.sum())
    # As long as the device: a fourth-power sum of two equal terms.
    even = calibration(host_launch_s=float(times[0]))
    assert phase_seconds(trace, times, even)["forward"] == pytest.approx(2**0.25 * times[0])


def test_graph_is_one_launch_per_pass_plus_input_copies() -> None:
    trace = linear_trace()
    graphs = calibration(host_launch_s=1.0, graph_launch_s=0.25, update_launch_s=0.05)
    times = operator_seconds(trace, 4, graphs)
    assert phase_seconds(trace, times, graphs) == pytest.approx({"forward": 0.3, "backward": 0.25})
    # A pass with fewer operators than a launch is worth is issued as before.
    few = replace(graphs, host_launch_s=0.2)
    assert phase_seconds(trace, times, few) == pytest.approx({"forward": 0.2, "backward": 0.14})


def test_graph_job_has_eager_kernels_and_optimizer() -> None:
    def step(trace: Trace, how: str, *more: str) -> dict[str, float]:
        asked = jobs.changed(jobs.from_dict(JOB), [f"training.compile={how}", *more])
        return predict_step(trace, setting_of(asked)).parts

    small = cached_trace("resnet20")
    eager, graphs = (step(small, how, "training.batch=1") for how in ("false", "cuda-graphs"))
    for part in ("forward_s", "backward_s"):
        assert graphs[part] < 0.7 * eager[part]
    assert all(graphs[part] == eager[part] for part in ("input_s", "transfer_s", "update_s"))
    # With a large batch, the device is the limit: graphs only add the copy.
    large, batch, v100 = linear_trace(), 1_000_000, catalog.device("v100")
    eager, graphs = (step(large, how, f"training.batch={batch}") for how in ("false", "cuda-graphs"))
    assumed = calibration_for(v100, "fp32", mode="training")
    share = assumed.columns["bandwidth"][CLASSES.index("elementwise.forward")]
    copied_s = 2 * 4 * 1000 * batch / (v100.bandwidth_bytes_per_s * share)
    assert graphs["forward_s"] - eager["forward_s"] == pytest.approx(copied_s)
    with pytest.raises(InputError, match="cuda-graphs, but cpu is not a GPU"):
        step(small, "cuda-graphs", "cluster.device=cpu")


def test_host_limited_step_has_host_uncertainty() -> None:
    trace = linear_trace()
    seen = {"classes_seen": list(CLASSES)}
    for host_s, expected in ((1.0, 0.4), (1e-9, 0.1)):
        of = calibration(host_launch_s=host_s, host_sigma=0.4, provenance=seen)
        assert sigma_log(trace, operator_seconds(trace, 4, of), of) == pytest.approx(expected)
        assert Work.of(trace, 4).sigma_log(of) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["v100", "t4", "h100"])
def test_small_work_is_host_limited_in_every_precision(name: str) -> None:
    """Half precision with almost no device work differs from single only by autocast's casts."""
    works = [Work.of(linear_trace(depth=8, width=8), 1, precision) for precision in ("fp32", "fp16")]
    single, half = (
        work.total_seconds(calibration_for(catalog.device(name), precision, mode="training"))
        for work, precision in zip(works, ("fp32", "fp16"), strict=True)
    )
    assert half / single == pytest.approx(works[1].issues.sum() / works[0].issues.sum(), rel=0.25)


@pytest.mark.parametrize(
    ("precision", "channels_last", "groups", "is_direct"),
    [("fp16", True, 8, True), ("fp16", True, 32, False), ("fp16", False, 8, False), ("fp32", True, 8, False)],
)
def test_few_groups_use_depthwise_gradients(precision: str, channels_last: bool, groups: int, is_direct: bool) -> None:
    """It applies to channels last in half precision, never to forward, and shows at 10 % of the vector units' peak."""
    trace = linear_trace()
    shape = {
        "in_channels": 1000,
        "out_channels": 500,
        "groups": groups,
        "kernel": [1, 1],
        "channels_last": channels_last,
    }
    trace.operators = [replace(op, kind="conv_grouped", attributes=shape) for op in trace.operators]
    slow = {"conv_depthwise.forward": ClassRate(0.1), "conv_depthwise.backward": ClassRate(0.1)}
    device = calibration(classes={**calibration().classes, **slow}, peak_flops_per_s=1e13, precision=precision)
    forward, backward = Work.of(trace, 4096, precision).terms(device).compute
    assert backward / forward == pytest.approx(100 if is_direct else 1)
    times = operator_seconds(trace, 4096, device)
    of_depthwise = replace(device, provenance={"classes_seen": ["conv_depthwise.backward"]})
    known = sigma_log(trace, times, of_depthwise) < sigma_log(trace, times, device)
    assert known == is_direct


def test_joined_work_equals_its_parts() -> None:
    work = Work.of(linear_trace(), 4)
    both = Work.joined([work, work])
    assert np.array_equal(both.flops, np.tile(work.flops, 2))
    assert both.chosen(np.array([True, False, True, False])).flops.tolist() == [work.flops[0]] * 2


def test_update_reads_and_writes_each_array_once() -> None:
    """SGD with momentum reads weight, gradient and momentum, and writes weight and momentum."""
    training = jobs.from_dict(JOB).training.model_copy(update={"momentum": 0.9})
    seconds = update_seconds(linear_trace(), training, calibration())
    assert seconds == pytest.approx(5 * 4 * 1000 * 500 / 1e11)


@pytest.mark.parametrize(
    ("fields", "operators"),
    [
        ({"momentum": 0.0, "weight_decay": 0.1}, 2),
        ({"momentum": 0.9, "weight_decay": 0.1}, 4),
        ({"momentum": 0.9, "weight_decay": 0.0}, 3),
        ({"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, 5),
    ],
)
def test_update_issues_its_elementary_operators(fields: dict[str, float], operators: int) -> None:
    """Weight decay, two for the momentum, one for Nesterov's, one for the step: each once for the one parameter."""
    training = jobs.from_dict(JOB).training.model_copy(update=fields)
    issued, free = (
        update_seconds(linear_trace(), training, replace(calibration(), update_launch_s=s)) for s in (1.0, 0.0)
    )
    assert issued - free == pytest.approx(operators)


def test_peak_memory() -> None:
    memory = peak_memory(linear_trace(), 10, "adamw")
    weights = 4 * 1000 * 500
    # At the backward operator: weight, its gradient, both moments, input and output.
    assert memory.total == 4 * weights + 4 * 10 * 1000 + 4 * 10 * 500
    assert memory.optimizer_state == 2 * weights


def test_parts_of_a_step_add_up() -> None:
    record = predict(linear_trace(), jobs.from_dict(JOB), samples=80)
    assert record.value("step_time_s") == pytest.approx(sum(record.value(part) for part in STEP_PARTS))
    assert record.value("epoch_time_s") == pytest.approx(10 * record.value("step_time_s"))
    hours = record.value("training_time_s") / 3600
    price = market.price_of("v100")
    assert price is not None
    assert record.value("cost_usd") == pytest.approx(hours * float(price.usd_per_hour(1)))
    step = record["step_time_s"]
    assert step.low is not None
    assert step.high is not None
    assert step.low < record.value("step_time_s") < step.high


@pytest.mark.parametrize(("batch", "count"), [(8, 1), (9, 1), (9, 8), (64, 48), (64, 8)])
@pytest.mark.parametrize("copies", [1, 3])
def test_rates_count_trained_samples(batch: int, count: int, copies: int) -> None:
    """All ranks train `batch` samples per step, each in its copies, regardless of the largest rank's share."""
    training = {**JOB["training"], "batch": batch, "augmentation": {"copies": copies}}  # type: ignore[dict-item]
    job = jobs.from_dict({**JOB, "training": training, "cluster": {"device": "v100", "count": count}, "backend": "ddp"})
    trace, images = linear_trace(), copies * batch
    record = predict(trace, job, samples=10 * batch)
    step_s = record.value("step_time_s")
    assert record.value("throughput_samples_per_s") * step_s == pytest.approx(images)
    assert record.value("throughput_samples_per_s") * record.value("epoch_time_s") == pytest.approx(10 * images)
    # Forward and backward of a 1000 × 500 product each.
    flops = 2 * 2 * 1000 * 500 * images
    assert record.value("achieved_flops_per_s") * step_s * count == pytest.approx(flops, rel=1e-6)
    peak = record.provenance.peak_flops_per_s
    assert record.value("mfu") * peak * step_s * count == pytest.approx(flops, rel=1e-6)
    assert record.provenance.flops_per_step_per_rank == pytest.approx(flops / count, rel=1e-6)
    (row,) = predict_scaling(trace, [job], [count], "strong").data["rows"]
    assert row["throughput_samples_per_s"] == pytest.approx(images / step_s)


def test_epoch_has_complete_batches_only() -> None:
    """Use batches of 8: 87 samples give ten steps, 8 give one, and 7 none."""
    job = jobs.from_dict(JOB)
    for samples, steps in ((87, 10), (8, 1)):
        record = predict(linear_trace(), job, samples=samples)
        assert record.value("epoch_time_s") == pytest.approx(steps * record.value("step_time_s"))
        assert record.value("training_time_s") == pytest.approx(2 * steps * record.value("step_time_s"))
    with pytest.raises(InputError, match=r"batch is 8, more than the 7 training samples"):
        predict(linear_trace(), job, samples=7)


def test_accumulated_parts_run_sequentially() -> None:
    """Run four parts of two samples: each operator takes four times as long, and the update happens once."""
    job = jobs.from_dict({**JOB, "training": {**JOB["training"], "accumulation": 4}})  # type: ignore[dict-item]
    setting = replace(setting_of(job), calibration=calibration())
    forward_s, backward_s = operator_seconds(linear_trace(), 2, calibration())
    parts = predict_step(linear_trace(), setting).parts
    assert parts["forward_s"] == pytest.approx(4 * forward_s)
    assert parts["backward_s"] == pytest.approx(4 * backward_s)
    assert parts["update_s"] == pytest.approx(update_seconds(linear_trace(), job.training, calibration()))


def test_zero_divides_the_update() -> None:
    def update_s(stage: int, count: int) -> float:
        training = {**JOB["training"], "zero_stage": stage}  # type: ignore[dict-item]
        job = jobs.from_dict({**JOB, "training": training, "cluster": {"device": "v100", "count": count}})
        return predict(linear_trace(), job).value("update_s")

    assert update_s(0, 4) == pytest.approx(update_s(0, 1))
    for stage in (1, 2, 3):
        assert update_s(stage, 4) == pytest.approx(update_s(0, 4) / 4)


def test_cpu_batch_is_gathered_at_a_quarter_of_bandwidth() -> None:
    """Gather 8 samples of 4000 bytes on a CPU, reading and writing at a quarter of 100 GB/s."""
    job = jobs.from_dict({**JOB, "cluster": {"device": "cpu"}})
    parts = predict_step(linear_trace(), replace(setting_of(job), calibration=calibration())).parts
    assert parts["input_s"] == pytest.approx(2 * 8 * 4000 / (1e11 / 4))


def test_running_mean_reads_two_copies_and_writes_one() -> None:
    job = jobs.from_dict({**JOB, "training": {**JOB["training"], "ema_decay": 0.99}})  # type: ignore[dict-item]
    settings = [replace(setting_of(one), calibration=calibration()) for one in (job, jobs.from_dict(JOB))]
    step, plain = (predict_step(linear_trace(), setting) for setting in settings)
    weights = 4 * 1000 * 500
    assert step.parts["update_s"] == pytest.approx((3 + 3) * weights / 1e11)
    assert step.memory.total == plain.memory.total + weights


def test_excluded_noise_scale_time_is_reported() -> None:
    job = jobs.from_dict({**JOB, "training": {**JOB["training"], "noise_scale_every": 5}})  # type: ignore[dict-item]
    assert any("noise scale is measured every 5 steps" in note for note in predict(linear_trace(), job).notes)
    assert not any("noise scale" in note for note in predict(linear_trace(), jobs.from_dict(JOB)).notes)


def test_unsupported_jobs_are_refused() -> None:
    servers = jobs.from_dict({**JOB, "backend": "parameter_server"})
    with pytest.raises(InputError, match="do not wait for each other") as refused:
        predict(linear_trace(), servers)
    assert "chronograd fit speed" in refused.value.hint
    assert "chronograd simulate speed" in refused.value.hint
    training = {**JOB["training"], "zero_stage": 1}  # type: ignore[dict-item]
    for backend in ("data_parallel", "horovod", "tf_mirrored", "tf_multiworker"):
        with pytest.raises(InputError, match=f"zero_stage is 1, but backend {backend}"):
            predict(linear_trace(), jobs.from_dict({**JOB, "training": training, "backend": backend}))


def test_devices_share_the_global_batch() -> None:
    job = jobs.from_dict({**JOB, "cluster": {"device": "v100", "count": 4}, "backend": "ddp"})
    setting = setting_of(job)
    assert (setting.batch_per_rank, setting.nodes) == (2, 1)
    assert predict_step(linear_trace(), setting).communication.total_s > 0


def test_fixed_batch_trace_is_refused_at_another_batch() -> None:
    trace = linear_trace()
    trace.fixed_batch = 3
    with pytest.raises(InputError, match="valid for batch 3 only"):
        predict(trace, jobs.from_dict(JOB))


def test_insufficient_memory_is_reported() -> None:
    record = predict(linear_trace(rows=1_000_000, depth=1000), jobs.from_dict(JOB))
    assert any(note.startswith("does not fit") for note in record.notes)


def test_missing_price_or_samples_have_a_reason() -> None:
    record = predict(linear_trace(), jobs.from_dict({**JOB, "cluster": {"device": "cpu"}}), samples=80)
    assert record["cost_usd"].value is None
    assert "no price" in record["cost_usd"].reason
    assert (
        "number of training samples is unknown" in predict(linear_trace(), jobs.from_dict(JOB))["epoch_time_s"].reason
    )


def test_device_file_selects_the_matching_calibration(tmp_path: object) -> None:
    cpu = catalog.device("cpu")
    kept = [replace(from_datasheet(cpu), threads=t, processes=p).to_table() for p, t in ((1, 2), (2, 1))]
    device = cpu.model_copy(update={"name": "mine", "calibration": {"settings": kept}})
    path = f"{tmp_path}/mine.toml"
    device.save(path)
    again = catalog.device(path)
    assert calibration_for(again, threads=1, processes=2) == replace(from_datasheet(cpu), threads=1, processes=2)
    assert calibration_for(again, threads=2, processes=1).threads == 2


def test_step_that_fits_the_cache_finds_code_and_data_there() -> None:
    trace, setting = linear_trace(), setting_of(jobs.from_dict(JOB))
    of = calibration(pass_s=1e-3, warm_pass_s=9e-4, cache_bytes=1e7, warm_update=4.0)
    held_bytes = peak_memory(trace, 8, setting.job.training.optimizer_kind).total
    cold = 1 - 1 / (1 + (held_bytes / 1e7) ** 2)
    assert 0.1 < cold < 0.5
    before, after = (
        rank_work(trace, 8, replace(setting, calibration=c))[1] for c in (replace(of, warm_update=0.0), of)
    )
    weights_s = 4 * 1000 * 500 / 1e11
    for name in ("forward_s", "backward_s"):
        assert before[name] - after[name] == pytest.approx((1 - cold) * (9e-4 + weights_s))
    assert after["update_s"] == pytest.approx((cold + (1 - cold) / 4) * before["update_s"])
    large = replace(of, cache_bytes=1.0)
    assert rank_work(trace, 8, replace(setting, calibration=large))[1] == pytest.approx(before)


def test_kinds_of_convolutions_have_classes() -> None:
    for module, family in (
        (nn.Conv2d(8, 8, 3, groups=8), "conv_depthwise"),
        (nn.Conv2d(8, 8, 5, groups=8), "conv_depthwise_kxk"),
        (nn.Conv2d(8, 16, (1, 7), groups=8), "conv_depthwise"),
        (nn.Conv2d(8, 16, 4, groups=8), "conv_depthwise_kxk"),
        (nn.Conv1d(8, 4, 3), "conv_kxk"),
        (nn.Conv3d(8, 4, 3), "conv_3d"),
        (nn.Conv3d(8, 4, 1), "conv_1x1"),
        (nn.ConvTranspose2d(8, 4, 2, 2), "conv_transposed"),
        (nn.ConvTranspose2d(8, 4, 3), "conv_transposed"),
        (nn.ConvTranspose3d(8, 4, 3), "conv_transposed"),
    ):
        traced = trace(module, [(8, *(9,) * (module.weight.dim() - 2))], loss="sum", inputs_require_grad=True)
        names = [CLASSES[i] for i in Work.of(traced, 2).class_index]
        of = [name for name, op in zip(names, traced.operators, strict=True) if op.kind in CONV_KINDS]
        assert of == [f"{family}.forward", f"{family}.backward"], module


def test_older_calibrations_have_the_rates_of_the_whole_family() -> None:
    """They measured wide depthwise kernels with the others, but no volumes or transposed convolutions."""
    rate = {name: ClassRate(0.01 * (i + 1)) for i, name in enumerate(CLASSES) if name.partition(".")[0] not in PARTS}
    seen = ["conv_depthwise.forward", "conv_kxk.forward"]
    of = calibration(classes=rate, provenance={"classes_seen": seen}, class_sigma={"conv_depthwise.backward": 0.3})
    device = catalog.device("v100").model_copy(update={"calibration": {"settings": [of.to_table()]}})
    (read,) = calibrations(device)
    for part, whole in PARTS.items():
        for phase in PHASES[:2]:
            assert read.classes[f"{part}.{phase}"] == rate[f"{whole}.{phase}"]
    assert read.classes_seen == {*seen, "conv_depthwise_kxk.forward"}
    assert read.class_sigma == {"conv_depthwise.backward": 0.3, "conv_depthwise_kxk.backward": 0.3}
    own = replace(of, classes={**rate, "conv_3d.forward": ClassRate(0.9)})
    (read,) = calibrations(device.model_copy(update={"calibration": {"settings": [own.to_table()]}}))
    assert read.classes["conv_3d.forward"] == ClassRate(0.9)


def test_damaged_calibration_names_the_field() -> None:
    table = from_datasheet(catalog.device("cpu")).to_table()
    with pytest.raises(FileFormatError, match="peak_flops_per_s"):
        Calibration.from_table({**table, "peak_flops_per_s": -1.0})
    with pytest.raises(FileFormatError, match=r"classes\.conv_9x9\.forward.*: .* is not one of its values"):
        Calibration.from_table({**table, "classes": {"conv_9x9.forward": [0.5] * len(table["rates"])}})
    with pytest.raises(FileFormatError, match="damaged"):
        Calibration.from_table({**table, "speed": 1})


def test_device_without_the_precision_is_refused() -> None:
    job = jobs.from_dict({**JOB, "training": {**JOB["training"], "precision": "bf16"}})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="no bf16 arithmetic"):
        predict(linear_trace(), job)


def test_intervals_are_symmetric_in_the_log() -> None:
    record = predict(linear_trace(), jobs.from_dict(JOB))
    q = record["step_time_s"]
    assert q.value is not None
    assert q.low is not None
    assert q.high is not None
    assert math.sqrt(q.low * q.high) == pytest.approx(q.value)


def test_pass_overhead_is_independent_of_operator_count() -> None:
    trace = trace_network("lenet5", {}, input_shape=(1, 28, 28), num_classes=10)
    plain = replace(from_datasheet(catalog.device("cpu")), pass_s=0.0)
    begun = replace(plain, pass_s=5e-4)
    times = operator_seconds(trace, 4, plain)
    before, after = (phase_seconds(trace, times, c) for c in (plain, begun))
    assert {name: after[name] - before[name] for name in before} == pytest.approx({"forward": 5e-4, "backward": 5e-4})
    work = Work.on(trace, 4, plain)
    assert work.total_seconds(begun) - work.total_seconds(plain) == pytest.approx(1e-3)
    forward = work.chosen(work.class_index % 2 == 0)
    assert forward.total_seconds(begun) - forward.total_seconds(plain) == pytest.approx(5e-4)
    nothing = np.zeros_like(times)
    assert phase_seconds(trace, nothing, begun) == {"forward": 0.0, "backward": 0.0}
