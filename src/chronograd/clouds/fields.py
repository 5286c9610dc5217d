"""The file format of one platform: a table of its fields, read in both directions.

Each file of `platforms/` is such a table. A field has the words of `Submission` that it stands for, a path in the platform's
document, and functions that write and read the value. Words without a field, or with one that would change them, travel among
the arguments of the entry, as `launch={...}`. So every rendered file can be read back, and the table also maps one platform to
another.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import ValidationError

from chronograd import files
from chronograd.clouds.sending import Tool
from chronograd.clouds.submission import (
    ENTRY,
    PLACES,
    UNSAID,
    Submission,
    decode,
    encode,
    fields_of,
    job_fields,
    job_of,
    words_of,
)
from chronograd.errors import FileFormatError, problems
from chronograd.hardware.instances import Instance, InstanceCatalogue, catalogue
from chronograd.job import SHARDED

Document = dict[str, Any]
MISSING: Any = object()
MAX_BYTES = 1_000_000


def same(value: Any) -> Any:
    """Return the value unchanged: most fields are written and read like this."""
    return value


@dataclass(frozen=True)
class DocumentField:
    r"""A field of a document.

    Attributes:
        says: words of `Submission`. If a field has several words, their values are written and read as a tuple. Other
            words are `command`, which a node runs, and `arguments`, its NAME=VALUE.
        path: keys and indices, such as `spec.containers.0.image`. A dot within a key is written as `\.`.
    """

    says: str | tuple[str, ...]
    path: str
    write: Callable[..., Any] = same
    read: Callable[[Any], Any] = same

    @property
    def words(self) -> tuple[str, ...]:
        return (self.says,) if isinstance(self.says, str) else self.says


@dataclass(frozen=True)
class CloudPlatform:
    """One platform: its fields and its limits.

    Attributes:
        file: name of the file that is rendered; its ending says JSON or YAML.
        mark: path and value that only documents of this platform have; None for any value.
        resembles: whether a document without the mark is probably for this platform.
        faults: errors in a document that only this platform has, for documents from any source.
        slug: a function from any text to a name that the platform accepts.
        mount: path in the container of a channel or an output, by its name and address.
        schemes: prefixes of addresses that it reads and writes.
        is_tag: whether it accepts a tag unchanged.
        is_secret: whether a reference has the platform's form.
        needs: required words, with an example.
        derived: other parts of its documents, by path; they follow from the submission and are not read.
        normal: gives a document from any source the spelling of documents that are written here.
        fold, unfold: convert from the table's document to the platform's, and back.
        complain: errors that matter only to this platform.
        backends: backends whose ranks it can start.
        is_shell: whether arguments pass through a shell.
        tool: the program that sends its file; None if users must send it themselves.
    """

    name: str
    title: str
    file: str
    mark: tuple[str, str | None]
    fields: Sequence[DocumentField]
    slug: Callable[[str], str]
    mount: Callable[[str, str], str]
    schemes: tuple[str, ...]
    instances: str
    is_tag: Callable[[str, str], bool]
    is_secret: Callable[[str], bool] = lambda reference: bool(reference)
    needs: Mapping[str, str] = field(default_factory=dict)
    derived: Callable[[Submission], Mapping[str, Any]] = lambda asked: {}
    normal: Callable[[Document], Document] = same
    fold: Callable[[Document, Submission], Document] = lambda document, asked: document
    unfold: Callable[[Document], Document] = same
    complain: Callable[[Submission], list[str]] = lambda asked: []
    resembles: Callable[[Document], bool] = lambda document: False
    faults: Callable[[Document], list[str]] = lambda document: []
    backends: tuple[str, ...] = ("single", "ddp", *SHARDED, "data_parallel", "tf_mirrored")
    is_shell: bool = False
    tool: Tool | None = None

    @property
    def catalogue(self) -> InstanceCatalogue:
        return catalogue(self.instances)

    def path(self, word: str) -> str | None:
        """Return the path of the field that states a word of a submission; None if none does."""
        return next((one.path.replace("\\.", ".") for one in self.fields if word in one.words), None)

    def instance(self, asked: Submission) -> Instance | None:
        """Return the instance type of a submission; None if the catalogue has none of that name."""
        return self.catalogue.named(asked.instance)


# -- writing ---------------------------------------------------------------------------------------------


def render(platform: CloudPlatform, asked: Submission) -> str:
    """Return the text of a file for the platform."""
    return dump(platform, document(platform, asked))


def document(platform: CloudPlatform, asked: Submission) -> Document:
    """Return the content of the file, as data."""
    values: dict[str, Any] = {name: getattr(asked, name) for name in Submission.model_fields if name != "job"}
    values["name"] = platform.slug(asked.name)
    values["tags"] = {key: value for key, value in asked.tags.items() if platform.is_tag(key, value)}
    values["command"] = list(ENTRY)
    values["arguments"] = job_arguments(platform, asked)
    made: Document = {}
    for path, value in platform.derived(asked).items():
        put(made, path, value)
    for one in platform.fields:
        given = [values.get(word) for word in one.words]
        if not all(is_empty(value) for value in given):
            put(made, one.path, one.write(*given))
    return platform.fold(made, asked)


def is_empty(value: Any) -> bool:
    """Return whether a value is empty, so that no field is needed."""
    return value is None or value is False or value in ("", 0) or value in ({}, [])


def unsaid(platform: CloudPlatform, asked: Submission) -> dict[str, Any]:
    """Return the words without a field on the platform, and a name or tags that it would change."""
    said = {word for one in platform.fields for word in one.words} | {"job", "devices", "name", "tags"}
    left = {name: getattr(asked, name) for name in Submission.model_fields if name not in said}
    if platform.slug(asked.name) != asked.name:
        left["name"] = asked.name
    left["tags"] = {key: value for key, value in asked.tags.items() if not platform.is_tag(key, value)}
    return {word: value for word, value in left.items() if not is_empty(value)}


def job_arguments(platform: CloudPlatform, asked: Submission) -> dict[str, str]:
    """Return the fields of the job, the words without a field, and the paths in the container."""
    arguments = job_fields(asked.job)
    if left := unsaid(platform, asked):
        arguments[UNSAID] = encode(left)
    for channel, address in asked.data.items():
        arguments[f"mount.{channel}"] = _place(platform.mount(channel, address))
    out = platform.mount("output", asked.output) if asked.output else None
    run = platform.mount("checkpoints", asked.checkpoints) if asked.checkpoints else out
    if run:
        arguments["run"] = _place(run)
    if out and out != run:
        arguments["out"] = _place(out)
    return arguments


def _place(path: str) -> str:
    """Return a path as an argument. Azure ML inserts the path itself, for a placeholder in brackets."""
    return path if path.startswith("${{") else encode(path)


# -- reading ---------------------------------------------------------------------------------------------


def read(platform: CloudPlatform, text: str) -> Submission:
    """Read the submission of a file from any source. Raises FileFormatError for a file that is not understood, JobError for the
    job.
    """
    return read_document(platform, load(platform, text))


def read_document(platform: CloudPlatform, given: Document) -> Submission:
    """Read a submission from data, as `read` does from text."""
    if not _runs_entry(platform, given):
        also = "".join(f"; {fault}" for fault in platform.faults(given))
        raise FileFormatError(
            f"this {platform.title} job runs another program, so it states no network or data{also}",
            f"only what runs `{shlex.join(ENTRY)}` can be read",
        )
    try:
        opened = platform.unfold(given)
        values: dict[str, Any] = {}
        for one in platform.fields:
            value = get(opened, one.path)
            if value is not MISSING:
                values.update(_said(one, value))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        text = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise FileFormatError(f"it cannot be read as a job of {platform.title}: {text}") from None
    values.pop("command", None)
    arguments = values.pop("arguments", {})
    left = decode(arguments.get(UNSAID, "{}"))
    own = {name: text for name, text in arguments.items() if name != UNSAID and name.partition(".")[0] not in PLACES}
    values["tags"] = {**values.get("tags", {}), **left.pop("tags", {})}
    if platform.slug(str(left.get("name", ""))) != values.get("name"):
        left.pop("name", None)  # renamed in the file
    values = {word: value for word, value in {**values, **left}.items() if value is not None}
    values.setdefault("nodes", 1)
    if "devices" not in values:
        instance = platform.catalogue.named(str(values.get("instance", "")))
        values["devices"] = instance.count if instance else 0
    try:
        return Submission(job=job_of(own), **values)
    except ValidationError as error:
        lines = [_by_path(platform, line) for line in problems(error, Submission)]
        raise FileFormatError(f"it is no whole job of {platform.title}\n  " + "\n  ".join(lines)) from None


def _by_path(platform: CloudPlatform, line: str) -> str:
    """Return a line on a word of a submission with the field of the file in its place."""
    word = re.match(r"\w*", line)
    assert word is not None
    return (platform.path(word[0]) or word[0]) + line[word.end() :]


def _runs_entry(platform: CloudPlatform, given: Document) -> bool:
    """Return whether a document runs our command. A platform without a field for the command states it elsewhere."""
    fields = [one for one in platform.fields if "command" in one.words]
    try:
        opened = platform.unfold(given)
        return all(tuple(_said(one, get(opened, one.path))["command"]) == ENTRY for one in fields)
    except (FileFormatError, TypeError, ValueError, LookupError, AttributeError, StopIteration):
        return ENTRY[-1] in str(given)  # then `read_document` reports the damage


def _said(one: DocumentField, value: Any) -> dict[str, Any]:
    """Read the words of a submission that a field's value states."""
    got = one.read(value)
    return dict(zip(one.words, got if isinstance(one.says, tuple) else (got,), strict=True))


