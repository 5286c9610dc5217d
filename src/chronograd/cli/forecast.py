"""`chronograd forecast LOG --to 92%`: when a run or log will reach a level, in epochs, in hours and by the clock."""

from __future__ import annotations

import time
from pathlib import Path

import click

from chronograd.cli import common
from chronograd.cli.fit import SCHEDULES


@click.command(
    "forecast",
    epilog="\b\nchronograd forecast log.csv --to 92%\nchronograd forecast runs/mine --to 92%\n"
    "chronograd forecast tb/ --metric eval/accuracy --to 0.92 --out forecast.html\n"
    "chronograd forecast mlruns/0/5f2c --metric val_loss --to 0.3 --schedule cosine --planned 100",
)
@click.argument("source", metavar="LOG", type=common.PATH)
@click.option("--to", metavar="LEVEL", help="An accuracy, as 92%, 92 or 0.92, or a loss.")
@click.option(
    "--metric", metavar="NAME", help="loss, accuracy, or a column such as val_acc; found by its name by default."
)
@click.option("--run", metavar="NAME", help="One of several runs in a file, such as a chart that W&B exports.")
@click.option(
    "--schedule", type=click.Choice(SCHEDULES), help="Of the learning rate, where neither the log nor a job tells it."
)
@click.option("--drops", metavar="K,K,...", help="Where the learning rate falls at once, seen or still to come.")
@click.option("--planned", type=common.ABOVE_0, help="The epoch or step where training is to end.")
@click.option(
    "--fraction",
    default=1.0,
    type=click.FloatRange(0, 1, min_open=True),
    help="Forecast from the first part only, and score the rest.",
)
@click.option(
    "--at", "ats", multiple=True, type=common.ABOVE_0, help="Also forecast this epoch or step; may be repeated."
)
@click.option("--pace", type=common.ABOVE_0, metavar="SECONDS", help="Of an epoch or step, where the log has no times.")
@click.option("--out", type=common.FILE, help="Also write a page (.html).")
@common.answer_options
def command(source: Path, to: str | None, metric: str | None, run: str | None, schedule: str | None, drops: str | None, planned: float | None,
            fraction: float, ats: tuple[float, ...], pace: float | None, out: Path | None, as_json: bool) -> None:  # fmt: skip
    """When will a run or log reach a level: epoch or step, hours and clock time, each with its 80 % interval.

    LOG is a run directory; a table with any delimiter; JSON or JSON lines; what a program printed; a TensorBoard folder; an MLflow
    run; or what W&B, Keras, Lightning, Hugging Face, timm, Ultralytics, Detectron2, OpenMMLab, fastai and others write, also
    zipped. The schedule of the learning rate is taken from the run's job or from the log's column of rates.
    """
    from chronograd.forecast import forecast_answer
    from chronograd.forecast.forecasting import forecast
    from chronograd.forecast.loss_answer import with_schedule

    places = common.numbers("--drops", drops) if drops else ()
    curve = forecast_answer.read(source, metric, to, run)
    curve = with_schedule(forecast_answer.with_pace(curve, pace), schedule, places, planned, is_part=fraction < 1)
    target = None if to is None else forecast_answer.level(to, curve.metric)
    answer = forecast_answer.forecast_answer(forecast(curve, fraction, target=target, at=ats), now=time.time())
    common.show(answer, as_json)
    if not as_json:
        from chronograd.report.text_chart import text_chart

        common.echo()
        common.echo(text_chart(answer.sections[0].figure.panels[0]))  # type: ignore[union-attr, arg-type]
    if out is not None:
        for path in common.write_page(answer, out):
            common.echo(f"wrote {path}", err=as_json)
