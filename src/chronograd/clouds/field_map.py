r"""The corresponding fields of all platforms, detected by rendering one job twice with one word changed.

This module does not know the fields of a platform: the difference between the two files shows the field of the word. If only
arguments of the command differ, the platform has no field for it. Paths are keys and indices joined by dots, a dot within a key
as `\.`.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from chronograd import job as jobs
from chronograd.answer import Answer, Section, Table
from chronograd.clouds import fields, registry
from chronograd.clouds.example import DATA, OPTIONS
from chronograd.clouds.fields import MISSING, CloudPlatform
from chronograd.clouds.submission import ENTRY, UNSAID, Submission, decode, submission
from chronograd.job import Job

# Words of a job file or the command line, in reading order, with a description.
WORDS = {
    "name": "name",
    "command": "command",
    "hyper_parameter": "hyper-parameter",
    "image": "image",
    "framework_version": "framework version",
    "code": "stored code",
    "instance": "instance type",
    "nodes": "number of nodes",
    "disk_gb": "disk",
    "data": "data channel",
    "output": "output",
    "checkpoints": "checkpoints",
    "limit_s": "time limit",
    "max_cost_usd": "cost limit",
    "spot": "spot machines",
    "restarts": "restarts",
    "environment": "variable",
    "secrets": "secret",
    "tags": "tag",
    "role": "role",
    "project": "project",
}
REST = "rest"  # values of a file that belong to no word
# The changes apply to the job of the example: one process on a CPU, which every platform has.
EXAMPLE: dict[str, Any] = {
    "network": {"name": "resnet20"},
    "data": {"name": "digits"},
    "training": {"batch": 64, "epochs": 3, "learning_rate": 0.05},
}
# Words that the example omits on some platforms. Nothing is checked here, so any text will do.
_GIVEN = {"role": "trainer", "project": "lab", "code": "stored", "disk_gb": 200, "restarts": 2, "max_cost_usd": 20.0}


def example_job() -> Job:
    """Return the job of the example: ResNet-20 on digits."""
    return jobs.from_dict(EXAMPLE)


def example(platform: CloudPlatform) -> Submission:
    """Return the example for a platform, with the usual options there."""
    given = {**OPTIONS[platform.name], "data": {"data": DATA[platform.name]}}
    return submission(example_job(), platform.catalogue, **given)


def moved(platform: CloudPlatform, word: str) -> dict[str, list[str]]:
    """Return the places of a word in a platform's file: `paths` of its fields, and `arguments` of the command.

    Raises KeyError for a word that is not in `WORDS`.
    """
    asked = example(platform)
    if word == "command":
        document = fields.document(platform, asked)
        return {"paths": [p for p, v in fields.leaves(document) if ENTRY[-1] in str(v)], "arguments": []}
    before, after = _pair(platform, asked, word)
    old, new = (dict(fields.leaves(fields.document(platform, one))) for one in (before, after))
    names = list(_changed_arguments(platform, before, after))
    within = {UNSAID if name.startswith(f"{UNSAID}.") else name for name in names}
    differing = [path for path in old if old[path] != new.get(path, MISSING)] or [
        path for path in new if path not in old
    ]
    paths = [path for path in differing if not _is_argument(path, old.get(path), new.get(path), within)]
    return {"paths": paths, "arguments": names if not paths else []}


def _pair(platform: CloudPlatform, asked: Submission, word: str) -> tuple[Submission, Submission]:
    """Return two submissions that differ in one word. For the number of nodes both have several, because a single node has
    another file structure.
    """
    asked = asked.model_copy(update={k: v for k, v in _GIVEN.items() if not getattr(asked, k)} | {"spot": False})

    def pair(old: Any, new: Any) -> tuple[Submission, Submission]:
        return asked.model_copy(update={word: old}), asked.model_copy(update={word: new})

    if word == "hyper_parameter":
        training = {**EXAMPLE["training"], "learning_rate": 0.2}
        return asked, asked.model_copy(update={"job": jobs.from_dict({**EXAMPLE, "training": training})})
    if word == "instance":
        first, *_, last = (one for one in platform.catalogue.instance if one.count)
        old, new = (asked.model_copy(update={"instance": i.name, "devices": i.count}) for i in (first, last))
        return old, new
    if word == "nodes":
        return pair(2, 3)
    if word == "spot":
        return pair(True, False)
    if word == "secrets":
        (name, reference), *_ = asked.secrets.items()
        return pair(asked.secrets, {f"{name}_2": reference.replace(name, f"{name}_2")})
    value = getattr(asked, word)
    if isinstance(value, dict):
        first = next(iter(value))
        return pair(value, {**value, first: f"{value[first]}-2"})
    return pair(value, value + 1 if isinstance(value, int | float) else f"{value}-2")


def _changed_arguments(platform: CloudPlatform, before: Submission, after: Submission) -> Iterator[str]:
    """Yield the arguments of the command that differ; for words that share one JSON object, the words in it."""
    old, new = (fields.job_arguments(platform, one) for one in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) == new.get(name):
            continue
        if name == UNSAID:
            was, becomes = (decode(one.get(name, "{}")) for one in (old, new))
            yield from (
                f"{name}.{word}" for word in dict.fromkeys([*was, *becomes]) if was.get(word) != becomes.get(word)
            )
        else:
            yield name


def _is_argument(path: str, old: Any, new: Any, names: set[str]) -> bool:
    """Return whether two values differ only in arguments of the command: words of a line, or words without a field."""
    if path.endswith(f".{UNSAID}"):
        return True

    def rest(value: Any) -> list[str]:
        words = shlex.split(value) if isinstance(value, str) else [str(value)]
        return [word for word in words if word.partition("=")[0] not in names]

    return bool(names) and rest(old) == rest(new)


def field_map(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each word and platform."""
    return [
        {"word": word, "platform": name, **moved(registry.platform(name), word)}
        for word in WORDS
        for name in names or registry.names()
    ]


