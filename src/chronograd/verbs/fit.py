"""`fit device|speed|loss|batch`: turn measurements into a calibration, a speed model, or a forecast of the loss."""

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
        raise ValueError(f"cannot read {text}; write workers and servers, such as 8,2")
    return pair[0], pair[1]


class _Pairs(ListKind):
    is_list = False  # one pair, not a list of pairs


PAIR = _Pairs("W,P", parse_pair, lambda _: False)
_PATHS = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class TableRequest(Request):
    """TABLE and how it was measured; parts that the file name and columns of timm's tables state can be left out."""

    table: Annotated[Path, _PATHS, Spelling(metavar="TABLE.csv", is_argument=True)]
    device: Annotated[str | None, Spelling(metavar="DEVICE", complete=complete_devices)] = None
    """A device of the catalogue, or a device file."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "amp"] | None = None
    """Precision; amp means fp16."""
    layout: Literal["nchw", "nhwc"] | None = None
    phase: Literal["training", "inference"] | None = None
    """Training or inference, if neither the file's name nor its columns state it."""
    compiled: Annotated[bool | None, Spelling(("--compiled/--eager",), aliases=("is_compiled",))] = None
    """State whether the networks were compiled."""
    torch: Annotated[str | None, Spelling(metavar="VERSION")] = None
    """PyTorch's version; it has fused attention since version 2."""
    prior: Literal["relatives", "datasheet"] = "relatives"
    """Prior of the fit: parameters of the nearest calibrated relative, or round numbers from the datasheet."""

    def read(self) -> tuple[ThroughputTable, Device]:
        """Return the rows that ran with the stated (or the table's) settings, and their device. Raises InputError."""
        from chronograd.fit.tables import precision_of, read_table
        from chronograd.hardware import catalog

        stated: dict[str, Any] = {"device": self.device, "layout": self.layout, "phase": self.phase, "torch": self.torch,
                                  "is_compiled": self.compiled}  # fmt: skip
        precision = None if self.precision is None else precision_of(self.precision)
        table = read_table(self.table, self.phase).stated(precision=precision, **stated).matched()
        if table.device is None:
            raise InputError(f"{self.table.name} does not state its device", "give --device")
        return table, catalog.device(table.device)


@dataclass(frozen=True, kw_only=True)
class FitDevice(TableRequest):
    """Calibrate a device from a table of throughputs.

    TABLE.csv has columns for model, batch, image size and samples/s or step time; names without a prefix are timm's. If it has
    columns for device, precision, phase, layout or number of devices, rows with other settings are left out. The file that
    --out saves is a device for --on and cluster.device.
    """

    verb = "fit device"
    examples = (
        "chronograd fit device throughputs.csv --device rtx3090 --precision amp --layout nhwc --phase inference --out mine.toml",
    )

    rows: Annotated[int | None, click.IntRange(min=4)] = None
    """Number of rows to fit, at least four, chosen by the seed; all by default."""
    seed: int = 0
    out: Annotated[Path | None, FILE] = None
    """Save the device file (.toml). Other calibrated settings in an existing file of the same device remain."""

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
    With --batch a step is synchronous over all workers (at least 5 points), else it is one worker's minibatch (at least 4).
    """

    verb = "fit speed"
    examples = (
        "chronograd fit speed speeds.csv --batch 40",
        "chronograd fit speed runs/w1-p1 runs/w2-p1 runs/w2-p2 runs/w4-p2",
    )

    sources: Annotated[tuple[Path, ...], _PATHS, Spelling(metavar="RUN|CSV...", is_argument=True)]
    batch: Annotated[float | None, ABOVE_0] = None
    """Samples in a synchronous step."""
    at: Annotated[tuple[Any, ...], PAIR, Spelling(metavar="W,P")] = ()
    """Workers and servers to forecast; may be given several times."""

    def answer(self) -> Answer[SpeedFit]:
        from chronograd.fit.answer import speed

        return speed(self.sources, self.batch, list(self.at))


@dataclass(frozen=True, kw_only=True)
class FitLoss(Request):
    """Fit a curve to a loss or an accuracy, and forecast the rest.

    SOURCE is a run, or a file: CSV, JSON, JSON lines, TensorBoard events. Curves: inverse, Optimus' 1/(b0*k + b1) + b2; a power
    law; an exponential; the last value, as a baseline for the others. An accuracy is fitted as the error 1 - accuracy.

    A drop of the learning rate starts a new curve, so only the points since the last drop are fitted. State the schedule,
    because later changes of the rate end convergence: after the next drop, the forecast falls to levels seen in published runs.
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
    """Curve to fit; by default the best one on held-out points."""
    fraction: Annotated[float, click.FloatRange(0, 1, min_open=True)] = 1.0
    """Fit only the first part, and score the forecast on the rest."""
    schedule: ScheduleName | None = None
    """Learning rate schedule: annealed is cosine, one cycle, linear. A run has its own, a log may have a column of rates."""
    drops: Annotated[tuple[float, ...], NUMBERS, Spelling(metavar="K,K,...")] = ()
    """Steps or epochs of sudden drops of the learning rate, past or planned."""
    planned: Annotated[float | None, ABOVE_0] = None
    """Planned end of training; with --fraction, the end of the file."""
    earlier: Annotated[int, click.IntRange(0, 1000)] = 0
    """Number of earlier forecasts to show."""
    follow: bool = False
    """Fit a run again whenever it has new points, until it ends."""
    to: Annotated[Any, Spelling(metavar="LEVEL", aliases=("target",))] = None
    """Loss or accuracy (92%, 92, 0.92) to forecast the time of."""
    at: Annotated[tuple[float, ...], ABOVE_0] = ()
    """Step to forecast; may be given several times."""

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
            self.source, self.metric, self.column, self.schedule, self.drops, self.planned, self.fraction
        )

    def _follow(self, to: float | None) -> None:
        """Print a line for each new point of the run, until it ends. Raises InputError for a file."""
        from chronograd.forecast import loss_answer
        from chronograd.forecast.forecasting import forecast
        from chronograd.rundir import RunDir, is_run_dir

        if not is_run_dir(self.source):
            raise InputError(f"--follow needs a run, and {self.source} is not one", "leave --follow out")
        for curve in loss_answer.growing(RunDir.open(self.source), self._read):
            click.echo(printable(loss_answer.line(forecast(curve, 1.0, self.family, to, draws=20))))
        raise click.exceptions.Exit(0)


@dataclass(frozen=True, kw_only=True)
class FitBatch(Request):
    """Fit steps to a target by batch, S_min (1 + B_noise / B), and show the cost of larger batches.

    Runs of one job at three batches or more are fitted; if a batch has several learning rates, the run with the fewest steps
    counts. Runs at fewer batches need the noise scale that training.noise_scale_every measured. At the critical batch B_noise a
    run takes twice the minimum of steps and twice the minimum of samples.
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
    """Target training loss or test accuracy; the job's own by default."""
    batches: Annotated[tuple[int, ...] | None, COUNTS, Spelling(metavar="B,B,...")] = None
    """Batches in the table; powers of two around the critical batch by default."""

    def answer(self) -> Answer[BatchFit]:
        from chronograd.fit.answer import batch

        return batch(self.sources, self.metric, self.to, None if self.batches is None else list(self.batches))


HELP = "Fit a model to measurements."
REQUESTS = (FitDevice, FitSpeed, FitLoss, FitBatch)
