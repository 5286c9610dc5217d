"""`compare A B`: two records next to each other, or a regression gate; `compare jobs`: two jobs, measured alternately and
gated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, PATH, complete_jobs
from chronograd.verbs.request import Request, Spelling
from chronograd.verbs.screen import say

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.compare.answer import Comparison, GateOutcome


@dataclass(frozen=True, kw_only=True)
class Compare(Request):
    """Show two records next to each other: run directories or record files, predicted or measured.

    With --fail-if it is a regression gate, and A is the baseline. Each side may be several runs: a folder, or names with
    commas. A condition fails only if the 95 % interval of the change lies beyond its limit. One run of each proves only large
    changes, because it does not show the variation between runs. Give at least three of each, or let `compare jobs` measure
    them.

    A condition is a figure, > or <, and a limit: a percentage of the baseline, as in 'throughput < -5%', or a difference, as in
    'step_time > 20 ms' or 'test_accuracy < -1 point'.

    Exit status: 0 if no condition fails, 1 if one fails, 2 for wrong input. Inconclusive runs give 0, or 1 with --strict.
    """

    verb = "compare"
    examples = (
        "chronograd compare runs/a runs/b",
        'chronograd compare runs/main runs/change --fail-if "step_time > 5%" --fail-if "memory_peak > 10%"',
    )

    a: Annotated[str, PATH, Spelling(metavar="A", is_argument=True)]
    b: Annotated[str, PATH, Spelling(metavar="B", is_argument=True)]
    fail_if: Annotated[tuple[str, ...], Spelling(metavar="CONDITION")] = ()
    """Exit with status 1 if B changed like this against A, such as 'step_time > 5%'. May be given several times."""
    strict: Annotated[bool, Spelling(aliases=("is_strict",))] = False
    """Also exit with 1 if the runs are inconclusive."""
    paired: bool = False
    """The runs of A and B alternated: the first of each are a pair, and so on. The gate judges the change of each pair."""

    def answer(self) -> Answer[Comparison | GateOutcome]:
        from chronograd.compare import answer, joining
        from chronograd.rundir import listing

        if not self.fail_if:
            for name in ("strict", "paired"):
                if getattr(self, name):
                    raise InputError(f"--{name} without a condition", "add --fail-if CONDITION")
            hint = "name one of them, or judge all with --fail-if"
            return answer.compare(*(listing.load(listing.one_run(side, hint=hint)) for side in (self.a, self.b)))
        baseline, changed = (list(listing.records(side, each_seed=True).values()) for side in (self.a, self.b))
        paths = [path for side in (self.a, self.b) for _, path in listing.runs(side, each_seed=True)]
        others = [] if self.paired else joining.runs_beside(paths, [*baseline, *changed])
        return answer.judge(baseline, changed, self.fail_if, self.strict, others, self.paired)


@dataclass(frozen=True, kw_only=True)
class CompareJobs(Request):
    """Measure two jobs alternately, round by round, and gate on the change of each round.

    A is the baseline. A round measures both jobs once; every second round begins with B, so a slowdown of both runs of a round
    does not count as a change. The same command with the same --out continues after an interruption, and a larger --rounds adds
    rounds. The exit status is that of `compare --fail-if`.
    """

    verb = "compare jobs"
    examples = (
        "chronograd compare jobs main.yaml change.yaml --rounds 5",
        'chronograd compare jobs a.yaml b.yaml training.batch=64 --out runs/ab --fail-if "throughput < -5%"',
    )

    a: Annotated[Any, Spelling(metavar="A", is_argument=True, complete=complete_jobs)]
    b: Annotated[Any, Spelling(metavar="B", is_argument=True, complete=complete_jobs)]
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    rounds: Annotated[int, click.IntRange(3)] = 5
    """Number of measurements of each job."""
    fail_if: Annotated[tuple[str, ...], Spelling(metavar="CONDITION")] = ()
    """A condition as for `compare`; 'step_time > 5%' by default. May be given several times."""
    strict: Annotated[bool, Spelling(aliases=("is_strict",))] = False
    """Also exit with 1 if the runs are inconclusive."""
    steps: Annotated[int | None, click.IntRange(1), Spelling(aliases=("num_steps",))] = None
    """Steps to time in a run; default 30, or 200 batches in inference."""
    warmup: Annotated[int, click.IntRange(1)] = 5
    """Warm-up steps before timing."""
    seconds: Annotated[float, ABOVE_0] = 60.0
    """Maximum time of a run."""
    out: Annotated[str | None, click.Path()] = None
    """Folder for the runs, a/round-1, b/round-1 and so on; a new one in runs/ by default."""

    def answer(self) -> Answer:
        from chronograd import ask
        from chronograd.bench.rounds import measure_rounds
        from chronograd.compare import answer, gate
        from chronograd.launch import jobs as launched
        from chronograd.measure.result import Timing

        conditions = self.fail_if or (DEFAULT_CONDITION,)
        for text in conditions:
            gate.read_condition(text)  # check before measuring
        a, b = (ask.job_of(one, self.overrides) for one in (self.a, self.b))
        timing = Timing(self.warmup, self.steps or launched.usual_steps(a), self.seconds)
        rounds = measure_rounds(a, b, self.rounds, out=self.out, say=say, timing=timing)
        judged = answer.judge(rounds.a, rounds.b, conditions, self.strict, is_paired=True)
        return replace(judged, data={**judged.data, "folder": str(rounds.folder), "rounds": len(rounds.a)})

    def after(self, answer: Answer, as_json: bool) -> None:
        if not as_json:
            click.echo(f"runs: {answer.data['folder']}")


DEFAULT_CONDITION = "step_time > 5%"
REQUESTS = (Compare, CompareJobs)
