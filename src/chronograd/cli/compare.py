"""`chronograd compare A B`: two records side by side, or a regression gate on what changed."""

from __future__ import annotations

import click

from chronograd.cli.common import answer_options, show


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--fail-if", "conditions", multiple=True, metavar="CONDITION",
              help="Exit status 1 if B changed like this against A, such as 'step_time > 5%'. May be given again.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Also exit with 1 where these runs cannot tell (inconclusive).")
@answer_options
def command(a: str, b: str, conditions: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Lay two records side by side: run directories or record files, predicted or measured.

    With --fail-if it is a regression gate: A is the baseline. Each may be several runs, as a folder or with commas between.
    A condition fails only if the 95 % interval of the change lies beyond its limit. One run of each proves only large changes, as
    it does not show how runs differ: give three of each, or more. Exit status: 0 if no condition fails, 1 if one fails, 2 for
    wrong input; what these runs cannot tell is 0, and 1 with --strict. NAME > LIMIT and NAME < LIMIT take
    per cent of the baseline or a difference: 'step_time > 20 ms', 'throughput < -5%', 'test_accuracy < -1 point'.

    \b
    chronograd compare runs/a runs/b
    chronograd compare runs/main runs/change --fail-if "step_time > 5%" --fail-if "memory_peak > 10%"
    """
    from chronograd.compare import answer, joining
    from chronograd.rundir import listing

    if strict and not conditions:
        raise click.UsageError("--strict is of --fail-if.")
    if conditions:
        baseline, changed = (list(listing.records(side, each_seed=True).values()) for side in (a, b))
        paths = [path for side in (a, b) for _, path in listing.runs(side, each_seed=True)]
        others = joining.runs_beside(paths, [*baseline, *changed])
        compared = answer.judge(baseline, changed, conditions, strict, others)
    else:
        hint = "name one of them, or judge all with --fail-if"
        compared = answer.compare(*(listing.load(listing.one_run(side, hint=hint)) for side in (a, b)))
    return show(compared, as_json)
