"""A game of the Atari 2600 as deep Q-learning sees it. The only file that imports ale-py, which is under the GPL-2.0.

Mnih et al. 2015, methods: an action is repeated for four frames. Each pixel is the maximum of the last two frames, as some
sprites are drawn in every other frame only. An observation is the last four such images, grey, 84 x 84. An episode starts with
up to 30 frames without a button pressed, and lasts at most half an hour. The same action always has the same effect: no sticky
actions.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np

from chronograd.errors import NotFoundError

SIDE = 84
HELD_FRAMES = 4
MAX_FRAMES = 108_000  # half an hour at 60 frames/s
NOTHING = 0  # the action "no button"


class AtariGame(gymnasium.Env[np.ndarray, int]):
    """A game with observations (frame_stack, 84, 84) of uint8, the newest image last. Rewards are changes of the score.

    `lives` are the remaining lives. With `life_ends_episode` a lost life is a terminal state, and the next `reset` continues
    the same game.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 gymnasium's own form
    frames_per_step = HELD_FRAMES
    spec = None

    def __init__(
        self, game: str, *, noop_starts: int = 30, life_ends_episode: bool = False, frame_stack: int = 4
    ) -> None:
        name = game.lower().replace("-", "_")
        known = ale_py.roms.get_all_rom_ids()
        if name not in known:
            raise NotFoundError("Atari game", game, known)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        rom = ale_py.roms.get_rom_path(name)
        assert rom is not None  # its name is known
        self._rom = rom
        self._ale.loadROM(self._rom)
        self._actions = self._ale.getMinimalActionSet()
        self._noop_starts, self._life_ends_episode = noop_starts, life_ends_episode
        self.action_space: Any = gymnasium.spaces.Discrete(len(self._actions))
        self.observation_space = gymnasium.spaces.Box(0, 255, (frame_stack, SIDE, SIDE), np.uint8)
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._rows, self._columns = _shares(height, SIDE), _shares(width, SIDE).T.copy()
        self._seen = np.zeros((frame_stack, SIDE, SIDE), np.uint8)
        self.lives = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._ale.setInt("random_seed", seed)
            self._ale.loadROM(self._rom)
        is_new_game = seed is not None or self._ale.game_over() or not self._life_ends_episode or self._is_too_long
        if is_new_game:
            self._ale.reset_game()
            for _ in range(int(self.np_random.integers(self._noop_starts + 1))):
                self._ale.act(self._actions[NOTHING])
                if self._ale.game_over():
                    self._ale.reset_game()
        else:
            self._ale.act(self._actions[NOTHING])  # leaves the frame in which the life was lost
        self.lives = self._ale.lives()
        self._screens[:] = 0
        self._ale.getScreenGrayscale(self._screens[1])
        self._seen[:] = 0
        self._seen[-1] = self._image()
        return self._seen.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = 0.0
        for frame in range(HELD_FRAMES):
            reward += self._ale.act(self._actions[action])
            if frame >= HELD_FRAMES - 2:
                self._ale.getScreenGrayscale(self._screens[frame - HELD_FRAMES])
            if self._ale.game_over():
                break
        self._seen[:-1] = self._seen[1:]
        self._seen[-1] = self._image()
        before, self.lives = self.lives, self._ale.lives()
        is_terminal = self._ale.game_over() or (self._life_ends_episode and self.lives < before)
        return self._seen.copy(), reward, is_terminal, self._is_too_long, {}

    def render(self) -> np.ndarray:
        """Return the screen in colour, (210, 160, 3)."""
        screen: np.ndarray = self._ale.getScreenRGB()
        return screen

    @property
    def _is_too_long(self) -> bool:
        return bool(self._ale.getEpisodeFrameNumber() >= MAX_FRAMES)

    def _image(self) -> np.ndarray:
        """Return the pixel-wise maximum of two screens, scaled to (84, 84) by the mean of the area of each pixel."""
        brightest = np.maximum(self._screens[0], self._screens[1]).astype(np.float32)
        return np.asarray(self._rows @ (brightest @ self._columns) + 0.5).astype(np.uint8)


def _shares(size: int, smaller: int) -> np.ndarray:
    """Return (smaller, size): the share of each pixel of a line in each pixel of a shorter line; rows sum to 1."""
    edges = np.arange(smaller + 1) * (size / smaller)
    begin, end = edges[:-1, None], edges[1:, None]
    pixels = np.arange(size)[None, :]
    overlap = np.clip(np.minimum(end, pixels + 1) - np.maximum(begin, pixels), 0, None)
    return np.asarray(overlap / (size / smaller)).astype(np.float32)
