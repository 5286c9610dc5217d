"""The learning rate of every step: a closed form of step and number of steps. Needs no torch."""

from __future__ import annotations

import math

from chronograd.job import WSD_STAYS, Training

# one_cycle rises for this share of the run if the job gives no warm-up (see recipes.sgd_one_cycle).
ONE_CYCLE_RISE = 0.2


def learning_rate(training: Training, step: int, num_steps: int) -> float:
    """Return the learning rate of step `step`, counted from 0, of a run of `num_steps`.

    During warm-up it is `peak · (step + 1) / (warmup · num_steps)`, so the first step is not wasted at rate zero. After
    it, with q the completed share of the remaining steps:

        constant     peak
        multi_step   peak · gamma ** (milestones reached), which are shares of the whole run
        cosine       peak · (1 + cos(π q)) / 2
        one_cycle    peak · (1 - q)
        wsd          peak until the first milestone, then linear to 0 (warm-up, stable, decay)

    >>> t = Training(recipe="sgd-one-cycle")
    >>> [round(learning_rate(t, s, 10), 4) for s in (0, 1, 2, 9)]
    [0.05, 0.1, 0.1, 0.0125]
    """
    rise = training.warmup
    if training.schedule == "one_cycle" and rise == 0:
        rise = ONE_CYCLE_RISE
    peak = training.learning_rate
    warm_steps = rise * num_steps
    if step < warm_steps:
        return peak * min(1.0, (step + 1) / warm_steps)
    done = step / num_steps
    rest = (step - warm_steps) / (num_steps - warm_steps)
    if training.schedule == "multi_step":
        return float(peak * training.gamma ** sum(m <= done for m in training.milestones))
    if training.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * rest)) / 2
    if training.schedule == "one_cycle":
        return peak * (1 - rest)
    if training.schedule == "wsd":
        return peak * min(1.0, (1 - done) / (1 - (training.milestones or (WSD_STAYS,))[0]))
    return peak
