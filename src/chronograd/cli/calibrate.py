"""`chronograd calibrate`: this machine becomes the device `local`."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.group(name="calibrate", invoke_without_command=True)
@click.option("--precision", "precisions", multiple=True, type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
              help="What to calibrate; fp32 by default. May be given several times.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Also save the device file (.toml).")
@common.json_option
@click.pass_context
def command(context: click.Context, precisions: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Measure this machine's GPU, or its CPU, in about a minute for each way of running.

    The result is the device `local`, which --on and cluster.device accept like any other.
    """
    if context.invoked_subcommand is not None:
        return
    from chronograd.calibrate.machine import calibrate, calibrate_link, save_local
    from chronograd.hardware import catalog

    with common.progress("calibrating") as report:
        device = save_local(calibrate(precisions=precisions or ("fp32",), progress=report))
        if device.kind == "cpu":
            calibrate_link()
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


@command.command(name="links")
@click.option("--world", "worlds", help="Numbers of processes, such as 2,4; 2 by default, with --hosts one on each.")
@click.option("--collective", "collectives", multiple=True, help="Which to time; all by default. Several times.")
@click.option("--seconds", default=0.4, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Time for one collective of one size.")  # fmt: skip
@common.hosts_option
@click.option("--name", help="With --hosts: what the link is called, such as ethernet-here.")
@common.json_option
def links_command(worlds: str | None, collectives: tuple[str, ...], seconds: float, hosts: str | None,
                  name: str | None, as_json: bool) -> None:  # fmt: skip
    """Time collectives between processes of this machine, or of several, and fit the link that predict uses.

    All-reduce, all-gather, reduce-scatter and broadcast over sizes and numbers of processes: time, algorithm and bus
    bandwidth. α and β of the all-reduces become the link `loopback`; between hosts the link of the name given, for
    cluster.link, with the bytes that pass at once after a rest where something limits the rate.

    \b
    chronograd calibrate links
    chronograd calibrate links --world 2,4 --collective all_reduce
    chronograd calibrate links --hosts node1,node2 --name ethernet-here
    """
    from chronograd.calibrate import links

    if (hosts is None) != (name is None):
        raise click.UsageError("--hosts and --name go together: the link between those hosts is kept under that name")
    if hosts is not None and worlds is not None:
        raise click.UsageError("--hosts has one process on each host; leave --world out")
    counts, seats = common.whole_numbers("--world", worlds or "2"), []
    if hosts is not None and name is not None:
        from chronograd.launch.hosts import parse
        from chronograd.launch.hosts import seats as seats_on

        links.check_name(name)
        places = parse(hosts)
        counts, seats = [len(places)], seats_on(len(places), places)
    with common.progress("timing collectives") as report:
        rows = links.measure_links(
            counts, collectives or links.COLLECTIVES, seconds_each=seconds, progress=report, seats=seats
        )
    fits = [
        links.fit(rows, timed, has_burst=bool(seats))
        for timed in links.COLLECTIVES
        if any(row.collective == timed for row in rows)
    ]
    found = next((fit for fit in fits if fit.collective == "all_reduce"), None)
    between = [seat.host.name for seat in seats]
    link = None if found is None else links.link_of(found, counts, name or links.LOOPBACK, between)
    path = links.save(link) if link is not None else None
    if as_json:
        shown = None if link is None else link.model_dump(mode="json")
        data = {"rows": [row.row() for row in rows], "fits": [vars(fit) for fit in fits], "link": shown}
        common.print_json(data)
        return
    from chronograd.units import percent, si
    from chronograd.units import seconds as as_time

    common.print_table(
        ("collective", "processes", "size", "time", "middle 80 %", "n", "algbw", "busbw"),
        [
            (row.collective, str(row.world), si(row.bytes, "B"), as_time(row.seconds),
             f"{as_time(row.low)} … {as_time(row.high)}", str(row.n), si(row.algbw, "B/s"), si(row.busbw, "B/s"))
            for row in rows
        ],
        right=(1, 2, 3, 4, 5, 6, 7),
    )  # fmt: skip
    common.print_table(
        ("fitted", "latency α", "bandwidth 1/β", "at once", "median error"),
        [
            (
                f.collective,
                as_time(f.latency_s),
                si(f.bandwidth_bytes_per_s, "B/s"),
                si(f.burst_bytes, "B"),
                percent(f.error),
            )
            for f in fits
        ],
        right=(1, 2, 3, 4),
    )
    if link is not None:
        click.echo(f"saved to {path}: the link {link.name}, from all-reduces")
