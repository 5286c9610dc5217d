"""`chronograd compare A B`: two records side by side, or a regression gate on what changed."""

from __future__ import annotations

import click

from chronograd.cli.common import answer_options, show


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--fail-if", "conditions", multiple=True, metavar="CONDITION",
              help="Exit status 1 if B changed like this against A, such as 'step_time > 5%'. May be given again.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Also exit with 1 where a condition is too noisy to tell.")
@answer_options
def command(a: str, b: str, conditions: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Lay two records side by side: run directories or record files, predicted or measured.

    With --fail-if it is a regression gate: A is the baseline. Each may be several runs, as a folder or with commas between.
    A condition fails only if the 95 % interval of the change lies beyond its limit. NAME > LIMIT and NAME < LIMIT take
    per cent of the baseline or a difference: 'step_time > 20 ms', 'throughput < -5%', 'test_accuracy < -1 point'.

    \b
    chronograd compare runs/a runs/b
    chronograd compare runs/main runs/change --fail-if "step_time > 5%" --fail-if "memory_peak > 10%"
    """
    from chronograd.compare import answer
    from chronograd.rundir import listing

    if strict and not conditions:
        raise click.UsageError("--strict is of --fail-if.")
    if conditions:
        baseline, changed = (list(listing.records(side, each_seed=True).values()) for side in (a, b))
        compared = answer.judge(baseline, changed, conditions, strict)
    else:
        hint = "name one of them, or judge all with --fail-if"
        compared = answer.compare(*(listing.load(listing.one_run(side, hint=hint)) for side in (a, b)))
    return show(compared, as_json)
