"""Ape-X and Gorila on Ray: messages between the processes, replacement after a crash, and runs as jobs."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from chronograd import job as jobs
from chronograd.errors import RunError
from chronograd.job import Job

pytestmark = [pytest.mark.ray, pytest.mark.gymnasium, pytest.mark.slow]

SMALL: dict[str, Any] = {
    "task": "reinforcement",
    "network": {"name": "mlp", "options": {"hidden": [16]}},
    "data": {"name": "gymnasium:CartPole-v1"},
    "training": {"recipe": "adam", "batch": 16, "learning_rate": 0.001, "epochs": 2},
    "cluster": {"device": "cpu", "threads": 1},
}
AGENT = {
    "steps_per_epoch": 1000, "replay_size": 2000, "replay_start": 200, "update_every": 8, "target_every": 50, "send_every": 20,
    "actors": 1, "environments_per_actor": 2, "evaluation_episodes": 2, "epsilon_steps": 1000, "epsilon_end": 0.1,
}  # fmt: skip
# Actors, learners and shards of one job here.
MAX_PARTS = 4


def job_of(algorithm: str, **changes: Any) -> Job:
    return jobs.from_dict({**SMALL, "reinforcement": {"algorithm": algorithm, **AGENT, **changes}})


@pytest.fixture(scope="module")
def ray_is_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    from chronograd.backends.plan import RAY_ENVIRONMENT
    from chronograd.backends.ray_session import ray_session

    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in RAY_ENVIRONMENT.items():
            patch.setenv(name, value)
        with ray_session(tmp_path_factory.mktemp("ray"), "the parts of a test", num_cpus=MAX_PARTS):
            yield
    signal.signal(signal.SIGTERM, before)


def _layout(job: Job) -> Any:
    from chronograd.backends.apex.run import layout_of

    return layout_of(job)


@pytest.fixture(scope="module")
def apex(ray_is_up: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A group of two actors, two shards and a learner. The first test trains it; the second kills its processes."""
    from chronograd.backends.apex.group import ApexGroup

    job = job_of("apex", actors=2, replay_shards=2, replay_size=20_000)
    with ApexGroup(job, _layout(job), checkpoints=tmp_path_factory.mktemp("apex")) as group:
        yield group


def test_apex_learns_at_the_configured_update_rate(apex: Any) -> None:
    """One update every 8 steps; replay receives every transition; the learner publishes its parameters."""
    from chronograd.reinforce.systems import SystemsView

    view = SystemsView(2, SMALL["training"]["batch"])
    first = apex.parameters()
    for report in apex.run(1500):
        view.add([report])
    view.add(apex.shard_reports())
    last = apex.parameters()
    assert 1500 <= apex.ledger.steps < 1500 + 2 * AGENT["environments_per_actor"]
    updates = apex.ledger.updates
    assert updates == pytest.approx((1500 - 200) / 8, abs=2)
    assert not apex.ledger.deaths
    added, drawn = (sum(shard.total(name) for shard in view.of("replay")) for name in ("added", "drawn"))
    # Each actor still holds at most one block, and steps whose successors are unknown.
    assert 1500 - 2 * (20 + 2 * 3) <= added <= 1500
    assert drawn == pytest.approx(updates * 16, abs=3 * 16)  # some were requested in advance
    assert any(not torch.equal(first[name], last[name]) for name in first)
    rates = view.rates()
    assert 0 < rates["parameter_age_updates"] < updates
    assert rates["priority_age_s"] > 0
    assert 0.1 < rates["draws_of_top_tenth"] < 1
    assert view.verdict().evidence


