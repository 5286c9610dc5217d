"""Commands from requests of verbs: options, help, completion and the printed answer follow from the declaration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common
from chronograd.verbs import screen
from chronograd.verbs.request import Request, params_of

if TYPE_CHECKING:
    from chronograd.answer import Answer


class _Verb(click.Command):
    """A verb, and those that begin with its word: `plan`, `plan batch`."""

    def __init__(self, own: click.Command, others: Mapping[str, click.Command], old: Mapping[str, str]) -> None:
        self.own, self.commands, self.old = own, dict(others), old
        super().__init__(own.name, params=own.params, help=own.help)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the command that the words mean."""
        args = _first(args, self.commands)
        for word, name in self.old.items():
            if args and args[0] not in self.commands and (rest := _without(args, word)) is not None:
                is_option = any(word in param.opts for param in self.commands[name].params)
                args = [name, *(args if is_option else rest)]
        if args and args[0] in self.commands:
            return self.commands[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return self.own.make_context(info_name, args, parent, **extra)


def _first(args: list[str], commands: Mapping[str, click.Command]) -> list[str]:
    """Return the words with the second word of a verb in front, if only flags precede it: `launch --json status RUN`."""
    at = next((i for i, arg in enumerate(args) if not arg.startswith("-")), 0)
    params = commands[args[at]].params if args and args[at] in commands else []
    flags = {name for param in params if isinstance(param, click.Option) and param.is_flag for name in param.opts}
    return [args[at], *args[:at], *args[at + 1 :]] if flags.issuperset(args[:at]) and at else args


def _without(args: list[str], old: str) -> list[str] | None:
    """Return the words without an old spelling, such as `--serve` or `--on slurm`; None if it is not among them."""
    words = old.split()
    for at, arg in enumerate(args):
        if args[at : at + len(words)] == words:
            return args[:at] + args[at + len(words) :]
        if arg == "=".join(words) or arg.startswith(f"{old}="):
            return args[:at] + args[at + 1 :]
    return None


def commands_of(verb: click.Command) -> list[click.Command]:
    """Return the commands of a verb: itself, and those that begin with its word."""
    if isinstance(verb, _Verb):
        return [verb.own, *verb.commands.values()]
    return list(verb.commands.values()) if isinstance(verb, click.Group) else [verb]


def command_of_module(module: ModuleType) -> click.Command:
    """Return the command of a verb's file: of its REQUESTS, the first is the verb itself."""
    requests: Sequence[type[Request]] = module.REQUESTS
    own, *others = requests
    if " " in own.verb:
        commands = {request.verb.partition(" ")[2]: command_of(request) for request in requests}
        return click.Group(own.verb.partition(" ")[0], commands=commands, help=module.HELP)
    if not others:
        return command_of(own)
    named = {other.verb.partition(" ")[2]: command_of(other) for other in others}
    return _Verb(command_of(own), named, getattr(module, "OLD", {}))


def command_of(request: type[Request]) -> click.Command:
    """Return the command of a request. Its docstring is the help, its examples stand below."""

    def run(as_json: bool, **values: Any) -> int:
        asked = request(**{name: value for name, value in values.items() if value is not None})

        def announce(answer: Answer) -> None:
            common.show(answer, as_json)
            sys.stdout.flush()  # a program that has started the verb may wait for it

        with screen.shown_on(screen.Display(common.waiting, common.progress, _say, announce)):
            answer = asked.answer()
            if request.is_announced:
                return answer.exit_status
            summary = None if as_json else asked.summary(answer)
        status = common.show(answer, as_json, summary, is_verbatim=request.is_verbatim)
        asked.after(answer, as_json)
        return status

    examples = "\n".join(request.examples)
    callback = common.answer_options(run)
    return click.Command(
        request.verb,
        callback=callback,
        params=[*params_of(request).values(), *reversed(getattr(callback, "__click_params__", ()))],
        help=inspect.cleandoc(request.__doc__ or ""),
        epilog=f"\b\n{examples}" if examples else None,
    )


def _say(text: str) -> None:
    common.echo(text, err=True)
