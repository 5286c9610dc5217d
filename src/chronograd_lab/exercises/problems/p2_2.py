# %% tf.distribute: all values follow from the predicted time of a step.
from collections.abc import Callable
from typing import Any

from chronograd_lab.common.rows import grouped
from chronograd_lab.exercises.problems import plot, results

STUDY, EXCHANGES = results("strong-and-weak"), results("all-reduce-algorithms").rows["predicted"]
POINTS = [row for row in STUDY.rows["points"] if row["kind"] == "predicted" and row["series"] != "here"]
PRICES = {row["device"]: row["usd_per_gpu_hour"] for row in STUDY.rows["prices"]}
SECONDS = {id(row): STUDY.settings["epochs"] * (60_000 // row["batch"]) * row["step_time_s"] for row in POINTS}
ALONE = {(row["series"], row["scaling"]): row["step_time_s"] for row in POINTS if row["world"] == 1}


def against_learners(unit: str, value: Callable[[dict[str, Any]], float]) -> None:  # draw and print a value
    by_kind = grouped(POINTS, "series", "scaling").items()
    lines = {", ".join(key): {row["world"]: value(row) for row in own} for key, own in by_kind}
    plot(lines, "learners", unit, "log")
    for name, own in lines.items():
        print(f"{name:<18}", *(f"{n}: {number:.4g}" for n, number in own.items()), unit, sep="  ")


# %% 2.2.1 The images of a step over its time.
against_learners("images/s", lambda row: row["batch"] / row["step_time_s"])
# %% 2.2.2 The steps of all epochs times the time of a step.
against_learners("seconds of training", lambda row: SECONDS[id(row)])
# %% 2.2.3 GPU-hours times the price of a GPU-hour.
against_learners("dollars", lambda row: SECONDS[id(row)] / 3600 * row["world"] * PRICES[row["series"]])
# %% 2.2.4 The growth of an iteration: its time over that with one learner.
against_learners("× an iteration", lambda row: row["step_time_s"] / ALONE[row["series"], row["scaling"]])
# %% 2.2.5 The step on one machine: computation, the wait for the slowest GPU, and the exchange by each operation.
for row in (row for row in EXCHANGES if row["nodes"] == 1):
    step_s = row["compute_s"] + row["wait_s"] + row["exchange_s"]
    print(f"{row['world']} GPUs {row['choice']:<24} {1e3 * step_s:.1f} ms, {64 * row['world'] / step_s:,.0f} images/s")
# %% 2.2.6 AUTO compared with the fastest choice on two machines.
for world, own in grouped([row for row in EXCHANGES if row["nodes"] == 2], "world").items():
    steps = {row["choice"]: row["compute_s"] + row["wait_s"] + row["exchange_s"] for row in own}
    fastest = min(steps, key=steps.__getitem__)
    print(f"{world:>2} GPUs: {fastest} is fastest; auto takes {steps['auto'] / steps[fastest]:.2f} times as long")
