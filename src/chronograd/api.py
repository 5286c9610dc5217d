"""The verbs as Python functions: `chronograd.predict(...)` does what `chronograd predict ...` does.

Each takes a job, the path of a job file, or the name of a network, and, where only counting is needed, a `torch.nn.Module`; it
returns an `Answer`: `answer.sections` say it, `answer.data` is what `--json` prints, `answer.records` are what it rests on.
`chronograd.show(answer)` prints it. Importing this needs no torch; what needs it says so with MissingExtraError.

    answer = chronograd.predict(model, on="v100", input_shape=(3, 224, 224), batch=64)
    answer.records["v100"].value("step_time_s")
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd import ask, trust, verbs
from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.rundir import listing
from chronograd.trace import Trace
from chronograd.verbs.request import function_of
from chronograd.words import listed

if TYPE_CHECKING:
    from chronograd.measure.user_loop import LoopRecorder

PathLike = str | os.PathLike[str]
JobLike = Job | PathLike


def measure(job: JobLike, *overrides: str, num_steps: int | None = None, warmup: int = 5, seconds: float = 60.0,
            out: PathLike | None = None, launcher: str | None = None) -> Answer:  # fmt: skip
    """Time a job's steps for real, on one process or many. The record's name is that of its run directory.

    Args:
        num_steps, warmup, seconds: steps to time (30, in inference 200) after so many others, fewer if they take longer.
        out: the run directory; by default a new one in `runs`.
        launcher: `local`, `torchrun` and others; the backend's own by default.
    Raises: InputError, JobError, RunError.
    """
    from chronograd.launch import jobs as runs

    return _of_run(runs.measure(_job(job, overrides), num_steps=num_steps, warmup=warmup, seconds=seconds, out=out,
                                launcher=launcher).path)  # fmt: skip


def train(job: JobLike, *overrides: str, out: PathLike | None = None, launcher: str | None = None) -> Answer:
    """Train a job to its epochs or target accuracy, with a checkpoint per epoch. Arguments and errors as of `measure`."""
    from chronograd.launch import jobs as runs

    return _of_run(runs.train(_job(job, overrides), out=out, launcher=launcher).path)


def report(*runs: PathLike | Answer, out: PathLike | None = None, notebook: PathLike | None = None) -> Answer:
    """All that answers and records of runs say; written as an HTML page to `out`, and as an executed notebook.

    Args:
        runs: run directories, record files, folders of them, answers that were saved, and answers at hand, which come first.
    """
    from chronograd.answer import join
    from chronograd.report.runs import report as of_runs

    answers = [one for one in runs if isinstance(one, Answer)]
    paths = [one for one in runs if not isinstance(one, Answer)]
    answer = of_runs(listing.runs(*paths)) if paths else None
    if answers:
        answer = join(answers[0].title, [*answers, *([answer] if answer else [])])
    if answer is None:
        raise InputError("a report of nothing", "give runs, or answers of other verbs")
    if out is not None:
        from chronograd.files import write_aside
        from chronograd.report.html import render_html

        write_aside(Path(out), render_html(answer))
    if notebook is not None:
        from chronograd.report.notebook import write_notebook

        with trust.only(()):
            write_notebook(answer, Path(notebook))
    return answer


def keep_freed_memory() -> bool:
    """Keep what this process frees for what it allocates next; see `chronograd.measure.memory.keep_freed_memory`."""
    from chronograd.measure import memory

    return memory.keep_freed_memory()


def record(path: PathLike | None = None, **options: Any) -> LoopRecorder:
    """A context around a training loop of your own that writes a run; see `chronograd.measure.user_loop.record`."""
    from chronograd.measure.user_loop import record as recorder

    return recorder(path, **options)


def show(answer: Answer) -> None:
    """Print an answer as the command line does."""
    from chronograd.report import terminal

    terminal.show(answer)


def _show_in_notebook() -> None:
    """Register how a running notebook displays an answer. IPython asks this of whoever has a renderer."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.display_formatter.formatters["text/markdown"].for_type(Answer, _as_markdown)


def _as_markdown(answer: Answer) -> str:
    from chronograd.report.markdown import as_markdown

    return as_markdown(answer)


_show_in_notebook()


