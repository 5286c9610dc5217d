"""Links: α and β are found again from times that follow the formulas; real collectives between real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.measure import links
from chronograd.measure.links import Timed
from chronograd.predict.collectives import all_gather, broadcast, reduce_scatter, ring


@pytest.mark.parametrize(
    ("collective", "formula"),
    [("all_reduce", ring), ("all_gather", all_gather), ("reduce_scatter", reduce_scatter), ("broadcast", broadcast)],
)
def test_alpha_and_beta_are_found_again(collective: str, formula: object) -> None:
    rows = []
    for world in (2, 4):
        for size in (4096, 1_000_000, 16_000_000):
            seconds = formula(size, world, 20e-6, 5e9)  # type: ignore[operator]
            rows.append(Timed(collective, world, size, seconds, seconds, seconds, 1, 0.0, 0.0))
    found = links.fit(rows, collective)
    assert found.latency_s == pytest.approx(20e-6, rel=1e-6)
    assert found.bandwidth_bytes_per_s == pytest.approx(5e9, rel=1e-6)
    assert found.error < 1e-9


def test_every_collective_is_timed_and_its_bus_bandwidth_is_the_published_multiple() -> None:
    rows = links.measure_links((2, 3), message_bytes=(4096, 262_144), seconds_each=0.02)
    assert {(r.collective, r.world) for r in rows} == {(c, w) for c in links.COLLECTIVES for w in (2, 3)}
    factors = {"all_reduce": lambda n: 2 * (n - 1) / n, "broadcast": lambda n: 1.0}
    for row in rows:
        assert row.low <= row.seconds <= row.high
        assert row.algbw == pytest.approx(row.bytes / row.seconds)
        factor = factors.get(row.collective, lambda n: (n - 1) / n)(row.world)
        assert row.busbw == pytest.approx(row.algbw * factor)


def test_the_link_file_is_what_predict_uses(
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


def test_what_cannot_be_timed_is_refused() -> None:
    with pytest.raises(InputError, match="over 1 process"):
        links.measure_links((1,))
    with pytest.raises(InputError, match="no collective 'gather'"):
        links.measure_links((2,), ("gather",))
    with pytest.raises(InputError, match="no all_reduce was timed"):
        links.fit([])
