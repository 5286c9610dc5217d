"""`chronograd doctor`: what can run here, and what is missing for the rest."""

from __future__ import annotations

import shutil
from typing import Any

import click

from chronograd.cli import common


@click.command(name="doctor")
@common.json_option
def command(as_json: bool) -> None:
    """List every backend and launcher, whether it can run on this machine, and if not, what it needs.

    \b
    chronograd doctor
    chronograd doctor --json
    """
    backends, launchers = _backends(), _launchers()
    if as_json:
        common.print_json({"backends": backends, "launchers": launchers})
        return
    for title, rows in (("backend", backends), ("launcher", launchers)):
        cells = [[row["name"], "yes" if row["available"] else "no", row["reason"]] for row in rows]
        common.print_table((title, "runs here", "what is missing"), cells)


def _backends() -> list[dict[str, Any]]:
    from chronograd.backends import registry

    found = []
    for name in registry.names():
        is_available, reason = registry.load(name).available()
        found.append({"name": name, "available": is_available, "reason": reason})
    return found


def _launchers() -> list[dict[str, Any]]:
    """By the commands that they call."""
    from importlib.util import find_spec

    from chronograd.backends import registry

    has_torch = find_spec("torch") is not None
    has_horovod, horovod_reason = registry.load("horovod").available()
    found = [
        ("local", True, ""),
        ("torchrun", has_torch, "" if has_torch else "torch is not installed; pip install 'chronograd[torch]'"),
        ("horovodrun", has_horovod, horovod_reason),
        ("slurm", bool(shutil.which("sbatch")), "" if shutil.which("sbatch") else "sbatch is not on the PATH"),
        (
            "ray",
            find_spec("ray") is not None,
            "" if find_spec("ray") else "ray is not installed; pip install 'chronograd[ray]'",
        ),
    ]
    return [{"name": name, "available": is_there, "reason": reason} for name, is_there, reason in found]
