"""Deep Q-learning and its replay compared with CleanRL's way, Stable-Baselines3, torchrl and rlox (Rust), each in its best way.

    python -m benchmarks.reinforcement [--rounds R --json FILE]

The packages are installed once into a separate environment in the user's cache, which also sees the packages of this one. The
benchmark then runs in it. Agents, see benchmarks.deep_q: environment steps and updates per second on CartPole. Replay:
transitions per second in a full replay, with the same transitions for all. Observations are four floats, as in CartPole, or 84
× 84 bytes. In every round every contender does each piece of work once, in an order that rotates. A ratio is paired within a
round, and its spread is the 80 % interval of rounds. Everything runs in one process with one thread.

Some conditions differ. Stable-Baselines3 and torchrl return minibatches as tensors, rlox and ours as arrays. Our time includes
conversion to tensors, which share memory with the arrays. rlox has neither n-step discounts nor byte observations, and casts.
Stable-Baselines3 has no priorities.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import deep_q
from chronograd.files import write_json

PACKAGES = (
    "stable-baselines3==2.9.2",
    "torchrl==0.14.1",
    "tensordict>=0.14.3,<0.15",
    "rlox==1.2.0",
    "gymnasium",
    "hoptorch",
)
NEEDED = ("pandas", "pyvers", "orjson", "importlib_metadata", "cloudpickle", "farama-notifications")
RESULTS = Path(__file__).parent / "results" / "reinforcement.json"
CAPACITY, BLOCK, ROUNDS = 100_000, 64, 15
WORK_S = 0.05  # seconds of one piece of work in one round
OURS = "chronograd"
# Lowest ratio of our rate to theirs that meets our aim.
AIMS = {"plain": 1.0, "stable-baselines3": 1.0, "torchrl": 1.0, "rlox": 0.5}
ALPHA, BETA = 0.6, 0.4
Work = Callable[[], object]


# -- environment of the other packages ----------------------------------------------------------------------


def environment() -> Path:
    """Return the interpreter that has all packages; creates its environment if missing."""
    import platformdirs

    key = hashlib.sha256(repr((sys.prefix, sys.version, PACKAGES)).encode()).hexdigest()[:8]
    folder = Path(platformdirs.user_cache_path("chronograd")) / "replays" / key
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making {folder}", flush=True)
        venv.create(folder, symlinks=True, with_pip=True, clear=True)
        packages = next((folder / "lib").glob("python3*")) / "site-packages"
        own = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "seen.pth").write_text("".join(f"{path}\n" for path in own))
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", *PACKAGES], check=True)
        subprocess.run([*pip, *NEEDED], check=True)
        (folder / "ready").write_text("")
    return python


# -- contenders ---------------------------------------------------------------------------------------------


class Data:
    """Transitions, which are the same for all contenders."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, count: int) -> None:
        rng = np.random.default_rng(0)
        self.shape, self.dtype, self.count = shape, np.dtype(dtype), count
        self.observations = self._drawn(rng, count)
        self.next_observations = self._drawn(rng, count)
        self.actions = rng.integers(0, 2, count)
        self.rewards = rng.normal(size=count).astype(np.float32)
        self.discounts = np.full(count, 0.99, np.float32)
        self.priorities = rng.gamma(1.0, size=count)

    def _drawn(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.dtype == np.uint8:
            return rng.integers(0, 256, (count, *self.shape), dtype=np.uint8)
        return rng.normal(size=(count, *self.shape)).astype(self.dtype)


def ours(data: Data, capacity: int, batch: int, has_priorities: bool) -> dict[str, Work]:
    import torch

    from chronograd.reinforce.replay import ProportionalReplay, Transitions, UniformReplay

    replay = ProportionalReplay(capacity, ALPHA, BETA) if has_priorities else UniformReplay(capacity)
    everything = Transitions(data.observations, data.actions, data.rewards, data.next_observations, data.discounts)
    for start in range(0, capacity, data.count):
        replay.add(everything[: capacity - start], data.priorities[: capacity - start])
    block, one, rng = everything[:BLOCK], everything[:1], np.random.default_rng(1)
    indices, priorities = replay.sample(batch, rng).indices, data.priorities[:batch]

    def sample() -> None:
        drawn = replay.sample(batch, rng)
        for name in Transitions.__slots__:
            torch.from_numpy(getattr(drawn.transitions, name))
        torch.from_numpy(drawn.weights)

    of_block, of_one = data.priorities[:BLOCK], data.priorities[:1]
    return {
        "push one": lambda: replay.add(one, of_one),
        "push block": lambda: replay.add(block, of_block),
        "sample": sample,
        "update": lambda: replay.update(indices, priorities),
    }


def stable_baselines3(data: Data, capacity: int, batch: int, has_priorities: bool) -> dict[str, Work]:
    if has_priorities:
        return {}
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    low, high = (0, 255) if data.dtype == np.uint8 else (-np.inf, np.inf)
    space = spaces.Box(low, high, data.shape, data.dtype.type)

    def replay(num_envs: int) -> tuple[Any, Work]:
        buffer = ReplayBuffer(capacity, space, spaces.Discrete(2), "cpu", num_envs, handle_timeout_termination=False)
        first, after = data.observations[:num_envs], data.next_observations[:num_envs]
        actions, rewards, dones = data.actions[:num_envs, None], data.rewards[:num_envs], np.zeros(num_envs)
        infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        return buffer, lambda: buffer.add(first, after, actions, rewards, dones, infos)

    full, push = replay(1)
    for _ in range(full.buffer_size):
        push()
    _, push_block = replay(BLOCK)
    return {"push one": push, "push block": push_block, "sample": lambda: full.sample(batch)}


def torchrl(data: Data, capacity: int, batch: int, has_priorities: bool) -> dict[str, Work]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

    def transitions(count: int) -> Any:
        fields = {
            "observation": data.observations, "action": data.actions, "reward": data.rewards,
            "next_observation": data.next_observations, "discount": data.discounts,
        }  # fmt: skip
        return TensorDict({name: torch.from_numpy(values[:count].copy()) for name, values in fields.items()}, [count])

    storage = LazyTensorStorage(capacity)
    if has_priorities:
        buffer: Any = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=batch)
    else:
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=batch)
    whole = transitions(data.count)
    for start in range(0, capacity, data.count):
        buffer.extend(whole[: capacity - start])
    one, block = transitions(1)[0], transitions(BLOCK)
    work: dict[str, Work] = {
        "push one": lambda: buffer.add(one), "push block": lambda: buffer.extend(block), "sample": buffer.sample,
    }  # fmt: skip
    if has_priorities:
        indices, priorities = buffer.sample()["index"], torch.from_numpy(data.priorities[:batch].astype(np.float32))
        work["update"] = lambda: buffer.update_priority(indices, priorities)
    return work


