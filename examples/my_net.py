"""A network in a file: `chronograd predict examples/my_net.py:MyNet --input 3,32,32 --on v100` counts and predicts it."""

from torch import nn


class MyNet(nn.Sequential):
    """A small convolutional network for ten classes."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10))
