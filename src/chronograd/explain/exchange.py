"""The gradient exchange of a run with a known network, by the model of `predict`.

Forward, backward and update times are those of the run. The network determines when each gradient is ready. The link is fitted
so that the model gives the wait of the run. The model then shows how much hides behind backward with less data or a faster
link.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chronograd import job as jobs
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.explain.evidence import Evidence
from chronograd.hardware.catalog import Link
from chronograd.predict.collectives import Topology
from chronograd.predict.prediction import rank_work
from chronograd.predict.scaling import Packing, exchange
from chronograd.predict.setting import setting_of
from chronograd.trace import Trace

BANDWIDTHS = 1e3, 1e13  # bytes per second; the search range for the link of a run
HALVINGS = 60


@dataclass(frozen=True)
class Exchange:
    """The exchange of a run.

    Attributes: times: of the operators of the trace, scaled to `backward_s`. link: reproduces the wait of the run.
    """

    trace: Trace
    times: np.ndarray
    backward_s: float
    world: int
    bucket_bytes: int | None
    link: Link

    def exposed_s(self, link: Link | None = None, sent_share: float = 1.0) -> float:
        """Return the exposed exchange time over a link, for a share of the bytes."""
        used = link or self.link
        topology = Topology(self.world, 1, used, used)
        packing = Packing(self.bucket_bytes, sent_share)
        return float(exchange(self.trace, self.times, self.backward_s, topology, "ring", 1.0, packing).exposed_s)


def exchange_of(run: Evidence) -> Exchange | None:
    """Return the exchange of a run; None if its network or device is unknown, or no link explains its wait."""
    wait_s = float(np.median(run.exposed_K))
    backward_s = float(np.median(run.first.parts.get("backward_s", np.zeros(1)))) - wait_s
    if not run.job.network.name or run.world < 2 or backward_s <= 0:
        return None
    try:
        job = jobs.from_dict(run.job.model_dump(), run.name)
        trace = trace_job(job)
        times, _ = rank_work(trace, job.images_per_rank, setting_of(job))
    except ChronogradError:
        return None
    unknown = Link(name="run", title="the run's own", bandwidth_bytes_per_s=1.0, latency_s=0.0)
    model = Exchange(trace, times, backward_s, run.world, job.communication.bucket_bytes, unknown)
    slow, fast = np.log(BANDWIDTHS)
    share = 0.5 if job.communication.compression == "fp16" else 1.0
    for _ in range(HALVINGS):
        middle = (slow + fast) / 2
        link = unknown.model_copy(update={"bandwidth_bytes_per_s": float(np.exp(middle))})
        slow, fast = (slow, middle) if model.exposed_s(link, share) < wait_s else (middle, fast)
    found = replace(model, link=link)
    return found if abs(found.exposed_s(sent_share=share) - wait_s) <= 0.05 * wait_s else None
