"""CartPole-v1: how often, how fast and after how many frames agents solve it; a mean return of at least 475 over 100 episodes.

    python -m benchmarks.cartpole --seeds 10 --runs /tmp/cartpole
    python -m benchmarks.cartpole --agents q-learning --seeds 5

Each seed of examples/cartpole.yaml, cartpole-apex.yaml and cartpole-table.yaml is trained until an evaluation reaches the
target, or to the end of its epochs. Its last weights then play 100 more episodes with seeds that did not decide when it
stopped. Finished runs are skipped and interrupted runs resume. `processor_s` is the CPU time of all processes of the run,
including start and evaluations, so other load on the machine does not count. Each run updates benchmarks/results/cartpole.json,
which has for each agent the number of seeds that solved it, and the median frames and seconds until then with an interval.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import job as jobs
from chronograd.files import write_json
from chronograd.launch.jobs import create, resume
from chronograd.measure import environment
from chronograd.reinforce import environments
from chronograd.reinforce.agent import evaluate
from chronograd.reinforce.build import agent_of
from chronograd.rundir import RunDir, is_run_dir
from chronograd.rundir.steps import End
from chronograd.train.checkpoint_folder import list_checkpoints

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "cartpole.json"
EXAMPLES = {"dqn": "cartpole.yaml", "apex": "cartpole-apex.yaml", "q-learning": "cartpole-table.yaml"}
# Offset of the seeds for evaluation episodes that did not stop any run.
OTHER_EPISODES = 1_000


def row(agent: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train one seed or resume it, and play other episodes."""
    job = jobs.load(ROOT / "examples" / EXAMPLES[agent], [f"training.seed={seed}"])
    path = folder / f"{agent}-{seed}"
    run = RunDir.open(path) if is_run_dir(path) else create(job, path)
    record = resume(run, job).record()
    curve = record.curves["training"].columns
    return {
        "agent": agent,
        "seed": seed,
        "processor": environment.processor_name(),
        "is_solved": record["frames_to_return"].value is not None,
        "frames": record.value("frames"),
        "training_time_s": record.value("training_time_s"),
        "wall_time_s": record.value("wall_time_s"),
        "processor_s": sum((end.user_s or 0.0) + (end.system_s or 0.0) for end in run.read_steps().of(End))
        + sum(part["cpu_s"] for part in getattr(record.tables, "agents", ())),
        "frames_per_s": record.value("throughput_frames_per_s"),
        "updates_per_s": record.value("updates_per_s"),
        "params": record.value("trained_params"),
        "mean_return": record.value("mean_return"),
        "best_return": record.value("best_return"),
        "other_episodes_return": other_return(run),
        "curve": {name: curve[name] for name in ("frames", "seconds", "mean_return")},
    }


def other_return(run: RunDir) -> float:
    """Return the mean return of the last weights over the same number of episodes with other seeds."""
    import torch

    job = run.job()
    assert job.reinforcement is not None
    scored = [environments.make(job, is_evaluation=True) for _ in range(job.reinforcement.evaluation_episodes)]
    forgetful = jobs.changed(job, ["reinforcement.replay_size=0"])
    agent = agent_of(forgetful, environments.space(scored[0]), torch.device("cpu"))
    agent.restore(list_checkpoints(run.checkpoints)[-1])
    return float(np.mean(evaluate(agent, scored, job.reinforcement, OTHER_EPISODES + job.training.seed)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=Path, help="folder of the run directories; interrupted runs resume")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(argv)
    rows = {}
    if asked.out.exists():
        rows = {(one["agent"], one["seed"]): one for one in json.loads(asked.out.read_text())["runs"]}
    with tempfile.TemporaryDirectory() as scratch:
        for agent in asked.agents:
            for seed in range(asked.seeds):
                if (agent, seed) not in rows:
                    rows[agent, seed] = made = row(agent, seed, asked.runs or Path(scratch))
                    where = environment.environment()
                    kept = {"versions": where["versions"]}
                    runs = [rows[key] for key in sorted(rows)]
                    write_json(
                        asked.out, {"environment": {**kept, "threads": 1}, "summary": summary(runs), "runs": runs}
                    )
                    print(f"{agent} seed {seed}: {made['mean_return']:.1f} after {made['frames']:,.0f} frames and "
                          f"{made['training_time_s']:.0f} s; other episodes {made['other_episodes_return']:.1f}", flush=True)  # fmt: skip
    for agent, one in summary(list(rows.values())).items():
        words = [
            f"{name} {of['median']:,.0f} ({of['low']:,.0f} … {of['high']:,.0f})"
            for name, of in one["until_solved"].items()
        ]
        print(f"{agent}: solved by {one['solved']} of {one['seeds']} seeds; medians and intervals of {one['coverage']:.0%}: "
              f"{', '.join(words)}")  # fmt: skip
    return 0


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each agent the seeds that solved it, and the median until then with an interval for the median of all seeds.

    With at least nine seeds the interval is from the second smallest to the second largest, otherwise from the smallest to the
    largest. Each seed is below the overall median with probability 1/2, which gives `coverage` for any distribution of seeds.
    """
    told = {}
    for agent in dict.fromkeys(one["agent"] for one in runs):
        own = [one for one in runs if one["agent"] == agent]
        solved = [one for one in own if one["is_solved"]]
        left_out = int(len(solved) >= 9)
        outside = sum(math.comb(len(solved), k) for k in range(left_out + 1)) / 2 ** len(solved) * 2
        until = {}
        for name in ("frames", "training_time_s", "processor_s") if solved else ():
            values = sorted(one[name] for one in solved)
            until[name] = {"median": float(np.median(values)), "low": values[left_out], "high": values[-1 - left_out]}
        told[agent] = {
            "seeds": len(own),
            "solved": len(solved),
            "coverage": max(0.0, 1 - outside),
            "until_solved": until,
        }
    return told


if __name__ == "__main__":
    sys.exit(main())
