"""Types of option values: each parses the text of the command line, and accepts a Python value unchanged."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from chronograd.units import parse_seconds

# Maximum of whole numbers in a list, so that the product of two fits in 64 bits.
MAX_NUMBER = 10**9
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class ValueKind(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A value that a function parses from text.

    Args:
        parse: converts text to the value; raises ValueError with a text that states the right form.
        is_value: returns whether a Python value already has this kind.
    """

    is_list = False

    def __init__(self, name: str, parse: Callable[[str], Any], is_value: Callable[[Any], bool]) -> None:
        self.name, self.parse, self.is_value = name, parse, is_value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            if self.is_value(value):
                return value
            self.fail(f"{value!r} is not a {self.name.lower()}", param, ctx)
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ListKind(ValueKind):
    """Several values in one text, separated by commas; a sequence in Python."""

    is_list = True

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int | float):
            value = [value]
        if isinstance(value, Sequence) and not isinstance(value, str):
            if not value:
                return ()
            value = ",".join(map(str, value))
        return super().convert(value, param, ctx)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def parse_bytes(text: str) -> int:
    """Return a size in bytes: GB is 1e9, GiB is 2**30. Raises ValueError.

    >>> parse_bytes("2GB"), parse_bytes("1.5 GiB")
    (2000000000, 1610612736)
    """
    size = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]i?)?b?\s*", text.lower())
    if size is None:
        raise ValueError(f"cannot read the size {text!r}; write 16GB or 16GiB")
    return int(float(size[1]) * _BYTES[size[2] or ""])


def parse_latency(text: str) -> float:
    """Return a latency in seconds. Raises ValueError.

    >>> parse_latency("20ms"), parse_latency("0.5 s")
    (0.02, 0.5)
    """
    time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s)\s*", text.lower())
    if time is None or not 0 < float(time[1]) < 1e9:
        raise ValueError(f"cannot read the latency {text!r}; write 20ms or 0.5s")
    return float(time[1]) * {"s": 1.0, "ms": 1e-3}.get(time[2], 1e-6)


def parse_share(text: str) -> float:
    """Return a fraction of 1. A number up to 1 is a fraction, a larger one a percentage. Raises ValueError.

    >>> [parse_share(text) for text in ("75%", "75", "0.75", "0.5 %")]
    [0.75, 0.75, 0.75, 0.005]
    """
    try:
        number = float(text.strip().removesuffix("%"))
    except ValueError:
        raise ValueError(f"cannot read {text!r}; write 75% or 0.75") from None
    share = number / 100 if text.strip().endswith("%") or number > 1 else number
    if not 0 < share <= 1:
        raise ValueError(f"{text} is not above 0 and at most 100 %")
    return share


def parse_dollars(text: str) -> float:
    """Return an amount in dollars. Raises ValueError.

    >>> [parse_dollars(text) for text in ("$50", "50", "$1,000.50")]
    [50.0, 50.0, 1000.5]
    """
    try:
        amount = float(text.strip().removeprefix("$").replace(",", ""))
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        # A shell replaces $5 by nothing: $50, $500 and $5,000 arrive as these. After a lone $5 comes the next option.
        if text.startswith("--"):
            cut = ": the shell removes an unquoted $5"
        elif re.fullmatch(r"0*(,\d{3})*(\.\d+)?", text.strip()):
            cut = ": the shell replaces $5 in an unquoted $50"
        else:
            cut = "" if math.isnan(amount) else ", which is not above 0" if amount <= 0 else ", which is infinite"
        raise ValueError(f"cannot read the amount {text!r}{cut}; write '$50' or 50")
    return amount


