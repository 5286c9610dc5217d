"""`chronograd launch JOB --on slurm`: train on a cluster; look at what was launched, wait for it, go on with it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.rundir import RunDir

CLUSTERS = ("slurm", "ray")
ACTIONS = ("status", "collect", "resume")


@click.command()
@click.argument("words", nargs=-1, metavar="JOB [FIELD=VALUE]... | RUN...")
@click.option("--on", "where", type=click.Choice(CLUSTERS), help="Where JOB is launched.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted; nothing is written.")
@click.option("--sweep", multiple=True, metavar="FIELD=A,B,...", help="One run per value; several make a grid.")
@click.option("--status", "action", flag_value="status", help="Print where each RUN is.")
@click.option("--collect", "action", flag_value="collect", help="Print the record of each RUN, or why it has none.")
@click.option("--resume", "action", flag_value="resume", help="Submit each RUN again; it goes on from its checkpoint.")
@click.option("--wait", is_flag=True, help="Wait until all is done, then print the records.")
@click.option("--out", type=common.PATH, help="Run directory, of a sweep their folder; new in runs/.")
@click.option("--address", help="Of the Ray cluster, such as 10.0.0.5:6379.")
@click.option("--time", "limit", metavar="HH:MM:SS", help="Time limit of one allocation.")
@click.option("--partition", help="Partition of the cluster.")
@click.option("--account", help="Account that pays.")
@click.option("--cpus-per-task", type=click.IntRange(1), help="Cores of a rank; cluster.threads by default, else 1.")
@click.option("--interface", help="Network interface of gloo and NCCL, such as ib0.")
@click.option("--python", help="Python on the compute nodes; this one by default.")
@click.option("--sbatch", "extra", multiple=True, metavar="OPTION", help="Any option of sbatch: --sbatch=--mem=8G.")
@common.json_option
def command(words: tuple[str, ...], where: str | None, dry_run: bool, sweep: tuple[str, ...], action: str | None,
            wait: bool, out: Path | None, address: str | None, limit: str | None, partition: str | None, account: str | None,
            cpus_per_task: int | None, interface: str | None, python: str | None, extra: tuple[str, ...],
            as_json: bool) -> None:  # fmt: skip
    """Train a job on a cluster; look at it, collect it, go on with it.

    The job says how many devices, and how many of them a node has (cluster.count, cluster.per_node). Each run gets a run
    directory, which all nodes must see, with the script that was submitted.

    \b
    chronograd launch examples/digits.yaml --on slurm --dry-run backend=ddp cluster.count=2
    chronograd launch examples/digits.yaml --on slurm --time 01:00:00 --wait
    chronograd launch examples/digits.yaml --on slurm --sweep training.learning_rate=0.05,0.1,0.2
    chronograd launch examples/digits.yaml --on ray --address 10.0.0.5:6379 --sweep training.batch=32,64
    chronograd launch --status runs/mine
    """
    if not words:
        raise click.UsageError("Name a JOB, or RUNs to --status, --collect or --resume.")
    if action is not None:
        if where or dry_run or sweep or out:
            raise click.UsageError(f"--{action} is of runs that are there: leave --on, --dry-run, --sweep, --out out.")
        _act(action, words, wait, as_json)
        return
    if where is None:
        raise click.UsageError(f"Say where: --on {' or --on '.join(CLUSTERS)}.")
    if where == "ray" and (dry_run or address is None):
        raise click.UsageError("A sweep on Ray needs --address HOST:PORT, and has no --dry-run.")
    from chronograd.launch import answer
    from chronograd.launch.slurm.script import Options

    job = common.read_job(words[0], words[1:])
    options = Options(limit, partition, account, cpus_per_task, interface, python, extra)
    if address is not None and where == "ray":
        _print_records(answer.sweep_on_ray(job, sweep, out, address, _say), as_json)
    elif dry_run:
        text = answer.script(job, sweep, options, out)
        common.print_json({"script": text}) if as_json else click.echo(text, nl=False)
    else:
        _done(answer.submit(job, sweep, options, out), wait, as_json)


def _say(name: str, state: str, why: str) -> None:
    click.echo(" ".join(filter(None, (name, state, why))), err=True)


def _act(action: str, paths: Sequence[str], wait: bool, as_json: bool) -> None:
    from chronograd.launch import answer, slurm
    from chronograd.rundir import RunDir

    runs = [RunDir.open(path) for path in paths]
    if action == "resume":
        for run in runs:
            slurm.submit(run)
        _done(runs, wait, as_json)
    elif action == "collect":
        _print_records([(slurm.wait if wait else slurm.collect)(run) for run in runs], as_json)
    else:
        for run in runs if wait else ():
            slurm.wait(run)
        common.show(answer.states(runs), as_json)


def _done(runs: Sequence[RunDir], wait: bool, as_json: bool) -> None:
    """Where launched runs are; with `wait` that is said at once, and their records once they have ended."""
    from chronograd.launch import answer, slurm
    from chronograd.report import terminal

    if not wait:
        common.show(answer.states(runs), as_json)
        return
    terminal.show(answer.states(runs), sys.stderr)
    for run in runs:
        slurm.wait(run)
    _print_records(runs, as_json)


def _print_records(runs: Sequence[RunDir], as_json: bool) -> None:
    if as_json:
        common.print_json([common.run_data(run) for run in runs])
        return
    for run in runs:
        click.echo(f"run: {run.path}", err=True)
        common.print_record(run.record())
