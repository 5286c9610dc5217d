"""How one platform says what a submission says: a table of its fields, read in both directions.

Each file of `platforms/` is such a table. A field has the words of `Submission` that it stands for, a path in the platform's
document, and how the value is written and read. What no field of a platform says, or not as it is, travels among the arguments
of the entry, as `launch={...}`. So whatever is rendered can be read back, and the table itself is the map from one platform to
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

Document = dict[str, Any]
MISSING: Any = object()
MAX_BYTES = 1_000_000


def same(value: Any) -> Any:
    """The value itself: how most fields are written and read."""
    return value


@dataclass(frozen=True)
class DocumentField:
    """Where a document says something.

    Attributes:
        says: words of `Submission`; of one field that says several the values are written, and read, as a tuple. Beside them
            `command` is what a node runs, and `arguments` are its NAME=VALUE.
        path: keys and indices, such as `spec.containers.0.image`. A dot within a key is written as `\\.`.
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
    """One platform: its fields, and what it takes.

    Attributes:
        file: name of the file that is rendered; its ending says JSON or YAML.
        mark: path and value that only documents of this platform have; None for any value.
        resembles: whether a document without the mark is probably for this platform.
        faults: errors in a document that only this platform has, whoever wrote the document.
        slug: the name that the platform takes, made of any text.
        mount: path in the container of a channel or an output, by its name and address.
        schemes: beginnings of addresses that it reads and writes.
        is_tag: whether it takes a tag as it is.
        is_secret: whether a reference is one of its own.
        needs: words that it cannot do without, with an example.
        derived: what else its documents have, by path; it follows from the submission and is not read.
        fold, unfold: from the document as the table has it to the one that the platform takes, and back.
        complain: what is wrong that only this platform minds.
        backends: backends whose ranks it can start.
        is_shell: whether arguments pass through a shell.
        tool: the program that sends its file; None where a user is left to send it.
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
    fold: Callable[[Document, Submission], Document] = lambda document, asked: document
    unfold: Callable[[Document], Document] = same
    complain: Callable[[Submission], list[str]] = lambda asked: []
    resembles: Callable[[Document], bool] = lambda document: False
    faults: Callable[[Document], list[str]] = lambda document: []
    backends: tuple[str, ...] = ("single", "ddp", "data_parallel", "tf_mirrored")
    is_shell: bool = False
    tool: Tool | None = None

    @property
    def catalogue(self) -> InstanceCatalogue:
        return catalogue(self.instances)

    def instance(self, asked: Submission) -> Instance | None:
        """The instance type of a submission; None if the catalogue has none of that name."""
        return self.catalogue.named(asked.instance)


# -- one direction ---------------------------------------------------------------------------------------


def render(platform: CloudPlatform, asked: Submission) -> str:
    """The text of a file that the platform takes."""
    return dump(platform, document(platform, asked))


def document(platform: CloudPlatform, asked: Submission) -> Document:
    """What the file says, as data."""
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
    """Whether there is nothing to say: a default."""
    return value is None or value is False or value in ("", 0) or value in ({}, [])


def unsaid(platform: CloudPlatform, asked: Submission) -> dict[str, Any]:
    """What no field of the platform says: words that it has none for, a name or tags that it does not take."""
    said = {word for one in platform.fields for word in one.words} | {"job", "devices", "name", "tags"}
    left = {name: getattr(asked, name) for name in Submission.model_fields if name not in said}
    if platform.slug(asked.name) != asked.name:
        left["name"] = asked.name
    left["tags"] = {key: value for key, value in asked.tags.items() if not platform.is_tag(key, value)}
    return {word: value for word, value in left.items() if not is_empty(value)}


def job_arguments(platform: CloudPlatform, asked: Submission) -> dict[str, str]:
    """Fields of the job, what has no field of its own, and where things are in the container."""
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
    """A path as an argument. Azure ML puts the path itself where a document has its own brackets."""
    return path if path.startswith("${{") else encode(path)


# -- the other -------------------------------------------------------------------------------------------


def read(platform: CloudPlatform, text: str) -> Submission:
    """What a file asks for, whoever wrote it. Raises FileFormatError for what cannot be understood, JobError for the job."""
    return read_document(platform, load(platform, text))


def read_document(platform: CloudPlatform, given: Document) -> Submission:
    """As `read`, of data."""
    if not _runs_entry(platform, given):
        also = "".join(f"; {fault}" for fault in platform.faults(given))
        raise FileFormatError(
            f"this {platform.title} job runs a program of its own, so it states no network or data{also}",
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
        raise FileFormatError(
            f"it cannot be read as a job of {platform.title}: {type(error).__name__}: {error}"
        ) from None
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
        raise FileFormatError(
            f"it is no whole job of {platform.title}\n  " + "\n  ".join(problems(error, Submission))
        ) from None


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
    """Paths of a document that its submission would not have, or not so: what reading left out."""
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
    """JSON or YAML of plain ASCII, which every parser reads alike."""
    if platform.file.endswith(".json"):
        return json.dumps(given, indent=2, allow_nan=False) + "\n"
    return str(yaml.safe_dump(given, sort_keys=False, allow_unicode=False, width=110))


def load(platform: CloudPlatform, text: str) -> Document:
    """The data of a file. Raises FileFormatError."""
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
    """The value at a path; MISSING if it leads nowhere."""
    for key in _keys(path):
        is_list = isinstance(given, list) and isinstance(key, int) and key < len(given)
        if not is_list and not (isinstance(given, dict) and key in given):
            return MISSING
        given = given[key]
    return given


def put(given: Any, path: str, value: Any) -> None:
    """Set the value at a path, making mappings and lists on the way."""
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
    """Every single value of a document with its path, as `get` takes it."""
    keyed = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
    children = [(str(key).replace(".", "\\."), value) for key, value in keyed]
    if not children:
        return [(path, given)]
    return [leaf for key, value in children for leaf in leaves(value, f"{path}.{key}" if path else key)]


# -- forms that several platforms have in common -----------------------------------------------------------


def pairs(key: str, value: str, escape: Callable[[str], str] = same) -> Callable[[Mapping[str, str]], list[Any]]:
    """A mapping as a list of pairs under the platform's own keys."""
    return lambda given: [{key: name, value: escape(text)} for name, text in given.items()]


