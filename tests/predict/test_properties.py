"""Properties of any prediction, checked on ten seeded random jobs each."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.fit.device import MIN_SAMPLES, spread_of
from chronograd.hardware import catalog
from chronograd.job import Job, changed
from chronograd.plan.settings import largest_batch
from chronograd.predict.carrying import Shown
from chronograd.predict.checkpointing import blocks
from chronograd.predict.memory import footprint_of_job, overhead
from chronograd.predict.prediction import Step, predict, predict_step
from chronograd.predict.setting import Setting, setting_of
from chronograd.record import Z80, Record
from chronograd.trace import Trace

DRAWS = 10
# Sums may differ in their last digits.
MIN_RATIO = 1 - 1e-9
TINY_GPT = {"layers": 2, "width": 64, "heads": 4}
NETWORKS: dict[str, dict[str, Any]] = {
    "resnet20": {"shape": [3, 32, 32], "classes": 10},
    "lenet5": {"shape": [1, 28, 28], "classes": 10},
    "mobilenet-v1": {"shape": [3, 64, 64], "classes": 100},
    "gpt2-small": {"shape": [48], "classes": 500},
}
GPUS = ("k80", "p100", "v100", "t4", "rtx3090", "a100-80", "h100", "l4")
COUNTS = (2, 3, 4, 8, 16, 64)


@functools.cache
def trace_of(network: str, mode: str = "training", attention: str = "fused") -> Trace:
    data = NETWORKS[network]
    options = {**TINY_GPT, "attention": attention} if network == "gpt2-small" else {}
    return trace_network(network, options, input_shape=tuple(data["shape"]), num_classes=data["classes"], mode=mode)


@dataclass(frozen=True)
class Drawn:
    """Random job with its generator, for further draws."""

    job: Job
    random: random.Random

    @property
    def trace(self) -> Trace:
        return trace_of(self.job.network.name, self.job.mode)

    def with_(self, *changes: str) -> Drawn:
        return replace(self, job=changed(self.job, list(changes)))

    @property
    def setting(self) -> Setting:
        return setting_of(self.job)

    @property
    def step(self) -> Step:
        return predict_step(self.trace, self.setting)

    def record(self, **options: Any) -> Record:
        return predict(self.trace, self.job, **options)


def draw(seed: int, name: str) -> Drawn:
    """Return a job on one device with many random fields."""
    choose = random.Random(f"{name} {seed}")
    network = choose.choice(list(NETWORKS))
    device = choose.choice(GPUS)
    known = [p for p in ("fp32", "tf32", "fp16", "bf16") if p in catalog.device(device).peak_flops_per_s]
    job = jobs.from_dict(
        {
            "network": {"name": network, "options": TINY_GPT if network == "gpt2-small" else {}},
            "data": {"name": "synthetic", **NETWORKS[network], "samples": 10**7},
            "training": {
                "batch": choose.choice((1, 2, 5, 16, 64, 100, 256, 1024)),
                "precision": choose.choice(known),
                "optimizer": choose.choice(("sgd", "adamw", "adadelta")),
                "momentum": 0.9,
                "epochs": choose.randint(1, 90),
                "ema_decay": choose.choice((0.0, 0.99)),
            },
            "cluster": {"device": device, "price_usd_per_hour": choose.choice((0.5, 2.0))},
        }
    )
    return Drawn(job, choose)


def spread_out(one: Drawn) -> Drawn:
    """Return the same job on several devices with the same batch per device."""
    count = one.random.choice(COUNTS)
    return one.with_("backend=ddp", f"cluster.count={count}", f"training.batch={one.job.training.batch * count}")


def not_less(more: float, less: float) -> None:
    assert more >= less * MIN_RATIO, (more, less)


Property = Callable[[Drawn], None]
PROPERTIES: list[Property] = []


def holds(check: Property) -> Property:
    PROPERTIES.append(check)
    return check


@holds
def a_faster_link_is_never_slower(one: Drawn) -> None:
    setting = spread_out(one).setting
    topology = setting.topology
    faster = {
        name: link.model_copy(update={"bandwidth_bytes_per_s": 3 * link.bandwidth_bytes_per_s})
        for name in ("intra", "inter")
        if (link := getattr(topology, name, None)) is not None
    }
    assert faster
    quick = replace(setting, topology=replace(topology, **faster))
    not_less(predict_step(one.trace, setting).seconds, predict_step(one.trace, quick).seconds)


@holds
def more_memory_bandwidth_is_never_slower(one: Drawn) -> None:
    setting, c = one.setting, one.setting.calibration
    quick = replace(setting, calibration=replace(c, bandwidth_bytes_per_s=2 * c.bandwidth_bytes_per_s))
    not_less(one.step.seconds, predict_step(one.trace, quick).seconds)


@holds
def a_higher_peak_is_never_slower(one: Drawn) -> None:
    setting, c = one.setting, one.setting.calibration
    quick = replace(setting, calibration=replace(c, peak_flops_per_s=2 * c.peak_flops_per_s))
    not_less(one.step.seconds, predict_step(one.trace, quick).seconds)


@holds
def a_bigger_batch_never_needs_less_memory_nor_time(one: Drawn) -> None:
    bigger = one.with_(f"training.batch={one.job.training.batch + one.random.randint(1, 500)}")
    not_less(bigger.step.memory.total, one.step.memory.total)
    not_less(bigger.step.seconds, one.step.seconds)


@holds
def inference_needs_no_more_memory_nor_time_than_a_step(one: Drawn) -> None:
    asked = one.with_("mode=inference")
    not_less(one.step.memory.total, asked.step.memory.total)
    # The modes may have different calibrations, so use one calibration for both.
    same = replace(asked.setting, calibration=one.setting.calibration)
    not_less(
        one.step.parts["forward_s"] + one.step.parts["backward_s"], predict_step(asked.trace, same).parts["forward_s"]
    )


@holds
def latency_is_never_longer_than_forward_and_backward(one: Drawn) -> None:
    """Compare the reported values by each mode's calibration, within their intervals."""
    asked = one.with_("mode=inference")
    trained, latency = one.record(), asked.record()
    whole = (trained["forward_s"].high or 0.0) + (trained["backward_s"].high or 0.0)
    not_less(whole, latency["forward_s"].low or 0.0)


