"""Written pages: `page.md` next to the code of a study, with numbers filled in and claims that are checked.

The answer: {soft.mean:.1%}.          the opening; in braces an expression over the study's values, and its format

- **{soft:%}** soft labels (3 seeds)  a highlight: value, label, detail

## Title                              a section, with the table and the figure of the study's block of that title

claim: soft > alone                   must hold for the text below it, up to the next claim or empty line

The first paragraph is the takeaway.

Further paragraphs stand above the figure.

Figure: This is its caption.

- This line stands below the takeaway.

A sentence of the opening or of a takeaway that calls one thing better than another needs a claim that tests it:

claim: soft > alone                   of two means over repeats, `>` holds only for p < 0.05
claim: not soft > alone               the text below must then contain a “no” or “not”

Values without chance need no test. Their claim names the basis instead:

claim predicted: time.two < time.one  or `counted`, or `published`

## Layers of *                       a section for each matching block that has no separate section

It has {block.layers} layers.        `block`: the values of that block
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from chronograd.answer import Highlight, Section, Table
from chronograd.errors import ChronogradError, FileFormatError, InputError, NotFoundError
from chronograd.figure import Figure
from chronograd.units import dollars, memory, number, seconds, si, signed
from chronograd_lab.common.rows import Difference, Spread

CAPTION = "Figure:"
CLAIM = re.compile(r"claim(?: (counted|predicted|published))?: (.+)")
# Words that call one thing better than another.
_VERDICTS = (
    r"wins?", r"winners?", r"won", r"loses?", r"beats?", r"better", r"(?<!\bat )(?<!\bAt )best", r"worse", r"worst",
    r"outperforms?", r"improves?", r"helps?", r"hurts?", r"sooner", r"faster", r"fastest", r"slower", r"slowest",
    r"(?:more|less|most|least) accurate",
    r"(?:learns?|returns?|ends|gains?) (?:significantly )?(?:more|less|most|least)",
)  # fmt: skip
VERDICT = re.compile(rf"\b(?:{'|'.join(_VERDICTS)})\b")
_NEGATION = re.compile(r"\b(?:no|not|none|neither|nothing|never|cannot)\b", re.I)
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
    for text in _paragraphs(head, values, is_checked, is_opening=True):
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


def _paragraphs(text: str, values: Mapping[str, Any], is_checked: bool, is_opening: bool = False) -> list[str]:
    """Return paragraphs and items of lists, filled in, without their claims.

    Verdicts are checked in the whole opening, and in the takeaway of a section, its first paragraph.
    """
    made: list[str] = []
    is_takeaway = True
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text.strip()):
        pieces = _pieces(paragraph)
        is_text = not paragraph.startswith("- ") and not any(words.startswith(CAPTION) for _, words in pieces)
        for claims, words in pieces if is_checked else ():
            _check(claims, filled(words, values), values, is_opening or (is_text and is_takeaway))
        is_takeaway = is_takeaway and not is_text
        made.append(" ".join(filled(words, values) for _, words in pieces if words))
    return [text for text in made if text]


def _pieces(paragraph: str) -> list[tuple[list[tuple[str, str]], str]]:
    """Return the sentences of a paragraph with the claims above them, each with its basis.

    >>> _pieces("claim: a > b\\nA is\\nbetter.\\nclaim counted: n == 3\\nOf three.")
    [([('a > b', '')], 'A is better.'), ([('n == 3', 'counted')], 'Of three.')]
    """
    pieces: list[tuple[list[tuple[str, str]], str]] = [([], "")]
    for line in paragraph.splitlines():
        claims, words = pieces[-1]
        if match := CLAIM.fullmatch(line.strip()):
            claim = (match[2], match[1] or "")
            pieces[-1:] = [(claims, words), ([claim], "")] if words else [([*claims, claim], "")]
        else:
            pieces[-1] = claims, " ".join([*words.split(), *line.split()])
    return pieces


def _check(claims: Sequence[tuple[str, str]], sentence: str, values: Mapping[str, Any], is_quoted: bool) -> None:
    """Raise ClaimError for a claim that does not hold, and for a quoted verdict that no claim tests."""
    for claim, basis in claims:
        if not holds(claim, values):
            raise ClaimError(
                f"the results do not support “{sentence}”", f"“{claim}” is false: correct the sentence and its claim"
            )
        if basis and _varies(claim, values):
            raise ClaimError(
                f"“{claim}” compares means over repeats, and is called {basis}", "leave the basis out and test it"
            )
    verdict = VERDICT.search(sentence) if is_quoted else None
    if not verdict or any(basis for _, basis in claims):
        return
    tests = [is_shown for claim, _ in claims for is_shown in tests_of(claim, values)]
    if not tests:
        raise ClaimError(
            f"no claim tests “{verdict[0]}” in “{sentence}”",
            "compare means over repeats, name a basis (`claim predicted: …`), or write the sentence without a verdict",
        )
    if not any(tests) and not _NEGATION.search(sentence):
        raise ClaimError(
            f"“{verdict[0]}” in “{sentence}” has a test that shows no difference", "write “no” or “not”, and its p"
        )


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


def tests_of(claim: str, values: Mapping[str, Any]) -> list[bool]:
    """Return for each of Welch's tests that a claim reads whether it shows a difference; a negated one shows none.

    >>> means = {"a": Spread(0.82, 0.005, 3), "b": Spread(0.80, 0.005, 3)}
    >>> [tests_of(claim, means) for claim in ("a > b", "not (a - b).is_seen", "(a - b).p < 0.05", "(a - b).p > 0.05")]
    [[True], [False], [True], [False]]
    >>> tests_of("a.mean > b.mean and a.n > 1", means)
    []
    """
    return _tests(ast.parse(claim, mode="eval").body, values, True)


def _tests(node: ast.AST, values: Mapping[str, Any], is_shown: bool) -> list[bool]:
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tests(operand, values, not is_shown)
        case ast.Attribute(value=owner, attr="is_seen") if isinstance(_value(owner, values), Difference):
            return [is_shown]
        case ast.Compare(left=left, ops=[op], comparators=[_]) if _reads_p(left, values):
            return [is_shown == isinstance(op, ast.Lt | ast.LtE)]
        case ast.Compare(left=left, comparators=others):
            sides = [_value(side, values) for side in (left, *others)]
            return [is_shown] * (len(sides) - 1) if all(isinstance(side, Spread) for side in sides) else []
    return [test for child in ast.iter_child_nodes(node) for test in _tests(child, values, is_shown)]


def _reads_p(node: ast.AST, values: Mapping[str, Any]) -> bool:
    """Return whether an expression has the p of a difference, perhaps times a number."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "p" and isinstance(_value(part.value, values), Difference)
        for part in ast.walk(node)
    )


def _varies(claim: str, values: Mapping[str, Any]) -> bool:
    """Return whether a claim reads a mean over repeats."""
    read = [node for node in ast.walk(ast.parse(claim, mode="eval")) if isinstance(node, ast.Name | ast.Attribute)]
    return any(isinstance(value, Spread) and value.n > 1 for value in (_value(node, values) for node in read))


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
