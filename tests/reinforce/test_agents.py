"""Q-learning with a table and with a network: closed forms, a hand-computed step, and each option."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")
from tests.reinforce.corridor import Corridor

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.reinforce import environments
from chronograd.reinforce.agent import Agent, FinishedEpisode, evaluate
from chronograd.reinforce.build import agent_of, replay_of
from chronograd.reinforce.dqn import DQN
from chronograd.reinforce.replay import Minibatch, Transitions
from chronograd.reinforce.tabular import QTable
from chronograd.reinforce.worker import evaluated

pytestmark = pytest.mark.gymnasium
CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "steps_per_epoch": 200, "epsilon_steps": 500, "replay_size": 500, "replay_start": 20, "update_every": 1,
    "target_every": 20, "discount": 0.9, "evaluation_epsilon": 0, "clip_rewards": False,
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: several would wait for each other with such small networks."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def job_of(*, algorithm: str = "dqn-2015", training: dict[str, Any] | None = None, **settings: Any) -> Job:
    is_table = algorithm == "q-learning"
    usual = {k: v for k, v in SETTINGS.items() if not is_table or k in ("steps_per_epoch", "epsilon_steps", "discount")}
    adam = {"recipe": "adam", "learning_rate": 0.003, "batch": 32}
    return jobs.from_dict(
        {
            "task": "reinforcement",
            "network": {"name": "table"} if is_table else {"name": "mlp", "options": {"hidden": [32, 32]}},
            "data": {"name": "gymnasium:CartPole-v1"},
            "training": {**({"recipe": "sgd", "learning_rate": 0.5} if is_table else adam), **(training or {})},
            "reinforcement": {"algorithm": algorithm, **usual, **settings},
        }
    )


def dqn_of(job: Job, environment: Any) -> DQN:
    agent = agent_of(job, environments.space(environment), CPU)
    assert isinstance(agent, DQN)
    return agent


def run_steps(agent: Agent, environment: Any, steps: int, seed: int = 0) -> list[FinishedEpisode]:
    return [episode for _, episode in agent.live(environment, steps, seed) if episode is not None]


def best(length: int, discount: float) -> list[float]:
    return [discount ** (length - 2 - s) for s in range(length - 1)]


def test_table_learns_the_corridor_values() -> None:
    agent = agent_of(job_of(algorithm="q-learning", epsilon_end=0.5), environments.space(Corridor()), CPU)
    assert isinstance(agent, QTable)
    episodes = run_steps(agent, Corridor(), 3000)
    assert agent.q_SA[:4, 1] == pytest.approx(best(5, 0.9), abs=1e-6)
    assert agent.q_SA[0, 0] == pytest.approx(0.9 * 0.9**3, abs=1e-3)  # into the wall, then right
    assert agent.q_SA[4].tolist() == [0, 0]  # terminal: no future reward
    assert episodes[-1].total == 1
    assert agent.episodes >= len(episodes)


def test_hand_computed_table_step() -> None:
    agent = agent_of(job_of(algorithm="q-learning"), environments.space(Corridor()), CPU)
    assert isinstance(agent, QTable)
    agent.q_SA[2] = [3.0, 5.0]
    assert agent.learn(1, 0, 1.0, 2, is_terminal=False) == pytest.approx(1 + 0.9 * 5)
    assert agent.q_SA[1, 0] == pytest.approx(0.5 * 5.5)
    assert agent.learn(1, 0, 1.0, 2, is_terminal=True) == pytest.approx(1 - 2.75)


def test_numbers_are_sorted_into_bins() -> None:
    job = jobs.changed(job_of(algorithm="q-learning"), ["network.options={bins: [2, 4], low: [-1, 0], high: [1, 8]}"])
    space = environments.Space((2,), np.dtype(np.float32), 3)
    agent = agent_of(job, space, CPU)
    assert isinstance(agent, QTable)
    assert agent.q_SA.shape == (8, 3)
    seen = [(-9.0, -9.0), (-0.1, 7.0), (0.1, 1.0), (99.0, 99.0)]
    assert [agent.state(np.array(one)) for one in seen] == [0, 3, 4, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{bins: [a, b], low: [-1, 0], high: [1, 8]}", "network.options is"),
        ("{bins: [2, 4.5], low: [-1, 0], high: [1, 8]}", "network.options is"),
        ("{bins: [2, 4], low: [-1, 0], high: [null, 8]}", "network.options is"),
        ("{bins: [2, 4], low: [-1, 9], high: [1, 8]}", "network.options is"),
        ("{bins: [2, 4], low: [-1, 0], high: [1, 8], middle: 3}", "network.options is"),
        ("{bins: [20000, 20000], low: [-1, 0], high: [1, 8]}", "a table of 400,000,000 states and 3 actions has more"),
        ("{bins: [100000000000, 1000000000000], low: [-1, 0], high: [1, 8]}", "has more than 100,000,000 values"),
    ],
)
def test_invalid_bins(options: str, message: str) -> None:
    job = jobs.changed(job_of(algorithm="q-learning"), [f"network.options={options}"])
    with pytest.raises(InputError, match=message) as refused:
        agent_of(job, environments.Space((2,), np.dtype(np.float32), 3), CPU)
    assert refused.value.hint


@pytest.mark.parametrize("replay", ["uniform", "proportional", "rank"])
def test_diverging_agent_reports_a_non_finite_loss(replay: str) -> None:
    job = job_of(replay=replay, training={"learning_rate": 1e30})
    environment = environments.make(job)
    losses = [loss for loss, _ in dqn_of(job, environment).live(environment, 200, 0) if loss is not None]
    assert not math.isfinite(float(losses[-1]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "dqn-2013", "target_every": 0},
        {"double": True, "dueling": True, "n_step": 3},
        {"replay": "proportional", "importance_updates": 1000},
        {"loss": "squared", "max_gradient_norm": 10.0},
    ],
    ids=["2015", "2013", "double, dueling, 3-step", "prioritised", "squared"],
)
def test_network_learns_the_corridor_values(settings: dict[str, Any]) -> None:
    environment = Corridor(is_number=False)
    agent = dqn_of(job_of(epsilon_end=0.5, **settings), environment)
    run_steps(agent, environment, 1500)
    values = agent.values(np.eye(5, dtype=np.float32)[:4])
    # n-step values include random steps, so going right is worth at most the optimum.
    assert values[:, 1] == pytest.approx(best(5, 0.9), abs=0.15)
    assert (values[:, 1] > values[:, 0]).all()
    assert evaluate(agent, [Corridor(is_number=False)] * 1, agent.settings, 0) == [1.0]


def sample_of(rewards: list[float], discounts: list[float]) -> Minibatch:
    count = len(rewards)
    states = np.eye(5, dtype=np.float32)
    transitions = Transitions(
        observation=states[:count],
        action=np.array([0, 1, 0][:count]),
        reward=np.array(rewards, np.float32),
        next_observation=states[1 : count + 1],
        discount=np.array(discounts, np.float32),
    )
    return Minibatch(transitions, np.arange(count), np.ones(count, np.float32))


def agent_with_other_target(**settings: Any) -> DQN:
    """Return an agent whose target network differs from its network."""
    agent = dqn_of(job_of(**settings), Corridor(is_number=False))
    for parameter in list(agent.target.parameters())[-2:]:
        parameter.neg_()  # so that it prefers the other action
    return agent


@pytest.mark.parametrize("double", [False, True])
def test_hand_computed_targets(double: bool) -> None:
    agent = agent_with_other_target(double=double)
    sample = sample_of([1.0, -2.0, 0.5], [0.9, 0.0, 0.81])
    with torch.no_grad():
        next_seen = torch.from_numpy(sample.transitions.next_observation)
        older, newer = agent.target(next_seen), agent.network(next_seen)
    assert (older.argmax(1) != newer.argmax(1)).any()
    chosen = newer.argmax(1) if double else older.argmax(1)
    by_hand = [r + g * older[i, chosen[i]].item() for i, (r, g) in enumerate([(1.0, 0.9), (-2.0, 0.0), (0.5, 0.81)])]
    assert agent.targets(sample).tolist() == pytest.approx(by_hand, rel=1e-5)
    assert agent.targets(sample)[1].item() == -2.0


def test_network_is_its_own_target_without_copies() -> None:
    agent = dqn_of(job_of(target_every=0), Corridor(is_number=False))
    assert agent.target is agent.network


def test_target_network_is_copied_periodically() -> None:
    agent = dqn_of(job_of(target_every=3), Corridor(is_number=False))
    sample = sample_of([1.0, 0.0, 0.0], [0.9, 0.9, 0.9])
    same = []
    for _ in range(6):
        agent.update(sample)
        pairs = zip(agent.network.parameters(), agent.target.parameters(), strict=True)
        same.append(all(torch.equal(a, b) for a, b in pairs))
    assert same == [False, False, True, False, False, True]


@pytest.mark.parametrize(("loss", "gradient"), [("squared", -2 * 100.0), ("huber", -1.0)])
def test_huber_limits_the_gradient_of_a_large_error(loss: str, gradient: float) -> None:
    """Check the output gradient for a transition whose target is 100 above its value."""
    agent = dqn_of(job_of(loss=loss), Corridor(is_number=False))
    sample = sample_of([0.0], [0.0])
    value = float(agent.values(sample.transitions.observation)[0, 0])
    sample.transitions.reward[:] = value + 100
    agent.update(sample)
    bias = list(agent.network.parameters())[-1]
    assert bias.grad is not None
    assert bias.grad.tolist() == pytest.approx([gradient, 0], rel=1e-4)


def test_weights_multiply_losses() -> None:
    agent = dqn_of(job_of(loss="squared"), Corridor(is_number=False))
    sample = sample_of([1.0, 2.0], [0.0, 0.0])
    errors = (agent.targets(sample) - agent.chosen(sample)).detach()
    sample.weights[:] = [0.5, 0.25]
    expected = float((torch.tensor([0.5, 0.25]) * errors**2).mean())
    assert float(agent.update(sample)) == pytest.approx(expected, rel=1e-5)


def test_without_replay_learns_from_newest_steps_in_order() -> None:
    environment = Corridor(is_number=False)
    agent = dqn_of(job_of(replay_size=0, replay_start=1, update_every=4, epsilon_end=1.0), environment)
    assert agent.replay is None
    learned: list[Minibatch] = []
    real = agent.update

    def update(sample: Minibatch) -> torch.Tensor:
        learned.append(sample)
        return real(sample)

    agent.update = update  # type: ignore[method-assign]
    list(agent.live(environment, 40, 0))
    assert [len(sample.transitions) for sample in learned] == [4] * 10
    places = np.concatenate([sample.transitions.observation.argmax(1) for sample in learned])
    after = np.concatenate([sample.transitions.next_observation.argmax(1) for sample in learned])
    goes_on = after[:-1] != 4
    assert (places[1:][goes_on] == after[:-1][goes_on]).all()


def test_rewards_are_clipped_for_learning_only() -> None:
    class Rich(Corridor):
        def step(self, action: int) -> Any:
            seen, reward, *rest = super().step(action)
            return seen, 50 * reward, *rest

    for clips, most in ((True, 1.0), (False, 50.0)):
        agent = dqn_of(job_of(clip_rewards=clips, epsilon_end=1.0), Rich(is_number=False))
        episodes = run_steps(agent, Rich(is_number=False), 300)
        assert max(episode.total for episode in episodes) == 50
        assert agent.replay is not None
        assert agent.replay.state()["reward"].max() == most


def test_truncated_episode_still_has_a_future() -> None:
    """The last state of a truncated episode counts by γ, that of a terminated one not at all."""
    agent = dqn_of(job_of(epsilon_end=1.0, epsilon_start=1.0), Corridor(is_number=False))
    environment = Corridor(is_number=False, most_steps=3)
    run_steps(agent, environment, 60)
    assert agent.replay is not None
    state = agent.replay.state()
    is_end = state["next_observation"].argmax(1) == 4
    assert set(state["discount"][~is_end].tolist()) == {np.float32(0.9)}
    agent = dqn_of(job_of(epsilon_end=1.0, epsilon_start=1.0), Corridor(is_number=False))
    run_steps(agent, Corridor(is_number=False), 300)
    assert agent.replay is not None
    state = agent.replay.state()
    is_end = state["next_observation"].argmax(1) == 4
    assert is_end.any()
    assert set(state["discount"][is_end].tolist()) == {0.0}


def test_same_seed_gives_the_same_episodes() -> None:
    environment = Corridor(is_number=False)
    lives = []
    for seed in (1, 1, 2):
        agent = dqn_of(job_of(), environment)
        list(agent.live(environment, 200, seed))
        lives.append(np.concatenate([p.detach().numpy().ravel() for p in agent.network.parameters()]))
    assert (lives[0] == lives[1]).all()
    assert (lives[0] != lives[2]).any()


def test_evaluation_is_repeatable_and_independent_of_batching() -> None:
    import gymnasium

    job = jobs.changed(job_of(), ["reinforcement.evaluation_epsilon=0.2"])
    make = lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)  # noqa: E731
    agent = dqn_of(job, make())
    together = evaluate(agent, [make() for _ in range(5)], agent.settings, 3)
    assert evaluate(agent, [make() for _ in range(5)], agent.settings, 3) == together
    assert evaluate(agent, [make() for _ in range(2)], agent.settings, 3) == together[:2]
    assert evaluate(agent, [make() for _ in range(5)], agent.settings, 4) != together
    assert len(set(together)) > 1


def test_evaluation_reports_the_largest_value_of_its_states() -> None:
    """The greedy episode of a trained agent visits states 0 to 3. Signs do not matter, and NaN is not lost."""
    job, environment = job_of(), Corridor(is_number=False)
    agent = dqn_of(job, environment)
    run_steps(agent, environment, 1500)
    lines: Any = SimpleNamespace(write=lambda line: None)
    bias = list(agent.network.parameters())[-1]
    with torch.no_grad():
        bias.sub_(5)  # all values become negative; the order of the actions stays
    values = agent.values(np.eye(5, dtype=np.float32)[:4])
    assert (values < 0).all()
    evaluation = evaluated(agent, [environment], job, lines, 500, set())
    assert evaluation.returns == [1.0]
    assert evaluation.largest_value == pytest.approx(-values.min())
    with torch.no_grad():
        bias[1] = math.nan
    assert math.isnan(evaluated(agent, [environment], job, lines, 500, set()).largest_value or 0.0)


def test_network_without_activity_is_reported_once() -> None:
    """Every ReLU of a layer is 0 for all observations of an evaluation."""
    job = job_of()
    agent, blind = dqn_of(job, Corridor(is_number=False)), set[str]()
    scored: list[environments.Environment] = [Corridor(is_number=False)]
    lines: Any = SimpleNamespace(written=[])
    lines.write = lines.written.append
    assert evaluated(agent, scored, job, lines, 500, blind).returns
    assert not lines.written
    with torch.no_grad():
        for name, parameter in agent.network.named_parameters():
            if name.endswith("0.bias"):
                parameter.fill_(-1e6)
    for step in (1000, 1500):
        evaluated(agent, scored, job, lines, step, blind)
    (note,) = lines.written
    assert note.step == 1000
    assert note.text.startswith("the network is blind: after 1,000 steps every ReLU of ")


def test_ladder_repeats_and_annealing_falls() -> None:
    from chronograd.reinforce.agent import epsilon_at

    ladder = job_of(exploration="ladder", ladder=3).reinforcement
    fixed = job_of(exploration="fixed", epsilon_end=0.2).reinforcement
    assert ladder is not None
    assert fixed is not None
    assert [round(epsilon_at(ladder, 0, episode), 6) for episode in range(4)] == [0.4, 0.016191, 0.000655, 0.4]
    assert {epsilon_at(fixed, step, 0) for step in (0, 10, 10**6)} == {0.2}


def test_no_replay_without_memory() -> None:
    job = job_of(replay_size=0, replay_start=1)
    assert job.reinforcement is not None
    assert replay_of(job.reinforcement, environments.Space((4,), np.dtype(np.float32), 2)) is None


def test_agent_is_restored_from_its_files(tmp_path: Any) -> None:
    environment = Corridor(is_number=False)
    for settings in ({}, {"replay": "proportional"}, {"replay": "rank"}, {"replay_size": 100}):
        agent = dqn_of(job_of(**settings), environment)
        list(agent.live(environment, 300, 0))
        for name, write in agent.save().items():
            write(tmp_path / name)
        other = dqn_of(job_of(**settings), environment)
        other.restore(tmp_path)
        other.steps, other.episodes, other.updates = agent.steps, agent.episodes, agent.updates
        ends = []
        for one in (agent, other):
            list(one.live(copy.deepcopy(environment), 100, 1))
            ends.append(np.concatenate([p.detach().numpy().ravel() for p in one.network.parameters()]))
        assert (ends[0] == ends[1]).all(), settings
