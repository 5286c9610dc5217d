"""`chronograd label RUN DATA`: a trained network labels images, and the best of each class are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chronograd.cli import common


@click.command()
@click.argument("run_dir", metavar="RUN", type=common.PATH)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--top-classes", "-P", type=click.IntRange(1), default=1,
              help="Classes that an image may be kept for.")  # fmt: skip
@click.option("--per-class", "-K", type=click.IntRange(1), help="Images kept per class; all by default.")
@click.option("--soft", "is_soft", is_flag=True, help="Keep each image once, with the probabilities of all classes.")
@click.option("--out", type=common.FILE, required=True, help="The file, for data.labels.")
@common.answer_options
def command(run_dir: Path, fields: tuple[str, ...], out: Path, as_json: bool, **chosen: Any) -> None:
    """Label the training images of a data set with the network of a RUN, and keep the best of each class.

    FIELDs are those of a job's data and change the RUN's own. A student learns from the file by data.labels.

    \b
    chronograd label runs/teacher data.skip=1000 data.samples=20000 -P 5 -K 1000 --out selected.npz
    chronograd train student.yaml data.labels=selected.npz
    """
    from chronograd.rundir import RunDir
    from chronograd.train.labelling import data_of, label

    run = RunDir.open(run_dir)
    labelled = label(run, data_of(run, fields), out, **chosen)
    common.show(labelled, as_json)
