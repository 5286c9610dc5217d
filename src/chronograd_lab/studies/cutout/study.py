"""Cutout: the effect of a square of zeros on accuracy, compared with dropping the same number of single pixels.

T. DeVries and G. Taylor, Improved regularization of convolutional neural networks with cutout, arXiv 1708.04552.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines
from chronograd.job import Augmentation, Job
from chronograd.units import number
from chronograd.units import signed as minus
from chronograd_lab.common.arms import Arm, accuracy_table, curves_of, job_of, mean_curve, of_arm, train_arms
from chronograd_lab.common.pictures import augmented, pixels_of
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, distinct, ends, grouped, matching, mean, processor_s, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, pictures_shown, table
from chronograd_lab.common.written import Block

# Test error in percent without and with cutout, over crop and flip, CIFAR-10, mean of 5 runs: the paper's table.
PUBLISHED = {"ResNet-18": (4.72, 3.99), "WRN-28-10": (3.87, 3.08), "Shake-Shake 26 2x96d": (2.86, 2.56)}
NOTHING, ALONE = "nothing", "cutout alone"
PLAIN, CUTOUT, PIXELS = "crop and flip", "crop, flip, cutout", "crop, flip, pixel dropout"
# Names in the page.
KEYS = {"nothing": NOTHING, "alone": ALONE, "plain": PLAIN, "cutout": CUTOUT, "pixels": PIXELS}
NUM_PICTURES = 4


def hidden_share(size: int, side: int) -> float:
    """Return the mean share of an image's pixels that a square hides. Its centre is uniform, and the edges clip it.

    Of the `size` places of the centre along one axis, those within half a side of an edge lose the part beyond it.

    >>> round(hidden_share(32, 16), 4)
    0.1914
    """
    half = side // 2
    along = sum(min(size, c + half) - max(0, c - half) for c in range(size)) / size
    return (along / size) ** 2


def arms(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the augmentations to compare: all, or those that the settings name.

    Pixel dropout hides the same number of pixels as cutout does on average.
    """
    crop = {"crop": settings["crop"], "flip": settings["flip"]}
    side = settings["side"]
    every = {
        NOTHING: {},
        ALONE: {"cutout": side},
        PLAIN: crop,
        CUTOUT: {**crop, "cutout": side},
        PIXELS: {**crop, "pixel_dropout": round(hidden_share(settings["image_size"], side), 4)},
    }
    return {name: every[name] for name in settings.get("augmentations", every)}


def sets(settings: Settings) -> list[Settings]:
    """Return the settings of each set of images: the whole set alone, or also the small set of `small_set`."""
    return [settings, settings["small_set"]] if "small_set" in settings else [settings]


def set_name(settings: Settings) -> str:
    """Return the images of a set in words.

    >>> set_name({"samples": 2000, "image_size": 16}), set_name({"samples": None, "image_size": 32})
    ('2,000 images of 16 × 16', 'all images of 32 × 32')
    """
    samples, size = settings["samples"], settings["image_size"]
    return f"{'all' if samples is None else f'{samples:,}'} images of {size} × {size}"


def job(settings: Settings, network: str, augmentation: dict[str, Any]) -> Job:
    augmentation = {"crop": 0, "flip": False, "cutout": 0, **augmentation}
    return job_of(settings, network, recipe="cutout", augmentation=augmentation)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    compared = [
        Arm(f"{network}: {name}", job(own, network, fields),
            {"network": network, "set": set_name(own), "augmentation": name}, range(own["seeds"]))
        for own in sets(settings) for network in own["networks"] for name, fields in arms(own).items()
    ]  # fmt: skip
    trained = train_arms(runner, compared)
    rows = {"runs": [one.row() for one in trained]}
    return runner.results(settings, rows=rows, curves=curves_of(trained), pictures=pictures(sets(settings)[-1]))


def pictures(settings: Settings) -> dict[str, str]:
    """Return the first training images before and after each augmentation, without normalisation, as the network sees them or at
    the settings' size of pictures.
    """
    from chronograd.data import datasets
    from chronograd.figure import png_base64

    settings = {**settings, **settings.get("pictures", {})}
    data = job(settings, settings["networks"][0], {}).data
    dataset = datasets.load(data)
    images = dataset.train.batch(np.arange(NUM_PICTURES))
    shown: dict[str, str] = {}
    for arm, fields in arms(settings).items():
        pixels = pixels_of(augmented(dataset, images, Augmentation(**fields)), dataset.top)
        shown |= {f"{arm}/{i}": png_base64(pixels[i]) for i in range(NUM_PICTURES)}
    return shown


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    """Return the accuracies and training losses of each network by arm, and whether gains follow overfitting.

    `least_without` and `most_over`: the least overfitting without crop and flip, and the most with them. `rank`: the rank
    correlation of overfitting and gain.
    """
    rows = results.rows["runs"]
    networks = distinct(rows, "network")
    over = overfitting(results)
    gaps = grouped(over, "without")
    gap_ranks, gain_ranks = (np.argsort(np.argsort([row[key] for row in over])) for key in ("gap", "gain"))
    return {
        "hidden": hidden_share(results.settings["image_size"], results.settings["side"]),
        "compared": len(over),
        "rank": float(np.corrcoef(gap_ranks, gain_ranks)[0, 1]),
        "least_without": min(row["gap"] for row in gaps[NOTHING]),
        "most_over": max(row["gap"] for row in gaps[PLAIN]),
        "published": ends(without - with_ for without, with_ in PUBLISHED.values()),
        "processor_s": sum(filter(None, map(processor_s, rows))),
        **{network.replace("-", "_"): _of_network(results, network) for network in networks},
    }


