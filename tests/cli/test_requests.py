"""Verbs are declared once, so the command line and Python give the same answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

import chronograd
from chronograd import api
from chronograd import job as jobs
from chronograd.cli.commands import command_of_module
from chronograd.cli.main import main
from chronograd.errors import InputError
from chronograd.trace import Trace
from chronograd.verbs import launch, plan
from chronograd.verbs.request import Request, made, params_of

INPUTS = Path(__file__).parents[1] / "golden" / "inputs"
NET = str(INPUTS / "net.json.gz")

QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "count lenet5 --batch 8": ("count", {"network": "lenet5", "batch": 8}),
    "predict job.yaml --trace net.json.gz --on v100 --on t4": ("predict", {"job": "job.yaml", "trace": NET, "on": ["v100", "t4"]}),
    "predict job.yaml --trace net.json.gz --on v100 --precision fp16 training.batch=32": (
        "predict", {"job": "job.yaml", "overrides": ["training.batch=32"], "trace": NET, "on": "v100", "precision": "fp16"}),
    "predict scaling job.yaml --trace net.json.gz --on v100 --kind weak --counts 1,2": (
        "predict_scaling", {"job": "job.yaml", "trace": NET, "on": "v100", "kind": "weak", "counts": [1, 2]}),
    "predict server job.yaml --trace asked.json.gz --on t4 --rate 100 --p99 50ms": (
        "predict_server", {"job": "job.yaml", "trace": str(INPUTS / "asked.json.gz"), "on": "t4", "rate": 100, "p99": 0.05}),
    "plan job.yaml --trace net.json.gz --on v100 --counts 1,2": (
        "plan", {"job": "job.yaml", "trace": NET, "on": ["v100"], "counts": (1, 2)}),
    "plan inference job.yaml --trace asked.json.gz --on t4 --latency 10ms": (
        "plan_inference", {"job": "job.yaml", "trace": str(INPUTS / "asked.json.gz"), "on": ["t4"], "latency": 0.010}),
    "plan batch job.yaml --trace net.json.gz --on v100 --memory 2GB": (
        "plan_batch", {"job": "job.yaml", "trace": NET, "on": "v100", "memory": 2 * 10**9}),
    "plan job.yaml --trace net.json.gz --on v100 --budget 50 --deadline 6h --epochs-to-target 5": (
        "plan", {"job": "job.yaml", "trace": NET, "on": "v100", "budget": 50, "deadline": 6 * 3600, "epochs_to_target": 5}),
    "compare measured-1 measured-2": ("compare", {"a": "measured-1", "b": "measured-2"}),
    "explain measured-1 measured-2": ("explain", {"runs": ["measured-1", "measured-2"]}),
    "fit loss accuracy.csv --metric accuracy --to 0.9": (
        "fit_loss", {"source": "accuracy.csv", "metric": "accuracy", "to": 0.9}),
    "judge resnet50 --on v100 --precision fp32 '350 images/s'": (
        "judge", {"words": ["resnet50", "350 images/s"], "on": "v100", "precision": "fp32"}),
    "devices v100": ("devices", {"name": "v100"}),
    "launch kubernetes job.yaml training.epochs=2 --image i:1 --env A=b=c --time 1:00 --dry-run": (
        "launch", {"words": ["kubernetes", "job.yaml", "training.epochs=2"], "image": "i:1", "env": {"A": "b=c"}, "time": 60,
                   "dry_run": True}),
    "launch slurm job.yaml cluster.count=2 backend=ddp --sweep training.batch=32,64 --python python3 --dry-run": (
        "launch_slurm", {"job": "job.yaml", "overrides": ["cluster.count=2", "backend=ddp"], "sweep": "training.batch=32,64",
                         "python": "python3", "dry_run": True}),
    "launch collect measured-1 measured-2": ("launch_collect", {"runs": ["measured-1", "measured-2"]}),
    "study list": ("study_list", {}),
}  # fmt: skip


@pytest.mark.parametrize("line", QUESTIONS)
def test_python_answer_equals_the_command_lines(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(INPUTS)
    name, arguments = QUESTIONS[line]
    many = [field for field, param in params_of(api.requests()[name]).items() if isinstance(param, click.Argument)]
    words = [
        word
        for field in many
        if field in arguments
        for word in ([arguments[field]] if isinstance(arguments[field], str) else arguments[field])
    ]
    answer = getattr(chronograd, name)(*words, **{key: value for key, value in arguments.items() if key not in many})
    assert main([*shlex.split(line), "--json"]) == answer.exit_status
    assert without_time(json.loads(capsys.readouterr().out)) == without_time(json.loads(json.dumps(answer.as_data())))


def without_time(data: Any) -> Any:
    """Return the data of an answer without the time at which a record was made."""
    if isinstance(data, dict):
        return {key: without_time(value) for key, value in data.items() if key != "created"}
    return [without_time(value) for value in data] if isinstance(data, list) else data


OLD = {
    "plan job.yaml --trace net.json.gz --largest-batch --on v100": "plan batch job.yaml --trace net.json.gz --on v100",
    "plan job.yaml --inference --trace asked.json.gz --on t4 --latency 9ms": "plan inference job.yaml --trace asked.json.gz --on t4 --latency 9ms",
    "plan job.yaml mode=inference --trace asked.json.gz --on t4": "plan inference job.yaml --trace asked.json.gz --on t4",
    "predict job.yaml --trace net.json.gz --on v100 --scaling weak --counts 1,2": "predict scaling job.yaml --trace net.json.gz --on v100 --kind weak --counts 1,2",
    "predict job.yaml --trace asked.json.gz --serve --rate 50 --on t4": "predict server job.yaml --trace asked.json.gz --rate 50 --on t4",
    "launch job.yaml --on slurm --dry-run": "launch slurm job.yaml --dry-run",
    "launch --dry-run slurm job.yaml": "launch slurm job.yaml --dry-run",
    "launch --collect measured-1": "launch collect measured-1",
}


@pytest.mark.parametrize("old", OLD)
def test_old_spellings_still_work(
    old: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(INPUTS)
    assert main([*shlex.split(old), "--json"]) == 0
    before = capsys.readouterr().out
    assert main([*shlex.split(OLD[old]), "--json"]) == 0
    assert without_time(json.loads(before)) == without_time(json.loads(capsys.readouterr().out))


OLD_LAUNCHES = {
    "job.yaml --on slurm --time 01:00:00 --wait": "slurm job.yaml --time 01:00:00 --wait",
    "--on=slurm job.yaml --sbatch=--mem=8G": "slurm job.yaml --sbatch=--mem=8G",
    "job.yaml --on ray --address a:6379 --sweep training.batch=32,64": "ray job.yaml --address a:6379 --sweep training.batch=32,64",
    "--status runs/a runs/b": "status runs/a runs/b",
    "runs/a --status --wait": "status runs/a --wait",
    "--collect runs/a": "collect runs/a",
    "--resume runs/a --time 02:00:00": "resume runs/a --time 02:00:00",
    "--wait slurm job.yaml": "slurm job.yaml --wait",
    "kubernetes job.yaml --name slurm": "kubernetes job.yaml --name slurm",
}  # fmt: skip


@pytest.mark.parametrize("old", OLD_LAUNCHES)
def test_an_old_spelling_of_launch_is_the_same_request(old: str) -> None:
    before, now = (
        command_of_module(launch).make_context("launch", shlex.split(line)) for line in (old, OLD_LAUNCHES[old])
    )
    assert (before.command.name, before.params) == (now.command.name, now.params)


def test_a_launched_job_may_be_one_of_python() -> None:
    job = jobs.load(INPUTS / "job.yaml")
    made = chronograd.launch("kubernetes", job, image="i:1", dry_run=True)
    assert (
        made.result.text == chronograd.launch("kubernetes", INPUTS / "job.yaml", image="i:1", dry_run=True).result.text
    )
    assert "#SBATCH --ntasks=1\n" in chronograd.launch_slurm(job, dry_run=True).result.script
    with pytest.raises(InputError, match="`chronograd launch slurm JOB`"):
        chronograd.launch("slurm", job)
    with pytest.raises(InputError, match=r"env=\['A'\]: cannot read 'A'; write NAME=VALUE"):
        chronograd.launch("kubernetes", job, env=["A"])


def test_missing_argument_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("plan", "plan batch", "launch slurm", "compare a", "launch status"):
        assert main(line.split()) == 2
        assert "Missing argument" in capsys.readouterr().err, line


def test_old_python_arguments_still_work() -> None:
    trace = Trace.load(INPUTS / "asked.json.gz")
    job = str(INPUTS / "job.yaml")
    new = chronograd.plan_inference(job, trace=trace, on=["t4"], latency=0.01)
    assert chronograd.plan(job, "mode=inference", trace=trace, on=["t4"], latency_s=0.01).data == new.data
    assert chronograd.plan(job, mode="inference", trace=trace, on=["t4"], latency="10ms").data == new.data
    largest = chronograd.plan_batch(job, trace=Trace.load(NET), on="v100")
    assert chronograd.plan(job, trace=Trace.load(NET), on="v100", largest_batch=True).data == largest.data


@pytest.mark.parametrize("request_", api.requests().values(), ids=lambda request: request.verb)
def test_defaults_come_from_the_declaration(request_: type[Request]) -> None:
    """click's default of an option equals the default of the field."""
    command = command_of_module(plan) if request_ in plan.REQUESTS else None
    assert command is None or command.name == "plan"
    for name, param in params_of(request_).items():
        field = request_.__dataclass_fields__[name]
        if isinstance(param, click.Option) and not param.required and field.default is not None:
            assert param.get_default(click.Context(click.Command("x"))) == field.default, name
        assert not isinstance(param, click.Option) or param.hidden or param.help or param.name in NO_HELP, name


