"""The models of a server: files and folders, versions, and reloading without dropping a request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chronograd.deploy import model as models
from chronograd.deploy.batching import Batcher
from chronograd.deploy.protocol import ProtocolError
from chronograd.errors import ChronogradError, InputError

_FILE = "model.onnx"  # of a version, in Triton's layout of folders: NAME/VERSION/model.onnx
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Place:
    """A version of a model, and its file."""

    name: str
    version: str
    path: Path


@dataclass(frozen=True)
class ServedModel:
    """A version of a model that answers requests."""

    place: Place
    model: models.OnnxModel
    batcher: Batcher


@dataclass(frozen=True)
class Settings:
    """Settings for loading and running models.

    Attributes:
        most_rows: of a batch; 1 for no batching. `wait_s`, `most_waiting`, `instances`: as of Batcher.
        threads: of one run; None for one for each core.
    """

    most_rows: int = 32
    wait_s: float = 0.0
    most_waiting: int = 256
    instances: int = 1
    threads: int | None = None


def find(arguments: Iterable[Path]) -> list[Place]:
    """Search models in files and folders, each version once, ordered by name and version.

    A file is NAME.onnx, which is version 1, or NAME@VERSION.onnx. A folder holds such files, or versions VERSION/model.onnx of
    a model with the name of the folder, or folders of such models.

    Raises: InputError for anything else, or the same version twice.
    """
    places: dict[tuple[str, int], Place] = {}
    for argument in arguments:
        own = [_of_file(argument)] if argument.is_file() else _of_folder(argument)
        if not own:
            raise InputError(
                f"there is no model at {argument}",
                "name FILE.onnx, FILE@2.onnx, or a folder of them or of NAME/VERSION/model.onnx",
            )
        for place in own:
            other = places.setdefault((place.name, int(place.version)), place)
            if other.path != place.path:
                raise InputError(
                    f"version {place.version} of {place.name} exists twice: {other.path} and {place.path}",
                    f"number them: {place.name}@2.onnx",
                )
    return [places[key] for key in sorted(places)]


def _of_file(path: Path) -> Place:
    name, at, version = path.name.removesuffix(".onnx").rpartition("@")
    if not at:
        name, version = version, "1"
    if path.suffix != ".onnx" or not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise InputError(f"{path} is not the name of a model", "NAME.onnx or NAME@VERSION.onnx, such as digits@2.onnx")
    return Place(name, version, path)


def _of_folder(folder: Path) -> list[Place]:
    if not folder.is_dir():
        return []
    versions = _versions(folder)
    if versions:
        return versions
    files = [_of_file(path) for path in folder.glob("*.onnx") if path.is_file()]
    return files + [place for one in folder.iterdir() if one.is_dir() for place in _versions(one)]


def _versions(folder: Path) -> list[Place]:
    paths = [path for path in folder.glob(f"*/{_FILE}") if _VERSION.fullmatch(path.parent.name)]
    name = folder.resolve().name
    if paths and not _NAME.fullmatch(name):
        raise InputError(f"{folder} is not the name of a model", "use letters, digits, and . _ - between them")
    return [Place(name, path.parent.name, path) for path in paths]


class Repository:
    """Models by name and version. Create and use it in one event loop.

    Args:
        observe: called with a place, and rows and seconds of each batch.
    """

    def __init__(
        self, arguments: Sequence[Path], settings: Settings, observe: Callable[[Place, int, float], None]
    ) -> None:
        self._arguments = arguments
        self._settings = settings
        self._observe = observe
        self._served: dict[str, dict[str, ServedModel]] = {}
        self._unloaded: set[str] = set()
        self._lock = asyncio.Lock()

    def all(self) -> list[ServedModel]:
        return [one for versions in self._served.values() for one in versions.values()]

    def versions(self, name: str) -> list[str]:
        """Return the served versions, the lowest first."""
        return sorted(self._served.get(name, ()), key=int)

    def get(self, name: str, version: str | None = None) -> ServedModel:
        """Return a version of a model, the highest by default. Raises ProtocolError with status 404."""
        versions = self._served.get(name)
        if not versions:
            known = ", ".join(sorted(self._served)[:20])
            raise ProtocolError(f"there is no model {name[:80]!r}; served: {known or 'none'}", 404)
        one = versions.get(version if version is not None else max(versions, key=int))
        if one is None:
            raise ProtocolError(f"model {name} has no version {version!r:.40}; it has {', '.join(versions)}", 404)
        return one

    async def load(self) -> None:
        """Load all models. Raises ChronogradError for the first one that fails."""
        problems = await self.reload()
        if problems:
            raise problems[0]
        if not self._served:
            raise InputError("there is no model to serve")

    async def reload(self, name: str | None = None) -> list[ChronogradError]:
        """Check the files of one model or of all again: load new and changed ones, drop removed ones.

        A new model takes over once it is loaded; the old one answers its waiting requests. A model that cannot be loaded is in
        the list of problems, and the old one continues. An unloaded model comes back only by its name.
        """
        async with self._lock:
            try:
                places = find(self._arguments)
            except InputError as error:
                return [error]
            if name is not None:
                self._unloaded.discard(name)
            places = [p for p in places if p.name not in self._unloaded and name in (None, p.name)]
            problems: list[ChronogradError] = []
            next_table: dict[str, dict[str, ServedModel]] = {}
            for place in places:
                before = self._served.get(place.name, {}).get(place.version)
                now: ServedModel | None = before
                try:
                    now = await self._loaded(place, before)
                except ChronogradError as error:
                    problems.append(error)
                if now is not None:
                    next_table.setdefault(place.name, {})[place.version] = now
            names = [name] if name is not None else [*self._served, *next_table]
            await self._replace({one: next_table.get(one, {}) for one in names})
            return problems

    async def unload(self, name: str) -> None:
        """Stop serving a model after answering its waiting requests. Raises ProtocolError with status 404."""
        self.get(name)
        async with self._lock:
            self._unloaded.add(name)
            await self._replace({name: {}})

    async def close(self) -> None:
        """Answer all waiting requests, and end."""
        async with self._lock:
            await self._replace({name: {} for name in self._served})

    async def _loaded(self, place: Place, before: ServedModel | None) -> ServedModel:
        if before is not None and before.place == place and before.model.is_on_disk():
            return before
        settings = self._settings
        model = await asyncio.to_thread(models.load, place.path, most_rows=settings.most_rows, threads=settings.threads)
        batcher = Batcher(
            model.run,
            most_rows=model.most_rows,
            wait_s=settings.wait_s,
            most_waiting=settings.most_waiting,
            instances=settings.instances,
            observe=lambda rows, run_s: self._observe(place, rows, run_s),
        )
        return ServedModel(place, model, batcher)

    async def _replace(self, by_name: dict[str, dict[str, ServedModel]]) -> None:
        """Replace old versions by new ones at once; then let the old ones finish."""
        before = {id(one): one for name in by_name for one in self._served.get(name, {}).values()}
        for name, versions in by_name.items():
            if versions:
                self._served[name] = versions
            else:
                self._served.pop(name, None)
        gone = before.keys() - {id(one) for one in self.all()}
        await asyncio.gather(*(before[one].batcher.close() for one in gone))
