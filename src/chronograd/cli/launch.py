"""The command `chronograd launch PLATFORM JOB`: write the job's file for a platform, or run it on a cluster, check it, wait for
it, resume it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.clouds.planned import Planned
    from chronograd.launch.slurm.script import Options
    from chronograd.rundir import RunDir


CLUSTERS = ("slurm", "ray")
ACTIONS = ("status", "collect", "resume")
# For each platform, by the word of `chronograd.clouds.submission.Submission`: option, metavar, help.
TEXTS = {
    "image": ("--image", "IMAGE", "Container image with this package; for watsonx a software specification."),
    "name": ("--name", "TEXT", "Name of the job; data and network by default."),
    "instance": ("--instance", "TYPE", "Instance type; by default the largest that the job's devices fill."),
    "output": ("--output", "ADDRESS", "Final place of the run directory, such as s3://BUCKET/PATH."),
    "checkpoints": (
        "--checkpoints",
        "ADDRESS",
        "Place of the run directory during the run; it must survive interruptions.",
    ),
    "role": ("--role", "ROLE", "Role or service account of the job."),
    "project": ("--project", "ID", "Project, space, experiment or namespace."),
    "code": ("--code", "ID", "Your stored code: watsonx' model definition."),
    "framework_version": ("--framework-version", "VERSION", "Version of PyTorch or TensorFlow in the image."),
}
PAIRS = {
    "data": ("--data", "NAME=ADDRESS", "Data on the platform; `data` for data.name, `weights` for network.weights."),
    "environment": ("--env", "NAME=VALUE", "A variable of the ranks."),
    "secrets": ("--secret", "NAME=REFERENCE", "A variable from a secret of the platform."),
    "tags": ("--tag", "KEY=VALUE", "A tag or label."),
}


def platform_options(function: common.F) -> common.F:
    """Add the options of platforms, stored for `_options`, so that the command need not name each."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta.setdefault("platform", {})[option.name] = value

    kept: dict[str, Any] = {"expose_value": False, "callback": keep}
    for option in (
        click.option("--spot", is_flag=True, help="Cheaper machines that may be interrupted.", **kept),
        click.option("--restarts", type=int, help="Number of times that the platform restarts a failed job.", **kept),
        click.option("--disk", "disk_gb", type=int, help="GB of a node's disk; 100 by default.", **kept),
        click.option(
            "--max-cost", "max_cost_usd", type=float, help="Dollars; the job ends when they are spent.", **kept
        ),
        *(
            click.option(flag, word, multiple=True, metavar=of, help=text, **kept)
            for word, (flag, of, text) in PAIRS.items()
        ),
        *(click.option(flag, word, metavar=of, help=text, **kept) for word, (flag, of, text) in TEXTS.items()),
    ):
        function = option(function)
    return function


