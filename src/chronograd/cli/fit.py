"""`chronograd fit device|speed|loss|batch`: what was measured becomes a calibration, a speed model, or a forecast of the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common
from chronograd.cli.fit_batch import batch_command

if TYPE_CHECKING:
    from chronograd.fit.convergence import Convergence
    from chronograd.fit.forecast import Forecast, Reached
    from chronograd.fit.learning_curves import LearningCurve
    from chronograd.fit.tables import Table
    from chronograd.hardware.catalog import Device
    from chronograd.rundir import RunDir


@click.group()
def command() -> None:
    """Fit a model to what was measured."""


command.add_command(batch_command)


def table_options(function: common.F) -> common.F:
    """TABLE and what it was measured on; what timm's file names and columns say need not be stated."""
    for option in (
        click.option("--prior", type=click.Choice(["relatives", "datasheet"]), default="relatives", show_default=True,
                     help="What to assume before: what the nearest calibrated relative taught, or round numbers."),
        click.option("--torch", "torch_version", metavar="VERSION", help="PyTorch's version; fused attention since 2."),
        click.option("--compiled/--eager", "is_compiled", default=None, help="Whether networks were compiled."),
        click.option("--phase", type=click.Choice(["inference", "training"])),
        click.option("--layout", type=click.Choice(["nchw", "nhwc"])),
        click.option("--precision", type=click.Choice(["fp32", "tf32", "bf16", "fp16", "amp"]), help="amp is fp16."),
        click.option("--device", "device_name", metavar="DEVICE", help="A device of the catalogue, or a device file."),
        click.argument("table_file", metavar="TABLE.csv", type=click.Path(path_type=Path)),
    ):  # fmt: skip
        function = option(function)
    return function


def stated_table(
    table_file: Path, device_name: str | None, precision: str | None, layout: str | None, phase: str | None,
    is_compiled: bool | None, torch_version: str | None,
) -> tuple[Table, Device]:  # fmt: skip
    """The table with what is stated in place of what was inferred, and its device."""
    from chronograd.fit.tables import read_table
    from chronograd.hardware import catalog

    table = read_table(table_file).stated(
        device=device_name,
        precision={"amp": "fp16"}.get(precision or "", precision),
        layout=layout,
        phase=phase,
        is_compiled=is_compiled,
        torch=torch_version,
    )
    if table.device is None:
        raise click.UsageError(f"{table_file.name} does not say which device it was measured on; give --device")
    return table, catalog.device(table.device)


def described(table: Table, device: Device) -> str:
    """One line: what is known of a table, inferred or stated."""
    return ", ".join(
        [
            f"{len(table.rows)} rows",
            device.title,
            table.mode,
            table.precision or "fp32",
            "nhwc" if table.channels_last else "nchw",
            "compiled" if table.is_compiled else "eager",
            f"torch {table.torch or 'unknown'}",
        ]
    )


@command.command("device",
                 epilog="\b\nchronograd fit device throughputs.csv --device rtx3090 --precision amp --layout nhwc --phase inference --out mine.toml")  # fmt: skip
@table_options
@click.option("--rows", type=click.IntRange(min=10), help="Fit to so many rows, chosen by the seed; all by default.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the device file (.toml); a setting "
              "of the same device that is there already is kept.")  # fmt: skip
@common.json_option
def device_command(prior: str, rows: int | None, seed: int, out: Path | None, as_json: bool, **stated: Any) -> None:
    """Calibrate a device from a table of throughputs.

    TABLE.csv has columns for model, batch, image size and samples/s or step time; names without a prefix are timm's.
    The file that --out saves is a device for --on and cluster.device.
    """
    from chronograd.calibrate.tables import fit_table, join, prior_of
    from chronograd.fit.tables import shuffled
    from chronograd.units import percent

    table, device = stated_table(**stated)
    if not as_json:
        click.echo(f"{table.name}: {described(table, device)}")
    with common.progress("tracing") as report:
        joined = join(table, shuffled(table.rows, seed), report, rows)
    calibration = fit_table(table, joined.timed, *prior_of(table, device, prior))
    if out is not None:
        _add(out, device, calibration.to_table())
    if as_json:
        common.print_json({"calibration": calibration.to_table(), "left_out": joined.left_out})
        return
    p = calibration.provenance
    click.echo(f"fitted to {p['samples']} networks; {len(joined.left_out)} rows left out")
    click.echo(
        f"error of fitted networks {percent(p['error_in_sample'])}, of networks left out {percent(calibration.sigma)}"
    )
    for key, reason in list(joined.left_out.items())[:5]:
        click.echo(f"  left out: {key}: {reason}")
    if out is not None:
        click.echo(f"saved to {out}: give it to --on")


