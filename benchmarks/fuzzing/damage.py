"""Changes to inputs that keep them close to valid: to trees (JSON, YAML, TOML), lines, cells and folders."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import tomli_w
import yaml

from benchmarks.fuzzing.pack import KINDS, TARGETS, Entry, packed, unpacked

Mutator = Callable[[bytes, Random], bytes]
DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]
# Values of the wrong kind, size or content for most fields.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.5, 1e308, 5e-324),
    *(
        float("inf"),
        float("nan"),
        "",
        "a",
        " ",
        "\0",
        "é\u202e",
        "a" * 5000,
        "../..",
        "/etc/passwd",
        "~nobody/x",
        "nan",
    ),
    *(
        "1e999",
        "x\0.toml",
        "2001-99-99",
        "local",
        "none",
        [],
        {},
        [[]],
        [None],
        {"a": 1},
        {"": {}},
        DEEP,
        [1, 2],
        [[1, 2]],
    ),
)
# Fragments with a special meaning in a format.
TOKENS = (
    *(b"!!python/object/apply:os.system ['true']", b"!!python/name:os.system", b"!!binary aa", b"!!set {a}", b"!!int ''"),
    *(b"!!bool x", b"!!timestamp x", b"!!float ''", b"&a [*a]", b"*a", b"<<: *a", b"<<: {batch: 1}", b"2001-99-99"),
    *(b"2001-01-01", b".nan", b".inf", b"0x" + b"f" * 4000, b"1" * 5000, b"1:60:60.5", b"? [1, 2]", b"---\n", b"%YAML 9.9\n"),
    *(b"NaN", b"Infinity", b"1e999", b"-1", b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"\\ud800", b"[" * 2000, b"{" * 300),
    *(b"{\"a\":" * 300, b"a." * 300, b"\"", b"'", b",", b"\n", b"\r", b"\t", b"=", b":", b"#", b"[[a]]\n", b"[a]\n", b"null"),
    *(b"'descr': '|O'", b"'descr': '<i8'", b"'<f4'", b"'<c16'", b"'|S9'", b"(99999999999999999999,)", b"(10000000000,)", b"()"),
    *(b"cos\nsystem\n(S'true'\ntR.", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x80\x04"),
)  # fmt: skip


def of_bytes(data: bytes, random: Random) -> bytes:
    """Cut, double, overwrite or insert a token, without any knowledge of the format."""
    at, end = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
    near = min(len(data), at + random.choice((0, 1, 2, 8, 40)))
    return random.choice(
        (
            lambda: data[:at],
            lambda: data[:at] + data[near:],
            lambda: data[:at] + random.choice(TOKENS) + data[near:],
            lambda: data[:at] + random.randbytes(near - at) + data[near:],
            lambda: data[:end] + data[at:end][:400] * random.choice((1, 2, 9)) + data[end:],
        )
    )()


def of_json(data: bytes, random: Random) -> bytes:
    return _of_tree(data, random, json.loads, lambda tree: json.dumps(tree).encode())


def of_yaml(data: bytes, random: Random) -> bytes:
    """Change a tree and write it in YAML's block style or as JSON, which is valid YAML."""
    dump: Callable[[Any], str] = random.choice((lambda tree: str(yaml.safe_dump(tree)), json.dumps))
    return _of_tree(data, random, yaml.safe_load, lambda tree: dump(tree).encode())


def of_toml(data: bytes, random: Random) -> bytes:
    return _of_tree(data, random, lambda text: tomllib.loads(text.decode()), lambda tree: tomli_w.dumps(tree).encode())


def of_lines(data: bytes, random: Random) -> bytes:
    """Change, omit, double or move one line of JSON Lines."""
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    what = random.randrange(6)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(random.randint(0, len(lines)), lines[at])
    elif what == 2:
        random.shuffle(lines)
    else:
        lines[at] = of_json(lines[at], random)
    return b"\n".join(lines)


def of_cells(data: bytes, random: Random) -> bytes:
    """Change one cell of a table, or make a row longer or shorter."""
    try:
        rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
    except (UnicodeDecodeError, csv.Error):
        rows = []
    rows = [row for row in rows if row]
    if not rows or random.random() < 0.3:
        return of_bytes(data, random)
    row = random.choice(rows)
    what = random.randrange(5)
    if what == 0:
        row.append(random.choice(row))
    elif what == 1:
        row.pop()
    else:
        row[random.randrange(len(row))] = str(random.choice(VALUES))[:6000]
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


def of_text(data: bytes, random: Random) -> bytes:
    """Change one line of printed output: a number, a word, a separator; or omit, double, join or move the line."""
    lines = data.split(b"\n")
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[other:other] = [lines[at]] * random.choice((1, 1, 3, 40))
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] += random.choice((b"", b" ", b", ", b"\r", b"\x08")) + lines[other]
    elif kind == 4:
        lines[at] = of_bytes(lines[at], random)
    else:
        lines[at] = _with_other_word(lines[at], random)
    return b"\n".join(lines)