@holds
def inference_reports_nothing_about_training(one: Drawn) -> None:
    record = one.with_("mode=inference").record(samples=10**7)
    trained = (
        "training_time_s",
        "epoch_time_s",
        "epochs",
        "cost_usd",
        "backward_s",
        "update_s",
        "communication_exposed_s",
    )
    assert not set(trained) & set(record.quantities)
    assert record.value("latency_s") == record.value("step_time_s")
    of_price = record.value("cost_usd_per_hour") / 3600 / record.value("throughput_samples_per_s") * 1e6
    assert record.value("cost_usd_per_million_samples") == pytest.approx(of_price)


@holds
def devices_in_inference_do_not_wait_for_each_other(one: Drawn) -> None:
    asked = one.with_("mode=inference")
    several = spread_out(asked)
    assert several.step.seconds == pytest.approx(asked.step.seconds, rel=1e-9)
    assert several.record().value("throughput_samples_per_s") == pytest.approx(
        several.job.cluster.count * asked.record().value("throughput_samples_per_s"), rel=1e-9
    )


@holds
def more_ranks_never_communicate_less(one: Drawn) -> None:
    few = spread_out(one)
    count, batch = few.job.cluster.count, one.job.training.batch
    more = few.with_(f"cluster.count={2 * count}", f"training.batch={2 * count * batch}")
    not_less(more.step.communication.total_s, few.step.communication.total_s)
    not_less(more.step.seconds, few.step.seconds)


@holds
def ranks_are_never_faster_than_separate_devices(one: Drawn) -> None:
    several = spread_out(one)
    not_less(several.step.seconds, one.step.seconds)
    alone = one.record().value("throughput_samples_per_s")
    not_less(several.job.cluster.count * alone, several.record().value("throughput_samples_per_s"))


@holds
def half_precision_adds_at_most_a_copy_of_the_weights(one: Drawn) -> None:
    """Autocast halves activations, and products store a half-precision copy of their weights."""
    wide = footprint_of_job(one.trace, changed(one.job, ["training.precision=fp32"]))
    half = footprint_of_job(one.trace, changed(one.job, ["training.precision=fp16"]))
    batch = one.job.training.batch
    not_less(wide.at(batch).total + 2 * one.trace.params, half.at(batch).total)
    not_less(wide.at(100_000).total, half.at(100_000).total)


@holds
def more_zero_stages_or_ranks_never_need_more_memory(one: Drawn) -> None:
    several = spread_out(one)
    stages = [
        footprint_of_job(one.trace, changed(several.job, [f"training.zero_stage={stage}"])).at(8).total
        for stage in range(4)
    ]
    for more, less in itertools.pairwise(stages):
        not_less(more, less)
    stage = one.random.randint(1, 3)
    shared = changed(several.job, [f"training.zero_stage={stage}"])
    ranks = [footprint_of_job(one.trace, shared, count).at(8).total for count in (2, 4, 16, 512)]
    for more, less in itertools.pairwise(ranks):
        not_less(more, less)


