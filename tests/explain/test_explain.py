"""Planted causes in real loops of two processes on a busy machine; output and errors of `explain`.

test_causes.py checks thresholds and costs of each cause without processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.explain.planted import Pair
from tests.explain.written import HEALTHY, write_run

from chronograd.cli.main import main
from chronograd.errors import ChronogradError, InputError
from chronograd.explain import answer
from chronograd.explain.causes import CAUSES
from chronograd.explain.explanation import Explained, explain

TRIES = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("planted")) as pair:
        pair.run(steps=8)  # the first run has cold caches
        yield pair


@pytest.fixture(scope="module")
def healthy(pair: Pair) -> Path:
    """A run in which `explain` reports at most the load of other processes.

    One of three attempts must succeed, as the host sometimes slows one rank for a whole run. A wrong inference would
    fail all.
    """
    tries = []
    for _ in range(TRIES):
        path = pair.run()
        tries.append({finding.cause for finding in explain([path]).causes})
        if tries[-1] <= {"busy_host"}:
            return path
    pytest.fail(f"named in {TRIES} healthy runs: {tries}")


@pytest.fixture(scope="module")
def delay_s(healthy: Path) -> float:
    """The duration of a healthy step at the moment, so a planted delay is half of the time."""
    step_s = explain([healthy]).runs[0].split.step_s.value
    assert step_s is not None
    return step_s


def planted(pair: Pair, causes: set[str], **told: Any) -> tuple[Path, Explained]:
    """Return a run with all planted causes reported, in one of three attempts. A busy host is no excuse."""
    tries = []
    for _ in range(TRIES):
        path = pair.run(**told)
        one = explain([path]).runs[0]
        tries.append({finding.cause: finding.cost for finding in one.causes})
        if causes <= tries[-1].keys():
            return path, one
    pytest.fail(f"planted {causes}, and named in {TRIES} runs: {tries}")


def test_healthy_run_of_two_ranks_adds_up(healthy: Path) -> None:
    shares = explain([healthy]).runs[0].split.shares()
    assert sum(share for _, share in shares) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_loop_with_slow_input_bad_sharding_and_no_gpu(pair: Pair, delay_s: float, tmp_path: Path) -> None:
    """Detected from the loader, sampler and environment; the record alone shows the slow input."""
    causes = {"input_bound", "no_sharding", "no_accelerator"}
    path, one = planted(pair, causes, input_s=delay_s, overlap=0.4, gpus=True)
    by_cause = {finding.cause: finding for finding in one.causes}
    assert by_cause["no_sharding"].cost == pytest.approx(1 - 1 / 1.4, abs=0.01)
    assert "CUDA_VISIBLE_DEVICES=0" in by_cause["no_accelerator"].evidence[0]
    (tmp_path / "kept.json").write_bytes((path / "record.json").read_bytes())
    kept = explain([tmp_path / "kept.json"]).runs[0]
    assert (one.run.kind, kept.run.kind) == ("own loop", "record")
    assert "input_bound" in [finding.cause for finding in kept.causes]
    assert kept.split.share("input_s") == pytest.approx(one.split.share("input_s") or 0.0, abs=0.1)


@pytest.mark.slow
def test_loop_with_a_slow_link(pair: Pair, delay_s: float) -> None:
    planted(pair, {"slow_link"}, link_s=delay_s)


@pytest.mark.slow
def test_loop_with_a_slow_rank_and_a_long_start(pair: Pair, delay_s: float) -> None:
    """The loop does not mark its parts."""
    told = {"worker": 1, "worker_s": delay_s, "start_s": 24 * delay_s, "parts": False}
    _, one = planted(pair, {"slow_worker", "start_up"}, **told)
    titles = {finding.cause: finding.title for finding in one.causes}
    assert titles["slow_worker"].startswith("rank 1 is slow")


def test_experiments_with_threads_and_batch_after_a_loop(pair: Pair) -> None:
    """The attempt and its settings are independent of the machine; their cost is not."""
    one = explain([pair.run(threads=4, batch=4, steps=8)]).runs[0]
    (threads,) = (finding for finding in one.findings if finding.cause == "too_many_threads")
    (batch,) = (finding for finding in one.findings if finding.cause == "small_batch")
    assert threads.cost is not None
    assert "2 ranks of 4 threads" in threads.evidence[0]
    assert "measured on every rank at the end of the run" in threads.evidence[1]
    assert batch.cost is not None  # a host is not busy if the run itself has too many threads
    assert "of a rank's batch of 4 samples" in batch.evidence[0]
    assert "with a batch 4 times as large" in batch.evidence[0]


def test_grown_work_between_two_loops(pair: Pair, healthy: Path) -> None:
    """24 steps of 64 samples after 20 of 32."""
    both = explain([healthy, pair.run(world=1, steps=20)])
    assert [row.world for row in both.compared] == [1, 2]
    (grown,) = (finding for finding in both.causes if finding.cause == "work_scaled")
    assert grown.cost == pytest.approx(1 - 20 * 32 / (24 * 64))


def test_explain_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = write_run(tmp_path / "one", world=1)
    slow = write_run(tmp_path / "two", lambda rank, step: {"input_s": HEALTHY["input_s"] + 0.2})
    assert main(["explain", str(slow), str(alone)]) == 0
    text = capsys.readouterr().out
    assert "1. the input pipeline is too slow" in text
    assert "to disprove:" in text
    assert "Rejected causes" in text
    assert main(["explain", str(slow), str(alone), "--json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert data["causes"][0]["cause"] == "input_bound"
    assert [run["world"] for run in data["runs"]] == [1, 2]
    assert data["runs"][1]["step"]["input"]["share"] == pytest.approx(0.201 / 0.3)
    looked_for = {f["cause"] for f in data["runs"][1]["causes"] + data["runs"][1]["others"]}
    assert looked_for == {*CAUSES, "work_scaled"} - {"idle_device"}  # only device traces have this cause


def test_largest_cause_leads_and_a_figure_shows_each_step(tmp_path: Path) -> None:
    """Python reports a wait of 200 ms for the batch in a step of 300 ms; input takes 201 ms."""
    slow = write_run(tmp_path / "two", lambda rank, step: {"input_s": HEALTHY["input_s"] + 0.2})
    told = answer.explain([slow])
    assert told.sections[0].takeaway.startswith("The input pipeline is too slow (67 % of the time)")
    split = next(section for section in told.sections if section.title == "Time of a step")
    assert split.takeaway.startswith("A step of two takes 300 ms: 67 % input, 33 % computation")
    shown = {row["segment"]: row["time per step, ms"] for row in split.rows()}
    assert shown["input"] == pytest.approx(201)
    assert sum(shown.values()) == pytest.approx(300)
    healthy = answer.explain([write_run(tmp_path / "healthy", what_if_batch=(0.09, 0.36))])
    assert healthy.sections[0].takeaway == "No cause costs a tenth of the time of healthy or more."


def test_disturbances_are_known_from_cpu_waits(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", lambda rank, step: {"forward_s": 0.09 if rank else 0.03}, queued=(0.4, 0.6))
    assert answer.disturbances(run) == (
        "other processes use the host (40 % of the time); rank 1 is slow and the others wait for it (38 % of the time)"
    )
    file = run / "steps.0.jsonl"
    file.write_text(file.read_text().replace('"queued_s"', '"other_s"'))
    assert "whether other processes used the host is not known" in answer.disturbances(run)


def test_explain_refuses_files_without_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(InputError, match="twice"):
        explain([run, run])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "environment.json").write_text("{}")
    with pytest.raises(ChronogradError, match="no steps yet"):
        explain([tmp_path / "empty"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ChronogradError, match="is not a run directory"):
        explain([tmp_path / "nothing"])
