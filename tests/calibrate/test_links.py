"""Links: α and β recovered from times that follow the formulas; real collectives between real processes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from chronograd.calibrate import links
from chronograd.calibrate.links import TimedCollective
from chronograd.calibrate.links_worker import STACK, WORKING, stack, working
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.predict.collectives import Topology, all_gather, broadcast, reduce_scatter, ring


@pytest.mark.parametrize(
    ("collective", "formula"),
    [("all_reduce", ring), ("all_gather", all_gather), ("reduce_scatter", reduce_scatter), ("broadcast", broadcast)],
)
def test_alpha_and_beta_are_recovered(collective: str, formula: object) -> None:
    rows = []
    for world in (2, 4):
        for size in (4096, 1_000_000, 16_000_000):
            seconds = formula(size, world, 20e-6, 5e9)  # type: ignore[operator]
            rows.append(TimedCollective(collective, world, size, seconds, seconds, seconds, 1, 0.0, 0.0))
    found = links.fit(rows, collective)
    assert found.latency_s == pytest.approx(20e-6, rel=1e-6)
    assert found.bandwidth_bytes_per_s == pytest.approx(5e9, rel=1e-6)
    assert found.error < 1e-9


def test_exchange_costs_are_recovered() -> None:
    """3 µs for each gradient and buffer and 40 µs for each of two synchronisations, plus the link's time at 1 GB/s."""
    link = catalog.Link(name="one", title="1 GB/s", latency_s=0.0, bandwidth_bytes_per_s=1e9)
    sent = [(one.gradient_bytes + one.buffer_bytes) / 1e9 for one in (STACK, WORKING)]  # two ranks send everything once
    copies = [3e-6 * (one.gradients + one.buffers) for one in (STACK, WORKING)]
    seconds = [2e-3 + sent[0] + copies[0], 2e-3, 9e-3 + sent[1] + copies[1] + 2 * 40e-6, 9e-3]
    assert links.exchange_costs(seconds, Topology(2, 2, link, link)) == pytest.approx((3e-6, 40e-6))


def timed_after_a_burst(sizes: Sequence[int], burst: float) -> list[TimedCollective]:
    """Return all-reduce times of two ranks after a pause: 2α plus the bytes above the burst at B, with noisy α."""
    rows = []
    for size in sizes:
        seconds = 2 * 200e-6 + max(0.0, size - burst) / 40e6
        rows.append(TimedCollective("all_reduce", 2, size, seconds, seconds - 100e-6, seconds + 4e-3, 30, 0.0, 0.0))
    return rows


def test_burst_size_is_recovered() -> None:
    found = links.fit(timed_after_a_burst(links.MESSAGE_BYTES, 262_144), has_burst=True)
    assert found.burst_bytes == pytest.approx(262_144, rel=0.05)
    assert found.bandwidth_bytes_per_s == pytest.approx(40e6, rel=0.01)
    assert found.latency_s == pytest.approx(200e-6, rel=0.1)
    link = links.link_of(found, (2,), "slow-here", ("netns:h1", "netns:h2"))
    assert (link.name, link.burst_bytes) == ("slow-here", found.burst_bytes)
    assert "between netns:h1 and netns:h2" in link.source[0].source


def test_no_burst_is_reported_without_one() -> None:
    rows = timed_after_a_burst(links.MESSAGE_BYTES, 0.0)
    noisy = [dataclasses.replace(row, seconds=row.seconds * (1 + 0.04 * (-1) ** i)) for i, row in enumerate(rows)]
    found = links.fit(noisy, has_burst=True)
    assert found.burst_bytes == 0.0
    assert found.bandwidth_bytes_per_s == pytest.approx(40e6, rel=0.05)
    assert links.link_of(found, (2,)).name == "loopback"


@pytest.fixture(scope="module")
def timed_here() -> list[TimedCollective]:
    return links.measure_links((2, 3), message_bytes=(4096, 262_144), seconds_each=0.02)


def test_collectives_report_the_published_bus_bandwidth(
    timed_here: list[TimedCollective],
) -> None:
    rows = timed_here
    assert {(r.collective, r.world) for r in rows} == {(c, w) for c in links.COLLECTIVES for w in (2, 3)}
    factors = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0}
    for row in rows:
        assert row.low <= row.seconds <= row.high
        assert row.algbw == pytest.approx(row.bytes / row.seconds)
        factor = factors.get(row.collective, lambda n: (n - 1) / n)(row.world)
        assert row.busbw == pytest.approx(row.algbw * factor)


def test_predict_uses_the_link_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    before = catalog.link("loopback")
    command = ["calibrate", "links", "--world", "2", "--collective", "all_reduce", "--seconds", "0.02", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    found = catalog.link("loopback")
    assert found != before
    assert found.latency_s == said["link"]["latency_s"]
    assert found.source[0].tag == "measured"
    assert {row["collective"] for row in said["rows"]} == {"all_reduce"}


def test_invalid_link_options() -> None:
    with pytest.raises(InputError, match="needs 2 processes or more, not 1"):
        links.measure_links((1,))
    with pytest.raises(InputError, match="unknown collective 'gather'"):
        links.measure_links((2,), ("gather",))
    with pytest.raises(InputError, match="no all_reduce was timed"):
        links.fit([])


def test_exchanged_networks_match_their_description(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        for said, make in ((STACK, stack), (WORKING, working)):
            network = make(torch.device("cpu"))[0].module
            gradients, buffers = list(network.parameters()), list(network.buffers())
            assert (said.gradients, said.buffers) == (len(gradients), len(buffers))
            assert said.gradient_bytes == sum(tensor.nbytes for tensor in gradients) < 2**20
            assert said.buffer_bytes == sum(tensor.nbytes for tensor in buffers)
    finally:
        dist.destroy_process_group()