def field_map_section(rows: Sequence[dict[str, Any]]) -> Section:
    """Return a table of words with a line for each platform."""
    platforms = list(dict.fromkeys(row["platform"] for row in rows))
    shown = [
        [WORDS[row["word"]] if row["platform"] == platforms[0] else "", row["platform"], _where(row)] for row in rows
    ]
    fielded = with_field(rows)
    everywhere = [WORDS[word] for word in WORDS if all(fielded[word])]
    nowhere = [WORDS[word] for word in WORDS if not any(fielded[word])]
    return Section(
        "The same thing in each platform's words",
        f"{len(everywhere)} of {len(WORDS)} words have a field on every platform ({', '.join(everywhere)}), "
        f"{len(nowhere)} on none ({', '.join(nowhere)}).",
        "To find a field, we render the example twice, with one word changed, and compare the files. If only the command "
        "differs, the platform has no field.",
        table=Table(("word", "platform", "field"), shown),
        data=[dict(row) for row in rows],
    )


def with_field(rows: Sequence[dict[str, Any]]) -> dict[str, list[bool]]:
    """Return for each word whether each platform has a field for it. A word within the command has none."""
    commands = {row["platform"]: set(row["paths"]) for row in rows if row["word"] == "command"}
    fielded: dict[str, list[bool]] = {}
    for row in rows:
        others = set(row["paths"]) - (commands[row["platform"]] if row["word"] != "command" else set())
        fielded.setdefault(row["word"], []).append(bool(others))
    return fielded


def _where(row: dict[str, Any]) -> str:
    if row["paths"]:
        return "\n".join(_broken(path) for path in row["paths"])
    return f"no field: argument {', '.join(row['arguments'])}" if row["arguments"] else "not said"


def _broken(path: str, most: int = 46) -> str:
    """Return a path broken before dots into lines that fit a narrow terminal."""
    lines = [""]
    for key in re.split(r"(?<!\\)(?=\.)", path):
        if len(lines[-1]) + len(key) > most and lines[-1]:
            lines.append("  ")
        lines[-1] += key
    return "\n".join(lines)


def mapped() -> Answer:
    """Return the map of all platforms."""
    rows = field_map()
    return Answer("Field map", sections=[field_map_section(rows)], data=rows)


# -- the files next to each other ---------------------------------------------------------------------------


