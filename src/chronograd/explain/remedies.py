"""Remedies for a cause and their gains, from the seconds of the run and its predicted exchange.

Times are for the samples of one current step, so that remedies with larger steps can be compared. causes.py names
the remedies of each cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from chronograd.explain.evidence import Evidence
from chronograd.explain.exchange import exchange_of
from chronograd.explain.split import Split
from chronograd.hardware import catalog
from chronograd.predict.collectives import ring
from chronograd.units import seconds

# The minimum gain of a remedy, and the maximum number of remedies of a cause.
MIN_GAIN = 0.05
MAX_REMEDIES = 4
# Batches between two exchanges; runs that share one start.
ACCUMULATED, SHARED_STARTS = 4, 4
# A usual data centre link, used if the ranks have a slower one.
FASTER_LINK = "ethernet-10g"


@dataclass(frozen=True)
class Remedy:
    """A remedy and its gain.

    Attributes:
        what: in words. `how`: the fields of a job, or the call in a custom loop.
        before_s, after_s: seconds for the samples of one step (or for `per`), now and with the remedy.
    """

    what: str
    how: str
    before_s: float
    after_s: float
    per: Literal["step", "run"] = "step"

    @property
    def gain(self) -> float:
        """Return the share of the time that it saves."""
        return 1 - self.after_s / self.before_s

    def text(self) -> str:
        """Return the remedy and its gain in words.

        >>> Remedy("accumulate 4 batches", "training.accumulation=4", 1.34, 0.56).text()
        'accumulate 4 batches: 1.34 s → 560 ms (training.accumulation=4)'
        """
        return f"{self.what}: {seconds(self.before_s)} → {seconds(self.after_s)} ({self.how})"


def ranked(remedies: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Return the worthwhile remedies, best first."""
    worth = [remedy for remedy in remedies if remedy.gain >= MIN_GAIN]
    return tuple(sorted(worth, key=lambda remedy: -remedy.gain)[:MAX_REMEDIES])


