"""`chronograd calibrate`: this machine becomes the device `local`."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.group(name="calibrate", invoke_without_command=True)
@click.option("--precision", "precisions", multiple=True, type=click.Choice(["fp32", "tf32", "bf16", "fp16"]),
              help="What to calibrate; fp32 by default. May be given several times.")  # fmt: skip
@click.option("--layout", "layouts", multiple=True, type=click.Choice(["nchw", "nhwc"]),
              help="Of images in memory: nchw by default, nhwc for training.channels_last, and of a CPU for training.compile. Twice for both.")  # fmt: skip
@click.option("--out", type=common.FILE, help="Also save the device file (.toml).")
@common.answer_options
@click.pass_context
def command(context: click.Context, precisions: tuple[str, ...], layouts: tuple[str, ...],
            out: Path | None, as_json: bool) -> None:  # fmt: skip
    """Measure this machine's GPU, or its CPU, in about a minute for each way of running.

    The result is the device `local`, which --on and cluster.device accept like any other.
    """
    if context.invoked_subcommand is not None:
        return
    from chronograd.calibrate.answer import calibrate

    with common.progress("calibrating") as report:
        calibrated = calibrate(precisions or ("fp32",), layouts=layouts or ("nchw",), out=out, progress=report)
    common.show(calibrated, as_json)


@command.command(name="links")
@click.option(
    "--world",
    "worlds",
    callback=common.counts,
    help="Numbers of processes, such as 2,4; 2 by default, with --hosts one on each.",
)
@click.option("--collective", "collectives", multiple=True, help="Which to time; all by default. Several times.")
@click.option("--seconds", default=0.4, type=common.ABOVE_0, help="Time for one collective of one size.")
@common.hosts_option
@click.option(
    "--from", "rows", type=common.FILE, help="A CSV file of measured all-reduces, or of scaling, to fit the link to."
)
@click.option(
    "--like", help="With --from: a link whose latency is taken where the rows do not tell it; pcie3 by default."
)
@click.option(
    "--name", help="With --hosts and --from: what the link is called, such as ethernet-here; no name of the catalogue."
)
@common.answer_options
def links_command(worlds: list[int] | None, collectives: tuple[str, ...], seconds: float, hosts: str | None,
                  rows: Path | None, like: str | None, name: str | None, as_json: bool) -> None:  # fmt: skip
    """Time collectives between processes of this machine, or of several, and fit the link that predict uses.

    All-reduce, all-gather, reduce-scatter and broadcast over sizes and numbers of processes: time, algorithm and bus
    bandwidth. α and β of the all-reduces become the link `loopback`; between hosts the link of the name given, for
    cluster.link, with the bytes that pass at once after a rest where something limits the rate.

    With --from nothing is timed: the rows of a file are all-reduces (columns ranks, bytes, seconds) or steps on one rank and on
    several (ranks, network, batch_per_rank, device, precision, samples_per_s), all of one device and library. One row of
    all-reduces is enough.

    \b
    chronograd calibrate links
    chronograd calibrate links --world 2,4 --collective all_reduce
    chronograd calibrate links --hosts node1,node2 --name ethernet-here
    chronograd calibrate links --from all-reduce.csv --name pcie-here
    """
    from chronograd.calibrate import answer, link_rows, links

    if rows is not None:
        if name is None or hosts is not None or worlds is not None:
            raise click.UsageError("--from needs --name, and times nothing: leave out --hosts and --world")
        common.show(answer.link_from_rows(rows, name, like or link_rows.LIKE), as_json)
        return
    if like is not None:
        raise click.UsageError("--like goes with --from: a link that is timed has its own latency")
    if (hosts is None) != (name is None):
        raise click.UsageError("--hosts and --name go together: the link between those hosts is kept under that name")
    if hosts is not None and worlds is not None:
        raise click.UsageError("--hosts has one process on each host; leave --world out")
    with common.progress("timing collectives") as report:
        timed = answer.calibrate_links(
            worlds or (2,),
            collectives or links.COLLECTIVES,
            seconds_each=seconds,
            hosts=hosts,
            name=name or links.LOOPBACK,
            progress=report,
        )
    common.show(timed, as_json)