def side_by_side(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the example's files on some platforms, field by field: a row for each word that a file has, and one for the rest.

    `lines` of a row has, for each platform, its paths with their values. Every value of a file is in exactly one row. A value
    without a word, such as the kind of a mount, joins the word that alone has values next to it.
    """
    placed = {name: _placed(registry.platform(name)) for name in names}
    words = [*WORDS, REST]
    return [
        {"word": word, "lines": {name: placed[name].get(word, []) for name in names}}
        for word in words
        if any(placed[name].get(word) for name in names)
    ]


def _placed(platform: CloudPlatform) -> dict[str, list[tuple[str, str]]]:
    """Return the paths and values of the example's file by the word that they belong to."""
    leaves = dict(fields.leaves(fields.document(platform, example(platform))))
    of = {_numberless(path): word for word in reversed(WORDS) for path in moved(platform, word)["paths"]}
    of |= {
        _numberless(path): "hyper_parameter"
        for path, value in leaves.items()
        if str(value).startswith("training.learning_rate=")
    }
    placed: dict[str, list[tuple[str, str]]] = {}
    for path, value in leaves.items():
        placed.setdefault(_word_of(_numberless(path), of), []).append((path, _as_text(value)))
    return placed


def _word_of(path: str, of: dict[str, str]) -> str:
    """Return the word of a path, or the only word of the innermost object or list around it that has any.

    >>> of = {"image.uri": "image", "image.tag": "image", "spec.name": "name", "spec.time": "limit_s"}
    >>> _word_of("image.policy", of), _word_of("spec.kind", of)
    ('image', 'rest')
    """
    if path in of:
        return of[path]
    for around in _around(path):
        words = {word for other, word in of.items() if other.startswith(around)}
        if words:
            return words.pop() if len(words) == 1 else REST
    return REST


def _around(path: str) -> Iterator[str]:
    """Yield the objects and lists around a path, the innermost first."""
    keys = re.split(r"(?<!\\)\.", path)
    for length in range(len(keys) - 1, 0, -1):
        yield ".".join(keys[:length]) + "."


def _numberless(path: str) -> str:
    """Return a path with 0 for every index, because the entries of a list have the same fields."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "0", path)


# -- moving from one platform to another -------------------------------------------------------------------


def files() -> list[dict[str, Any]]:
    """Return the example's file on each platform: its text and its values."""
    made = []
    for name in registry.names():
        platform = registry.platform(name)
        asked = example(platform)
        document = fields.document(platform, asked)
        made.append(
            {
                "platform": name,
                "file": platform.file,
                "text": fields.dump(platform, document),
                "values": [_as_text(value) for _, value in fields.leaves(document)],
                "arguments": len(fields.job_arguments(platform, asked)),
                "options": _options(name),
            }
        )
    return made


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _options(name: str) -> dict[str, str]:
    """Return the options of `chronograd launch` for the example on a platform, by option."""
    return {
        option: _as_text(value)
        for option, value in {**OPTIONS[name], "data": {"data": DATA[name]}}.items()
        if not fields.is_empty(value)
    }


def _words(value: str) -> set[str]:
    return set(re.split(r"[\s=]+", value))


def moves(made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the new parts of one platform's file compared with another's, and the changes in our command.

    Lines are compared without their indentation and commas. Values are compared word by word, because a shell line has many.
    """
    rows = []
    for source, target in itertools.permutations(made, 2):
        lines = [[line.strip().rstrip(",") for line in one["text"].splitlines()] for one in (source, target)]
        kept = sum(
            block.size
            for block in difflib.SequenceMatcher(None, lines[0], lines[1], autojunk=False).get_matching_blocks()
        )
        known = {word for value in source["values"] for word in _words(value)}
        new = [value for value in target["values"] if not _words(value) <= known]
        options = [
            option
            for option in dict.fromkeys([*source["options"], *target["options"]])
            if source["options"].get(option) != target["options"].get(option)
        ]
        rows.append(
            {
                "from": source["platform"],
                "to": target["platform"],
                "lines": len(lines[1]),
                "new_lines": len(lines[1]) - kept,
                "values": len(target["values"]),
                "new_values": len(new),
                "options": len(target["options"]),
                "changed_options": len(options),
            }
        )
    return rows
