"""`data NAME`: the card of a data set, with its images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.errors import InputError
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.job import Data


@dataclass(frozen=True, kw_only=True)
class DataSet(Request):
    """Show a data set: source, shape, images per class, mean and deviation, and what was left out.

    NAME is the data.name of a job, and FIELDs are the other fields of its data. Torchvision's sets are downloaded if they are
    not on disk. Sets such as imagenet are only known for planning, and their card is shown. For a set with boxes, the objects
    of each class are counted.
    """

    verb = "data"
    examples = (
        "chronograd data cifar10 --out cifar10.html",
        "chronograd data folder:pictures image_size=96 --json",
        "chronograd data cifar100 samples=5000 long_tail=1",
        "chronograd data voc:VOCdevkit/VOC2007 --download",
        "chronograd data open-images:guns class_names=[Handgun,Shotgun] --download",
        "chronograd data decathlon:dtd --download",
    )

    name: Annotated[str | None, Spelling(metavar="[NAME]", is_argument=True)] = None
    fields: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    out: Annotated[Path | None, FILE] = None
    """Save a page with sample images."""
    download: bool = False
    """First download the set into its folder: VOC, Open Images, Visual Decathlon."""
    most: Annotated[int | None, click.IntRange(1)] = None
    """With --download: maximum number of pictures per split."""
    list: bool = False
    """List all data sets."""

    def answer(self) -> Answer:
        from chronograd.ask import set_named
        from chronograd.data import catalogue
        from chronograd.data.answer import data_set, describe, describe_listed, listed

        if self.list or self.name is None:
            return listed()
        if self.name in catalogue.sets():
            return describe_listed(self.name)
        data = data_of(set_named(self.name), self.fields)
        if self.most is not None and not self.download:
            raise InputError("--most needs --download", "add --download")
        if self.download:
            from chronograd.data.downloads import download

            fetched = download(data, self.most, say)
            for line in (fetched.summary, *fetched.notes):
                say(line)
        dataset = data_set(data)
        answer = describe(data, dataset)
        if self.out is not None:
            from chronograd.report.html import write_page

            write_page(describe(data, dataset, is_page=True), self.out)
            answer = replace(answer, data={**answer.data, "page": str(self.out)})
        return answer

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json and isinstance(answer.data, dict) and "page" in answer.data:
            click.echo(f"saved {self.out}")


def data_of(name: str, fields: Sequence[str]) -> Data:
    """Return the data section of a job, with the same validation."""
    from chronograd import job as jobs
    from chronograd.data.detection import is_detection
    from chronograd.files import parsed_options

    given = {key.removeprefix("data."): value for key, value in parsed_options(fields).items()}
    task = {"task": "detection"} if is_detection(name) else {}
    job = jobs.from_dict({**task, "network": {"name": "none"}, "data": {**given, "name": name}}, "the data set")
    return job.data


REQUESTS = (DataSet,)
