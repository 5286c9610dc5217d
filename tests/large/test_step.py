"""The step time of large models: by hand, by its properties, and against published step times."""

from __future__ import annotations

import math
import os
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.large_models.scale import Scale

from chronograd.configs.find import load, packaged
from chronograd.configs.readers import describe
from chronograd.errors import InputError
from chronograd.hardware.catalog import Link, device
from chronograd.job import from_dict
from chronograd.large.collective import CALL_S, REACHED, Collective, Group
from chronograd.large.limits import check
from chronograd.large.rates import Rates, product_share
from chronograd.large.setting import LargeSetting
from chronograd.large.share import share_of_stage
from chronograd.large.software import Software
from chronograd.large.step import StepTime, least_flops, pipelined, step_of
from chronograd.predict.collectives import Topology
from chronograd_lab.common.large_runs import timed

MEASURED = os.environ.get("CHRONOGRAD_MEASURED", "")
# A llama of two layers: 4 heads of 64, width 256, feed-forward size 512, 1,024 words.
SMALL: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 512,
}  # fmt: skip
LAYER = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
PARAMS = 2 * LAYER + 2 * 1024 * 256 + 256


def setting_of(
    keys: str | dict[str, Any] = "llama-3-8b",
    sequence: int = 512,
    layout: dict[str, Any] | None = None,
    large: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **training: Any,
) -> LargeSetting:
    data = load(packaged()[keys]) if isinstance(keys, str) else keys
    hardware = {"device": "h100", "count": 1, **(cluster or {}), **({"layout": layout} if layout else {})}
    job = from_dict(
        {
            "network": {"name": "model"},
            "data": {"name": "tokens", "shape": [sequence]},
            "training": {"optimizer": "adamw", "precision": "bf16", "batch": hardware["count"], **training},
            "cluster": hardware,
            "large": large or {},
            "backend": "ddp" if hardware["count"] > 1 else "single",
        }
    )
    setting = LargeSetting(describe(data, "model"), job)
    check(setting)
    return setting


def collective(step: StepTime, name: str) -> Collective:
    (found,) = (one for one in step.collectives if one.name == name)
    return found


def deepseek(**changes: Any) -> LargeSetting:
    layout = {"tensor": 2, "pipeline": 8, "expert": 64, "expert_tensor": 1, "stage_layers": [8, 8, 8, 8, 8, 7, 7, 7]}
    arguments = {"batch": 8192, "accumulation": 128, "zero_stage": 1, "cluster": {"count": 1024}, **changes}
    return setting_of("deepseek-v3", 4096, layout, {"recompute": "full", "fp8": True}, **arguments)


class TestBubble:
    def bubble_s(self, **layout: Any) -> float:
        """Return the bubble of four stages with forward passes of 1 s and backward passes of 2 s, 0.75 s of them for weights."""
        _, (bubble_s,) = pipelined(self.setting(**layout), np.full(4, 3.0), np.full(4, 0.75))
        return float(bubble_s)

    def setting(self, **layout: Any) -> LargeSetting:
        keys = {**SMALL, "num_hidden_layers": 8}
        return setting_of(keys, layout={"pipeline": 4, **layout}, batch=8, accumulation=8, cluster={"count": 4})

    def test_of_equal_stages_is_one_micro_batch_of_each_other_stage(self) -> None:
        assert self.bubble_s() == pytest.approx(3 * 3.0)

    def test_of_interleaved_stages_is_divided_by_the_chunks(self) -> None:
        assert self.bubble_s(chunks=2, schedule="interleaved") == pytest.approx(3 * 3.0 / 2)

    def test_zero_bubble_fills_with_weight_gradients(self) -> None:
        assert self.bubble_s(schedule="zero-bubble") == pytest.approx(3 * (1.0 + 1.25 - 0.75))

    def test_of_several_layouts(self) -> None:
        """Layouts of three and of one stage: each has its own slowest stage and waits for the other ones."""
        slowest, bubbles = pipelined(self.setting(), np.array([1.0, 4.0, 2.0, 5.0]), np.zeros(4), (0, 3))
        assert (slowest.tolist(), bubbles.tolist()) == ([1, 3], [3.0, 0.0])

    def test_share_of_a_step(self) -> None:
        """(p − 1) / m of the other time, if the stages are equal: the embedding and the head are negligible here."""
        keys = {**SMALL, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 8, "vocab_size": 128}
        setting = setting_of(keys, 4096, {"pipeline": 4}, batch=12, accumulation=12, cluster={"count": 4})
        parts = step_of(setting).parts
        work = sum(parts.get(name, 0.0) for name in ("forward", "backward", "host"))
        assert parts["pipeline bubble"] / work == pytest.approx(3 / 12, rel=0.05)