def test_apex_replaces_dead_processes(apex: Any) -> None:
    """Kill an actor, a shard and the learner: the run goes on and logs the losses.

    Each process of a shard holds exactly the transitions added to it. A dead process takes its transitions with it.
    """
    from chronograd.train.checkpoint_folder import Progress

    killed: list[tuple[str, int]] = []
    sizes: dict[int, dict[int, float]] = {0: {}, 1: {}}  # by shard and process
    added = Counter[int]()  # by process

    def look() -> None:
        for report in apex.shard_reports():
            before = sizes[report.number].get(report.pid, report.more["size"] - report.more["added"])
            sizes[report.number][report.pid] = report.more["size"]
            added[report.pid] += int(report.more["added"])
            assert report.more["size"] == before + report.more["added"]

    look()
    begin = apex.ledger.steps
    is_saved = False
    for _ in apex.run(begin + 2200):
        look()
        steps = apex.ledger.steps - begin
        if steps > 200 and apex.ledger.updates >= 20 and not is_saved:
            apex.save(Progress(step=steps))
            apex.wait_for_checkpoint()
            is_saved = True
        for part, after in ((("actor", 1), 400), (("replay", 0), 700), (("learner", 0), 1000)):
            if steps > after and part not in killed and is_saved:
                os.kill(apex.pids[part], signal.SIGKILL)
                killed.append(part)
    look()
    deaths = {death.role: death.text for death in apex.ledger.deaths}
    assert apex.ledger.steps >= begin + 2200
    assert len(killed) == 3
    assert deaths.keys() == {"actor", "replay", "learner"}
    assert deaths["actor"] == "actor 1 died and was replaced: steps that it had not sent yet"
    assert "updates since its checkpoint after " in deaths["learner"]
    after = int(deaths["learner"].rpartition(" ")[2].replace(",", ""))
    assert after >= 20  # training did not restart
    (old, lost), (new, size) = sizes[0].items()
    assert deaths["replay"] == f"replay shard 0 died and was replaced: its {lost:,.0f} transitions; 1 other kept theirs"
    assert 0 < size == added[new]
    assert old != new
    assert len(sizes[1]) == 1


@pytest.mark.usefixtures("ray_is_up")
@pytest.mark.parametrize("is_bundled", [False, True])
def test_gorila_drops_stale_gradients(is_bundled: bool) -> None:
    """The servers drop every overtaken gradient at a limit of 0; all applied ones have staleness 0."""
    from chronograd.backends.gorila.group import GorilaGroup
    from chronograd.backends.gorila.roles import GradientLimits

    job = jobs.changed(job_of("gorila", learners=2, bundled=is_bundled), ["communication.servers=2"])
    with GorilaGroup(job, _layout(job), is_bundled, GradientLimits(staleness=0, deviations=1e9)) as group:
        first = {name: value.clone() for name, value in group.parameters().items()}
        lines = [line for report in group.run(1500) for line in report.lines]
        last = group.parameters()
    assert group.ledger.steps >= 1500
    assert any(not torch.equal(first[name], last[name]) for name in first)
    applied = [line for line in lines if not line["dropped"]]
    assert sorted(line["step"] for line in applied) == list(
        range(1, len(applied) + 1)
    )  # every update of server 0 belongs to a learner
    assert {line["learner"] for line in lines} == {0, 1}
    assert {line["staleness"] for line in applied} == {0}
    assert all(line["dropped"] == "stale" and line["staleness"] > 0 for line in lines if line["dropped"])
    assert len(applied) < len(lines)


@pytest.mark.parametrize("most", [0, 1, 1000])
def test_server_counts_staleness_and_applies_its_limit(most: int) -> None:
    """Gradients on versions 0, 0, 1, 0: staleness counts applied updates since that version, without dropped ones."""
    from chronograd.backends.gorila.roles import GorilaServer, GradientLimits
    from chronograd.backends.parameter_server.actors import Shard

    server = GorilaServer(Shard((0,), (torch.Size([2]),)), job_of("gorila"), GradientLimits(staleness=most))
    server.start_from(np.ones(2, np.float32), None, 0)
    told = [server.push_unless_stale(np.ones(2, np.float32), version) for version in (0, 0, 1, 0)]
    assert (
        told
        == {
            0: [(1, 0), (0, 1), (2, 0), (0, 2)],
            1: [(1, 0), (2, 1), (3, 1), (0, 3)],
            1000: [(1, 0), (2, 1), (3, 1), (4, 3)],
        }[most]
    )
    version, values = server.get()
    assert version == sum(update > 0 for update, _ in told)
    assert (values < 1).all()