def not_read(platform: CloudPlatform, given: Document, asked: Submission) -> list[str]:
    """Return the paths of a document that its submission would not reproduce: reading left them out."""
    ours = dict(leaves(document(platform, asked)))
    theirs = dict(leaves(given))
    return [
        f"{path} is {theirs.get(path, 'not there')!r:.80}"
        + (f", where the rest of the file makes it {ours[path]!r:.80}" if path in ours else "")
        for path in [*theirs, *(path for path in ours if path not in theirs)]
        if ours.get(path, MISSING) != theirs.get(path, MISSING)
    ]


# -- documents -------------------------------------------------------------------------------------------


def dump(platform: CloudPlatform, given: Document) -> str:
    """Return JSON or YAML of plain ASCII, which every parser reads in the same way."""
    if platform.file.endswith(".json"):
        return json.dumps(given, indent=2, allow_nan=False) + "\n"
    return str(yaml.safe_dump(given, sort_keys=False, allow_unicode=False, width=110))


def load(platform: CloudPlatform, text: str) -> Document:
    """Return the data of a file. Raises FileFormatError."""
    try:
        data = files.parse_yaml(text, is_ours=False) if not platform.file.endswith(".json") else json.loads(text)
        files.check_plain(data)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"it is not valid {platform.file.rpartition('.')[2].upper()}: {error}") from None
    if not isinstance(data, dict):
        raise FileFormatError("it is no mapping of keys to values")
    return data