class TestExchange:
    def test_gradients_of_data_parallel_ranks(self) -> None:
        step = step_of(setting_of(SMALL, cluster={"count": 8}))
        found = collective(step, "all-reduce of gradients")
        assert (found.bytes, found.ranks, found.calls, found.tier) == (4 * PARAMS, 8, 1, "nvlink4")
        assert not step_of(setting_of(SMALL)).collectives

    def test_sharded_parameters_are_gathered_twice(self) -> None:
        setting = setting_of(SMALL, zero_stage=3, batch=24, accumulation=3, cluster={"count": 8})
        gathers = [one for one in step_of(setting).collectives if one.name == "all-gather of parameters"]
        assert sum(one.calls * one.bytes for one in gathers) == 3 * 2 * 2 * PARAMS
        scatters = [one for one in step_of(setting).collectives if one.name == "reduce-scatter of gradients"]
        assert sum(one.calls * one.bytes for one in scatters) == 3 * 4 * PARAMS

    def test_sharded_optimizer_exchanges_once_per_step(self) -> None:
        step = step_of(setting_of(SMALL, zero_stage=1, cluster={"count": 8}))
        assert collective(step, "reduce-scatter of gradients").bytes == 4 * PARAMS
        assert collective(step, "all-gather of parameters").bytes == 2 * PARAMS

    def test_hybrid_sharding_reduces_between_copies(self) -> None:
        setting = setting_of(SMALL, layout={"shard_ranks": 8}, zero_stage=3, cluster={"count": 32})
        step = step_of(setting)
        between = collective(step, "all-reduce of gradients between copies")
        assert (between.ranks, between.bytes, between.tier) == (4, 4 * PARAMS / 8, "efa-3200g")
        assert {one.tier for one in step.collectives if "shard" in one.name or "gather" in one.name} == {"nvlink4"}

    def test_tensor_parallel_ranks_reduce_hidden_states(self) -> None:
        """Two per layer, one for the embedding and one for the head, in both passes of both micro-batches."""
        layout = {"tensor": 4, "sequence": False}
        step = step_of(setting_of(SMALL, layout=layout, batch=2, accumulation=2, cluster={"count": 4}))
        found = collective(step, "all-reduce of hidden states")
        assert (found.calls, found.bytes) == (2 * 2 * (2 * 2 + 2), 2 * 512 * 256)

    def test_context_parallel_ring(self) -> None:
        step = step_of(setting_of(SMALL, layout={"context": 4}, batch=1, cluster={"count": 4}))
        rings = [one for one in step.collectives if one.name == "ring of keys and values"]
        keys = 2 * (512 // 4) * 2 * 4 * 64
        assert [(one.calls, one.bytes) for one in rings] == [(2 * 3, keys), (2 * 3, 2 * keys)]

    def test_sends_between_stages(self) -> None:
        layout = {"pipeline": 2}
        step = step_of(setting_of(SMALL, layout=layout, batch=4, accumulation=4, cluster={"count": 2}))
        found = collective(step, "sends between stages")
        assert (found.calls, found.bytes) == (2 * 4 + 2, 2 * 512 * 256)


class TestGroup:
    near = Link(name="near", title="", latency_s=2e-6, bandwidth_bytes_per_s=100e9)
    far = Link(name="far", title="", per="node", latency_s=10e-6, bandwidth_bytes_per_s=40e9)

    def group(self, ranks: int, stride: int) -> Group:
        return Group(ranks, stride, Topology(64, 8, self.near, self.far))

    def test_ring_in_a_node(self) -> None:
        expected = CALL_S + 7 * 2e-6 + 7 / 8 * 1e9 / (REACHED * 100e9)
        assert self.group(8, 1).gather_s(1e9) == pytest.approx(expected)

    def test_ring_between_nodes_runs_at_the_share_of_its_ranks(self) -> None:
        """Two ranks of a node send at 2/8 of the node's network, 16 ranks in 8 nodes cross it 7 times."""
        expected = CALL_S + 8 * 2e-6 + 7 * 10e-6 + 15 / 16 * 1e9 / (REACHED * 10e9)
        assert self.group(16, 4).gather_s(1e9) == pytest.approx(expected)

    def test_small_messages_avoid_long_rings(self) -> None:
        """An all-reduce of 1 kB over 64 ranks uses a tree with short latencies, below a tenth of the ring's."""
        ring_s = 2 * 63 * self.group(64, 1).hop_s
        assert self.group(64, 1).all_reduce_s(1e3) < ring_s / 4

    def test_tokens_sent_once_per_node(self) -> None:
        group = self.group(64, 1)
        rate = REACHED * 5e9
        assert group.all_to_all_s(1e6, 8, False) == pytest.approx(CALL_S + 8 * 56 / 64 * 1e6 / rate)
        assert group.all_to_all_s(1e6, 8, True) == pytest.approx(CALL_S + 7 * (1 - (7 / 8) ** 8) * 1e6 / rate)


class TestStep:
    def test_one_rank(self) -> None:
        setting = setting_of("llama-3-8b", 2048, batch=4, accumulation=2)
        step = step_of(setting)
        assert step.step_s == pytest.approx(sum(step.parts.values()))
        assert set(step.parts) <= {"forward", "backward", "host", "optimizer"}
        # 6 N of the matrices, and 12 · layers · heads · head size · sequence of attention, per token.
        matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 128256
        assert step.model_flops == 4 * 2048 * (6 * matrices + 12 * 32 * 4096 * 2048)
        mfu = step.model_flops / (step.step_s * device("h100").peak("bf16"))
        assert 0.35 < mfu < 0.65

    def test_windows_limit_the_work_that_mfu_counts(self) -> None:
        """Every pair of positions would give an MFU above 70 % here, and above 100 % in longer sequences."""
        setting = setting_of("mistral-7b", 32_768)
        matrices = 32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 4096 * 32_000
        assert step_of(setting).model_flops == 32_768 * (6 * matrices + 12 * 32 * 4096 * 4096)
        pairs = 4096 * 4097 // 2 + (32_768 - 4096) * 4096
        assert least_flops(setting) == 32_768 * 6 * matrices + 12 * 32 * 4096 * pairs

    def test_671_billion_parameters_on_1024_ranks(self) -> None:
        setting = deepseek()
        start = time.perf_counter()
        step = step_of(setting)
        assert time.perf_counter() - start < 1.0
        mfu = step.model_flops / (step.step_s * device("h100").peak("bf16") * 1024)
        assert 0.05 < mfu < 0.5
        assert collective(step, "all-to-all of tokens").ranks == 64
        balanced, network = step.notes
        assert balanced == "Every expert gets the same number of tokens."
        assert network.startswith("Exchange between nodes is the largest part of a step")

    def test_an_imbalance_of_experts_slows_the_step(self) -> None:
        assert step_of(deepseek(), Software(imbalance=1.5)).step_s > 1.1 * step_of(deepseek()).step_s

    def test_more_bandwidth_is_never_slower(self) -> None:
        for stage in (0, 1, 3):
            links = ("ethernet-25g", "infiniband-hdr", "infiniband-ndr", "roce-1600g")
            steps = [
                step_of(setting_of("llama-3-8b", zero_stage=stage, cluster={"count": 256, "link": link}))
                for link in links
            ]
            assert np.all(np.diff([step.step_s for step in steps]) <= 0)

    def test_twice_the_micro_batches_take_at_most_twice_as_long(self) -> None:
        for layout in ({"tensor": 4, "pipeline": 2}, {"pipeline": 8}, {"tensor": 8}):
            times = [
                step_of(setting_of("llama-3-8b", layout=layout, batch=n, accumulation=n, cluster={"count": 8})).step_s
                for n in (8, 16)
            ]
            assert times[0] < times[1] <= 2 * times[0]

    def test_recomputation(self) -> None:
        plain = step_of(setting_of()).parts
        full = step_of(setting_of(large={"recompute": "full"})).parts
        blocks = step_of(setting_of(activation_checkpointing="blocks")).parts
        assert full["backward"] == plain["backward"]
        assert 0.8 < full["recomputation"] / plain["forward"] < 1
        assert 0.5 < blocks["recomputation"] / full["recomputation"] < 0.9

    def test_lora_has_no_gradients_of_frozen_weights(self) -> None:
        whole, adapted = (step_of(setting_of("llama-3-8b", 2048, large=large)) for large in ({}, {"adapter_rank": 16}))
        assert adapted.model_flops == pytest.approx(2 / 3 * whole.model_flops)
        assert adapted.parts["backward"] < 0.75 * whole.parts["backward"]
        assert adapted.parts["optimizer"] < 0.05 * whole.parts["optimizer"]

    def test_experts_have_no_adapters(self) -> None:
        adapted = setting_of("mixtral-8x7b", 2048, large={"adapter_rank": 16})
        assert step_of(adapted).notes[1:] == ("Experts and routers have no adapters.",)
        attention = 32 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024))  # query and output, key and value
        assert share_of_stage(adapted, adapted.stages[0]).adapters == attention

    def test_fp8(self) -> None:
        times = [step_of(setting_of(sequence=4096, large={"fp8": is_on})).step_s for is_on in (False, True)]
        assert 1.2 < times[0] / times[1] < 2
        with pytest.raises(InputError, match="no fp8"):
            step_of(setting_of(large={"fp8": True}, cluster={"device": "a100-80"}))

    def test_compiler_or_fast_host_shortens_small_steps(self) -> None:
        usual = step_of(setting_of(SMALL)).parts["host"]
        assert step_of(setting_of(SMALL, compile=True)).parts["host"] < usual
        assert step_of(setting_of(SMALL, cluster={"host": 5.0})).parts["host"] < usual

    def test_offload_crosses_the_link_of_the_host(self) -> None:
        step = step_of(setting_of(SMALL, large={"offload": "optimizer"}))
        assert step.parts["offload"] == pytest.approx(PARAMS * (4 + 2) / (REACHED * 63e9))

    def test_hidden_exchange_is_shorter_than_exposed_exchange(self) -> None:
        setting = setting_of("llama-3-8b", 2048, zero_stage=3, cluster={"count": 64})
        exposed = step_of(setting, Software(parameters=0.0, gradients=0.0))
        assert step_of(setting).step_s < exposed.step_s

    @pytest.mark.parametrize("name", packaged())
    def test_every_packaged_model(self, name: str) -> None:
        model = describe(load(packaged()[name]), name)
        setting = setting_of(name, model.length if model.is_fixed else 512, zero_stage=3, cluster={"count": 16})
        step = step_of(setting)
        assert math.isfinite(step.step_s)
        assert step.model_flops / (step.step_s * 16 * device("h100").peak("bf16")) < 0.75


