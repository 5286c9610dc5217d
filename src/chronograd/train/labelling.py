"""The work and the answer of `label`: a trained network labels images, and the best of each class are written to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chronograd import job as jobs
from chronograd.answer import Answer, Section
from chronograd.data.datasets import card
from chronograd.data.labels import write_labels
from chronograd.errors import InputError, JobError
from chronograd.job import Data
from chronograd.rundir import RunDir
from chronograd.train.methods.teacher import probabilities, select
from chronograd.words import how_many


def label(
    run: RunDir, data: Data, out: Path, *, top_classes: int = 1, per_class: int | None = None, is_soft: bool = False
) -> Answer:
    """Label the training images of a data set with a run's network, and write the best of each class.

    Args:
        out: the file, for `data.labels` of a student's job.
        top_classes: maximum number of classes for an image. `per_class`: images of each class; all by default.
        is_soft: write each image once, with the probabilities of all classes.

    Raises: InputError where the file cannot be written; else as `probabilities` and `select`.
    """
    if not out.absolute().parent.is_dir():
        raise InputError(
            f"cannot write {out}: the folder {out.parent} does not exist", "name a file in a folder that exists"
        )
    samples, probability_NK = probabilities(run, data)
    kept = select(samples, probability_NK, top_classes, per_class or len(samples))
    if is_soft:
        chosen = np.isin(samples, kept.sample)
        write_labels(out, samples[chosen], probability=probability_NK[chosen])
    else:
        write_labels(out, kept.sample, label=kept.label)
    counts = np.bincount(kept.label, minlength=probability_NK.shape[1]).tolist()
    times = kept.times()
    several = int((times > 1).sum())
    known = trained_on(run.job().data, data)
    by_heart = f"{known:,} of the {len(samples):,} images are training images of {run.path.name}"
    section = Section(
        title=str(out),
        takeaway=f"{how_many(len(kept.sample), 'labels')} on {len(times):,} of {how_many(len(samples), 'images')}, {min(counts):,} to "
        f"{max(counts):,} per class; {several:,} images were selected for two or more.",
    )
    return Answer(
        title=f"Labels by {run.path.name}",
        sections=[section],
        data={
            "file": str(out),
            "kept": len(kept.sample),
            "images": len(times),
            "for_two_or_more": several,
            "of": len(samples),
            "per_class": counts,
            "trained_on": known,
        },
        notes=[by_heart] if known else [],
    )


def data_of(run: RunDir, fields: Sequence[str]) -> Data:
    """Return the data of a run's job, changed by `data.FIELD=VALUE` words. Raises JobError for a field that data does not have."""
    others = [field for field in fields if not field.strip().startswith("data.")]
    if others:
        raise JobError(
            f"cannot change {others[0]!r} here: `label` takes fields of data only; the network is that of the run",
            "write data.FIELD=VALUE, such as data.skip=1000",
        )
    return jobs.changed(run.job(), fields).data


def trained_on(own: Data, data: Data) -> int:
    """Return how many of the images a run trained on itself, which its network knows by heart.

    Returns 0 for jobs with a labels file or a long tail, which are not compared.
    """
    if own.name != data.name or own.name == "synthetic" or any(d.labels or d.long_tail for d in (own, data)):
        return 0
    ends = [d.skip + card(d).train_size for d in (own, data)]
    return max(0, min(ends) - max(own.skip, data.skip))