def parse_tokens(text: str) -> float:
    """Return a number of tokens, from 1 to 1e18. Raises ValueError.

    >>> [parse_tokens(text) for text in ("1e12", "300B", "1.5 T", "2,000")]
    [1000000000000.0, 300000000000.0, 1500000000000.0, 2000.0]
    """
    size = re.fullmatch(r"\s*(\d+\.?\d*(?:e\+?\d+)?)\s*([kmbt]?)\s*", text.lower().replace(",", ""))
    number = float(size[1]) * {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[size[2]] if size else 0.0
    if not 1 <= number <= 1e18:
        raise ValueError(f"cannot read the tokens {text!r}; write 1e12 or 300B")
    return number


def parse_length(text: str) -> int:
    """Return the tokens of a sequence, from 1 to MAX_NUMBER; k is 1,024. Raises ValueError.

    >>> [parse_length(text) for text in ("4096", "4k", "128K", "8,192")]
    [4096, 4096, 131072, 8192]
    """
    size = re.fullmatch(r"\s*(\d{1,10})\s*(k?)\s*", text.lower().replace(",", ""))
    length = int(size[1]) * {"": 1, "k": 1024}[size[2]] if size else 0
    if not 1 <= length <= MAX_NUMBER:
        raise ValueError(f"cannot read the length {text!r}; write a whole number of tokens above 0, such as 4096 or 4k")
    return length


def parse_whole_numbers(text: str) -> tuple[int, ...]:
    """Return numbers from 1 to MAX_NUMBER, as in `--counts 1,2,4`. Raises ValueError."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise ValueError(f"cannot read {text!r}; write whole numbers such as 1,2,4")
    if max(found) > MAX_NUMBER:
        raise ValueError(f"{max(found)} is too large; write whole numbers of at most {MAX_NUMBER:,}")
    return found


def parse_numbers(text: str) -> tuple[float, ...]:
    """Return numbers, as in `--drops 82,123`. Raises ValueError."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"cannot read {text!r}; write numbers such as 1,2.5,4") from None


def parse_rates(text: str) -> tuple[float, ...]:
    """Return requests per second, each above 0 and at most MAX_NUMBER. Raises ValueError."""
    found = parse_numbers(text)
    if not all(0 < rate <= MAX_NUMBER for rate in found):
        raise ValueError(f"cannot read {text!r}; write requests per second above 0, such as 50,100,200")
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape of a sample. Raises ValueError.

    >>> parse_shape("3,224,224"), parse_shape("3x32x32")
    ((3, 224, 224), (3, 32, 32))
    """
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a shape; write 3,224,224") from None


def parse_clock(text: str) -> int:
    """Return the seconds of HH:MM:SS, MM:SS or minutes, as SLURM reads them. Raises ValueError.

    >>> parse_clock("01:30:00"), parse_clock("90")
    (5400, 5400)
    """
    parts = text.split(":")
    if len(parts) > 3 or not all(part.isdigit() and len(part) < 7 for part in parts):
        raise ValueError(f"cannot read the time {text!r}; write HH:MM:SS")
    hours, minutes, seconds = (0, int(parts[0]), 0) if len(parts) == 1 else [0, 0, *map(int, parts)][-3:]
    return (hours * 60 + minutes) * 60 + seconds


def parse_pair(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`. Raises ValueError."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ValueError(f"cannot read {text!r}; write NAME=VALUE")
    return name, value


BYTES = ValueKind("SIZE", parse_bytes, _is_positive)
DURATION = ValueKind("TIME", parse_seconds, _is_positive)
LATENCY = ValueKind("TIME", parse_latency, _is_positive)
SHARE = ValueKind("SHARE", parse_share, lambda value: isinstance(value, int | float) and 0 < value <= 1)
CLOCK = ValueKind("TIME", parse_clock, lambda value: isinstance(value, int) and value > 0)
PAIR = ValueKind("PAIR", parse_pair, lambda value: isinstance(value, tuple) and len(value) == 2)
TOKENS = ValueKind("N", parse_tokens, lambda value: isinstance(value, int | float) and 1 <= value <= 1e18)
LENGTH = ValueKind("TOKENS", parse_length, lambda value: isinstance(value, int) and 1 <= value <= MAX_NUMBER)
DOLLARS = ValueKind("USD", parse_dollars, _is_positive)
COUNTS = ListKind("N,N,...", parse_whole_numbers, lambda _: False)
NUMBERS = ListKind("K,K,...", parse_numbers, lambda _: False)
RATES = ListKind("R,R,...", parse_rates, lambda _: False)
SHAPE = ListKind("C,H,W", parse_shape, lambda _: False)
ABOVE_0 = click.FloatRange(0, min_open=True)
PATH = click.Path()


def complete_devices(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return completions: devices of the catalogue and of the user, also after a count such as `8x`."""
    from chronograd.hardware import catalog

    count, name = re.fullmatch(r"(\d*x)?(.*)", begun, re.DOTALL).groups("")  # type: ignore[union-attr]
    known = [(device.name, device.title) for device in catalog.devices()]
    return [CompletionItem(count + n, help=title) for n, title in known if n.startswith(name.lower())]


def complete_jobs(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return completions: files, and names of networks, without importing any."""
    from chronograd.configs import find as large
    from chronograd.models import names

    library, colon, _rest = begun.partition(":")
    if not colon:
        known = [*names.zoo(), *large.packaged(), *(f"{library}:" for library in names.LIBRARIES)]
    else:
        is_known = library in names.LIBRARIES
        known = [f"{library}:{name}" for name in names.usable(library)] if is_known else []
    matching = [CompletionItem(name) for name in known if name.startswith(begun)]
    return [*matching, CompletionItem(begun, type="file")]
