"""What verbs share: job arguments, JSON output, tables that read well with and without a terminal."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from chronograd.errors import InputError, printable

if TYPE_CHECKING:
    from rich.console import Console

    from chronograd.answer import Answer
    from chronograd.ask import Asked
    from chronograd.job import Job
    from chronograd.record import Record
    from chronograd.rundir import RunDir

# Of whole numbers in a list, so that the product of two has 64 bits.
MOST = 10**9

# Kinds of values that options take.
PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
ABOVE_0 = click.FloatRange(0, min_open=True)

F = TypeVar("F", bound=Callable[..., Any])

hosts_option = click.option(
    "--hosts", help="Where ranks run, in blocks: names for ssh, or namespaces such as netns:h1,netns:h2."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def answer_options(function: F) -> F:
    """--json, --save FILE and --full, as verbs take them that `show` an answer."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta[option.name or ""] = value

    text = "Also save the answer (.json), for `chronograd report`."
    save = click.option("--save", type=FILE, expose_value=False, callback=keep, help=text)
    text = "Every row and column, sources and provenance, however wide."
    full = click.option("--full", is_flag=True, expose_value=False, callback=keep, help=text)
    return json_option(save(full(function)))


def complete_devices(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Devices of the catalogue and of the user's own, behind a count such as `8x`; for options that name one."""
    from chronograd.hardware import catalog

    count, name = re.fullmatch(r"(\d*x)?(.*)", begun, re.DOTALL).groups("")  # type: ignore[union-attr]
    known = [(device.name, device.title) for device in catalog.devices()]
    return [CompletionItem(count + n, help=title) for n, title in known if n.startswith(name.lower())]


def complete_jobs(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Files, and networks by name, without importing any: for arguments that take a job or a network."""
    from chronograd.models import names

    library, colon, _rest = begun.partition(":")
    if not colon:
        known = [*names.zoo(), *(f"{library}:" for library in names.LIBRARIES)]
    else:
        known = (
            [f"{library}:{name}" for name in sorted(names.of_library(library))] if library in names.LIBRARIES else []
        )
    matching = [CompletionItem(name) for name in known if name.startswith(begun)]
    return [*matching, CompletionItem(begun, type="file")]


trace_option = click.option("--trace", "trace_file", type=PATH, help="A saved trace; needs no torch.")
print_config_option = click.option(
    "--print-config", is_flag=True, help="Print the resolved job and stop; nothing is started."
)


def shape(_: Any, __: Any, text: str | None) -> tuple[int, ...] | None:
    """A callback of options that take the shape of a sample, such as `--input 3,224,224`."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a shape; write 3,224,224") from None


def inputs_option(function: F) -> F:
    """--input and --inputs, whose values stand as `input` (shape of one plain sample) and `inputs` (words of others)."""

    def keep(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> None:
        context.meta.setdefault("inputs", {})[option.name or ""] = words

    both: dict[str, Any] = {"expose_value": False, "callback": keep}
    text = "Shape of one sample; or NAME:SHAPE:DTYPE for each tensor, such as tokens:128:int64."
    function = click.option("--input", "input_words", multiple=True, metavar="C,H,W", help=text, **both)(function)
    text = "A function or object with the network's arguments."
    return click.option("--inputs", "example", metavar="FILE.py:NAME", help=text, **both)(function)


def inputs() -> dict[str, Any]:
    """Return the fields of --input and --inputs: `input`, the shape of one sample, or `inputs`, words. Raises UsageError."""
    from chronograd import inputs as words

    context = click.get_current_context(silent=True)
    given = {} if context is None else context.meta.get("inputs", {})
    texts, example = given.get("input_words") or (), given.get("example")
    if texts and example:
        raise click.UsageError("--inputs holds everything that the network takes: leave --input out")
    if example:
        if not words.is_reference(example):
            raise click.BadParameter(
                f"{example!r} names no function: write FILE.py:example_inputs", param_hint="'--inputs'"
            )
        return {"inputs": [example]}
    try:
        words.check(texts)
        found = [words.Input.parse(text) for text in texts]
    except InputError as error:
        raise click.BadParameter(f"{error.message}; {error.hint}", param_hint="'--input'") from None
    if len(found) == 1 and found[0].is_plain and found[0].shape:
        return {"input": found[0].shape}
    return {"inputs": [str(one) for one in found]} if found else {}


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Of a short form of a field: kept for `read_job`, so that no verb has to pass it on."""
    context.meta.setdefault("short", {})[option.name] = value


def _keep_batches(context: click.Context, option: click.Parameter, text: str | None) -> None:
    """One batch is a field of the job; several are asked about one after the other."""
    sizes = context.meta["batches"] = counts(context, option, text)
    _keep(context, option, sizes[0] if sizes else None)


def batches() -> list[int] | None:
    """What --batch asks about; None where it is not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get("batches")


def short_options(function: F) -> F:
    """Fields of a job by their short form, and --save-job: for a network in place of a job file, and for any job."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _keep}
    for option in (
        click.option("--save-job", type=FILE, help="Write the job that was meant (.yaml).", **kept),
        click.option("--classes", type=click.IntRange(2), help="Number of classes.", **kept),
        inputs_option,
        click.option(
            "--batch", metavar="N", help="Samples of a step, over all devices.", **{**kept, "callback": _keep_batches}
        ),
        click.option(
            "--inference",
            "mode",
            flag_value="inference",
            help="The network is run forward only: mode=inference.",
            **kept,
        ),
        click.option("--precision", help="fp32, tf32, bf16 or fp16.", **kept),
        click.option(
            "--data",
            metavar="NAME",
            help="Data set (`chronograd data --list`), or a folder with one folder of pictures per class.",
            **kept,
        ),
    ):
        function = option(function)
    return function


def job_arguments(function: F) -> F:
    """JOB [FIELD=VALUE...], short forms of fields and --print-config, as every verb on a job takes them.

    JOB is a job file, or the name of a network: of the zoo, torchvision:NAME, timm:NAME, FILE.py:CLASS.
    """
    function = print_config_option(short_options(function))
    function = click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")(function)
    return click.argument("job_file", metavar="JOB|NETWORK", shell_complete=complete_jobs)(function)


def read_asked(
    job_file: str,
    overrides: Sequence[str],
    print_config: bool = False,
    *,
    takes_batches: bool = False,
    **how: Any,
) -> Asked:
    """The validated job of a file, or of a network's name, and what the user stated of it. With `print_config`, prints it as YAML
    and ends the verb.

    Args:
        takes_batches: whether the verb asks about each of several `batches`.
        how: of `ask.ask`: `target`, `can_download`, `is_counted`.
    """
    from chronograd import ask, job

    context = click.get_current_context(silent=True)
    short = {**(context.meta.get("short", {}) if context is not None else {}), **inputs()}
    if not takes_batches and len(batches() or ()) > 1:
        raise click.UsageError(f"--batch {','.join(map(str, batches() or ()))}: give one number here")
    save_to = short.pop("save_job", None)
    asked = ask.ask(job_file, overrides, short, **how)
    if save_to is not None:
        from chronograd.files import as_asked, write_aside

        with as_asked(save_to):
            write_aside(save_to, job.to_yaml(asked.job, is_whole=False))
        echo(f"wrote the job to {save_to}", err=True)
    if print_config:
        echo(job.to_yaml(asked.job), nl=False)
        raise click.exceptions.Exit(0)
    return asked


def read_job(job_file: str, overrides: Sequence[str], print_config: bool = False, takes_batches: bool = False) -> Job:
    """The job of `read_asked`."""
    return read_asked(job_file, overrides, print_config, takes_batches=takes_batches).job


def launcher(name: str | None, hosts: str | None) -> str | None:
    """The launcher that `--launcher` or `--hosts` asks for; the backend's own where neither does."""
    if hosts is not None and name is not None:
        raise click.UsageError("--hosts starts ranks itself; leave --launcher out")
    return name if hosts is None else f"hosts:{hosts}"


def counts(_: click.Context, option: click.Parameter, text: str | None) -> list[int] | None:
    """A callback of options that take whole numbers, such as `--world 1,2,4`."""
    return None if text is None else whole_numbers(option.opts[0], text)


def whole_numbers(option: str, text: str) -> list[int]:
    """The numbers of an option such as `--world 1,2,4`. Raises UsageError unless each is from 1 to MOST."""
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise click.UsageError(f"cannot read {option} {text!r}; write whole numbers such as 1,2,4")
    if max(numbers) > MOST:
        raise click.UsageError(f"{option} has {max(numbers)}; write whole numbers of at most {MOST:,}")
    return numbers


def numbers(option: str, text: str) -> list[float]:
    """The numbers of an option such as `--drops 82,123`. Raises UsageError for what is none."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise click.UsageError(f"cannot read {option} {text!r}; write numbers such as 1,2.5,4") from None


def rates(text: str | None) -> list[float]:
    """The requests per second of `--rate`; none where it is not given. Raises UsageError unless each is above 0 and at most MOST."""
    levels = numbers("--rate", text) if text is not None else []
    if not all(0 < rate <= MOST for rate in levels):
        raise click.UsageError(f"cannot read --rate {text!r}; write requests per second above 0, such as 50,100,200")
    return levels


def show(answer: Answer, as_json: bool) -> int:
    """Print an answer, as text or as JSON, save it where that is asked for, and return its exit status."""
    context = click.get_current_context(silent=True)
    asked = {} if context is None else context.meta
    if path := asked.get("save"):
        answer.save(path)
    if as_json:
        print_json(answer.as_data())
    else:
        from chronograd.report import terminal

        terminal.show(answer, in_full=asked.get("full", False), full_with="--full" if "full" in asked else "")
    return answer.exit_status


def show_run(run: RunDir, as_json: bool) -> None:
    """Print the record of a run that has ended."""
    from dataclasses import replace

    from chronograd.quantities import record_answer

    show(replace(record_answer(run.record()), data=run_data(run)), as_json)


def run_data(run: RunDir) -> dict[str, Any]:
    """The record of a run for programs, with its directory."""
    return {"run": str(run.path), **run.record().model_dump(mode="json")}


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text. It may be a stranger's: control characters, which could steer the terminal, are printed as their escapes."""
    click.echo(printable(str(text)), err=err, nl=nl)


def print_json(data: Any) -> None:
    echo(json.dumps(data, indent=1, allow_nan=False))


def console(stderr: bool = False) -> Console:
    """A console without colour or bars where there is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain = not stream.isatty()
    return Console(file=stream, no_color=plain or None, width=200 if plain else None, soft_wrap=False, highlight=False)


@contextmanager
def progress(title: str) -> Iterator[Callable[[float, str], None]]:
    """A bar on a terminal; elsewhere a line at every fifth of the way, on standard error."""
    if sys.stderr.isatty():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
        )
        with Progress(*columns, console=console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=1.0, text="")
            yield lambda share, text: bar.update(task, completed=share, text=printable(text))
        return
    said = -1

    def say(share: float, text: str) -> None:
        nonlocal said
        if int(share * 5) > said:
            said = int(share * 5)
            echo(f"{title}: {100 * share:.0f} % ({text})", err=True)

    yield say


SILENCE_S = 1.0  # longer than this nobody waits without a word


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Say on standard error what goes on, once it has taken a second, to who sits before a terminal; then take it away.

    Yields: what takes other words, for the next stage.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.text import Text

    words, status = text, None

    def begin() -> None:
        nonlocal status
        status = console(stderr=True).status(Text(f"{printable(words)} …"))
        status.start()

    def say(text: str) -> None:
        nonlocal words
        words = text
        if status is not None:
            status.update(Text(f"{printable(words)} …"))

    timer = Timer(SILENCE_S, begin)
    timer.daemon = True
    timer.start()
    try:
        yield say
    finally:
        timer.cancel()
        timer.join()
        if status is not None:
            status.stop()


def has_events(path: str | os.PathLike[str]) -> bool:
    """Whether TensorBoard events of a run were begun, and can be gone on with here."""
    return any(Path(path).glob("**/tensorboard")) and importlib.util.find_spec("tensorboard") is not None


def write_events(run: RunDir) -> None:
    """TensorBoard events of a run, or of each seed of repeats, in place of those written before."""
    from chronograd.rundir import RunDir, listing
    from chronograd.watch import tensorboard

    ones = [RunDir.open(path) for path in listing.seeds_of(run.path)] or [run]
    for one in ones:
        echo(f"tensorboard: {tensorboard.write_events(one)}", err=True)


def print_record(record: Record) -> None:
    """Every quantity of a record with its interval, count and source, then what it rests on."""
    from chronograd.quantities import record_answer

    show(record_answer(record), as_json=False)