def test_outliers() -> None:
    """A loss a hundred times the others is an outlier; a slow rise and the first losses are not."""
    from chronograd.backends.gorila.roles import KNOWN_LOSSES, Outliers

    losses = Outliers(5.0)
    assert losses.is_one(float("nan"))
    assert not any(losses.is_one(1.0 + 0.1 * (i % 5)) for i in range(2 * KNOWN_LOSSES))
    assert losses.is_one(100.0)
    rising = Outliers(5.0)
    assert not any(rising.is_one(1.0 + 0.1 * (i % 5) + 0.002 * i) for i in range(1000))


@pytest.mark.parametrize("algorithm", ["apex", "gorila"])
def test_killed_run_resumes(tmp_path: Path, algorithm: str) -> None:
    """The same command continues from the checkpoint after kill -9; the record covers both attempts."""
    from chronograd.launch import jobs as launch
    from chronograd.report.runs import report
    from chronograd.rundir.steps import Epoch, Start
    from chronograd.train.checkpoint_folder import list_checkpoints

    # An Ape-X epoch must outlast the 0.1 s between two reads of the run's lines, even on a fast machine.
    num_steps = {"apex": 2000, "gorila": 1000}[algorithm]
    job = job_of(algorithm, steps_per_epoch=num_steps, **({"learners": 2} if algorithm == "gorila" else {}))
    run = launch.create(job, out=tmp_path / "run")

    def kill(line: Any) -> None:
        if isinstance(line, Epoch) and line.epoch == 1:
            deadline = time.monotonic() + 600
            while not list_checkpoints(run.checkpoints):  # written after the line
                assert time.monotonic() < deadline
                time.sleep(0.01)
            (start,) = run.read_steps().of(Start)
            assert start.pid is not None
            os.kill(start.pid, signal.SIGKILL)

    with pytest.raises(RunError):
        launch.resume(run, job, on_line=kill)
    launch.resume(run, job)
    record = run.record()
    assert record.provenance.attempts == 2
    assert record.provenance.stopped == "all epochs were trained"
    assert record.value("frames") >= 2 * num_steps
    # An update every 8 steps, but the first 200 of each attempt, which fill the replay; those after an epoch's last step count.
    updates = record.value("updates_per_s") * record.value("training_time_s")
    assert updates == pytest.approx(2 * (num_steps - AGENT["replay_start"]) / AGENT["update_every"], abs=10)
    lines = run.read_steps().steps
    timed_s = sum((line.step_time_s or 0) * (line.num_steps or 0) for line in lines)
    assert 0 < timed_s < 1.01 * record.value("training_time_s")
    assert record.value("agents_parameter_age_updates") > 0
    assert any("Play of the trained agent" in section.takeaway for section in report([("run", run.path)]).sections)
    if algorithm == "gorila":
        assert record["staleness"].n
        assert any(note.startswith("gradients dropped") for note in record.notes)


@pytest.mark.usefixtures("ray_is_up")
def test_dead_server_is_reported_instead_of_its_learner() -> None:
    """A learner that calls a dead server raises the same Ray error as a learner that died."""
    from chronograd.backends.gorila.group import GorilaGroup
    from chronograd.backends.ray_session import ray_module

    job = jobs.changed(job_of("gorila", learners=2), ["communication.servers=2"])
    with GorilaGroup(job, _layout(job), False) as group:
        pid = ray_module().get(group.servers[1].__ray_call__.remote(lambda server: os.getpid()))
        is_killed = False

        def work() -> None:
            nonlocal is_killed
            for _ in group.run(5000):
                if not is_killed and group.ledger.updates:
                    os.kill(pid, signal.SIGKILL)
                    is_killed = True

        with pytest.raises(
            RunError, match="parameter server 1 of 2, which held its part of the parameters, died: "
        ) as told:
            work()
        assert not group.ledger.deaths
        assert "learner" not in told.value.message


