"""`validate TABLE.csv --calibrate N --seed S`: fit on a few rows, predict the rest."""

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
    """How well a table of throughputs is predicted from a few of its rows.

    Errors are of the predicted time, as shares of the measured one. Nothing that was fitted to a table of the same name
    is used, but with --shipped, which says so.
    """

    verb = "validate"
    examples = (
        "chronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --calibrate 25 --seed 0",
        "chronograd validate throughputs.csv --device rtx3090 --precision amp --phase inference --shipped --only resnet,vit",
        "chronograd validate new-card.csv --device l4 --precision amp --phase inference --shipped --measured-on rtx3090=old.csv",
    )

    calibrate: Annotated[int, click.IntRange(min=0)] = 25
    """Rows to fit to, at least four; 0 for none: the prior alone."""
    shipped: bool = False
    """Nothing is fitted: as `predict` answers with the calibrations shipped here."""
    only: Annotated[str | None, Spelling(metavar="LIST")] = None
    """Rows of these networks alone: families such as resnet, or patterns such as vit_*."""
    without: Annotated[str | None, Spelling(("--except",), metavar="LIST")] = None
    """Rows of all networks but these."""
    measured_on: Annotated[str | None, Spelling(metavar="[DEVICE=]TABLE.csv")] = None
    """A table of the same networks on another device, or run otherwise; what each showed there is carried over. Goes with
    --shipped."""
    seed: int = 0
    """Chooses these rows, and nothing else does."""
    rows: Annotated[int | None, click.IntRange(min=1)] = None
    """Predict so many others, chosen by the seed; all by default."""

    def answer(self) -> Answer:
        from chronograd.calibrate.answer import validate
        from chronograd.calibrate.scoring import chosen_rows
        from chronograd.calibrate.table_answer import described

        if self.measured_on is not None and not self.shipped:
            raise InputError("--measured-on carries what a table shows to what is shipped", "add --shipped")
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
    """Return another table and its device; what neither its name nor the user says of it is as of the first."""
    from chronograd.fit.tables import read_table
    from chronograd.hardware import catalog

    device, _, path = text.rpartition("=")
    other = read_table(path).stated(device=device or None)
    alike = {
        field: getattr(table, field) for field in ("precision", "phase", "layout", "torch") if not getattr(other, field)
    }
    other = other.stated(**alike).matched()
    if other.device is None:
        raise InputError(f"{path} does not say which device it was measured on", f"write DEVICE={path}")
    return other, catalog.device(other.device)


REQUESTS = (Validate,)
