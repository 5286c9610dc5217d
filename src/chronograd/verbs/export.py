"""`export RUN --onnx FILE`: a network as an ONNX file, compared with PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.verbs.jobs import fields_of_inputs
from chronograd.verbs.kinds import COUNTS, complete_jobs
from chronograd.verbs.request import FILE, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Export(Request):
    """Export a network as an ONNX file for any batch size, and compare it with PyTorch in ONNX Runtime.

    A RUN provides its newest weights, and its test images for the comparison. A NETWORK provides its initial weights, or those
    that network.weights names. If ONNX Runtime gives different results, nothing is written and the exit status is 1.
    """

    verb = "export"
    examples = (
        "chronograd export runs/mine --onnx mine.onnx",
        "chronograd export runs/mine --onnx mine.onnx --with-preprocessing --int8 static",
        "chronograd export runs/cells --onnx cells.onnx --with-suppression",
        "chronograd export torchvision:resnet18 network.weights=torchvision --onnx resnet18.onnx",
    )

    what: Annotated[str, Spelling(metavar="RUN|JOB|NETWORK", is_argument=True, complete=complete_jobs)]
    fields: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    onnx: Annotated[Path, FILE]
    """File to write."""
    opset: Annotated[int, click.IntRange(18, 23)] = 20
    """Version of the ONNX operators."""
    with_preprocessing: bool = False
    """Include preprocessing in the graph: it takes integer pixels and normalises them."""
    with_suppression: bool = False
    """Include non-maximum suppression in a detector's graph: it returns boxes, labels and scores of objects."""
    batches: Annotated[tuple[int, ...], COUNTS] = (1, 3, 8)
    """Batch sizes to compare."""
    samples: Annotated[int | None, click.IntRange(1)] = None
    """Samples of each kind to compare; by default 64 images or 4 rows of tokens."""
    rtol: Annotated[float, click.FloatRange(0)] = 1e-3
    """Tolerance relative to PyTorch's value."""
    atol: Annotated[float, click.FloatRange(0)] = 1e-5
    """Absolute tolerance."""
    int8: Literal["static", "dynamic"] | None = None
    """Also write a file with eight-bit weights; static for convolutions, dynamic for text."""
    data: Annotated[str | None, Spelling(metavar="NAME")] = None
    """Data set of a NETWORK: `chronograd data --list`."""
    inputs: Annotated[str | None, Spelling(metavar="FILE.py:NAME")] = None
    """An object with the network's arguments, or a function without arguments that returns it."""
    input: Annotated[tuple[Any, ...], Spelling(metavar="C,H,W", aliases=("input_shape",))] = ()
    """Shape of one sample; or NAME:SHAPE:DTYPE for each tensor, such as tokens:128:int64, or step::int64 for one number."""
    classes: Annotated[int | None, click.IntRange(2)] = None
    """Number of classes of a NETWORK."""

    def answer(self) -> Answer:
        from chronograd import ask
        from chronograd.errors import require

        require("onnx", "onnx", "`chronograd export`")  # before torch, which that extra installs too
        from chronograd.deploy import export_source
        from chronograd.deploy.export_answer import export
        from chronograd.deploy.parity import Tolerance
        from chronograd.rundir import run_named

        short = {"data": self.data, "classes": self.classes, **fields_of_inputs(self.input, self.inputs)}
        run = run_named(self.what)
        if run is not None:
            source = export_source.of_run(run, [*ask.as_overrides(short), *self.fields])
        else:
            source = export_source.of_job(ask.job_of(self.what, self.fields, short), self.what)
        parts = {"preprocessing": self.with_preprocessing, "suppression": self.with_suppression}
        return export(source, self.onnx, opset=self.opset, inside=[part for part, is_inside in parts.items() if is_inside],
                      batches=list(self.batches), num_samples=self.samples, tolerance=Tolerance(self.rtol, self.atol),
                      int8=self.int8)  # fmt: skip


REQUESTS = (Export,)
