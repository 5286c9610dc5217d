"""Declaration of a verb: a frozen dataclass whose fields are its options and whose attribute docstrings are their help.

A `Request` yields a command (`cli.commands`), a Python function (`function_of`) and a JSON Schema. Both sides have the same
defaults and reject the same input, because click's types check the values of either.

    @dataclass(frozen=True, kw_only=True)
    class Judge(Request):
        '''Judge a throughput.'''

        batch: Annotated[int | None, click.IntRange(min=1)] = None
        '''Samples of a step over all devices.'''

        def answer(self) -> Answer: ...

We use a dataclass of the standard library because importing pydantic takes 0.1 s, as long as all of `chronograd VERB --help`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click

from chronograd import trust
from chronograd.errors import InputError, near_names

if TYPE_CHECKING:
    from chronograd.answer import Answer

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
_EMPTY: Any = inspect.Parameter.empty
_KINDS = {
    "word": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "rest": inspect.Parameter.VAR_POSITIONAL,
    "option": inspect.Parameter.KEYWORD_ONLY,
}


@dataclass(frozen=True)
class Spelling:
    """Spelling of a field on the command line, if it does not follow from its name and type.

    Attributes:
        names: its spellings; `--field-name` by default.
        metavar: placeholder for its value in the help.
        flag_value: value of an option that takes none.
        complete: a shell completion with click's signature.
        aliases: additional keyword arguments of the Python function.
        is_argument: whether it is a positional argument.
        hidden: an old spelling, left out of the help.
    """

    names: tuple[str, ...] = ()
    metavar: str | None = None
    flag_value: Any = None
    complete: Callable[..., Any] | None = None
    aliases: tuple[str, ...] = ()
    is_argument: bool = False
    hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """A question, with everything that determines its answer.

    Attributes:
        verb: its words on the command line, and the name of its Python function.
        examples: lines for the end of the help.
        is_verbatim: whether the lines of its summary are printed without wrapping.
        is_announced: whether it shows its answer itself, by `screen.announce`, as soon as there is one.
    """

    verb: ClassVar[str]
    examples: ClassVar[Sequence[str]] = ()
    is_verbatim: ClassVar[bool] = False
    is_announced: ClassVar[bool] = False

    def answer(self) -> Answer:
        raise NotImplementedError

    def summary(self, answer: Answer) -> Sequence[str] | None:
        """Return the lines that the command line prints instead of the answer; None to print the whole answer."""
        return None

    def after(self, answer: Answer, as_json: bool) -> None:
        """Do what only the command line does after printing the answer."""


_params: dict[type[Request], dict[str, click.Parameter]] = {}


def params_of(request: type[Request]) -> dict[str, click.Parameter]:
    """Return the parameter of each field, in the order of the class, followed by those of its bases."""
    if request not in _params:
        _params[request] = _params_of(request)
    return _params[request]


def _params_of(request: type[Request]) -> dict[str, click.Parameter]:
    hints = typing.get_type_hints(request, include_extras=True)
    texts: dict[str, str] = {}
    order: list[str] = []
    for one in request.__mro__:
        if dataclasses.is_dataclass(one) and one is not Request:
            texts = {**_attribute_docstrings(one.__module__).get(one.__name__, {}), **texts}
            order += [name for name in one.__annotations__ if name not in order]
    fields = {field.name: field for field in dataclasses.fields(request)}
    return {name: _param(fields[name], hints[name], texts.get(name, "")) for name in order if name in fields}


@functools.cache
def _attribute_docstrings(module: str) -> dict[str, dict[str, str]]:
    """Return the string below each annotated name, as one line, for each top-level class of a module.

    The file is parsed once. `inspect.getsource` would parse it for each class, which took half of `chronograd plan --help`.
    """
    source = sys.modules[module].__file__
    assert source is not None
    found: dict[str, dict[str, str]] = {}
    for one in ast.parse(Path(source).read_bytes()).body:
        if isinstance(one, ast.ClassDef):
            found[one.name] = {
                field.target.id: " ".join(str(text.value.value).split())
                for field, text in zip(one.body, one.body[1:], strict=False)
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            }
    return found


def _param(field: dataclasses.Field[Any], hint: Any, text: str) -> click.Parameter:
    """Return the click parameter of a field; the annotation determines its type and number of values."""
    how, kind = Spelling(), None
    if typing.get_origin(hint) is typing.Annotated:
        hint, *notes = typing.get_args(hint)
        how = next((note for note in notes if isinstance(note, Spelling)), how)
        kind = next((note for note in notes if isinstance(note, click.ParamType)), None)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next((part for part in typing.get_args(hint) if part is not type(None)), hint)
    is_many = typing.get_origin(hint) is tuple and not getattr(kind, "is_list", False)
    if is_many:
        hint = typing.get_args(hint)[0]
    is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    if how.is_argument:
        # click takes a default of None as a given value
        usual: dict[str, Any] = {} if is_many or is_required else {"default": field.default}
        return click.Argument([field.name], type=kind or _type_of(hint), metavar=how.metavar, nargs=-1 if is_many else 1,
                              required=is_required, shell_complete=how.complete, **usual)  # fmt: skip
    names = how.names or (f"--{field.name.replace('_', '-')}",)
    flag: dict[str, Any] = {}
    if how.flag_value is not None:
        flag = {"flag_value": how.flag_value}
    elif hint is bool:
        flag = {"is_flag": True} | ({"default": field.default} if field.default is not None else {"default": None})
    else:
        flag = {"type": kind or _type_of(hint), "multiple": is_many, "metavar": how.metavar, "required": is_required}
    if "default" not in flag and not is_required and field.default is not None:
        flag["default"] = field.default
    return click.Option([field.name, *names], help=text, hidden=how.hidden, shell_complete=how.complete, **flag)


def _type_of(hint: Any) -> Any:
    if typing.get_origin(hint) is Literal:
        return click.Choice(typing.get_args(hint))
    return {str: click.STRING, int: click.INT, float: click.FLOAT, Path: FILE}.get(hint, AS_IT_IS)


class _AsItIs(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that only Python can pass, such as a module, or the words of a command line."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value


AS_IT_IS = _AsItIs()


# -- from Python --------------------------------------------------------------------------------------------


def function_name(verb: str) -> str:
    """Return the name of a verb's Python function.

    >>> function_name("plan batch"), function_name("hand-in")
    ('plan_batch', 'hand_in')
    """
    return verb.replace(" ", "_").replace("-", "_")


def made(request: type[Request], words: Sequence[Any], options: Mapping[str, Any]) -> Request:
    """Return a request from Python's arguments, checked by the types of its parameters. Raises InputError, TypeError."""
    params, given = params_of(request), dict(options)
    aliases = aliases_of(request)
    given = {aliases.get(name, name): value for name, value in given.items()}
    rest = list(words)
    for name, param in params.items():
        if not isinstance(param, click.Argument):
            continue
        if param.nargs == -1 and rest:
            given[name], rest = (*rest, *given.get(name, ())), []
        elif rest:
            given[name] = rest.pop(0)
    function = function_name(request.verb)
    if rest:
        raise TypeError(f"{function}() takes no further argument {rest[0]!r}")
    context = click.Context(click.Command(request.verb))
    values = {}
    for name, value in given.items():
        if name not in params:
            near = near_names(name, params)
            raise TypeError(f"{function}() has no argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        values[name] = _checked(params[name], value, context)
    missing = [name for name, param in params.items() if param.required and name not in values]
    if missing:
        raise TypeError(f"{function}() needs {missing[0]!r}")
    return request(**values)


def _checked(param: click.Parameter, value: Any, context: click.Context) -> Any:
    is_list = getattr(param.type, "is_list", False)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(param, click.Option) and param.is_flag:
        return value
    if isinstance(param.type, _AsItIs) and param.nargs == 1 and not param.multiple:
        return value
    try:
        if not is_list and (param.multiple or param.nargs == -1):
            if isinstance(value, str | os.PathLike | int | float):
                value = [value]
            several = value.items() if isinstance(value, Mapping) else value
            return tuple(param.type(one, param, context) for one in several)
        return param.type(value, param, context)
    except click.BadParameter as error:
        raise InputError(
            f"{param.name}={value!r}: {error.message}", f"see help(chronograd.{context.command.name})"
        ) from None


def aliases_of(request: type[Request]) -> dict[str, str]:
    """Return the field for each additional keyword argument of a verb's function."""
    hints = typing.get_type_hints(request, include_extras=True)
    notes = ((name, note) for name, hint in hints.items() for note in getattr(hint, "__metadata__", ()))
    return {alias: name for name, note in notes if isinstance(note, Spelling) for alias in note.aliases}


def function_of(request: type[Request], old: Mapping[str, type[Request]] | None = None) -> Callable[..., Answer]:
    """Return the Python function of a verb: its positional arguments are those of the command line, its keywords the fields.

    Args:
        old: words that used to mean another verb, such as `--largest-batch`, which Python writes `largest_batch=True`.
    """

    def verb(*words: Any, **options: Any) -> Answer:
        given = [f"--{key.replace('_', '-')}" for key, value in options.items() if value not in (None, False)]
        given += ["--inference"] if options.get("mode") == "inference" else []
        for word, other in (old or {}).items():
            if word in given or word in words:
                name = word.removeprefix("--").replace("-", "_")
                is_field = name in params_of(other) or name in aliases_of(other)
                rest = {key: value for key, value in options.items() if is_field or key != name}
                return function_of(other)(*words, **rest)
        named = [os.fspath(word) for word in (*words, *options.values()) if isinstance(word, str | os.PathLike)]
        with trust.only(named):
            return made(request, words, options).answer()

    verb.__name__ = verb.__qualname__ = function_name(request.verb)
    verb.__doc__ = _documentation(request)
    verb.__signature__ = _signature(request)  # type: ignore[attr-defined]
    return verb


def _documentation(request: type[Request]) -> str:
    lines = [inspect.cleandoc(request.__doc__ or ""), "", "Args:"]
    for name, param in params_of(request).items():
        text = param.help if isinstance(param, click.Option) else ""
        lines.append(f"    {name}: {text or param.metavar or ''}")
    return "\n".join(lines)


def _signature(request: type[Request]) -> inspect.Signature:
    hints = typing.get_type_hints(request)
    fields = {field.name: field for field in dataclasses.fields(request)}
    parameters = []
    for name, param in params_of(request).items():
        default = fields[name].default
        is_word = isinstance(param, click.Argument)
        is_rest = is_word and param.nargs == -1
        kind = _KINDS["rest" if is_rest else "word" if is_word else "option"]
        is_free = default is dataclasses.MISSING or is_rest
        parameters.append(inspect.Parameter(name, kind, default=_EMPTY if is_free else default, annotation=hints[name]))
    return inspect.Signature(
        sorted(parameters, key=lambda p: (p.kind, p.default is not _EMPTY)),
        return_annotation=request.answer.__annotations__["return"],
    )
