"""`chronograd fit device TABLE.csv`: what was measured elsewhere becomes a calibration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.fit.tables import Table
    from chronograd.hardware.catalog import Device


@click.group()
def command() -> None:
    """Fit a model to what was measured."""


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
    from chronograd.fit.tables import shuffled
    from chronograd.measure.published import fit_table, join, prior_of
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
