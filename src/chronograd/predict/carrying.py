"""Transfer of a network's measured prediction error from one device to another.

An error of prediction is partly of the network (the same on every device) and partly of the device. Let σa there and σb here be
the standard deviations of the predicted log times. The common part has the variance

    shared = 0.8 · min(σa, σb)²           on the same device, run in the same way
    shared = 0.8 · min(σa, σb, 0.08)²     elsewhere: only the network's part

The time here is corrected by ratio^(shared / σa²), and the variance σb² - shared² / σa² remains. These are mean and variance of
one normal variable given another with that covariance. Between well-known devices this removes most of the error. If a device
is known only from its data sheet, almost nothing transfers, because the error there is the device's own.

On the same device there are 50 pairs of transformers (NeuSight) and 430 of CNNs (NVIDIA) at two batches or lengths. Their
errors fall from 12 % and 7 % to 7 % and 5 %; 79 % and 100 % of the measurements are inside the 80 % intervals.

Elsewhere, 0.8 and 0.08 come from four published sources. Each device is known by other rows or kernels, left out, or known
from its data sheet. Mean errors fall by 2 % for timm's tables of one GPU (layouts, training and inference). They fall by 9 %
for CNNs on three GPUs (cnn-benchmarks), and by 2 % for NVIDIA's tables on V100 and T4. For transformers on seven GPUs
(NeuSight) they rise by 3 %; most of that error is the device's.
With more than 0.08, intervals include less than three quarters of the transformers. If only the mean error chooses (0.2 to 0.8,
and 0.2 for 0.08), with the scored source left out, errors become 3 %, 8 % and 5 % less, and 16 % more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chronograd.hardware.catalog import Device
from chronograd.job import Job
from chronograd.predict.relatives import CARRIED_EXPONENT

# The network's part of the error on another device, as a standard deviation of the log.
_MOST_OF_NETWORK = 0.08

Way = tuple[object, ...]


def way_of(job: Job, device: Device) -> Way:
    """Return a device and how a job runs on it: everything that decides which calibration applies."""
    training = job.training
    return device.name, training.precision, job.mode, training.channels_last, training.compile


@dataclass(frozen=True)
class Shown:
    """A measurement of a network on a device, compared with its prediction.

    Attributes:
        ratio: measured time over predicted.
        sigma: standard deviation of the log error of that prediction.
        way: result of `way_of`; None if no prediction for the same device is needed.
    """

    ratio: float
    sigma: float
    way: Way | None = None

    def onto(self, sigma: float, way: Way | None = None) -> tuple[float, float]:
        """Return the factor for times predicted on a device with that sigma, and the remaining sigma, which is never larger.

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
    """A correction computed elsewhere, such as from a published row of the same device and network. It applies fully.

    The remaining spread is that of the same device and way of running, both known by one figure.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__(ratio, 0.0)

    def onto(self, sigma: float, way: Way | None = None) -> tuple[float, float]:
        """Return the factor of times, and the remaining sigma, as `Shown.onto`.

        >>> [round(value, 3) for value in Corrected(1.5).onto(0.1)]
        [1.5, 0.06]
        """
        return self.ratio, sigma * math.sqrt(1 - CARRIED_EXPONENT**2)