@pytest.mark.usefixtures("ray_is_up")
def test_run_survives_the_loss_of_its_only_replay_shard() -> None:
    """Actors refill an empty shard while they wait for a slow learner, but not after an epoch's last step."""
    from chronograd.backends.apex.group import ApexGroup

    slow = ["network.options.hidden=[256,256]", "training.batch=128"]
    job = jobs.changed(job_of("apex", update_every=1), slow)
    with ApexGroup(job, _layout(job)) as group:
        group.shard_reports()
        deadline, killed_at = time.monotonic() + 600, 0
        for report in group.run(900):
            assert time.monotonic() < deadline, "the run hangs"
            are_actors_held = not any(role == "actor" for role, *_ in group._out.values())
            if not killed_at and report.role == "learner" and report.amount and are_actors_held:
                os.kill(group.pids["replay", 0], signal.SIGKILL)
                killed_at = group.ledger.steps
        assert 200 < killed_at < 900
        assert len(group.ledger.deaths) == 1
        assert group.ledger.updates + group.ledger.written_off == 900 - 200 <= group.ledger.steps
        before = group.ledger.written_off
        group.shard_reports()
        is_killed = False
        for _ in group.run(1000):
            assert time.monotonic() < deadline, "the run hangs"
            if not is_killed and group.ledger.steps >= 1000:
                os.kill(group.pids["replay", 0], signal.SIGKILL)
                is_killed = True
        assert is_killed
        assert group.ledger.written_off > before
        assert group.ledger.updates + group.ledger.written_off == 1000 - 200
        for _ in group.run(1100):  # the next epoch fills it again
            assert time.monotonic() < deadline, "the run hangs"
        assert group.ledger.updates + group.ledger.written_off == 1100 - 200


@pytest.mark.usefixtures("ray_is_up")
def test_learner_dies_during_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run loses nothing and logs the death; until then the driver can write checkpoints within an epoch."""
    from chronograd.backends.apex import run as driver
    from chronograd.backends.apex.group import ApexGroup
    from chronograd.reinforce.agent import Evaluation
    from chronograd.reinforce.worker import evaluated
    from chronograd.rundir import RunDir
    from chronograd.rundir.steps import Epoch, NoteLine
    from chronograd.train.checkpoint_folder import Progress, newest_sound, read_state

    job = job_of("apex")
    run = RunDir.create(job, out=tmp_path / "run")
    saved: list[Progress] = []
    with ApexGroup(job, _layout(job), run.checkpoints) as group, run.step_writer() as lines:
        save = group.save

        def kill_and_evaluate(*arguments: Any) -> Evaluation:
            if len(group.ledger.deaths) == 0:
                os.kill(group.pids["learner", 0], signal.SIGKILL)
                time.sleep(0.1)
            return evaluated(*arguments)

        def note_and_save(progress: Progress) -> None:
            saved.append(progress)
            save(progress)

        monkeypatch.setattr(driver, "evaluated", kill_and_evaluate)
        monkeypatch.setattr(driver, "CHECKPOINT_S", 0.0)
        monkeypatch.setattr(group, "save", note_and_save)
        driver._Run(run, job, group, lines).go_on()
    log = run.read_steps()
    assert [end.epoch for end in log.of(Epoch)] == [1, 2]
    notes = [note.text for note in log.of(NoteLine) if "died" in note.text]
    assert notes == [note for note in notes if note.startswith("learner died and was replaced: ")]
    assert len(notes) == 1
    newest = newest_sound(run.checkpoints)[0]
    assert newest is not None
    assert read_state(newest)["progress"]["stopped"] == "all epochs were trained"
    within = [one for one in saved if one.epoch == 0]
    assert len(within) > 2
    assert [one.training_time_s for one in within] == sorted(one.training_time_s for one in within)
    assert 0 < within[0].training_time_s < within[-1].training_time_s <= log.of(Epoch)[0].seconds


class _Recorder:
    """A Ray actor that records the arguments of its method `act`."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.told = actor, list[int]()
        self.act = self

    def remote(self, count: int, steps_so_far: int) -> Any:
        self.told.append(steps_so_far)
        return self.actor.act.remote(count, steps_so_far)


