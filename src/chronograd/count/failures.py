"""Errors of networks that cannot be traced: the module and line that raised, the message, and advice."""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from chronograd.count.calls import Call
from chronograd.errors import ChronogradError, TraceError

_MAX_LETTERS = 400
_TORCH = str(Path(torch.__file__).parent)
_OWN = str(Path(__file__).parent.parent)
_EXAMPLE = "--inputs FILE.py:example_inputs (inputs= in Python)"
# torch's messages for a tensor without values or on no real device, or for a result whose shape depends on values.
_NO_VALUES = re.compile(
    r"\b(meta|cpu)\b|tensor\.item\(\)|data-dependent|_local_scalar_dense|data-independent|fake impl", re.IGNORECASE
)
_WRONG_CALL = re.compile(
    r"missing \d+ required|unexpected keyword argument|positional arguments? but|multiple values for"
)
_WRONG_SIZE = re.compile(r"shape|size|dimension|channels|expected \d|\bdims?\b", re.IGNORECASE)
_WRONG_TYPE = re.compile(r"dtype|scalar type|Input type", re.IGNORECASE)
_INDICES = re.compile(r"indices|Long, Int", re.IGNORECASE)


class _NeedsValuesError(TraceError):
    """The network reads values, or has operators that run on real devices only."""


def needs_values(error: TraceError) -> bool:
    """Return whether a network failed because its tensors had no values."""
    return isinstance(error, _NeedsValuesError)


def check_modules(model: nn.Module, network: str) -> None:
    """Raise TraceError for modules that no input makes traceable: parameters without a shape, and compiled TorchScript."""
    lazy = [n for n, p in model.named_parameters() if nn.parameter.is_lazy(p)]
    if lazy:
        raise TraceError(f"{network} has parameters without a shape: {', '.join(lazy[:3])}", "call it once on a sample")
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            name = getattr(module, "original_name", type(module).__name__)
            raise TraceError(
                f"{network}: {f'its module {path}' if path else 'it'} ({name}) is a torch.jit.ScriptModule, which runs outside of "
                "Python, so its operators cannot be counted",
                "count the network with the original module, without torch.jit.script or torch.jit.trace",
            )


HINT_OF_LOSS = "a loss takes (outputs, inputs) and returns one number"


@contextmanager
def explained(model: nn.Module, call: Call, network: str, hint: str = "", *, is_real: bool = False) -> Iterator[None]:
    """Turn any error of a network into one clear error, with the original as its cause; `hint` replaces the usual advice.

    Args:
        is_real: whether the network ran on values.
    """
    try:
        yield
    except ChronogradError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:_MAX_LETTERS] or "no message"
        # Skip this frame: its `f_locals` would keep the error, and with it the network, alive in a cycle.
        trace = error.__traceback__ and error.__traceback__.tb_next
        path, line = _place(model, trace)
        if "flex_attention" in _functions(trace):
            hint = (
                "flex_attention cannot be counted: count the network with F.scaled_dot_product_attention in its place"
            )
        elif not is_real and (_NO_VALUES.search(text) or _is_missing_kernel(error, trace)):
            raise _NeedsValuesError(
                f"{network} cannot be counted from shapes alone{path}{line or f': {text}'}",
                f"its work depends on the values of tensors, or runs on real tensors only: give real inputs, {_EXAMPLE}",
            ) from error
        else:
            hint = hint or _hint(error, text, model, call)
        raise TraceError(f"{network} raised {type(error).__name__}{path}: {text}{line}", hint) from error


def _is_missing_kernel(error: Exception, trace: TracebackType | None) -> bool:
    """Return whether torch has no kernel for an operator here. A `raise` in Python is not about kernels."""
    if not isinstance(error, NotImplementedError):
        return False
    frame, number = [*traceback.walk_tb(trace)][-1]
    return "raise NotImplementedError" not in linecache.getline(frame.f_code.co_filename, number)


def _hint(error: Exception, text: str, model: nn.Module, call: Call) -> str:
    """Return advice for an error that is not about values."""
    if isinstance(error, TypeError) and _WRONG_CALL.search(text):
        if text.startswith(f"{type(model).__name__}.forward()"):
            return (
                f"{_signature(model)}; it was given {call}: write one --input NAME:SHAPE:DTYPE for each, or {_EXAMPLE}"
            )
        return "the call of that module is wrong, whatever the input"
    if _INDICES.search(text):
        return "an embedding takes whole numbers: write the type behind the shape, such as --input 128:int64"
    if isinstance(error, RuntimeError | ValueError | IndexError | AssertionError):
        if _WRONG_TYPE.search(text):
            shape = "x".join(map(str, call.slots[0].shape)) if call.slots else "128"
            return f"it was given {call}, and {types_of(model)}: give an input of that type, such as --input {shape}:float16"
        if _WRONG_SIZE.search(text):
            return f"a sample was {call}: check the shape (--input) and the options of the network"
    return f"it was given {call}: if it runs on other inputs, give them with {_EXAMPLE}"


def types_of(model: nn.Module) -> str:
    """Return the types of a network's parameters in words."""
    types = dict.fromkeys(str(p.dtype).removeprefix("torch.") for p in model.parameters())
    return f"its parameters are {' and '.join(types)}" if types else "it has no parameters"


def _signature(model: nn.Module) -> str:
    takes = inspect.signature(model.forward).parameters.values()
    names = [
        f"{p.name}={p.default!r}" if p.default is not p.empty and p.default is not None else str(p.name) for p in takes
    ]
    return f"{type(model).__name__}.forward takes ({', '.join(names)})"


def _place(model: nn.Module, trace: TracebackType | None) -> tuple[str, str]:
    """Return the innermost running module, and the last line outside of torch and of this library."""
    paths = {id(module): path for path, module in model.named_modules()}
    path, line = "", ""
    for frame, number in traceback.walk_tb(trace):
        module = frame.f_locals.get("self")
        if id(module) in paths and paths[id(module)]:
            path = f" in {paths[id(module)]} ({type(module).__name__})"
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _OWN)) and not file.startswith("<"):
            code = linecache.getline(file, number).strip()
            line = f" ({Path(file).name}:{number}: {code[:120]})" if code else ""
    return path, line


def _functions(trace: TracebackType | None) -> set[str]:
    """Return the names of the running functions."""
    return {frame.f_code.co_name for frame, _ in traceback.walk_tb(trace)}
