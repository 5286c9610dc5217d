"""The command `chronograd VERB`: it looks up the verb's file by name and imports it when it is called."""

from __future__ import annotations

import codecs
import errno
import functools
import importlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType

import click

from chronograd import __version__, trust
from chronograd import verbs as verbs_room
from chronograd.errors import ChronogradError, InputError, RunError, missing_extra, near_names, printable

# Occasion → verb → one line of help. The file of a verb is `chronograd.verbs.VERB`.
GROUPS = {
    "Before": {
        "count": "The work of a network: parameters, FLOPs, bytes, receptive field.",
        "predict": "Time, memory and cost of a job on any device.",
        "plan": "The largest batch; the devices to rent, their number and price.",
        "schedule": "Many jobs on one cluster: order, sizes, and when each is done.",
        "judge": "Is a throughput good? Compared with the device and published rows.",
        "devices": "Devices, links and prices.",
        "platforms": "Clouds for which launch can write a job's file.",
        "doctor": "Check this machine before a run: obstacles, and what to do.",
    },
    "Run": {
        "run": "The whole loop on one job file, ending in a report.",
        "measure": "Time a job's steps for real, on one process or many.",
        "train": "Train a job to its epochs or target accuracy; resumes.",
        "launch": "Train a job on a cluster, or write its file for a cloud.",
        "job": "Read a job back from a cloud's file.",
    },
    "After": {
        "explain": "Why is it not faster? The parts of each step, and the lost time.",
        "forecast": "When will a run or a log reach a target: epochs, hours, time of day.",
        "evaluate": "The accuracy of a network, or the average precision of a detector.",
        "compare": "Two records side by side; a regression gate for CI.",
        "report": "One self-contained page, or a notebook, from runs.",
        "records": "List, filter and show predictions and measurements.",
    },
    "Deploy": {
        "export": "A network as an ONNX file, compared with PyTorch; eight-bit weights.",
        "serve": "Serve models in ONNX: Open Inference Protocol, batching, metrics.",
        "annotate": "Draw the objects that a trained detector detects in pictures.",
        "load": "Send requests to a server: latency against load, errors.",
    },
    "Research": {
        "fit": "A device from a table, a speed model, a forecast of a curve.",
        "simulate": "Staleness and speed of asynchronous SGD.",
        "label": "Label images with a trained network, the best of each class.",
        "data": "Show a data set: classes, images per class, sample images.",
        "weights": "Pretrained weights: accuracy, licence, digest, address, place.",
        "validate": "The error of predicting a table from a few of its rows.",
        "calibrate": "Measure this machine, so that `local` is a device.",
    },
}
EPILOG = """\b
Exit status: 0 done; 1 failed; 2 the input is wrong; 3 an optional part is
not installed; 130 interrupted. Every verb takes --json, and --full where it
prints a table.

\b
Completion of verbs, options, devices and networks, in bash (zsh, fish alike):
  eval "$(_CHRONOGRAD_COMPLETE=bash_source chronograd)"
"""


@functools.cache
def groups() -> dict[str, dict[str, str]]:
    """Return the verbs by group, with a line of help each: those of `GROUPS`, and those of other installed packages."""
    return {**GROUPS, **{name.title(): dict(package.VERBS) for name, package in verbs_room.added().items()}}


def verbs() -> dict[str, str]:
    """Return the line of help of each verb."""
    return {name: line for group in groups().values() for name, line in group.items()}


def module_of(verb: str) -> str | None:
    """Return the name of the module that holds a verb's command; None if there is no such verb."""
    name = verb.replace("-", "_")
    if any(verb in group for group in GROUPS.values()):
        return f"chronograd.verbs.{name}"
    added = (package for package in verbs_room.added().values() if verb in package.VERBS)
    return next((verbs_room.module_in(package, verb) for package in added), None)


def command_in(module: ModuleType) -> click.Command:
    """Return the command of a verb's file: made from its requests, or its own."""
    if not hasattr(module, "REQUESTS"):
        own: click.Command = module.command
        return own
    from chronograd.cli.commands import command_of_module

    return command_of_module(module)