def _keys(path: str) -> list[str | int]:
    parts = [part.replace("\\.", ".") for part in re.split(r"(?<!\\)\.", path)]
    return [int(part) if part.isdigit() else part for part in parts]


def get(given: Any, path: str) -> Any:
    """Return the value at a path, or MISSING."""
    for key in _keys(path):
        is_list = isinstance(given, list) and isinstance(key, int) and key < len(given)
        if not is_list and not (isinstance(given, dict) and key in given):
            return MISSING
        given = given[key]
    return given


def put(given: Any, path: str, value: Any) -> None:
    """Set the value at a path, creating mappings and lists on the way."""
    keys = _keys(path)
    for key, following in itertools.pairwise(keys):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(key, int):
            if key == len(given):
                given.append(empty)
        else:
            given.setdefault(key, empty)
        given = given[key]
    given[keys[-1]] = value


def leaves(given: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every single value of a document with its path, in the form of `get`."""
    keyed = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
    children = [(str(key).replace(".", "\\."), value) for key, value in keyed]
    if not children:
        return [(path, given)]
    return [leaf for key, value in children for leaf in leaves(value, f"{path}.{key}" if path else key)]


# -- forms that several platforms share --------------------------------------------------------------------


def pairs(key: str, value: str, escape: Callable[[str], str] = same) -> Callable[[Mapping[str, str]], list[Any]]:
    """Return a function that writes a mapping as a list of pairs under the platform's keys."""
    return lambda given: [{key: name, value: escape(text)} for name, text in given.items()]


def unpaired(key: str, value: str, back: Callable[[str], str] = same) -> Callable[[Any], dict[str, str]]:
    """Return a function that reads the list of pairs that `pairs` writes."""
    return lambda given: {one[key]: back(one[value]) for one in given}


def shell_line(command: Sequence[str], arguments: Mapping[str, str]) -> str:
    """Return a shell line that runs only the command."""
    return shlex.join([*command, *words_of(arguments)])


def from_shell(line: str) -> tuple[list[str], dict[str, str]]:
    """Read a line of `shell_line`. Returns the command and its arguments."""
    words = shlex.split(line)
    if tuple(words[: len(ENTRY)]) != ENTRY:
        return words, {}
    return words[: len(ENTRY)], fields_of(words[len(ENTRY) :])


def slug(text: str, most: int, other: str = r"[^A-Za-z0-9]+") -> str:
    """Return a text as a name of letters, digits and hyphens.

    >>> slug("imagenet: ResNet-50 (large)", 63)
    'imagenet-ResNet-50-large'
    """
    short = re.sub(other, "-", text if text.isascii() else text.encode("ascii", "replace").decode()).strip("-")
    return short[:most].strip("-") or "job"


def escaped(text: str) -> str:
    """Return a value in which Kubernetes and Vertex AI do not expand `$(NAME)`."""
    return text.replace("$", "$$")


def unescaped(text: str) -> str:
    """Return the original value of an `escaped` one."""
    return text.replace("$$", "$")


def bucket_path(address: str) -> str:
    """Return bucket and path of an address such as gs://bucket/path."""
    return address.partition("://")[2].strip("/")
