"""Predictions for clusters: tiers, algorithms, stragglers, input, scaling tables, and evaluation speed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.errors import NotFoundError
from chronograd.hardware import catalog
from chronograd.predict.calibration import from_datasheet
from chronograd.predict.collectives import ALGORITHMS, Topology, all_reduce_s
from chronograd.predict.prediction import predict, predict_step
from chronograd.predict.scaling import crowding
from chronograd.predict.setting import setting_of
from chronograd.record import STEP_PARTS

TRACE = trace_network("alexnet-v2")


def job(batch: int = 2048, **cluster: Any) -> jobs.Job:
    return jobs.from_dict(
        {
            "network": {"name": "alexnet-v2"},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
            "training": {"recipe": "sgd", "batch": batch},
            "cluster": {"device": "v100", **cluster},
            "backend": "ddp",
        }
    )


def exchange_s(algorithm: str = "ring", **cluster: Any) -> float:
    return float(predict_step(TRACE, setting_of(job(**cluster), algorithm)).communication.total_s)


def test_exchange_covers_all_buckets_and_tiers() -> None:
    """Send AlexNet's buckets over two nodes of eight; the ring crosses each node's 25 Gbit/s once."""
    step = predict_step(TRACE, setting_of(job(count=16)))
    link = catalog.link("ethernet-25g")
    sizes = np.array([b.size_bytes for b in step.communication.buckets])
    assert sizes.sum() == 4 * TRACE.params
    expected = (30 * link.latency_s + 2 * 15 / 16 * sizes / link.bandwidth_bytes_per_s).sum()
    assert step.communication.total_s == pytest.approx(expected, rel=1e-12)


def test_backends_exchange_differently() -> None:
    """Horovod fuses up to 64 MiB; DataParallel sends all data through one GPU without overlap."""

    def step(backend: str, **communication: Any) -> Any:
        asked = jobs.from_dict({**jobs.resolved(job(count=4)), "backend": backend, "communication": communication})
        return predict_step(TRACE, setting_of(asked))

    ddp, horovod, data_parallel = (step(name) for name in ("ddp", "horovod", "data_parallel"))
    assert horovod.communication.num_buckets < ddp.communication.num_buckets
    assert step("horovod", bucket_bytes=1).communication.num_buckets > ddp.communication.num_buckets
    half = step("ddp", compression="fp16").communication.total_s
    link, n = catalog.link("nvlink2"), 4
    latency_s = ddp.communication.num_buckets * 2 * (n - 1) * link.latency_s
    assert half - latency_s == pytest.approx((ddp.communication.total_s - latency_s) / 2, rel=1e-9)
    assert data_parallel.communication.exposed_s == pytest.approx(data_parallel.communication.total_s)
    assert data_parallel.communication.total_s > 3 * ddp.communication.total_s


def test_epochs_scale_with_ranks_if_requested() -> None:
    one = jobs.changed(job(count=4), ["training.epochs=8", "training.scale_by_ranks=[learning_rate, epochs]"])
    assert predict(TRACE, one, samples=8192).value("epochs") == 2


def test_hierarchy_beats_ring_across_nodes_only() -> None:
    assert exchange_s("hierarchical", count=16) < 0.6 * exchange_s("ring", count=16)
    assert exchange_s("hierarchical", count=8) == pytest.approx(exchange_s("ring", count=8))
    assert exchange_s("reduce_to_one", count=16) > 5 * exchange_s("ring", count=16)


def test_links_and_nodes_of_the_job() -> None:
    assert exchange_s(count=8, intra_link="pcie3") > 5 * exchange_s(count=8)
    assert exchange_s(count=8, per_node=4) > 10 * exchange_s(count=8)
    assert exchange_s(count=8, per_node=4, link="infiniband-edr") < exchange_s(count=8, per_node=4) / 3
    record = predict(TRACE, job(count=16, per_node=4))
    assert record.cluster.nodes == 4
    assert (record.cluster.per_node, record.cluster.link) == (4, "ethernet-25g")
    with pytest.raises(NotFoundError, match="pcie3"):
        setting_of(job(count=8, intra_link="pcie33"))


def test_straggler_wait_overlaps_with_a_busy_link() -> None:
    """Use a link that limits everything: only forward and the gradients of the first bucket count."""
    fast = predict(TRACE, job(count=2, step_sigma_log=0.1))
    behind = predict(TRACE, job(count=2, step_sigma_log=0.1, per_node=1, link="ethernet-1g"))
    assert behind.value("communication_exposed_s") > behind.value("backward_s")
    assert 0 < behind.value("straggler_wait_s") < 0.9 * fast.value("straggler_wait_s")
    own = sum(behind.value(part) for part in ("input_s", "transfer_s", "forward_s", "update_s"))
    assert behind.value("straggler_wait_s") > np.expm1(0.055) * own


def test_stragglers_add_to_exposed_communication() -> None:
    steady, noisy = predict(TRACE, job(count=8, step_sigma_log=0.0)), predict(TRACE, job(count=8, step_sigma_log=0.1))
    wait = noisy.value("straggler_wait_s")
    alone = steady.value("step_time_s") - steady.value("communication_exposed_s")
    # The expected maximum of eight standard normals is 1.424 (Harter 1961); Blom's formula gives 1.434.
    assert wait == pytest.approx(alone * np.expm1(0.1434), rel=1e-3)
    assert noisy.value("communication_exposed_s") == pytest.approx(steady.value("communication_exposed_s") + wait)
    assert "straggler_wait_s" not in steady.quantities
    assert "stragglers" in steady.provenance.left_out
    assert "stragglers" not in noisy.provenance.left_out


def test_step_takes_at_least_its_input_time() -> None:
    fast = predict(TRACE, job(count=16)).value("step_time_s")
    # Two nodes that each load half of the batch.
    starved = predict(TRACE, job(count=16, input_samples_per_s=1024 / (2 * fast)))
    assert starved.value("step_time_s") == pytest.approx(2 * fast)
    assert starved.value("input_stall_s") == pytest.approx(fast)
    assert starved.value("step_time_s") == pytest.approx(sum(starved.value(part) for part in STEP_PARTS))
    enough = predict(TRACE, job(count=16, input_samples_per_s=1024 / (0.9 * fast)))
    assert (enough.value("step_time_s"), enough.value("input_stall_s")) == (pytest.approx(fast), 0.0)


def test_hundred_thousand_collectives_a_second() -> None:
    v100 = catalog.device("v100")
    links = (catalog.link(v100.node.intra_link), catalog.link(v100.node.inter_link))
    sizes, counts = np.geomspace(1e3, 1e9, 100)[:, None], np.arange(1, 1001)
    start = time.perf_counter()
    for algorithm in ALGORITHMS:
        assert all_reduce_s(algorithm, sizes, Topology(counts, 8, *links)).shape == (100, 1000)
    assert time.perf_counter() - start < 1.0


def test_waiting_ranks_work_more_slowly() -> None:
    """`after_wait` belongs to a measured device. It lengthens a rank's own parts if there are several ranks."""
    v100 = catalog.device("v100")
    woken = v100.model_copy(update={"calibration": {**(v100.calibration or {}), "after_wait": 1.5}})
    alone, late = (predict_step(TRACE, setting_of(job(), device=device)) for device in (v100, woken))
    assert late.parts == alone.parts
    alone, late = (predict_step(TRACE, setting_of(job(count=2), device=device)) for device in (v100, woken))
    for name in ("forward_s", "backward_s", "update_s"):
        assert late.parts[name] == pytest.approx(1.5 * alone.parts[name], rel=1e-12)
    assert late.communication.exposed_s <= alone.communication.exposed_s + 1e-12