class _Verbs(click.Group):
    """A group that imports a verb only when it is called, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = module_of(name)
        if module is None:
            return None
        return command_in(importlib.import_module(module))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and module_of(args[0]) is None:
            near = near_names(args[0], verbs())
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"There is no verb {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, verbs()))
        for group, lines in groups().items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])


@click.group(cls=_Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
@click.option(
    "--trust",
    "trusted",
    multiple=True,
    metavar="CODE",
    help="Allow the code FILE.py or MODULE, which a run or record names.",
)
def command(trusted: tuple[str, ...]) -> None:
    """A performance lab for deep learning.

    Say what you want to train and on what; learn how long it takes, what it costs and how accurate it
    gets, before renting a GPU. Then run it for real and see why the two differ.
    """
    for code in trusted:
        trust.allow(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return its exit status. Errors of the user's input are one message, no traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # Python starts like this if standard output is closed
        return _fail(RunError("cannot write the output: standard output is closed", "redirect it to a file"), ())
    _write_what_can_be_written()
    try:
        status = _run(args)
        sys.stdout.flush()
    except OSError as error:
        return _cannot(error, args)
    return status


def _run(args: list[str]) -> int:
    """Run a verb; print errors of its input. Raises OSError for a file or an output that fails."""
    try:
        with trust.only(args):
            status = command.main(args=_trust_first(args), prog_name="chronograd", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except click.ClickException as error:
        if "--json" in args:
            _fail_json(_in_words(error.format_message()), "")
        shown = io.StringIO()
        error.show(shown)
        click.echo(printable(_in_words(shown.getvalue())), err=True, nl=False)
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = missing_extra(error, f"this use of `chronograd {args[0]}`")
        if missing is None:
            raise
        return _fail(missing, args)
    except ChronogradError as error:
        return _fail(error, args)


def _in_words(message: str) -> str:
    """Return a message of click with plain words for its kinds of numbers, and the cause of an amount that never arrived.

    >>> _in_words("'8k' is not a valid integer range.")
    "'8k' is not a whole number."
    """
    amount = "Option '--budget' requires an argument"
    message = message.replace(f"{amount}.", f"{amount}: the shell removes an unquoted $5; write '$5' or 5.")
    for kind, words in (("integer", "whole number"), ("float", "number")):
        message = re.sub(rf"is not a valid {kind}( range)?\.", f"is not a {words}.", message)
    return message


# Replacements of letters that the output cannot encode, such as on a terminal in Latin-1.
_PLAIN = {"…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≈": "~", "µ": "u",
          "μ": "u", "·": "*", "²": "^2", "√": "sqrt", "│": "|", "─": "-", "█": "#", "■": "#", "“": '"', "”": '"', "’": "'"}  # fmt: skip


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace letters that cannot be encoded by plain ones; a handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


def _write_what_can_be_written() -> None:
    """Let standard output and error replace letters that their encoding lacks, rather than raise."""
    codecs.register_error("chronograd-plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="chronograd-plain")


# Errors of writing to a pipe, a disk or a closed stream. Only they name no file: `chronograd.files` names what it reads.
_OF_OUTPUT = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def _cannot(error: OSError, args: Sequence[str]) -> int:
    """Print one line about a file that cannot be used, or an output that cannot be written."""
    if error.filename is not None:
        what = f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
        return _fail(InputError(what, "name a file or a folder that exists and that you may read or write"), args)
    if error.errno not in _OF_OUTPUT:
        return _fail(RunError(f"the system refused: {error.strerror or error}"), args)
    try:
        if sys.stdout is not None:  # the rest of the output is dropped, so that Python does not try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    if isinstance(error, BrokenPipeError):
        sys.stderr.close()
        return 1
    return _fail(
        RunError(f"cannot write the output: {error.strerror or error}", "redirect it to where there is room"), ()
    )


def _trust_first(args: Sequence[str]) -> list[str]:
    """Return the words with each `--trust CODE` and `--trust=CODE` moved before the verb, so that it may stand anywhere."""
    first: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--trust":
            first += [word, *itertools.islice(words, 1)]
        else:
            (first if word.startswith("--trust=") else rest).append(word)
    return first + rest


def _fail(error: ChronogradError, args: Sequence[str]) -> int:
    if "--json" in args:
        _fail_json(error.message, error.hint)
    click.echo(f"Error: {error}", err=True)
    return error.exit_status


def _fail_json(message: str, hint: str) -> None:
    click.echo(json.dumps({"error": message, "hint": hint}))


def entry() -> None:
    sys.exit(main())
