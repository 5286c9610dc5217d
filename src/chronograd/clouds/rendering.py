"""The work of `launch PLATFORM` and `job from`: a job to a platform's file, and a file to its job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.answer import IF_KNOWN, Answer, Section, Table
from chronograd.clouds import complaints, fields, registry, sending
from chronograd.clouds.fields import CloudPlatform
from chronograd.clouds.submission import Submission, submission, usd_per_hour
from chronograd.errors import FileFormatError, InputError
from chronograd.files import as_asked, write_aside
from chronograd.job import Job
from chronograd.launch.cores import Need, need_of
from chronograd.launch.jobs import check_has_files
from chronograd.words import how_many


@dataclass(frozen=True)
class Rendered:
    """A job in the form of one platform."""

    platform: CloudPlatform
    asked: Submission
    text: str
    cores: str = ""
    """Return the assumption about the CPU cores of a node."""

    def lines(self, answer: str | None = None) -> list[str]:
        """Return notes for the reader of the file. `answer` is the reply of the platform's program after sending it."""
        instance = self.platform.catalogue.named(self.asked.instance)
        assert instance is not None  # the submission chose it from this catalogue
        nodes, machine = self.asked.nodes, self.asked.instance
        hour = usd_per_hour(self.asked.job, instance, nodes, self.platform.catalogue, self.asked.spot)
        price = "" if hour is None else f", {hour:.2f} dollars an hour by the price table"
        limit = "" if self.asked.limit_s is None else f"; ended after {self.asked.limit_s:,} s"
        told = [f"{self.platform.title}: {nodes} × {machine} ({instance.device}){price}{limit}."]
        if self.cores:
            told.append(self.cores)
        if left := fields.unsaid(self.platform, self.asked):
            told.append(f"Without a field there, and so among the arguments: {', '.join(left)}.")
        if answer is not None and self.platform.tool is not None:
            return [*told, f"{self.platform.tool.program} sent it, and says: {answer}"]
        return [*told, "Its shape was checked here; nothing was sent, so nobody has accepted it."]


@dataclass(frozen=True)
class PlatformFile:
    """A job's file for a platform.

    Attributes:
        file: its path; None if it was not written.
        lines: notes for the reader of the file.
        answer: the reply of the platform's program, if it sent the file.
    """

    platform: str
    file: str | None
    text: str
    lines: list[str]
    answer: str | None = field(default=None, metadata=IF_KNOWN)


@dataclass(frozen=True)
class Opened:
    """A platform's file, after reading."""

    platform: CloudPlatform
    asked: Submission
    wrong: list[str]
    left_out: list[str]

    def as_data(self) -> dict[str, Any]:
        asked = self.asked.model_dump(mode="json", exclude={"job"})
        return {
            "platform": self.platform.name,
            "job": jobs.resolved(self.asked.job),
            "asked": asked,
            "wrong": self.wrong,
            "left_out": self.left_out,
        }

    def lines(self) -> list[str]:
        """Return the other content of the file, its errors, and the parts that were not read."""
        nodes, machine = self.asked.nodes, self.asked.instance
        return [
            f"{self.platform.title}: {self.asked.name!r} on {nodes} × {machine}",
            *(f"wrong: {line}" for line in self.wrong),
            *(f"not read: {line}" for line in self.left_out),
        ]


def rendered(name: str, job: Job, options: Mapping[str, Any]) -> Rendered:
    """Return a job in the form of a platform. Raises InputError with all errors."""
    platform = registry.platform(name)
    check_has_files(job)
    need, why = need_of(jobs.scaled(job))
    if need is not None and not platform.catalogue.vendor:  # its file requests any number of cores
        job = jobs.changed(job, [f"cluster.threads={need.rank}"])
    asked = submission(job, platform.catalogue, need.node if need else 0, **options)
    complaints.check(platform, asked)
    return Rendered(
        platform, asked, fields.render(platform, asked), _cores_words(platform, asked, need) if need else why
    )


def _cores_words(platform: CloudPlatform, asked: Submission, need: Need) -> str:
    if not platform.catalogue.vendor:
        return need.words(need.rank * need.ranks, "The file asks for")
    instance = platform.instance(asked)
    return need.words(instance.vcpus if instance else None, f"{asked.instance} has")


def deliver(made: Rendered, folder: Path | None, is_sent: bool, notes: Sequence[str] = ()) -> Answer[PlatformFile]:
    """Write the file into a folder, which is created; with `is_sent`, send it with the platform's program. Raises RunError.

    Args:
        folder: None writes and sends nothing.
        notes: further lines for the reader of the file.
    """
    platform, reply = made.platform, None
    path = None if folder is None else folder / platform.file
    if path is not None:
        with as_asked(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_aside(path, made.text)
        if is_sent:
            assert platform.tool is not None  # see check_sendable
            reply = sending.send(platform.title, platform.tool, path, fields.document(platform, made.asked))
    lines = [*made.lines(reply), *notes]
    section = Section(platform.file, lines[0], lines=made.text.splitlines())
    result = PlatformFile(platform.name, None if path is None else str(path), made.text, lines, reply)
    return Answer(f"A job for {platform.title}", sections=[section], notes=lines[1:], result=result)


def check_sendable(platform: str) -> None:
    """Raise InputError for a platform whose file users must send themselves."""
    if registry.platform(platform).tool is None:
        raise InputError(
            f"--submit is not there for {platform}",
            "leave it out, and send the file that --out FOLDER keeps with the platform's own tools",
        )


def opened(path: Path) -> Opened:
    """Return the job of a platform's file. Raises FileFormatError, JobError."""
    platform, document = registry.open_file(path)
    try:
        asked = fields.read_document(platform, document)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error.message}", error.hint) from None
    wrong = [*complaints.of_file(platform, asked), *platform.faults(document)]
    return Opened(platform, asked, wrong, fields.not_read(platform, document, asked))


def platforms() -> Answer:
    """Return every platform: its file, its instance types, its required options."""
    rows = []
    data = []
    for name in registry.names():
        platform = registry.platform(name)
        known = platform.catalogue
        devices = sorted({one.device for one in known.instance if one.count})
        rows.append(
            [
                name,
                platform.title,
                platform.file,
                str(len(known.instance)),
                ", ".join(devices),
                ", ".join(platform.needs),
            ]
        )
        data.append({"name": name, "title": platform.title, "file": platform.file, "needs": dict(platform.needs),
                     "instances": [one.model_dump(mode="json") for one in known.instance],
                     "source": known.source, "date": known.date, "tag": known.tag})  # fmt: skip
    section = Section(
        title="Platforms",
        takeaway=f"A job is rendered for {how_many(len(rows), 'platforms')}, and read back from their files; SLURM has its own script.",
        table=Table(("name", "platform", "file", "types", "devices", "needs"), rows, {3}, drop=(4, 5)),
        caption="`chronograd launch NAME JOB --dry-run` prints the file. `types` are the instance types that are known here.",
    )
    return Answer("Platforms", sections=[section], data=data)
