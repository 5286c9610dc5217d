"""`chronograd calibrate`: this machine becomes the device `local`."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command()
@click.option("--precision", "precisions", multiple=True, type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
              help="What to calibrate; fp32 by default. May be given several times.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also save the device file (.toml).")
@common.json_option
def command(precisions: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Measure this machine's GPU, or its CPU, in about a minute for each way of running.

    The result is the device `local`, which --on and cluster.device accept like any other.
    """
    from chronograd.hardware import catalog
    from chronograd.measure.calibrate import calibrate, save_local

    with common.progress("calibrating") as report:
        device = save_local(calibrate(precisions=precisions or ("fp32",), progress=report))
    if out is not None:
        device.save(out)
    settings = (device.calibration or {})["settings"]
    if as_json:
        common.print_json(device.model_dump(mode="json"))
        return
    from chronograd.units import percent, si

    rows = [
        (
            s["precision"],
            s["mode"],
            str(s["processes"]),
            str(s["threads"]),
            si(s["peak_flops_per_s"], "FLOP/s"),
            si(s["bandwidth_bytes_per_s"], "B/s"),
            f"{1e6 * (s['classes']['elementwise.forward'][s['rates'].index('launch_s')] + s['host_launch_s']):.1f} µs",
            percent(s["provenance"]["error_in_sample"]),
            percent(s["provenance"]["error_left_out"]),
        )
        for s in settings
    ]
    columns = (
        "precision",
        "mode",
        "ranks",
        "threads",
        "peak reached",
        "bandwidth reached",
        "per operator",
        "error, fitted blocks",
        "error, blocks left out",
    )
    common.print_table(columns, rows, title=f"local: {device.title}", right=range(2, 9))
    click.echo(f"saved to {catalog.user_device_path('local')}")
