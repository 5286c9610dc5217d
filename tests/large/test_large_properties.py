"""Properties of random settings of a large model, which hold whatever the numbers are."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.large.asking import ask_large, with_changes
from chronograd.large.memory import memory_of, probability_of_fit
from chronograd.large.setting import LargeSetting
from chronograd.large.step import step_of

NUMBER = 200
MODELS = ["llama-3.2-1b", "llama-3-8b", "llama-3-70b", "mixtral-8x7b", "deepseek-v2-lite", "gpt2-xl", "qwen3-30b-a3b"]
ROUNDING = 1.001  # shards are padded


def settings(number: int, seed: int, least_data: int = 1) -> Iterator[LargeSetting]:
    """Yield random settings that are possible."""
    random = Random(seed)
    while number:
        tensor, pipeline, context, expert = (
            random.choice(sizes) for sizes in ([1, 1, 2, 4, 8], [1, 1, 2, 4], [1, 1, 2], [1, 1, 2, 4])
        )
        data = least_data * random.choice([1, 2, 4, 8])
        short = {
            "sequence": random.choice([1024, 512]),
            "tensor": tensor,
            "pipeline": pipeline,
            "context": context,
            "expert": expert,
            "zero": random.choice([0, 1, 2, 3]),
            "recompute": random.choice(["none", "selective", "full"]),
            **random.choice([{}, {}, {"lora": 16}, {"qlora": 16}]),
        }
        words = [
            f"large.loss={random.choice(['plain', 'fused', 'chunked'])}",
            f"large.attention={random.choice(['fused', 'plain'])}",
        ]
        place = f"{data * tensor * pipeline * context}x{random.choice(['h100', 'a100-80'])}"
        try:
            yield ask_large(random.choice(MODELS), words, short, place, random.choice([1, 2])).setting
            number -= 1
        except InputError:
            continue


def changed_settings(change: str, number: int, seed: int) -> Iterator[tuple[LargeSetting, LargeSetting]]:
    """Yield random settings, and each with a change, where that is possible."""
    for one in settings(number, seed):
        try:
            yield one, with_changes(one, [change])
        except InputError:
            continue


def allocated(setting: LargeSetting) -> float:
    return max(stage.allocated_bytes for stage in memory_of(setting))


def test_degrees_multiply_to_the_number_of_ranks() -> None:
    for one in settings(NUMBER, 0):
        layout = one.layout
        assert one.data * layout.tensor * layout.pipeline * layout.context == one.ranks
        assert one.data * one.micro_batch * one.micro_batches == one.training.batch
        assert one.expert_data * layout.expert * one.expert_tensor * layout.pipeline == one.ranks
        assert sum(len(stage.layers) for stage in one.stages) == sum(len(group.places) for group in one.model.groups)


def test_memory_adds_up() -> None:
    for one in settings(NUMBER, 1):
        stages = memory_of(one)
        assert [stage.stage for stage in stages] == list(range(one.layout.pipeline))
        for stage in stages:
            assert sum(part.bytes for part in stage.parts) == pytest.approx(stage.allocated_bytes, rel=1e-6)
            assert 0 < stage.allocated_bytes <= stage.reserved_bytes <= stage.used_bytes
            assert [part.bytes for part in stage.parts] == sorted((part.bytes for part in stage.parts), reverse=True)
            fits = [probability_of_fit(stage, share * stage.used_bytes) for share in (0.01, 0.5, 1, 2, 100)]
            assert fits == sorted(fits)
            assert (fits[0], fits[-1]) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))


def test_more_shards_never_need_more_memory() -> None:
    for one in settings(NUMBER, 2):
        batch = f"training.batch={2 * one.training.batch}"  # the same micro-batches on twice the ranks
        other = with_changes(one, [f"cluster.count={2 * one.ranks}", batch])
        assert allocated(other) <= ROUNDING * allocated(one), one.job


@pytest.mark.parametrize(
    "change", ["training.zero_stage=3", "large.recompute=full", "large.loss=chunked", "large.offload=all"]
)
def test_remedies_never_need_much_more_memory(change: str) -> None:
    """A gathered layer may take more than its share of a small model saves."""
    for one, other in changed_settings(change, NUMBER // 4, 3):
        assert allocated(other) <= 1.1 * allocated(one), (change, one.job)


def test_larger_micro_batches_never_need_less_memory() -> None:
    for one in settings(NUMBER, 4):
        other = with_changes(one, [f"training.batch={2 * one.training.batch}"])
        assert allocated(other) >= allocated(one), one.job


def test_times_add_up() -> None:
    for one in settings(NUMBER, 5):
        found = step_of(one)
        assert found.step_s > 0
        assert sum(found.parts.values()) == pytest.approx(found.step_s, rel=1e-6)
        assert min(found.parts.values()) >= 0
        assert found.hardware_flops >= found.model_flops > 0
        peak = one.ranks * catalog.device(one.job.cluster.device).peak(one.training.precision)
        assert found.model_flops / found.step_s < peak
        for collective in found.collectives:
            assert 0 <= collective.exposed_s <= collective.seconds * (1 + 1e-9)
            assert collective.ranks > 1


@pytest.mark.parametrize("field", ["cluster.link", "cluster.intra_link"])
def test_more_bandwidth_is_never_slower(field: str) -> None:
    pairs = [(slow, fast) for slow in catalog.links() for fast in catalog.links()
             if slow.per == fast.per and slow.bandwidth_bytes_per_s < fast.bandwidth_bytes_per_s and slow.latency_s >= fast.latency_s]  # fmt: skip
    random = Random(6)
    for one in settings(NUMBER // 2, 6):
        slow, fast = (with_changes(one, [f"{field}={link.name}"]) for link in random.choice(pairs))
        assert step_of(fast).step_s <= step_of(slow).step_s * (1 + 1e-9), (slow.job, fast.job)
