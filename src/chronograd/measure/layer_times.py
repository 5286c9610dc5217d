"""Times of the layers of one forward pass, as plain data. Needs no torch.

A layer is one call of a module that runs operators of its own, as in the tables of `count`; what runs in no such module is
the row `outside of layers`.
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

    Of a convolution m are the output channels of a group, k its input channels × the kernel, n the batch × the positions of
    the output: the columns that im2col makes.
    """

    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    groups: int = Field(1, gt=0)

    @property
    def macs(self) -> int:
        return self.groups * self.m * self.n * self.k


class LayerTiming(_Form):
    """Median seconds over repeats, and the lowest and highest tenth."""

    median: float = Field(ge=0)
    low: float = Field(ge=0)
    high: float = Field(ge=0)


class LayerTime(_Form):
    """One layer.

    Attributes:
        kind: of the operator with most work in it. `flops`: of matrix work and all other arithmetic.
        synchronised_s: the host's clock around it, the device waited for at both ends. `unsynchronised_s`: on CUDA between events
            that the device passes, nothing waited for; on a CPU, which computes as it is asked, the same clock. Medians.
        product, product_s: its matrix product, timed by itself in a loop; None where it has none.
        predicted_s: of the device, by the operator model; None where the device is not known.
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
        return f"{self.name}, call {self.call + 1}" if self.call else self.name


class LayerTimes(_Form):
    """One network at one batch on one device.

    Attributes:
        whole: one forward pass by the host's clock, the device waited for at its ends only. `issued`: until the host had asked
            for all of it. `queued`: of one of several passes, one behind the other.
        synchronised, unsynchronised: sums over the layers of a pass, what runs outside of them among them.
        predicted_s: of the whole pass, the host's issuing in it; `predicted_on`: by what; `why_not`: where it is missing.
        repeats: passes of each kind, in turn.
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
        """Sum over the matrix products, each timed by itself."""
        return sum(layer.product_s or 0.0 for layer in self.layers)

    @property
    def with_product(self) -> list[LayerTime]:
        return [layer for layer in self.layers if layer.product is not None]

    @property
    def predicted_layers_s(self) -> float | None:
        """Sum over the layers, without the host's issuing."""
        known = [layer.predicted_s for layer in self.layers if layer.predicted_s is not None]
        return sum(known) if known else None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, **self.model_dump(mode="json")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises InputError if it cannot be written."""
        with files.as_asked(Path(path)):
            files.write_json(Path(path), self.to_json())


def read(path: str | os.PathLike[str]) -> LayerTimes:
    """What `chronograd measure layers NETWORK --json` prints. Raises FileFormatError for a file that is none."""
    hint = "`chronograd measure layers NETWORK --json > FILE` writes one"
    try:
        data = files.read_json(Path(path))
        if (data.pop("format"), data.pop("version")) != (FORMAT, VERSION):
            raise ValueError("another format or version")
        return LayerTimes.model_validate(data)
    except ValidationError as error:
        raise FileFormatError(f"{path} holds no times of layers: {first_problem(error)}", hint) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} holds no times of layers: {error}", hint) from None
