"""`fit device|speed|loss|batch`: measurements become a calibration, a speed model, or a forecast of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError, printable
from chronograd.verbs.forecast import ScheduleName
from chronograd.verbs.kinds import ABOVE_0, COUNTS, NUMBERS, ListKind, complete_devices, parse_whole_numbers
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import progress

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.calibrate.table_answer import DeviceFit
    from chronograd.fit.answer import BatchFit, SpeedFit
    from chronograd.fit.tables import ThroughputTable
    from chronograd.forecast.forecasting import Forecast
    from chronograd.forecast.learning_curves import LearningCurve
    from chronograd.hardware.catalog import Device


def parse_pair(text: str) -> tuple[int, int]:
    """Return workers and servers. Raises ValueError."""
    pair = parse_whole_numbers(text)
    if len(pair) != 2:
        raise ValueError(f"write workers and servers, such as 8,2, not {text}")
    return pair[0], pair[1]


class _Pairs(ListKind):
    is_list = False  # of each of several


PAIR = _Pairs("W,P", parse_pair, lambda _: False)
_PATHS = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class TableRequest(Request):
    """TABLE and how it was measured; the parts that timm's file names and columns state need not be given."""

    table: Annotated[Path, _PATHS, Spelling(metavar="TABLE.csv", is_argument=True)]
    device: Annotated[str | None, Spelling(metavar="DEVICE", complete=complete_devices)] = None
    """A device of the catalogue, or a device file."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "amp"] | None = None
    """amp is fp16."""
    layout: Literal["nchw", "nhwc"] | None = None
    phase: Literal["training", "inference"] | None = None
    """If neither the file's name nor its columns say it."""
    compiled: Annotated[bool | None, Spelling(("--compiled/--eager",), aliases=("is_compiled",))] = None
    """Whether networks were compiled."""
    torch: Annotated[str | None, Spelling(metavar="VERSION")] = None
    """PyTorch's version; fused attention since 2."""
    prior: Literal["relatives", "datasheet"] = "relatives"
    """What to assume before: what the nearest calibrated relative taught, or round numbers."""

    def read(self) -> tuple[ThroughputTable, Device]:
        """Return the rows that ran as is stated, or as the table says, and their device. Raises InputError."""
        from chronograd.fit.tables import precision_of, read_table
        from chronograd.hardware import catalog

        stated: dict[str, Any] = {"device": self.device, "layout": self.layout, "phase": self.phase, "torch": self.torch,
                                  "is_compiled": self.compiled}  # fmt: skip
        precision = None if self.precision is None else precision_of(self.precision)
        table = read_table(self.table, self.phase).stated(precision=precision, **stated).matched()
        if table.device is None:
            raise InputError(f"{self.table.name} does not say which device it was measured on", "give --device")
        return table, catalog.device(table.device)


@dataclass(frozen=True, kw_only=True)
class FitDevice(TableRequest):
    """Calibrate a device from a table of throughputs.

    TABLE.csv has columns for model, batch, image size and samples/s or step time; names without a prefix are timm's. Where
    it has columns for device, precision, phase, layout or number of devices, rows that ran otherwise are left out.
    The file that --out saves is a device for --on and cluster.device.
    """

    verb = "fit device"
    examples = (
        "chronograd fit device throughputs.csv --device rtx3090 --precision amp --layout nhwc --phase inference --out mine.toml",
    )

    rows: Annotated[int | None, click.IntRange(min=4)] = None
    """Fit to so many rows, at least four, chosen by the seed; all by default."""
    seed: int = 0
    out: Annotated[Path | None, FILE] = None
    """Save the device file (.toml); a setting of the same device that is there already is kept."""

    def answer(self) -> Answer[DeviceFit]:
        from chronograd.calibrate.table_answer import fit_device

        table, device = self.read()
        with progress("tracing") as report:
            return fit_device(
                table, device, prior=self.prior, limit=self.rows, seed=self.seed, out=self.out, progress=report
            )


@dataclass(frozen=True, kw_only=True)
class FitSpeed(Request):
    """Fit a speed model of parameter servers: steps per second by workers and servers.

    Each run of backend parameter_server is one point; a CSV file has columns workers, servers and steps_per_s or step_time_s.
    With --batch a step is a synchronous one of all workers (5 points or more), else one worker's minibatch (4 or more).
    """

    verb = "fit speed"
    examples = (
        "chronograd fit speed speeds.csv --batch 40",
        "chronograd fit speed runs/w1-p1 runs/w2-p1 runs/w2-p2 runs/w4-p2",
    )

    sources: Annotated[tuple[Path, ...], _PATHS, Spelling(metavar="RUN|CSV...", is_argument=True)]
    batch: Annotated[float | None, ABOVE_0] = None
    """Synchronous, with so many samples in a step."""
    at: Annotated[tuple[Any, ...], PAIR, Spelling(metavar="W,P")] = ()
    """Workers and servers to forecast; may be repeated."""

    def answer(self) -> Answer[SpeedFit]:
        from chronograd.fit.answer import speed

        return speed(self.sources, self.batch, list(self.at))


