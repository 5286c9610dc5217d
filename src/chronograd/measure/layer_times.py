"""Times of the layers of one forward pass, as plain data. Needs no torch.

A layer is one call of a module that itself runs operators, as in the tables of `count`. Operators outside of such modules
belong to the row `outside of layers`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chronograd import files
from chronograd.errors import FileFormatError
from chronograd.record import first_problem

FORMAT = "chronograd-layer-times"
VERSION = 1
OUTSIDE = "(outside of layers)"


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Product(_Form):
    """A convolution or linear layer as a matrix product (m × k) · (k × n), once for each group.

    For a convolution, m are the output channels of a group, k its input channels × the kernel, and n the batch × the positions
    of the output: the columns of im2col.
    """

    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    groups: int = Field(1, gt=0)

    @property
    def macs(self) -> int:
        return self.groups * self.m * self.n * self.k


class LayerTiming(_Form):
    """The median seconds over repeats, and the 10th and 90th percentile."""

    median: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(ge=0)


class LayerTime(_Form):
    """One layer.

    Attributes:
        kind: of the operator with the most work in it. `flops`: of matrix work and all other arithmetic.
        synchronised_s: host clock with a wait for the device at both ends. `unsynchronised_s`: on CUDA between events in the
            queue, without waits; on a CPU, which computes synchronously, the same clock. Medians.
        product, product_s: its matrix product, timed alone in a loop; None without one.
        predicted_s: device time by the operator model; None if the device is unknown.
    """

    name: str
    call: int = 0
    module: str
    kind: str
    flops: float
    synchronised_s: float
    unsynchronised_s: float
    product: Product | None = None
    product_s: float | None = None
    predicted_s: float | None = None

    @property
    def label(self) -> str:
        return label(self.name, self.call)


def label(name: str, call: int) -> str:
    """Return the name of a layer, and the number of its call after the first one.

    >>> label("conv1", 0), label("conv1", 1)
    ('conv1', 'conv1, call 2')
    """
    return f"{name}, call {call + 1}" if call else name


class LayerTimes(_Form):
    """One network at one batch on one device.

    Attributes:
        whole: one forward pass by the host's clock, with waits for the device only at its ends. `issued`: until the host had
            launched all of it. `queued`: one of several passes in a row.
        synchronised, unsynchronised: sums over the layers of a pass, including operators outside of them.
        predicted_s: of the whole pass, including launches; `predicted_on`: the device; `why_not`: the reason if it is missing.
        repeats: passes of each kind, alternating.
    """

    network: str
    device: str
    device_name: str
    threads: int
    batch: int
    precision: str
    channels_last: bool
    input_shape: list[int]
    repeats: int
    whole: LayerTiming
    issued: LayerTiming
    queued: LayerTiming
    synchronised: LayerTiming
    unsynchronised: LayerTiming
    layers: list[LayerTime]
    predicted_s: float | None = None
    predicted_on: str = ""
    why_not: str = ""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def products_s(self) -> float:
        """Return the sum over the matrix products, each timed alone."""
        return sum(layer.product_s or 0.0 for layer in self.layers)

    @property
    def with_product(self) -> list[LayerTime]:
        return [layer for layer in self.layers if layer.product is not None]

    @property
    def predicted_layers_s(self) -> float | None:
        """Return the sum over the layers, without launches."""
        known = [layer.predicted_s for layer in self.layers if layer.predicted_s is not None]
        return sum(known) if known else None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **self.model_dump(mode="json")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the times to a file. Raises InputError if it cannot be written."""
        with files.as_asked(Path(path)):
            files.write_json(Path(path), self.to_json())


def read(path: str | os.PathLike[str]) -> LayerTimes:
    """Read the output of `chronograd measure layers NETWORK --json`. Raises FileFormatError for another file."""
    hint = "`chronograd measure layers NETWORK --json > FILE` writes one"
    try:
        data = files.read_json(Path(path))
        if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
            raise ValueError("another format or version")
        return LayerTimes.model_validate(data)
    except ValidationError as error:
        raise FileFormatError(f"{path} has no layer times: {first_problem(error)}", hint) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} has no layer times: {error}", hint) from None