# Options with a self-explanatory name.
NO_HELP = {"mode", "loss", "layout", "metric", "seed", "ppp"}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"counts": [0]}, "write whole numbers"),
        ({"counts": "1,two"}, "write whole numbers"),
        ({"confidence": 2}, "not in the range"),
        ({"budget": -1}, "budget"),
        ({"precisions": ["fp31"]}, "unknown precision 'fp31'"),
        ({"prices": "cheap"}, "prices"),
    ],
)
def test_python_and_command_line_refuse_the_same(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        made(plan.Plan, ["resnet50"], options)


def test_unknown_argument_is_reported() -> None:
    with pytest.raises(TypeError, match=r"plan\(\) has no argument 'budgt'; did you mean 'budget'"):
        made(plan.Plan, ["resnet50"], {"budgt": 50})
    with pytest.raises(TypeError, match=r"plan\(\) needs 'job'"):
        made(plan.Plan, [], {})


def test_inference_job_file_equals_plan_inference(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text((INPUTS / "job.yaml").read_text() + "\nmode: inference\n")
    trace = str(INPUTS / "asked.json.gz")
    plain = chronograd.plan(str(job), trace=trace, on=["t4"], latency="10ms", batches=[1, 2])
    assert plain.data == chronograd.plan_inference(str(job), trace=trace, on=["t4"], latency=0.01, batches=[1, 2]).data
    with pytest.raises(InputError, match="--budget applies to training"):
        chronograd.plan(str(job), trace=trace, on=["t4"], budget=50)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--budget", "--to", "75%"],
            "cannot read the amount '--to': the shell removes an unquoted $5; write '$50' or 50",
        ),
        (["--budget"], "Option '--budget' requires an argument: the shell removes an unquoted $5; write '$5' or 5."),
        (["--budget", "$0"], "cannot read the amount '$0', which is not above 0; write '$50' or 50"),
        (["--budget", "inf"], "cannot read the amount 'inf', which is infinite; write '$50' or 50"),
        (["--budget", "a lot"], "cannot read the amount 'a lot'; write '$50' or 50"),
    ],
)
def test_an_amount_that_the_shell_removed_is_explained(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--budget $5 --to 75%` without quotes arrives as `--budget --to 75%`."""
    assert main(["plan", str(INPUTS / "job.yaml"), *words]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())
