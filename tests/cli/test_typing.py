"""Shell completion, and progress messages while a verb is silent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from io import StringIO

import pytest

from chronograd.cli import common
from chronograd.cli.main import groups, main, verbs


def completed(line: str) -> list[str]:
    """Return bash's completions for the last word of a line, where torch cannot be imported."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "_CHRONOGRAD_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "import sys; sys.modules['torch'] = None; from chronograd.cli.main import command; command.main(prog_name='chronograd', standalone_mode=True)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in run.stderr, run.stderr
    return run.stdout.splitlines()


def test_devices_are_completed_after_their_count() -> None:
    offered = completed("chronograd predict job.yaml --on 8xv1")
    assert offered == ["plain,8xv100", "plain,8xv100-32", "plain,8xv100-pcie"]
    assert "plain,h100" in completed("chronograd predict job.yaml --on H1")


def test_networks_and_files_are_completed_without_torch() -> None:
    offered = completed("chronograd predict resn")
    assert "plain,resnet50" in offered
    assert "file,resn" in offered
    assert "plain,torchvision:" in completed("chronograd count torchv")


def test_every_verb_is_in_one_help_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(groups()) == ["Before", "Run", "After", "Deploy", "Research", "Lab"]
    assert sum(map(len, groups().values())) == len(verbs())
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{group}:\n") for group in groups()]
    assert places == sorted(places)
    assert "_CHRONOGRAD_COMPLETE=bash_source" in text


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("silence_s", "is_told"), [(0.05, True), (30.0, False)])
def test_slow_verb_shows_progress_on_a_terminal(
    silence_s: float, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(common, "SILENCE_S", silence_s)
    with common.waiting("counting") as say:
        time.sleep(0.4)
        say("predicting")
        time.sleep(0.3)
    assert ("counting …" in screen.getvalue()) is is_told
    assert ("predicting …" in screen.getvalue()) is is_told


def test_no_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(common, "SILENCE_S", 0.01)
    with common.waiting("counting"):
        time.sleep(0.1)
    assert not stream.getvalue()
