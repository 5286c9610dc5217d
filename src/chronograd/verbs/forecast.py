"""`forecast RUN|LOG`: the time when training reaches a level."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import printable
from chronograd.verbs.kinds import ABOVE_0, NUMBERS, PATH
from chronograd.verbs.request import FILE, Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.forecast.forecast_answer import LogForecast

ScheduleName = Literal["constant", "multi_step", "cosine", "one_cycle", "linear", "annealed", "wsd"]


@dataclass(frozen=True, kw_only=True)
class ForecastLog(Request):
    """Forecast when a run or log reaches a level: epoch or step, hours and clock time, each with its 80 % interval.

    LOG is a run directory, a table with any delimiter, JSON or JSON lines, or the printed output of a program. It may also be a
    TensorBoard folder, an MLflow run, or a log of W&B, Keras, Lightning, Hugging Face, timm, Ultralytics, Detectron2,
    OpenMMLab, fastai and others, also zipped. The learning rate schedule is read from the run's job or from the log's column of
    rates.
    """

    verb = "forecast"
    examples = (
        "chronograd forecast runs/mine --to 92%",
        "chronograd forecast results.csv --to 0.6 --metric mAP50",
        "chronograd forecast log.csv --schedule one_cycle --planned 30",
    )

    log: Annotated[str, PATH, Spelling(metavar="LOG", is_argument=True)]
    to: Annotated[Any, Spelling(metavar="LEVEL")] = None
    """The level: 92%, 0.92, or a loss."""
    metric: Annotated[str | None, Spelling(metavar="NAME")] = None
    """loss, accuracy, or a column such as val_acc; by default a column with a usual name."""
    run: Annotated[str | None, Spelling(metavar="NAME")] = None
    """One of several runs in a file, such as a chart exported from W&B."""
    schedule: ScheduleName | None = None
    """Learning rate schedule, if neither the log nor a job has it."""
    drops: Annotated[tuple[float, ...], NUMBERS, Spelling(metavar="K,K,...")] = ()
    """Steps or epochs of sudden drops of the learning rate, past or planned; with --schedule wsd, where its decay starts."""
    planned: Annotated[float | None, ABOVE_0] = None
    """Planned last epoch or step of training."""
    fraction: Annotated[float, click.FloatRange(0, 1, min_open=True)] = 1.0
    """Forecast from the first part only, and score the forecast on the rest."""
    at: Annotated[tuple[float, ...], ABOVE_0] = ()
    """Also forecast this epoch or step; may be given several times."""
    pace: Annotated[float | None, ABOVE_0, Spelling(metavar="SECONDS", aliases=("pace_s",))] = None
    """Seconds of an epoch or step, if the log has no times."""
    out: Annotated[Path | None, FILE] = None
    """Also save a page (.html)."""

    def answer(self) -> Answer[LogForecast]:
        from chronograd.forecast import forecast_answer
        from chronograd.forecast.forecasting import forecast
        from chronograd.forecast.loss_answer import with_schedule

        to = None if self.to is None else str(self.to)
        curve = forecast_answer.read(Path(self.log), self.metric, to, self.run, self.fraction)
        curve = forecast_answer.with_pace(curve, self.pace)
        curve = with_schedule(curve, self.schedule, self.drops, self.planned, is_part=self.fraction < 1)
        curve = replace(curve, may_fall=True)
        target = None if to is None else forecast_answer.level(to, curve.metric)
        made = forecast(curve, self.fraction, target=target, at=self.at)
        answer = forecast_answer.forecast_answer(made, now=time.time())
        if self.out is not None:
            from chronograd.report.html import write_page

            write_page(answer, self.out)
        return answer

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json:
            from chronograd.report.text_chart import text_chart

            click.echo()
            click.echo(printable(text_chart(answer.sections[0].figure.panels[0])))  # type: ignore[union-attr, arg-type]
        if self.out is not None:
            click.echo(f"saved {self.out}", err=as_json)


REQUESTS = (ForecastLog,)
