"""`validate TABLE.csv --calibrate N --seed S`: a fit to a few rows that predicts the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.fit import TableRequest
from chronograd.verbs.request import Spelling
from chronograd.verbs.screen import progress, say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.fit.tables import ThroughputTable
    from chronograd.hardware.catalog import Device


@dataclass(frozen=True, kw_only=True)
class Validate(TableRequest):
    """Test how well a table of throughputs is predicted from a few of its rows.

    An error is the predicted time against the measured one, as a fraction. Calibrations fitted to a table of the same name are
    not used, except with --shipped, which reports it.
    """

    verb = "validate"
    examples = (
        "chronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --calibrate 25 --seed 0",
        "chronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --shipped --only resnet,vit",
        "chronograd validate new-card.csv --device l4 --precision amp --phase inference --shipped --measured-on rtx3090=old.csv",
    )

    calibrate: Annotated[int, click.IntRange(min=0)] = 25
    """Number of rows to fit, at least four; 0 uses only the prior."""
    shipped: bool = False
    """Fit nothing: use the shipped calibrations, like `predict`."""
    only: Annotated[str | None, Spelling(metavar="LIST")] = None
    """Only rows of these networks: families such as resnet, or patterns such as vit_*."""
    without: Annotated[str | None, Spelling(("--except",), metavar="LIST")] = None
    """Rows of all networks except these."""
    measured_on: Annotated[str | None, Spelling(metavar="[DEVICE=]TABLE.csv")] = None
    """A table of the same networks on another device or with other settings, to correct the predictions with. Needs --shipped.
    """
    seed: int = 0
    """Seed of the choice of rows."""
    rows: Annotated[int | None, click.IntRange(min=1)] = None
    """Number of other rows to predict, chosen by the seed; all by default."""

    def answer(self) -> Answer:
        from chronograd.calibrate.answer import validate
        from chronograd.calibrate.scoring import chosen_rows
        from chronograd.calibrate.table_answer import described

        if self.measured_on is not None and not self.shipped:
            raise InputError("--measured-on corrects the shipped calibrations", "add --shipped")
        table, device = self.read()
        table = chosen_rows(table, self.only, self.without)
        options: dict[str, Any] = {"calibrate": self.calibrate, "prior": self.prior}
        if self.shipped:
            options = {
                "shipped": True,
                "measured_on": None if self.measured_on is None else _other(self.measured_on, table),
            }
        say(f"{table.name}: {described(table, device)}")
        with progress("tracing") as report:
            return validate(table, device, seed=self.seed, limit=self.rows, progress=report, **options)


def _other(text: str, table: ThroughputTable) -> tuple[ThroughputTable, Device]:
    """Return another table and its device. Settings that neither its name nor the user states are those of the first table."""
    from chronograd.fit.tables import read_table
    from chronograd.hardware import catalog

    device, _, path = text.rpartition("=")
    other = read_table(path).stated(device=device or None)
    alike = {
        field: getattr(table, field) for field in ("precision", "phase", "layout", "torch") if not getattr(other, field)
    }
    other = other.stated(**alike).matched()
    if other.device is None:
        raise InputError(f"{path} does not state its device", f"write DEVICE={path}")
    return other, catalog.device(other.device)


REQUESTS = (Validate,)
