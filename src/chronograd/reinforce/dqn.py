"""Deep Q-learning, written to be read from top to bottom next to its papers.

Mnih et al. 2013, "Playing Atari with deep reinforcement learning", arXiv:1312.5602: a line marked `2013 n` implements line n of
its Algorithm 1. Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518: adds a target network,
copied every C updates, and clips errors beyond 1. Each part has a switch in the job's section `reinforcement`. Extensions
beyond the two papers are off by default: double (van Hasselt et al. 2016, arXiv:1509.06461), dueling (Wang et al. 2016,
arXiv:1511.06581), n-step targets (Sutton 1988), priorities (Schaul et al. 2016, in the replay).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors import numpy as safe_arrays
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from chronograd.job import Job
from chronograd.reinforce.agent import FinishedEpisode, Moment, epsilon_at, greedy
from chronograd.reinforce.environments import Environment, Space
from chronograd.reinforce.networks import as_input, build
from chronograd.reinforce.replay import Minibatch, NStep, Replay, Transitions
from chronograd.reinforce.replay.prioritised import priorities_of
from chronograd.reinforce.replay.transitions import joined
from chronograd.train.checkpoint import optimizer_state, restore_optimizer
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, REPLAY, TARGET
from chronograd.train.optimizer import make_optimizer
from chronograd.train.shards import save_tensors


class DQN:
    """An agent whose action values come from a network.

    Attributes:
        target: the network that values the next state: an older copy of the network, or the network itself.
        replay: None for an agent that learns from its newest steps only.
        steps, episodes, updates: counts so far.
    """

    def __init__(self, job: Job, space: Space, replay: Replay | None, device: torch.device) -> None:
        assert job.reinforcement is not None
        self.settings, self.batch, self.device = job.reinforcement, job.training.batch, device
        self.num_actions = space.num_actions
        self.replay = replay  #                                                                     2013 1
        torch.manual_seed(job.training.seed)
        self.network: nn.Module = build(job, space).to(device)  #                                   2013 2
        has_target = self.settings.target_every > 0
        self.target = copy.deepcopy(self.network).requires_grad_(False) if has_target else self.network  # 2015
        self.optimizer = make_optimizer(self.network, job.training, is_fused=True)
        self.steps = self.episodes = self.updates = 0
        self.newest: list[Transitions] = []

    # -- acting ----------------------------------------------------------------------------------------

    def live(self, environment: Environment, num_steps: int, seed: int) -> Iterator[Moment]:
        random = np.random.default_rng(seed)
        settings, end = self.settings, self.steps + num_steps
        waiting = NStep(settings.n_step, settings.discount)
        seen, _ = environment.reset(seed=seed)
        while self.steps < end:  #                                                                  2013 3
            total, length, is_over = 0.0, 0, False
            while not is_over and self.steps < end:  #                                              2013 5
                epsilon = epsilon_at(settings, self.steps, self.episodes)
                action = self.act(seen, epsilon, random)
                next_seen, reward, is_terminal, is_cut, _ = environment.step(action)  #             2013 8
                is_over = is_terminal or is_cut
                self.steps, total, length = self.steps + 1, total + float(reward), length + 1
                learned = float(np.clip(reward, -1, 1)) if settings.clip_rewards else float(reward)
                is_last = is_cut or self.steps == end
                known = waiting.step(
                    *map(np.asarray, ([seen], [action], [learned], [next_seen], [is_terminal], [is_last]))
                )
                self.newest += [known] if known is not None else []
                seen = next_seen  #                                                                 2013 9
                loss = self.learn(random) if self.steps % settings.update_every == 0 else None
                yield loss, FinishedEpisode(total, length, epsilon) if is_over else None
            self.episodes += 1
            if self.steps < end:
                seen, _ = environment.reset()  #                                                    2013 4
        self.remember()

    def act(self, seen: np.ndarray, epsilon: float, random: np.random.Generator) -> int:
        if random.random() < epsilon:
            return int(random.integers(self.num_actions))  #                                        2013 6
        return int(greedy(self.values(seen[None]))[0])  #                                           2013 7

    @torch.inference_mode()
    def values(self, observations: np.ndarray) -> np.ndarray:
        values: np.ndarray = self.network(as_input(observations, self.device)).cpu().numpy()
        return values

    # -- learning --------------------------------------------------------------------------------------

    def learn(self, random: np.random.Generator) -> Tensor | None:
        """Make one update if the replay holds enough transitions. Return its loss."""
        newest = self.remember()
        if self.replay is None:
            return None if newest is None else self.update(Minibatch.of(newest))
        if len(self.replay) < self.settings.replay_start:
            return None
        return self.update(self.replay.sample(self.batch, random))  #                               2013 11

    def remember(self) -> Transitions | None:
        """Put the newest transitions into the replay and return them."""
        if not self.newest:
            return None
        transitions = joined(self.newest)
        self.newest.clear()
        if self.replay is not None:
            self.replay.add(transitions)  #                                                         2013 10
        return transitions

    def update(self, sample: Minibatch) -> Tensor:
        """Take a gradient step towards the targets of a minibatch. Return the loss."""
        weights_N = torch.from_numpy(sample.weights).to(self.device)
        targets_N, values_N = self.targets(sample), self.chosen(sample)
        is_huber = self.settings.loss == "huber"
        losses = (functional.huber_loss if is_huber else functional.mse_loss)(values_N, targets_N, reduction="none")
        loss = (weights_N * losses).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.settings.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_gradient_norm)
        self.optimizer.step()  #                                                                    2013 13
        self.updates += 1
        if self.settings.target_every and self.updates % self.settings.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())  #                               2015
        if self.replay is not None:
            errors_N = (targets_N - values_N.detach()).cpu().numpy()
            if np.isfinite(errors_N).all():  # otherwise the loss is not finite either, which ends the run
                self.replay.update(sample.indices, priorities_of(errors_N))
        return loss.detach()

    @torch.no_grad()
    def targets(self, sample: Minibatch) -> Tensor:
        """Return y = r + γ · max over actions of Q(next state). After a terminal state the discount is 0, so y = r."""
        next_seen = as_input(sample.transitions.next_observation, self.device)
        next_NA = self.target(next_seen)
        chooser_NA = self.network(next_seen) if self.settings.double else next_NA
        next_N: Tensor = next_NA.gather(1, chooser_NA.argmax(dim=1, keepdim=True)).squeeze(1)
        reward_N = torch.from_numpy(sample.transitions.reward).to(self.device)
        y_N: Tensor = reward_N + torch.from_numpy(sample.transitions.discount).to(self.device) * next_N  # 2013 12
        return y_N

    def chosen(self, sample: Minibatch) -> Tensor:
        """Return Q of the actions taken."""
        values_NA = self.network(as_input(sample.transitions.observation, self.device))
        actions_N1 = torch.from_numpy(sample.transitions.action).to(self.device)[:, None]
        chosen_N: Tensor = values_NA.gather(1, actions_N1).squeeze(1)
        return chosen_N

    # -- checkpoints -----------------------------------------------------------------------------------

    def num_params(self) -> int:
        return sum(p.numel() for p in self.network.parameters())

    def save(self) -> dict[str, Callable[[Path], None]]:
        tensors, numbers = optimizer_state(self.optimizer)
        assert not numbers, "the state of this optimizer is not all tensors"
        files: dict[str, Callable[[Path], None]] = {
            MODEL: partial(save_tensors, self.network.state_dict()),
            OPTIMIZER: partial(save_tensors, tensors),
        }
        if self.target is not self.network:
            files[TARGET] = partial(save_tensors, self.target.state_dict())
        if self.replay is not None:
            files[REPLAY] = partial(safe_arrays.save_file, self.replay.state())
        return files

    def restore(self, folder: Path) -> None:
        """Load network, target, optimizer and replay from a checkpoint."""
        self.network.load_state_dict(load_file(folder / MODEL))
        restore_optimizer(self.optimizer, load_file(folder / OPTIMIZER), {})
        if self.target is not self.network:
            self.target.load_state_dict(load_file(folder / TARGET))
        if self.replay is not None:
            self.replay.restore(safe_arrays.load_file(folder / REPLAY))
