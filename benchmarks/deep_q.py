"""Deep Q-learning on CartPole in four packages, for benchmarks.reinforcement: the same network, minibatch, replay and schedule.

All use an MLP of 128 and 128, minibatches of 64, Adam, Huber loss, gradient norms clipped at 10, ε = 0.05, one environment and
a uniform replay. Each package has three workloads. `act` takes environment steps with action choice and replay insertion.
`learn` makes updates alone, each with a sampled minibatch. `train` takes steps with an update after every fourth.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np

ENVIRONMENT = "CartPole-v1"
HIDDEN = (128, 128)
BATCH = 64
RATE = 5e-4
DISCOUNT = 0.99
NORM = 10.0
EPSILON = 0.05
CAPACITY, FILLED, UPDATE_EVERY, TARGET_EVERY = 50_000, 2_000, 4, 500
# Amounts per call, large enough that the slow loop start of some packages is a small part of it.
STEPS, UPDATES = 400, 100
NEVER = 10**9
Work = Callable[[], object]


def ours() -> dict[str, Work]:
    import torch

    from chronograd import job as jobs
    from chronograd.reinforce import environments
    from chronograd.reinforce.build import agent_of
    from chronograd.reinforce.dqn import DQN

    seeds = count()

    def agent(update_every: int) -> tuple[DQN, Callable[[int], None]]:
        job = jobs.from_dict({
            "task": "reinforcement", "network": {"name": "mlp", "options": {"hidden": list(HIDDEN)}},
            "data": {"name": f"gymnasium:{ENVIRONMENT}"}, "cluster": {"device": "cpu"},
            "training": {"recipe": "adam", "learning_rate": RATE, "batch": BATCH},
            "reinforcement": {
                "algorithm": "dqn-2015", "replay_size": CAPACITY, "replay_start": BATCH, "update_every": update_every,
                "target_every": TARGET_EVERY, "max_gradient_norm": NORM, "exploration": "fixed", "epsilon_end": EPSILON,
                "discount": DISCOUNT, "clip_rewards": False,
            },
        })  # fmt: skip
        environment = environments.make(job)
        made = agent_of(job, environments.space(environment), torch.device("cpu"))
        assert isinstance(made, DQN)

        def live(steps: int) -> None:
            for _ in made.live(environment, steps, next(seeds)):
                pass

        live(FILLED)
        return made, live

    acting, act = agent(NEVER)
    _, train = agent(UPDATE_EVERY)
    assert acting.replay is not None
    random, replay = np.random.default_rng(0), acting.replay

    def learn() -> None:
        for _ in range(UPDATES):
            float(acting.update(replay.sample(BATCH, random)))

    return {"act": lambda: act(STEPS), "learn": learn, "train": lambda: train(STEPS)}


def plain() -> dict[str, Work]:
    """Return a single-file PyTorch version like CleanRL's dqn.py: gymnasium's vector of one, Stable-Baselines3's replay."""
    import gymnasium
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer
    from torch import nn
    from torch.nn import functional

    def agent() -> tuple[Callable[[int, int], None], Callable[[], None]]:
        envs = gymnasium.vector.SyncVectorEnv(
            [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENVIRONMENT))],
            autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
        )
        first, second = HIDDEN
        network = nn.Sequential(
            nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2)
        )
        target = copy.deepcopy(network)
        optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
        buffer = ReplayBuffer(
            CAPACITY, envs.single_observation_space, envs.single_action_space, "cpu", handle_timeout_termination=False
        )
        seen = [envs.reset(seed=0)[0]]
        random, updates = np.random.default_rng(0), count(1)

        def learn() -> None:
            data = buffer.sample(BATCH)
            with torch.no_grad():
                highest, _ = target(data.next_observations).max(dim=1)
                expected = data.rewards.flatten() + DISCOUNT * highest * (1 - data.dones.flatten())
            values = network(data.observations).gather(1, data.actions).squeeze()
            loss = functional.huber_loss(values, expected)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), NORM)
            optimizer.step()
            loss.item()
            if next(updates) % TARGET_EVERY == 0:
                target.load_state_dict(network.state_dict())

        def act(steps: int, update_every: int) -> None:
            for step in range(1, steps + 1):
                if random.random() < EPSILON:
                    actions = np.array([envs.single_action_space.sample()])
                else:
                    with torch.no_grad():
                        actions = network(torch.Tensor(seen[0])).argmax(dim=1).numpy()
                following, rewards, ended, cut, infos = envs.step(actions)
                after = following
                if ended[0] or cut[0]:
                    after = following.copy()
                    after[0] = infos["final_obs"][0]
                buffer.add(seen[0], after, actions, rewards, ended, [infos])
                seen[0] = following
                if step % update_every == 0:
                    learn()

        act(FILLED, NEVER)
        return act, learn

    act, learn = agent()
    train, _ = agent()

    def many() -> None:
        for _ in range(UPDATES):
            learn()

    return {"act": lambda: act(STEPS, NEVER), "learn": many, "train": lambda: train(STEPS, UPDATE_EVERY)}


