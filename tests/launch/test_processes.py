"""Process groups that start and stop together. Uses real processes without torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chronograd.errors import RunError
from chronograd.launch.processes import Process, run_together

SLEEP = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(60)"


def process(name: str, code: str, folder: Path) -> Process:
    return Process(name, (sys.executable, "-c", code), {"GREETING": name}, folder / f"{name}.txt")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").exists() else True


def wait_for(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_all_run_to_the_end_in_their_environment(tmp_path: Path) -> None:
    code = "import os; print(os.environ['GREETING'])"
    calls: list[int] = []
    run_together([process(n, code, tmp_path) for n in ("a", "b")], lambda: calls.append(1))
    assert [(tmp_path / f"{n}.txt").read_text() for n in ("a", "b")] == ["a\n", "b\n"]
    assert calls


def test_failure_stops_the_others_and_shows_output(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    failing = f"import os, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.01)\nraise SystemExit('alas')"
    with pytest.raises(RunError, match="b ended with exit status 1") as caught:
        run_together([process("a", SLEEP.format(pid=str(pid)), tmp_path), process("b", failing, tmp_path)])
    assert "alas" in str(caught.value)
    assert not is_alive(int(pid.read_text()))


def test_killed_process_is_reported_with_its_signal(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="was killed by SIGKILL"):
        run_together([process("a", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)])


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chronograd.launch.processes.GRACE_S", 0.3)
    pid = tmp_path / "pid"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP.format(pid=str(pid))
    failing = f"import os, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.01)\nraise SystemExit(3)"
    with pytest.raises(RunError, match="exit status 3"):
        run_together([process("a", stubborn, tmp_path), process("b", failing, tmp_path)])
    assert not is_alive(int(pid.read_text()))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_the_parent_ends_the_ranks(tmp_path: Path, number: signal.Signals, status: int) -> None:
    pid = tmp_path / "pid"
    parent = _parent(tmp_path, pid)
    wait_for(lambda: pid.exists() and pid.read_text())
    parent.send_signal(number)
    assert parent.wait(20) == status
    wait_for(lambda: not is_alive(int(pid.read_text())))


def test_ranks_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    """A parent killed by kill -9 cannot end its ranks; they watch it instead."""
    pid = tmp_path / "pid"
    parent = _parent(tmp_path, pid, "from chronograd.train.rank_command import exit_with_parent; exit_with_parent(); ")
    wait_for(lambda: pid.exists() and pid.read_text())
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_alive(int(pid.read_text())))


def _parent(folder: Path, pid: Path, before: str = "") -> subprocess.Popen[bytes]:
    code = (
        "import signal, sys; from pathlib import Path; from chronograd.launch.processes import Process, run_together\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background\n"
        f"command = (sys.executable, '-c', {before + SLEEP.format(pid=str(pid))!r})\n"
        "try:\n"
        f"    run_together([Process('a', command, {{}}, Path({str(folder / 'a.txt')!r}))])\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    return subprocess.Popen([sys.executable, "-c", code])
