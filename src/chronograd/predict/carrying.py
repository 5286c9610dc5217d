"""What a network showed on one device, carried to another.

An error of prediction is partly of the network (the same on every device) and partly of the device. With standard deviations σa
there and σb here of the predicted log times, what the two have in common is of variance

    shared = 0.8 · min(σa, σb)²           on the same device, run in the same way
    shared = 0.8 · min(σa, σb, 0.08)²     elsewhere: only what is the network's

and the time here is corrected by ratio^(shared / σa²), and σb² - shared² / σa² remains: the mean and variance of one normal, given
another of that covariance. Between well-known devices that is most of it; of a device known from its data sheet almost nothing
is carried to another, as what a network shows there is the device's own error.

On the same device, 50 pairs of transformers (NeuSight) and 430 of CNNs (NVIDIA) at two batches or lengths, errors of
12 % and 7 % become 7 % and 5 %, and 80 % intervals hold 79 % and all.

Elsewhere 0.8 and 0.08 are of four published sources, each device known by rows or kernels of its own, left out, or from its data sheet:
timm's tables of one GPU (layouts, training and inference), CNNs on three GPUs (cnn-benchmarks), NVIDIA's on V100 and T4, and
transformers on seven GPUs (NeuSight). Mean errors become 2 %, 9 % and 2 % less, and 3 % more; more than 0.08 lets intervals hold less
than three quarters of the transformers, most of whose errors are the device's. By the mean error alone, each source left out of the
choice that it is scored with (0.2 to 0.8, and 0.2 for 0.08), they become 3 %, 8 % and 5 % less, and 16 % more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.predict.relatives import CARRIED_EXPONENT

# Of its error on another device, as a standard deviation of the log.
_MOST_OF_NETWORK = 0.08

Way = tuple[object, ...]


def way_of(job: Job, device: Device) -> Way:
    """A device and how a job is run on it: all that decides which calibration serves."""
    training = job.training
    return device.name, training.precision, job.mode, training.channels_last, training.compile


@dataclass(frozen=True)
class Shown:
    """What a network showed on a device.

    Attributes:
        ratio: measured time over predicted.
        sigma: standard deviation of the log error that the prediction was given.
        way: of `way_of`; None where nobody asks for the same device again.
    """

    ratio: float
    sigma: float
    way: Way | None = None

    def onto(self, sigma: float, way: Way | None = None) -> tuple[float, float]:
        """The factor of times on a device predicted with that sigma, and what of sigma remains: never more.

        >>> [round(value, 3) for value in Shown(1.5, 0.08).onto(0.08)], [round(value, 3) for value in Shown(1.5, 0.45).onto(0.08)]
        ([1.383, 0.048], [1.01, 0.079])
        """
        is_same = way is not None and way == self.way
        common = min(self.sigma, sigma, math.inf if is_same else _MOST_OF_NETWORK)
        shared = CARRIED_EXPONENT * common**2
        if shared == 0:
            return 1.0, sigma
        return self.ratio ** (shared / self.sigma**2), math.sqrt(sigma**2 - (shared / self.sigma) ** 2)


class Corrected(Shown):
    """A correction worked out by others, such as from a published row of the same device and network: taken whole.

    What remains of the spread is as of a device and a way of running that are both known by one figure.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__(ratio, 0.0)

    def onto(self, sigma: float, way: Way | None = None) -> tuple[float, float]:
        """
        >>> [round(value, 3) for value in Corrected(1.5).onto(0.1)]
        [1.5, 0.06]
        """
        return self.ratio, sigma * math.sqrt(1 - CARRIED_EXPONENT**2)
