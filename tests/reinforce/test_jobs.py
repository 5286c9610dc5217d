"""Reinforcement jobs: their fields, refused jobs, a run with its record, and identical weights after a kill."""

from __future__ import annotations

import math
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.fork_server import Server

from chronograd import job as jobs
from chronograd.backends.plan import torch_worker
from chronograd.errors import JobError
from chronograd.explain.answer import explain
from chronograd.job import Job, Reinforcement
from chronograd.launch.jobs import check_anywhere, measure, train
from chronograd.reinforce.agent import Evaluation
from chronograd.reinforce.worker import line_of_epoch
from chronograd.report.runs import report
from chronograd.rundir import RunDir, listing
from chronograd.rundir.steps import EpisodeLine, Epoch
from chronograd.train.checkpoint_folder import Progress, list_checkpoints
from chronograd.units import percent, seconds
from chronograd.watch.progress import LiveRun
from chronograd.watch.terminal import epoch_text

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cartpole.yaml"
SMALL = (
    *(
        "training.epochs=3",
        "training.batch=16",
        "network.options={hidden: [16]}",
        "cluster.threads=1",
        "cluster.device=cpu",
    ),
    *("reinforcement.steps_per_epoch=150", "reinforcement.replay_start=20", "reinforcement.target_every=10"),
    *("reinforcement.evaluation_episodes=3", "reinforcement.replay_size=200", "reinforcement.target_return=null"),
    "reinforcement.update_every=1",
)


def job_of(*overrides: str) -> Job:
    return jobs.load(EXAMPLE, [*SMALL, *overrides])


# -- fields ----------------------------------------------------------------------------------------------


def test_only_reinforcement_jobs_have_an_agent() -> None:
    plain = {"network": {"name": "mlp"}, "data": {"name": "gymnasium:CartPole-v1"}}
    agent = jobs.from_dict({"task": "reinforcement", **plain})
    assert agent.reinforcement == Reinforcement()
    assert "reinforcement" not in jobs.resolved(
        jobs.from_dict({"network": {"name": "lenet5"}, "data": {"name": "digits"}})
    )
    with pytest.raises(JobError, match="only task reinforcement has the section"):
        jobs.from_dict({**plain, "reinforcement": {"discount": 0.9}})


def test_algorithm_defaults_match_two_papers() -> None:
    """Mnih et al. 2015, extended data table 1, and Algorithm 1 of 2013."""
    form = Reinforcement(algorithm="dqn-2015")
    assert (form.discount, form.replay_size, form.replay_start) == (0.99, 1_000_000, 50_000)
    assert (form.update_every, form.target_every, form.loss, form.clip_rewards) == (4, 10_000, "huber", True)
    assert (form.epsilon_start, form.epsilon_end, form.epsilon_steps) == (1.0, 0.1, 1_000_000)
    assert (form.evaluation_epsilon, form.noop_starts) == (0.05, 30)
    older = Reinforcement(algorithm="dqn-2013")
    assert (older.target_every, older.loss, older.update_every, older.replay_size) == (0, "squared", 1, 1_000_000)
    changed = Reinforcement(algorithm="dqn-2013", loss="huber")
    assert (changed.loss, changed.target_every) == ("huber", 0)


@pytest.mark.atari
def test_pong_at_two_sizes() -> None:
    """The paper size uses all defaults and 200 million frames; the laptop size uses faster options."""
    paper, laptop = (jobs.load(EXAMPLE.with_name(f"{name}.yaml")) for name in ("pong-paper", "pong"))
    assert paper.reinforcement == Reinforcement()
    steps = paper.training.epochs * paper.reinforcement.steps_per_epoch
    assert (steps, 4 * steps) == (50_000_000, 200_000_000)
    assert (paper.training.optimizer, paper.training.learning_rate, paper.training.batch) == ("rmsprop", 0.00025, 32)
    assert laptop.reinforcement is not None
    assert laptop.training.epochs * laptop.reinforcement.steps_per_epoch == 300_000
    for job in (paper, laptop):
        check_anywhere(job)


