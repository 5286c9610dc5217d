"""The command line of torchrun; that it runs is tested in tests/backends/test_contract.py."""

from __future__ import annotations

from chronograd.backends.plan import RankPlan
from chronograd.launch import torchrun


def test_the_command_line_meets_on_the_loopback_interface() -> None:
    command = torchrun.command(RankPlan(("python", "-m", "worker"), world_size=3))
    assert command[1:] == (
        *("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *("--nproc-per-node=3", "--no-python", "python", "-m", "worker"),
    )