@click.command()
@click.argument("words", nargs=-1, metavar="[PLATFORM] JOB [FIELD=VALUE]... | RUN...")
@click.option("--on", "where", type=click.Choice(CLUSTERS), help="The cluster that trains JOB.")
@click.option("--dry-run", is_flag=True, help="Print the submission; write nothing.")
@click.option("--sweep", multiple=True, metavar="FIELD=A,B,...", help="One run per value; several make a grid.")
@click.option("--status", "action", flag_value="status", help="Print the progress of each RUN.")
@click.option("--collect", "action", flag_value="collect", help="Print the record of each RUN, or why it has none.")
@click.option(
    "--resume", "action", flag_value="resume", help="Submit each RUN again; it continues from its checkpoint."
)
@click.option("--wait", is_flag=True, help="Wait until all is done, then print the records.")
@click.option(
    "--out", type=common.PATH, help="Run directory; for a sweep their folder, for a platform the folder of its file."
)
@click.option("--address", help="Address of the Ray cluster, such as 10.0.0.5:6379.")
@click.option("--time", "limit", metavar="HH:MM:SS", help="Time limit of the job; on SLURM, of one allocation.")
@click.option("--partition", help="Partition of the cluster.")
@click.option("--account", help="Account to charge.")
@click.option(
    "--cpus-per-task",
    type=click.IntRange(1),
    help="Cores of a rank; by default cluster.threads, else what decoding needs.",
)
@click.option(
    "--plan",
    "plan_file",
    type=common.PATH,
    metavar="FILE",
    help="Use the choice that `plan --platforms --save FILE` made.",
)
@click.option("--interface", help="Network interface of gloo and NCCL, such as ib0.")
@click.option("--python", help="Python on the compute nodes; this one by default.")
@click.option("--sbatch", "extra", multiple=True, metavar="OPTION", help="Any option of sbatch: --sbatch=--mem=8G.")
@click.option("--submit", is_flag=True, help="Send the file of --out with the platform's own program.")
@platform_options
@common.json_option
def command(words: tuple[str, ...], where: str | None, dry_run: bool, sweep: tuple[str, ...], action: str | None,
            wait: bool, out: Path | None, address: str | None, limit: str | None, partition: str | None, account: str | None,
            cpus_per_task: int | None, plan_file: Path | None, interface: str | None, python: str | None, extra: tuple[str, ...],
            submit: bool, as_json: bool) -> None:  # fmt: skip
    """Train a job on a cluster, or write its file for a platform.

    PLATFORM is slurm, sagemaker, vertex, azureml, watsonx, skypilot, kubernetes or pytorchjob (`chronograd platforms`). Instances
    are chosen from cluster.device, cluster.count and cluster.per_node, or taken from --plan, which also names PLATFORM.

    On a cluster the job says how many devices, and how many of them a node has (cluster.count, cluster.per_node). Each run gets a run
    directory, which all nodes must see, with the script that was submitted.

    \b
    chronograd launch job.yaml --on slurm --dry-run backend=ddp cluster.count=2
    chronograd launch job.yaml --on slurm --time 01:00:00 --wait
    chronograd launch job.yaml --on slurm --sweep training.learning_rate=0.05,0.1,0.2
    chronograd launch job.yaml --on ray --address 10.0.0.5:6379 --sweep training.batch=32,64
    chronograd launch --status runs/mine
    chronograd launch --resume runs/mine --time 02:00:00
    chronograd launch kubernetes job.yaml --image lab/chronograd:0.1 --dry-run
    chronograd launch job.yaml --plan plan.json --image lab/chronograd:0.1 --out rendered
    chronograd launch skypilot job.yaml --image lab/chronograd:0.1 --out rendered --submit
    """
    if words and where is None and action is None and words[0] in CLUSTERS:
        where, words = words[0], words[1:]
    if not words:
        raise click.UsageError("Name a JOB, or RUNs to --status, --collect or --resume.")
    if action is not None:
        of_jobs = {
            "--on": where,
            "--dry-run": dry_run,
            "--sweep": sweep,
            "--out": out,
            "--plan": plan_file,
            "--submit": submit,
            "--address": address,
            "--cpus-per-task": cpus_per_task,
        }
        of_scripts = {"--time": limit, "--partition": partition, "--account": account,
                      "--interface": interface, "--python": python, "--sbatch": extra}  # fmt: skip
        refused = {**of_jobs, **(of_scripts if action != "resume" else {})}
        if given := [flag for flag, value in refused.items() if value]:
            raise click.UsageError(f"--{action} needs existing runs: leave {given[0]} out.")
        from chronograd.launch.slurm.script import Options

        _act(action, words, Options(limit, partition, account, None, interface, python, extra), wait, as_json)
        return
    plan = _plan(plan_file, where)
    if plan is not None and words and _platform(words[0]) is None:
        words = (plan.chosen.platform, *words)
    if where is None and (platform := _platform(words[0])):
        of_slurm = {"--sweep": sweep, "--wait": wait, "--address": address, "--partition": partition, "--account": account,
                    "--cpus-per-task": cpus_per_task, "--interface": interface, "--python": python, "--sbatch": extra}  # fmt: skip
        if given := [flag for flag, value in of_slurm.items() if value]:
            raise click.UsageError(f"{given[0]} is for SLURM and Ray: leave it out for {platform}.")
        _render(platform, words[1:], limit, dry_run, out, submit, as_json, plan)
        return
    if submit:
        raise click.UsageError(
            "--submit is for platforms: on a cluster, launch submits the job unless you give --dry-run."
        )
    if where is None:
        raise _no_place(words[0])
    if where == "ray" and (dry_run or address is None):
        raise click.UsageError("A sweep on Ray needs --address HOST:PORT, and has no --dry-run.")
    from chronograd.launch import answer
    from chronograd.launch.slurm.script import Options

    job = common.read_job(words[0], words[1:])
    options = Options(limit, partition, account, cpus_per_task, interface, python, extra)
    if address is not None and where == "ray":
        _print_records(answer.sweep_on_ray(job, sweep, out, address, _say), as_json)
    elif dry_run:
        text = answer.script(job, sweep, options, out)
        common.print_json({"script": text}) if as_json else common.echo(text, nl=False)
    else:
        _done(answer.submit(job, sweep, options, out, lambda text: common.echo(text, err=True)), wait, as_json)


def _no_place(word: str) -> Exception:
    """Return the error for a first word that is not a platform, if no cluster is given."""
    from chronograd.clouds import registry
    from chronograd.errors import InputError, did_you_mean

    places = [*registry.names(), *CLUSTERS]
    if Path(word).suffix or Path(word).exists():
        return click.UsageError(
            f"State where to run: --on {' or --on '.join(CLUSTERS)}, or a platform first: {', '.join(places)}."
        )
    return InputError(
        f"unknown platform {word!r}{did_you_mean(word, places)}",
        f"write `chronograd launch PLATFORM JOB`; platforms: {', '.join(places)}",
    )