@functools.cache
def declared() -> dict[str, Callable[..., Answer]]:
    """Return the functions of the verbs in `chronograd.verbs`, by name: `plan`, `plan_batch`."""
    functions: dict[str, Callable[..., Answer]] = {}
    for one in pkgutil.iter_modules(verbs.__path__):
        module = importlib.import_module(f"{verbs.__name__}.{one.name}")
        requests = {request.verb: request for request in getattr(module, "REQUESTS", ())}
        for verb, request in requests.items():
            old = {} if " " in verb else getattr(module, "OLD", {})
            instead = {word: requests[f"{verb} {name}"] for word, name in old.items()}
            functions[verb.replace(" ", "_")] = function_of(request, instead)
        first = next(iter(requests), "").partition(" ")
        if first[1]:
            functions[first[0]] = _one_of(first[0], functions, module.HELP)
    return functions


def _one_of(verb: str, functions: Mapping[str, Callable[..., Answer]], text: str) -> Callable[..., Answer]:
    """Return the function of a verb that is the first word of several: its first argument is the second word."""

    def choose(what: str, *words: Any, **options: Any) -> Answer:
        known = [name.removeprefix(f"{verb}_") for name in functions if name.startswith(f"{verb}_")]
        if what not in known:
            raise InputError(f"cannot {verb} {what!r}", f"choose {listed(known, 'or')}")
        return functions[f"{verb}_{what}"](*words, **options)

    choose.__name__, choose.__doc__ = verb, text
    return choose


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in declared():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return declared()[name]


# -- what is asked about ------------------------------------------------------------------------------------


def _job(given: Any, overrides: Sequence[str], short: Mapping[str, Any] | None = None) -> Job:
    return _asked(given, overrides, short).job


def _asked(given: Any, overrides: Sequence[str], short: Mapping[str, Any] | None = None, **how: Any) -> ask.Asked:
    """The job and what is stated of it: of a job that is given, all that it sets. `how`: as of `ask.ask`."""
    if isinstance(given, Job):
        changes = [*ask.as_overrides(short or {}), *overrides]
        job = jobs.changed(given, changes) if changes else given
        fields = {f"{name}.{field}" for name in ("data", "training") for field in getattr(job, name).model_fields_set}
        return ask.Asked(job, frozenset(fields))
    return ask.ask(os.fspath(given), overrides, short, **how)


def _is_network(given: Any) -> bool:
    """Whether it is no job: a trace, a module, or a name that is no job file's."""
    if isinstance(given, Job):
        return False
    return not isinstance(given, str | os.PathLike) or not ask.is_job_file(os.fspath(given))


def _trace(given: Any, overrides: Sequence[str], options: dict[str, Any]) -> tuple[Trace, Job | None]:
    """The trace, and the job where there is one."""
    if not _is_network(given):
        from chronograd.data.trace_job import trace_job

        job = _job(given, overrides)
        return trace_job(job), job
    if isinstance(given, Trace):
        return given, None
    if isinstance(given, str | os.PathLike):
        if os.fspath(given).endswith((".json", ".json.gz")):
            return Trace.load(given), None
        from chronograd.count.cached import cached_trace

        return cached_trace(os.fspath(given), **options), None
    from chronograd.count.tracing import trace

    shape = options.pop("input_shape", None)
    if shape is None:
        raise InputError(f"{type(given).__name__} does not say what its samples are", "give input_shape=(3, 224, 224)")
    return trace(given, [shape], **options), None


def _job_of(trace: Trace, batch: int, precision: str) -> Job:
    """A job for a network that has none: synthetic samples of its shape."""
    if not (trace.takes_images or trace.takes_tokens):
        data: dict[str, Any] = {"name": jobs.INPUTS}
    else:
        data = {"name": "synthetic", "shape": list(trace.sample_shape), "classes": 2, "samples": max(batch, 1)}
    return jobs.from_dict(
        {
            "mode": trace.mode,
            "network": {"name": trace.network or "network"},
            "data": data,
            "training": {"batch": batch, "precision": precision},
        }
    )


def _samples(job: Job) -> int:
    """Return the training samples of an epoch; 0 where they are not known."""
    from chronograd.data.datasets import card

    return card(job.data).train_size


def _of_run(path: Path) -> Answer:
    from dataclasses import replace

    from chronograd.quantities import record_answer
    from chronograd.record import Record

    record = Record.load(path)
    return replace(record_answer(record), records={str(path): record})