def rlox(data: Data, capacity: int, batch: int, has_priorities: bool) -> dict[str, Work]:
    if data.dtype == np.uint8:
        return {}
    import rlox

    size = int(np.prod(data.shape))
    buffer: Any = rlox.PrioritizedReplayBuffer(capacity, size, 1, ALPHA, BETA) if has_priorities else rlox.ReplayBuffer(capacity, size, 1)  # fmt: skip
    action, first, after = np.ones(1, np.float32), data.observations[0], data.next_observations[0]
    of = [(float(p),) if has_priorities else () for p in data.priorities]
    for i in range(capacity):
        buffer.push(first, action, 1.0, False, False, after, *of[i % data.count])
    seeds = iter(range(10**9))
    mine = of[0]
    work: dict[str, Work] = {
        "push one": lambda: buffer.push(first, action, 1.0, False, False, after, *mine),
        "sample": lambda: buffer.sample(batch, next(seeds)),
    }
    if has_priorities:

        def push_block() -> None:  # it cannot add several at once
            for i in range(BLOCK):
                buffer.push(first, action, 1.0, False, False, after, *of[i])

        indices, priorities = buffer.sample(batch, 0)["indices"], data.priorities[:batch]
        work |= {"push block": push_block, "update": lambda: buffer.update_priorities(indices, priorities)}
    else:
        flat = data.observations[:BLOCK].reshape(-1), data.next_observations[:BLOCK].reshape(-1)
        actions, ends = np.ones(BLOCK, np.float32), np.zeros(BLOCK, np.uint8)
        work["push block"] = lambda: buffer.push_batch(*flat, actions, data.rewards[:BLOCK], ends, ends)
    return work


CONTENDERS = {OURS: ours, "stable-baselines3": stable_baselines3, "torchrl": torchrl, "rlox": rlox}
# Name, shape, type, capacity, minibatch, priorities.
SETTINGS: tuple[tuple[str, tuple[int, ...], Any, int, int, bool], ...] = (
    ("uniform, 4 floats, batch 32", (4,), np.float32, CAPACITY, 32, False),
    ("uniform, 4 floats, batch 512", (4,), np.float32, CAPACITY, 512, False),
    ("priorities, 4 floats, batch 32", (4,), np.float32, CAPACITY, 32, True),
    ("priorities, 4 floats, batch 512", (4,), np.float32, CAPACITY, 512, True),
    ("uniform, 84 × 84 bytes, batch 32", (84, 84), np.uint8, 10_000, 32, False),
)