def test_free_exchange_differs_from_unmeasured() -> None:
    v100 = catalog.device("v100")

    def exposed_s(**measured: float) -> float:
        device = v100.model_copy(update={"calibration": {**(v100.calibration or {}), **measured}})
        return float(predict_step(TRACE, setting_of(job(count=2), device=device)).communication.exposed_s)

    never, free = exposed_s(), exposed_s(exchange_tensor_s=0.0)
    num_buckets = predict_step(TRACE, setting_of(job(count=2))).communication.num_buckets
    assert exposed_s(exchange_tensor_s=0.0, exchange_meeting_s=1e-3) == pytest.approx(free + 1e-3 * num_buckets)
    assert exposed_s(exchange_meeting_s=1e-3) == never


@pytest.mark.parametrize(
    ("count", "threads", "times"), [(1, None, 1), (2, None, 1), (4, None, 2), (2, 2, 2), (8, 1, 4), (1, 1, 1)]
)
def test_ranks_that_share_cores_are_slower(count: int, threads: int | None, times: float) -> None:
    """Use a processor of two cores. All ranks are on one machine, even if they exceed its cores."""
    processor = catalog.device("cpu")
    here = processor.model_copy(update={"name": "local", "num_units": 2, "calibration": None})
    asked = job(count=count, threads=threads)
    setting = setting_of(asked, device=here)
    assert setting.nodes == 1
    assert crowding(here, asked.cluster, setting.topology) == times
    alone = predict_step(TRACE, setting_of(job(512, count=1), device=here)).parts["forward_s"]
    of_each = predict_step(TRACE, setting_of(job(512 * count, count=count, threads=threads), device=here))
    assert of_each.parts["forward_s"] == pytest.approx(times * alone, rel=1e-12)
    assert crowding(catalog.device("v100"), asked.cluster, setting.topology) == 1


