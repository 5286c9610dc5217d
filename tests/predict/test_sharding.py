"""Memory and traffic of sharded parameters, against sums by hand. tests/backends/test_sharded.py compares them with real ranks."""

from __future__ import annotations

from functools import cache

import pytest

from chronograd import job as jobs
from chronograd.count.cached import cached_trace
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.predict.memory import footprint_of_job
from chronograd.predict.setting import setting_of
from chronograd.predict.sharding import sent_bytes, shared_storages
from chronograd.trace import Trace

LAYERS, WIDTH, FFN, VOCAB, SEQUENCE = 3, 32, 48, 20, 12
# Bytes of a block (four matrices of attention, three of the feed-forward network, two norms) and of the root.
MATRICES = 4 * (4 * WIDTH**2 + 3 * WIDTH * FFN)
BLOCK, ROOT = MATRICES + 4 * 2 * WIDTH, 4 * (2 * VOCAB * WIDTH + WIDTH)


@cache
def trace() -> Trace:
    options = {"layers": LAYERS, "width": WIDTH, "heads": 4, "ffn": FFN, "vocab": VOCAB, "sequence": SEQUENCE}
    return cached_trace("llama-7b", options, input_shape=(SEQUENCE,), num_classes=VOCAB)


def make_job(*overrides: str) -> Job:
    job = jobs.from_dict(
        {
            "network": {"name": "llama-7b"},
            "data": {"name": "tokens", "shape": [SEQUENCE], "classes": VOCAB, "samples": 64},
            "training": {"recipe": "adamw", "batch": 8},
            "cluster": {"device": "a100-80"},
        }
    )
    return jobs.changed(job, overrides)


def fsdp(ranks: int, stage: int, *overrides: str) -> Job:
    return make_job("backend=fsdp", f"cluster.count={ranks}", f"training.zero_stage={stage}", *overrides)


@pytest.mark.parametrize(("stage", "gathered"), [(2, LAYERS * BLOCK + ROOT), (3, 2 * LAYERS * BLOCK + ROOT)])
def test_fsdp_gathers_parameters_and_scatters_gradients(stage: int, gathered: int) -> None:
    assert sent_bytes(trace(), fsdp(4, stage)) == 3 / 4 * (gathered + LAYERS * BLOCK + ROOT)
    parts = fsdp(4, stage, "training.accumulation=2")
    assert sent_bytes(trace(), parts) == 2 * 3 / 4 * (gathered + LAYERS * BLOCK + ROOT)


def test_rows_are_padded_to_equal_numbers() -> None:
    """Three ranks store 11 of 32 rows, 16 of 48, and 7 of 20."""
    square, vector = 4 * 33 * WIDTH, 4 * 33
    block = 4 * square + 2 * 4 * 48 * WIDTH + 4 * 33 * FFN + 2 * vector
    whole = LAYERS * block + 2 * 4 * 21 * WIDTH + vector
    assert sent_bytes(trace(), fsdp(3, 2)) == pytest.approx(2 / 3 * 2 * whole)


def test_tensor_parallel_adds_up_four_activations_per_block() -> None:
    job = make_job("backend=tensor_parallel", "cluster.count=2")
    activation = 4 * 8 * SEQUENCE * WIDTH
    assert sent_bytes(trace(), job) == 2 * 1 / 2 * 4 * LAYERS * activation
    assert sent_bytes(trace(), make_job("backend=ddp", "cluster.count=2")) is None


def test_tensor_parallel_shares_matrices_and_inner_activations() -> None:
    found = trace()
    shared = shared_storages(found)
    by_role = {role: sum(found.storages[i].bytes.const for i in shared if found.storages[i].role == role) for role in ("parameter", "gradient")}  # fmt: skip
    assert by_role == {"parameter": LAYERS * MATRICES, "gradient": LAYERS * MATRICES}
    widths = {found.tensors[i].shape[-1].const for op in found.operators for i in op.outputs if found.tensors[i].storage in shared and op.phase == "forward" and op.module.endswith((".gate", ".up", ".query"))}  # fmt: skip
    assert widths == {FFN, WIDTH}
    whole = [
        op
        for op in found.operators
        if op.module.endswith((".down", ".out")) and op.kind == "gemm" and op.phase == "forward"
    ]
    assert whole
    assert not {found.tensors[i].storage for op in whole for i in op.outputs} & shared
    peak = footprint_of_job(found, make_job("backend=tensor_parallel", "cluster.count=2")).at(8)
    replicated = LAYERS * (BLOCK - MATRICES) + ROOT
    assert peak.parameters == LAYERS * MATRICES / 2 + replicated
    assert peak.optimizer_state == 2 * peak.parameters


def test_fsdp_stores_shards_and_the_gathered_units() -> None:
    """Compare the peak of a large batch, in the loss: stage 2 has all units, stage 3 the root and the block to run next."""
    whole = LAYERS * BLOCK + ROOT
    expected = {2: whole, 3: ROOT + BLOCK}
    for stage, gathered in expected.items():
        peak = footprint_of_job(trace(), fsdp(4, stage)).at(4096)
        assert peak.parameters == whole / 4 + gathered
        assert peak.optimizer_state == 2 * whole / 4
    on_cpu = footprint_of_job(trace(), fsdp(4, 3, "cluster.device=cpu")).at(1).total
    assert on_cpu > footprint_of_job(trace(), fsdp(4, 3)).at(1).total


def test_shards_of_gradients_stay_between_parts_of_a_batch() -> None:
    """Compare the peak of a large batch, in the backward pass of the output matrix, before the first reduction."""
    whole, parts = (footprint_of_job(trace(), fsdp(4, 3, f"training.accumulation={n}")).at(4096) for n in (1, 2))
    assert parts.gradients - whole.gradients == (LAYERS * BLOCK + ROOT) / 4


def test_one_rank_has_the_memory_of_single() -> None:
    single = footprint_of_job(trace(), make_job()).at(8)
    for backend in ("fsdp", "tensor_parallel"):
        assert footprint_of_job(trace(), make_job(f"backend={backend}")).at(8) == single


def test_step_time_of_tensor_parallel_is_refused() -> None:
    with pytest.raises(InputError, match="tensor_parallel, whose step time is predicted for large models only"):
        setting_of(make_job("backend=tensor_parallel", "cluster.count=2"))


def test_networks_without_known_blocks_are_refused() -> None:
    lenet = cached_trace("lenet5", {}, input_shape=(1, 28, 28), num_classes=10)
    with pytest.raises(InputError, match="has no block whose matrices backend tensor_parallel can share"):
        shared_storages(lenet)
