"""The environment as data, and peak memory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from chronograd.measure.environment import environment, slice_s
from chronograd.measure.memory import PeakMemory


def test_environment_is_json_without_host_name() -> None:
    found = environment()
    text = json.dumps(found)
    assert {"created", "platform", "versions", "processor", "cores", "ram_bytes", "gpus"} <= found.keys()
    assert found["versions"]["torch"] == torch.__version__.split("+")[0]
    assert found["cores"] >= 1
    name = socket.gethostname()
    assert name == "localhost" or name not in text


# -- git -----------------------------------------------------------------------------------------------------------------

SOURCES = Path(__file__).parent.parent.parent / "src"
# Places in a repository's own configuration from which git runs a program.
PROGRAMS = """
[core]
    fsmonitor = "{harm}"
    hooksPath = hooks
    pager = {harm}
    editor = {harm}
    sshCommand = {harm}
    alternateRefsCommand = {harm}
[filter "strange=r"]
    clean = {harm}
    smudge = {harm}
    process = {harm}
    required = true
[diff]
    external = {harm}
[diff "strange"]
    textconv = {harm}
[alias]
    status = !{harm}
    rev-parse = !{harm}
[pager]
    status = {harm}
    rev-parse = {harm}
[credential]
    helper = !{harm}
[gpg]
    program = {harm}
[protocol "ext"]
    allow = always
[remote "origin"]
    url = "ext::{harm}"
    promisor = true
    uploadpack = {harm}
[extensions]
    partialClone = origin
[include]
    path = more
"""


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgSign=false", "-C", str(folder))
    return subprocess.run(["git", *own, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a repository of two files and a submodule, at its second commit."""
    folder = tmp_path / "checkout"
    for place in (folder, folder / "inner"):
        place.mkdir()
        git(place, "init", "-q")
        (place / "code.py").write_text("x = 1\n")
        (place / ".gitattributes").write_text("*.py filter=strange=r diff=strange\n")
        git(place, "add", "code.py", ".gitattributes")
        git(place, "commit", "-q", "-m", "first")
    git(folder, "add", "inner")
    git(folder, "commit", "-q", "-m", "second")
    monkeypatch.chdir(folder)
    return folder


def plant(folder: Path, harmed: Path) -> None:
    """Make each program that a repository can name create a file."""
    harm = folder.parent / "harm.sh"
    harm.write_text(f"#!/bin/sh\ntouch {harmed}\n")
    harm.chmod(0o755)
    for place in (folder / ".git", folder / "inner" / ".git"):
        with (place / "config").open("a") as stream:
            stream.write(PROGRAMS.format(harm=harm))
        (place / "more").write_text(f'[core]\n    fsmonitor = "{harm}"\n')
        for name in ("post-index-change", "pre-commit", "fsmonitor-watchman", "reference-transaction", "post-checkout"):
            shutil.copy(harm, place / "hooks" / name)
    code = folder / "code.py"
    code.write_text("x = 2\n")  # of the same size, so that git reads its content


@pytest.mark.parametrize("folder", [".", "inner"])
def test_commit_of_a_stranger_runs_no_program(checkout: Path, tmp_path: Path, folder: str) -> None:
    commit = git(checkout / folder, "rev-parse", "HEAD")
    plant(checkout, tmp_path / "harmed")
    os.chdir(folder)
    data = environment()
    assert (data["git_commit"], data["git_is_dirty"]) == (commit, folder == ".")
    assert not (tmp_path / "harmed").exists()


def test_missing_object_is_not_fetched(checkout: Path, tmp_path: Path) -> None:
    """A partial clone would fetch it with a program that its configuration names."""
    tree = git(checkout, "rev-parse", "HEAD^{tree}")
    plant(checkout, tmp_path / "harmed")
    (checkout / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    data = environment()
    assert "git_commit" in data
    assert "git_is_dirty" not in data
    assert not (tmp_path / "harmed").exists()


def test_plain_git_status_runs_programs_of_the_checkout(checkout: Path, tmp_path: Path) -> None:
    """The repository does harm, so the tests above can fail."""
    plant(checkout, tmp_path / "harmed")
    subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=False)
    assert (tmp_path / "harmed").exists()


def test_changed_and_removed_files_make_a_checkout_dirty(checkout: Path, tmp_path: Path) -> None:
    assert environment()["git_is_dirty"] is False
    (checkout / "new.txt").write_text("not part of the commit")
    (checkout / "code.py").touch()
    assert environment()["git_is_dirty"] is False
    (checkout / "code.py").write_text("x = 3\n")
    assert environment()["git_is_dirty"] is True
    git(checkout, "checkout", "-q", "code.py")
    git(checkout, "worktree", "add", "-q", str(tmp_path / "other"))
    os.chdir(tmp_path / "other")
    assert environment()["git_is_dirty"] is False
    (tmp_path / "other" / "code.py").unlink()
    assert environment()["git_is_dirty"] is True


def test_outside_of_a_checkout_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert not [name for name in environment() if name.startswith("git_")]


def test_git_is_called_in_one_file() -> None:
    files = [path for path in SOURCES.rglob("*.py") if '"git"' in path.read_text()]
    assert [path.name for path in files] == ["environment.py"]


def test_environment_needs_no_torch() -> None:
    code = (
        "import sys; from chronograd.measure.environment import environment; environment(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_scheduler_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Linux 6.6, a waking thread waits for the end of a slice, which grows with the cores up to 8."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for cores, slice_ms in ((1, 0.7), (2, 1.4), (8, 2.8), (64, 2.8)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert slice_s("6.18.44-fc") == pytest.approx(slice_ms / 1000)
    assert slice_s("6.6.1") == pytest.approx(3e-3)
    assert slice_s("6.1.0-21-amd64") == slice_s("5.15.0") == 0


def test_peak_memory_includes_freed_memory() -> None:
    """Allocate and free 200 MB in a new process, because the peak belongs to the process."""
    code = (
        "import torch; from chronograd.measure.memory import PeakMemory\n"
        "m = PeakMemory(torch.device('cpu')); x = torch.ones(50_000_000); del x; print(m.peak_bytes())"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert 190e6 < int(printed) < 260e6
    assert "resident" in PeakMemory(torch.device("cpu")).source
