"""Trust: only code that the user names may run, never code that only a file names.

A network `FILE.py:NAME` or `package.module:NAME` and an environment `module:NAME` are code: building one runs it. A record, a
run, a table or a job from a cloud may come from anyone, so its words start nothing. `only(words)` surrounds every verb. Within
it, code runs in three cases:

- a word has the same file or module before its last colon;
- a job file that the user names has it (`chronograd.job.load`);
- `--trust FILE.py` names it.

The same applies to a run's SLURM script (`--trust RUN/job.sbatch`). Elsewhere, as in a rank that a verb started, all code may
run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