def _add(out: Path, device: Device, setting: dict[str, Any]) -> None:
    """Save a device with one more setting; one for the same precision and way of running is replaced."""
    from chronograd.hardware import catalog

    known = catalog.device(out) if out.exists() else device.model_copy(update={"calibration": None})
    keys = ("precision", "mode", "channels_last", "is_compiled", "threads", "processes")
    others = [s for s in (known.calibration or {}).get("settings", []) if any(s.get(k) != setting.get(k) for k in keys)]
    calibration = {**(known.calibration or {}), "settings": [*others, setting]}
    known.model_copy(update={"calibration": calibration}).save(out)


@command.command(
    "speed",
    epilog="\b\nchronograd fit speed speeds.csv --batch 40\nchronograd fit speed runs/w1-p1 runs/w2-p1 runs/w2-p2 runs/w4-p2",
)
@click.argument("sources", metavar="RUN|CSV...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--batch", type=click.FloatRange(0, min_open=True), help="Synchronous, with so many samples in a step.")
@click.option("--at", "pairs", multiple=True, metavar="W,P", help="Workers and servers to forecast; may be repeated.")
@common.json_option
def speed_command(sources: tuple[Path, ...], batch: float | None, pairs: tuple[str, ...], as_json: bool) -> None:
    """Fit a speed model of parameter servers: steps per second by workers and servers.

    Each run of backend parameter_server is one point; a CSV file has columns workers, servers and steps_per_s or step_time_s.
    With --batch a step is a synchronous one of all workers (5 points or more), else one worker's minibatch (4 or more).
    """
    from chronograd.fit.speed import fit_speed, read_points
    from chronograd.units import percent

    points = [point for source in sources for point in read_points(source)]
    if batch is not None and any(point.is_asynchronous for point in points):
        raise click.UsageError("--batch is for synchronous steps; runs of parameter_server are asynchronous")
    found = fit_speed([p.workers for p in points], [p.servers for p in points], [p.steps_per_s for p in points], batch)
    asked = [common.whole_numbers("--at", pair) for pair in pairs]
    if any(len(pair) != 2 for pair in asked):
        raise click.UsageError(f"--at takes workers and servers, such as 8,2, not {' '.join(pairs)}")
    forecasts = [(w, p, found.model.steps_per_s(w, p), *map(float, found.interval(w, p))) for w, p in asked]
    names = [f"a{i}" for i in range(len(found.model.coefficients))]
    if as_json:
        common.print_json({
            "mode": found.model.mode, "batch": batch, "coefficients": list(found.model.coefficients),
            "intervals": [list(pair) for pair in found.coefficient_intervals()],
            "points": [
                {"workers": p.workers, "servers": p.servers, "steps_per_s": p.steps_per_s, "error": float(e)}
                for p, e in zip(points, found.errors, strict=True)
            ],
            "forecasts": [dict(zip(_FORECAST, row, strict=True)) for row in forecasts],
        })  # fmt: skip
        return
    rows = zip(names, found.model.coefficients, found.coefficient_intervals(), strict=True)
    common.print_table(
        ("coefficient", "seconds", "middle 80 %"),
        [[name, f"{a:.4g}", f"{low:.4g} … {high:.4g}"] for name, a, (low, high) in rows],
        right=(1,),
        title=f"{found.model.mode} speed, {len(points)} points",
        caption=f"error of a point {percent(float(abs(found.errors).mean()))} in the mean",
    )
    for w, p, speed, low, high in forecasts:
        click.echo(f"{w} workers, {p} servers: {speed:.4g} steps/s ({low:.4g} … {high:.4g})")


_FORECAST = ("workers", "servers", "steps_per_s", "low", "high")


