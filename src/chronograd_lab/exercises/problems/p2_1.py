# %% Horovod: the predicted throughput with each number of GPUs is the images of a step over its time.
from scipy.optimize import curve_fit

from chronograd_lab.common.rows import grouped
from chronograd_lab.exercises.problems import plot, results

STUDY = results("horovod-scaling")
IMAGES = STUDY.settings["epochs"] * STUDY.settings["gpu_data"]["samples"]
POINTS = [row for row in STUDY.rows["points"] if row["kind"] == "predicted" and not row["series"].endswith("here")]
RATES = {
    name: {row["world"]: row["batch"] / row["step_time_s"] for row in own}
    for name, own in grouped(POINTS, "series").items()
}

# %% 2.1.1 Throughput, with published measurements, and the time of all epochs.
by_device = grouped(STUDY.rows["published"], "device").items()
published = {f"{device}, published": {row["gpus"]: row["images_per_s"] for row in own} for device, own in by_device}
plot({**RATES, **published}, "GPUs", "images/s", "log")
hours = {device: {n: IMAGES / rate / 3600 for n, rate in own.items()} for device, own in RATES.items()}
plot(hours, "GPUs", "hours", "log")
for device, own in RATES.items():
    print(device, *(f"{n} GPUs: {rate:,.0f} images/s, {hours[device][n]:.2f} h" for n, rate in own.items()), sep="; ")
# %% 2.1.2 The share of n times one GPU. The fit n / (1 + c (n − 1)) to one node gives the loss c of each further GPU.
for device, own in RATES.items():
    node = [n for n in own if n <= STUDY.settings["per_node"]]
    (c,), _ = curve_fit(lambda n, c: n / (1 + c * (n - 1)), node, [own[n] / own[1] for n in node])
    print(device, *(f"{n} GPUs {rate / own[1] / n:.1%}" for n, rate in own.items()), f"c = {c:.4f}", sep="; ")
# %% 2.1.3 Strong scaling keeps the effective batch, weak scaling keeps the batch of a GPU.
for row in POINTS:
    print(f"{row['series']}, {row['world']} GPUs: effective batch {row['batch']}, {row['batch'] // row['world']} a GPU")
# %% 2.1.4 Two nodes of 8 GPUs compared with one.
for device, own in RATES.items():
    print(f"{device}: {own[16] / own[8]:.2f} × the throughput, {own[8] / own[16]:.0%} of the time")
