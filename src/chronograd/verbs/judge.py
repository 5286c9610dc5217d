"""`judge resnet50 --on v100 "812 images/s"`: a judgement of a measured throughput."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import SHAPE, complete_devices
from chronograd.verbs.large import LargeRequest, is_large
from chronograd.verbs.request import Spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronograd.answer import Answer
    from chronograd.judge.answer import JudgedTable
    from chronograd.judge.large import JudgedLarge
    from chronograd.judge.verdict import Judged


@dataclass(frozen=True, kw_only=True)
class JudgeFigure(LargeRequest):
    """Judge a throughput: impossible, suspicious, as expected or slow; how it compares with others; the change that gains most.

    NETWORK is a name, or a job file. FIGURE is a throughput such as "812 images/s" or "78 ms", a record, or a run directory,
    which includes its job. It may also be a CSV file with columns model, batch and samples_per_s.

    NETWORK may be a large model, such as llama-3-8b. FIGURE is then "11200 tokens/s/gpu", "7.2 s/step" or "45% mfu".
    """

    verb = "judge"
    examples = (
        'chronograd judge resnet50 --on v100 --precision fp32 "812 images/s"',
        'chronograd judge resnet50 --on 8xa100-80 --precision bf16 --batch 2048 "260 ms/step"',
        'chronograd judge llama-3-8b --on 8xh100 --fsdp --sequence 8192 "11200 tokens/s/gpu"',
        "chronograd judge runs/mine",
        "chronograd judge --on v100 --precision amp mine.csv",
    )

    words: Annotated[tuple[Any, ...], Spelling(metavar="[NETWORK] FIGURE [FIELD=VALUE]...", is_argument=True)]
    on: Annotated[str | None, Spelling(metavar="[COUNTx]DEVICE", complete=complete_devices)] = None
    """Device of the measurement, such as v100 or 8xv100."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "amp"] | None = None
    """Precision; amp means fp16."""
    batch: Annotated[int | None, click.IntRange(min=1)] = None
    """Samples of a step over all devices; by default a usual size that fits."""
    input: Annotated[tuple[int, ...] | None, SHAPE, Spelling(aliases=("input_shape",))] = None
    """Shape of one sample; the network's own by default."""
    mode: Annotated[Literal["training", "inference"], Spelling(("--inference",), flag_value="inference")] = "training"
    """Only the forward pass was timed; else training."""
    trace: Annotated[Path | None, click.Path(path_type=Path), Spelling(metavar="FILE")] = None
    """A saved trace; needs no torch."""

    def answer(self) -> Answer[Judged | JudgedTable | JudgedLarge]:
        from chronograd.judge.ask import ask, has_figures, split
        from chronograd.models.names import large_model

        words = [word if isinstance(word, str) else os.fspath(word) if isinstance(word, os.PathLike) else str(word)
                 for word in self.words if word is not None]  # fmt: skip
        overrides, figures, names = split(words)
        # The folder of a config.json is a model; other folders, tables and records have figures.
        is_network = len(names) == 1 and (large_model(names[0]) is not None or not has_figures(names[0]))
        if is_network and is_large(names[0], overrides):
            return self._of_large(names[0], figures, overrides)
        own, fields = self.as_ordinary(names[0] if names else None)
        return ask([*words, *fields], place=own.on, precision=own.precision, batch=own.batch, input_shape=own.input, mode=own.mode,
                   trace_file=own.trace)  # fmt: skip

    def _of_large(self, name: str, figures: Sequence[str], overrides: Sequence[str]) -> Answer[JudgedLarge]:
        from chronograd.judge.large import judge_large

        if len(figures) != 1:
            raise InputError(
                f"{len(figures) or 'no'} figures for {name}", 'give one, such as "11200 tokens/s/gpu" or "45% mfu"'
            )
        places = () if self.on is None else (self.on,)
        own = replace(self, precision="fp16") if self.precision == "amp" else self
        (asked,) = own.asked_large(name, overrides, places, ("words", "on"))
        return judge_large(figures[0], asked)


REQUESTS = (JudgeFigure,)