@dataclass(frozen=True, kw_only=True)
class FitLoss(Request):
    """Fit a curve to a loss or an accuracy, and forecast the rest.

    SOURCE is a run, or a file: CSV, JSON, JSON lines, TensorBoard events. Curves: inverse, Optimus' 1/(b0*k + b1) + b2; a power
    law; an exponential; the last value, which a forecast has to beat. An accuracy is fitted as the error 1 - accuracy. After a
    drop of the learning rate a curve begins anew: only the points since the last one are fitted. What the rate will still do
    ends convergence, so tell the schedule: beyond the next drop, levels fall as they did in published runs.
    """

    verb = "fit loss"
    examples = (
        "chronograd fit loss runs/mine --to 0.5",
        "chronograd fit loss history.json --metric accuracy --to 0.92",
        "chronograd fit loss log.csv --column val_loss --drops 30,60 --planned 90 --fraction 0.5 --earlier 5",
    )

    source: Annotated[Path, _PATHS, Spelling(metavar="RUN|FILE", is_argument=True)]
    metric: Literal["loss", "accuracy"] = "loss"
    column: Annotated[str | None, Spelling(metavar="NAME")] = None
    """Column or tag of the values, if not one of the usual names."""
    family: Literal["inverse", "power", "exponential", "last"] | None = None
    """The best on held-out points by default."""
    fraction: Annotated[float, click.FloatRange(0, 1, min_open=True)] = 1.0
    """Fit to the first part only, and score the rest."""
    schedule: ScheduleName | None = None
    """Of the learning rate: annealed is cosine, one cycle, linear. A run knows its own, a log by its column of rates."""
    drops: Annotated[tuple[float, ...], NUMBERS, Spelling(metavar="K,K,...")] = ()
    """Where the learning rate falls at once, seen or still to come."""
    planned: Annotated[float | None, ABOVE_0] = None
    """Where training is to end; with --fraction, where the file does."""
    earlier: Annotated[int, click.IntRange(0, 1000)] = 0
    """Also forecasts made on the way."""
    follow: bool = False
    """Fit a run again whenever it has new points, until it ends."""
    to: Annotated[Any, Spelling(metavar="LEVEL", aliases=("target",))] = None
    """When will this loss, or accuracy (92%, 92, 0.92), be reached?"""
    at: Annotated[tuple[float, ...], ABOVE_0] = ()
    """Forecast at a step; may be repeated."""

    def answer(self) -> Answer[Forecast]:
        from chronograd.forecast import loss_answer
        from chronograd.forecast.forecast_answer import level
        from chronograd.forecast.forecasting import forecast

        to = None if self.to is None else level(str(self.to), self.metric)
        if self.follow:
            self._follow(to)
        return loss_answer.loss(forecast(self._read(), self.fraction, self.family, to, self.at, self.earlier))

    def _read(self) -> LearningCurve:
        from chronograd.forecast import loss_answer

        return loss_answer.read(
            self.source, self.metric, self.column, self.schedule, self.drops, self.planned, self.fraction < 1
        )

    def _follow(self, to: float | None) -> None:
        """Print a line whenever the run has new points, until it ends. Raises InputError for a file."""
        from chronograd.forecast import loss_answer
        from chronograd.forecast.forecasting import forecast
        from chronograd.rundir import RunDir, is_run_dir

        if not is_run_dir(self.source):
            raise InputError(f"--follow prints lines of a run, and {self.source} is none", "leave --follow out")
        for curve in loss_answer.growing(RunDir.open(self.source), self._read):
            click.echo(printable(loss_answer.line(forecast(curve, 1.0, self.family, to, draws=20))))
        raise click.exceptions.Exit(0)


@dataclass(frozen=True, kw_only=True)
class FitBatch(Request):
    """Fit steps to a target by batch, S_min (1 + B_noise / B), and say what larger batches cost.

    Runs of one job at three batches or more are fitted; of several learning rates at a batch the one with the fewest steps
    counts. Runs at fewer batches need the noise scale that training.noise_scale_every measured. At the critical batch B_noise a run
    takes twice the fewest steps and twice the fewest samples.
    """

    verb = "fit batch"
    examples = (
        "chronograd fit batch runs/b16 runs/b64 runs/b256 --to 0.9",
        "chronograd fit batch runs/b64 --batches 64,128,256,512",
        "chronograd fit batch runs/b16 runs/b64 runs/b256 --metric loss --to 0.5",
    )

    sources: Annotated[tuple[Path, ...], _PATHS, Spelling(metavar="RUN...", is_argument=True)]
    metric: Literal["loss", "accuracy"] = "accuracy"
    to: Annotated[float | None, Spelling(aliases=("target",))] = None
    """Of the training loss, or the test accuracy; the job's own by default."""
    batches: Annotated[tuple[int, ...] | None, COUNTS, Spelling(metavar="B,B,...")] = None
    """Batches of the table; powers of two around the critical by default."""

    def answer(self) -> Answer[BatchFit]:
        from chronograd.fit.answer import batch

        return batch(self.sources, self.metric, self.to, None if self.batches is None else list(self.batches))


HELP = "Fit a model to measurements."
REQUESTS = (FitDevice, FitSpeed, FitLoss, FitBatch)
