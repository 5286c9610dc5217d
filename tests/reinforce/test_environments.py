"""Environments by name, and Atari with the preprocessing of its papers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.errors import InputError, NotFoundError
from chronograd.reinforce import agent as agents
from chronograd.reinforce import environments


def job_on(name: str, network: str = "mlp", **settings: object) -> jobs.Job:
    return jobs.from_dict(
        {"task": "reinforcement", "network": {"name": network}, "data": {"name": name}, "reinforcement": settings}
    )


@pytest.mark.gymnasium
class TestGymnasium:
    def test_cartpole_has_four_numbers_and_two_actions(self) -> None:
        space = environments.space(environments.make(job_on("gymnasium:CartPole-v1")))
        assert (space.shape, space.num_actions, space.dtype) == ((4,), 2, np.dtype(np.float32))
        assert (space.frames_per_step, space.num_states) == (1, None)

    def test_state_number_is_one_hot_except_for_a_table(self) -> None:
        for network, shape, states in (("mlp", (16,), None), ("table", (), 16)):
            environment = environments.make(job_on("gymnasium:FrozenLake-v1", network))
            space = environments.space(environment)
            assert (space.shape, space.num_states) == (shape, states)
            seen, _ = environment.reset(seed=0)
            assert int(np.sum(seen)) == (1 if network == "mlp" else 0)

    @pytest.mark.parametrize(
        ("name", "error", "message"),
        [
            ("CartPole-v1", InputError, "data.name is 'CartPole-v1', which is not an environment"),
            ("gymnasium:CartPol-v1", NotFoundError, "unknown environment 'CartPol-v1'"),
            ("gymnasium:Pendulum-v1", InputError, "has actions that are not numbered: Box"),
            (
                "gymnasium:Blackjack-v1",
                InputError,
                "Blackjack-v1 has observations that are not arrays of numbers: Tuple",
            ),
        ],
    )
    def test_invalid_environments(self, name: str, error: type[InputError], message: str) -> None:
        with pytest.raises(error, match=message) as refused:
            environments.make(job_on(name))
        assert refused.value.hint

    def test_evaluation_limits_endless_environments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An agent walks into the wall forever; the pole has a time limit."""
        monkeypatch.setattr(environments, "MAX_STEPS", 30)
        job = job_on("gymnasium:CliffWalking-v1")
        assert not environments.space(environments.make(job)).has_limit
        assert environments.space(environments.make(job_on("gymnasium:CartPole-v1"))).has_limit
        episode = environments.make(job, is_evaluation=True)
        episode.reset(seed=0)
        ends = [episode.step(3)[2:4] for _ in range(30)]
        assert ends == [(False, False)] * 29 + [(False, True)]

    def test_long_episode_keeps_every_other_image(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run 25 steps with room for 8 images: those after 4, 8, … steps remain."""
        monkeypatch.setattr(agents, "MAX_PICTURES", 8)
        from tests.reinforce import corridor

        walker = corridor.Corridor(length=40, is_number=False, most_steps=25)
        monkeypatch.setattr(agents, "picture", lambda environment: np.array(environment.steps))
        left = SimpleNamespace(values=lambda observations: np.tile([1.0, 0.0], (len(observations), 1)))
        settings = jobs.Reinforcement(evaluation_epsilon=0.0)
        assert list(map(int, agents.episode_pictures(left, walker, settings, 0))) == [4, 8, 12, 16, 20, 24]


@pytest.mark.atari
class TestAtari:
    @staticmethod
    def game(name: str = "pong", **options: object):  # type: ignore[no-untyped-def]
        from chronograd.reinforce.atari import AtariGame

        return AtariGame(name, **options)  # type: ignore[arg-type]

    def test_observation_is_the_last_four_images(self) -> None:
        game = self.game(noop_starts=0)
        first, _ = game.reset(seed=0)
        assert (first.shape, first.dtype) == ((4, 84, 84), np.uint8)
        assert not first[:3].any()
        assert first[3].any()
        before = first
        for action in (2, 3, 2, 2, 3):
            seen, *_ = game.step(action)
            assert (seen[:3] == before[1:]).all()
            before = seen

    @pytest.mark.parametrize("stack", [1, 6])
    def test_observation_has_the_requested_number_of_images(self, stack: int) -> None:
        game, usual = (
            environments.make(job_on("atari:pong", "dqn-2015", noop_starts=0, **more))
            for more in ({"frame_stack": stack}, {})
        )
        assert environments.space(game).shape == (stack, 84, 84)
        both = min(stack, 4)
        assert (game.reset(seed=0)[0][-both:] == usual.reset(seed=0)[0][-both:]).all()
        for action in (2, 3, 2, 2, 3):
            assert (game.step(action)[0][-both:] == usual.step(action)[0][-both:]).all()

    def test_image_is_the_area_mean_of_two_screens(self) -> None:
        """A pixel of the small image covers 2.5 rows and 160/84 columns of the brighter of two screens."""
        game = self.game()
        game._screens[:] = 0
        game._screens[0, :5, :40] = 100
        game._screens[1, :5, :40] = 40
        game._screens[1, 5:10, :] = 7
        image = game._image()
        assert image.shape == (84, 84)
        assert (image[:2, :20] == 100).all()
        assert image[0, 21] == 0
        # Column 21 - 1 = 20 ends exactly at 40: 21 · 160/84 = 40.
        assert image[0, 20] == 100
        assert (image[2:4] == 7).all()
        assert not image[4:].any()

    def test_action_lasts_four_frames(self) -> None:
        game = self.game(noop_starts=0)
        game.reset(seed=0)
        before = game._ale.getEpisodeFrameNumber()
        game.step(0)
        assert game._ale.getEpisodeFrameNumber() - before == 4
        assert environments.space(game).frames_per_step == 4

    def test_same_seed_gives_the_same_game(self) -> None:
        lives = []
        for seed in (3, 3, 4):
            game = self.game()
            seen, _ = game.reset(seed=seed)
            random = np.random.default_rng(0)
            rewards = [game.step(int(random.integers(6)))[1] for _ in range(120)]
            lives.append((rewards, seen.tobytes(), game._seen.tobytes()))
        assert lives[0] == lives[1]
        assert lives[0] != lives[2]

    def test_random_number_of_noop_frames(self) -> None:
        starts = set()
        game = self.game(noop_starts=30)
        for seed in range(12):
            game.reset(seed=seed)
            starts.add(game._ale.getEpisodeFrameNumber())
        assert len(starts) > 5
        assert max(starts) <= 30

    def test_lost_life_ends_an_episode_if_requested(self) -> None:
        ends = {}
        for is_asked in (True, False):
            game = self.game("breakout", life_ends_episode=is_asked)
            game.reset(seed=1)
            random = np.random.default_rng(0)
            for _ in range(2000):
                _, _, is_terminal, _, _ = game.step(int(random.integers(4)))
                if is_terminal:
                    break
            ends[is_asked] = (game.lives, game._ale.game_over())
            if is_asked:
                frames = game._ale.getEpisodeFrameNumber()
                game.reset()
                assert game._ale.getEpisodeFrameNumber() > frames
                assert game.lives == 4
        assert ends == {True: (4, False), False: (0, True)}

    def test_unknown_game_suggests_near_names(self) -> None:
        with pytest.raises(NotFoundError, match="unknown Atari game 'breakot'") as refused:
            self.game("breakot")
        assert "breakout" in refused.value.hint
