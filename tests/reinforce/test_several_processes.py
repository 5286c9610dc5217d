"""Job fields of Ape-X and Gorila, and jobs refused before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.errors import JobError
from chronograd.job import Job, Reinforcement
from chronograd.launch.jobs import check_anywhere

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cartpole.yaml"


def job_of(*overrides: str) -> Job:
    return jobs.load(EXAMPLE, [f"reinforcement.{override}" for override in overrides])


def test_apex_defaults_match_the_paper() -> None:
    """Horgan et al. 2018: priorities, 3 steps, double and dueling, a copy every 2,500, and 658 steps per update."""
    form = Reinforcement(algorithm="apex")
    assert (form.replay, form.replay_size, form.n_step, form.double, form.dueling) == (
        "proportional",
        2_000_000,
        3,
        True,
        True,
    )
    assert (form.target_every, form.max_gradient_norm, form.exploration) == (2_500, 40.0, "ladder")
    assert form.update_every == round(12_500 / 19)


def test_program_of_each_algorithm(tmp_path: Path) -> None:
    commands = {name: registry.load("single").plan(job_of(f"algorithm={name}"), tmp_path, ["train"]).command for name in ("dqn-2015", "apex", "gorila")}  # fmt: skip
    assert [command[command.index("-m") + 1] for command in commands.values()] == [
        "chronograd.reinforce.worker", "chronograd.backends.apex.run", "chronograd.backends.apex.run",
    ]  # fmt: skip


@pytest.mark.ray
@pytest.mark.gymnasium
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actors=8"], "reinforcement.actors is 8, which has no effect on dqn-2015"),
        (
            ["algorithm=apex", "learners=2"],
            "reinforcement.learners is 2, which Ape-X does not support: it has one learner",
        ),
        (["algorithm=apex", "exploration=fixed"], "reinforcement.exploration is fixed, which Ape-X does not support"),
        (["algorithm=apex", "replay=rank"], "shards cannot rank together"),
        (["algorithm=gorila", "replay=proportional"], "Gorila draws uniformly"),
        (["algorithm=gorila", "replay_size=0", "replay_start=1"], "learners draw from replay"),
    ],
)
def test_invalid_jobs(overrides: list[str], message: str) -> None:
    with pytest.raises(JobError, match=message):
        check_anywhere(job_of(*overrides))


@pytest.mark.ray
@pytest.mark.gymnasium
def test_valid_jobs() -> None:
    check_anywhere(job_of("algorithm=apex", "actors=3", "replay_shards=2"))
    check_anywhere(job_of("algorithm=gorila", "learners=2", "bundled=true"))
