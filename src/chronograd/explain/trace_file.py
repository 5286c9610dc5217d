"""Reading of torch.profiler's trace files through the door, and checks for contradictions in a trace."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chronograd import door
from chronograd.errors import FileFormatError
from chronograd.units import seconds
from chronograd.words import how_many

LARGEST_BYTES = 2_000_000_000
# An event has some 15 values, so this is a trace of 1.5 million events. PyTorch writes each value on a line.
MAX_VALUES = 20_000_000
WHAT = "a trace of torch.profiler"
HINT = "write one with profiler.export_chrome_trace"
# Networks have shorter kernels: if a trace has none, its times are probably not microseconds.
SHORTEST_KERNEL_US = 5_000.0
LONGEST_HEAD = 100_000  # letters in which a writer shows itself
OVERLAP_US = 1.0  # tolerance for rounding of clocks


# Categories of devices whose rows are not read, such as hpu_op of Gaudi.
_DEVICE = re.compile(r"hpu|npu|mtia|privateuse|(?<!c)tpu|neuron", re.IGNORECASE)
ASCEND = "Ascend"  # how the process of such a device is named
CONTRADICTS = "the trace contradicts itself"
_AUTOGRAD = {"CPU functions", "CUDA functions"}  # processes in traces of torch.autograd.profiler without Kineto


class Timed(Protocol):
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def thread(self) -> str: ...
    @property
    def device(self) -> str: ...


def load(path: Path) -> dict[str, Any]:
    """Read a trace: an object with `traceEvents`, or only their list, whose end may be missing in Chrome's format; also
    compressed.

    Raises FileFormatError for a file that is not a trace, or is cut off.
    """
    text = door.read_text(path, WHAT, most_bytes=LARGEST_BYTES, most_lines=None, most_values=MAX_VALUES, hint=HINT)
    if not text.lstrip().startswith(("{", "[")):
        raise FileFormatError(f"{path} is neither a run directory nor {WHAT}: it is not JSON", HINT)
    _check_lines(path, text)
    if text.lstrip().startswith("[") and not text.rstrip().endswith("]"):
        text = text.rstrip().rstrip(",") + "]"
    trace = door.parse_json(text, path, WHAT)
    if isinstance(trace, list) and any(isinstance(event, dict) and "ph" in event for event in trace):
        trace = {"traceEvents": trace}
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise FileFormatError(f"{path} has no traceEvents, so it is not {WHAT}", HINT)
    if any(isinstance(event, dict) and str(event.get("pid")) in _AUTOGRAD for event in trace["traceEvents"]):
        raise FileFormatError(
            f"{path} was written by torch.autograd.profiler of PyTorch 1.7 or older, which marks neither steps nor streams",
            "profile with torch.profiler, in PyTorch 1.8.1 or later",
        )
    trace["traceEvents"] = completed([event for event in trace["traceEvents"] if _is_event(event)])
    return trace


def _is_event(event: Any) -> bool:
    """Return whether an entry of a trace is an object whose category, if it has one, is text."""
    return isinstance(event, dict) and isinstance(event.get("cat", ""), str)


def _check_lines(path: Path, text: str) -> None:
    """Raise FileFormatError for a file with one JSON object on each line, as Nsight Systems exports."""
    first, second = (*(line.strip() for line in text.lstrip().split("\n", 2)[:2]), "")[:2]
    if all(line.startswith("{") and line.endswith("}") for line in (first, second)):
        is_nsight = "CudaEvent" in text[:LONGEST_HEAD] or "TraceProcessEvent" in text[:LONGEST_HEAD]
        writer = "Nsight Systems exported it" if is_nsight else "it has one JSON object on each line"
        raise FileFormatError(f"{path} is not {WHAT}: {writer}", "profile with torch.profiler and export_chrome_trace")


def completed(events: list[Any]) -> list[Any]:
    """Merge pairs of a begin and an end event into one event with a duration.

    >>> completed([{"ph": "B", "ts": 1, "name": "a"}, {"ph": "E", "ts": 4}])
    [{'ph': 'X', 'ts': 1, 'name': 'a', 'dur': 3.0}]
    """
    if not any(isinstance(event, dict) and event.get("ph") == "B" for event in events):
        return events
    found: list[Any] = []
    begun: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") not in ("B", "E"):
            found.append(event)
            continue
        own = begun.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        if event["ph"] == "B":
            own.append(event)
        elif own:
            first = own.pop()
            start, end = number(first.get("ts")), number(event.get("ts"))
            if start is not None and end is not None:
                found.append({**first, "ph": "X", "dur": end - start})
    return found


def number(value: Any) -> float | None:
    """Return a finite number, also from a string; None for anything else.

    >>> number("12.5"), number(3), number(True), number("soon")
    (12.5, 3.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if np.isfinite(found) else None


def check_writer(path: Path, events: Sequence[Any], known: set[str]) -> None:
    """Raise FileFormatError if no event has a category of torch.profiler, because another tool wrote the trace."""
    dicts = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    if not dicts or any(event.get("cat") in known for event in dicts):
        return
    if not any(event.get("cat") or isinstance(event.get("args"), dict) for event in dicts):
        return  # only the user's own marks
    is_xla = any(isinstance(args := event.get("args"), dict) and "hlo_op" in args for event in dicts)
    is_onnx = {"Session", "Node"} <= {event.get("cat") for event in dicts}
    writer = "JAX or TensorFlow" if is_xla else "ONNX Runtime" if is_onnx else "another tool"
    raise FileFormatError(
        f"{path} was written by {writer}: none of its {len(dicts):,} events has a category of torch.profiler such as kernel or "
        "cpu_op",
        f"give {WHAT}",
    )


def check_devices(path: Path, events: Sequence[Any], known: set[str]) -> None:
    """Raise FileFormatError if a trace without known work of a device has rows of a device whose category is not read."""
    counts: Counter[str] = Counter()
    for event in events:
        if isinstance(event, dict) and event.get("ph") == "X" and str(event.get("cat", "")) not in known:
            args = event.get("args")
            if _DEVICE.search(str(event["cat"])) or (isinstance(args, dict) and "stream" in args):
                counts[str(event["cat"])] += 1
    if counts:
        category, count = counts.most_common(1)[0]
        raise FileFormatError(
            f"{path} has device rows of a kind that is not read: {how_many(count, 'rows')} of category {category}",
            "give a trace of a CUDA, ROCm or XPU device (category kernel), or of an Ascend device (with its Task Type)",
        )


def process_name(events: Sequence[Any], number: str) -> str:
    """Return the name of an Ascend device by the number of its process in the trace; empty for other processes."""
    for event in events:
        if isinstance(event, dict) and event.get("name") == "process_name" and str(event.get("pid")) == number:
            args = event.get("args")
            name = str(args.get("name", "")) if isinstance(args, dict) else ""
            return name if name.startswith(ASCEND) else ""
    return ""


def check_steps(path: Path, steps: Sequence[Timed], kernels: Sequence[Timed]) -> None:
    """Raise FileFormatError if steps are marked and no kernel runs during any of them."""
    if not steps or not kernels:
        return
    low, high = min(step.start for step in steps), max(step.end for step in steps)
    first, last = min(kernel.start for kernel in kernels), max(kernel.end for kernel in kernels)
    if first > high or last < low:
        distance_s = max(first - high, low - last) / 1e6
        raise FileFormatError(
            f"{path} contradicts itself: all kernels run {'after' if first > high else 'before'} its {how_many(len(steps), 'steps')}, "
            f"{seconds(distance_s)} away, so steps and kernels use different clocks",
            "profile again, or correct the times of one of them",
        )


def contradictions(raw: Sequence[Any], kernels: Sequence[Timed]) -> list[str]:
    """Return a sentence for each contradiction in a trace."""
    found = []
    dicts = [event for event in raw if isinstance(event, dict) and event.get("ph") == "X"]
    negative = sum((length := number(event.get("dur"))) is not None and length < 0 for event in dicts)
    if negative:
        are = "ends before it begins and is" if negative == 1 else "end before they begin and are"
        found.append(f"{CONTRADICTS}: {negative:,} of {how_many(len(dicts), 'events')} {are} left out")
    overlapping = _overlapping(kernels)
    if overlapping:
        found.append(
            f"{CONTRADICTS}: {overlapping:,} of {len(kernels):,} kernels overlap another on the same stream, which "
            "runs kernels in sequence (except for CUDA graphs and programmatic launches)"
        )
    lengths = [kernel.end - kernel.start for kernel in kernels]
    if len(lengths) >= 4 and min(lengths) >= SHORTEST_KERNEL_US:
        found.append(
            f"the unit of time is unclear: read as microseconds, the shortest kernel takes {min(lengths) / 1e3:,.4g} ms; if the "
            f"trace has nanoseconds, it is {min(lengths) / 1e3:,.4g} µs, and all times here are 1,000 times too long"
        )
    return found


def _overlapping(kernels: Sequence[Timed]) -> int:
    """Return the number of kernels that overlap another on the same device and stream by more than a tenth of their time."""
    latest: dict[tuple[str, str], float] = {}
    count = 0
    for kernel in sorted(kernels, key=lambda one: one.start):
        place = kernel.device, kernel.thread
        over = latest.get(place, kernel.start) - kernel.start
        count += over > max(OVERLAP_US, 0.1 * (kernel.end - kernel.start))
        latest[place] = max(latest.get(place, kernel.end), kernel.end)
    return count


def distinguished(names: Sequence[str], width: int = 60) -> list[str]:
    """Shorten names of kernels to a width, cut so that different names stay different: from their first difference.

    >>> distinguished(["gemm_" + "x" * 20 + "_nn", "gemm_" + "x" * 20 + "_tn", "relu"], 20)
    ['gemm_xxx…xxx_nn', 'gemm_xxx…xxx_tn', 'relu']
    """
    plain = [re.sub(r"^void ", "", name) for name in names]
    return [_cut(name, [other for other in plain if other != name], width) for name in plain]


def _cut(name: str, others: Sequence[str], width: int) -> str:
    if len(name) <= width:
        return name
    alike = max((len(os.path.commonprefix([name, other])) for other in others), default=0)  # noqa: RUF071
    if alike < width - 1:
        return f"{name[: width - 1]}…"
    head = 2 * width // 5
    at = max(head, alike - 4)
    rest = name[at:]
    room = width - head - 2
    return f"{name[:head]}…{rest if len(rest) <= room + 1 else rest[:room] + '…'}"
