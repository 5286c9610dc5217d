"""Trust: only code that the user names may run, never code that only a file names.

A network `FILE.py:NAME` or `package.module:NAME` and an environment `module:NAME` are code: building one runs it. A record, a
run, a table or a job from a cloud may come from anyone, so its words start nothing. `only(words)` surrounds every verb. Within
it, code runs in three cases:

- a word has the same file or module before its last colon;
- a job file that the user names has it (`chronograd.job.load`);
- `--trust FILE.py` names it.

The same applies to a run's SLURM script (`--trust RUN/job.sbatch`). Elsewhere, as in a rank that a verb started, all code may
run.

A folder's modules are code as well: in a stranger's folder `random.py` would replace Python's. `python` builds the command of
every Python that a verb starts; it ignores modules in the working directory. Only `importing` makes them importable, for code
that the user named there.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd.errors import ChronogradError, InputError, RunError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Code that may run now; None outside of verbs. Shared by all threads, because verbs start threads, which must not be allowed
# more.
_named: set[str] | None = None


@contextmanager
def only(words: Iterable[str]) -> Iterator[None]:
    """Allow only the code that these words, or those of a surrounding verb, name."""
    global _named
    before = _named
    _named = set(before or ())
    for word in words:
        name(word.rpartition("=")[2] if "=" in word else word)
    try:
        yield
    finally:
        _named = before


def name(reference: str) -> None:
    """Allow the code of a reference such as `FILE.py:NAME`, because the user names it."""
    code, colon, _ = reference.rpartition(":")
    if colon:
        allow(code)


def allow(code: str) -> None:
    """Allow all code of a file or a module."""
    if _named is not None:
        _named.add(_key(code))


def check(reference: str) -> None:
    """Raise InputError for a reference to code that the user did not name."""
    code = reference.rpartition(":")[0]
    if is_named(code):
        return
    raise InputError(
        f"{reference} is code that you did not name: only a file that was read names it, so it is not run",
        f"read {code}; if you trust it, allow it with `chronograd --trust {code} VERB ...`",
    )


def is_named(code: str) -> bool:
    """Return whether the user named a file or a module, or no verb surrounds the call."""
    return _named is None or _key(code) in _named


def _key(code: str) -> str:
    """Return one name for one file, however it is written."""
    return os.path.realpath(code) if code.endswith((".py", ".sbatch")) else code


def python(*words: str, interpreter: str = sys.executable) -> tuple[str, ...]:
    """Return the command of a new Python that imports nothing from the working directory.

    >>> python("-m", "chronograd", interpreter="python")
    ('python', '-P', '-m', 'chronograd')
    """
    return (interpreter, "-P", *words)


@contextmanager
def importing(reference: str) -> Iterator[None]:
    """Make modules of the working directory importable if the code of a reference is in there.

    The directory is the first of `sys.path`, as for `python -m`. Afterwards, if no error was raised, it is the last: the code
    finds its neighbours later, and they hide no other module. Raises InputError as `check`.
    """
    check(reference)
    here = os.getcwd()
    if not _is_in(here, reference.rpartition(":")[0]):
        yield
        return
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(here)
    if here not in sys.path:
        sys.path.append(here)


def _is_in(folder: str, code: str) -> bool:
    """Return whether a file is within a folder, or a module is in there and nowhere else."""
    if code.endswith(".py"):
        return Path(os.path.realpath(code)).is_relative_to(os.path.realpath(folder))
    package, elsewhere = code.partition(".")[0], [place for place in sys.path if place not in ("", folder)]
    if not package.isidentifier() or PathFinder.find_spec(package, elsewhere) is not None:
        return False
    return PathFinder.find_spec(package, [folder]) is not None


def plugins(kind: str) -> dict[str, EntryPoint]:
    """Return the `backends`, `devices` or `studies` that other installed packages add, as entry points by name.

    Their code may run, because the user installed it.
    """
    from importlib.metadata import entry_points  # 20 ms, which --help does not need

    return {point.name: point for point in entry_points(group=f"chronograd.{kind}")}


def loaded(point: EntryPoint) -> Any:
    """Return the object that an entry point names. Raises RunError, with the package, for one that cannot be imported."""
    try:
        return point.load()
    except ChronogradError:
        raise
    except Exception as error:
        package = point.dist.name if point.dist is not None else point.value
        raise RunError(
            f"{package} adds {point.name!r} to {point.group}, and it cannot be loaded: {type(error).__name__}: {error}",
            f"update or uninstall {package}",
        ) from error
