"""`chronograd evaluate RUN|JOB|NETWORK`: how right a network is on test images, class by class."""

from __future__ import annotations

import click

from chronograd.cli import common


@click.command()
@click.argument("what", metavar="RUN|JOB|NETWORK", shell_complete=common.complete_jobs)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--data", metavar="NAME", help="Data set: `chronograd data --list`.")
@common.answer_options
def command(what: str, fields: tuple[str, ...], data: str | None, as_json: bool) -> None:
    """Accuracy on test images: of a detector the average precision of each class.

    A classifier has its accuracy, whole and by class, with 95 % intervals; a detector its average precision by the
    11-point metric of VOC 2007 and as the area below the curve. A RUN has its newest weights, and FIELDs are those of its
    data; a JOB or NETWORK has the weights that network.weights names, and is not trained.

    \b
    chronograd evaluate runs/cells
    chronograd evaluate runs/cells data.name=voc:other-cells --json
    chronograd evaluate cells.yaml network.weights=ssd.pth data.name=voc:others
    chronograd evaluate resnet20 network.weights=resnet20.pth --data cifar10
    """
    from chronograd import ask
    from chronograd.rundir import run_named
    from chronograd.train.evaluating import evaluate, evaluate_job
    from chronograd.train.labelling import data_of

    short = {"data": data}
    run = run_named(what)
    if run is not None:
        own = data_of(run, [*ask.as_overrides(short), *fields])
        with common.waiting("evaluating"):
            answer = evaluate(run, own)
    else:
        job = ask.job_of(what, fields, short)
        with common.waiting("evaluating"):
            answer = evaluate_job(job, what)
    common.show(answer, as_json)
