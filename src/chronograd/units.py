"""Units: SI inside, formatted only at the edge. 1 MAC = 2 FLOPs, GB = 1e9 bytes, GiB = 2**30."""

from __future__ import annotations

import math

FLOPS_PER_MAC = 2
GIB = 2**30

_SI = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """`value` with an SI prefix.

    >>> si(19_632_062_464, "MAC")
    '19.6 GMAC'
    >>> si(0, "FLOP")
    '0 FLOP'
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g} {unit}".rstrip()
    scale, prefix = next(((s, p) for s, p in _SI if abs(value) >= s), _SI[-1])
    return f"{_digits(value / scale, digits)} {prefix}{unit}".rstrip()


def seconds(value: float, digits: int = 3) -> str:
    """A duration at the scale a person would use.

    >>> seconds(0.00123), seconds(93), seconds(7300), seconds(400_000)
    ('1.23 ms', '1 min 33 s', '2 h 01 min', '4 d 15 h')
    """
    if value < 0:
        return "-" + seconds(-value, digits)
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (60.0, 1.0, "s")):
        if value < limit:
            return f"{_digits(value * scale, digits)} {unit}"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    if value < 86400:
        return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"
    return f"{int(value // 86400)} d {int(value % 86400 // 3600):02d} h"


def dollars(value: float) -> str:
    """US dollars, to the cent above ten cents and to two digits below.

    >>> dollars(12.3456), dollars(0.00123), dollars(0)
    ('$12.35', '$0.0012', '$0.00')
    """
    if value == 0 or abs(value) >= 0.1:
        return f"${value:,.2f}"
    return f"${value:.{1 - math.floor(math.log10(abs(value)))}f}"


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as per cent.

    >>> percent(0.0912)
    '9.1 %'
    """
    return f"{100 * fraction:.{digits}f} %"


def quantity(value: float | None, unit: str) -> str:
    """Any quantity of a record, formatted by its unit.

    >>> quantity(0.0123, "s"), quantity(2e9, "B"), quantity(None, "s"), quantity(0.31, "1")
    ('12.3 ms', '2 GB', '–', '31.0 %')
    """
    if value is None or not math.isfinite(value):
        return "–" if value is None else f"{value:g} {unit}"
    if unit == "s":
        return seconds(value) if value else "0 s"
    if unit == "sample/s":
        return f"{_digits(value, 3) if value < 100 else f'{value:,.0f}'} samples/s"
    if unit == "usd":
        return dollars(value)
    if unit == "1":
        return percent(value)
    if unit in ("", "count"):
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"
    return si(value, unit)


def _digits(value: float, digits: int) -> str:
    """`value` to `digits` significant digits, without an exponent."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