@holds
def parts_of_a_batch_never_need_more_memory_nor_less_time(one: Drawn) -> None:
    whole = one.with_("training.batch=64")
    parts = whole.with_(f"training.accumulation={one.random.choice((2, 3, 8, 64))}")
    not_less(whole.step.memory.total, parts.step.memory.total)
    not_less(parts.step.seconds, whole.step.seconds)


@holds
def checkpointing_never_needs_more_memory_nor_less_time(one: Drawn) -> None:
    if not blocks(one.trace.modules):
        with pytest.raises(InputError, match="block"):
            _ = one.with_("training.activation_checkpointing=blocks").step
        return
    again = one.with_("training.activation_checkpointing=blocks").step
    not_less(one.step.memory.total, again.memory.total)
    not_less(again.seconds, one.step.seconds)


@holds
def an_optimizer_with_more_state_needs_more(one: Drawn) -> None:
    memory, update = [], []
    for changes in (["momentum=0", "optimizer=sgd"], ["momentum=0.9", "optimizer=sgd"], ["optimizer=adamw"]):
        step = one.with_(*[f"training.{change}" for change in changes]).step
        memory.append(step.memory.total)
        update.append(step.parts["update_s"])
    assert sorted(memory) == memory
    assert sorted(update) == update


@holds
def the_largest_batch_fits_and_one_more_does_not(one: Drawn) -> None:
    found = largest_batch(one.trace, one.job)
    lines = footprint_of_job(one.trace, one.job)
    room = (found.capacity_bytes - found.reserve_bytes) / overhead(found.device, one.job.mode).median
    assert found.batch > 0
    assert lines.at(found.batch).total <= room + 5  # each part is rounded up to a byte
    assert lines.at(found.batch + 1).total > room
    inference = one.with_("mode=inference")
    assert largest_batch(inference.trace, inference.job).batch >= found.batch


@holds
def input_and_straggler_waits_never_make_a_step_faster(one: Drawn) -> None:
    several = spread_out(one)
    rates = sorted(one.random.uniform(1, 1e5) for _ in range(3))
    steps = [several.with_(f"cluster.input_samples_per_s={rate}").step.seconds for rate in rates]
    assert sorted(steps, reverse=True) == steps
    not_less(steps[-1], several.step.seconds)
    spreads = sorted(one.random.uniform(0, 0.5) for _ in range(3))
    steps = [several.with_(f"cluster.step_sigma_log={spread}").step.seconds for spread in spreads]
    for less, more in itertools.pairwise(steps):
        not_less(more, less)


@holds
def time_and_cost_are_proportional_to_steps_and_price(one: Drawn) -> None:
    record = one.record(samples=10**6)
    steps = 10**6 // one.job.training.batch * one.job.training.epochs
    assert record.value("training_time_s") == pytest.approx(steps * record.value("step_time_s"))
    price = one.job.cluster.price_usd_per_hour
    assert price is not None
    assert record.value("cost_usd") == pytest.approx(record.value("training_time_s") / 3600 * price)
    dear = one.with_(f"cluster.price_usd_per_hour={2 * price}").record(samples=10**6)
    assert dear.value("cost_usd") == pytest.approx(2 * record.value("cost_usd"))


@holds
def figures_lie_in_their_intervals_and_parts_make_up_the_step(one: Drawn) -> None:
    several = one.random.choice((one, spread_out(one)))
    record = several.record(samples=10**7)
    for name, q in record.quantities.items():
        if q.value is not None and q.low is not None and q.high is not None:
            assert q.low <= q.value <= q.high, name
    parts = ("input_s", "transfer_s", "forward_s", "backward_s", "communication_exposed_s", "update_s")
    assert sum(record.value(part) for part in parts) == pytest.approx(record.value("step_time_s"))
    tokens = NETWORKS[one.job.network.name]["shape"][0]
    if one.job.is_text:
        rate = record.value("throughput_samples_per_s")
        assert record.value("throughput_tokens_per_s") == pytest.approx(tokens * rate)
    else:
        assert "throughput_tokens_per_s" not in record.quantities


@holds
def correction_from_another_device_has_the_right_direction(one: Drawn) -> None:
    shown = Shown(one.random.uniform(0.3, 3.0), one.random.uniform(0.03, 0.6))
    plain, carried = one.record(), one.record(shown=shown)
    assert (carried.value("step_time_s") > plain.value("step_time_s")) == (shown.ratio > 1)
    assert (carried.provenance.sigma_log or 0) <= (plain.provenance.sigma_log or 0)


