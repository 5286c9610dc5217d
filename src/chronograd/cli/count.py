"""`chronograd count NETWORK|JOB`: the work there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.trace import Trace


@click.command(epilog="\b\nchronograd count vgg19 --show-work\nchronograd count torchvision:resnet50 --batch 32 --json\n"
               "chronograd count llama-7b --depth 2")  # fmt: skip
@click.argument("network", metavar="NETWORK|JOB|TRACE", required=False, shell_complete=common.complete_jobs)
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--batch", type=click.IntRange(1), help="Samples in one step; 1, or the job's batch.")
@common.inputs_option
@click.option("--classes", type=click.IntRange(1), help="Size of the head.")
@click.option("--mode", type=click.Choice(["training", "inference"]), default="training")
@click.option("--loss", type=click.Choice(["cross_entropy", "sum"]), default="cross_entropy")
@click.option("--optimizer", type=click.Choice(["sgd", "sgd-momentum", "adamw"]), default="sgd-momentum",
              help="Whose state counts as memory.")  # fmt: skip
@click.option("--fixed-batch", type=click.IntRange(1), help="Trace at this one batch, for networks that loop over it.")
@click.option("--show-work", is_flag=True, help="Each layer's formulas with its numbers in them.")
@click.option("--depth", type=click.IntRange(1), help="Modules of so many names in a row each; layers by default.")
@click.option("--list", "is_list", is_flag=True, help="List the names of networks.")
@click.option("--out", type=common.FILE, help="Save the trace (.json or .json.gz).")
@common.answer_options
def command(network: str | None, overrides: tuple[str, ...], batch: int | None, out: Path | None, show_work: bool,
            depth: int | None, is_list: bool, as_json: bool, **settings: Any) -> None:  # fmt: skip
    """Count parameters, MACs, FLOPs, bytes, activations and receptive fields.

    NETWORK is a name of ours, torchvision:NAME, timm:NAME, FILE.py:CLASS or package.module:function (FIELD=VALUE are
    then its keyword arguments); or a job file; or a saved trace. Nothing is downloaded and no weights are made.
    """
    if is_list:
        from chronograd.models.names import listed

        common.show(listed(), as_json)
        return
    if network is None:
        raise click.UsageError("name a network, a job file or a saved trace; --list shows the names")
    from chronograd.count.answer import count

    optimizer = settings.pop("optimizer")
    with common.waiting("counting the work of the network"):
        if network.endswith(".py") and Path(network).is_file():
            from chronograd import job

            job.read(network)  # says how to name a network of the file
        trace, job_batch, job_optimizer = _trace(network, overrides, settings)
    if out is not None:
        trace.save(out)
    common.show(count(trace, batch or job_batch, job_optimizer or optimizer, with_work=show_work, depth=depth), as_json)
    if out is not None and not as_json:
        common.echo(f"trace saved to {out}")


def _trace(network: str, overrides: tuple[str, ...], settings: dict[str, Any]) -> tuple[Trace, int, str | None]:
    """The trace, the batch it is wanted at, and the job's optimizer if there is a job."""
    given = common.inputs()
    if network.endswith((".yaml", ".yml")):
        from chronograd.data.trace_job import trace_job

        job = common.read_job(network, overrides)
        per_rank = -(-job.training.batch // job.cluster.count)
        return trace_job(job), per_rank, job.training.optimizer_kind
    if network.endswith((".json", ".json.gz")):
        from chronograd.trace import Trace

        return Trace.load(network), 1, None
    from chronograd.count.cached import cached_trace

    settings["num_classes"] = settings.pop("classes")
    settings |= {"input_shape": given["input"]} if "input" in given else given
    return cached_trace(network, common.options(overrides), **settings), 1, None
