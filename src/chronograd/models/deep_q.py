"""Networks of deep Q-learning: four frames of 84 x 84 in, the value of every action out.

Mnih et al. 2013, arXiv:1312.5602, section 4.1, and 2015, Nature 518, methods; the dueling head is that of Wang et al.
2016, arXiv:1511.06581.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from chronograd.models.registry import register

FRAMES, SIDE, ACTIONS = 4, 84, 18  # all actions of the Atari 2600; most games need fewer


class Dueling(nn.Module):
    """A dueling head: Q(s, a) = V(s) + A(s, a) - mean over actions of A(s, ·), with a hidden layer for V and one for A."""

    def __init__(self, stream: Callable[[int], nn.Module], actions: int) -> None:
        super().__init__()
        self.value, self.advantage = stream(1), stream(actions)

    def forward(self, features_NF: Tensor) -> Tensor:
        advantage_NA: Tensor = self.advantage(features_NF)
        value_N1: Tensor = self.value(features_NF)
        return value_N1 + advantage_NA - advantage_NA.mean(dim=1, keepdim=True)


def q_head(features: int, hidden: int, actions: int, dueling: bool) -> nn.Module:
    """Return a hidden layer and one linear output per action; if `dueling`, one such pair for the state and one for its
    actions.
    """

    def stream(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    return Dueling(stream, actions) if dueling else stream(actions)


@register(
    "dqn-2013",
    input_shape=(FRAMES, SIDE, SIDE),
    num_classes=ACTIONS,
    paper="Mnih et al. 2013, arXiv:1312.5602",
    params=680_770,  # 4,112 + 8,224 + 663,808 + 257 * 18
    macs=2_970_112,  # 400 * 16 * 256 + 81 * 32 * 256 + 2,592 * 256 + 256 * 18
)
def dqn_2013(
    num_classes: int = ACTIONS, in_channels: int = FRAMES, image_size: int = SIDE, dueling: bool = False
) -> nn.Module:
    """Return the network of 2013; `num_classes` is the number of actions."""
    side = _after(_after(image_size, 8, 4), 4, 2)
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 16, 8, 4), nn.ReLU()),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten()),
        q_head(32 * side * side, 256, num_classes, dueling),
    )


@register(
    "dqn-2015",
    input_shape=(FRAMES, SIDE, SIDE),
    num_classes=ACTIONS,
    paper="Mnih et al. 2015, Nature 518",
    params=1_693_362,  # 8,224 + 32,832 + 36,928 + 1,606,144 + 513 * 18
    macs=9_352_192,  # 400 * 32 * 256 + 81 * 64 * 512 + 49 * 64 * 576 + 3,136 * 512 + 512 * 18
)
def dqn_2015(
    num_classes: int = ACTIONS, in_channels: int = FRAMES, image_size: int = SIDE, dueling: bool = False
) -> nn.Module:
    """Return the network of 2015; `num_classes` is the number of actions."""
    side = _after(_after(_after(image_size, 8, 4), 4, 2), 3, 1)
    return nn.Sequential(
        *(nn.Conv2d(in_channels, 32, 8, 4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
        q_head(64 * side * side, 512, num_classes, dueling),
    )


def _after(side: int, kernel: int, stride: int) -> int:
    """Return the side of a map after a convolution without padding."""
    return (side - kernel) // stride + 1