@pytest.mark.atari
@pytest.mark.parametrize("replay", ["uniform", "proportional"])
def test_agent_sees_the_requested_images(tmp_path: Path, replay: str) -> None:
    """The input has one channel per stacked image, also in killed and resumed runs."""
    from safetensors.numpy import load_file

    few = ("training.epochs=1", "training.batch=4", "reinforcement.steps_per_epoch=40", "reinforcement.replay_start=20",
           "reinforcement.replay_size=30", "reinforcement.evaluation_episodes=1", "reinforcement.update_every=4",
           "cluster.threads=1", "cluster.device=cpu")  # fmt: skip
    job = jobs.load(
        EXAMPLE.with_name("pong.yaml"), [*few, f"reinforcement.replay={replay}", "reinforcement.frame_stack=1"]
    )
    check_anywhere(job)
    run = train(job, out=tmp_path / "run")
    assert run.record().value("updates_per_s") > 0
    newest = list_checkpoints(run.checkpoints)[-1]
    assert load_file(newest / "model.safetensors")["0.weight"].shape == (16, 1, 8, 8)
    replay_kept = load_file(newest / "replay.safetensors")
    assert replay_kept["observation"].shape == (30, 1)
    assert replay_kept["frames"].shape[1:] == (84, 84)


def test_job_file_states_only_differences() -> None:
    job = job_of("reinforcement.algorithm=dqn-2013", "reinforcement.loss=squared")
    stated = jobs.stated(job)["reinforcement"]
    assert stated["algorithm"] == "dqn-2013"
    assert "loss" not in stated
    assert stated["target_every"] == 10
    assert jobs.from_dict(jobs.stated(job)) == job
    assert jobs.from_dict(jobs.resolved(job)) == job


def test_default_exponents_depend_on_the_replay() -> None:
    """Schaul et al. 2016, table 3."""
    for replay, exponents in {"proportional": (0.6, 0.4), "rank": (0.7, 0.5)}.items():
        job = job_of(f"reinforcement.replay={replay}")
        assert job.reinforcement is not None
        assert (job.reinforcement.priority_exponent, job.reinforcement.importance_exponent) == exponents
        stated = jobs.stated(job)["reinforcement"]
        assert not {"priority_exponent", "importance_exponent"} & stated.keys()
        assert jobs.from_dict(jobs.stated(job)) == jobs.from_dict(jobs.resolved(job)) == job
    proportional = jobs.changed(job, ["reinforcement.replay=proportional"]).reinforcement
    assert proportional is not None
    assert (proportional.priority_exponent, proportional.importance_exponent) == (0.6, 0.4)
    assert Reinforcement(replay="rank", priority_exponent=0.6).priority_exponent == 0.6
    assert Reinforcement(algorithm="apex").priority_exponent == 0.6


