"""`chronograd fit batch`: what a larger batch, and so more workers, buys in steps, and what it costs in samples."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.fit.batch_size import BatchRun, FittedBatches
    from chronograd.fit.learning_curves import Metric


@click.command(
    "batch",
    epilog="\b\nchronograd fit batch runs/b16 runs/b64 runs/b256 --to 0.9\n"
    "chronograd fit batch runs/b64 --batches 64,128,256,512\n"
    "chronograd fit batch runs/b16 runs/b64 runs/b256 --metric loss --to 0.5",
)
@click.argument("sources", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--metric", type=click.Choice(["loss", "accuracy"]), default="accuracy", show_default=True)
@click.option(
    "--to", "target", type=float, help="Of the training loss, or the test accuracy; the job's own by default."
)
@click.option(
    "--batches", metavar="B,B,...", help="Batches of the table; powers of two around the critical by default."
)
@common.json_option
def batch_command(
    sources: tuple[Path, ...], metric: Metric, target: float | None, batches: str | None, as_json: bool
) -> None:
    """Fit steps to a target by batch, S_min (1 + B_noise / B), and say what larger batches cost.

    Runs of one job at three batches or more are fitted; of several learning rates at a batch the one with the fewest steps
    counts. Runs at fewer batches need the noise scale that training.noise_scale_every measured. At the critical batch B_noise a run
    takes twice the fewest steps and twice the fewest samples.
    """
    from chronograd.fit.batch_size import fewest_steps, fit_batches, from_noise_scale, read_runs

    if metric == "loss" and target is None:
        raise click.UsageError("--metric loss needs --to: a job names a target accuracy only")
    asked = common.whole_numbers("--batches", batches) if batches is not None else None
    runs = read_runs(sources, metric, target)
    best = fewest_steps(runs)
    if not best:
        raise click.UsageError("no run reached the target with all of its seeds; give a lower one to --to")
    measured = next((run for run in runs if run.noise_scale.value is not None and run.batch in best), runs[0])
    if len({run.batch for run in runs}) > 2:
        found, how = fit_batches(list(best), [steps for steps, _ in best.values()]), "steps"
    else:
        batch = measured.batch if measured.batch in best else next(iter(best))
        found, how = from_noise_scale(best[batch][0], batch, measured.noise_scale), "measured"
    data = _as_data(found, how, runs, best, asked or _around(found, list(best)))
    common.print_json(data) if as_json else _print(data)


def _around(found: FittedBatches, batches: list[int]) -> list[int]:
    """Powers of two: the batches that were run, and from a quarter of the critical one to four times it; at most 16."""
    scale = found.model.noise_scale
    around = [scale / 4, 4 * scale] if 0 < scale < math.inf else []
    first = math.floor(math.log2(max(1.0, min(*batches, *around, math.inf))))
    last = math.ceil(math.log2(max(*batches, *around, 1.0)))
    return [2**k for k in range(first, min(last, first + 15) + 1)]


def _as_data(
    found: FittedBatches, how: str, runs: list[BatchRun], best: dict[int, tuple[float, float]], shown: list[int]
) -> dict[str, Any]:
    model, samples = found.model, runs[0].samples
    lows, highs = found.steps_interval(shown)
    return {
        "noise_scale_from": how,
        "min_steps": model.min_steps,
        "min_steps_interval": list(found.min_steps_interval()),
        "min_samples": model.min_samples,
        "noise_scale": _finite(model.noise_scale),
        "noise_scale_interval": [_finite(end) for end in found.noise_scale_interval()],
        "runs": [
            {
                "run": run.name, "batch": run.batch, "learning_rate": run.learning_rate, "steps": run.steps,
                "is_counted": best.get(run.batch, (0, None))[1] == run.learning_rate,
                "measured_noise_scale": run.noise_scale.value,
                "measured_low": run.noise_scale.low, "measured_high": run.noise_scale.high,
            }
            for run in runs
        ],
        "batches": [
            {
                "batch": batch, "steps": model.steps(batch), "low": float(low), "high": float(high),
                "epochs": model.samples(batch) / samples, "efficiency": model.efficiency(batch),
            }
            for batch, low, high in zip(shown, lows, highs, strict=True)
        ],
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _print(data: dict[str, Any]) -> None:
    from chronograd.units import percent

    def known(value: float | None, otherwise: str = "–") -> str:
        return otherwise if value is None else f"{value:,.4g}"

    def one(run: dict[str, Any]) -> list[str]:
        measured = known(run["measured_noise_scale"])
        if run["measured_noise_scale"] is not None:
            measured += f" ({known(run['measured_low'])} … {known(run['measured_high'], '∞')})"
        steps = "not reached" if run["steps"] is None else f"{run['steps']:,.0f}"
        return [run["run"], f"{run['batch']:,}", f"{run['learning_rate']:g}", steps, measured,
                "counts" if run["is_counted"] else ""]  # fmt: skip

    common.print_table(
        ("run", "batch", "learning rate", "steps", "noise scale measured", ""),
        [one(run) for run in data["runs"]],
        right=(1, 2, 3),
        title=f"{len(data['runs'])} run{'s' * (len(data['runs']) > 1)}",
    )
    low, high = data["noise_scale_interval"]
    least, most = data["min_steps_interval"]
    how = "from the steps" if data["noise_scale_from"] == "steps" else "as measured"
    common.print_table(
        ("batch", "steps", "middle 80 %", "epochs", "efficiency"),
        [
            [f"{r['batch']:,}", f"{r['steps']:,.0f}", f"{r['low']:,.0f} … {r['high']:,.0f}", f"{r['epochs']:.3g}",
             percent(r["efficiency"], 0)]
            for r in data["batches"]
        ],
        right=range(5),
        title="steps to the target by batch",
        caption="efficiency: the fewest samples that any batch needs, over those of this one",
    )  # fmt: skip
    click.echo(
        f"fewest steps {data['min_steps']:,.0f} ({least:,.0f} … {most:,.0f}), fewest samples {data['min_samples']:,.0f}"
    )
    click.echo(
        f"critical batch, {how}: {known(data['noise_scale'], 'beyond the batches tried')} samples "
        f"({known(low, '∞')} … {known(high, '∞')}); the learning rate has to be chosen anew for each batch"
    )
