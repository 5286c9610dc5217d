"""Ape-X on this machine: does Chronograd name the bottleneck, and does it predict the useful number of actors?

    python -m benchmarks.agents [--seconds S --repeats R --without PART --json FILE]

Parts are slowed down one at a time with a sleep inside their real work, so the other parts keep their cores. An environment
takes 10 ms a step. A learner takes 60 ms more a minibatch, or a shard 40 ms more a call. A network takes 8 ms more per call for
any number of environments, with one environment per actor. A link carries 10 kB a second. Each slowdown is planted in several
runs, and the cause that `SystemsView.verdict` names is compared with the planted one.

Then, for three settings, the benchmark measures each part with one actor and predicts the rates with more actors
(chronograd.reinforce.balance). Actors are added individually and removed again, in rounds. Last, Gorila and Ape-X do the same
work without a slowdown. Only the sleep is artificial: Ray, CartPole, the networks and the replay are real.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from chronograd import job as jobs
from chronograd.backends.apex.group import ApexGroup, Roles
from chronograd.backends.apex.keepers import ApexLayout, Drawn, ReplayShard
from chronograd.backends.apex.roles import Actor, ApexLearner
from chronograd.backends.gorila.group import GorilaGroup
from chronograd.backends.plan import RAY_ENVIRONMENT
from chronograd.backends.ray_session import cpu_s, ray_module, ray_session, take_along
from chronograd.files import write_json
from chronograd.measure import environment
from chronograd.reinforce import balance
from chronograd.reinforce.balance import BalanceSetting
from chronograd.reinforce.replay import Transitions
from chronograd.reinforce.replay.transitions import Array
from chronograd.reinforce.systems import Report, SystemsView

RESULTS = Path(__file__).parent / "results" / "agents.json"
SECONDS = 4.0
REPEATS = 4
MAX_ACTORS = 6
SETTLE_S = 1.5
# The best number is the fewest actors within this share of the highest rate; the last few percent are not worth more memory.
WORTH = 0.05
# Wait before the first observation, until all Ray processes have started.
WARM_UP_S = 6.0
# Planted slowdowns, and the cause that the verdict must name.
PLANTED: dict[str, tuple[dict[str, float], str]] = {
    "slow actors": ({"step_s": 0.010}, "environments"),
    "slow learner": ({"learn_s": 0.06}, "learner"),
    "slow replay": ({"shard_s": 0.04}, "replay"),
    "few environments": ({"choose_s": 0.008}, "acting"),
    "narrow link": ({"bytes_per_s": 10e3}, "link"),
}
# Extra seconds of an environment step and of a learner's minibatch.
SETTINGS: dict[str, dict[str, float]] = {
    "a slow learner": {"step_s": 0.006, "learn_s": 0.030},
    "a learner": {"step_s": 0.006, "learn_s": 0.015},
    "a quick learner": {"step_s": 0.006, "learn_s": 0.008},
}
UPDATE_EVERY, BATCH = 8, 64


# -- slow parts -------------------------------------------------------------------------------------------


class Plant:
    """Sleep times of a part, which can be changed while it runs. All zero: no slowdown."""

    def plant(self, what: dict[str, float]) -> None:
        self.sleeps = what

    def pause(self, name: str, times: float = 1.0) -> None:
        seconds = getattr(self, "sleeps", {}).get(name, 0.0) * times
        if seconds:
            time.sleep(seconds)


class PlantedActor(Plant, Actor):
    def _step(self, actions: Array, episodes: list[tuple[float, int]]) -> None:
        self.pause("step_s")
        super()._step(actions, episodes)

    def _choose(self) -> Array:
        self.pause("choose_s")
        return super()._choose()

    def _hand_over(self, transitions: Transitions, priorities: Array) -> Any:
        rate = getattr(self, "sleeps", {}).get("bytes_per_s")
        if rate:
            time.sleep((transitions.nbytes + priorities.nbytes) / rate)
        return super()._hand_over(transitions, priorities)


class PlantedShard(Plant, ReplayShard):
    def add(self, transitions: Transitions, priorities: Array, sent_s: float) -> int:
        size = super().add(transitions, priorities, sent_s)
        self.pause("shard_s")
        self._watch.lap("add_s")
        return size

    def draw(self, shares: Array) -> Drawn | None:
        drawn = super().draw(shares)
        self.pause("shard_s")
        self._watch.lap("draw_s")
        return drawn


class PlantedLearner(Plant, ApexLearner):
    def work(self, num_updates: int) -> Report:
        if not hasattr(self, "_quick"):
            self._quick = self._agent.update

            def slow(sample: Any) -> Any:
                self.pause("learn_s")
                return self._quick(sample)

            self._agent.update = slow  # type: ignore[method-assign]
        return super().work(num_updates)


ROLES = Roles(PlantedActor, PlantedShard, PlantedLearner)


def job_of(update_every: int, algorithm: str = "apex") -> jobs.Job:
    return jobs.from_dict({
        "task": "reinforcement", "network": {"name": "mlp", "options": {"hidden": [64, 64]}},
        "data": {"name": "gymnasium:CartPole-v1"}, "cluster": {"device": "cpu"},
        "training": {"recipe": "dqn", "batch": BATCH, "learning_rate": 5e-4},
        "reinforcement": {"algorithm": algorithm, "replay_size": 20_000, "replay_start": 100, "update_every": update_every,
                          "target_every": 200},
    })  # fmt: skip


# -- runs --------------------------------------------------------------------------------------------------


def plant(group: ApexGroup, what: dict[str, float]) -> None:
    ray_module().get([part.plant.remote(what) for part in (*group.actors, *group.learners, *group.shards)])


def observed(group: ApexGroup, seconds: float, batch: int) -> SystemsView:
    """Return the view of `seconds` of a running group, after one second to settle. Only complete pieces of work count."""
    view = SystemsView(environment.cores(), batch)
    before, begin = 0.0, time.monotonic() + SETTLE_S
    is_settled = False
    for report in group.run(10**9):
        now = time.monotonic()
        if now > begin and not is_settled:
            is_settled = True
            group.shard_reports()
            before = cpu_s()
        elif is_settled:
            view.add([report])
            if now > begin + seconds:
                break  # the next one resumes unfinished work
    view.add(group.shard_reports())
    view.others_cpu_s = cpu_s() - before - sum(part.cpu_s for part in view.parts.values())
    return view


def named(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return each planted slowdown with the cause that the verdict named."""
    rows = []
    job = job_of(UPDATE_EVERY)
    for num_environments, kinds in ((4, [k for k in PLANTED if k != "few environments"]), (1, ["few environments"])):
        layout = ApexLayout(num_actors=2, environments=num_environments, block=40, refresh_every=200)
        with ApexGroup(job, layout, roles=ROLES) as group:
            observed(group, WARM_UP_S, job.training.batch)
            for repeat in range(repeats):
                for kind in kinds:
                    what, expected = PLANTED[kind]
                    plant(group, what)
                    view = observed(group, seconds, job.training.batch)
                    verdict = view.verdict()
                    rows.append({
                        "planted": kind, "repeat": repeat, "expected": expected, "named": verdict.bottleneck,
                        "is_right": verdict.bottleneck == expected, "evidence": verdict.evidence, "rates": view.rates(),
                    })  # fmt: skip
                    print(f"{kind:<18} named {verdict.bottleneck:<13} {'' if rows[-1]['is_right'] else 'WRONG'}  {verdict.evidence[1]}", flush=True)  # fmt: skip
    return rows


