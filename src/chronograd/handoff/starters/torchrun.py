"""A shell script that starts the ranks of one node; each node runs it."""

from __future__ import annotations

from chronograd.handoff.library import Starter, nodes_of
from chronograd.large.setting import LargeSetting


def _write(setting: LargeSetting, line: str) -> str:
    nodes = nodes_of(setting)
    where = f'# Run this on each of the {nodes.count} nodes.\n: "${{MASTER_ADDR:?the address of the first node}}"\n'
    return f"#!/bin/bash\nset -eu\n{where if nodes.count > 1 else ''}exec {line}\n"


STARTER = Starter("start.sh", _write, "bash start.sh")
