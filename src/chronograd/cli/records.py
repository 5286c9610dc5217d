"""`chronograd records`: list, filter and show what was predicted and measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.rundir import RunSummary

COLUMNS = (
    *("record", "state", "network", "data", "backend", "on"),
    *("step time", "throughput", "accuracy", "trained in"),
)
# Without a terminal, a line of a run that is followed comes this often.
POLL_S, SAY_EVERY_S = 0.2, 5.0
# Ranks that failed are started again sooner than this, where somebody does so.
RESTART_S = 60.0
HEADLINES = ("step_time_s", "throughput_samples_per_s", "test_accuracy", "training_time_s")


@click.command(name="records")
@click.argument("record", metavar="[RECORD]", required=False)
@click.option("--in", "folder", default="runs", show_default=True, type=click.Path(), help="Where to look.")
@click.option("--job", "job_text", help="Only those whose network, data or backend has this in it.")
@click.option("--kind", type=click.Choice(["predicted", "measured", "unfinished", "damaged"]), help="Only these.")
@click.option("--device", help="Only those whose device, or what they ran on, has this in it.")
@click.option("--timeline", type=click.Path(dir_okay=False, path_type=Path), help="Save RECORD's steps for Perfetto.")
@click.option("--follow", is_flag=True, help="Show how the run RECORD goes on, wherever it was started, until it ends.")
@common.json_option
def command(record: str | None, folder: str, job_text: str | None, kind: str | None, device: str | None,
            timeline: Path | None, follow: bool, as_json: bool) -> None:  # fmt: skip
    """List what was predicted and measured; with RECORD (a run directory or a record file), show that one.

    \b
    chronograd records --job resnet20 --kind measured
    chronograd records runs/20261121-083000-digits-resnet20-ab12
    chronograd records runs/mine --follow
    """
    if follow:
        _follow(record, folder)
    if timeline is not None:
        _save_timeline(record, folder, timeline)
        return
    if record is not None:
        _show(record, folder, as_json)
        return
    from chronograd.rundir import list_runs

    rows = [
        s for s in list_runs(folder)
        if (kind is None or s.state == kind) and _has(_job_words(s), job_text) and _has(_device_words(s), device)
    ]  # fmt: skip
    if as_json:
        common.print_json([_as_data(s) for s in rows])
    elif not rows:
        wanted = " that match" if job_text or kind or device else ""
        click.echo(f"no records{wanted} in {folder}")
    else:
        common.print_table(COLUMNS, [_row(s) for s in rows], right=(6, 7, 8, 9))


def _show(name: str, folder: str, as_json: bool) -> None:
    from chronograd.record import Record

    loaded = Record.load(_found(name, folder))
    if as_json:
        common.print_json(loaded.model_dump(mode="json"))
    else:
        common.print_record(loaded)


def _follow(name: str | None, folder: str) -> None:
    """Show a run until it has a record. Raises RunError when a rank failed and none was started again for a while."""
    from chronograd.errors import RunError
    from chronograd.rundir import RunDir
    from chronograd.watch.terminal import Screen

    if name is None:
        raise click.UsageError("--follow takes a run directory: chronograd records RUN --follow")
    whole = RunDir.open(_found(name, folder))
    failed_at: float | None = None
    with Screen(common.console(stderr=True), SAY_EVERY_S) as screen:
        while not whole.is_finished:
            seeds = sorted(whole.path.glob("seed-*"), key=lambda path: int(path.name.removeprefix("seed-")))
            run = RunDir(seeds[-1]) if seeds else whole
            screen(run)
            is_failed = screen.figures is not None and screen.figures.phase == "failed"
            failed_at = (failed_at or time.monotonic()) if is_failed else None
            if failed_at is not None and time.monotonic() - failed_at > RESTART_S:
                assert screen.figures is not None
                raise RunError(screen.figures.error, f"then go on with `chronograd train --resume {whole.path}`")
            time.sleep(POLL_S)


def _save_timeline(name: str | None, folder: str, path: Path) -> None:
    from chronograd.predict.timeline import timeline_of_run
    from chronograd.rundir import RunDir

    if name is None:
        raise click.UsageError("--timeline takes a run directory: chronograd records RUN --timeline FILE")
    common.save_json(path, timeline_of_run(RunDir.open(_found(name, folder))))
    click.echo(f"{path}: open it in https://ui.perfetto.dev", err=True)


def _found(name: str, folder: str) -> Path:
    """A path, or a name in the folder of runs."""
    return Path(name) if Path(name).exists() or not (Path(folder) / name).exists() else Path(folder) / name


def _row(summary: RunSummary) -> list[str]:
    from chronograd.units import quantity

    job, record = summary.job, summary.record
    figures = ["–"] * len(HEADLINES)
    if record is not None:
        figures = [quantity(record[name].value, record[name].unit) for name in HEADLINES]
    name = os.path.basename(summary.path)
    network, data = (str(job.get(section, {}).get("name", "–")) for section in ("network", "data"))
    return [name, summary.state, network, data, str(job.get("backend", "–")), _device(summary), *figures]


def _device(summary: RunSummary) -> str:
    """Such as 8x v100, and for what was measured what it ran on."""
    cluster: dict[str, Any] = summary.job.get("cluster", {})
    if summary.record is not None:
        cluster = {**cluster, **summary.record.cluster}
    ran_on = cluster.get("ran_on") or cluster.get("device")
    return f"{cluster.get('count', 1)}x {ran_on}" if ran_on else "–"


def _device_words(summary: RunSummary) -> str:
    return f"{_device(summary)} {summary.job.get('cluster', {}).get('device', '')}"


def _job_words(summary: RunSummary) -> str:
    job = summary.job
    title = summary.record.title if summary.record is not None else ""
    parts = (job.get("network", {}).get("name"), job.get("data", {}).get("name"), job.get("backend"), title)
    return " ".join(str(p) for p in (*parts, summary.path.name) if p)


def _has(text: str, wanted: str | None) -> bool:
    return wanted is None or wanted.lower() in text.lower()


def _as_data(summary: RunSummary) -> dict[str, Any]:
    record = summary.record
    quantities = record.quantities if record is not None else {}
    return {
        "path": str(summary.path),
        "state": summary.state,
        "problem": summary.problem,
        "title": record.title if record is not None else "",
        "created": record.created if record is not None else "",
        "job": summary.job,
        "cluster": record.cluster if record is not None else {},
        "backend": record.backend if record is not None else "",
        "quantities": {n: q.model_dump(mode="json") for n, q in quantities.items()},
    }