@command.command(
    "loss",
    epilog="\b\nchronograd fit loss runs/mine --to 0.5\nchronograd fit loss history.json --metric accuracy --to 0.92\n"
    "chronograd fit loss log.csv --column val_loss --drops 30,60 --planned 90 --fraction 0.5 --earlier 5",
)
@click.argument("source", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--metric", type=click.Choice(["loss", "accuracy"]), default="loss", show_default=True)
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
    type=click.Choice(["constant", "multi_step", "annealed"]),
    help="Of the learning rate: annealed is cosine, one cycle, linear. A run knows its own.",
)
@click.option("--drops", metavar="K,K,...", help="Where the learning rate falls at once, seen or still to come.")
@click.option(
    "--planned",
    type=click.FloatRange(0, min_open=True),
    help="Where training is to end; with --fraction, where the file does.",
)
@click.option(
    "--earlier", "num_earlier", default=0, type=click.IntRange(0, 1000), help="Also forecasts made on the way."
)
@click.option("--follow", is_flag=True, help="Fit a run again whenever it has new points, until it ends.")
@click.option("--to", "target", type=float, help="When will this loss, or accuracy, be reached?")
@click.option(
    "--at", "ats", multiple=True, type=click.FloatRange(0, min_open=True), help="Forecast at a step; may be repeated."
)
@common.json_option
def loss_command(source: Path, metric: str, column: str | None, family: str | None, fraction: float, schedule: str | None,
                 drops: str | None, planned: float | None, num_earlier: int, follow: bool, target: float | None,
                 ats: tuple[float, ...], as_json: bool) -> None:  # fmt: skip
    """Fit a curve to a loss or an accuracy, and forecast the rest.

    SOURCE is a run, or a file: CSV, JSON, JSON lines, TensorBoard events. Curves: inverse, Optimus' 1/(b0*k + b1) + b2; a power
    law; an exponential; the last value, which a forecast has to beat. An accuracy is fitted as the error 1 - accuracy. After a
    drop of the learning rate a curve begins anew: only the points since the last one are fitted. What the rate will still do
    ends convergence, so tell the schedule: beyond the next drop, levels fall as they did in published runs.
    """
    from dataclasses import replace

    from chronograd.fit.forecast import forecast
    from chronograd.fit.learning_curves import read_curve
    from chronograd.fit.schedule import Schedule
    from chronograd.rundir import RunDir, is_run_dir

    def read() -> LearningCurve:
        curve = read_curve(source, "accuracy" if metric == "accuracy" else "loss", column)
        told = curve.schedule
        # A part of a finished log had been planned to end where the log does.
        end = planned or told.planned or (float(curve.steps[-1]) if fraction < 1 else None)
        kind = schedule or ("multi_step" if drops else told.kind)
        places = tuple(common.numbers("--drops", drops)) if drops else told.drops if kind == "multi_step" else ()
        return replace(curve, schedule=Schedule(kind, places, end))  # type: ignore[arg-type]

    if follow:
        if as_json or not is_run_dir(source):
            raise click.UsageError("--follow prints lines of text, of a run")
        for curve in _growing(RunDir.open(source), read):
            _print_line(forecast(curve, 1.0, family, target, draws=20))
        return
    found = forecast(read(), fraction, family, target, ats, num_earlier)
    common.print_json(found.data()) if as_json else _print_forecast(found)


POLL_EVERY_S = 1.0


def _growing(run: RunDir, read: Callable[[], LearningCurve]) -> Iterator[LearningCurve]:
    """The curve of a run whenever it has grown, from as many points as a fit needs, until the run has ended."""
    from chronograd.errors import InputError
    from chronograd.fit.loss import MIN_POINTS

    seen = MIN_POINTS - 1
    while True:
        is_last = run.is_finished
        with contextlib.suppress(InputError):  # no point yet
            curve = read()
            if len(curve.steps) > seen:
                seen = len(curve.steps)
                yield curve
        if is_last:
            return
        sleep(POLL_EVERY_S)


def _print_line(found: Forecast) -> None:
    curve, until = found.curve, found.until
    value = 1 - curve.values[-1] if curve.metric == "accuracy" else curve.values[-1]
    told = [f"{curve.unit} {until:g}: {curve.metric} {value:.4g}", _convergence(found.converged, until, curve.unit)]
    if found.reached is not None:
        told.append(_told(found.reached, curve.metric, curve.unit))
    click.echo("; ".join([*told, *curve.notes]))


def _print_forecast(found: Forecast) -> None:
    from chronograd.units import percent

    curve, model, unit = found.curve, found.model, found.curve.unit
    since = f" since {unit} {found.started:g}" if found.started else ""
    common.print_table(
        ("curve", "error of held-out points", ""),
        [
            [name, percent(error, 2), "taken" if name == model.family else ""]
            for name, error in sorted(found.errors.items(), key=lambda pair: pair[1])
        ],
        right=(1,),
        title=f"{curve.name}: {curve.metric}, {model.num_points} points{since} until {unit} {found.until:g}",
        caption="held out: the last quarter, forecast from those before; over the largest value",
    )
    named = ", ".join(f"{name} {value:.4g}" for name, value in model.coefficients.items())
    click.echo(f"{model.family}: {named}")
    for note in curve.notes:
        click.echo(f"note: {note}")
    for one in found.at:
        was = "" if one.seen is None else f"; it was {one.seen:.4g}"
        click.echo(f"{unit} {one.step:g}: {curve.metric} {one.value:.4g} ({one.low:.4g} … {one.high:.4g}){was}")
    if found.reached is not None:
        click.echo(_told(found.reached, curve.metric, unit))
    for until, converged in (*found.earlier, (found.until, found.converged)):
        click.echo(f"forecast at {unit} {until:g}: {_convergence(converged, until, unit)}")


def _convergence(found: Convergence, now: float, unit: str) -> str:
    if found.step <= now:
        return f"converged at {unit} {found.step:g}"
    source = "published runs of such a schedule" if found.source == "published" else "its own points"
    return f"converged at {unit} {found.step:.4g} ({found.low:.4g} … {found.high:.4g}), by {source}"


def _told(reached: Reached, metric: str, unit: str) -> str:
    low, high = (f"{k:.4g}" if k is not None else "never" for k in (reached.low, reached.high))
    when = (
        f"is not reached by this curve ({low} … {high})"
        if reached.step is None
        else f"at {unit} {reached.step:.4g} ({low} … {high})"
    )
    was = "" if reached.seen is None else f"; it was reached at {unit} {reached.seen:g}"
    return f"{metric} {reached.value:g} {when}{was}"
