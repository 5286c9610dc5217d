"""`compare A B`: two records next to each other, or a regression gate on what changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from chronograd.errors import InputError
from chronograd.verbs.kinds import PATH
from chronograd.verbs.request import Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.compare.answer import Comparison, GateOutcome


@dataclass(frozen=True, kw_only=True)
class Compare(Request):
    """Lay two records side by side: run directories or record files, predicted or measured.

    With --fail-if it is a regression gate: A is the baseline. Each may be several runs, as a folder or with commas between.
    A condition fails only if the 95 % interval of the change lies beyond its limit. One run of each proves only large changes, as
    it does not show how runs differ: give three of each, or more. Exit status: 0 if no condition fails, 1 if one fails, 2 for
    wrong input; what these runs cannot tell is 0, and 1 with --strict. NAME > LIMIT and NAME < LIMIT take
    per cent of the baseline or a difference: 'step_time > 20 ms', 'throughput < -5%', 'test_accuracy < -1 point'.
    """

    verb = "compare"
    examples = (
        "chronograd compare runs/a runs/b",
        'chronograd compare runs/main runs/change --fail-if "step_time > 5%" --fail-if "memory_peak > 10%"',
    )

    a: Annotated[str, PATH, Spelling(metavar="A", is_argument=True)]
    b: Annotated[str, PATH, Spelling(metavar="B", is_argument=True)]
    fail_if: Annotated[tuple[str, ...], Spelling(metavar="CONDITION")] = ()
    """Exit status 1 if B changed like this against A, such as 'step_time > 5%'. May be given again."""
    strict: Annotated[bool, Spelling(aliases=("is_strict",))] = False
    """Also exit with 1 where these runs cannot tell (inconclusive)."""

    def answer(self) -> Answer[Comparison | GateOutcome]:
        from chronograd.compare import answer, joining
        from chronograd.rundir import listing

        if not self.fail_if:
            if self.strict:
                raise InputError("--strict without a condition", "add --fail-if CONDITION")
            hint = "name one of them, or judge all with --fail-if"
            return answer.compare(*(listing.load(listing.one_run(side, hint=hint)) for side in (self.a, self.b)))
        baseline, changed = (list(listing.records(side, each_seed=True).values()) for side in (self.a, self.b))
        paths = [path for side in (self.a, self.b) for _, path in listing.runs(side, each_seed=True)]
        others = joining.runs_beside(paths, [*baseline, *changed])
        return answer.judge(baseline, changed, self.fail_if, self.strict, others)


REQUESTS = (Compare,)
