"""Planted causes are named first, on real loops of two processes; healthy runs are not blamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.explain.planted import Pair

from chronograd.cli.main import main
from chronograd.errors import ChronogradError, InputError
from chronograd.explain.explanation import Explained, Explanation, explain

SEEDS = (0, 1, 2)
# Of the time; what is planted is sized by the healthy step of this machine, now.
PLAIN, BARE = 0.5, 0.03


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("planted")) as pair:
        pair.run()  # the first has cold caches
        yield pair


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def healthy(pair: Pair, request: pytest.FixtureRequest) -> tuple[int, Explained]:
    return request.param, explain([pair.run(seed=request.param)]).runs[0]


def delay_s(healthy: Explained, cost: float) -> float:
    """What must be added to a step so that it costs such a share."""
    step_s = healthy.split.step_s.value
    assert step_s is not None
    return step_s * cost / (1 - cost)


def named(found: Explanation | Explained) -> list[str]:
    """Causes, the dearest first. On a host that others use, which `explain` says, nothing can be learned of them."""
    causes = [finding.cause for finding in found.causes]
    if "busy_host" in causes:
        pytest.skip("other processes use this machine, and explain says so")
    return causes


def names_nothing(make: Callable[[], Sequence[Path]]) -> None:
    """In one of three runs at least: one rank of two is slowed by its host, now and then, for as long as a run of 24 steps
    takes. What is wrongly inferred is so every time."""
    tries = []
    for _ in range(3):
        tries.append(named(explain(make())))
        if not tries[-1]:
            return
    pytest.fail(f"named in three runs: {tries}")


def test_explain_names_nothing_in_healthy_runs(pair: Pair, healthy: tuple[int, Explained]) -> None:
    seed, one = healthy
    names_nothing(lambda: [pair.run(seed=seed)])
    names_nothing(lambda: [pair.run(seed=seed, world=1, steps=48)])  # as many samples
    names_nothing(lambda: [pair.run(seed=seed, world=1, steps=48), pair.run(seed=seed, parts=False)])
    shares = [share for _, _, share in one.split.rows()]
    assert sum(share or 0.0 for share in shares) == pytest.approx(1, abs=0.02)


SLEEPS = {
    "slow_link": lambda d, seed: {"link_s": d},
    "slow_worker": lambda d, seed: {"worker": seed % 2, "worker_s": d, "parts": seed != 2},
    "input_bound": lambda d, seed: {"input_s": d},
    "start_up": lambda d, seed: {"start_s": 24 * d},
}


@pytest.mark.parametrize("cause", SLEEPS)
def test_explain_names_what_slows_a_step_first(pair: Pair, healthy: tuple[int, Explained], cause: str) -> None:
    seed, one = healthy
    found = explain([pair.run(seed=seed, **SLEEPS[cause](delay_s(one, PLAIN), seed))])
    assert named(found)[0] == cause, found.data()
    first = found.causes[0]
    assert first.cost == pytest.approx(PLAIN, abs=0.2)
    assert any(character.isdigit() for character in " ".join(first.evidence))
    assert first.experiment


@pytest.mark.parametrize("cause", SLEEPS)
def test_explain_says_nothing_of_what_is_barely_there(pair: Pair, healthy: tuple[int, Explained], cause: str) -> None:
    seed, one = healthy
    names_nothing(lambda: [pair.run(seed=seed, **SLEEPS[cause](delay_s(one, BARE), seed))])


def test_explain_names_a_missing_accelerator(pair: Pair, healthy: tuple[int, Explained]) -> None:
    found = explain([pair.run(seed=healthy[0], gpus=True)])
    assert named(found)[0] == "no_accelerator"
    assert "CUDA_VISIBLE_DEVICES=0" in found.causes[0].evidence[0]


def test_explain_names_missing_sharding(pair: Pair, healthy: tuple[int, Explained]) -> None:
    seed = healthy[0]
    whole = explain([pair.run(seed=seed, overlap=1.0)])
    assert named(whole)[0] == "no_sharding"
    assert whole.causes[0].cost == pytest.approx(0.5)
    part = explain([pair.run(seed=seed, overlap=0.4)])
    assert named(part)[0] == "no_sharding"
    assert part.causes[0].cost == pytest.approx(1 - 1 / 1.4, abs=0.01)
    names_nothing(lambda: [pair.run(seed=seed, overlap=0.03)])


def test_explain_names_work_that_grows_with_the_ranks(pair: Pair, healthy: tuple[int, Explained]) -> None:
    seed = healthy[0]
    alone, epochs, batch = (
        pair.run(seed=seed, world=1, steps=20, batch=32),
        pair.run(seed=seed, steps=20, batch=32),
        pair.run(seed=seed, steps=20, batch=16),
    )
    grown = explain([alone, epochs])
    assert named(grown)[0] == "work_scaled"
    assert grown.causes[0].cost == pytest.approx(0.5)
    assert "work_scaled" not in named(explain([batch, alone]))
    assert [row.world for row in grown.compared] == [1, 2]


def test_explain_names_too_many_threads_by_what_they_cost(pair: Pair, healthy: tuple[int, Explained]) -> None:
    seed, one = healthy
    found = explain([pair.run(seed=seed, threads=16)]).runs[0]
    assert one.split.step_s.value
    assert found.split.step_s.value
    if 1 - one.split.step_s.value / found.split.step_s.value > 0.2:
        assert named(found)[0] == "too_many_threads", found.data()
    tried = next(f for f in found.findings if f.cause == "too_many_threads")
    assert tried.cost is not None
    assert "16 threads" in " ".join(tried.evidence)


@pytest.mark.parametrize("batch", [1, 4])
def test_explain_names_a_small_batch_by_what_it_costs(pair: Pair, healthy: tuple[int, Explained], batch: int) -> None:
    seed, one = healthy
    found = explain([pair.run(seed=seed, batch=batch)]).runs[0]
    assert one.split.step_s.value
    assert found.split.step_s.value
    lost = 1 - (one.split.step_s.value / 32) / (found.split.step_s.value / batch)
    if lost > 0.2:
        assert named(found)[0] == "small_batch", (lost, found.data())


def test_explain_reads_well_and_as_json(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(pair.run(world=1)), str(pair.run(input_s=0.2))]
    assert main(["explain", *paths]) == 0
    text = capsys.readouterr().out
    assert "1. the input does not keep up" in text
    assert "to disprove:" in text
    assert "Looked for and not found:" in text
    assert main(["explain", *paths, "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["causes"][0]["cause"] == "input_bound"
    assert data["runs"][1]["step"]["input"]["share"] > 0.2
    assert {f["cause"] for f in data["runs"][1]["causes"] + data["runs"][1]["others"]} == {
        "no_accelerator", "no_sharding", "work_scaled", "slow_link", "slow_worker", "input_bound", "too_many_threads",
        "busy_host", "small_batch", "start_up",
    }  # fmt: skip


def test_a_record_alone_tells_its_shares(pair: Pair, tmp_path: Path) -> None:
    run = pair.run(input_s=0.2)
    whole = explain([run / "record.json"]).runs[0]
    assert whole.run.kind == "own loop"
    (tmp_path / "kept.json").write_bytes((run / "record.json").read_bytes())
    kept = explain([tmp_path / "kept.json"]).runs[0]
    assert kept.run.kind == "record"
    assert named(kept) == ["input_bound"]
    assert kept.split.share("input_s") == pytest.approx(whole.split.share("input_s") or 0.0, abs=0.1)


def test_explain_refuses_what_has_no_steps(tmp_path: Path, pair: Pair) -> None:
    run = pair.run()
    with pytest.raises(InputError, match="twice"):
        explain([run, run])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "environment.json").write_text("{}")
    with pytest.raises(ChronogradError, match="no steps yet"):
        explain([tmp_path / "empty"])
    with pytest.raises(ChronogradError, match="is not a run directory"):
        explain([tmp_path])
