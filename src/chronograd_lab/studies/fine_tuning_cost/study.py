"""Accuracy for dollars of fine-tuning, by method, from published curves; and the predicted steps of LoRA and of full fine-tuning.

    dollars = seconds of steps until the accuracy · price of the device per hour / 3600

Start-up, loading and evaluation cost the same for all methods and are left out. `chronograd.forecast.fine_tuning` has the curves and
their source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.forecast.fine_tuning import DEVICE, MODEL, SEQUENCES, FineTuningRun, published_runs
from chronograd.hardware import catalog, market
from chronograd.large.asking import ask_large
from chronograd.large.prediction import LargePrediction
from chronograd.units import chance, dollars, memory, percent, seconds
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key

# Ways whose steps are predicted, by the fields that state them. The mean length of the published sequences is 210 tokens.
PREDICTED: dict[str, dict[str, int]] = {
    "LoRA on queries and values": {"lora": 32},
    "LoRA on all matrices": {"lora": 32},
    "full": {},
}
_FIELDS = {"LoRA on queries and values": ["large.adapter_on=query-value"]}
LENGTH = 210
# The published way closest to LoRA on queries and values, to compare its step with the predicted one: it trains one of the two
# matrices of each adapter.
MEASURED_LORA = "lora rank32-mica"
_COLORS = ("accent", "vermilion", "green", "purple", "orange")


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    per_second = _price(DEVICE)["usd_per_hour"] / 3600
    curves = {
        run.name: {"dollars": (per_second * run.times).tolist(), "accuracy": run.curve.tolist()}
        for run in _runs()[: settings["drawn"]]
    }
    return runner.results(settings, rows=predictions(settings), curves=curves)


def predictions(settings: Settings) -> dict[str, list[Row]]:
    runs = _runs()
    prices = [_price(device) for device in settings["devices"]]
    per_second = matching(prices, device=DEVICE)[0]["usd_per_hour"] / 3600
    ways = [
        {
            "way": run.name, "method": run.method, "final": run.test_accuracy, "trainable": run.trainable_params,
            "memory_bytes": run.memory_bytes, "dollars": per_second * run.times[-1], "step_s": run.times[-1] / run.steps[-1],
            "after": [run.after(usd / per_second) for usd in settings["budgets"]],
        }
        for run in runs
    ]  # fmt: skip
    reached = [row for target in settings["targets"] for run in runs for row in _reached(run, target, per_second)]
    predicted = [_predicted(way, row) for row in prices for way in PREDICTED]
    return {"ways": ways, "reached": reached, "predicted": predicted, "prices": prices}


def _runs() -> list[FineTuningRun]:
    """Return the published runs, the most accurate first."""
    return sorted(published_runs(), key=lambda run: -run.test_accuracy)


def _price(device: str) -> Row:
    """Return the price of one device. Raises InputError if none is known."""
    price = market.price_of(device)
    if price is None:
        raise InputError(f"no price of {device} is known", "leave it out of `devices`")
    offer = f"{price.vendor} {price.instance}, {price.date}"
    return {"device": device, "usd_per_hour": float(price.usd_per_hour(1)), "offer": offer}


def _reached(run: FineTuningRun, target: float, usd_per_s: float) -> list[Row]:
    found = run.reaches(target)
    if found is None:
        return []
    low, high = (usd_per_s * bound for bound in found.seconds_interval)
    return [
        {"target": target, "way": run.name, "method": run.method, "steps": found.step, "seconds": found.seconds,
         "dollars": usd_per_s * found.seconds, "low": low, "high": high, "probability": found.probability}
    ]  # fmt: skip


def _predicted(way: str, price: Row) -> Row:
    """Return the predicted step of a way on a device, in Transformers without fused kernels."""
    words = ["large.kernels=eager", *_FIELDS.get(way, [])]
    short = {"sequence": LENGTH, "batch": SEQUENCES, **PREDICTED[way]}
    prediction = LargePrediction(ask_large(MODEL, words, short, price["device"], SEQUENCES).setting)
    steps = int(published_runs()[0].steps[-1])
    step_s = prediction.step.step_s
    return {
        "way": way, "device": price["device"], "step_s": step_s, "used_bytes": prediction.fullest.used_bytes, "fit": prediction.fit,
        "room_bytes": catalog.device(price["device"]).memory_bytes, "dollars": steps * step_s * price["usd_per_hour"] / 3600,
    }  # fmt: skip


def overlapping(reached: Sequence[Row]) -> int:
    """Return the number of ways to a target whose interval of dollars overlaps with that of the cheapest way."""
    cheapest, *others = sorted(reached, key=lambda row: row["dollars"])
    return sum(row["low"] <= cheapest["high"] for row in others)


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    ways, reached = rows["ways"], rows["reached"]
    lora = [row for row in ways if row["method"] == "lora"]
    (measured,) = matching(ways, way=MEASURED_LORA)
    by_target = {
        key(f"to_{100 * target:.0f}"): {
            "ways": len(own),
            "overlapping": overlapping(own),
            "cheapest": min(own, key=lambda row: row["dollars"]),
            "lora": min((row for row in own if row["method"] == "lora"), key=lambda row: row["dollars"], default=None),
        }
        for target, own in grouped(reached, "target").items()
    }
    return {
        "ways": len(ways),
        "best": ways[0],
        "lora": max(lora, key=lambda row: row["final"]),
        "price": {row["device"]: row for row in rows["prices"]},
        "measured": measured,
        "predicted": {
            device: {key(row["way"]): row for row in own} for device, own in grouped(rows["predicted"], "device").items()
        },
        "targets": by_target,
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    rows, budgets = results.rows, results.settings["budgets"]
    return {
        "Dollars to an accuracy": Block(_targets(rows["reached"]), _figure(results)),
        "Accuracy for dollars": Block(_ways(rows["ways"], budgets)),
        "LoRA against full fine-tuning: predicted steps": Block(
            table(rows["predicted"], {
                "way": "way", "device": "device", "step": ("step_s", seconds), "memory": ("used_bytes", memory),
                "fits": ("fit", chance), "5,000 steps": ("dollars", dollars),
            }, 2)
        ),
    }  # fmt: skip


def _targets(reached: Sequence[Row]) -> Any:
    cheapest = [
        row
        for own in grouped(reached, "target").values()
        for row in sorted(own, key=lambda row: (row["dollars"], row["way"]))[:5]
    ]
    return table(cheapest, {
        "target": ("target", lambda value: percent(value, 0)), "way": "way", "steps": ("steps", lambda value: f"{value:,.0f}"),
        "time": ("seconds", seconds), "dollars": ("dollars", dollars),
        "80 % interval": lambda row: f"{dollars(row['low'])} … {dollars(row['high'])}", "reaches it with": ("probability", chance),
    }, 2)  # fmt: skip


def _ways(ways: Sequence[Row], budgets: Sequence[float]) -> Any:
    columns = ["way", *(f"after {dollars(usd)}" for usd in budgets), "final", "dollars", "trained parameters", "memory"]
    body = [
        [row["way"], *(percent(value) for value in row["after"]), percent(row["final"]), dollars(row["dollars"]),
         f"{row['trainable']:,}", memory(row["memory_bytes"])]
        for row in ways
    ]  # fmt: skip
    return listed(columns, body)


def _figure(results: Results) -> Figure:
    def numbers(curve: dict[str, list[float | None]], axis: str, scale: float = 1.0) -> list[float]:
        return [scale * value for value in curve[axis] if value is not None]

    series = [
        Series(name, "measured", numbers(curve, "dollars"), numbers(curve, "accuracy", 100), color=color, is_joined=True)
        for (name, curve), color in zip(results.curves.items(), _COLORS, strict=False)
    ]  # fmt: skip
    return Figure([Lines("US dollars of steps", "accuracy, %", series)])


_LAPTOP: dict[str, Any] = {
    "targets": [0.4, 0.45, 0.5], "budgets": [0.02, 0.05, 0.1], "devices": [DEVICE, "h100"], "drawn": 5,
}  # fmt: skip

STUDY = Study(
    name="fine-tuning-cost",
    question="What does fine-tuning a large model to an accuracy cost, with LoRA and with all parameters?",
    hypothesis="LoRA reaches the accuracy of other methods for less, and full fine-tuning needs a larger device",
    sizes={"smoke": {**_LAPTOP, "targets": [0.45], "devices": [DEVICE]}, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predictions(results.settings),
)
