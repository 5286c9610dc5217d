"""Written pages: `page.md` next to the code of a study, with numbers filled in and claims that are checked.

The answer: {soft.mean:.1%}.          the opening; in braces an expression over the study's values, and its format

- **{soft:%}** soft labels (3 seeds)  a highlight: value, label, detail

## Title                              a section, with the table and the figure of the study's block of that title

claim: soft > alone                   must hold for the text below it, up to the next claim or empty line

The first paragraph is the takeaway.

Further paragraphs stand above the figure.

Figure: This is its caption.

- This line stands below the takeaway.

## Layers of *                       a section for each matching block that has no separate section

It has {block.layers} layers.        `block`: the values of that block
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chronograd.answer import Highlight, Section, Table
from chronograd.errors import ChronogradError, FileFormatError, InputError, NotFoundError
from chronograd.figure import Figure
from chronograd.units import dollars, memory, number, seconds, si, signed

CLAIM, CAPTION = "claim:", "Figure:"
_FILL = re.compile(r"\{([^{}]+)\}")
_HIGHLIGHT = re.compile(r"- \*\*(.+?)\*\* (.+?)(?: \((.+)\))?")
_FORMS: dict[str, Callable[[float], str]] = {
    "time": seconds, "memory": memory, "dollars": dollars, "number": number, "bytes": lambda value: si(value, "B"),
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


class ClaimError(ChronogradError):
    """Results do not support a sentence of a page."""


@dataclass(frozen=True)
class Block:
    """The content of a section. `values`: visible only to its text, as `block`."""

    table: Table | None = None
    figure: Figure | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Written:
    """The text of a page, filled in."""

    opening: list[str] = field(default_factory=list)
    highlights: list[Highlight] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)


def key(name: str) -> str:
    """Return the name of an arm in a page.

    >>> key("annealed, 1 to 0.05"), key("small-cnn")
    ('annealed_1_to_0_05', 'small_cnn')
    """
    return re.sub(r"\W+", "_", name)


def read_page(path: Path, values: Mapping[str, Any], blocks: Mapping[str, Block], is_checked: bool = True) -> Written:
    """Fill in a page and check its claims.

    Raises: ClaimError for a claim that does not hold, unless `is_checked` is False; NotFoundError for a value that the study
    does not have; InputError for one that cannot be compared or printed; FileFormatError for a page without the section of a
    block.
    """
    head, *parts = re.split(r"^## +(.+)\n", path.read_text(encoding="utf-8"), flags=re.M)
    page = Written()
    for text in _paragraphs(head, values, is_checked):
        if match := _HIGHLIGHT.fullmatch(text):
            page.highlights.append(Highlight(match[2], match[1], match[3] or ""))
        else:
            page.opening.append(text)
    bodies = dict(zip(map(str.strip, parts[::2]), parts[1::2], strict=True))
    for heading, body in bodies.items():
        for title in _titles(heading, [name for name in blocks if name not in bodies]):
            block = blocks.get(title, Block())
            page.sections.append(
                _section(title, _paragraphs(body, {**values, "block": block.values}, is_checked), block)
            )
    if missing := blocks.keys() - {section.title for section in page.sections}:
        raise FileFormatError(f"{path} lacks the sections {sorted(missing)}")
    return page


def _titles(heading: str, others: list[str]) -> list[str]:
    """Return the titles of a heading: itself, or with a `*` those of the other blocks that match.

    >>> _titles("Layers of *", ["Times", "Layers of A", "Layers of B"])
    ['Layers of A', 'Layers of B']
    """
    pattern = heading.replace("[", "[[]")
    return [title for title in others if fnmatchcase(title, pattern)] if "*" in heading else [heading]


def _section(title: str, paragraphs: list[str], block: Block) -> Section:
    lines = [text.removeprefix("- ") for text in paragraphs if text.startswith("- ")]
    captions = [text.removeprefix(CAPTION).strip() for text in paragraphs if text.startswith(CAPTION)]
    takeaway, *intro = [text for text in paragraphs if not text.startswith(("- ", CAPTION))] or [""]
    return Section(
        title,
        takeaway,
        " ".join(intro),
        figure=block.figure,
        caption=" ".join(captions),
        table=block.table,
        lines=lines,
    )


def _paragraphs(text: str, values: Mapping[str, Any], is_checked: bool) -> list[str]:
    """Return paragraphs and items of lists, filled in, without their claims."""
    made = []
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text.strip()):
        pieces = []
        for part in re.split(rf"^(?={CLAIM})", paragraph, flags=re.M):
            claim, _, words = part.removeprefix(CLAIM).partition("\n") if part.startswith(CLAIM) else ("", "", part)
            pieces.append((claim.strip(), filled(" ".join(words.split()), values)))
        for place, (claim, _) in enumerate(pieces):
            if claim and is_checked and not holds(claim, values):
                sentence = next((words for _, words in pieces[place:] if words), "")
                raise ClaimError(
                    f"the results do not support “{sentence}”",
                    f"“{claim}” is false: correct the sentence and its claim",
                )
        made.append(" ".join(words for _, words in pieces if words))
    return [text for text in made if text]


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Fill values into a text.

    >>> filled("{100 * share:.0f} of 100 in {t.all:time}; {share - 1:.1%}", {"share": 0.25, "t": {"all": 90}})
    '25 of 100 in 1 min 30 s; −75.0 %'
    """

    def fill(match: re.Match[str]) -> str:
        expression, _, form = match[1].partition(":")
        value = value_of(expression, values)
        try:
            return printed(value, form)
        except (TypeError, ValueError) as error:  # such as None for a value that was not measured
            raise InputError(f"{match[0]} of a page is {value!r}: {error}") from None

    return _FILL.sub(fill, text)


def printed(value: Any, form: str = "") -> str:
    """Print a value in a format of Python, with a blank before `%` and a real minus, or as `time`, `memory`, `dollars`,
    `bytes`, `number`.
    """
    if form in _FORMS:
        return _FORMS[form](value)
    if form.endswith("%") and isinstance(value, int | float):
        return signed(f"{100 * value:{form[:-1]}f} %")
    return format(value, form) if isinstance(value, str) else signed(format(value, form))


def holds(claim: str, values: Mapping[str, Any]) -> bool:
    """Return whether a claim is true. Raises InputError for an expression that is neither true nor false."""
    result = value_of(claim, values)
    if str(result) not in ("True", "False"):  # bool, or that of NumPy
        raise InputError(f"claim {claim!r} is {result!r}", "a claim compares values")
    return bool(result)


def value_of(expression: str, values: Mapping[str, Any]) -> Any:
    """Evaluate names, their fields, numbers, texts, arithmetic and comparisons; no calls.

    >>> value_of("a.mean / 2 > 1 and not b == 'x'", {"a": {"mean": 4}, "b": "y"})
    True
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, values)
    except (SyntaxError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise InputError(f"expression {expression.strip()!r} has no value: {error}") from None


def _value(node: ast.AST, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return _field(values, name)
        case ast.Attribute(value=owner, attr=name) if not name.startswith("_"):
            owned = _value(owner, values)
            return _field(owned, name) if isinstance(owned, Mapping) else getattr(owned, name)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(_value(part, values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            sides = [_value(side, values) for side in (left, *others)]
            return all(_OPERATORS[type(op)](a, b) for op, a, b in zip(ops, sides[:-1], sides[1:], strict=True))
    raise TypeError(f"{ast.unparse(node)!r} is not allowed here")


def _field(values: Mapping[str, Any], name: str) -> Any:
    if name not in values:
        raise NotFoundError("value of the study", name, values)
    return values[name]
