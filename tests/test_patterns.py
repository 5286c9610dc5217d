"""Regular expressions take no time that grows with the square of a line: all of them, by structure (`tests/patterns.py`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.patterns import SEARCHES, quadratic_words

SOURCES = Path(__file__).parent.parent / "src"
METHODS = (*SEARCHES, "match", "fullmatch")
ARGUMENTS = "words of the user on the command line, or in Python"
# Expressions that would take quadratic time and never get a long text, by file and their beginning.
SHORT = {
    ("compare/gate.py", r"\s*(\w+)\s*"): ARGUMENTS,
    ("forecast/forecast_answer.py", r"\s*(\d+"): ARGUMENTS,
    ("judge/claim.py", r"\s*(\d[\d"): ARGUMENTS,
    ("judge/claim.py", r"\s+(per|an?)"): ARGUMENTS,
    ("judge/large.py", r"\s*(\d+"): ARGUMENTS,
    ("verbs/kinds.py", r"\s*("): ARGUMENTS,
    ("calibrate/processor.py", r"^word"): "/proc/cpuinfo",
    ("door.py", r"(import \w"): "a line of the first 4,096 bytes",
    ("fit/tables.py", "benchmark-"): "the name of a file",
    ("forecast/log_rows.py", "-tag-"): "the name of a file",
    ("doctor/devices.py", "CUDA"): "the output of nvidia-smi",
    ("models/names.py", "^@register_model"): "the source of an installed library",
    ("report/plots.py", "(<image "): "a drawing of matplotlib, whose texts have no <",
    ("report/plots.py", "<(?:clipPath|path) "): "a drawing of matplotlib, whose texts have no <",
}
# Expressions that are no constants.
MADE = {
    ("clouds/fields.py", "other"),  # a class of letters of a platform
    ("deploy/timing.py", "own"),  # the output of our server
    ("launch/slurm/script.py", "form"),  # values of options of the command line
}


class Use(NamedTuple):
    """An expression of the sources, its flags, and the method that uses it."""

    place: str
    pattern: str
    flags: int
    how: str


@cache
def texts() -> dict[Path, str]:
    paths = sorted((SOURCES / "chronograd").rglob("*.py"))
    return {path: path.read_text() for path in paths}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(texts()[path])


@cache
def constants(path: Path) -> dict[str, Any]:
    """Return the constants of a file that need no call, and those that it imports from others."""
    values: dict[str, Any] = {"re": re}
    for node in tree_of(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chronograd."):
            source = SOURCES / f"{str(node.module).replace('.', '/')}.py"
            theirs = constants(source) if source in texts() else {}
            values |= {name.asname or name.name: theirs[name.name] for name in node.names if name.name in theirs}
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and (value := evaluated(node.value, values)) is not None:
                values[target.id] = value
    return values


def evaluated(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of a text, a number, or an expression of constants; None for any other."""
    try:
        return eval(compile(ast.Expression(node), "constant", "eval"), names)
    except Exception:
        return None


def text_of(node: ast.expr, names: dict[str, Any]) -> str | None:
    """Return the text of a pattern. An unknown value within it counts as a word."""
    value = evaluated(node, names)
    if value is None and isinstance(node, ast.JoinedStr):
        parts = [part if isinstance(part, ast.Constant) else ast.Constant("word") for part in node.values]
        value = "".join(str(part.value) for part in parts)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value.pattern if isinstance(value, re.Pattern) else value if isinstance(value, str) else None


def methods_of(path: Path, tree: ast.Module, call: ast.Call) -> set[str]:
    """Return the methods by which a compiled expression is used; `search`, the slowest, if none is visible."""
    names = [
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and call in ast.walk(node.value)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    seen = set()
    for name in names:
        places = [path] if name.startswith("_") else list(texts())
        seen |= {method for place in places for method in METHODS if f"{name}.{method}" in texts()[place]}
    return seen or {"search"}


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of `re` that take an expression, each with the name of its function."""
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        is_of_re = (
            isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"
        )
        if is_of_re and function.attr in (*METHODS, "compile"):
            yield function.attr, node


@cache
def uses() -> tuple[Use, ...]:
    """Return each regular expression of the product."""
    return tuple(use for path, text in texts().items() if "re." in text for use in _uses_in(path))


def _uses_in(path: Path) -> Iterator[Use]:
    place, tree = str(path.relative_to(SOURCES / "chronograd")), tree_of(path)
    for name, node in calls(tree):
        pattern = text_of(node.args[0], constants(path))
        if pattern is None:
            assert (place, ast.unparse(node.args[0])) in MADE, f"{place}: {ast.unparse(node)}"
            continue
        words = [word.value for word in node.keywords if word.arg == "flags"]
        at = 1 if name == "compile" else 2
        words += node.args[at : at + 1] if name not in ("sub", "subn", "split") else []
        flags = int(evaluated(words[0], constants(path)) or 0) if words else 0
        for how in methods_of(path, tree, node) if name == "compile" else {name}:
            yield Use(place, pattern, flags, how)


def test_no_expression_takes_quadratic_time() -> None:
    used, slow = set(), []
    for use in uses():
        if not (words := quadratic_words(use.pattern, use.how, use.flags)):
            continue
        reasons = [key for key in SHORT if key[0] == use.place and use.pattern.startswith(key[1])]
        used.update(reasons)
        if not reasons:
            slow.append(f"{use.place}: {use.how} of {use.pattern!r} on many {words[0]!r}")
    assert not slow, "use possessive or bounded repeats, or an anchor"
    assert used == set(SHORT), "reasons without an expression"


def test_all_expressions_are_listed() -> None:
    places = {use.place for use in uses()}
    assert places >= {"forecast/log_lines.py", "clouds/complaints.py", "configs/keys.py", "explain/device_time.py"}
    assert len(uses()) > 150


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (r"(\d+)\s*/\s*(\d+)", "search"),  # from each digit of a long number
        (r"\s*[:=]?\s*\d", "match"),  # blanks are divided in two
        (r"\w*dropout\w*", "fullmatch"),
        (r"\d++x", "search"),  # a possessive repeat still starts at each digit
        (r"(a+)+b", "match"),
        (r"(\w+\s?)*z", "match"),
        (r"\s+$", "sub"),
        (r"eyJ[\w-]{10,}\.", "search"),
        (r"step (\d+) (\{.*\})", "search"),
        (r"-+(BEGIN|END)", "search"),
        (r"<m>.*?</m>", "findall"),
        (r"(?=\s*x)\s*y", "search"),
    ],
)
def test_slow_expressions_are_reported(pattern: str, how: str) -> None:
    assert quadratic_words(pattern, how)


@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        (r"\d+", "search"),
        (r"\d+x", "match"),
        (r"(?<!\d)\d+x", "search"),
        (r"\bword\b.*", "search"),
        (r"\s*+[:=]?\s*+\d", "match"),
        (r"(?>\w*?dropout)\w*", "fullmatch"),
        (r"a{1,400}b", "search"),
        (r"^[^=]*=", "search"),
        (r"[a-z]+(\.[a-z]+)*", "fullmatch"),
        (r"\s*(\d+)\s*", "fullmatch"),
        (r"(?<![^:])[^:]*/", "sub"),
    ],
)
def test_linear_expressions_pass(pattern: str, how: str) -> None:
    assert not quadratic_words(pattern, how)
