"""This machine's CPU: calibrated by `chronograd calibrate`, then networks that no calibration ever saw are predicted and
timed, at two batch sizes, inference and training, in rounds far apart until the spread of the clock is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.sources import Row, row_of
from chronograd.calibrate.machine import Setup, calibrate
from chronograd.count.cached import cached_trace
from chronograd.hardware.catalog import Device
from chronograd.measure import environment
from chronograd.models import registry
from chronograd.predict.calibration import Calibration
from chronograd.predict.compute import operator_seconds, phase_seconds
from chronograd.predict.relatives import calibration_for
from chronograd.record import Z80

NETWORKS = (
    *("torchvision:" + n for n in (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "googlenet",
        "shufflenet_v2_x1_0", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "mnasnet1_0", "swin_t", "alexnet",
    )),
    *("timm:" + n for n in (
        "deit_tiny_patch16_224", "ghostnet_100", "resnet26d", "rexnet_100", "lcnet_100", "poolformer_s12", "repvgg_a0",
        "fbnetc_100", "mobilevit_xs", "edgenext_x_small",
    )),
)  # fmt: skip
SHAPE, BATCHES, ROUNDS = (3, 224, 224), (2, 8), 3
SECONDS_PER_ROUND = 0.6
AIM = 0.12


@dataclass(frozen=True)
class _Case:
    network: str
    mode: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.network}, {self.mode}, batch {self.batch}"


def rows(folder: Path, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """`folder` is not read: this source is the machine itself. Takes a quarter of an hour."""
    setup = Setup(1, environment.cores())
    torch.set_num_threads(setup.threads)
    say("calibrating this machine")
    device = calibrate([setup])
    fitted = {m: calibration_for(device, "fp32", setup.threads, 1, mode=m) for m in ("inference", "training")}
    cases = [_Case(n, m, b) for n in NETWORKS for m in ("inference", "training") for b in BATCHES]
    measured = np.array([list(_round(cases, i, say)) for i in range(ROUNDS)])
    middle = np.median(measured, axis=0)
    spread = np.abs(np.log(measured / middle)).max(axis=0)
    predicted = np.array([_predicted(c, fitted[c.mode]) for c in cases])
    ratio = predicted / middle
    found = []
    for mode in ("inference", "training"):
        chosen = np.array([c.mode == mode for c in cases])
        found.append(
            row_of(
                f"this machine's CPU, {mode}",
                f"calibrate, then {len(NETWORKS)} unseen networks at batch {' and '.join(map(str, BATCHES))}",
                AIM,
                [c.name for c in cases if c.mode == mode],
                ratio[chosen],
                np.abs(np.log(ratio[chosen])) <= Z80 * fitted[mode].sigma,
                note=_note(device, setup, spread[chosen]),
                details={
                    "seconds": {
                        c.name: {"predicted": float(p), "rounds": [float(x) for x in m]}
                        for c, p, m, is_chosen in zip(cases, predicted, measured.T, chosen, strict=True)
                        if is_chosen
                    }
                },
            )
        )
    return found


def _note(device: Device, setup: Setup, spread: np.ndarray) -> str:
    return (
        f"{device.title}, {setup.threads} threads, torch {torch.__version__}; {ROUNDS} rounds of the same step differ by "
        f"{100 * np.median(spread):.1f} % in the median, {100 * np.quantile(spread, 0.9):.0f} % in a tenth of the cases"
    )


def _predicted(case: _Case, calibration: Calibration) -> float:
    trace = cached_trace(case.network, input_shape=SHAPE, mode=case.mode)
    passes = phase_seconds(trace, operator_seconds(trace, case.batch, calibration), calibration)
    return sum(passes.values())


def _round(cases: list[_Case], number: int, say: Callable[[str], None]) -> Iterator[float]:
    """Seconds of each case: the median step, after one that warms up."""
    for case in cases:
        say(f"round {number + 1} of {ROUNDS}: {case.name}")
        step = _step(case)
        step()
        seconds: list[float] = []
        begin = time.perf_counter()
        while len(seconds) < 3 or (time.perf_counter() - begin < SECONDS_PER_ROUND and len(seconds) < 50):
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        yield float(np.median(seconds))


def _step(case: _Case) -> Callable[[], None]:
    """Forward, or forward and backward: what is predicted. The update is left out on both sides."""
    torch.manual_seed(0)
    model = registry.build(case.network, {}, input_shape=SHAPE)
    image = torch.randn(case.batch, *SHAPE)
    if case.mode == "inference":
        model.eval()

        def forward() -> None:
            with torch.inference_mode():
                model(image)

        return forward
    model.train()
    target = torch.zeros(case.batch, dtype=torch.int64)

    def both() -> None:
        for p in model.parameters():
            p.grad = None
        outputs = model(image)
        scores = [t for t in (outputs if isinstance(outputs, tuple) else (outputs,)) if torch.is_tensor(t)]
        torch.autograd.backward([F.cross_entropy(s, target) for s in scores])

    return both