def test_ring_over_two_quads_uses_the_slowest_link() -> None:
    near, far, net = (
        catalog.Link(name=name, title="", latency_s=latency_s, bandwidth_bytes_per_s=rate)
        for name, latency_s, rate in (("near", 1e-6, 12e9), ("across", 2e-6, 6e9), ("net", 3e-6, 3e9))
    )

    def seconds(count: int, **groups: Any) -> float:
        return float(all_reduce_s("ring", 1e9, Topology(count, 8, near, net, **groups)))

    quads = {"per_group": 4, "across": far}
    assert seconds(4, **quads) == seconds(4)
    assert seconds(8, **quads) == pytest.approx(14 * 2e-6 + 2 * 7 / 8 * 1e9 / 6e9)
    assert seconds(16, **quads) == pytest.approx(30 * 3e-6 + 2 * 15 / 16 * 1e9 / 3e9)
    both = all_reduce_s("ring", 1e9, Topology(np.array([4, 8]), 8, near, net, **quads))
    assert both.tolist() == pytest.approx([seconds(4, **quads), seconds(8, **quads)])
    assert Topology(8, 8, near, net, **quads).slowest_link is far


def test_data_parallel_on_two_quads_sends_near_and_far() -> None:
    """Three replicas share the switch of the root, and four are under the other one."""
    asked = jobs.from_dict({**jobs.resolved(job(device="k80-gk210", count=8)), "backend": "data_parallel"})
    communication = predict_step(TRACE, setting_of(asked)).communication
    near, across = catalog.link("pcie3"), catalog.link("pcie3-groups")
    sizes = np.array([bucket.size_bytes for bucket in communication.buckets])
    each = [link.latency_s + sizes / link.bandwidth_bytes_per_s for link in (near, across)]
    sent_s = sum(float(bucket.seconds) for bucket in communication.buckets)
    assert sent_s == pytest.approx(float(np.sum(2 * 3 * each[0] + 2 * 4 * each[1])), rel=1e-12)


def test_link_in_the_job_applies_to_the_whole_machine() -> None:
    quads = setting_of(job(device="k80-gk210", count=8)).topology
    assert (quads.per_group, quads.slowest_link.name) == (4, "pcie3-groups")
    assert setting_of(job(device="k80-gk210", count=8, intra_link="pcie4")).topology.slowest_link.name == "pcie4"


def test_eight_gpus_are_less_than_eight_times_as_fast() -> None:
    """Published: 0.84 to 1.00 of linear on 8 GPUs. A job may request steady ranks, and processors differ from GPUs."""
    step = predict_step(TRACE, setting_of(job(count=8)))
    steady = predict_step(TRACE, setting_of(job(count=8, step_sigma_log=0.0)))
    assert step.straggler_wait_s > 0 == steady.straggler_wait_s
    assert 0.84 < steady.seconds / step.seconds < 0.96
    assert setting_of(job(count=8, device="cpu")).step_sigma_log == 0.0


def test_rank_alone_runs_at_the_speed_of_an_idle_neighbour() -> None:
    """The piece of work takes 2 ms on a core alone, and 2.5 ms next to another rank, where the calibration was measured."""
    beside = replace(from_datasheet(catalog.device("cpu")), processes=2, threads=1, provenance={"pace_s": 2.5e-3})
    tables = {"settings": [beside.to_table()]}
    before, after = (
        catalog.device("cpu").model_copy(update={"calibration": {**tables, **measured}})
        for measured in ({}, {"pace_s": 2e-3})
    )
    one, alone = (predict_step(TRACE, setting_of(job(), device=device)) for device in (before, after))
    assert alone.seconds == pytest.approx(0.8 * one.seconds)
    both, beside_another = (predict_step(TRACE, setting_of(job(count=2), device=device)) for device in (before, after))
    assert beside_another.parts == both.parts
    slower = after.model_copy(update={"calibration": {**tables, "pace_s": 3e-3}})
    assert predict_step(TRACE, setting_of(job(), device=slower)).parts == one.parts
    timed = replace(beside, provenance={"pace_s": 2.5e-3, "alone_share": 0.9})
    blocks = after.model_copy(update={"calibration": {"pace_s": 2e-3, "settings": [timed.to_table()]}})
    assert predict_step(TRACE, setting_of(job(), device=blocks)).seconds == pytest.approx(0.9 * one.seconds)