@pytest.mark.usefixtures("ray_is_up")
def test_gorila_resumes_with_its_epsilon(tmp_path: Path) -> None:
    """Actors receive the 900 steps of the checkpoint plus the steps since then."""
    from chronograd.backends.gorila.group import GorilaGroup
    from chronograd.train.checkpoint_folder import Progress

    job = job_of("gorila")
    with GorilaGroup(job, _layout(job), False, checkpoints=tmp_path) as group:
        group.save(Progress(step=900))
    with GorilaGroup(job, _layout(job), False, checkpoints=tmp_path) as group:
        recorder = _Recorder(group.actors[0])
        group.actors[0] = recorder
        for _ in group.run(100):
            pass
        group.actors[0] = recorder.actor
    assert group.ledger.steps == 100
    assert recorder.told[0] == 900
    assert all(900 <= told < 1000 for told in recorder.told)


def test_replaced_and_resumed_actors_draw_new_numbers() -> None:
    """An actor, its replacement, and the same actor in a resumed run have different random numbers."""
    from chronograd.backends.apex.roles import Actor

    job = job_of("apex")
    firsts = [Actor(0, job, _layout(job), 0.1, [None], None, life)._seen for life in ((0, 0), (1, 0), (0, 900))]
    assert len({np.stack(seen).tobytes() for seen in firsts}) == 3


def test_actors_and_learner_compute_equal_priorities() -> None:
    """Horgan et al. 2018: equal priorities for the same transitions and network; ε where there is no error."""
    from chronograd.backends.apex.roles import Actor
    from chronograd.reinforce.replay import Minibatch, Transitions

    job = job_of("apex", target_every=0)
    actor = Actor(0, job, _layout(job), 0.1, [None], None, (0, 0))
    seen = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    values = actor._agent.values(seen)[:, 0]
    rewards, ends = values + np.array([0, 0.5, -2], np.float32), np.zeros(3, np.float32)
    transitions = Transitions(seen, np.zeros(3, np.int64), rewards, seen, ends)
    first = actor._priorities(transitions)
    assert first.tolist() == pytest.approx([1e-6, 0.5, 2], rel=1e-4)
    later: list[np.ndarray] = []
    actor._agent.replay = SimpleNamespace(update=lambda indices, priorities: later.append(priorities))  # type: ignore[assignment]
    actor._agent.update(Minibatch.of(transitions))
    assert first.tolist() == later[0].tolist()


@pytest.mark.usefixtures("ray_is_up")
@pytest.mark.parametrize("algorithm", ["apex", "gorila"])
def test_diverged_run_ends_after_its_epoch(tmp_path: Path, algorithm: str) -> None:
    from chronograd.backends.apex import run as driver
    from chronograd.backends.apex.group import ApexGroup
    from chronograd.backends.gorila.group import GorilaGroup
    from chronograd.rundir import RunDir

    job = jobs.changed(job_of(algorithm, steps_per_epoch=500), ["training.learning_rate=1e30"])
    run = RunDir.create(job, out=tmp_path / "run")
    make = {"apex": lambda: ApexGroup(job, _layout(job), run.checkpoints),
            "gorila": lambda: GorilaGroup(job, _layout(job), False, checkpoints=run.checkpoints)}[algorithm]  # fmt: skip
    with make() as group, run.step_writer() as lines:
        driver._Run(run, job, group, lines).go_on()
    stopped = run.record().provenance.stopped
    assert stopped == "the loss of epoch 1 is not finite; a lower training.learning_rate may help"
