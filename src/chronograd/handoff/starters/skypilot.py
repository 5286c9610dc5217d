"""A task of SkyPilot, which rents the nodes, copies this folder to them and starts the ranks of each."""

from __future__ import annotations

from chronograd.clouds.instances import choose
from chronograd.clouds.registry import platform
from chronograd.files import dump_yaml
from chronograd.handoff.library import Starter, short_name
from chronograd.large.setting import LargeSetting

# https://docs.skypilot.co/en/latest/reference/yaml-spec.html and running-jobs/environment-variables.html, 2026-11-27.
_FIRST_NODE = 'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'


def _write(setting: LargeSetting, line: str) -> str:
    instance, count = choose(platform("skypilot").catalogue, setting.job)
    resources = {"accelerators": instance.name}
    head = {"name": short_name(setting), "resources": resources, "num_nodes": count, "workdir": "."}
    return f"{dump_yaml(head)}run: |\n  {_FIRST_NODE}\n  {line}\n"


STARTER = Starter("skypilot.yaml", _write, "sky launch skypilot.yaml")
