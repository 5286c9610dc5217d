"""The answer of `plan --layouts --write`: the fastest layout that a training library can express, and the files that start it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from chronograd import __version__
from chronograd.answer import Answer, Section
from chronograd.errors import InputError
from chronograd.files import as_asked, write_aside
from chronograd.handoff import library as members
from chronograd.handoff.library import Starter, TrainingLibrary
from chronograd.large.layout_asking import AskedLayouts
from chronograd.large.search import LayoutOption, searched
from chronograd.large.search_answer import LayoutPlan, in_words, plan_layouts
from chronograd.units import percent
from chronograd.words import listed


@dataclass(frozen=True)
class HandOffFile:
    """A file that was made for a layout. `path` is None if it was not written."""

    name: str
    text: str
    path: str | None


@dataclass(frozen=True)
class HandedOff(LayoutPlan):
    """A search over layouts, with the files that start the chosen one.

    Attributes:
        library: title and version of the training library.
        start: the shell line that each node runs.
    """

    library: str
    start: str
    files: tuple[HandOffFile, ...]


def targets(text: str) -> tuple[TrainingLibrary, list[Starter]]:
    """Return the library and the starters that `--write` names, such as `torchtitan,slurm`. Raises InputError."""
    words = list(dict.fromkeys(word.strip().lower() for word in text.split(",") if word.strip()))
    libraries = [word for word in words if word in members.names("libraries")]
    starters = [members.starter(word) for word in words if word not in libraries]
    if len(libraries) != 1:
        raise InputError(
            f"--write {text} names {len(libraries) or 'no'} training libraries",
            f"name one of {listed(members.names('libraries'), 'or')}, such as --write {members.names('libraries')[0]},slurm",
        )
    return members.library(libraries[0]), starters


def hand_off(
    asked: AskedLayouts, library: TrainingLibrary, starters: Sequence[Starter], folder: Path | None
) -> Answer[HandedOff]:
    """Return the fastest layout that a library can express, with its files.

    Args:
        folder: where they are written; it is created. None writes nothing.
    Raises: InputError if no such layout is legal or fits, or for a setting that the library cannot state.
    """
    if refused := library.refused(asked.setting):
        raise InputError(
            f"{library.title} {library.version} cannot be configured for {listed(refused, 'or')}",
            "choose another library, or leave --write out",
        )
    answer = plan_layouts(asked, library.expressible)
    plan = answer.result
    assert plan is not None  # only an answer from a file has none
    best = plan.search.best
    start = library.start(best.setting)
    made = [(library.file(best.setting), f"{_header(best, library, plan.command)}{library.write(best.setting)}")]
    made += [(one.file, one.write(best.setting, start)) for one in starters]
    files = tuple(_written(name, text, folder) for name, text in made)
    fastest = searched(asked.setting, asked.fixed).best
    section = _section(library, starters, best, fastest, files, start)
    result = HandedOff(plan.assumed, plan.command, plan.search, f"{library.title} {library.version}", start, files)
    sections = [answer.sections[0], section, *answer.sections[1:]]
    return Answer(answer.title, answer.subtitle, sections=sections, notes=answer.notes, result=result)


def _header(best: LayoutOption, library: TrainingLibrary, command: str) -> str:
    setting = best.setting
    yours = "; ".join(library.yours(setting))
    return (
        f"# {setting.job.network.name} on {setting.ranks} × {setting.job.cluster.device}: {in_words(best)}.\n"
        f"# Written by chronograd {__version__} for {library.title} {library.version}. Prediction:\n"
        f"# {command}\n"
        f"# Yours to set: {yours}.\n"
    )


def _written(name: str, text: str, folder: Path | None) -> HandOffFile:
    if folder is None:
        return HandOffFile(name, text, None)
    path = folder / name
    with as_asked(path):
        folder.mkdir(parents=True, exist_ok=True)
        write_aside(path, text)
    return HandOffFile(name, text, str(path))


def _section(
    library: TrainingLibrary,
    starters: Sequence[Starter],
    best: LayoutOption,
    fastest: LayoutOption,
    files: Sequence[HandOffFile],
    start: str,
) -> Section:
    title, names = f"{library.title} {library.version}", listed([file.path or file.name for file in files])
    saved = f"{names} {'hold' if len(files) > 1 else 'holds'} the layout for {title}."
    ways = [one.command for one in starters] or [start]
    lines = [
        f"Start it with {listed([f'`{way}`' for way in ways], 'or')}.",
        f"Yours to set: {'; '.join(library.yours(best.setting))}.",
    ]
    lines.append(f"{library.title} expresses {library.expressible.words}. Other layouts were left out.")
    if best.degrees != fastest.degrees:
        gain = percent(1 - fastest.step_s / best.step_s)
        lines.append(f"The fastest layout of all takes {gain} less time: {in_words(fastest)}.")
    lines.append(f"Source of its keys: {library.source}.")
    return Section("Files", saved, lines=lines, data=[asdict(file) for file in files])
