"""Cutout: what a square of zeros does for accuracy, and whether dropping as many single pixels would do the same.

T. DeVries and G. Taylor, Improved regularization of convolutional neural networks with cutout, arXiv 1708.04552.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section
from chronograd.figure import Figure, Lines, Picture, PictureRow, Pictures
from chronograd.job import Augmentation, Job
from chronograd.units import number, signed
from chronograd.words import how_many
from chronograd.words import listed as in_words
from chronograd_lab.common.arms import Arm, accuracy_table, curves_of, job_of, mean_curve, of_arm, train_arms
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.rows import Spread, distinct, is_apart, matching, points_apart, seeds, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import NotRun, Study, listed

# Test error in percent without and with cutout, over crop and flip, CIFAR-10, mean of 5 runs: the paper's table.
PUBLISHED = {"ResNet-18": (4.72, 3.99), "WRN-28-10": (3.87, 3.08), "Shake-Shake 26 2x96d": (2.86, 2.56)}
NOTHING, ALONE = "nothing", "cutout alone"
PLAIN, CUTOUT, PIXELS = "crop and flip", "crop, flip, cutout", "crop, flip, pixel dropout"
NUM_PICTURES = 4
LEAST_SETTINGS = 5  # of fewer than five no order of ranks has p below 0.05, from both sides


def hidden_share(size: int, side: int) -> float:
    """Mean share of an image's pixels that a square hides whose centre is uniform and that is clipped at the edges.

    Of the `size` places of the centre along one axis, those within half a side of an edge lose what lies beyond it.

    >>> round(hidden_share(32, 16), 4)
    0.1914
    """
    half = side // 2
    along = sum(min(size, c + half) - max(0, c - half) for c in range(size)) / size
    return (along / size) ** 2


def arms(settings: Settings) -> dict[str, dict[str, Any]]:
    """The augmentations that are compared; pixel dropout hides as many pixels as cutout does on average."""
    crop = {"crop": settings["crop"], "flip": settings["flip"]}
    side = settings["side"]
    return {
        NOTHING: {},
        ALONE: {"cutout": side},
        PLAIN: crop,
        CUTOUT: {**crop, "cutout": side},
        PIXELS: {**crop, "pixel_dropout": round(hidden_share(settings["image_size"], side), 4)},
    }


def job(settings: Settings, network: str, augmentation: dict[str, Any]) -> Job:
    augmentation = {"crop": 0, "flip": False, "cutout": 0, **augmentation}
    return job_of(settings, network, recipe="cutout", augmentation=augmentation)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    compared = [
        Arm(f"{network}: {name}", job(settings, network, fields), {"network": network, "augmentation": name},
            range(settings["seeds"]))
        for network in settings["networks"] for name, fields in arms(settings).items()
    ]  # fmt: skip
    trained = train_arms(runner, compared)
    rows = {"runs": [one.row() for one in trained]}
    return runner.results(settings, rows=rows, curves=curves_of(trained), pictures=pictures(settings))


def pictures(settings: Settings) -> dict[str, str]:
    """The first training images before and after each augmentation, as the network sees them less normalisation."""
    import torch

    from chronograd.data import augment, datasets
    from chronograd.figure import png_base64

    data = job(settings, settings["networks"][0], {}).data
    images = datasets.load(data).train.batch(np.arange(NUM_PICTURES))
    channels = images.shape[1]
    shown: dict[str, str] = {}
    for arm, fields in arms(settings).items():
        augmentation = Augmentation(**fields)
        draws = torch.from_numpy(augment.draw(augmentation, 0, 0, NUM_PICTURES))
        seen = augment.augment(images, augmentation, draws, torch.ones(channels), torch.zeros(channels))
        top = max(1.0, float(images.max()))
        pixels = (seen * (255 / top)).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
        shown |= {f"{arm}/{i}": png_base64(pixels[i]) for i in range(NUM_PICTURES)}
    return shown


def page(results: Results) -> Answer:
    networks = distinct(results.rows["runs"], "network")
    highlights = [
        Highlight(
            f"crop, flip and cutout, {network}", _of(results, network, CUTOUT).percent(),
            f"without cutout {_of(results, network, PLAIN).percent()}, {seeds(_of(results, network, CUTOUT).n)}",
        )
        for network in networks
    ]  # fmt: skip
    sections = [
        _pictures_section(results),
        *(_network_section(results, network) for network in networks),
        _overfitting_section(results, networks),
        _published_section(results, networks),
    ]
    return STUDY.answer(
        results, sections, highlights, [_gains(results, networks), sections[-2].takeaway, sections[-1].takeaway]
    )


def _gains(results: Results, networks: Sequence[str]) -> str:
    """Return the answer: which networks cutout changes over crop and flip, by how much, and against the same number of single pixels."""
    said: list[str] = []
    better: list[str] = []
    worse: list[str] = []
    for network in networks:
        plain, cutout, pixels = (_of(results, network, arm) for arm in (PLAIN, CUTOUT, PIXELS))
        if is_apart(cutout, plain):
            (better if cutout.mean > plain.mean else worse).append(network)
        said.append(
            f"Over crop and flip, cutout changes {network} by {points_apart(cutout, plain)}. Against the same number of single pixels, "
            f"it changes {network} by {points_apart(cutout, pixels)}."
        )
    verdict = f"Over crop and flip, cutout improves {in_words(better) if better else 'no network'} significantly"
    verdict += f" and worsens {in_words(worse)}" if worse else ""
    return f"{verdict}. {' '.join(said)}"


def _of(results: Results, network: str, arm: str) -> Spread:
    return spread(results.rows["runs"], network=network, augmentation=arm)


def _gain(results: Results, network: str, with_: str = CUTOUT, without: str = PLAIN) -> float:
    return 100 * (_of(results, network, with_).mean - _of(results, network, without).mean)


def _pictures_section(results: Results) -> Section:
    shown = dict.fromkeys(name.split("/")[0] for name in results.pictures)
    grid = [
        PictureRow(arm, [Picture("", results.pictures[f"{arm}/{i}"]) for i in range(NUM_PICTURES)]) for arm in shown
    ]
    share = hidden_share(results.settings["image_size"], results.settings["side"])
    return Section(
        "Before and after",
        f"A square of {how_many(results.settings['side'], 'pixels')}, clipped at the edges, hides {100 * share:.1f} % of an image on "
        "average. The arm it is compared with drops the same number of single pixels.",
        figure=Figure([Pictures(grid)]),
    )


def _network_section(results: Results, network: str) -> Section:
    rows = matching(results.rows["runs"], network=network)
    names = distinct(rows, "augmentation")
    series = [mean_curve(results.curves, f"{network}: {name}", "epoch", label=name) for name in names]
    nothing, alone, plain, cutout, pixels = (_of(results, network, arm) for arm in arms(results.settings))
    more = {head: (key, number) for head, key in (("training loss", "train_loss"), ("seconds", "seconds"))}
    return Section(
        network,
        f"Cutout over nothing: {points_apart(alone, nothing)}. Over crop and flip: {points_apart(cutout, plain)}. "
        f"Against the same number of single pixels: {points_apart(cutout, pixels)}.",
        figure=Figure([Lines("epoch", "test accuracy, %", series)]),
        table=accuracy_table(rows, {"augmentation": "augmentation"}, more),
    )


def _overfitting_section(results: Results, networks: Sequence[str]) -> Section:
    """What a network may gain from a regulariser depends on how far it overfits without it."""
    body, pairs = [], []
    for network in networks:
        for without, with_ in ((NOTHING, ALONE), (PLAIN, CUTOUT)):
            curves = of_arm(results.curves, f"{network}: {without}")
            gap = float(np.mean([float(c["test_loss"][-1] or 0) - float(c["train_loss"][-1] or 0) for c in curves]))
            pairs.append((gap, _gain(results, network, with_, without)))
            body.append([network, without, f"{gap:.2f}", f"{pairs[-1][1]:+.2f}"])
    columns = ["network", "without cutout", "test loss less training loss", "gain of cutout, percentage points"]
    return Section("Why", overfitting_takeaway(pairs), table=listed(columns, body, text=2))


def overfitting_takeaway(pairs: Sequence[tuple[float, float]]) -> str:
    """Of pairs of overfitting and gain: whether the second follows the first.

    >>> overfitting_takeaway([(0.1, -1.0), (2.0, 3.0)])
    'Where overfitting is largest (2.00) cutout gains +3.0 percentage points, where it is least (0.10) −1.0: the gain grows with it, \
in 2 settings, too few to tell.'
    """
    least, most = min(pairs), max(pairs)
    gaps, gains = (np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True))
    rank = float(np.corrcoef(gaps, gains)[0, 1])
    verdict = "grows with it" if rank > 0.5 else "falls with it" if rank < -0.5 else "does not follow it"
    bearing = ", too few to tell" if len(pairs) < LEAST_SETTINGS else ""
    return (
        f"Where overfitting is largest ({most[0]:.2f}) cutout gains {signed(f'{most[1]:+.1f}')} percentage points, where it is least "
        f"({least[0]:.2f}) {signed(f'{least[1]:+.1f}')}: the gain {verdict}, in {len(pairs)} settings{bearing}."
    )


def _published_section(results: Results, networks: Sequence[str]) -> Section:
    errors = {f"{name} (published)": pair for name, pair in PUBLISHED.items()}
    for network in networks:
        a, b = (100 * (1 - _of(results, network, arm).mean) for arm in (PLAIN, CUTOUT))
        errors[f"{network} (here)"] = (a, b)
    ours = [_gain(results, network) for network in networks]
    theirs = [a - b for a, b in PUBLISHED.values()]
    seen = [n for n in networks if is_apart(_of(results, n, CUTOUT), _of(results, n, PLAIN)) and _gain(results, n) > 0]
    agree = "agrees in sign with" if seen else "does not show"
    return Section(
        "Beside the paper",
        f"This setting {agree} the published gains of {min(theirs):.2f} to {max(theirs):.2f} percentage points: here "
        f"{', '.join(signed(f'{gain:+.2f}') for gain in ours)}.",
        intro="Published: DeVries and Taylor 2017, CIFAR-10 with crop and flip, 200 epochs, mean of five runs.",
        table=listed(
            ["network", "test error without, %", "with cutout, %", "gain, percentage points"],
            [[name, f"{a:.2f}", f"{b:.2f}", f"{a - b:+.2f}"] for name, (a, b) in errors.items()],
        ),
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
# The whole set, and a network that overfits it.
_EVENING: dict[str, Any] = {**_PAPER, "networks": ["resnet9"], "epochs": 30, "seeds": 3}

STUDY = Study(
    name="cutout",
    question="What does cutout gain over crop and flip, and would dropping single pixels do the same?",
    hypothesis="A hidden square forces a network to use the whole image; hidden single pixels are guessed from their "
    "neighbours, so they should gain less at the same cost",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
    not_run=[
        NotRun(
            "evening",
            f"a network that overfits although it sees crops and flips, as the paper's do: {_EVENING['networks'][0]} on all 50,000 "
            f"images at {_EVENING['image_size']} × {_EVENING['image_size']} for {how_many(_EVENING['epochs'], 'epochs')}, {how_many(_EVENING['seeds'], 'seeds')}",
            62,
        )
    ],
)
