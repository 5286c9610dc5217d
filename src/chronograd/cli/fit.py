"""`chronograd fit device|speed|loss|batch`: what was measured becomes a calibration, a speed model, or a forecast of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.fit.tables import Table
    from chronograd.forecast.learning_curves import LearningCurve, Metric
    from chronograd.hardware.catalog import Device

SCHEDULES = ("constant", "multi_step", "cosine", "one_cycle", "linear", "annealed")


@click.group()
def command() -> None:
    """Fit a model to what was measured."""


def table_options(function: common.F) -> common.F:
    """TABLE and what it was measured on; what timm's file names and columns say need not be stated."""
    for option in (
        click.option("--prior", type=click.Choice(["relatives", "datasheet"]), default="relatives",
                     help="What to assume before: what the nearest calibrated relative taught, or round numbers."),
        click.option("--torch", metavar="VERSION", help="PyTorch's version; fused attention since 2."),
        click.option("--compiled/--eager", "is_compiled", default=None, help="Whether networks were compiled."),
        click.option("--phase", type=click.Choice(["inference", "training"]),
                     help="If neither the file's name nor its columns say it."),
        click.option("--layout", type=click.Choice(["nchw", "nhwc"])),
        click.option("--precision", type=click.Choice(["fp32", "tf32", "bf16", "fp16", "amp"]), help="amp is fp16."),
        click.option("--device", metavar="DEVICE", help="A device of the catalogue, or a device file."),
        click.argument("table_file", metavar="TABLE.csv", type=common.PATH),
    ):  # fmt: skip
        function = option(function)
    return function


def stated_table(table_file: Path, precision: str | None, **stated: Any) -> tuple[Table, Device]:
    """The rows that ran as is stated, or as the table says, and their device."""
    from chronograd.fit.tables import precision_of, read_table
    from chronograd.hardware import catalog

    asked = None if precision is None else precision_of(precision)
    table = read_table(table_file, stated.get("phase")).stated(precision=asked, **stated).matched()
    if table.device is None:
        raise click.UsageError(f"{table_file.name} does not say which device it was measured on; give --device")
    return table, catalog.device(table.device)


@command.command("device",
                 epilog="\b\nchronograd fit device throughputs.csv --device rtx3090 --precision amp --layout nhwc --phase inference --out mine.toml")  # fmt: skip
@table_options
@click.option(
    "--rows", type=click.IntRange(min=4), help="Fit to so many rows, at least four, chosen by the seed; all by default."
)
@click.option("--seed", type=int, default=0)
@click.option("--out", type=common.FILE, help="Save the device file (.toml); a setting "
              "of the same device that is there already is kept.")  # fmt: skip
@common.answer_options
def device_command(prior: str, rows: int | None, seed: int, out: Path | None, as_json: bool, **stated: Any) -> None:
    """Calibrate a device from a table of throughputs.

    TABLE.csv has columns for model, batch, image size and samples/s or step time; names without a prefix are timm's. Where
    it has columns for device, precision, phase, layout or number of devices, rows that ran otherwise are left out.
    The file that --out saves is a device for --on and cluster.device.
    """
    from chronograd.calibrate.table_answer import fit_device

    table, device = stated_table(**stated)
    with common.progress("tracing") as report:
        fitted = fit_device(table, device, prior=prior, limit=rows, seed=seed, out=out, progress=report)
    common.show(fitted, as_json)


@command.command(
    "speed",
    epilog="\b\nchronograd fit speed speeds.csv --batch 40\nchronograd fit speed runs/w1-p1 runs/w2-p1 runs/w2-p2 runs/w4-p2",
)
@click.argument("sources", metavar="RUN|CSV...", nargs=-1, required=True, type=common.PATH)
@click.option("--batch", type=common.ABOVE_0, help="Synchronous, with so many samples in a step.")
@click.option("--at", "pairs", multiple=True, metavar="W,P", help="Workers and servers to forecast; may be repeated.")
@common.answer_options
def speed_command(sources: tuple[Path, ...], batch: float | None, pairs: tuple[str, ...], as_json: bool) -> None:
    """Fit a speed model of parameter servers: steps per second by workers and servers.

    Each run of backend parameter_server is one point; a CSV file has columns workers, servers and steps_per_s or step_time_s.
    With --batch a step is a synchronous one of all workers (5 points or more), else one worker's minibatch (4 or more).
    """
    from chronograd.fit.answer import speed

    asked = [common.whole_numbers("--at", pair) for pair in pairs]
    if any(len(pair) != 2 for pair in asked):
        raise click.UsageError(f"--at takes workers and servers, such as 8,2, not {' '.join(pairs)}")
    common.show(speed(sources, batch, [(workers, servers) for workers, servers in asked]), as_json)