def stable_baselines3() -> dict[str, Work]:
    import torch
    from stable_baselines3 import DQN

    def agent(updates: int) -> Any:
        model = DQN(
            "MlpPolicy", ENVIRONMENT, learning_rate=RATE, buffer_size=CAPACITY, learning_starts=BATCH, batch_size=BATCH,
            gamma=DISCOUNT, train_freq=UPDATE_EVERY, gradient_steps=updates, target_update_interval=TARGET_EVERY * UPDATE_EVERY,
            exploration_initial_eps=EPSILON, exploration_final_eps=EPSILON, max_grad_norm=NORM, seed=0, device="cpu",
            policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.ReLU},
        )  # fmt: skip
        model.learn(FILLED)
        return model

    acting, training = agent(0), agent(1)
    return {
        "act": lambda: acting.learn(STEPS, reset_num_timesteps=False),
        "learn": lambda: acting.train(UPDATES, BATCH),
        "train": lambda: training.learn(STEPS, reset_num_timesteps=False),
    }


def torchrl() -> dict[str, Work]:
    """Return the version from torchrl's sota-implementations/dqn."""
    import torch
    from tensordict.nn import TensorDictSequential
    from torchrl.collectors import Collector
    from torchrl.data import Composite, LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, HardUpdate

    def agent(at_once: int) -> tuple[Iterator[Any], Callable[[], None]]:
        """Return an agent that takes `at_once` steps before each turn of the loop."""
        environment = GymEnv(ENVIRONMENT, categorical_action_encoding=True)
        network = MLP(in_features=4, out_features=2, num_cells=list(HIDDEN), activation_class=torch.nn.ReLU)
        actor = QValueActor(network, spec=Composite(action=environment.action_spec), in_keys=["observation"])
        explore = EGreedyModule(actor.spec, eps_init=EPSILON, eps_end=EPSILON)
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
        loss_of = DQNLoss(actor, loss_function="smooth_l1", delay_value=True, action_space=environment.action_spec)
        loss_of.make_value_estimator(gamma=DISCOUNT)
        target = HardUpdate(loss_of, value_network_update_interval=TARGET_EVERY)
        optimizer = torch.optim.Adam(loss_of.parameters(), lr=RATE)
        policy = TensorDictSequential(actor, explore)
        collector = Collector(environment, policy, frames_per_batch=at_once, total_frames=-1)

        def learn() -> None:
            loss = loss_of(buffer.sample())["loss"]
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loss_of.parameters(), NORM)
            optimizer.step()
            target.step()
            loss.item()

        def collected() -> Iterator[Any]:
            for data in collector:
                buffer.extend(data.reshape(-1))
                yield data

        blocks = collected()
        take(blocks, FILLED // at_once)
        return blocks, learn

    def take(blocks: Iterator[Any], number: int, after_each: Callable[[], object] = lambda: None) -> None:
        for _ in range(number):
            next(blocks)
            after_each()

    acting, learn = agent(STEPS)
    training, learn_in_training = agent(UPDATE_EVERY)

    def many() -> None:
        for _ in range(UPDATES):
            learn()

    return {
        "act": partial(take, acting, 1),
        "learn": many,
        "train": partial(take, training, STEPS // UPDATE_EVERY, learn_in_training),
    }


CONTENDERS = {"chronograd": ours, "plain": plain, "stable-baselines3": stable_baselines3, "torchrl": torchrl}
# Amount of work in one call.
AMOUNTS = {"act": STEPS, "learn": UPDATES, "train": STEPS}
