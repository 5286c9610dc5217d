"""`chronograd explain RUN...`: why it is not faster."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command(name="explain")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=common.PATH)
@common.answer_options
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Why is it not faster? Where each step goes, and the causes of lost time with their evidence.

    RUN is a run directory, ours or one around a loop of your own, a trace of torch.profiler (one file per rank, or a
    folder of them), or a CSV file of wall times. Runs of one job on different numbers of ranks are laid side by side.

    \b
    chronograd explain runs/one runs/two
    chronograd explain trace.rank0.json trace.rank1.json
    chronograd explain profiles/
    chronograd explain docs/hpc-report.csv
    """
    from chronograd.explain.answer import explain

    common.show(explain(runs), as_json)