def slow_link(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Exchange less often, less, or over a better link. The update comes as often as the exchange.

    If the network of the run is known, the model predicts how much then hides behind backward. Otherwise, gradients half as
    large save at least half of the wait, and over a better link the whole exchange is exposed.
    """
    step_s, exposed_s = run.step_time_s, float(np.median(run.exposed_K))
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    if devices and not any(device.exchanges_gradients for device in devices):
        hidden = "overlap communication with computation (upper bound)"
        return _saves(hidden, "start it early, asynchronously, and wait where its result is needed", run, cost)
    update_s, size = run.update_s, run.first.work.gradient_bytes
    model = exchange_of(run)
    found = [
        Remedy(
            f"exchange once in {ACCUMULATED} batches",
            _either(run, f"training.accumulation={ACCUMULATED} training.batch={ACCUMULATED * (run.job.training.batch or 0):g}",
                    "model.no_sync() around the others"),
            step_s,
            step_s - (1 - 1 / ACCUMULATED) * (exposed_s + update_s),
        )
    ]  # fmt: skip
    if _compression(run) != "fp16":
        hook = "model.register_comm_hook(None, default_hooks.fp16_compress_hook)"
        how = _either(run, "communication.compression=fp16", hook)
        half_s = exposed_s / 2 if model is None else model.exposed_s(sent_share=0.5)
        found.append(Remedy("send gradients in fp16", how, step_s, step_s - exposed_s + half_s))
    if size and not run.is_on_one_host:
        link = catalog.link(FASTER_LINK)
        share = 0.5 if _compression(run) == "fp16" else 1.0
        whole_s = float(ring(size, run.world, link.latency_s, link.bandwidth_bytes_per_s))
        exchange_s = whole_s if model is None else model.exposed_s(link, share)
        after_s = step_s - max(0.0, exposed_s - exchange_s)
        found.append(Remedy("10 Gbit/s between the hosts", f"cluster.link={FASTER_LINK}", step_s, after_s))
    return found + _larger_batch(run, split, exposed_s)


def small_batch(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return the batch that was tried at the end of the run; for a profile, ways to launch larger pieces of work."""
    tried = [rank.what_if_batch for rank in run.ranks.values() if rank.what_if_batch]
    if not tried:
        return _saves("a larger batch, torch.compile or CUDA graphs", "saves at most the cost of launches", run, cost)
    return _saves(*_larger(run, tried[0].times), run, cost)


def idle_device(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return ways to keep a device busy: fewer launches, or none to wait for."""
    devices = [rank.device for rank in run.ranks.values() if rank.device is not None]
    waited_s, launched_s = (
        sum(getattr(device, name) for device in devices) for name in ("synchronizing_s", "launching_s")
    )
    whole_s = max(waited_s + launched_s, 1e-12)
    fewer = _saves("a larger batch, torch.compile or CUDA graphs", "saves at most the cost of launches", run,
                   None if cost is None else cost * launched_s / whole_s)  # fmt: skip
    return fewer + _saves("let the host run ahead (upper bound)", "no .item(), .cpu(), print or synchronize in each step", run,
                          None if cost is None else cost * waited_s / whole_s)  # fmt: skip


def _larger(run: Evidence, times: int) -> tuple[str, str]:
    """Return a larger batch, in words, and how to set it."""
    how = _either(run, f"training.batch={times * (run.job.training.batch or 0):g}", "batch_size of the loader")
    return f"a batch {times:g} times as large, if memory holds it", how


def _larger_batch(run: Evidence, split: Split, exposed_s: float) -> list[Remedy]:
    """Return the tried batch: forward and backward take the measured times; update and exchange stay the same."""
    tried = [rank.what_if_batch for rank in run.ranks.values() if rank.what_if_batch]
    if not tried or tried[0].times < 2:
        return []
    times = tried[0].times
    small_s, large_s = (float(np.median([getattr(p, name) for p in tried])) for name in ("seconds", "larger_seconds"))
    computing_s = max(0.0, (split.computation_s.value or 0.0) - run.update_s)
    saved_s = computing_s * (1 - min(1.0, large_s / times / max(small_s, 1e-9)))
    saved_s += (1 - 1 / times) * (exposed_s + run.update_s)
    return [Remedy(*_larger(run, times), run.step_time_s, run.step_time_s - saved_s)]


def slow_worker(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return two ways: the same host for all, or batches in proportion to the speed of each."""
    own_R = np.array([float(np.median(rank.own_s)) for rank in run.ranks.values()])
    if len(own_R) < 2:
        return []
    step_s, slowest = run.step_time_s, int(np.argmax(own_R))
    others_s = float(np.median(np.delete(own_R, slowest)))
    number = list(run.ranks)[slowest]
    balanced_s = len(own_R) / float(np.sum(1 / np.maximum(own_R, 1e-9)))
    lost_s = float(own_R[slowest])
    return [
        Remedy(f"give rank {number} a host like the others", "free it of other work, or replace it", step_s,
               step_s - (lost_s - others_s)),
        Remedy(f"give rank {number} a smaller batch, as it is slower", "batches in proportion to speed; weigh gradients by them",
               step_s, step_s - (lost_s - balanced_s)),
    ]  # fmt: skip


def input_bound(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return ways to prepare batches during the step, with more processes, or to store them in memory."""
    step_s, input_s = run.step_time_s, split.input_s.value or 0.0
    rest_s, workers = step_s - input_s, run.first.work.workers
    found = [
        Remedy("keep the data in memory", _either(run, "data.loading=resident", "a dataset of tensors"), step_s, rest_s)
    ]
    if workers is None:
        return found
    # Without workers, the main process takes `input_s` for a batch; with workers, all together deliver one batch in a step.
    cores = run.first.start.cores or run.cores
    more = max(2 * workers, 2)
    if cores is None or more * run.ranks_here <= cores:
        batch_s = (input_s if workers == 0 else step_s * workers) / more
        how = _either(run, f"{more} loader workers", f"DataLoader(num_workers={more}, persistent_workers=True)")
        found.append(Remedy(f"{more} loader workers instead of {workers}", how, step_s, max(rest_s, batch_s)))
    return found


def too_many_threads(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return the number of threads that was tried at the end of the run."""
    tried = [rank.what_if_threads for rank in run.ranks.values() if rank.what_if_threads is not None]
    if not tried:
        return []
    fair = tried[0].fair_threads
    how = _either(run, f"cluster.threads={fair}", f"OMP_NUM_THREADS={fair}, or torch.set_num_threads({fair})")
    return _saves(f"{fair} thread{'s' * (fair > 1)} for each rank", how, run, cost)


def stall(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return how to avoid the longest stall."""
    stalls = run.stalls_in_training.found
    if not stalls or not run.wall_s:
        return []
    longest = max(stalls, key=lambda stall: stall.seconds)
    what, how = {
        "stopped": (
            "make sure that no process is stopped",
            "a debugger, a suspended machine, a frozen container, kill -STOP",
        ),
        "link": ("repair the link", "check that the hosts at both ends reach each other"),
        "rank": (
            "find the reason for that rank's wait",
            "its disk or network file system; data.loading=resident reads once",
        ),
        "waiting": ("find the silent link or rank", "logs of the network and of the hosts at that time"),
    }[longest.reason]
    return [Remedy(what, how, run.wall_s, max(0.0, run.wall_s - run.stalls_in_training.seconds), "run")]


def start_up(run: Evidence, split: Split, cost: float | None) -> list[Remedy]:
    """Return one start for several runs."""
    startup_s, wall_s = split.startup_s.value, run.wall_s
    if startup_s is None or not wall_s:
        return []
    what = f"start once for {SHARED_STARTS} runs"
    return [Remedy(what, "train longer, or several settings in one process", startup_s + wall_s,
                   wall_s + startup_s / SHARED_STARTS, "run")]  # fmt: skip


def saves(what: str, of_loop: str, of_job: str = "") -> Callable[[Evidence, Split, float | None], list[Remedy]]:
    """Return the remedies of a cause that have the same words in every run and save its full cost."""
    return lambda run, split, cost: _saves(what, _either(run, of_job or of_loop, of_loop), run, cost)


def _saves(what: str, how: str, run: Evidence, cost: float | None) -> list[Remedy]:
    """Return a remedy that saves the full cost of its cause."""
    return [] if cost is None else [Remedy(what, how, run.step_time_s, run.step_time_s * (1 - cost))]


def _either(run: Evidence, of_job: str, of_loop: str) -> str:
    """Return the way for a job that Chronograd runs, or for a custom loop."""
    return of_job if run.job.network.name else of_loop


def _compression(run: Evidence) -> str:
    return str((run.job.model_dump().get("communication") or {}).get("compression", ""))
