"""Check the words that people read: docs, messages, docstrings, comments and names of tests, by CONTRIBUTING.md.

Run `python tools/words.py [PATH]...` for a list of faults, or with `--count` for their number by folder.
It fails if there is a fault. `--sample N` prints N random sentences of each kind; `--lengths` prints sentence lengths.
"""

from __future__ import annotations

import ast
import inspect
import io
import random
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent
MAX_WORDS = 30  # of a sentence
MIN_MESSAGE = 6  # words in a string that make it a message
PAGES, MESSAGES, DOCSTRINGS, COMMENTS = KINDS = ("README and docs", "help and messages", "docstrings", "comments")
# History; formats; generated from the help; these rules.
NOT_READ = ("docs/decisions/", "docs/schemas/", "docs/reference.md", "tools/words.py")
NAMES = "names of tests"
MAX_NAME = 60  # letters of a name

# Words that open a clause, and section names of a docstring that has no summary.
OPENINGS = re.compile(
    "(?:"
    "of|what|whatever|whether|where|wherever|those|which|whichever|that|how|why|when|while|"
    "who|whoever|whose|if|so|as|because|from|by|with|without|in|on|at|under|over|between|"
    "among|for|to|until|within|its|their|against|after|before|than|not|no|nor|and|or|but|"
    "either|neither|like|per|through|during|toward|towards|about"
    r"|(?:raises|args|returns|attributes|yields):|>>>)(?!\w)",
    re.IGNORECASE,
)
IS = r"(?:is|are|was|were|be|been|being|gets?|got)(?: \w+ly| not| never| also| only)?"
PHRASES = {
    rf"{IS} (?:told|said|found|noted|held against|looked at|kept|put out)": "passive: name who does it",
    r"told apart": "distinguished, significantly different",
    r"held (?:against|to)": "compared with, checked against",
    r"at hand": "available, installed",
    r"of (?:one's|your|its|their|our|his|my|an?|\w+s') own": "your, custom, its own …",
    r"of (?:ours|theirs|mine|yours)": "our …, their …",
    r"puts? out": "output",
    r"(?:so|as) many(?! as)": "the number itself",
    r"as many as there are": "one for each",
    r"of which|that which|of what|of whom": "use the noun",
    r"(?:the|a|its|their|own|same|at) paces?": "speed",
    r"one by one": "individually",
    r"noted": "logged, recorded",
    r"nothing says|says nothing": "there is no measurement of",
    r"under-cover": "too few fall inside the interval",
    r"void": "unreliable, invalid",
    r"bears": "covers, allows",
    r"in so far|insofar|thereof|therein|whereof|wherein|hereby|anew": "plain words",
    r"(?:may|must|can|need|would|could) well": "may",
    r"kept": "stored, saved, cached, remaining",
    r"beside": "next to, in addition to, compared with",
    r"apart": "separate, separately",
    r"it is (?:of|that)": "say it directly",
    r"middle 80 %": "80 % interval",
}
TABLE = {
    re.compile(rf"(?<![\w`/-])(?:{pattern})(?![\w`-])", re.IGNORECASE): advice for pattern, advice in PHRASES.items()
}
# Names of tests state a subject and an outcome.
NAME_PHRASES = {
    r"(?:what|whatever|whoever|who)": "name the subject",
    r"(?:is|are|was|were) (?:told|said|found|kept|named|noted|held|seen|made|put)": "name the outcome: reported, saved",
    r"(?:says?|tells?) (?:so|what|which|how|why|when)": "states, reports",
    r"(?:of (?:ones?|its|their|your) own|one s own)": "custom, separate",
    r"(?:so|as) many": "the number itself",
    r"such as (?:is|are)|of which|that which|beside|apart|at hand|held against|paces?|anew|one by one": "plain words",
}
NAME_TABLE = {re.compile(rf"(?<!\w)(?:{pattern})(?!\w)"): advice for pattern, advice in NAME_PHRASES.items()}


