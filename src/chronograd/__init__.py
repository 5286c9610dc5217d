"""Chronograd: a performance lab for deep learning.

`chronograd.record(...)` around a training loop of your own writes the same record as `chronograd measure`;
see chronograd.measure.user_loop. Importing this package imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _RecordModule(ModuleType):
    """The module chronograd.record, which is also the function that records a loop."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from chronograd.measure.user_loop import record

        return record(*args, **kwargs)


class _Package(ModuleType):
    """This package. `chronograd.record` names a module and a function: the module is made callable on import."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "record" and type(value) is ModuleType:
            value.__class__ = _RecordModule
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name == "record":
        return importlib.import_module("chronograd.record")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Package
