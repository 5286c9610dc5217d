"""Two processes that run loops with planted causes of lost time; see planted_rank.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from chronograd.launch.local import free_port

SCRIPT = Path(__file__).parent / "planted_rank.py"


class Pair:
    """Two ranks, started once. `run` makes one run directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
        fixed = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT)],
                env={**os.environ, **meeting, **fixed, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    def __enter__(self) -> Self:
        for rank in self._ranks:
            assert _answer(rank) == "ready"
        return self

    def __exit__(self, *error: object) -> None:
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.close()
            rank.wait(300)  # exiting is slow on a busy machine, too
            assert rank.stdout is not None
            rank.stdout.close()

    def run(self, **told: Any) -> Path:
        """Make a run with a planted cause; see planted_rank.run. Raises RuntimeError with a rank's output."""
        self._count += 1
        out = self._folder / f"run-{self._count}"
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps({"out": str(out), **told}) + "\n")
            rank.stdin.flush()
        answers = [_answer(rank) for rank in self._ranks]
        if answers != ["done", "done"]:
            raise RuntimeError("\n".join(answers))
        return out


def _answer(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    return rank.stdout.readline().strip()
