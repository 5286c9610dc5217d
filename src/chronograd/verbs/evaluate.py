"""`evaluate RUN|JOB|NETWORK`: the accuracy of a network on test images, per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.request import Request, Spelling
from chronograd.verbs.screen import waiting

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Evaluate(Request):
    """Measure accuracy on test images; for a detector, the average precision of each class.

    A classifier gets its accuracy, overall and by class, with 95 % intervals. A detector gets its average precision, by the
    11-point metric of VOC 2007 and as the area under the curve. A RUN uses its newest weights, and FIELDs change its data. A
    JOB or NETWORK uses the weights that network.weights names, without training.
    """

    verb = "evaluate"
    examples = (
        "chronograd evaluate runs/cells",
        "chronograd evaluate runs/cells data.name=voc:other-cells --json",
        "chronograd evaluate cells.yaml network.weights=ssd.pth data.name=voc:others",
        "chronograd evaluate resnet20 network.weights=resnet20.pth --data cifar10",
    )

    what: Annotated[str, Spelling(metavar="RUN|JOB|NETWORK", is_argument=True, complete=complete_jobs)]
    fields: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    data: Annotated[str | None, Spelling(metavar="NAME")] = None
    """Data set: `chronograd data --list`."""

    def answer(self) -> Answer:
        from chronograd import ask
        from chronograd.rundir import run_named
        from chronograd.train.evaluating import evaluate, evaluate_job
        from chronograd.train.labelling import data_of

        short = {"data": self.data}
        run = run_named(self.what)
        if run is not None:
            data = data_of(run, [*ask.as_overrides(short), *self.fields])
            with waiting("evaluating"):
                return evaluate(run, data)
        job = ask.job_of(self.what, self.fields, short)
        with waiting("evaluating"):
            return evaluate_job(job, self.what)


REQUESTS = (Evaluate,)
