"""The verbs as Python functions: `chronograd.predict(...)` does the same as `chronograd predict ...`.

Each takes a job, the path of a job file, or the name of a network. Verbs that only count also take a `torch.nn.Module`. Each
returns an `Answer`: `answer.sections` is the text, `answer.data` is the output of `--json`, and `answer.records` are the
records behind it. `chronograd.show(answer)` prints it. Importing this module needs no torch; verbs that need it raise
MissingExtraError.

    answer = chronograd.predict(model, on="v100", input_shape=(3, 224, 224), batch=64)
    answer.records["v100"].value("step_time_s")
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chronograd import verbs
from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.verbs.request import Request, function_name, function_of
from chronograd.words import listed

if TYPE_CHECKING:
    from chronograd.measure.user_loop import LoopRecorder

PathLike = str | os.PathLike[str]


def keep_freed_memory() -> bool:
    """Keep the memory that this process frees for its next allocations; see `chronograd.measure.memory.keep_freed_memory`."""
    from chronograd.measure import memory

    return memory.keep_freed_memory()


def record(path: PathLike | None = None, **options: Any) -> LoopRecorder:
    """Return a context for your training loop that writes a run; see `chronograd.measure.user_loop.record`."""
    from chronograd.measure.user_loop import record as recorder

    return recorder(path, **options)


def show(answer: Answer) -> None:
    """Print an answer as the command line does."""
    from chronograd.report import terminal

    terminal.show(answer)


def _modules() -> list[ModuleType]:
    return [importlib.import_module(f"{verbs.__name__}.{one.name}") for one in pkgutil.iter_modules(verbs.__path__)]


def _added_modules() -> list[ModuleType]:
    packages = verbs.added().values()
    return [importlib.import_module(verbs.module_in(package, verb)) for package in packages for verb in package.VERBS]


def requests() -> dict[str, type[Request]]:
    """Return the requests of all verbs, by the name of their function: `plan`, `plan_batch`, and the lab's `study_run`."""
    modules = [*_modules(), *_added_modules()]
    found = (request for module in modules for request in getattr(module, "REQUESTS", ()))
    return {function_name(request.verb): request for request in found}


@functools.cache
def declared() -> dict[str, Callable[..., Answer]]:
    """Return the functions of the verbs in `chronograd.verbs`, by name."""
    return _functions(_modules())


@functools.cache
def added() -> dict[str, Callable[..., Answer]]:
    """Return the functions of the verbs that other packages add, by name."""
    return _functions(_added_modules())


def _functions(modules: Iterable[ModuleType]) -> dict[str, Callable[..., Answer]]:
    functions: dict[str, Callable[..., Answer]] = {}
    for module in modules:
        requests = {request.verb: request for request in getattr(module, "REQUESTS", ())}
        for verb, request in requests.items():
            old = {} if " " in verb else getattr(module, "OLD", {})
            instead = {word: requests[f"{verb} {name}"] for word, name in old.items()}
            functions[function_name(verb)] = function_of(request, instead)
        first = next(iter(requests), "").partition(" ")
        if first[1]:
            functions[first[0]] = _one_of(first[0], functions, module.HELP)
    return functions


def _one_of(verb: str, functions: Mapping[str, Callable[..., Answer]], text: str) -> Callable[..., Answer]:
    """Return the function of a verb that is the first word of several verbs: its first argument is the second word."""

    def choose(what: str, *words: Any, **options: Any) -> Answer:
        known = [name.removeprefix(f"{verb}_") for name in functions if name.startswith(f"{verb}_")]
        if what not in known:
            raise InputError(f"cannot {verb} {what!r}", f"choose {listed(known, 'or')}")
        return functions[f"{verb}_{what}"](*words, **options)

    choose.__name__, choose.__doc__ = verb, text
    return choose


def __getattr__(name: str) -> Any:
    function = None if name.startswith("_") else declared().get(name) or added().get(name)
    if function is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return function