def _platform(word: str) -> str | None:
    """Return the platform that a word names; None for a job file of any name."""
    from chronograd.clouds import registry

    return word if word in registry.names() and not Path(word).exists() else None


def _plan(path: Path | None, where: str | None) -> Planned | None:
    """Read the choice of a plan."""
    if path is None:
        return None
    if where is not None:
        raise click.UsageError(f"--plan is for platforms: leave it out for {where}.")
    from chronograd.clouds import planned

    return planned.read(path)


def _render(
    platform: str,
    words: Sequence[str],
    limit: str | None,
    dry_run: bool,
    out: Path | None,
    submit: bool,
    as_json: bool,
    plan: Planned | None,
) -> None:
    from chronograd.clouds import registry, rendering

    if not words:
        raise click.UsageError(f"Name a JOB for {platform}.")
    if submit and (dry_run or out is None):
        raise click.UsageError("--submit sends the file of --out FOLDER: give that, and not --dry-run.")
    if not dry_run and out is None:
        raise click.UsageError(
            "Write --dry-run to print the file, or --out FOLDER to write it, and --submit to send it."
        )
    if submit:
        rendering.check_sendable(platform)
    job, options = common.read_job(words[0], words[1:]), _options(limit)
    if plan is not None:
        job = common.read_job(words[0], [*plan.fields(job), *words[1:]])
        own = plan.options(registry.platform(platform).catalogue)
        options = {**own, **options, "spot": own["spot"] or options.get("spot", False)}
    made = rendering.rendered(platform, job, options)
    path = None if dry_run or out is None else rendering.write(made, out)
    answer = rendering.send(made, path) if submit and path else None
    lines = [*made.lines(answer), *([plan.line()] if plan else [])]
    if as_json:
        said = {"platform": platform, "file": path and str(path), "text": made.text, "lines": lines}
        common.print_json({**said, "answer": answer} if submit else said)
        return
    common.echo(made.text if path is None else f"saved {path}", nl=path is not None)
    for line in lines:
        common.echo(line, err=True)


def _options(limit: str | None) -> dict[str, Any]:
    """Return the options of platforms, by the words of a submission."""
    given = dict(click.get_current_context().meta.get("platform", {}))
    for word, (flag, of, _) in PAIRS.items():
        pairs = [text.partition("=") for text in given[word]]
        if wrong := [name for name, sign, _ in pairs if not sign or not name]:
            raise click.UsageError(f"cannot read {flag} {wrong[0]!r}; write {of}")
        given[word] = {name: value for name, _, value in pairs}
    given["limit_s"] = None if limit is None else _seconds(limit)
    return {word: value for word, value in given.items() if value is not None}


def _seconds(text: str) -> int:
    """Return the seconds of HH:MM:SS, MM:SS or minutes, as SLURM reads them.

    >>> _seconds("01:30:00"), _seconds("90")
    (5400, 5400)
    """
    parts = text.split(":")
    if len(parts) > 3 or not all(part.isdigit() and len(part) < 7 for part in parts):
        raise click.UsageError(f"cannot read --time {text!r}; write HH:MM:SS")
    hours, minutes, seconds = (0, int(parts[0]), 0) if len(parts) == 1 else [0, 0, *map(int, parts)][-3:]
    return (hours * 60 + minutes) * 60 + seconds


def _say(name: str, state: str, why: str) -> None:
    common.echo(" ".join(filter(None, (name, state, why))), err=True)


def _act(action: str, paths: Sequence[str], options: Options, wait: bool, as_json: bool) -> None:
    from chronograd.launch import answer, slurm
    from chronograd.rundir import RunDir

    runs = [RunDir.open(path) for path in paths]
    if action == "resume":
        for run in runs:
            slurm.submit(run, options)
        _done(runs, wait, as_json)
    elif action == "collect":
        _print_records([(slurm.wait if wait else slurm.collect)(run) for run in runs], as_json)
    else:
        for run in runs if wait else ():
            slurm.wait(run)
        common.show(answer.states(runs), as_json)


def _done(runs: Sequence[RunDir], wait: bool, as_json: bool) -> None:
    """Print the places of launched runs; with `wait`, print them at once, and the records when the runs have ended."""
    from chronograd.launch import answer, slurm
    from chronograd.report import terminal

    if not wait:
        common.show(answer.states(runs), as_json)
        return
    terminal.show(answer.states(runs), sys.stderr)
    for run in runs:
        slurm.wait(run)
    _print_records(runs, as_json)


def _print_records(runs: Sequence[RunDir], as_json: bool) -> None:
    if as_json:
        common.print_json([common.run_data(run) for run in runs])
        return
    for run in runs:
        common.echo(f"run: {run.path}", err=True)
        common.print_record(run.record())
