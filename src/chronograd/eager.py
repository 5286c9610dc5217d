"""PyTorch without its compiler, which takes about as long to load as PyTorch itself, and compiles nothing here.

PyTorch's optimizers and its decompositions of operators contain functions that its compiler must leave out. At the first call
of each, PyTorch loads the compiler only to say so (`torch/_compile.py`). Each step of an optimizer imports it, too, to end a
compiled graph there (`torch/optim/optimizer.py`).
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from torch.optim import Optimizer

_Kind = TypeVar("_Kind", bound="Optimizer")
COMPILER = "torch._dynamo"
# Where PyTorch keeps the function without compilation, once it has made it.
_MADE = "__dynamo_disable"


@functools.cache
def stay_eager() -> None:
    """Let the functions that PyTorch's compiler leaves out run without loading it. If something else loads it, all is as before."""
    import torch

    if COMPILER in sys.modules:
        return
    code = torch.optim.Optimizer.zero_grad.__code__  # that of each function around one that is left out
    if "fn" not in code.co_freevars:
        return
    place = code.co_freevars.index("fn")
    for known in gc.get_objects():
        if type(known) is FunctionType and known.__code__ is code and known.__closure__:
            function = known.__closure__[place].cell_contents
            vars(function).setdefault(_MADE, _until_loaded(known, function))


def _until_loaded(known: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        if COMPILER not in sys.modules:
            return function(*arguments, **keywords)
        vars(function).pop(_MADE, None)
        return known(*arguments, **keywords)  # which asks the compiler

    return call


def eager(optimizer: type[_Kind]) -> type[_Kind]:
    """Return this kind of optimizer, with its step as in PyTorch's source, without gradients: for `differentiable=False`."""
    stay_eager()
    return cast("type[_Kind]", _with_plain_step(cast(Any, optimizer)))


@functools.cache
def _with_plain_step(optimizer: Any) -> Any:
    import torch

    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), {"step": step})
