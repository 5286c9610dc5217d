"""Checks of conflicting versions, backends and launchers."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from chronograd.backends import registry
from chronograd.backends.horovod import build as horovod_build
from chronograd.doctor.finding import Finding, judged
from chronograd.errors import install_command
from chronograd.measure import environment
from chronograd.measure.environment import version_of

PACKAGE = "chronograd"


@dataclass(frozen=True)
class Conflict:
    """An unmet requirement. `installed` is the installed version; empty if none is."""

    owner: str
    owner_version: str
    requirement: str
    installed: str


def libraries() -> list[str]:
    """Return the installed libraries among our own requirements, including those of any extra."""
    try:
        ours = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
        ours = []
    names = {found[0] for line in ours if (found := re.match(r"[\w.-]+", line))} | set(environment.LIBRARIES)
    return sorted(name for name in names if name != PACKAGE and version_of(name))


def conflicts(names: Sequence[str]) -> tuple[list[Conflict], int]:
    """Return the unmet requirements of these distributions and all their dependencies, and the number of checked distributions.

    Requirements come from each one's metadata (Requires-Dist, Requires-Python); extras are left out.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    found, seen, waiting = [], set(), [PACKAGE, *names]
    while waiting:
        name = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in seen:
            continue
        seen.add(key)
        try:
            owner = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        try:
            python = SpecifierSet(str(owner.metadata.json.get("requires_python", "")))
            if not python.contains(platform.python_version(), prereleases=True):
                found.append(Conflict(name, owner.version, f"python{python}", platform.python_version()))
            needed = [Requirement(line) for line in owner.requires or []]
        except (InvalidRequirement, InvalidSpecifier):  # an old release with metadata in an old format
            continue
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
                installed = version_of(requirement.name)
                if not installed or not requirement.specifier.contains(installed, prereleases=True):
                    needs = f"{requirement.name}{requirement.specifier}"
                    found.append(Conflict(name, owner.version, needs, installed))
    return found, len(seen)


def versions() -> list[Finding]:
    """Return the versions of Python and libraries, and their conflicts."""
    own = environment.versions()
    shown = ", ".join(f"{name} {version}" for name, version in own.items() if name != PACKAGE)
    broken, count = conflicts(libraries())
    found = [_finding(conflict) for conflict in broken]
    if not broken:
        fit = f"{shown}; the requirements of {count} packages are met"
        found = [Finding("software", "versions", fit, numbers=dict(own))]
    return found + _horovod()


def _finding(conflict: Conflict) -> Finding:
    there = f"{conflict.installed} is installed" if conflict.installed else "it is not installed"
    seen = f"{conflict.owner} {conflict.owner_version} needs {conflict.requirement}, but {there}"
    if conflict.requirement.startswith("python"):
        to_do = f"create an environment with another Python, or install another {conflict.owner}"
    else:
        to_do = f"pip install '{conflict.requirement}', or a compatible {conflict.owner}: pip install --upgrade {conflict.owner}"
    return Finding(
        "software", "versions", seen, "warning", to_do, {"owner": conflict.owner, "installed": conflict.installed}
    )


def _horovod() -> list[Finding]:
    """Report a Horovod that was built for another PyTorch than the installed one."""
    if not version_of("torch") or horovod_build.is_built():
        return []
    cache = horovod_build.python().parents[2]
    others = sorted({path.name.rpartition("-")[0] for path in cache.glob("py*-torch*") if path.is_dir()})
    if not others:
        return []
    seen = f"built for {', '.join(others)}, but this is Python {platform.python_version()} with torch {version_of('torch')}"
    return [Finding("software", "Horovod", seen, "warning", f"build it again: {horovod_build.COMMAND}")]


def nccl(in_use: str) -> list[Finding]:
    """Compare the NCCL that PyTorch loaded in this process with the one installed with it."""
    if not in_use:
        return []
    installed = next((v for n in ("13", "12", "11") if (v := version_of(f"nvidia-nccl-cu{n}"))), in_use)
    differs = not installed.startswith(in_use)
    seen = in_use + (f" is loaded, but {installed} is installed with PyTorch" if differs else "")
    to_do = "remove the loaded one from LD_LIBRARY_PATH"
    return [judged("software", "NCCL", seen, {"nccl": in_use}, (differs, "warning", to_do))]


# -- backends and launchers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Availability:
    """The availability of a backend or launcher here, and the reason if it cannot run."""

    name: str
    available: bool
    reason: str


def backends() -> list[Availability]:
    """Return for every backend whether it can run here, and if not, what it needs."""
    return [Availability(name, *registry.load(name).available()) for name in registry.names()]


def launchers() -> list[Availability]:
    """Return the same for launchers, judged by the commands that they call."""
    has_torch = find_spec("torch") is not None
    has_horovod, horovod_reason = registry.load("horovod").available()
    has_slurm, has_ray = shutil.which("sbatch") is not None, find_spec("ray") is not None
    return [
        Availability("local", True, ""),
        Availability("torchrun", has_torch, "" if has_torch else f"torch is not installed; {install_command('torch')}"),
        Availability("horovodrun", has_horovod, horovod_reason),
        Availability("slurm", has_slurm, "" if has_slurm else "sbatch is not on the PATH"),
        Availability("ray", has_ray, "" if has_ray else f"ray is not installed; {install_command('ray')}"),
    ]


def as_findings(what: str, rows: Sequence[Availability]) -> list[Finding]:
    """Return one finding with all that can run, and one for each that cannot."""
    here = [row.name for row in rows if row.available]
    found = [Finding("software", what, f"{', '.join(here)} can run here")] if here else []
    if what == "backends" and not here:
        to_do = install_command("torch")
        found.append(Finding("software", what, "none can run here", "obstacle", to_do))
    for row in rows:
        if not row.available:
            seen, _, to_do = row.reason.partition("; ")
            found.append(Finding("software", f"{what.removesuffix('s')} {row.name}", seen, "absent", to_do))
    return found


def concerns(finding: Finding, backend: str | None) -> bool:
    """Return whether a finding affects a job on that backend; without a job, whether it affects plain PyTorch."""
    kind, _, name = finding.what.partition(" ")
    if finding.state == "absent" and kind in ("backend", "launcher"):
        return name == backend or (name == "horovodrun" and backend == "horovod")
    return finding.what != "Horovod" or backend == "horovod"
