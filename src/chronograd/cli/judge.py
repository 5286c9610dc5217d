"""`chronograd judge resnet50 --on v100 "812 images/s"`: is it good?"""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command(name="judge")
@click.argument("words", nargs=-1, required=True, metavar="[NETWORK] FIGURE [FIELD=VALUE]...")
@click.option("--on", "place", metavar="[COUNTx]DEVICE", help="What it ran on, such as v100 or 8xv100.")
@click.option("--precision", type=click.Choice(["fp32", "tf32", "bf16", "fp16", "amp"]), help="amp is fp16.")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Samples of a step over all devices; by default what usually fits."
)
@click.option(
    "--input",
    "input_shape",
    metavar="C,H,W",
    callback=common.shape,
    help="Shape of one sample; the network's own by default.",
)
@click.option("--inference", is_flag=True, help="The forward pass alone was timed; else training.")
@common.trace_option
@common.answer_options
def command(words: tuple[str, ...], place: str | None, precision: str | None, batch: int | None, input_shape: tuple[int, ...] | None,
            inference: bool, trace_file: Path | None, as_json: bool) -> int:  # fmt: skip
    """Is a throughput good? Impossible, suspicious, as expected or slow; how it compares with others; what would gain most.

    NETWORK is a name, or a job file. FIGURE is a throughput such as "812 images/s" or "78 ms", a record, a run directory,
    which says by itself what ran, or a CSV file with columns model, batch and samples_per_s.

    \b
    chronograd judge resnet50 --on v100 --precision fp32 "812 images/s"
    chronograd judge resnet50 --on 8xa100-80 --precision bf16 --batch 2048 "260 ms/step"
    chronograd judge runs/mine
    chronograd judge --on v100 --precision amp mine.csv
    """
    from chronograd.judge.ask import ask

    answer = ask(words, place=place, precision=precision, batch=batch, input_shape=input_shape,
                 mode="inference" if inference else "training", trace_file=trace_file)  # fmt: skip
    return common.show(answer, as_json)