@dataclass(frozen=True)
class Text:
    """A piece of text that people read, with its place."""

    path: Path
    line: int
    kind: str
    words: str

    def sentences(self) -> list[str]:
        """Return its sentences. Code between backquotes and the target of a link count as one word."""
        text = re.sub(r"^\s*(?:\$ )?(?:chronograd|python) .*$", "", self.words, flags=re.MULTILINE)  # examples
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"``?[^`]*``?", "`code`", text))
        parts = re.split(r"(?<=[.!?…])[\])\"”'*_]*\s+(?=[^a-z(])|(?<=:)\s*\n\s*|\n\s*\n", plain)
        return [" ".join(part.split()) for part in parts if part.strip()]


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, list items and headings of Markdown with their first line; not code, tables, or HTML."""
    lines, start, is_code = [], 1, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith(("```", "~~~"))
        starts_anew = re.match(r"\s*(?:[-*+] |\d+\. |#|>)", line)
        if is_fence or is_code or not line.strip() or line.lstrip().startswith(("|", "<", "![")) or starts_anew:
            if lines:
                yield start, "\n".join(lines)
            lines = []
        is_code ^= is_fence
        if (starts_anew and not is_code) or (
            line.strip() and not is_fence and not is_code and line.lstrip()[0] not in "|<!"
        ):
            start = start if lines else number
            lines.append(re.sub(r"^\s*(?:[-*+] |\d+\. |#+ |> )", "", line))


def summary_of(docstring: str) -> str:
    """Return a docstring without its doctests and the names of its sections."""
    lines = docstring.splitlines()
    shown = [line for at, line in enumerate(lines) if not is_doctest(lines, at)]
    text = "\n".join(
        "" if re.fullmatch(r"\s*(Args|Returns|Raises|Attributes|Yields|Shapes?):", line) else line for line in shown
    )
    text = re.sub(
        r"^Raises.*?(?=\n\n|\Z)", lambda listed: listed[0].replace("; ", "\n\n"), text, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"\n(?=\s*[\w.*, ]+: |Raises| +\S+.*  )", "\n\n", text)  # sections, items, and rows of columns


def is_doctest(lines: list[str], at: int) -> bool:
    """Return whether a line belongs to a doctest: the prompt, or its output up to an empty line."""
    while at >= 0 and lines[at].strip():
        if lines[at].lstrip().startswith(">>>"):
            return True
        at -= 1
    return False


def is_test(path: Path) -> bool:
    """Return whether a file belongs to the tests, whose messages no user reads."""
    return path.name.startswith("test_") or ROOT / "tests" in path.parents


def of_python(path: Path) -> Iterator[Text]:
    """Yield docstrings, messages and comments of a file; of tests their names in place of messages."""
    for text in all_of_python(path):
        if text.kind != (MESSAGES if is_test(path) else NAMES):
            yield text


def all_of_python(path: Path) -> Iterator[Text]:
    """Yield docstrings, messages, comments and names of tests of a file."""
    source = path.read_text()
    tree = ast.parse(source)
    docstrings, inside = set(), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for at, statement in enumerate(body if isinstance(body, list) else ()):
            is_first = at == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if (
                isinstance(statement, ast.Expr)
                and isinstance(value := statement.value, ast.Constant)
                and isinstance(value.value, str)
            ):
                docstrings.add(id(value))
                kind = DOCSTRINGS if is_first else MESSAGES  # a string below a field is the help of an option
                yield Text(path, value.lineno, kind, without_indent(value.value))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(path, node.lineno, NAMES, node.name)
        if isinstance(node, ast.JoinedStr):
            inside.update(id(child) for child in ast.walk(node) if child is not node)
    for node in ast.walk(tree):
        if id(node) not in inside and id(node) not in docstrings and (words := message(node)):
            yield Text(path, getattr(node, "lineno", 1), MESSAGES, words)
    yield from comments(path, source)


def without_indent(docstring: str) -> str:
    """Return a docstring without its indentation."""
    return inspect.cleandoc(docstring)


def message(node: ast.AST) -> str:
    """Return the text of a string or f-string that reads like a sentence, with … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    else:
        return ""
    is_prose = len(re.findall(r"\b[a-z’']{2,}\b", text)) >= MIN_MESSAGE and not re.search(
        r"[{}]|\n\s+\w+\(|^\s*(import|def|#!)\b", text
    )
    return text if is_prose and " " in text.strip() else ""


