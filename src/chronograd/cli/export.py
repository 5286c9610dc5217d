"""`chronograd export RUN --onnx FILE`: a network as an ONNX file, held against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from chronograd.cli import common


def _sizes(_: Any, option: click.Parameter, text: str) -> list[int]:
    return common.whole_numbers(option.opts[0], text)


@click.command()
@click.argument("what", metavar="RUN|JOB|NETWORK", shell_complete=common.complete_jobs)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--onnx", "path", type=common.FILE, required=True, help="The file.")
@click.option("--opset", type=click.IntRange(18, 23), default=20, help="Version of the operators.")
@click.option(
    "--with-preprocessing", is_flag=True, help="The graph takes pixels as whole numbers, and normalises them."
)
@click.option("--batches", default="1,3,8", callback=_sizes, help="Sizes of batches to compare.")
@click.option("--samples", "num_samples", type=click.IntRange(1),
              help="Samples to compare, of each kind; by default 64 images or 4 rows of tokens.")  # fmt: skip
@click.option("--rtol", type=click.FloatRange(0), default=1e-3, help="Tolerance relative to PyTorch's value.")
@click.option("--atol", type=click.FloatRange(0), default=1e-5, help="Tolerance beside it.")
@click.option("--int8", type=click.Choice(["static", "dynamic"]),
              help="Also a file of eight-bit weights; static for convolutions, dynamic for text.")  # fmt: skip
@click.option("--data", metavar="NAME", help="Data set of a NETWORK: `chronograd data --list`.")
@common.inputs_option
@click.option("--classes", type=click.IntRange(2), help="Number of classes of a NETWORK.")
@common.answer_options
def command(
    what: str,
    fields: Sequence[str],
    path: Path,
    as_json: bool,
    data: str | None,
    classes: int | None,
    **chosen: Any,
) -> int:
    """A network as an ONNX file that takes a batch of any size, held against PyTorch in ONNX Runtime.

    A RUN gives its newest weights, and its test images to compare on; a NETWORK its initial weights, or those that
    network.weights names. Where ONNX Runtime gives something else, nothing is written and the exit status is 1.

    \b
    chronograd export runs/mine --onnx mine.onnx
    chronograd export runs/mine --onnx mine.onnx --with-preprocessing --int8 static
    chronograd export torchvision:resnet18 network.weights=torchvision --onnx resnet18.onnx
    """
    from chronograd import ask
    from chronograd.errors import require

    require("onnx", "onnx", "`chronograd export`")  # before torch, which that extra brings too
    from chronograd.deploy import export_source
    from chronograd.deploy.export_answer import export
    from chronograd.rundir import run_named

    short = {"data": data, "classes": classes, **common.inputs()}
    run = run_named(what)
    if run is not None:
        source = export_source.of_run(run, [*ask.as_overrides(short), *fields])
    else:
        source = export_source.of_job(ask.job_of(what, fields, short), what)
    return common.show(export(source, path, **chosen), as_json)
