"""Test the checker of words, `make words`, on planted faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import words


def faults_of(path: Path, source: str) -> list[tuple[int, str]]:
    path.write_text(source)
    return [(text.line, fault) for text in words.texts([path]) for fault in words.faults(text)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('"""What a step takes."""', "starts with 'What'"),
        ('"""Of a batch: its seconds."""', "starts with 'Of'"),
        ('"""Raises: ValueError for bad input."""', "starts with 'Raises:'"),
        ('"""Return the rows that were held against others."""', "'were held against'"),
        ("x = 1  # the price is told twice", "'is told'"),
        ('print("Nothing was found in the file that you gave")', "'was found'"),
        ('print(f"{1} devices are kept beside the other devices")', "'beside'"),
        ('"""' + "word " * 31 + '."""', "31 words"),
    ],
)
def test_planted_faults(tmp_path: Path, line: str, fault: str) -> None:
    assert any(fault in seen for _, seen in faults_of(tmp_path / "module.py", line + "\n"))


@pytest.mark.parametrize(
    "line",
    [
        '"""Return the seconds of a step."""',
        '"""Whatsit: a class with a name that only begins like a clause."""',
        '"""Return a sum.\n\n>>> 1 + 1  # of what is told, found, kept, beside\n2\n"""',
        "x = 'told apart'",
        "import os  # noqa: F401",
    ],
)
def test_good_text_passes(tmp_path: Path, line: str) -> None:
    assert not faults_of(tmp_path / "module.py", line + "\n")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("test_what_cannot_be_is_refused", "'what'"),
        ("test_an_actor_that_hangs_is_named", "'is named'"),
        ("test_a_network_of_one_s_own", "'one s own'"),
        ("test_a_page_says_what_is_missing", "'says what'"),
        ("test_" + "long_" * 12, "65 letters"),
        ("test_hung_actor_is_reported", ""),
        ("test_job_is_predicted_on_several_named_devices", ""),
    ],
)
def test_names_of_tests(tmp_path: Path, name: str, fault: str) -> None:
    source = f'def {name}():\n    assert 1, "Nothing was found in the file that you gave"\n'
    seen = faults_of(tmp_path / "test_module.py", source)
    assert bool(seen) is bool(fault)
    assert all(line == 1 for line, _ in seen)
    assert fault in " ".join(text for _, text in seen)


def test_pages(tmp_path: Path) -> None:
    page = "# A title\n\nShort text.\n\n```sh\nwhat is told is told\n```\n\n| told apart | beside |\n\n- One is told\n- `is told`\n"
    assert faults_of(tmp_path / "page.md", page) == [(11, "'is told': passive: name who does it")]
    long = " ".join(["word"] * 20)
    assert not faults_of(tmp_path / "page.md", f"{long}.\n{long.capitalize()}.\n")
    assert faults_of(tmp_path / "page.md", f"{long}\n{long}.\n")
