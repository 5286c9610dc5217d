"""A full disk: the error names the path and the free space, for every file, on a file system of 64 kB."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronograd import files
from chronograd import job as jobs
from chronograd.errors import DiskFullError, RunError
from chronograd.launch import slurm
from chronograd.launch.processes import Process, run_together
from chronograd.launch.slurm.script import Options
from chronograd.rundir import RunDir, StepLine
from chronograd.train import checkpoint_folder
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, Progress
from chronograd.train.rank_command import DISK_FULL_STATUS


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (folder / "filling").write_bytes(b"x" * 200_000)
    assert os.statvfs(folder).f_bavail == 0


def test_full_disk_error_names_path_and_leaves_no_file(small: Path) -> None:
    path = small / "record.json"
    files.write_aside(path, "before")
    fill(small)
    with pytest.raises(DiskFullError) as told:
        files.write_aside(path, "x" * 10_000)
    assert told.value.message == f"cannot write {path}: the disk is full; 0 bytes are free there"
    assert told.value.hint == "free some space there, or name a folder on another disk"
    assert path.read_text() == "before"
    assert sorted(p.name for p in small.iterdir()) == ["filling", "record.json"]


def test_error_for_a_user_file_suggests_no_folder(small: Path) -> None:
    fill(small)
    with pytest.raises(DiskFullError, match="the disk is full"), files.as_asked(small / "page.html"):
        (small / "page.html").write_bytes(b"x" * 5000)


def test_steps_of_a_rank(small: Path) -> None:
    run = RunDir.create(out=small / "run")

    def write(rank: int, count: int) -> None:
        with run.step_writer(rank) as lines:
            for step in range(1, count + 1):
                lines.write(StepLine(step=step, step_time_s=0.1))

    with pytest.raises(DiskFullError, match=r"steps\.0\.jsonl: the disk is full"):
        write(0, 5000)
    with pytest.raises(DiskFullError, match=r"steps\.1\.jsonl: the disk is full"):
        write(1, 1)


def test_new_run(small: Path) -> None:
    fill(small)
    with pytest.raises(RunError, match="full"):
        RunDir.create(out=small / "run")


def test_checkpoint(small: Path) -> None:
    fill(small)
    content = {name: (lambda path: path.write_bytes(b"x" * 5000) and None) for name in (MODEL, OPTIMIZER)}
    with pytest.raises(DiskFullError, match="the disk is full; 0 bytes"):
        checkpoint_folder.write(small, Progress(step=1), content, {})


def test_safetensors_error_contains_the_error_number() -> None:
    error = checkpoint_folder._system_error(Exception("I/O error: No space left on device (os error 28)"))
    assert error is not None
    assert error.errno == errno.ENOSPC
    assert checkpoint_folder._system_error(Exception("some other")) is None


def test_rank_that_cannot_print_reports_by_exit_status(small: Path) -> None:
    command = (sys.executable, "-c", f"raise SystemExit({DISK_FULL_STATUS})")
    with pytest.raises(DiskFullError, match=f"rank 3: cannot write {small}: the disk is full"):
        run_together([Process("rank 3", command, {}, small / "output.3.txt")])


def test_progress_note_of_a_rank_does_not_kill_it(small: Path) -> None:
    """Writing to mapped memory of a file without disk space raises SIGBUS."""
    fill(small)
    code = (
        "from chronograd.train.watchdog import _mapped; from pathlib import Path; import sys\n"
        "_, memory = _mapped(Path(sys.argv[1])); memory[0:5] = b'there'; assert memory[0:5] == b'there'"
    )
    subprocess.run([sys.executable, "-c", code, str(small / "where.0")], check=True)


def test_file_size_limit(tmp_path: Path) -> None:
    told = files.disk_full(tmp_path / "x", OSError(errno.EFBIG, "too large"))
    assert told is not None
    assert told.hint == "raise the limit (`ulimit -f unlimited`)"
    assert files.disk_full(tmp_path, OSError(errno.EACCES, "no")) is None


def test_job_that_cannot_be_recorded_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next --resume would add a second writer to the run."""
    job = jobs.from_dict({"network": {"name": "lenet5"}, "data": {"name": "synthetic", "shape": [1, 28, 28]}})
    run = RunDir.create(job, out=tmp_path / "run")
    (run.path / slurm.SCRIPT).write_text("#!/bin/sh\n")
    cancelled: list[str] = []
    monkeypatch.setattr(slurm.slurm_commands, "sbatch", lambda script: "17")
    monkeypatch.setattr(slurm.slurm_commands, "scancel", cancelled.append)

    def full(path: Path, data: object) -> None:
        raise DiskFullError(f"cannot write {path}: the disk is full", "free some space there")

    monkeypatch.setattr(slurm, "write_json", full)
    with pytest.raises(DiskFullError) as told:
        slurm.submit(run, Options())
    assert cancelled == ["17"]
    assert told.value.message.endswith(
        "the disk is full; job 17 was submitted, could not be recorded, and was cancelled"
    )
    assert told.value.hint == "free some space there; submit it again once the run directory can be written"

    def refuse(job_id: str) -> None:
        raise RunError("scancel did not answer in 60 s")

    monkeypatch.setattr(slurm.slurm_commands, "scancel", refuse)
    with pytest.raises(DiskFullError, match="job 17 was submitted, but could not be recorded or cancelled") as told:
        slurm.submit(run, Options())
    assert "scancel 17, before the run is submitted again" in told.value.hint
