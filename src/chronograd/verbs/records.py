"""`records`: list, filter and show predictions and measurements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from chronograd.errors import InputError
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Records(Request):
    """List predictions and measurements; with RECORD (a run directory, a schedule's folder or a record file), show that one."""

    verb = "records"
    examples = (
        "chronograd records --job resnet20 --kind measured",
        "chronograd records runs/20261121-083000-digits-resnet20-ab12",
        "chronograd records runs/mine --follow",
    )

    record: Annotated[str | None, Spelling(metavar="[RECORD]", is_argument=True)] = None
    folder: Annotated[str, click.Path(), Spelling(("--in",))] = "runs"
    """Folder to search."""
    job: str | None = None
    """Only records with this text in network, data or backend."""
    kind: Literal["predicted", "measured", "unfinished", "damaged"] | None = None
    """Only records of this kind."""
    device: str | None = None
    """Only records with this text in the device or the machine."""
    timeline: Annotated[Path | None, FILE] = None
    """Save RECORD's steps for Perfetto."""
    follow: bool = False
    """Follow RECORD, a run or a schedule, until it ends, wherever it was started."""

    def answer(self) -> Answer:
        from chronograd.quantities import record_answer
        from chronograd.rundir import RunDir, listing
        from chronograd.schedule.log import is_schedule

        if self.record is None:
            if self.follow or self.timeline is not None:
                option = "--follow" if self.follow else "--timeline FILE"
                raise InputError(f"{option} takes a run directory", f"chronograd records RUN {option}")
            return listing.listing(self.folder, job=self.job, kind=self.kind, device=self.device)
        if is_schedule(Path(self.record)):
            return self._queue(Path(self.record))
        path = listing.one_run(self.record, self.folder)
        if self.follow:
            from chronograd.watch.terminal import console, follow

            follow(RunDir.open(path), console())
        if self.timeline is not None:
            from chronograd.files import save_json
            from chronograd.predict.timeline import timeline_of_run

            save_json(self.timeline, timeline_of_run(RunDir.open(path)))
            say(f"{self.timeline}: open it in https://ui.perfetto.dev")
            raise click.exceptions.Exit(0)
        return record_answer(listing.load(path))

    def _queue(self, folder: Path) -> Answer:
        """Return the state of a schedule, at its end if it is followed."""
        from chronograd.watch.queue import follow_queue, queue_answer
        from chronograd.watch.terminal import console

        if self.timeline is not None:
            raise InputError(
                f"{folder} is a schedule, and --timeline saves the steps of a run", f"name a run in {folder}"
            )
        if self.follow:
            follow_queue(folder, console())
        return queue_answer(folder)


REQUESTS = (Records,)