# -- the clock ---------------------------------------------------------------------------------------------


def calls_for(work: Work, seconds: float) -> int:
    """Return the number of calls that take about `seconds`."""
    work()
    count = 1
    while True:
        begin = time.perf_counter()
        for _ in range(count):
            work()
        took = time.perf_counter() - begin
        if took > seconds / 4:
            return max(1, round(count * seconds / took))
        count *= 4


def timed(work: Work, calls: int) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - begin) / calls


def race(works: Mapping[str, Work], rounds: int, amount: int) -> dict[str, list[float]]:
    """Return rates by contender, one per round: `amount` per call over the seconds of a call."""
    names = list(works)
    calls = {name: calls_for(works[name], WORK_S) for name in names}
    rates: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for i in range(len(names)):
            name = names[(i + number) % len(names)]
            rates[name].append(amount / timed(works[name], calls[name]))
    return rates


def compared(rates: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Return our rate over that of each other contender: the median of the rounds' ratios, and their 80 % interval."""
    rows = []
    for name, theirs in rates.items():
        if name == OURS:
            continue
        ratios = [mine / other for mine, other in zip(rates[OURS], theirs, strict=True)]
        low, high = (float(q) for q in np.quantile(ratios, (0.1, 0.9)))
        ratio = statistics.median(ratios)
        rows.append({"other": name, "ratio": ratio, "low": low, "high": high, "aim": AIMS[name], "is_met": ratio >= AIMS[name]})  # fmt: skip
    return rows


def raced(
    setting: str, works: Mapping[str, Mapping[str, Work]], amounts: Mapping[str, int], rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each piece of our work that others also do."""
    rows = []
    for piece, amount in amounts.items():
        doing = {name: work[piece] for name, work in works.items() if piece in work}
        if len(doing) == 1:
            continue
        rates = race(doing, rounds, amount)
        rows.append({"setting": setting, "work": piece, "rates_per_s": rates, "compared": compared(rates)})
        print("  ".join(cells(rows[-1])), flush=True)
    return rows


def measure(rounds: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    agents = {name: make() for name, make in deep_q.CONTENDERS.items()}
    rows = raced("agent", agents, deep_q.AMOUNTS, rounds)
    for title, shape, dtype, capacity, batch, has_priorities in SETTINGS:
        data = Data(shape, dtype, min(capacity, 10_000))
        works = {name: make(data, capacity, batch, has_priorities) for name, make in CONTENDERS.items()}
        amounts = {"push one": 1, "push block": BLOCK, "sample": batch, "update": batch}
        rows += raced(title, works, amounts, rounds)
    packages = ("numpy", "torch", "gymnasium", "stable-baselines3", "torchrl", "tensordict", "rlox")
    machine = importlib.import_module("chronograd.measure.environment")
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": machine.processor_name(),
        "cores": machine.cores(),
        "versions": {name: version(name) for name in packages},
        "capacity": CAPACITY,
        "block": BLOCK,
        "rounds": rounds,
        "unit": "per second: steps (act, train), updates (learn), transitions (all else)",
        "rows": rows,
    }


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row: the work, our rate, and its ratio to the other rates with the 80 % interval of rounds."""
    ratios = {one["other"]: f"{one['ratio']:.2f} ({one['low']:.2f} … {one['high']:.2f})" for one in row["compared"]}
    missed = {one["other"] for one in row["compared"] if not one["is_met"]}
    shown = [f"**{ratios[other]}**" if other in missed else ratios.get(other, "") for other in AIMS]
    return [f"{row['setting']}: {row['work']}", f"{statistics.median(row['rates_per_s'][OURS]):,.0f}", *shown]


def table(results: Mapping[str, Any]) -> str:
    """Return the table of the documentation; ratios below the aim are bold."""
    head = ["", "per second", *(f"over {'plain code' if other == 'plain' else other}" for other in AIMS)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *map(cells, results["rows"])]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if not asked.inside:
        root = str(Path(__file__).parents[1])
        paths = [root, f"{root}/src", os.environ.get("PYTHONPATH", "")]
        command = [str(environment()), "-m", "benchmarks.reinforcement", "--inside", "--rounds", str(asked.rounds), "--json", str(asked.json.absolute())]  # fmt: skip
        return subprocess.run(
            command, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}, check=False
        ).returncode  # fmt: skip
    found = measure(asked.rounds)
    write_json(asked.json, found)
    met = [one["is_met"] for row in found["rows"] for one in row["compared"]]
    print(f"{sum(met)} of {len(met)} aims met; {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
