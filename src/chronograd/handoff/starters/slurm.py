"""An sbatch script: one task per node, which starts the ranks of its node."""

from __future__ import annotations

from chronograd.handoff.library import Starter, nodes_of, short_name
from chronograd.large.setting import LargeSetting
from chronograd.launch.slurm.script import FIRST_NODE


def _write(setting: LargeSetting, line: str) -> str:
    nodes = nodes_of(setting)
    options = [
        f"--job-name={short_name(setting)}",
        "--output=%x-%j.txt",
        f"--nodes={nodes.count}",
        "--ntasks-per-node=1",
        f"--gres=gpu:{nodes.devices}",
        "--exclusive",
    ]
    head = "\n".join(f"#SBATCH {option}" for option in options)
    return f"#!/bin/bash\n{head}\n\n{FIRST_NODE}\nsrun --kill-on-bad-exit=1 bash -c '{line}'\n"


STARTER = Starter("slurm.sh", _write, "sbatch slurm.sh")