@pytest.mark.gymnasium
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["backend=ddp", "cluster.count=2"], "dqn-2015 runs in one process"),
        (["training.precision=bf16"], "training.precision is bf16, which has no effect on agents"),
        (["training.schedule=cosine"], "training.schedule is cosine"),
        (["training.channels_last=true"], "training.channels_last is True, which has no effect on agents"),
        (["data.image_size=84"], "data.image_size is 84, which has no effect on environments"),
        (["reinforcement.replay_start=300"], "replay_start is 300, which is more than replay_size = 200"),
        (["reinforcement.replay_start=200", "training.epochs=1"], "replay_start is 200, but the job has only 150 steps"),
        (["network.name=table", "network.options={}"], "algorithm is dqn-2015, which does not work with network.name=table"),
        (["reinforcement.algorithm=q-learning"], "reinforcement.*has no effect on a table"),
        (["network.name=dqn-2015", "network.options={}"], "takes images"),
        (["data.name=cartpole"], "not an environment"),
        (["reinforcement.frame_stack=1"], "frame_stack is 1, which applies only to Atari images, not to gymnasium:CartPole-v1"),
        (["reinforcement.frame_stack=17"], "frame_stack.*16"),
    ],
)  # fmt: skip
def test_unsupported_agent_options(overrides: list[str], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        check_anywhere(job_of(*overrides))
    assert refused.value.hint  # type: ignore[attr-defined]


# -- runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train(job_of(), out=tmp_path_factory.mktemp("agents") / "run")


@pytest.mark.gymnasium
class TestRun:
    def test_record_has_returns_frames_and_parts(self, run: RunDir) -> None:
        record = run.record()
        assert record.value("frames") == 450
        assert record["mean_return"].n == 3
        assert 8 <= record.value("mean_return") <= 500
        assert record["best_return"].value >= record["mean_return"].value  # type: ignore[operator]
        assert record["frames_to_return"].value is None
        assert "no reinforcement.target_return" in record["frames_to_return"].reason
        updates = 450 - 20 + 1
        assert record.value("updates_per_s") * record.value("training_time_s") == pytest.approx(updates)
        parts = sum(record.value(name) for name in ("act_s", "environment_s", "replay_s", "learn_s"))
        assert 0.5 < parts / record.value("step_time_s") <= 1.001
        assert record.value("trained_params") == 5 * 16 + 17 * 2

    def test_curves_match_the_lines(self, run: RunDir) -> None:
        record, log = run.record(), run.read_steps()
        curve = record.curves["training"].columns
        assert curve["frames"] == [150, 300, 450]
        assert curve["mean_return"] == [epoch.mean_return for epoch in log.of(Epoch)]
        assert curve["largest_value"] == [epoch.largest_value for epoch in log.of(Epoch)]
        assert all(0 < (value or 0.0) < 100 for value in curve["largest_value"])  # a right Q is below 1 / (1 − 0.99)
        episodes = log.of(EpisodeLine)
        assert record.curves["episodes"].columns["total"] == [one.total for one in episodes]
        assert all(one.total == one.length for one in episodes)  # pole: a reward of 1 per step
        assert sum(line.num_steps or 0 for line in log.steps) == 450
        assert [line.step for line in log.steps][-1] == 450

    def test_run_is_watched_listed_and_reported(self, run: RunDir) -> None:
        live = LiveRun(run)
        ends = live.poll()
        figures = live.figures()
        assert (figures.step, figures.num_steps, figures.epoch, figures.num_epochs) == (450, 450, 3, 3)
        assert figures.mean_return == run.record().value("mean_return")
        assert figures.steps_per_s == pytest.approx(
            450 / sum((x.step_time_s or 0) * (x.num_steps or 0) for x in run.read_steps().steps), rel=1e-6
        )
        assert "mean return" in epoch_text(ends[-1], 3)
        listed = listing.listing(run.path.parent).sections[0].table
        assert listed is not None
        assert any("frames/s" in cell for cell in listed.rows[0])
        page = report([("run", run.path)])
        section, steps = page.sections[:2]
        assert (section.title, steps.title) == ("Returns", "Where an agent's step goes")
        assert section.takeaway.startswith("The agent ended at a mean return")
        assert section.figure is not None
        assert {row["series"] for row in section.rows()} == {"evaluation", "loss"}
        (episode,) = (s for s in page.sections if s.title == "An episode")
        assert "in 6 moments from begin to end" in episode.takeaway

    def test_step_time_is_explained(self, run: RunDir) -> None:
        record = run.record()
        (section,) = explain([run.path]).sections
        seconds_by_part = {row["part"]: row["seconds"] for row in section.data}
        assert sum(seconds_by_part.values()) == pytest.approx(record.value("step_time_s"))
        assert seconds_by_part["learning"] == record.value("learn_s")
        largest = max((part for part in seconds_by_part if part != "else"), key=lambda part: seconds_by_part[part])
        assert (
            f", {largest} takes {percent(seconds_by_part[largest] / record.value('step_time_s'), 0)}."
            in section.takeaway
        )
        outside = record.value("wall_time_s") - record.value("training_time_s")
        assert f"start-up took {seconds(outside)}" in section.lines[1]
        both = explain([run.path, run.path])
        assert [section.title for section in both.sections] == [f"{run.path.name}: where an agent's step goes"] * 2

    def test_run_cannot_be_measured(self) -> None:
        with pytest.raises(JobError, match="learning job cannot be measured"):
            measure(job_of())


def test_epoch_without_an_update_is_reported() -> None:
    """It must not report a non-finite loss, which means divergence."""
    texts = [
        epoch_text(line_of_epoch(Progress(step=150, epoch=1), loss, 1.0, Evaluation([10.0], 2.0)), 3)
        for loss in (None, math.nan, 0.25)
    ]
    assert [text.split("  ")[2] for text in texts] == ["no update yet", "train loss not finite", "train loss 0.2500"]


def test_manual_shows_the_example_job() -> None:
    manual = (EXAMPLE.parent.parent / "docs" / "reinforcement.md").read_text()
    shown = manual.partition("```yaml\n")[2].partition("```")[0]
    assert EXAMPLE.read_text().endswith(shown)
    assert shown.startswith("task: ")


@pytest.mark.gymnasium
def test_run_stops_at_its_target(tmp_path: Path) -> None:
    run = train(job_of("reinforcement.target_return=5"), out=tmp_path / "run")
    record = run.record()
    assert record.provenance.stopped == "the target return was reached"
    assert record.value("frames_to_return") == record.value("frames") == 150
    assert record.value("time_to_return_s") == record.value("training_time_s")


@pytest.mark.gymnasium
def test_table_job(tmp_path: Path) -> None:
    job = jobs.from_dict(
        {
            "task": "reinforcement",
            "network": {"name": "table"},
            "data": {"name": "gymnasium:FrozenLake-v1"},
            "training": {"recipe": "sgd", "learning_rate": 0.1, "epochs": 2},
            "reinforcement": {"algorithm": "q-learning", "steps_per_epoch": 100, "evaluation_episodes": 2},
            "cluster": {"threads": 1, "device": "cpu"},
        }
    )
    record = train(job, out=tmp_path / "run").record()
    assert record.value("trained_params") == 16 * 4
    assert record.value("updates_per_s") * record.value("training_time_s") == pytest.approx(200)


def started(run: RunDir, server: Server) -> subprocess.Popen[bytes]:
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with run.output_path(0).open("ab") as stream:
        return server.popen(  # type: ignore[return-value]
            torch_worker(run.path, ["train"], "chronograd.reinforce.worker"),
            env={**os.environ, **place}, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
        )  # fmt: skip


def end_of(run: RunDir) -> dict[str, Any]:
    newest = list_checkpoints(run.checkpoints)[-1]
    curves = run.record().curves
    return {
        **{path.name: path.read_bytes() for path in newest.glob("*.safetensors")},
        **{name: curves[name].columns for name in ("loss", "episodes")},
        "returns": curves["training"].columns["mean_return"],
    }


@pytest.mark.slow
@pytest.mark.gymnasium
@pytest.mark.parametrize("variant", ["uniform", "proportional"])
def test_killed_run_ends_with_the_same_weights(tmp_path: Path, variant: str, fork_server: Server) -> None:
    """Compare network, target, optimizer, replay (full and wrapped), losses, episodes and returns."""
    more = () if variant == "uniform" else ("reinforcement.n_step=3", "reinforcement.update_every=7")
    job = job_of("training.epochs=4", "reinforcement.steps_per_epoch=120", "reinforcement.replay_size=150",
                 f"reinforcement.replay={variant}", *more)  # fmt: skip
    whole = RunDir.create(job, out=tmp_path / "whole")
    assert started(whole, fork_server).wait() == 0, whole.first_error()
    expected = end_of(whole)
    assert {"model.safetensors", "target.safetensors", "optimizer.safetensors", "replay.safetensors"} < expected.keys()
    chance = random.Random(variant)
    for number in range(3):
        run = RunDir.create(job, out=tmp_path / f"killed-{number}")
        process = started(run, fork_server)
        last = chance.randrange(100 + 100 * number, 400)
        deadline = time.monotonic() + 600
        while not any(line.step >= last for line in run.read_steps().steps):
            assert time.monotonic() < deadline, run.first_error()
        process.kill()
        process.wait()
        assert not run.is_finished
        assert started(run, fork_server).wait() == 0, run.first_error()
        assert end_of(run) == expected
        record = run.record()
        assert record.provenance.attempts == 2
        assert record["lost_s"].value is not None
        assert record.value("redone_steps") == sum(line.num_steps or 0 for line in run.read_steps().discarded)
