"""The data sheet of the processor at hand, from what it says of itself: cores × clock × FLOPs per cycle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MAX_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
# FLOPs per cycle and core of single precision: FMA units × lanes × 2. Intel's optimisation manual for AVX-512 and AMX,
# AMD's for Zen 2 to 4, which do AVX-512 in two halves; Zen 5 and some Xeons of one unit are off by two.
_AVX512, _AVX512_AMD, _AVX2, _AVX, _SSE, _NEON = 64, 32, 32, 16, 8, 16
_AMX_BF16 = 1024


@dataclass(frozen=True)
class Sheet:
    """A peak, and what it rests on in words."""

    flops_per_s: float
    assumption: str


def sheet(cores: int, precision: str = "fp32", cpuinfo: Path = CPUINFO, max_clock: Path = MAX_CLOCK) -> Sheet | None:
    """Peak of so many physical cores in fp32 or bf16; None where the processor does not say enough."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return None
    flags = set(_field(text, "flags").split() or _field(text, "Features").split())
    clock_hz, said = _clock(text, max_clock)
    per_cycle, unit = _per_cycle(flags, precision, is_amd="AuthenticAMD" in text)
    if not clock_hz or not per_cycle:
        return None
    words = f"{cores} {'core' if cores == 1 else 'cores'} × {clock_hz / 1e9:.2f} GHz ({said}) × {per_cycle} FLOPs per cycle ({unit})"
    return Sheet(cores * clock_hz * per_cycle, words)


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor multiplies in bf16. Without, such a job is slower than in fp32."""
    try:
        flags = set(_field(cpuinfo.read_text(), "flags").split())
    except OSError:
        return False
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def _clock(text: str, max_clock: Path) -> tuple[float, str]:
    try:
        return 1e3 * float(max_clock.read_text()), "its highest"
    except (OSError, ValueError):
        pass
    found = re.search(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)
    return (1e6 * float(found[1]), "as it says; it may go above") if found else (0.0, "")


def _per_cycle(flags: set[str], precision: str, is_amd: bool) -> tuple[int, str]:
    """Of one core; 0 where the flags do not tell."""
    if precision == "bf16" and "amx_bf16" in flags:
        return _AMX_BF16, "AMX"
    twice = 2 if precision == "bf16" and "avx512_bf16" in flags else 1
    if "avx512f" in flags:
        return twice * (
            _AVX512_AMD if is_amd else _AVX512
        ), "AVX-512, as two FMA units of 256 bits" if is_amd else "AVX-512, two FMA units"
    if {"avx2", "fma"} <= flags:
        return _AVX2, "AVX2, two FMA units"
    if "avx" in flags:
        return _AVX, "AVX, an addition and a multiplication"
    if "sse2" in flags:
        return _SSE, "SSE, an addition and a multiplication"
    return (_NEON, "NEON, two FMA units") if "asimd" in flags else (0, "")


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else ""
