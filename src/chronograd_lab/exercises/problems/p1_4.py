# %% Fit Optimus' loss model to the fifteen runs. Regress log b0, b1 and the largest loss on log depth and the device.
import json

import numpy as np
from scipy.optimize import curve_fit

import chronograd
from chronograd_lab.common.rows import matching
from chronograd_lab.exercises.problems import LOGS, plot, results

STUDY, FITS, DEVICES = results("depth-and-device"), [], ("K80", "P100", "V100")


def loss(epoch: np.ndarray, b0: float, b1: float, b2: float) -> np.ndarray:  # as a share of the largest loss
    return 1 / (b0 * epoch + b1) + b2


def logged(depth: float, device: str, curve: str) -> tuple[np.ndarray, np.ndarray]:  # epochs and losses
    log = LOGS / "published" / f"history{depth:.0f}_{device}.json"
    if log.exists():
        losses = np.array(json.loads(log.read_text())["loss"])
        return np.arange(1.0, len(losses) + 1), losses
    return np.array(STUDY.curves[curve]["epoch"], float), np.array(STUDY.curves[curve][device], float)


for run in STUDY.rows["triples"]:
    epochs, losses = logged(run["depth"], run["run"], f"published: {run['network']}")
    sigma = 1 / np.sqrt(np.gradient(epochs))  # a stored epoch also stands for those around it
    triple, _ = curve_fit(loss, epochs, losses / losses.max(), (1, 0.1, 0), sigma=sigma, bounds=(0, np.inf))
    FITS.append((run["depth"], run["run"], *triple, losses.max()))
design = np.array([[np.log(depth), *(one == device for one in DEVICES)] for depth, device, *_ in FITS], float)
slope, *constants = np.linalg.lstsq(design, np.log([[b0, b1, top] for *_, b0, b1, _, top in FITS]), rcond=None)[0]
RESNET50 = {device: np.exp(slope * np.log(50) + own) for device, own in zip(DEVICES, constants, strict=True)}
(LEVEL,) = matching(STUDY.rows["levels"], target="accuracy 92 %")  # the loss of the known runs there
TO_92 = {device: (top / LEVEL["loss"] - b1) / b0 for device, (b0, b1, top) in RESNET50.items()}

# %% 1.4.1 The triples of the fifteen runs, from all epochs of their logs, or from the stored ones if the logs are not here.
print("full logs" if (LOGS / "published").is_dir() else "stored epochs of the logs, so the third digit may differ")
for depth, device, b0, b1, b2, top in FITS:
    print(f"ResNet-{depth} on {device:<5} b0 {b0:.3f}  b1 {b1:.3f}  b2 {b2:.3f}  largest loss {top:.2f}")
# %% 1.4.2 ResNet-50's curve, predicted and real. The error is a mean over the epochs in which the runs learn; the answer has it for the stored ones.
lines = {}
for device, (b0, b1, top) in RESNET50.items():
    epochs, real = logged(50, device, "ResNet-50: Optimus' coefficients on depth and device")
    curve = top * loss(epochs, b0, b1, 0)
    for name, values in {device: real, f"{device}, predicted": curve}.items():
        lines[name] = dict(zip(epochs, values, strict=True))
    (last,) = {row["learning"] for row in matching(STUDY.rows["held_curves"], run=device)}
    error = np.average(np.abs(curve / real - 1), weights=np.gradient(epochs) * (epochs <= last))
    print(f"{device}: b0 {b0:.3f}, b1 {b1:.3f}, {TO_92[device]:.1f} epochs to 92 %; the curve is {error:.1%} off")
plot(lines, "epoch", "training loss", "log")
# %% 1.4.3 Steps in these epochs at batch 128, and steps/s of Optimus' speed model with its published coefficients.
steps, hours = np.exp(np.mean(np.log(list(TO_92.values())))) * 50_000 / 128, {}
for servers in (2, 4):
    speeds = chronograd.simulate_speed(batch=128, servers=servers).data["steps_per_s"]
    own = hours[f"{servers} servers"] = {int(workers): steps / speed / 3600 for workers, speed in speeds.items()}
    best = min(own, key=own.__getitem__)
    print(f"{servers} servers: {steps:,.0f} steps take {own[best]:.1f} h with {best} workers")
plot(hours, "workers", "hours to 92 %")
