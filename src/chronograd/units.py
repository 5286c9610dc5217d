"""Units: SI in all computations, formatted only for output. 1 MAC = 2 FLOPs, GB = 1e9 bytes, GiB = 2**30."""

from __future__ import annotations

import math
import re

FLOPS_PER_MAC = 2
GIB = 2**30

MINUS = "\u2212"  # has the width of a plus sign; users type a hyphen
NOTHING_S = 1e-9  # a shorter time is not visible in a step; mostly it is the rest of a difference

_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SI = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
_BINARY = [(2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, "")]


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """Return `value` with an SI prefix: work, rates, and bytes that are moved or stored.

    >>> si(19_632_062_464, "MAC")
    '19.6 GMAC'
    >>> si(0, "FLOP")
    '0 FLOP'
    """
    return _prefixed(value, unit, digits, _SI)


def memory(num_bytes: float) -> str:
    """Return bytes of a memory in the units of drivers and PyTorch. For bytes moved, or stored on a disk, use `si`.

    >>> memory(24 * GIB), memory(1_572_864)
    ('24 GiB', '1.5 MiB')
    """
    return _prefixed(num_bytes, "B", 3, _BINARY)


def _prefixed(value: float, unit: str, digits: int, prefixes: list[tuple[float, str]]) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    scale, prefix = next(((s, p) for s, p in prefixes if abs(value) >= s), prefixes[-1])
    return f"{_digits(value / scale, digits)} {prefix}{unit}".rstrip()


def seconds(value: float, digits: int = 3) -> str:
    """Return a duration at a readable scale; shorter than a nanosecond counts as 0.

    >>> seconds(0.00123), seconds(93), seconds(7300), seconds(400_000)
    ('1.23 ms', '1 min 33 s', '2 h 02 min', '4 d 15 h')
    >>> seconds(161.96), seconds(3599.6), seconds(86_399)  # rounded, not cut
    ('2 min 42 s', '1 h 00 min', '1 d 00 h')
    >>> seconds(-0.01), seconds(-2.8e-17), seconds(1e8)
    ('−10 ms', '0 s', '1,157 d')
    """
    if abs(value) < NOTHING_S:
        return "0 s"
    if not math.isfinite(value):
        return f"{value:g} s"
    if value < 0:
        return MINUS + seconds(-value, digits)
    for limit, scale, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s")):
        if value < limit:
            return f"{_digits(value * scale, digits)} {unit}"
    total = round(value)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    minutes, hours = round(value / 60), round(value / 3600)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h" if hours < 2400 else f"{round(value / 86_400):,} d"


def dollars(value: float) -> str:
    """Return US dollars to the cent, from $100,000 on to the dollar, and below a cent to two digits.

    >>> dollars(12.3456), dollars(0.00123), dollars(0), dollars(-2)
    ('$12.35', '$0.0012', '$0.00', '−$2.00')
    >>> dollars(0.003), dollars(0.00999), dollars(2.81e-7), dollars(131_737_616.4)
    ('$0.0030', '$0.01', '$2.8e-07', '$131,737,616')
    """
    if value < 0:
        return MINUS + dollars(-value)
    rounded = float(f"{value:.1e}")
    if not 0 < rounded < 0.01:
        return f"${value:,.2f}" if value < 99_999.5 else f"${value:,.0f}"
    if rounded < 1e-6:
        return f"${value:.1e}"
    return f"${value:.{1 - math.floor(math.log10(rounded))}f}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Return a fraction in per cent.

    >>> percent(0.0912), percent(None)
    ('9.1 %', '–')
    """
    return "–" if fraction is None else signed(f"{100 * fraction:.{digits}f} %")


def whole_percent(fraction: float | None) -> str:
    """Return a fraction in per cent, without decimals, for the cells of a table.

    >>> whole_percent(0.0912), whole_percent(None)
    ('9 %', '–')
    """
    return percent(fraction, 0)


def chance(probability: float) -> str:
    """Return a probability in whole per cent. Nothing is certain: the ends are "under 1 %" and "over 99 %".

    >>> chance(0.8), chance(0.9999), chance(1.0), chance(0.0)
    ('80 %', 'over 99 %', 'over 99 %', 'under 1 %')
    """
    if probability > 0.99:
        return "over 99 %"
    return "under 1 %" if probability < 0.01 else percent(probability, 0)


def upwards(value: float) -> str:
    """Return two digits, rounded up, for values such as a tolerance.

    >>> upwards(1.2001e-6), upwards(0.0)
    ('1.3e-06', '0')
    """
    if not value:
        return "0"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return f"{math.ceil(value / step - 1e-9) * step:.2g}"


def quantity(value: float | None, unit: str) -> str:
    """Return a quantity of a record, formatted by its unit. Bytes of a record are those of a memory.

    >>> quantity(0.0123, "s"), quantity(2**31, "B"), quantity(None, "s"), quantity(0.31, "1"), quantity(1.0, "probability")
    ('12.3 ms', '2 GiB', '–', '31.0 %', 'over 99 %')
    >>> quantity(-10196, "sample/s"), quantity(171_766, "count"), quantity(45909.2, "count")
    ('−10,196 samples/s', '171,766', '45,909')
    """
    if value is None or not math.isfinite(value):
        return "–" if value is None else f"{value:g} {unit}"
    if unit == "s":
        return seconds(value)
    if unit in ("sample/s", "token/s", "image/s", "request/s", "frame/s", "update/s", "transition/s"):
        return signed(f"{_digits(value, 3) if abs(value) < 100 else f'{value:,.0f}'} {unit[:-2]}s/s")
    if unit == "usd":
        return dollars(value)
    if unit == "1":
        return percent(value)
    if unit == "probability":
        return chance(value)
    if unit == "B":
        return memory(value)
    if unit in ("", "count"):
        return number(value)
    return si(value, unit)


def number(value: float, form: str = ".4g") -> str:
    """Return a number without a unit, formatted by `form`; from 1,000 on as an integer with separators, like its interval.

    >>> number(171_766.0), number(45909.2), number(496), number(19.104), number(-0.5)
    ('171,766', '45,909', '496', '19.1', '−0.5')
    >>> number(999.6), number(45909.2, ".1f"), number(12.0, ".1f")
    ('1,000', '45,909', '12.0')
    """
    return signed(f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:{form}}")


def signed(number: str) -> str:
    """Return a number as text, with a minus sign instead of Python's hyphen.

    >>> signed("-5 %"), signed("0.5")
    ('−5 %', '0.5')
    """
    return MINUS + number[1:] if number.startswith("-") else number


def _digits(value: float, digits: int) -> str:
    """Return `value` with `digits` significant digits, without an exponent."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = signed(f"{value:.{places}f}")
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_seconds(text: str) -> float:
    """Return a time in seconds. Raises ValueError.

    >>> parse_seconds("6h"), parse_seconds("1.5 d"), parse_seconds("90m")
    (21600.0, 129600.0, 5400.0)
    """
    time = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d)\s*", text.lower())
    if time is None or not 0 < float(time[1]) < 1e9:
        raise ValueError(f"cannot read the time {text!r}; write 6h, 90m or 2d")
    return float(time[1]) * _SECONDS[time[2]]