def unpaired(key: str, value: str, back: Callable[[str], str] = same) -> Callable[[Any], dict[str, str]]:
    """What `pairs` wrote."""
    return lambda given: {one[key]: back(one[value]) for one in given}


def shell_line(command: Sequence[str], arguments: Mapping[str, str]) -> str:
    """A line for a shell, which runs nothing but the command."""
    return shlex.join([*command, *words_of(arguments)])


def from_shell(line: str) -> tuple[list[str], dict[str, str]]:
    """What `shell_line` wrote."""
    words = shlex.split(line)
    if tuple(words[: len(ENTRY)]) != ENTRY:
        return words, {}
    return words[: len(ENTRY)], fields_of(words[len(ENTRY) :])


def slug(text: str, most: int, other: str = r"[^A-Za-z0-9]+") -> str:
    """A text as a name of letters, digits and hyphens.

    >>> slug("imagenet: ResNet-50 (large)", 63)
    'imagenet-ResNet-50-large'
    """
    short = re.sub(other, "-", text if text.isascii() else text.encode("ascii", "replace").decode()).strip("-")
    return short[:most].strip("-") or "job"


def escaped(text: str) -> str:
    """A value in which Kubernetes, and Vertex AI like it, expand no `$(NAME)`."""
    return text.replace("$", "$$")


def unescaped(text: str) -> str:
    """What `escaped` wrote."""
    return text.replace("$$", "$")


def bucket_path(address: str) -> str:
    """Bucket and path of an address such as gs://bucket/path."""
    return address.partition("://")[2].strip("/")
