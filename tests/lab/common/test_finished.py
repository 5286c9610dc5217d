"""Finished runs as files: a study continues from them on another machine, and repeats none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from chronograd.errors import FileFormatError, JobError
from chronograd.job import Job, changed, from_dict
from chronograd.launch import jobs
from chronograd.rundir import RunDir
from chronograd.rundir.steps import Attempt, End
from chronograd_lab.common import finished
from chronograd_lab.common.runner import StudyRunner, curve, outcome

ALL, TUNED, MORE = "all/seed-0", "tuned/seed-0", "more/seed-0"


def job(weights: Path | None = None) -> Job:
    return from_dict({
        "network": {"name": "small-cnn", "weights": str(weights) if weights else None},
        "data": {"name": "digits", "samples": 100, "test_samples": 50},
        "training": {"batch": 50, "epochs": 1},
    })  # fmt: skip


def conduct(folder: Path, said: list[str], *, with_more: bool = False) -> tuple[StudyRunner, dict[str, RunDir]]:
    """Train a network and another one from its weights; a third one on request."""
    runner = StudyRunner(folder, "chain", "smoke", said.append, parallel=1, threads=1)
    runs = runner.train({ALL: job()})
    from_all = job(runner.path(ALL))
    runs |= runner.train({TUNED: from_all, **({MORE: changed(from_all, ["training.epochs=2"])} if with_more else {})})
    return runner, runs


@pytest.mark.slow
def test_another_machine_repeats_no_finished_run(tmp_path: Path) -> None:
    here, there, said = tmp_path / "here", tmp_path / "there", list[str]()
    runner, runs = conduct(here, said)
    assert runner.derived(runs[TUNED], "answer", lambda: {"right": 42}) == {"right": 42}
    assert len(said) == 2
    files = sorted((here / "finished").rglob("*.json"))
    assert [str(path.relative_to(here)) for path in files] == [
        "finished/smoke/all/seed-0.json",
        "finished/smoke/tuned/seed-0.json",
    ]
    assert all(str(tmp_path) not in path.read_text() for path in files)

    shutil.copytree(here / "finished", there / "finished")
    shutil.move(here, tmp_path / "gone")  # no path of the first machine exists
    again = list[str]()
    other, restored = conduct(there, again)
    assert again == []
    for name, run in runs.items():
        before = RunDir.open(tmp_path / "gone" / "runs" / name)
        assert run.path != restored[name].path
        assert outcome(restored[name]) == outcome(before)
        assert outcome(before)["user_s"] > 0
        assert curve(restored[name].record()) == curve(before.record())
    value = other.derived(restored[TUNED], "answer", lambda: pytest.fail("computed again"))
    assert value == {"right": 42}
    assert other.results({}).notes[0].startswith("Another machine trained 2 runs: ")
    assert conduct(there, again)[0].results({}).notes == other.results({}).notes  # also the next time

    # Only what another run starts from is trained again.
    more, _ = conduct(there, again, with_more=True)
    assert [line.split()[0] for line in again] == [ALL, MORE]
    assert "is trained again" in again[0]
    assert more.results({}).notes[0].startswith("Another machine trained 1 run: ")
    assert more.derived(restored[TUNED], "another answer", lambda: 7) == 7
    assert again[2:] == [f"{TUNED} is trained again: another answer needs its weights"]
    assert more.results({}).notes == []


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a finished run with a real record."""
    folder = tmp_path_factory.mktemp("stored")
    run = jobs.train(job(), out=folder / "run")
    finished.store(run, folder / "finished.json")
    return folder / "finished.json"


def test_processor_time_is_that_of_all_ranks(stored: Path, tmp_path: Path) -> None:
    """It is unknown after a killed attempt, and for a file that was written before it was recorded."""
    run = RunDir.create(job(), {}, tmp_path / "run")
    for rank in (0, 1):
        with run.step_writer(rank) as lines:
            lines.write(Attempt())
            lines.write(End(step=4, user_s=2.5, system_s=0.25 * rank))
    assert finished.processor_time(run) == {"user_s": 5.0, "system_s": 0.25}
    killed = RunDir.create(job(), {}, tmp_path / "killed")
    for event in (Attempt(), End(step=4, user_s=2.5, system_s=0.5)):
        with killed.step_writer(0) as lines:
            lines.write(event)
    assert finished.processor_time(killed) == {"user_s": None, "system_s": None}

    content = json.loads(stored.read_text())
    assert content["derived"].pop(finished.PROCESSOR)["user_s"] > 0
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert finished.processor_time(finished.restore(tmp_path / "old.json", job(), tmp_path / "old"))["user_s"] is None


def test_a_file_of_another_job_is_refused(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="these sections differ: training"):
        finished.restore(stored, changed(job(), ["training.batch=25"]), tmp_path / "run")
    assert stored.stat().st_size < 20_000  # also of a long run: nothing in it grows with the steps
    assert "loss" not in json.loads(stored.read_text())["record"]["curves"]
    on_more_threads = changed(job(), ["cluster.threads=2"])
    assert finished.restore(stored, on_more_threads, tmp_path / "run").is_finished


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other", "version": 1}'])
def test_a_damaged_file_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "finished.json").write_text(content)
    with pytest.raises(FileFormatError, match=r"finished\.json"):
        finished.restore(tmp_path / "finished.json", job(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/a/b/runs/all", "all"),
        ("90 tensors of weights from /home/me/resnet20.th (sha256 ab)", "90 tensors of weights from resnet20.th (sha256 ab)"),
        ("folder:/data/ants and bees", "folder:ants and bees"),
        ("images/s, 1 / 2", "images/s, 1 / 2"),
        ([1.5, None, {"x": "/a/b"}], [1.5, None, {"x": "b"}]),
    ],
)  # fmt: skip
def test_only_the_last_part_of_a_path_stays(value: Any, expected: Any) -> None:
    assert finished.portable(value) == expected
