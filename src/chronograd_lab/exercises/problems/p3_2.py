# %% DataParallel: all tables follow from the time of a step, by the batch of a GPU and the number of GPUs.
import math
from typing import Any

from chronograd_lab.common.rows import matching
from chronograd_lab.exercises.problems import results

STUDY = results("data-parallel")
IMAGES: int = STUDY.settings["epoch_samples"]
FITS = [row["batch"] for row in STUDY.rows["memory"] if row["fits"]]
STEPS: dict[str, dict[int, dict[int, Any]]] = {"weak": {}, "strong": {}}  # rows by batch and number of GPUs
for row in matching(STUDY.rows["points"], of="data_parallel", place=STUDY.settings["device"], kind="predicted"):
    if row["batch_asked"] in FITS:
        STEPS[row["scaling"]].setdefault(row["batch_asked"], {})[row["world"]] = row
LOADING_S = IMAGES / STUDY.rows["loading"][0]["images_per_s"]


def epoch_s(batch: float, step_s: float) -> float:
    return step_s * math.ceil(IMAGES / batch)


# %% 3.2.1 An epoch of steps and copies to the GPU, without loading.
for row in STUDY.rows["one_gpu"]:
    time = f"{epoch_s(row['batch'], row['step_s'] + row['copy_s']):.2f} s" if row["step_s"] else "does not fit"
    print(f"{row['device']}, {row['precision']}, batch {row['batch']:,.0f}: {time}")
# %% 3.2.2 Steps and loading run at the same time, so the slower counts. Then the speed-ups of steps, weak and strong.
for batch, own in STEPS["weak"].items():
    rows = own, STEPS["strong"][batch]
    weak, strong = ({n: epoch_s(one["batch"], one["step_time_s"]) for n, one in of_n.items()} for of_n in rows)
    whole = {n: max(steps_s, LOADING_S) for n, steps_s in weak.items()}
    for n in own:
        print(f"batch {batch:>5}, {n} GPUs: {whole[n]:.1f} s, {whole[1] / whole[n]:.2f} × with loading;", end=" ")
        print(f"steps alone {weak[1] / weak[n]:.2f} × (weak) and {strong[1] / strong[n]:.2f} × (strong)")
# %% 3.2.3 Computation is the step of one GPU. The rest of a step of several GPUs is communication.
for batch, own in STEPS["weak"].items():
    for n in (2, 4):
        parts = own[1]["step_time_s"], own[n]["step_time_s"] - own[1]["step_time_s"]
        print(f"batch {batch:>5}, {n} GPUs:", *(f"{epoch_s(own[n]['batch'], part):.2f} s" for part in parts))
# %% 3.2.4 A ring all-reduce of S bytes takes 2(n − 1)α + 2(n − 1)/n · S/B; its bandwidth is 2(n − 1)/n · S / communication.
for part in (part for part in STUDY.rows["parts"] if part["batch_asked"] in FITS):
    own, n = STEPS["weak"][part["batch_asked"]], part["world"]
    rate = 2 * (n - 1) / n * part["bytes"] / (own[n]["step_time_s"] - own[1]["step_time_s"])
    print(f"batch {part['batch_asked']:>5}, {n} GPUs: {1e3 * part['ring_s']:.2f} ms by formula;", end=" ")
    print(f"{rate / 1e9:.2f} GB/s, {rate / part['link_bytes_per_s']:.0%} of the link")
