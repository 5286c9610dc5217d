"""`chronograd evaluate RUN`: how right a trained network is on test images, class by class."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command()
@click.argument("run_dir", metavar="RUN", type=common.PATH)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@common.answer_options
def command(run_dir: Path, fields: tuple[str, ...], as_json: bool) -> None:
    """Accuracy of a RUN's newest weights on its test images: of a detector the average precision of each class.

    A classifier has its accuracy, whole and by class, with 95 % intervals; a detector its average precision by the
    11-point metric of VOC 2007 and as the area below the curve. FIELDs are those of a job's data.

    \b
    chronograd evaluate runs/cells
    chronograd evaluate runs/cells data.name=voc:other-cells --json
    """
    from chronograd.rundir import RunDir
    from chronograd.train.evaluating import evaluate
    from chronograd.train.labelling import data_of

    run = RunDir.open(run_dir)
    data = data_of(run, fields)
    with common.waiting("evaluating"):
        answer = evaluate(run, data)
    common.show(answer, as_json)
