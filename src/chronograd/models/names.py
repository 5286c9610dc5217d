"""Names of networks without importing torch: to check a name at once, to list names, to complete them.

`zoo.csv` lists the networks of the zoo with the shape of their samples. `libraries.csv` lists the networks of torchvision and
timm whose traces are part of this package. Tests compare both files with the registry. All other names of torchvision and timm
are read from the source of the installed library, where functions are decorated by `register_model`.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd import trust
from chronograd.answer import Answer, Section, Table
from chronograd.configs import find as large
from chronograd.errors import EXTRAS, InputError, NotFoundError, install_command, require
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.job import Job

LIBRARIES = ("torchvision", "timm")
FORMS = "write a name of the zoo, torchvision:NAME, timm:NAME, FILE.py:CLASS or package.module:function"
LIST = "`chronograd count --list`"
_REGISTERED = re.compile(
    r"^@register_model(?:\(\)|\(name=\"(\w+)\"\))?\n(?:@.*\n(?:[ )].*\n)*)*def (\w+)\(", re.MULTILINE
)
_DEPRECATED = re.compile(r"^register_model_deprecations\(__name__, \{(.*?)^\}\)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class ZooName:
    """A network of the zoo. `shape` is the shape of one sample: channels, height, width, or positions of tokens."""

    name: str
    shape: tuple[int, ...]
    classes: int | None
    paper: str = ""


def split(reference: str) -> tuple[str, str]:
    """Return `zoo`, `torchvision`, `timm` or `function`, and the name in it.

    A name without a library is looked up in the zoo, then in torchvision, then in timm; see `resolved`.
    Raises: InputError for any other form.

    >>> split("timm:resnet50"), split("my_net.py:MyNet"), split("resnet152")
    (('timm', 'resnet50'), ('function', 'my_net.py:MyNet'), ('torchvision', 'resnet152'))
    """
    prefix, colon, name = resolved(reference).partition(":")
    if not colon:
        return "zoo", reference
    if not prefix or not name:
        raise InputError(f"cannot read network {reference!r}", FORMS)
    return (prefix, name) if prefix in LIBRARIES else ("function", reference)


def resolved(reference: str) -> str:
    """Return the full name of a network: a name without a library is the zoo's, else torchvision's, else timm's.

    A name that none of them has, or that has a library, stays as it is.

    >>> resolved("resnet50"), resolved("efficientnet_b0"), resolved("vit_small_patch16_224")
    ('resnet50', 'torchvision:efficientnet_b0', 'timm:vit_small_patch16_224')
    """
    if ":" in reference or "/" in reference or reference in zoo():
        return reference
    name = reference.partition(".")[0]
    packed = (library for library in LIBRARIES if f"{library}:{reference}" in packaged())
    having = (library for library in LIBRARIES if (name if library == "timm" else reference) in of_library(library))
    return next((f"{library}:{reference}" for library in (*packed, *having)), reference)


@cache
def zoo() -> dict[str, ZooName]:
    """Return the networks of the zoo by name."""
    return _listed_in("zoo.csv")


@cache
def packaged() -> dict[str, ZooName]:
    """Return the networks of torchvision and timm whose traces are part of this package, by names such as `timm:vgg16`."""
    return _listed_in("libraries.csv")


def _listed_in(file: str) -> dict[str, ZooName]:
    text = (resources.files("chronograd.models") / file).read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["name"]: ZooName(
            row["name"],
            tuple(map(int, row["shape"].split("x"))),
            int(row["classes"] or 0) or None,
            row.get("paper", ""),
        )
        for row in rows
    }


def known(reference: str) -> ZooName | None:
    """Return the samples and classes of a network that this package knows without its library; None for any other.

    >>> known("resnet152").shape, known("my_net.py:MyNet")
    ((3, 224, 224), None)
    """
    name = resolved(reference)
    return zoo().get(name) or packaged().get(name)


@cache
def of_library(library: str) -> frozenset[str]:
    """Return the names of torchvision's or timm's networks, read from their source; empty if the library is not installed."""
    try:
        spec = importlib.util.find_spec(library)
    except ValueError:  # its import is blocked
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    found: set[str] = set()
    for path in (Path(spec.submodule_search_locations[0]) / "models").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= {given or function for given, function in _REGISTERED.findall(text)}
        for table in _DEPRECATED.findall(text):
            found |= set(re.findall(r"^\s*'(\w+)':", table, re.MULTILINE))
    return frozenset(found)


def usable(library: str) -> list[str]:
    """Return the names of a library, sorted: all if it is installed, else those whose traces are part of this package."""
    prefix = f"{library}:"
    return sorted(of_library(library) or (one.removeprefix(prefix) for one in packaged() if one.startswith(prefix)))


def listed() -> Answer:
    """Return every name: the zoo with its samples, and the networks of the libraries."""
    rows: list[dict[str, Any]] = [{**asdict(one), "shape": list(one.shape)} for one in zoo().values()]
    libraries = {library: usable(library) for library in LIBRARIES}
    return Answer(
        "Networks",
        sections=[
            Section(
                "The zoo",
                f"{how_many(len(rows), 'networks')} of the zoo, " + " and ".join(f"{len(own):,} of {name}" for name, own in libraries.items())
                + "; also FILE.py:CLASS and package.module:function. A name without a library is the zoo's, else torchvision's, else timm's.",
                table=Table(
                    ("name", "sample", "classes", "from"),
                    [(r["name"], " × ".join(map(str, r["shape"])), f"{r['classes'] or 0:,}" if r["classes"] else "", r["paper"])
                     for r in rows],
                    {2},
                ),
                data=rows,
            ),
            Section(
                "Large models, counted from their sizes",
                ", ".join(large.packaged()) + "; also a config.json of Hugging Face, a folder that holds one, and hf:NAME in its cache.",
                data=[{"name": name} for name in large.packaged()],
            ),
            *(
                Section(
                    f"{library}:NAME",
                    ", ".join(own) + ("" if of_library(library) else f". {library} is not installed; {install_command(EXTRAS[library])} adds its other networks."),
                    data=[{"name": n} for n in own],
                )
                for library, own in libraries.items()
            ),
        ],
        data={"zoo": rows, "large": list(large.packaged()), **libraries},
    )  # fmt: skip


def check_code(job: Job) -> None:
    """Raise InputError for a job that would run code that the user did not name.

    Call it before another process builds the job's network: such a process trusts all code, because a verb started it.
    """
    from chronograd.inputs import is_reference  # this import reads traces, which completing a name does not need

    if ":" in job.network.name and split(job.network.name)[0] == "function":
        trust.check(job.network.name)
    for word in filter(is_reference, (*job.network.inputs, job.training.loss)):
        trust.check(word)
    environment = job.data.name.removeprefix("gymnasium:")
    if job.task == "reinforcement" and ":" in environment:
        trust.check(environment)


def large_model(reference: str | os.PathLike[str]) -> Path | None:
    """Return the `config.json` of the large model that a reference names; None for another network. Names of the zoo win."""
    return None if reference in zoo() else large.find(reference)


def check_not_large(reference: str | os.PathLike[str]) -> None:
    """Raise InputError if a reference names a large model, which only some verbs read."""
    if large_model(reference) is not None:
        name = os.fspath(reference)
        raise InputError(
            f"{name} is a large model: `count`, `predict`, `judge` and `plan` read its config.json, and running or scheduling its training "
            "is not there yet",
            f"write `chronograd predict {name} --on 8xh100`{or_of_zoo(name) or ', or name a network of code'}",
        )


def or_of_zoo(name: str) -> str:
    """Return the end of a hint, with the networks of the zoo that the name of a large model may mean."""
    near = [known for known in zoo() if known.startswith(f"{name}-")]
    return f", or name a network of the zoo: {', '.join(near)}" if near else ""


def check(reference: str) -> None:
    """Raise NotFoundError for an unknown network, with similar names of the zoo and of all installed libraries.

    Functions of the user are not checked, nor libraries whose source does not show their names. Raises InputError for code that
    the user did not name.
    """
    check_not_large(reference)
    library, name = split(reference)
    if library == "function":
        trust.check(reference)
    if known(reference) is not None:
        return
    if library == "zoo":
        raise _unknown(name)
    all_names = of_library(library) if library in LIBRARIES else ()
    if all_names and name.partition(".")[0] not in all_names:
        raise NotFoundError(f"{library} network", name, all_names, LIST)


def require_library(reference: str) -> None:
    """Raise MissingExtraError if torch, or the library of a network, is not installed. Imports neither."""
    library, _ = split(reference)
    purpose = f"counting {reference}"
    if known(reference) is not None:
        purpose += " with other options, image sizes or classes than usual"
    for package in ("torch", library) if library in LIBRARIES else ("torch",):
        require(package, EXTRAS.get(library, "torch"), purpose)


def _unknown(name: str) -> NotFoundError:
    """Return the error for an unknown name without a library; a library that is not installed may have it."""
    names = {*zoo(), *large.packaged(), *(one.partition(":")[2] for one in packaged())}
    error = NotFoundError("network", name, names.union(*map(of_library, LIBRARIES)), LIST)
    missing = [library for library in LIBRARIES if not of_library(library)]
    if missing:
        error.hint += f"; for all networks of {' and '.join(missing)}: {install_command('timm')}"
    return error