class TestRates:
    def test_share_of_a_board_at_its_power_limit(self) -> None:
        """0.65 · (400 W / 312 TFLOP/s)^(1/3); boards with more than 1.5 W per TFLOP/s have the largest share."""
        assert product_share(device("a100-80")) == pytest.approx(0.65 * (400 / 312) ** (1 / 3))
        assert product_share(device("rtx4090")) == 0.75
        assert product_share(device("m40")) is None

    def test_a_measured_device_has_its_own_rates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = Rates.of(setting_of(SMALL), 0.75)
        measured = replace(usual.calibration, origin="measured")
        monkeypatch.setattr("chronograd.large.rates.derived", lambda *_: measured)
        own = Rates.of(setting_of(SMALL), 0.75)
        assert np.array_equal(own.columns["compute"], measured.columns["compute"])
        assert not np.array_equal(usual.columns["compute"], measured.columns["compute"])


class TestScale:
    step = StepTime(2.0, {"forward": 2.0}, (), 1.0, 1.0, 0.13, (), 0.12)

    def test_of_equal_measurements(self) -> None:
        """Four steps with an error of 0.05 each, a prior of 0.12: the mean has the weight 4 / 0.05² of 4 / 0.05² + 1 / 0.12²."""
        scale = Scale.of([self.step] * 4, [2.0 * math.exp(0.1)] * 4)
        weight, prior = 4 / 0.05**2, 1 / 0.12**2
        assert math.log(scale.factor) == pytest.approx(0.1 * weight / (weight + prior))
        assert scale.sigma_log == pytest.approx((weight + prior) ** -0.5)

    def test_applied(self) -> None:
        step = Scale(1.5, 0.03).applied(self.step)
        assert (step.step_s, step.parts, step.shared_sigma_log) == (3.0, {"forward": 3.0}, 0.03)
        assert step.sigma_log == pytest.approx(math.hypot(0.05, 0.03))


# Largest mean error in percent, and smallest coverage of the 80 % interval.
BOUNDS = {"vtrain": (7, 78), "llm_foundry": (5, 78), "simumax": (10, 78), "seqsel": (10, 50), "bridge": (12, 78)}


@pytest.mark.skipif(not MEASURED, reason="CHRONOGRAD_MEASURED names no folder of published step times")
def test_published_step_times() -> None:
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in timed(Path(MEASURED) / "large_models"):
        step = step_of(row.setting, row.software)
        errors[row.file].append((math.log(step.step_s / row.measured_s), step.sigma_log))
    for name, (most, least) in BOUNDS.items():
        logs, sigmas = np.array(errors[name]).T
        assert 100 * np.mean(np.abs(np.expm1(logs))) < most, name
        assert 100 * np.mean(np.abs(logs) < 1.2816 * sigmas) > least, name


def test_sigma_grows_with_exchange_and_host() -> None:
    alone, shared = (
        step_of(setting_of("llama-3-8b", 2048, cluster={"device": "a100-80", "count": n})) for n in (1, 64)
    )
    assert alone.sigma_log < shared.sigma_log
