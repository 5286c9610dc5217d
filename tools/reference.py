"""Write the reference of the verbs from their declarations: docs/reference.md, and docs/requests.schema.json."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import click

from chronograd import api
from chronograd.cli.main import command, groups
from chronograd.verbs.request import Request, params_of

DOCS = Path(__file__).parent.parent / "docs"
INTRO = """# Reference

Every verb with its options. The name of an option is also the keyword argument of the Python function, with `_` for `-`: `chronograd
plan NET --budget 50` is `chronograd.plan("NET", budget=50)`. Times and sizes are text on the command line (`20ms`, `6h`, `2GiB`); in
Python they are text, or numbers in seconds and bytes. [JSON Schema of all requests](requests.schema.json). `python tools/reference.py` writes this page from the declarations.
"""


def page() -> str:
    """Return the reference as Markdown."""
    requests = api.requests()
    parts = [INTRO]
    for group, verbs in groups().items():
        for verb in verbs:
            own = [request for request in requests.values() if request.verb.split()[0] == verb]
            parts += [_section(request, group) for request in own] or [_of_command(verb)]
    return "\n".join(parts)


def _section(request: type[Request], group: str) -> str:
    params = params_of(request)
    words = [
        param.make_metavar(_context(request.verb)) for param in params.values() if isinstance(param, click.Argument)
    ]
    lines = [f"## {request.verb}", "", inspect.cleandoc(request.__doc__ or ""), "", "```console"]
    lines += [f"chronograd {' '.join(filter(None, [request.verb, *words]))} [OPTIONS]", "```", ""]
    options = [param for param in params.values() if isinstance(param, click.Option) and not param.hidden]
    if options:
        lines += ["| option | value | default | |", "|---|---|---|---|", *map(_row, options), ""]
    result = request.answer.__annotations__["return"]
    if result != "Answer":
        lines += [f"Result in Python: `{_result_of(result)}`.", ""]
    if request.examples:
        lines += ["```console", *request.examples, "```", ""]
    return "\n".join(lines)


def _result_of(annotation: str) -> str:
    """Return the type of a verb's result.

    >>> _result_of("Answer[Record | list[Record]]"), _result_of("Answer[A] | Answer[B | C]")
    ('Record | list[Record]', 'A | B | C')
    """
    return " | ".join(part.removeprefix("Answer[").removesuffix("]") for part in annotation.split(" | Answer["))


def _of_command(verb: str) -> str:
    """Return the section of a verb that is not a request: its --help output."""
    found = command.get_command(_context(""), verb)
    assert found is not None
    lines = [f"## {verb}", "", f"`chronograd {verb} --help` prints its options: {found.get_short_help_str(200)}", ""]
    return "\n".join(lines)


def _context(name: str) -> click.Context:
    return click.Context(click.Command(name))


def _row(option: click.Option) -> str:
    default = option.default
    if option.is_flag or default in (None, (), []) or not isinstance(default, str | int | float | tuple | Path):
        shown = ""
    else:
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    value = "" if option.is_flag else option.make_metavar(_context(""))
    cells = [f"`{', '.join(option.opts)}`", value, shown, option.help or ""]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of the arguments of every request, by the name of its Python function."""
    return {name: _schema(request) for name, request in api.requests().items()}


def _schema(request: type[Request]) -> dict[str, Any]:
    params = params_of(request)
    properties = {name: _property(param) for name, param in params.items()}
    required = [name for name, param in params.items() if param.required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _property(param: click.Parameter) -> dict[str, Any]:
    kind: dict[str, Any] = {"type": "string"}
    if isinstance(param, click.Option) and param.is_flag:
        kind = {"type": "boolean"} if param.is_bool_flag else {"enum": [param.flag_value]}
    elif isinstance(param.type, click.Choice):
        kind = {"enum": list(param.type.choices)}
    elif isinstance(param.type, click.IntRange | click.types.IntParamType):
        kind = {"type": "integer", **_bounds(param.type)}
    elif isinstance(param.type, click.FloatRange | click.types.FloatParamType):
        kind = {"type": "number", **_bounds(param.type)}
    elif getattr(param.type, "is_list", False):
        kind = {"type": ["array", "string"]}
    if param.nargs == -1 or param.multiple:
        kind = {"type": "array", "items": kind}
    text = param.help if isinstance(param, click.Option) else param.metavar
    return {**kind, **({"description": text} if text else {})}


def _bounds(kind: Any) -> dict[str, float]:
    low, high = getattr(kind, "min", None), getattr(kind, "max", None)
    name = "exclusiveMinimum" if getattr(kind, "min_open", False) else "minimum"
    return {**({name: low} if low is not None else {}), **({"maximum": high} if high is not None else {})}


def main() -> int:
    """Write both files; with --check, fail if they differ from the declarations."""
    files = {DOCS / "reference.md": page(), DOCS / "requests.schema.json": json.dumps(schemas(), indent=1) + "\n"}
    if "--check" in sys.argv:
        stale = [str(path) for path, text in files.items() if not path.is_file() or path.read_text() != text]
        print("\n".join(f"{path} is out of date: run python tools/reference.py" for path in stale))
        return 1 if stale else 0
    for path, text in files.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