def _of_network(results: Results, network: str) -> dict[str, Any]:
    rows = matching(results.rows["runs"], network=network)
    train_loss = {key: mean(rows, "train_loss", augmentation=arm) for key, arm in KEYS.items()}
    seconds = spread(rows, "seconds").mean
    return {
        **_accuracies(results, network), "train_loss": train_loss, "params": rows[0]["trained_params"], "seconds": seconds
    }  # fmt: skip


def _accuracies(results: Results, network: str) -> dict[str, Spread]:
    runs = grouped(matching(results.rows["runs"], network=network), "augmentation")
    return {key: spread(runs[arm]) for key, arm in KEYS.items() if arm in runs}


def overfitting(results: Results) -> list[Row]:
    """Return test loss less training loss, and the gain of cutout in percentage points, by network, without and with crop and
    flip.
    """
    rows = []
    for network in distinct(results.rows["runs"], "network"):
        accuracy = _accuracies(results, network)
        for without, with_ in (("nothing", "alone"), ("plain", "cutout")):
            if with_ not in accuracy:
                continue
            curves = of_arm(results.curves, f"{network}: {KEYS[without]}")
            gap = float(np.mean([float(c["test_loss"][-1] or 0) - float(c["train_loss"][-1] or 0) for c in curves]))
            gain = round(100 * (accuracy[with_].mean - accuracy[without].mean), 6)
            rows.append({"network": network, "without": KEYS[without], "gap": gap, "gain": gain})
    return rows


def blocks(results: Results) -> dict[str, Block]:
    networks = distinct(results.rows["runs"], "network")
    why: dict[str, Any] = {
        "network": "network", "without cutout": "without", "test loss less training loss": ("gap", "{:.2f}".format),
        "gain of cutout, percentage points": ("gain", lambda gain: minus(f"{gain:+.2f}")),
    }  # fmt: skip
    return {
        "Before and after": Block(figure=pictures_shown(results)),
        **{network: _curves(results, network) for network in networks},
        "Why": Block(table(overfitting(results), why, text=2)),
        "Compared with the paper": Block(_published(results, networks)),
    }


def _curves(results: Results, network: str) -> Block:
    rows = matching(results.rows["runs"], network=network)
    names = distinct(rows, "augmentation")
    series = [mean_curve(results.curves, f"{network}: {name}", "epoch", label=name) for name in names]
    more = {head: (key, number) for head, key in (("training loss", "train_loss"), ("seconds", "seconds"))}
    return Block(
        accuracy_table(rows, {"augmentation": "augmentation"}, more),
        Figure([Lines("epoch", "test accuracy, %", series)]),
    )


def _published(results: Results, networks: Sequence[str]) -> Table:
    errors = {f"{name} (published)": pair for name, pair in PUBLISHED.items()}
    for network in networks:
        accuracy = _accuracies(results, network)
        errors[f"{network} (here)"] = (100 * (1 - accuracy["plain"].mean), 100 * (1 - accuracy["cutout"].mean))
    return listed(
        ["network", "test error without, %", "with cutout, %", "gain, percentage points"],
        [[name, f"{a:.2f}", f"{b:.2f}", minus(f"{round(a - b, 6):+.2f}")] for name, (a, b) in errors.items()],
    )


_SMOKE = {
    "data": "digits", "networks": ["small-cnn"], "samples": 400, "test_samples": None, "image_size": 8, "side": 4,
    "crop": 1, "flip": False, "epochs": 2, "batch": 50, "learning_rate": 0.1, "evaluate_every": 1, "seeds": 2,
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "networks": ["small-cnn", "resnet8"], "samples": 2000, "test_samples": 4000, "image_size": 16,
    "side": 8, "crop": 2, "flip": True, "epochs": 40, "batch": 64, "learning_rate": 0.05, "evaluate_every": 4,
    "seeds": 2,
}  # fmt: skip
_PAPER: dict[str, Any] = {
    **_LAPTOP, "networks": ["resnet18-cifar"], "samples": None, "test_samples": None, "image_size": 32, "side": 16,
    "crop": 4, "epochs": 200, "batch": 128, "learning_rate": 0.1, "evaluate_every": 5, "seeds": 5,
}  # fmt: skip
# The pictures need no training, so they have the whole size.
_PICTURES = {"image_size": 32, "side": 16, "crop": 4}
# The whole set at its own size, with crops and flips throughout; and the small set in every arm.
_EVENING: dict[str, Any] = {
    **_PAPER, "networks": ["resnet20"], "augmentations": [PLAIN, CUTOUT], "epochs": 30, "evaluate_every": 1, "seeds": 2,
    "precision": "bf16", "channels_last": True, "small_set": {**_LAPTOP, "pictures": _PICTURES},
}  # fmt: skip

STUDY = Study(
    name="cutout",
    question="What does cutout gain over crop and flip, and would dropping single pixels do the same?",
    hypothesis="A hidden square forces a network to use the whole image. Hidden single pixels are guessed from their "
    "neighbours, so they should gain less at the same cost",
    sizes={"smoke": _SMOKE, "laptop": {**_LAPTOP, "pictures": _PICTURES}, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    published="evening",
    values=values,
    blocks=blocks,
)