@command.command(
    "loss",
    epilog="\b\nchronograd fit loss runs/mine --to 0.5\nchronograd fit loss history.json --metric accuracy --to 0.92\n"
    "chronograd fit loss log.csv --column val_loss --drops 30,60 --planned 90 --fraction 0.5 --earlier 5",
)
@click.argument("source", metavar="RUN|FILE", type=common.PATH)
@click.option("--metric", type=click.Choice(["loss", "accuracy"]), default="loss")
@click.option("--column", metavar="NAME", help="Column or tag of the values, if not one of the usual names.")
@click.option(
    "--family",
    type=click.Choice(["inverse", "power", "exponential", "last"]),
    help="The best on held-out points by default.",
)
@click.option(
    "--fraction",
    default=1.0,
    type=click.FloatRange(0, 1, min_open=True),
    help="Fit to the first part only, and score the rest.",
)
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    help="Of the learning rate: annealed is cosine, one cycle, linear. A run knows its own, a log by its column of rates.",
)
@click.option("--drops", metavar="K,K,...", help="Where the learning rate falls at once, seen or still to come.")
@click.option("--planned", type=common.ABOVE_0, help="Where training is to end; with --fraction, where the file does.")
@click.option(
    "--earlier", "num_earlier", default=0, type=click.IntRange(0, 1000), help="Also forecasts made on the way."
)
@click.option("--follow", is_flag=True, help="Fit a run again whenever it has new points, until it ends.")
@click.option("--to", "target", metavar="LEVEL", help="When will this loss, or accuracy (92%, 92, 0.92), be reached?")
@click.option("--at", "ats", multiple=True, type=common.ABOVE_0, help="Forecast at a step; may be repeated.")
@common.answer_options
def loss_command(source: Path, metric: Metric, column: str | None, family: str | None, fraction: float, schedule: str | None,
                 drops: str | None, planned: float | None, num_earlier: int, follow: bool, target: str | None,
                 ats: tuple[float, ...], as_json: bool) -> None:  # fmt: skip
    """Fit a curve to a loss or an accuracy, and forecast the rest.

    SOURCE is a run, or a file: CSV, JSON, JSON lines, TensorBoard events. Curves: inverse, Optimus' 1/(b0*k + b1) + b2; a power
    law; an exponential; the last value, which a forecast has to beat. An accuracy is fitted as the error 1 - accuracy. After a
    drop of the learning rate a curve begins anew: only the points since the last one are fitted. What the rate will still do
    ends convergence, so tell the schedule: beyond the next drop, levels fall as they did in published runs.
    """
    from chronograd.forecast import loss_answer
    from chronograd.forecast.forecast_answer import level
    from chronograd.forecast.forecasting import forecast
    from chronograd.rundir import RunDir, is_run_dir

    places = common.numbers("--drops", drops) if drops else ()
    to = None if target is None else level(target, metric)

    def read() -> LearningCurve:
        return loss_answer.read(source, metric, column, schedule, places, planned, fraction < 1)

    if not follow:
        common.show(loss_answer.loss(forecast(read(), fraction, family, to, ats, num_earlier)), as_json)
        return
    if as_json or not is_run_dir(source):
        raise click.UsageError("--follow prints lines of text, of a run")
    for curve in loss_answer.growing(RunDir.open(source), read):
        common.echo(loss_answer.line(forecast(curve, 1.0, family, to, draws=20)))


@command.command(
    "batch",
    epilog="\b\nchronograd fit batch runs/b16 runs/b64 runs/b256 --to 0.9\n"
    "chronograd fit batch runs/b64 --batches 64,128,256,512\n"
    "chronograd fit batch runs/b16 runs/b64 runs/b256 --metric loss --to 0.5",
)
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=common.PATH)
@click.option("--metric", type=click.Choice(["loss", "accuracy"]), default="accuracy")
@click.option(
    "--to", "target", type=float, help="Of the training loss, or the test accuracy; the job's own by default."
)
@click.option(
    "--batches",
    callback=common.counts,
    metavar="B,B,...",
    help="Batches of the table; powers of two around the critical by default.",
)
@common.answer_options
def batch_command(
    sources: tuple[Path, ...], metric: Metric, target: float | None, batches: list[int] | None, as_json: bool
) -> None:
    """Fit steps to a target by batch, S_min (1 + B_noise / B), and say what larger batches cost.

    Runs of one job at three batches or more are fitted; of several learning rates at a batch the one with the fewest steps
    counts. Runs at fewer batches need the noise scale that training.noise_scale_every measured. At the critical batch B_noise a run
    takes twice the fewest steps and twice the fewest samples.
    """
    from chronograd.fit.answer import batch

    common.show(batch(sources, metric, target, batches), as_json)
