"""`chronograd annotate IMAGE...`: what a trained detector finds in pictures, drawn with labels."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common


@click.command()
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True, type=common.FILE)
@click.option("--model", metavar="RUN", required=True, type=common.PATH, help="A run of task=detection, or FILE.onnx.")
@click.option("--least", type=click.FloatRange(0, 1), default=0.5, help="Least score of what is drawn.")
@click.option("--out", type=common.FOLDER, default=Path("annotated"), help="Folder of the copies with boxes.")
@common.answer_options
def command(images: tuple[Path, ...], model: Path, least: float, out: Path, as_json: bool) -> None:
    """Draw the objects that a trained detector finds in each IMAGE: boxes, classes, scores.

    \b
    chronograd annotate BloodImage_00007.jpg --model runs/cells
    chronograd annotate photos/*.jpg --model runs/cells --least 0.3 --out boxes
    chronograd annotate BloodImage_00007.jpg --model cells.onnx
    """
    from chronograd.detect.annotating import annotate

    if model.suffix == ".onnx":
        from chronograd.deploy.annotating import finder

        find = finder(model, least)
    else:
        from chronograd.rundir import RunDir
        from chronograd.train import annotating

        find = annotating.finder(RunDir.open(model), least)
    common.show(annotate(model, find, images, out, least), as_json)
