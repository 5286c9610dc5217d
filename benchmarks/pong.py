"""Progress of deep Q-learning in Pong within an hour of one core: returns of evaluation episodes against frames.

    python -m benchmarks.pong --runs /tmp/pong
    python -m benchmarks.pong --runs /tmp/pong --no-training

Trains examples/pong.yaml or resumes it; `--no-training` uses the run in its current state. Then the weights of the last
checkpoint play 20 episodes with seeds outside the evaluations, and so does an untrained agent. An episode ends when one side
has 21 points, so the worst return is −21. Writes benchmarks/results/pong.json and docs/pong.gif, the end of the first of these
episodes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chronograd import job as jobs
from chronograd.figure import save_gif
from chronograd.files import write_json
from chronograd.launch.jobs import create, resume
from chronograd.measure import environment
from chronograd.reinforce import environments
from chronograd.reinforce.agent import Agent, episode_pictures, evaluate
from chronograd.reinforce.build import agent_of
from chronograd.rundir import RunDir, is_run_dir
from chronograd.rundir.steps import Epoch
from chronograd.train.checkpoint_folder import list_checkpoints

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "pong.yaml"
RESULTS = ROOT / "benchmarks" / "results" / "pong.json"
PICTURES = ROOT / "docs" / "pong.gif"
# Offset of the seeds for episodes outside the evaluations of training.
OTHER_EPISODES, NUM_OTHER = 1_000, 20
# The GIF: number of last steps of an episode, seconds of each as played, and width.
NUM_PICTURES = 150
SECONDS_EACH = 4 / 60
WIDTH = 120


def measured(run: RunDir) -> dict[str, Any]:
    """Return the results of a run's steps so far, and of its last weights."""
    job = run.job()
    assert job.reinforcement is not None
    space = environments.space(environments.make(job))
    log = run.read_steps()
    epochs = [one for one in log.of(Epoch) if one.mean_return is not None]
    torch.set_num_threads(1)
    agent = agent_of(job, space, torch.device("cpu"))
    before = other_returns(agent, job)
    agent.restore(list_checkpoints(run.checkpoints)[-1])
    after = other_returns(agent, job)
    pictures = episode_pictures(
        agent, environments.make(job, is_evaluation=True), job.reinforcement, job.training.seed + OTHER_EPISODES
    )
    save_gif(PICTURES, pictures[-NUM_PICTURES:], SECONDS_EACH, WIDTH)
    return {
        "settings": jobs.resolved(job)["reinforcement"],
        "network": job.network.name,
        "params": agent.num_params(),
        "is_finished": run.is_finished,
        "attempts": log.attempts,
        "steps": epochs[-1].step,
        "frames": epochs[-1].step * space.frames_per_step,
        "updates": sum(line.updates or 0 for line in log.steps),
        "median_step_time_s": float(np.median([line.needed("step_time_s") for line in log.steps if line.updates])),
        "evaluation": {
            "episodes": epochs[-1].episodes,
            "steps": [one.step for one in epochs],
            "frames": [one.step * space.frames_per_step for one in epochs],
            "mean_return": [one.mean_return for one in epochs],
            "return_low": [one.return_low for one in epochs],
            "return_high": [one.return_high for one in epochs],
        },
        "other_episodes": {"untrained": before, "trained": after},
    }


def other_returns(agent: Agent, job: jobs.Job) -> list[float]:
    """Return the returns of episodes with seeds outside the evaluations."""
    assert job.reinforcement is not None
    games = [environments.make(job, is_evaluation=True) for _ in range(NUM_OTHER)]
    return evaluate(agent, games, job.reinforcement, OTHER_EPISODES + job.training.seed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the run directory; created if missing")
    parser.add_argument("--no-training", action="store_true", help="evaluate an existing run in its current state")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(argv)
    path = asked.runs / "pong"
    run = RunDir.open(path) if is_run_dir(path) else create(jobs.load(EXAMPLE), path)
    if not asked.no_training:
        resume(run)
    row = measured(run)
    where = environment.environment()
    kept = {key: where[key] for key in ("processor", "versions") if key in where}
    write_json(asked.out, {"environment": {**kept, "threads": 1}, **row})
    curve, others = row["evaluation"], row["other_episodes"]
    best = int(np.argmax(curve["mean_return"]))
    print(f"{row['steps']:,} steps, {row['frames']:,} frames, {row['updates']:,} updates")
    print(f"mean return of evaluations: first {curve['mean_return'][0]:.1f}, best {curve['mean_return'][best]:.1f} after "
          f"{curve['frames'][best]:,} frames, last {curve['mean_return'][-1]:.1f}")  # fmt: skip
    for name, returns in others.items():
        print(f"{NUM_OTHER} other episodes, {name}: {np.mean(returns):.1f}, {min(returns):.0f} to {max(returns):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
