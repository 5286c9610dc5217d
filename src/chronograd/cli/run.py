"""`chronograd run JOB`: the main job."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from chronograd.cli import common

# What a newcomer may type next.
NEXT = "chronograd plan resnet50 --data imagenet --to 75% --budget 50"


@click.command()
@click.argument("job_file", metavar="JOB", required=False)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@common.print_config_option
@click.option("--schema", is_flag=True, help="Print the JSON Schema of job files and stop.")
@click.option("--out", type=common.FILE, default=Path("report.html"), help="The page.")
@click.option("--runs", "parent", type=common.FOLDER, default=Path("runs"), help="Where run directories are made.")
@click.option("--notebook/--no-notebook", default=True, help="Also an executed notebook beside the page.")
@common.json_option
def command(job_file: str | None, overrides: tuple[str, ...], print_config: bool, schema: bool, out: Path,
            parent: Path, notebook: bool, as_json: bool) -> None:  # fmt: skip
    """Count, calibrate, predict, measure, train, forecast, plan and report one job.

    JOB is a job file; without one, the real digits inside scikit-learn go through a CIFAR ResNet-20.
    """
    from chronograd import job as jobs

    if schema:
        common.print_json(jobs.json_schema())
        return
    job = common.read_job(job_file, overrides, print_config) if job_file else jobs.from_dict(_default())
    if print_config:
        common.echo(jobs.to_yaml(job), nl=False)
        return
    from chronograd.report.html import write_page  # an extra: better missed now than after training
    from chronograd.report.loop import page_of
    from chronograd.run import run_loop

    begin = time.monotonic()
    loop = run_loop(job, lambda text: common.echo(text, err=as_json), common.progress, parent)
    page = page_of(loop)
    written = write_page(page, out, notebook)
    if as_json:
        common.print_json(
            {
                "report": [str(path) for path in written],
                "runs": {name: str(path) for name, path in loop.runs.items()},
                "records": {name: record.model_dump(mode="json") for name, record in page.records.items()},
                "takeaways": {section.title: section.takeaway for section in page.sections},
            }
        )
        return
    common.echo(f"report     {' and '.join(str(path) for path in written)}, in {time.monotonic() - begin:.0f} s")
    common.echo(f"           open {out.absolute()}")
    activate = Path(sys.prefix) / "bin" / "activate"
    if activate.is_file() and os.environ.get("VIRTUAL_ENV") != sys.prefix:
        common.echo(f"next       source {os.path.relpath(activate)}")
    common.echo(f"then       {NEXT}")


def _default() -> dict[str, object]:
    return {
        "network": {"name": "resnet20"},
        "data": {"name": "digits"},
        "training": {"recipe": "sgd-one-cycle", "epochs": 12, "batch": 64, "target_accuracy": 0.97},
    }
