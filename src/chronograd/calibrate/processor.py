"""The data sheet of this machine's processor, from its own description: cores × clock × FLOPs per cycle."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MAX_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
# FLOPs per cycle and core in single precision: FMA units × lanes × 2. Sources: Intel's optimisation manual for AVX-512 and AMX,
# AMD's for Zen 2 to 4, which execute AVX-512 in two halves. Zen 5 and some Xeons with one unit are off by a factor of two.
_AVX512, _AVX512_AMD, _AVX2, _AVX, _SSE, _NEON = 64, 32, 32, 16, 8, 16
_AMX_BF16 = 1024


@dataclass(frozen=True)
class Sheet:
    """A peak, and its assumptions in words."""

    flops_per_s: float
    assumption: str


def sheet(cores: int, precision: str = "fp32", cpuinfo: Path = CPUINFO, max_clock: Path = MAX_CLOCK) -> Sheet | None:
    """Return the peak of `cores` physical cores in fp32 or bf16; None if the processor does not report enough."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return None
    flags = set(_field(text, "flags").split() or _field(text, "Features").split())
    clock_hz, clock_source = _clock(text, max_clock)
    per_cycle, unit = _per_cycle(flags, precision, is_amd="AuthenticAMD" in text)
    if not clock_hz or not per_cycle:
        return None
    words = f"{cores} {'core' if cores == 1 else 'cores'} × {clock_hz / 1e9:.2f} GHz ({clock_source}) × {per_cycle} FLOPs per cycle ({unit})"
    return Sheet(cores * clock_hz * per_cycle, words)


def has_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether the processor multiplies in bf16. If not, a bf16 job is slower than an fp32 one."""
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
    return (1e6 * float(found[1]), "as reported; it may run faster") if found else (0.0, "")


def _per_cycle(flags: set[str], precision: str, is_amd: bool) -> tuple[int, str]:
    """Return the FLOPs per cycle of one core and its unit; 0 if the flags do not show them."""
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
