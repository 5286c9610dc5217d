# %% Cutout, and the curves of batch augmentation: epochs, seconds and test errors by seed and evaluation.
import numpy as np

from chronograd_lab.common.rows import grouped, mean
from chronograd_lab.exercises.problems import image, plot, results, show

STUDY, ARMS = results("batch-augmentation"), {}
for arm in sorted({name.rpartition("/")[0] for name in STUDY.curves}, key=lambda arm: (len(arm), arm)):
    seeds = [own for name, own in STUDY.curves.items() if name.rpartition("/")[0] == arm]
    epochs, seconds, accuracy = (np.array([own[k] for own in seeds]) for k in ("epoch", "seconds", "test_accuracy"))
    ARMS[arm] = epochs, seconds, 1 - accuracy
CURVES = {arm: dict(zip(epochs[0], error.mean(0), strict=True)) for arm, (epochs, _, error) in ARMS.items()}

# %% 2.4.1 Cut a square out of two images, at a new place each time. Then compare the accuracies of all runs.
random, images = np.random.default_rng(0), {}
for name, png in list(results("cutout").pictures.items())[:2]:
    images[f"{name}, before"], cut = image(png), image(png)
    side = len(cut) // 2
    top, left = random.integers(-side // 2, len(cut) - side // 2, 2)  # it may reach over the border
    cut[max(top, 0) : top + side, max(left, 0) : left + side, :3] = 0.5
    images[f"{name}, after"] = cut
show(images)
for key, own in grouped(results("cutout").rows["runs"], "network", "augmentation").items():
    print(*key, f"{mean(own, 'accuracy'):.2%}", sep=" | ")
# %% 2.4.2 The mean error of crop and flip alone against the epochs, with its own network and number of images.
print(STUDY.settings["plain"])
plot({"crop and flip": CURVES["M=1, no cutout"]}, "epoch", "test error")
print(*(f"epoch {epoch:.0f}: {error:.2%}" for epoch, error in CURVES["M=1, no cutout"].items()), sep="\n")
# %% 2.4.3 M copies with cutout: the error at the end, and mean epochs and seconds of the seeds that reach the target.
plot({arm: own for arm, own in CURVES.items() if "," not in arm}, "epoch", "test error")
for arm in [arm for arm in CURVES if "no cutout" not in arm]:
    epochs, seconds, error = ARMS[arm]
    at = [(seed, int(own.argmax())) for seed, own in enumerate(error <= 1 - STUDY.settings["target"]) if own.any()]
    means = [f"{np.mean([values[place] for place in at]):.1f}" for values in (epochs, seconds) if at]
    print(f"{arm:<20} {error[:, -1].mean():.2%}; {len(at)} of {len(error)} seeds reach the target", *means)