def _with_other_word(line: bytes, random: Random) -> bytes:
    """Replace a number, a word or a separator of a line by another one of the line, or by a hostile value."""
    pattern = random.choice((rb"[-+]?[0-9][0-9.e+-]*", rb"[A-Za-z_]+", rb"[^A-Za-z0-9\s]+", rb"\s+"))
    places = list(re.finditer(pattern, line))
    if not places:
        return line + random.choice(TOKENS)
    place, other = random.choice(places), random.choice(places)
    value = str(random.choice(VALUES)).encode("utf-8", "surrogatepass")[:500]
    word = random.choice(
        (other[0], value, place[0] * 2, b"", b"%s%%" % place[0], random.choice((b"=", b":", b"/", b"|", b" ")))
    )
    return line[: place.start()] + word + line[place.end() :]


def of_safetensors(data: bytes, random: Random) -> bytes:
    """Change the header as a tree, with a correct or wrong length; or change bytes."""
    size = int.from_bytes(data[:8], "little")
    if random.random() < 0.3 or not 2 <= size <= len(data) - 8:
        return of_bytes(data, random)
    head = of_json(data[8 : 8 + size], random)
    length = random.choice((len(head), len(head), len(head), size, 2**62))
    return length.to_bytes(8, "little") + head + data[8 + size :]


def of_pack(data: bytes, random: Random) -> bytes:
    """Change an entry of a folder in its format, or change its kind, double, rename or omit it."""
    entries = unpacked(data)
    if not entries or random.random() < 0.1:
        return of_bytes(data, random)
    at = random.randrange(len(entries))
    entry = entries[at]
    what = random.randrange(12)
    if what == 0:
        del entries[at]
    elif what == 1:
        kind = random.choice(KINDS)
        content = random.choice(TARGETS).encode() if kind == "link" else entry.content
        entries[at] = Entry(entry.name, content, kind)
    elif what == 2:
        entries.append(Entry(random.choice(entries).name + random.choice(("", "x", ".gz")), entry.content, entry.kind))
    elif what == 3:
        other = random.randrange(len(entries))
        entries[at], entries[other] = (
            Entry(entry.name, entries[other].content, entries[other].kind),
            Entry(entries[other].name, entry.content, entry.kind),
        )
    elif what == 4:
        names = (
            "steps.1.jsonl",
            "steps.٣.jsonl",
            "steps.007.jsonl",
            "record.json",
            "checkpoints/step-00000009",
            "usage.x.jsonl",
        )
        entries[at] = Entry(random.choice(names), entry.content, entry.kind)
    else:
        entries[at] = Entry(entry.name, _by_name(entry.name)(entry.content, random), entry.kind)
    return packed(entries)


def _by_name(name: str) -> Mutator:
    suffix = name.rpartition(".")[2]
    own = {"json": of_json, "jsonl": of_lines, "yaml": of_yaml, "toml": of_toml, "safetensors": of_safetensors}
    own |= {"csv": of_cells, "log": of_text, "txt": of_text}
    return own.get(suffix, of_bytes)


def _of_tree(data: bytes, random: Random, load: Callable[[bytes], Any], dump: Callable[[Any], bytes]) -> bytes:
    """Change a tree one or more times. Changes bytes if the tree cannot be read or written, and sometimes anyway."""
    if random.random() < 0.25:
        return of_bytes(data, random)
    try:
        tree = load(data)
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            tree = changed(tree, random)
        return dump(tree)
    except Exception:  # a mutator never fails: after any error of a library, change the input as bytes
        return of_bytes(data, random)


def changed(tree: Any, random: Random) -> Any:
    """Return a tree with one place replaced, omitted, doubled, or given another place's value."""
    places = _places(tree)
    if not places:
        return random.choice(VALUES)
    container, key = random.choice(places)
    other, other_key = random.choice(places)
    what = random.randrange(7)
    if what == 0:
        del container[key]
    elif what == 1:
        container[key] = other[other_key]
    elif what == 2 and isinstance(container, list):
        container.insert(random.randint(0, len(container)), container[key])
    elif what == 2:
        container[random.choice(("", "x", str(other_key), "a" * 300))] = container[key]
    elif what == 3:
        container[key] = _nudged(container[key], random)
    elif what == 4:
        container[key] = [container[key]]
    else:
        container[key] = random.choice(VALUES)
    return tree


def _nudged(value: Any, random: Random) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return random.choice(VALUES)
    if isinstance(value, str):
        return random.choice((value[:-1], value + "x", value * 2, value.upper(), value[::-1]))
    return random.choice((-value, value + 1, value - 1, value * 1e6, value / 3, str(value)))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every container and key of a tree, down to a depth beyond any valid file."""
    found: list[tuple[Any, Any]] = []
    waiting: Sequence[Any] = [tree]
    for _ in range(12):
        deeper: list[Any] = []
        for node in waiting:
            keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else []
            found += [(node, key) for key in keys]
            deeper += [node[key] for key in keys]
        waiting = deeper
    return found
