"""`chronograd data NAME`: the card of a data set, with its images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.job import Data


@click.command("data")
@click.argument("name", required=False)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--out", type=common.FILE, help="Write a page with sample images.")
@click.option(
    "--download", "is_download", is_flag=True, help="First fetch a set with boxes into its folder: VOC, Open Images."
)
@click.option("--most", type=click.IntRange(1), help="Of a download: pictures of each split, at most.")
@click.option("--list", "is_list", is_flag=True, help="List all data sets.")
@common.answer_options
def command(
    name: str | None,
    fields: tuple[str, ...],
    out: Path | None,
    is_list: bool,
    is_download: bool,
    most: int | None,
    as_json: bool,
) -> None:
    """Show a data set: source, shape, images per class, mean and deviation, and what was left out.

    NAME is that of a job's data.name, FIELDs are the others of its data. A set that torchvision can download is
    downloaded if it is not on disk. Sets such as imagenet are known for planning: their card is shown. Of a set with
    boxes the objects of each class are counted.

    \b
    chronograd data cifar10 --out cifar10.html
    chronograd data folder:pictures image_size=96 --json
    chronograd data cifar100 samples=5000 long_tail=1
    chronograd data voc:VOCdevkit/VOC2007 --download
    chronograd data open-images:guns class_names=[Handgun,Shotgun] --download
    """
    from chronograd.ask import set_named
    from chronograd.data import catalogue
    from chronograd.data.answer import data_set, describe, describe_listed, listed

    if is_list or name is None:
        common.show(listed(), as_json)
        return
    if name in catalogue.sets():
        common.show(describe_listed(name), as_json)
        return
    data = _data(set_named(name), fields)
    if most is not None and not is_download:
        raise click.UsageError("--most is of --download")
    if is_download:
        from chronograd.data.downloads import download

        fetched = download(data, most, lambda text: common.echo(text, err=True))
        for line in (fetched.summary, *fetched.notes):
            common.echo(line, err=True)
    dataset = data_set(data)
    answer = describe(data, dataset)
    if out is not None:
        common.write_page(describe(data, dataset, is_page=True), out)
        answer = replace(answer, data={**answer.data, "page": str(out)})
    common.show(answer, as_json)
    if out is not None and not as_json:
        common.echo(f"wrote {out}")


def _data(name: str, fields: Sequence[str]) -> Data:
    """The data section of a job, validated as a job's is."""
    from chronograd import job as jobs
    from chronograd.data.detection import is_detection

    given = {key.removeprefix("data."): value for key, value in common.options(fields).items()}
    task = {"task": "detection"} if is_detection(name) else {}
    job = jobs.from_dict({**task, "network": {"name": "none"}, "data": {**given, "name": name}}, "the data set")
    return job.data
