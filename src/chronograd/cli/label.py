"""`chronograd label RUN DATA`: a trained network labels images, and the best of each class are kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Data
    from chronograd.rundir import RunDir


@click.command()
@click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option(
    "--top-classes",
    "-P",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Classes that an image may be kept for.",
)
@click.option("--per-class", "-K", type=click.IntRange(1), help="Images kept per class; all by default.")
@click.option("--soft", is_flag=True, help="Keep each image once, with the probabilities of all classes.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file, for data.labels."
)
@common.json_option
def command(
    run_dir: Path,
    fields: tuple[str, ...],
    top_classes: int,
    per_class: int | None,
    soft: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Label the training images of a data set with the network of a RUN, and keep the best of each class.

    FIELDs are those of a job's data and change the RUN's own. A student learns from the file by data.labels.

    \b
    chronograd label runs/teacher data.skip=1000 data.samples=20000 -P 5 -K 1000 --out selected.npz
    chronograd train student.yaml data.labels=selected.npz
    """
    import numpy as np

    from chronograd.data.labels import write_labels
    from chronograd.errors import InputError
    from chronograd.rundir import RunDir
    from chronograd.train.methods.teacher import probabilities, select

    run = RunDir.open(run_dir)
    data = _data(run, fields)
    if not out.absolute().parent.is_dir():
        raise InputError(f"cannot write {out}: there is no folder {out.parent}", "name a file in a folder that exists")
    samples, probability_NK = probabilities(run, data)
    kept = select(samples, probability_NK, top_classes, per_class or len(samples))
    if soft:
        chosen = np.isin(samples, kept.sample)
        write_labels(out, samples[chosen], probability=probability_NK[chosen])
    else:
        write_labels(out, kept.sample, label=kept.label)
    per = np.bincount(kept.label, minlength=probability_NK.shape[1]).tolist()
    times = kept.times()
    several = int((times > 1).sum())
    known = _trained_on(run.job().data, data)
    if as_json:
        found = {"file": str(out), "kept": len(kept.sample), "images": len(times), "for_two_or_more": several}
        common.print_json(found | {"of": len(samples), "per_class": per, "trained_on": known})
        return
    click.echo(
        f"{out}: {len(kept.sample):,} labels on {len(times):,} of {len(samples):,} images, "
        f"{min(per):,} to {max(per):,} per class; {several:,} images kept for two or more"
    )
    if known:
        click.echo(f"{known:,} of the {len(samples):,} images are those that {run.path.name} was trained on")


def _data(run: RunDir, fields: tuple[str, ...]) -> Data:
    """The data of the run's job, changed. Raises JobError for a field that is not one of data's."""
    from chronograd import job as jobs
    from chronograd.errors import JobError

    others = [field for field in fields if not field.strip().startswith("data.")]
    if others:
        raise JobError(
            f"cannot change {others[0]!r} here: what is labelled is data, and the network is that of the run",
            "write data.FIELD=VALUE, such as data.skip=1000",
        )
    return jobs.changed(run.job(), fields).data


def _trained_on(own: Data, data: Data) -> int:
    """How many of the images the run's own job trained on, which its network knows by heart.

    Left out, and 0: jobs with a labels file or a long tail.
    """
    from chronograd.data.datasets import card

    if own.name != data.name or own.name == "synthetic" or any(d.labels or d.long_tail for d in (own, data)):
        return 0
    ends = [d.skip + card(d).train_size for d in (own, data)]
    return max(0, min(ends) - max(own.skip, data.skip))
