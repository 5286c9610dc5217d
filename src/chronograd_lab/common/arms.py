"""Arms: the jobs that a study compares, each from several seeds, with their accuracies and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Series
from chronograd.job import Job, changed, from_dict
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Row, Settings
from chronograd_lab.common.rows import Spread, grouped, six_digits, spread
from chronograd_lab.common.runner import StudyRunner, curve, outcome
from chronograd_lab.common.study import listed

Curves = Mapping[str, Mapping[str, Sequence[float | None]]]
_DATA = {"name": "data", "samples": "samples", "test_samples": "test_samples", "image_size": "image_size"}
_TRAINING = ("epochs", "batch", "learning_rate", "momentum", "evaluate_every", "precision", "channels_last")


@dataclass(frozen=True)
class Arm:
    """One job of a study, and its seeds. `known`: first columns of its rows, before the results."""

    name: str
    job: Job
    known: Row = field(default_factory=dict)
    seeds: Sequence[int] = (0,)

    @classmethod
    def of(cls, job: Job, seeds: Sequence[int], **known: str) -> Arm:
        """Return an arm named by its known columns, such as its stage and the varied setting."""
        return cls("/".join(filter(None, known.values())), job, known, seeds)

    def jobs(self) -> dict[str, Job]:
        """Return the jobs by name, `NAME/seed-S`."""
        return {f"{self.name}/seed-{seed}": changed(self.job, [f"training.seed={seed}"]) for seed in self.seeds}


@dataclass(frozen=True)
class Trained:
    """The run of an arm from one seed."""

    arm: Arm
    seed: int
    run: RunDir

    @property
    def name(self) -> str:
        return f"{self.arm.name}/seed-{self.seed}"

    def row(self, **more: Any) -> Row:
        return {**self.arm.known, "seed": self.seed, **outcome(self.run), **more}


def job_of(
    settings: Settings, network: str, weights: str | None = None, data: Row | None = None, parts: Row | None = None,
    **training: Any,
) -> Job:  # fmt: skip
    """Return a job with the data and training of a study's settings; `data` and `training` override these.

    The job writes a checkpoint at each evaluation. `parts`: further parts of the job, such as cluster and backend.
    """
    own = {field: settings[key] for field, key in _DATA.items() if settings.get(key) is not None}
    asked = {key: settings[key] for key in _TRAINING if key in settings} | training
    return from_dict(
        {
            "network": {"name": network, "weights": weights},
            "data": {**own, **(data or {})},
            "training": {"checkpoint_every": asked.get("evaluate_every", asked["epochs"]), **asked},
            **(parts or {}),
        }
    )


def train_arms(runner: StudyRunner, arms: Sequence[Arm]) -> list[Trained]:
    """Run every arm from each of its seeds."""
    asked = [(arm, seed) for arm in arms for seed in arm.seeds]
    runs = runner.train({name: job for arm in arms for name, job in arm.jobs().items()})
    return [Trained(arm, seed, run) for (arm, seed), run in zip(asked, runs.values(), strict=True)]


def split_seed(name: str) -> tuple[str, int]:
    """Split the name of a run into arm and seed.

    >>> split_seed("cutout/seed-2")
    ('cutout', 2)
    """
    arm, _, seed = name.rpartition("/seed-")
    return arm, int(seed)


def curves_of(trained: Sequence[Trained]) -> dict[str, dict[str, list[float | None]]]:
    return {one.name: curve(one.run.record()) for one in trained}


def of_arm(curves: Curves, experiment: str) -> list[Mapping[str, Sequence[float | None]]]:
    """Return the curves of an arm, one for each seed."""
    return [columns for name, columns in curves.items() if split_seed(name)[0] == experiment]


def accuracy_table(
    rows: Sequence[Row], keys: Mapping[str, str], more: Mapping[str, tuple[str, Callable[[float], str]]] | None = None
) -> Table:
    """Return a table with one row per arm: accuracy with its spread, seeds, and the means of other columns.

    Args:
        keys: heading → column of `rows` that distinguishes arms. `more`: heading → column, and the format of its mean.
    """
    more = more or {}
    body = [
        [*(str(own[0][key]) for key in keys.values()), *spread(own).cells(),
         *(form(spread(own, key).mean) for key, form in more.values())]
        for own in grouped(rows, *keys.values()).values()
    ]  # fmt: skip
    return listed([*keys, "test accuracy", "seeds", *more], body, len(keys))


def mean_curve(
    curves: Curves, experiment: str, x: str, label: str = "", color: str = "", y: str = "test_accuracy", scale: float = 100.0
) -> Series:  # fmt: skip
    """Return the mean of a column over seeds, of accuracies in percent, with ± one standard deviation, against another column."""
    own = of_arm(curves, experiment)
    shortest = min(len(columns[x]) for columns in own)  # a seed that diverged ended early
    xs = np.mean([[float(v or 0) for v in columns[x][:shortest]] for columns in own], axis=0)
    ys = scale * np.array([[np.nan if v is None else v for v in columns[y][:shortest]] for columns in own], dtype=float)
    mean, std = ys.mean(axis=0), ys.std(axis=0, ddof=1) if len(own) > 1 else None
    low, high = ((), ()) if std is None else (_plain(mean - std), _plain(mean + std))
    return Series(label or experiment, "measured", xs.tolist(), _plain(mean), low, high, color, is_joined=True)


def _plain(values: np.ndarray) -> list[float | None]:
    return [six_digits(v) if np.isfinite(v) else None for v in values]


def points(
    label: str, xs: Sequence[float], spreads: Sequence[Spread], color: str = "", scale: float = 100.0, is_joined: bool = True
) -> Series:  # fmt: skip
    """Return means, of accuracies in percent, with ± one standard deviation."""
    y, low, high = ([scale * getattr(s, side) for s in spreads] for side in ("mean", "low", "high"))
    return Series(label, "measured", list(xs), y, low, high, color, is_joined=is_joined)