@holds
def compiler_and_graphs_only_save_host_time(one: Drawn) -> None:
    """An instant device shows the host time only; optimizer and input are those of an eager step."""
    asked = one.random.choice((one, one.with_("mode=inference")))
    instant = catalog.device(one.job.cluster.device)
    instant = instant.model_copy(
        update={
            "calibration": None,
            "bandwidth_bytes_per_s": 1e27,
            "peak_flops_per_s": dict.fromkeys(instant.peak_flops_per_s, 1e28),
        }
    )
    eager, compiled, graphs = (
        predict_step(asked.trace, setting_of(asked.with_(f"training.compile={how}").job, device=instant)).parts
        for how in ("false", "true", "cuda-graphs")
    )
    for part in ("forward_s", "backward_s"):
        not_less(eager[part], compiled[part])
        not_less(eager[part], graphs[part])
    assert all(eager[part] == graphs[part] for part in eager if part not in ("forward_s", "backward_s"))


@holds
def fewer_rows_never_give_a_narrower_interval(one: Drawn) -> None:
    """Use rows with equal errors: a fit to few uses the prior, or its largest error."""
    count, assumed = one.random.randint(1, 30), one.random.uniform(0.05, 0.6)
    errors = np.array([one.random.gauss(0, 0.2) for _ in range(count)])
    calibration = replace(one.setting.calibration, class_sigma={})
    spreads = []
    for times in (1, 2, 3, 10):
        sigma = spread_of(np.tile(errors, times), times * count, assumed)
        fitted = replace(one.setting, calibration=replace(calibration, sigma=sigma))
        spreads.append(predict_step(one.trace, fitted).sigma_log)
    for fewer, more in itertools.pairwise(spreads):
        not_less(fewer, more)


@holds
def rows_without_larger_errors_never_widen_an_interval(one: Drawn) -> None:
    """Fewer rows are the first of more. 80 % of their errors bound the following ones."""
    assumed, errors = one.random.uniform(0.05, 0.6), [one.random.gauss(0, 0.2) for _ in range(MIN_SAMPLES)]
    spreads = []
    while len(errors) <= 60:
        own = spread_of(np.array(errors), 1000, assumed) * Z80  # enough rows that the prior has no weight
        spreads.append(spread_of(np.array(errors), len(errors), assumed))
        errors += [one.random.uniform(-own, own) for _ in range(one.random.choice((1, 2, 5, 15)))]
    for fewer, more in itertools.pairwise(spreads):
        not_less(fewer, more)


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
def test_property(check: Property, seed: int) -> None:
    check(draw(seed, check.__name__))


def test_fewer_rows_give_wider_intervals_on_average() -> None:
    """A single table's interval grows with its rows if they show new errors: in a fifth of all steps. Bound: between 4
    and 9 rows the rank ⌈0.8 (n + 1)⌉ rounds up, and the mean of thousands of tables grows by up to 5 %.
    """
    random = np.random.default_rng(0)
    numbers = (4, 6, 9, 10, 14, 20, 40, 60)
    widths = np.array(
        [
            [spread_of(errors[:n], n, assumed) for n in numbers]
            for errors, assumed in zip(random.normal(0, 0.2, (2000, 60)), random.uniform(0.05, 0.6, 2000), strict=True)
        ]
    )
    means = widths.mean(axis=0)
    assert (means[1:] <= 1.05 * means[:-1]).all(), means
    assert means[3] > 1.05 * means[5] > means[-1], means
    grown = (widths[:, 1:] > widths[:, :-1]).mean()
    assert 0.15 < grown < 0.3


def test_there_are_two_hundred_cases() -> None:
    assert len(PROPERTIES) * DRAWS >= 200


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_fused_attention_needs_no_more_memory(batch: int) -> None:
    job = jobs.from_dict({"network": {"name": "gpt2-small"}, "data": {"name": "tokens", **NETWORKS["gpt2-small"]}})
    fused, eager = (footprint_of_job(trace_of("gpt2-small", "training", kind), job) for kind in ("fused", "eager"))
    assert fused.at(batch).total < eager.at(batch).total


def test_memory_by_array_matches_single_batches() -> None:
    job = draw(0, "array").job
    lines = footprint_of_job(trace_of("resnet20"), job)
    batches = np.array([1, 3, 1000])
    assert [lines.at(int(b)).total for b in batches] == pytest.approx(lines.peak_bytes(batches), abs=5)