def numbers_of_actors(seconds: float, most: int, repeats: int) -> list[dict[str, Any]]:
    """Return minibatches per second with 1, 2, … actors: measured in rounds up and down, and predicted from one actor."""
    found = []
    job = job_of(UPDATE_EVERY)
    layout = ApexLayout(num_actors=most, environments=1, block=20, refresh_every=200)
    with ApexGroup(job, layout, roles=ROLES) as group:
        observed(group, WARM_UP_S, job.training.batch)
        for name, what in SETTINGS.items():
            plant(group, what)
            views: dict[int, list[SystemsView]] = {number: [] for number in range(1, most + 1)}
            for repeat in range(repeats):
                for number in sorted(views, reverse=bool(repeat % 2)):
                    group.active = number
                    views[number].append(observed(group, seconds, job.training.batch))
            found.append(_foretold(name, what, views))
    return found


def _foretold(name: str, what: dict[str, float], views: dict[int, list[SystemsView]]) -> dict[str, Any]:
    """Return one setting: the measurements for each number of actors, and the prediction from one actor's median round."""
    of_one = sorted((view.components() for view in views[1]), key=lambda one: one.actor_s)
    parts = of_one[len(of_one) // 2]
    setting = BalanceSetting(batch=BATCH, draws=BATCH / UPDATE_EVERY, cores=environment.cores())
    foretold = {n: balance.balance(parts, replace(setting, num_actors=n)) for n in views}
    rounds = {n: [_pace(view) for view in of_number] for n, of_number in views.items()}
    measured = {n: statistics.median(paces) for n, paces in rounds.items()}
    row = {
        "setting": name,
        "planted": what,
        "components": asdict(parts),
        "measured_batches_per_s": measured,
        "rounds": rounds,
        "foretold_batches_per_s": {n: one.batches_per_s for n, one in foretold.items()},
        "foretold_bottleneck": {n: one.bottleneck for n, one in foretold.items()},
        "rates": {n: [view.rates() for view in of_number] for n, of_number in views.items()},
        "named_bottleneck": {n: [view.verdict().bottleneck for view in of_number] for n, of_number in views.items()},
        "best_measured": best_number(rounds),
        "best_foretold": best_number({n: [one.batches_per_s] for n, one in foretold.items()}),
        "gain_of_second_learner": balance.gain(parts, replace(setting, num_actors=max(views))),
    }
    print(f"{name}: best {row['best_measured']} actors measured, {row['best_foretold']} predicted; "
          + ", ".join(f"{n}: {measured[n]:.1f} ({foretold[n].batches_per_s:.1f})" for n in measured), flush=True)  # fmt: skip
    return row


def best_number(rounds: dict[int, list[float]]) -> int:
    """Return the smallest number of actors whose rate is not significantly below WORTH of the highest median.

    A rate is not significantly below if the mean of the rounds' ratios to the highest, plus its standard error, reaches that
    share.

    >>> best_number({1: [10.0, 10.2], 2: [18.4, 19.6], 3: [20.0, 19.9]})
    2
    """
    highest = rounds[max(rounds, key=lambda n: statistics.median(rounds[n]))]

    def reached(n: int) -> float:
        ratios = np.array(rounds[n]) / np.array(highest)
        return float(ratios.mean() + (ratios.std(ddof=1) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0))

    return min(n for n in rounds if reached(n) >= 1 - WORTH)


def _pace(view: SystemsView) -> float:
    """Return the minibatches per second that all parts sustain. A faster part may only be catching up on earlier work."""
    rates = view.rates()
    return min(rates["batches_per_s"], rates["steps_per_s"] / UPDATE_EVERY)


def beside(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Return the views of Gorila and of Ape-X at the same work, without a planted slowdown."""
    rows = []
    for kind in ("Ape-X", "Gorila", "Gorila, bundled"):
        job = job_of(UPDATE_EVERY, "apex" if kind == "Ape-X" else "gorila")
        is_bundled = kind == "Gorila, bundled"
        layout = ApexLayout(
            num_actors=0 if is_bundled else 2, learners=1 if kind == "Ape-X" else 2, environments=4, block=40,
            refresh_every=200, shards=0 if is_bundled else 1,
        )  # fmt: skip
        make = ApexGroup(job, layout) if kind == "Ape-X" else GorilaGroup(job, layout, is_bundled)
        with make as group:
            for repeat in range(repeats):
                view = observed(group, seconds, BATCH)
                lines = view.lines
                applied = [line["staleness"] for line in lines if not line["dropped"]]
                row: dict[str, Any] = {"kind": kind, "repeat": repeat, "rates": view.rates(), "params": group.num_params,
                       "staleness": float(np.mean(applied)) if applied else None, "most_stale": max(applied, default=None),
                       "dropped": sum(bool(line["dropped"]) for line in lines), "applied": len(applied)}  # fmt: skip
                rows.append(row)
                print(f"{kind}: staleness {row['staleness']}, dropped {row['dropped']}, " + ", ".join(
                    f"{name} {value:.4g}" for name, value in row["rates"].items()), flush=True)  # fmt: skip
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--most", type=int, default=MAX_ACTORS)
    parser.add_argument("--without", choices=("named", "numbers", "beside"), nargs="*", default=[])
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args(argv)
    os.environ |= {**RAY_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    results = _earlier(asked.json)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "beside": lambda: beside(asked.seconds, min(3, asked.repeats)),
        "numbers": lambda: numbers_of_actors(asked.seconds, asked.most, asked.repeats),
        "named": lambda: named(asked.seconds, asked.repeats),
    }
    with tempfile.TemporaryDirectory() as folder, ray_session(Path(folder), "the benchmark's parts", num_cpus=2):
        for name in [name for name in parts if name not in asked.without]:
            results[name] = parts[name]()
            _save(asked.json, results, asked.seconds)
    take_along()
    return 0


def _save(path: Path, results: dict[str, Any], seconds: float) -> None:
    right = [row["is_right"] for row in results.get("named", [])]
    near = [abs(row["best_measured"] - row["best_foretold"]) <= 1 for row in results.get("numbers", [])]
    results |= {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": environment.processor_name(),
        "cores": environment.cores(),
        "seconds": seconds,
        "right": [sum(right), len(right)],
        "within_one": [sum(near), len(near)],
    }
    write_json(path, results)
    print(f"named right: {sum(right)} of {len(right)}; best number within one: {sum(near)} of {len(near)}; {path}")


def _earlier(path: Path) -> dict[str, Any]:
    """Return the part of an earlier run's results that this run does not measure."""
    import json

    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in ("named", "numbers", "beside") if name in found}


if __name__ == "__main__":
    sys.exit(main())