def comments(path: Path, source: str) -> Iterator[Text]:
    """Yield comments; lines that follow each other at the same column are one."""
    rows: list[tuple[int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("#: ").strip()
            if not re.match(r"(type:|noqa|fmt:|pragma|mypy:|!)", words):
                rows.append((*token.start, words))
    while rows:
        line, column, words = rows.pop(0)
        last = line
        while rows and rows[0][:2] == (last + 1, column):
            last, _, more = rows.pop(0)
            words += "\n" + more
        yield Text(path, line, COMMENTS, words)


def texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield all texts of files."""
    for path in paths:
        if path.suffix == ".py":
            yield from of_python(path)
        elif path.suffix == ".md":
            source = (
                re.sub(r"^claim(?: \w+)?:.*$", "", path.read_text(), flags=re.MULTILINE)
                if path.name == "page.md"
                else path.read_text()
            )
            yield from (Text(path, line, PAGES, words) for line, words in prose(source))


def name_faults(name: str) -> Iterator[str]:
    """Yield the faults of the name of a test."""
    if len(name) > MAX_NAME:
        yield f"{len(name)} letters: {name}"
    for pattern, advice in NAME_TABLE.items():
        if match := pattern.search(name.replace("_", " ")):
            yield f"{match[0]!r} in {name}: {advice}"


def faults(text: Text) -> Iterator[str]:
    """Yield the faults of a text."""
    if text.kind == NAMES:
        yield from name_faults(text.words)
        return
    plain = re.sub(r"``?[^`]*``?", "`code`", summary_of(text.words) if text.kind == DOCSTRINGS else text.words)
    if text.kind == DOCSTRINGS and (opening := OPENINGS.match(text.words)):
        yield f"starts with {opening[0]!r}"
    for sentence in Text(text.path, text.line, text.kind, plain).sentences():
        if (count := len(re.findall(r"[^\W_][\w’'.,/%-]*", sentence))) > MAX_WORDS:
            yield f"{count} words: {sentence[:60]}…"
    for pattern, advice in TABLE.items():
        for match in pattern.finditer(" ".join(plain.split())):
            yield f"{match[0]!r}: {advice}"


def files(arguments: list[str]) -> list[Path]:
    """Return the files in git to check: the named ones, or all."""
    names = subprocess.run(
        ["git", "ls-files", "--", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [
        ROOT / name
        for name in names
        if name.endswith((".py", ".md")) and not name.startswith(NOT_READ) and (ROOT / name).is_file()
    ]


def main(arguments: list[str]) -> int:
    """Print the faults, their number by folder, a sample, or lengths."""
    options = [word for word in arguments if word.startswith("-")]
    numbers = [int(word) for word in arguments if word.isdigit()]
    all_texts = list(texts(files([word for word in arguments if not word.startswith("-") and not word.isdigit()])))
    if "--sample" in options:
        return print_sample(all_texts, numbers[0] if numbers else 20)
    if "--lengths" in options:
        return print_lengths(all_texts)
    wrong = [(text, fault) for text in all_texts for fault in faults(text)]
    if "--count" in options:
        for folder, number in sorted(Counter("/".join(t.path.relative_to(ROOT).parts[:3]) for t, _ in wrong).items()):
            print(f"{number:>6}  {folder}")
        print(Counter(re.sub(r"\d+ words.*", "long", fault.split(":")[0]) for _, fault in wrong).most_common(60))
    else:
        for text, fault in wrong:
            print(f"{text.path.relative_to(ROOT)}:{text.line}: {fault}")
    print(f"{len(wrong)} faults in {len(all_texts):,} texts")
    return int(bool(wrong))


def print_sample(all_texts: list[Text], number: int) -> int:
    """Print random sentences of each kind, the same ones at each run."""
    by_kind = defaultdict(list)
    for text in all_texts:
        by_kind[text.kind].extend(sentence for sentence in text.sentences() if len(sentence.split()) > 3)
    for kind in KINDS:
        print(f"\n{kind}")
        print(
            *(f"- {line}" for line in random.Random(33).sample(by_kind[kind], min(number, len(by_kind[kind])))),
            sep="\n",
        )
    return 0


def print_lengths(all_texts: list[Text]) -> int:
    """Print the mean and the greatest number of words in a sentence, by kind."""
    by_kind = defaultdict(list)
    for text in all_texts:
        if text.kind == NAMES:
            continue
        words = summary_of(text.words) if text.kind == DOCSTRINGS else text.words
        kind = "README" if text.path.name == "README.md" and text.path.parent == ROOT else text.kind
        by_kind[kind].extend(
            len(s.split()) for s in Text(text.path, text.line, text.kind, words).sentences() if len(s.split()) > 2
        )
    for kind, counts in by_kind.items():
        print(f"{kind}: {len(counts):,} sentences, mean {fmean(counts):.1f} words, longest {max(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
