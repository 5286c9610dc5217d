"""Tables and answers on narrow screens: limited width, unbroken words, and a note on hidden parts."""

from __future__ import annotations

import random

import pytest

from chronograd.answer import Answer, Section, Table
from chronograd.report.columns import lay_out, wrapped
from chronograd.report.terminal import plain_console, render_terminal

SPEEDS = Table(
    ("device", "samples per second", "80 % interval", "memory", "source"),
    [
        ("v100", "520,550 samples/s", "350,298 … 773,548 samples/s", "2.63 MiB", "GCP, 2021"),
        ("t4", "1 samples/s", "", "", ""),
    ],
    {1, 2, 3},
    ("memory: of one rank", "all from datasheets"),
    drop=(3,),
    details=(4,),
    most=1,
)


def test_headings_wrap_before_columns_are_dropped() -> None:
    assert lay_out(SPEEDS, 65).lines[0] == "device  samples per second                80 % interval    memory"
    assert lay_out(SPEEDS, 64).lines == [
        "              samples per",
        "device             second                80 % interval    memory",
        "────────────────────────────────────────────────────────────────",
        "v100    520,550 samples/s  350,298 … 773,548 samples/s  2.63 MiB",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 110])
@pytest.mark.parametrize("seed", range(20))
def test_lines_fit_and_words_are_not_broken(width: int, seed: int) -> None:
    draw = random.Random(seed)
    num_columns, num_rows = draw.randint(1, 9), draw.randint(1, 5)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 12))) for _ in range(60)]

    def text(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(0, most)))

    right = set(range(1, num_columns, 2))
    rows = [[text(2 if i in right else 8) for i in range(num_columns)] for _ in range(num_rows)]
    table = Table(
        [text(3) for _ in range(num_columns)], rows, right, drop=draw.sample(range(1, num_columns), num_columns // 3)
    )
    narrow, whole = lay_out(table, width), lay_out(table, 10_000)
    assert all(len(line) <= width for line in narrow.lines if " " in line.strip()), narrow.lines
    of = {word for line in whole.lines for word in line.split()}
    assert {word for line in narrow.lines if "─" not in line for word in line.split()} <= of


def test_least_important_columns_are_dropped_first() -> None:
    assert lay_out(SPEEDS, 110).columns_left_out == ["source"]
    narrower = lay_out(SPEEDS, 60)
    assert narrower.columns_left_out == ["memory", "source"]
    assert narrower.rows_left_out == 1
    assert lay_out(SPEEDS, 30).columns_left_out == ["80 % interval", "memory", "source"]
    whole = lay_out(SPEEDS, 30, in_full=True)
    assert (whole.columns_left_out, whole.rows_left_out) == ([], 0)
    assert any("GCP, 2021" in line for line in whole.lines)


def test_units_and_indents_are_preserved() -> None:
    assert wrapped("it takes 1 min 33 s of 12 GiB", 12) == ["it takes", "1 min 33 s", "of 12 GiB"]
    assert wrapped("  to disprove: run it again", 18, indent="  ") == ["  to disprove: run", "    it again"]
    assert wrapped("see `chronograd count` first", 20) == ["see", "`chronograd count`", "first"]


def test_answer_reports_hidden_parts() -> None:
    answer = Answer("Speeds", asked=[("seed", "3")], sections=[Section("Speeds", "V100 is the fastest.", table=SPEEDS)])
    text = render_terminal(answer, plain_console(60), full_with="--full")
    assert text.endswith("--full shows 1 more row and the columns memory, source.\n")
    assert "memory: of one rank" not in text
    assert "all from datasheets" in text
    assert "seed: 3" not in text
    whole = render_terminal(answer, plain_console(60), in_full=True, full_with="--full")
    assert "memory: of one rank" in whole
    assert "seed: 3" in whole
    assert "shows" not in whole


def test_width_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "97")
    assert plain_console().width == 97
    monkeypatch.delenv("COLUMNS")
    assert plain_console().width == 80
