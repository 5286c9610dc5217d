# %% Returns of agents at the end, and Welch's t-test of each pair of agents over the seeds.
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy import stats

from chronograd_lab.common.results import Results
from chronograd_lab.common.returns import SMOKE
from chronograd_lab.common.rows import grouped, mean
from chronograd_lab.exercises.problems import results, trained

LEARNING = {"steps_per_epoch": 1000, "epsilon_steps": 2000, "replay_size": 5000, "target_every": 100, "update_every": 2}
AGENT: Any = SMOKE["agent"]
SMALL: dict[str, Any] = {"epochs": 4, "seeds": 1, "hidden": [64], "agent": {**AGENT, **LEARNING}}


def show_pairs(study: Results) -> None:  # mean returns at the end, and each pair of agents
    print(f"— size {study.size}")
    runs = study.rows["runs"]
    returns = {agent: [run["last_return"] for run in own] for agent, own in grouped(runs, "agent").items()}
    if study.settings["seeds"] == 1:
        print(*(f"{agent}: {own[0]:.1f}, one seed" for agent, own in returns.items()), sep="\n")
        return
    print(*(f"{agent}: {np.mean(own):.1f} ± {np.std(own, ddof=1):.1f}" for agent, own in returns.items()), sep="\n")
    pairs = list(combinations(returns.items(), 2))
    for (one, ours), (other, theirs) in pairs:
        p = stats.ttest_ind(ours, theirs, equal_var=False).pvalue
        corrected = min(1.0, len(pairs) * p)
        print(
            f"{one} minus {other}: {np.mean(ours) - np.mean(theirs):+.0f}, p = {p:.2g}, with {len(pairs)} pairs {corrected:.2g}"
        )


# %% 3.4.1 An episodic task ends, so its return is a finite sum. In a continuing task, a discount keeps the sum finite.
print("CartPole for 200 steps:", sum([1] * 200))
print(f"a server that earns 1 a second for ever, discount 0.99: {1 / (1 - 0.99):.0f}")
# %% 3.4.2 Bandits with 10 arms: the mean reward after 1,000 steps by the share ε of random actions. Then agents in CartPole.
for name, epsilons in {
    "0": np.zeros(1000),
    "0.1": np.full(1000, 0.1),
    "1 to 0.01": np.geomspace(1, 0.01, 1000),
}.items():
    random, each = np.random.default_rng(0), np.arange(2000)
    arms, sums, counts = random.normal(size=(2000, 10)), np.zeros((2000, 10)), np.full((2000, 10), 1e-9)
    for epsilon in epsilons:
        taken = np.where(random.random(2000) < epsilon, random.integers(10, size=2000), (sums / counts).argmax(1))
        sums[each, taken] += arms[each, taken] + random.normal(size=2000)
        counts[each, taken] += 1
    print(f"ε {name}: {arms[each, taken].mean():.2f} of at most {arms.max(1).mean():.2f}")
for study in (trained("exploration", **SMALL), results("exploration")):
    show_pairs(study)
# %% 3.4.3 A corridor of 6 states that pays 1 at its end. Q-learning has a table, deep Q-learning a network and a replay.
import torch

torch.set_num_threads(1)
random, state, replay = np.random.default_rng(0), 0, []
table, network = np.zeros((6, 2)), torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
optimizer, seen = torch.optim.Adam(network.parameters(), 0.01), torch.eye(6)
for _ in range(1500):
    action = int(random.integers(2))  # 1 goes right; both methods learn from random actions
    after = max(state + 2 * action - 1, 0)
    reward, discount = (1.0, 0.0) if after == 5 else (0.0, 0.9)
    table[state, action] += 0.2 * (reward + discount * table[after].max() - table[state, action])
    replay.append((state, action, reward, discount, after))  # store the transition, then draw a random minibatch
    drawn = [replay[number] for number in random.integers(len(replay), size=32)]
    s, a, r, d, n = (torch.tensor(column) for column in zip(*drawn, strict=True))
    target = r + d * network(seen[n]).max(1).values.detach()
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(network(seen[s])[torch.arange(32), a], target).backward()
    optimizer.step()
    state = after if discount else 0
values = {"exact": 0.9 ** np.arange(4, -1, -1), "table": table[:5, 1], "network": network(seen)[:5, 1].detach().numpy()}
print(*(f"{name:<8} {np.round(own, 2)}" for name, own in values.items()), sep="\n")
# %% 3.4.4 The agent with its target network compared with agents that lack a part.
for study in (trained("dqn-ablation", **SMALL), results("dqn-ablation")):
    show_pairs(study)
# %% 3.4.5 Consecutive states are alike, those of a random minibatch are not. Then the agent with and without replay.
walk = np.random.default_rng(0).normal(size=10_000).cumsum()
minibatch = np.random.default_rng(1).permutation(walk)
print("correlation of neighbours:", *(f"{np.corrcoef(own[1:], own[:-1])[0, 1]:.3f}" for own in (walk, minibatch)))
for study in (trained("dqn-ablation", **SMALL), results("dqn-ablation")):
    both = [run for run in study.rows["runs"] if run["agent"] in ("both", "without replay")]
    show_pairs(replace(study, rows={"runs": both}))
# %% 3.4.6 A transition is drawn in proportion to |error| ** 0.6, and weighted by (N · share) ** −0.4. Then all runs.
shares = (priorities := np.array([2.0, 1.0, 0.5, 0.1]) ** 0.6) / priorities.sum()
weights = (len(shares) * shares) ** -0.4
print("drawn with", shares.round(3), "weighted by", (weights / weights.max()).round(3))
for study in (trained("prioritised-replay", **SMALL), results("prioritised-replay")):
    show_pairs(study)
# %% 3.4.7 Both systems have actors, learners and a replay. They differ in bytes per update, and in the age and draws of data.
for study in (trained("gorila-and-apex"), results("gorila-and-apex")):
    print(f"— size {study.size}")
    for agent, own in grouped(study.rows["runs"], "agent").items():
        names = (
            "updates_per_s",
            "agents_bytes_per_update",
            "agents_parameter_age_updates",
            "agents_draws_of_top_tenth",
        )
        print(agent, {name: value and round(value, 3) for name, value in ((name, mean(own, name)) for name in names)})
show_pairs(results("gorila-and-apex"))
