# %% Cutout, and the curves of batch augmentation: epochs, seconds and test errors by seed and evaluation.
import numpy as np

from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import grouped, mean
from chronograd_lab.exercises.problems import image, plot, results, show, trained

PLAIN = "M=1, no cutout"


def arms_of(study: Results) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    arms = {}
    for arm in sorted({name.rpartition("/")[0] for name in study.curves}, key=lambda arm: (len(arm), arm)):
        seeds = [curve for name, curve in study.curves.items() if name.rpartition("/")[0] == arm]
        epochs, seconds, accuracy = (
            np.array([curve[k] for curve in seeds]) for k in ("epoch", "seconds", "test_accuracy")
        )
        arms[arm] = epochs, seconds, 1 - accuracy
    return arms


def mean_errors(study: Results) -> dict[str, dict[float, float]]:  # of the seeds, by epoch
    return {arm: dict(zip(epochs[0], error.mean(0), strict=True)) for arm, (epochs, _, error) in arms_of(study).items()}


# %% 2.4.1 Cut a square out of two images, at a new place each time. Then train with and without it, here and as reported.
random, images = np.random.default_rng(0), {}
for name, png in list(results("cutout").pictures.items())[:2]:
    images[f"{name}, before"], cut = image(png), image(png)
    side = len(cut) // 2
    top, left = random.integers(-side // 2, len(cut) - side // 2, 2)  # it may reach over the border
    cut[max(top, 0) : top + side, max(left, 0) : left + side, :3] = 0.5
    images[f"{name}, after"] = cut
show(images)
for study in (
    trained("cutout", epochs=10, seeds=1, augmentations=["crop and flip", "crop, flip, cutout"]),
    results("cutout"),
):
    for key, same in grouped(study.rows["runs"], "network", "augmentation").items():
        print(f"size {study.size}", *key, f"{mean(same, 'accuracy'):.2%}", sep=" | ")
# %% 2.4.2 Train with crop and flip alone: here, then the reported runs. The mean error against the epochs.
for study in (trained("batch-augmentation", copies=[1, 2], seeds=[1, 1], epochs=6), results("batch-augmentation")):
    errors = mean_errors(study)[PLAIN]
    plot({"crop and flip": errors}, "epoch", f"test error, size {study.size}")
    print(f"— size {study.size}", study.settings.get("plain", ""))
    print(*(f"epoch {epoch:.0f}: {error:.2%}" for epoch, error in errors.items()), sep="\n")
# %% 2.4.3 M copies with cutout: the error at the end, and mean epochs and seconds of the seeds that reach the target.
small = trained("batch-augmentation", copies=[1, 2, 4], seeds=[1, 1, 1], epochs=6)
for study in (small, results("batch-augmentation")):
    plot(
        {arm: line for arm, line in mean_errors(study).items() if "," not in arm},
        "epoch",
        f"test error, size {study.size}",
    )
    print(f"— size {study.size}")
    for arm, (epochs, seconds, error) in arms_of(study).items():
        at = [(seed, int(row.argmax())) for seed, row in enumerate(error <= 1 - study.settings["target"]) if row.any()]
        means = [f"{np.mean([values[place] for place in at]):.1f}" for values in (epochs, seconds) if at]
        if arm != PLAIN:
            print(f"{arm:<20} {error[:, -1].mean():.2%}; {len(at)} of {len(error)} seeds reach the target", *means)
