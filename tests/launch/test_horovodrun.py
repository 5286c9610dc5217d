"""Ranks started by horovodrun: their command line, and their end with the launcher. The ranks do not use torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chronograd.backends.horovod import build as horovod_build
from chronograd.backends.plan import RankPlan
from chronograd.errors import RunError
from chronograd.launch import horovodrun
from chronograd.rundir import RunDir

real = pytest.mark.horovod
ENDS_WITHIN_S = 300.0


def plan(code: str) -> RankPlan:
    return RankPlan((str(horovod_build.python()), "-c", code), 2, {"GREETING": "good day"}, "horovodrun")


def test_command_line_uses_loopback() -> None:
    command = horovodrun.command(RankPlan(("/env/bin/python", "-m", "worker"), world_size=3))
    assert command == (
        *("/env/bin/python", "-P", "-m", "chronograd.launch.horovodrun"),
        *("--gloo", "--disable-cache", "-np", "3", "-H", "127.0.0.1:3"),
        *("/env/bin/python", "-m", "worker"),
    )


@real
def test_each_rank_gets_its_number(tmp_path: Path) -> None:
    code = "import os; print(*(os.environ[n] for n in ('GREETING', 'HOROVOD_RANK', 'HOROVOD_SIZE')))"
    horovodrun.launch(plan(code), RunDir(tmp_path))
    printed = (tmp_path / "output.horovodrun.txt").read_text().splitlines()
    assert {"[0]<stdout>:good day 0 2", "[1]<stdout>:good day 1 2"} <= set(printed)


@real
def test_output_of_a_failed_rank_is_reported(tmp_path: Path) -> None:
    code = "import os, sys, time; os.environ['HOROVOD_RANK'] == '1' and sys.exit('alas'); time.sleep(60)"
    start = time.monotonic()
    with pytest.raises(RunError, match=r"horovodrun ended with exit status 1") as caught:
        horovodrun.launch(plan(code), RunDir(tmp_path))
    assert "[1]<stderr>:alas" in str(caught.value)
    assert time.monotonic() - start < 45


@real
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_end_with_their_launcher(tmp_path: Path, number: signal.Signals) -> None:
    sleep = (
        "import os, time; from pathlib import Path\n"
        f"Path({str(tmp_path)!r}, 'pid.' + os.environ['HOROVOD_RANK']).write_text(str(os.getpid())); time.sleep(1200)"
    )
    launching = (
        # A shell starts background processes with SIGINT ignored, and Python does not change that.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path; from chronograd.launch import horovodrun\n"
        "from chronograd.backends.plan import RankPlan; from chronograd.rundir import RunDir\n"
        f"horovodrun.launch(RankPlan({plan(sleep).command!r}, 2), RunDir(Path({str(tmp_path)!r})))"
    )
    parent = subprocess.Popen([sys.executable, "-c", launching], stderr=subprocess.DEVNULL)
    files = [tmp_path / f"pid.{rank}" for rank in range(2)]
    _wait_for(lambda: all(file.exists() and file.read_text() for file in files), 600)
    ranks = [int(file.read_text()) for file in files]
    family = _descendants(parent.pid)
    assert set(ranks) < set(family)
    parent.send_signal(number)
    parent.wait(ENDS_WITHIN_S)
    _wait_for(lambda: not any(_is_alive(pid) for pid in family), ENDS_WITHIN_S)


def _wait_for(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    import psutil

    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").exists() else True


# The end of horovodrun 0.28's output if a rank is killed or exits.
_PRINTED = """[0]<stderr>:horovod.common.exceptions.HorovodInternalError: [/gloo/transport/tcp/pair.cc:589] Read error
Process 0 exit with status code 1.
horovodrun: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The \
first process to do so was:
Process name: {rank}
Exit code: {code}
"""


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (-9, "SIGKILL"), (143, "SIGTERM")])
def test_killed_rank_is_reported_instead_of_its_followers(code: int, name: str) -> None:
    told = horovodrun.killed(_PRINTED.format(rank=1, code=code))
    assert told is not None
    assert told.message == f"rank 1 was killed by {name}; the other ranks failed because of that"


@pytest.mark.parametrize("printed", ["", _PRINTED.format(rank=1, code=1), "Process name: one\nExit code: 137"])
def test_rank_that_failed_was_not_killed(printed: str) -> None:
    assert horovodrun.killed(printed) is None
