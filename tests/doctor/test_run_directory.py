"""`doctor` on a run directory checks its job; other folders give an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.errors import JobError
from chronograd.rundir import RunDir


def test_run_directory_means_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = jobs.from_dict({"network": {"name": "alexnet"}, "data": {"name": "digits"}})
    RunDir.create(job, out="mine")
    assert main(["doctor", "mine", "training.batch=0"]) == 2  # an invalid job, so nothing is measured
    printed = capsys.readouterr()
    assert "this checks the job of mine; `chronograd explain mine`" in printed.err
    assert "Errno" not in printed.out + printed.err
    with pytest.raises(JobError, match="mine is a run directory, not a job file"):
        jobs.read(Path("mine"))
    Path("other").mkdir()
    assert main(["doctor", "./other"]) == 2
    assert "other is a folder, not a job file" in capsys.readouterr().err
