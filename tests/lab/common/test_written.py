"""Written pages: filled-in numbers, checked claims, and text for published results only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chronograd.answer import Highlight, Table
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import Spread
from chronograd_lab.common.study import Study
from chronograd_lab.common.written import Block, ClaimError, filled, holds, read_page, value_of

SOFT, ALONE = Spread(0.82, 0.005, 3), Spread(0.80, 0.005, 3)
VALUES = {"soft": SOFT, "alone": ALONE, "time": {"all": 90.0}, "name": "ResNet-18"}
PAGE = """\
claim: soft > alone
claim: (soft - alone).p < 0.05
Soft labels help.
claim: alone.mean > 0.7
Alone it reaches
{alone.mean:.1%}.

- **{soft:%}** soft labels ({soft.n} seeds)
- **{time.all:time}** training

## Accuracy

The student gains {soft - alone:%}.

It is {name}.

Figure: Mean over seeds.

- It takes {time.all / 60:.1f} min.
"""
TABLE = Table(["a"], [["1"], ["2"]])


def written(tmp_path: Path, text: str = PAGE) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_starred_heading_covers_other_matching_blocks(tmp_path: Path) -> None:
    text = "It is so.\n\n## Layers of A\n\nA is special.\n\n## Layers of *\n\nclaim: block.layers > 1\n{block.layers} layers.\n"
    blocks = {
        f"Layers of {name}": Block(TABLE, values={"layers": n}) for name, n in {"B": 2, "A": 1, "C [1]": 3}.items()
    }
    page = read_page(written(tmp_path, text), {}, blocks)
    assert [(section.title, section.takeaway) for section in page.sections] == [
        ("Layers of A", "A is special."), ("Layers of B", "2 layers."), ("Layers of C [1]", "3 layers.")
    ]  # fmt: skip
    with pytest.raises(ClaimError, match="1 layers"):
        read_page(written(tmp_path, text), {}, {**blocks, "Layers of D": Block(values={"layers": 1})})
    with pytest.raises(FileFormatError, match="Times"):
        read_page(written(tmp_path, text), {}, {**blocks, "Times": Block(TABLE)})


def test_page_is_filled_in_with_its_table(tmp_path: Path) -> None:
    page = read_page(written(tmp_path), VALUES, {"Accuracy": Block(TABLE)})
    assert page.opening == ["Soft labels help. Alone it reaches 80.0 %."]
    assert page.highlights == [
        Highlight("soft labels", "82.00 ± 0.50 %", "3 seeds"),
        Highlight("training", "1 min 30 s"),
    ]
    (section,) = page.sections
    assert section.takeaway == "The student gains +2.0 percentage points (+0.9 … +3.1, p = 0.008)."
    assert (section.intro, section.caption, section.lines) == (
        "It is ResNet-18.",
        "Mean over seeds.",
        ["It takes 1.5 min."],
    )
    assert section.table == TABLE


@pytest.mark.parametrize(
    ("changed", "sentence", "claim"),
    [
        ({"soft": ALONE}, "Soft labels help.", "soft > alone"),
        ({"soft": Spread(0.82, 0.03, 3)}, "Soft labels help.", "soft > alone"),  # higher, but not significantly
        ({"soft": Spread(0.7, 0.005, 3), "alone": Spread(0.6, 0.005, 3)}, "Alone it reaches 60.0 %.", "alone.mean > 0.7"),
    ],
)  # fmt: skip
def test_false_claim_names_its_sentence(changed: dict[str, Any], sentence: str, claim: str, tmp_path: Path) -> None:
    with pytest.raises(ClaimError) as error:
        read_page(written(tmp_path), VALUES | changed, {"Accuracy": Block(TABLE)})
    assert f"“{sentence}”" in error.value.message
    assert f"“{claim}” is false" in error.value.hint
    assert read_page(written(tmp_path), VALUES | changed, {"Accuracy": Block(TABLE)}, is_checked=False).opening


MEANS = {
    "soft": SOFT, "alone": ALONE, "near": Spread(0.81, 0.02, 3), "two": 1.5, "one": 2.0,
}  # fmt: skip
NOT_SEEN = "claim: not (near - alone).is_seen\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Soft labels are better.\n", "no claim tests “better” in “Soft labels are better.”"),
        ("claim: soft.mean > alone.mean\nSoft labels are better.\n", "no claim tests “better”"),
        ("It is so.\n\n- **82 %** best of all\n", "no claim tests “best”"),
        ("It is so.\n\n## Accuracy\n\nSoft labels win.\n", "no claim tests “win”"),
        ("claim: soft > alone\nOne.\n\nThe other is worse.\n", "no claim tests “worse”"),  # a claim ends with its paragraph
        ("claim: soft > alone\nOne.\nclaim: soft.n == 3\nThe other learns more.\n", "no claim tests “learns more”"),
        (f"{NOT_SEEN}Near labels are better.\n", "“better” in “Near labels are better.” has a test that shows no difference"),
        ("claim: (near - alone).p > 0.05\nNear labels are better.\n", "has a test that shows no difference"),
        ("claim counted: soft.mean > alone.mean\nSoft labels are better.\n", "compares means over repeats"),
        ("claim predicted: two > one\nTwo are slower.\n", "the results do not support “Two are slower.”"),
    ],
)  # fmt: skip
def test_verdict_without_a_test_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ClaimError) as error:
        read_page(written(tmp_path, text), MEANS, {})
    assert problem in str(error.value)
    assert read_page(written(tmp_path, text), MEANS, {}, is_checked=False).opening


@pytest.mark.parametrize(
    "text",
    [
        "claim: soft > alone\nSoft labels are better.\n",
        "claim: 6 * (soft - alone).p < 0.05\nSoft labels are better, with six pairs.\n",
        f"{NOT_SEEN}Near labels are not significantly better.\n",
        "claim predicted: two < one\nTwo are faster.\n",
        "It is 82 % at best.\n",
        "It is so.\n\n## Accuracy\n\nA takeaway.\n\nFurther text may call a paper's method better.\n\nFigure: A better one.\n\n- Or worse.\n",
    ],
)
def test_tested_verdicts_and_other_text_pass(text: str, tmp_path: Path) -> None:
    assert read_page(written(tmp_path, text), MEANS, {}).opening


def test_invalid_pages(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="did you mean alone"):
        filled("{allone.mean:.1%}", VALUES)
    with pytest.raises(NotFoundError, match="unknown value of the study 'one'"):
        filled("{time.one}", VALUES)
    with pytest.raises(FileFormatError, match="lacks the sections"):
        read_page(written(tmp_path), VALUES, {"Accuracy": Block(TABLE), "Time": Block(TABLE)})
    with pytest.raises(InputError, match="claim 'soft' is"):
        holds("soft", VALUES)
    for expression in ("soft.__class__", "soft.percent()", "[soft]", "soft.mean if 1 else 0", "soft >", "name - 1"):
        with pytest.raises(InputError, match="has no value"):
            value_of(expression, VALUES)


def test_claims_compare_and_combine() -> None:
    assert holds("0.5 < alone.mean < 0.9 and name == 'ResNet-18'", VALUES)
    assert holds("not soft < alone and (alone.n == 2 or alone.n == 3)", VALUES)
    assert not holds("alone > soft", VALUES)


def test_only_published_size_has_a_text(tmp_path: Path) -> None:
    study = Study(
        "cutout", "Does it?", "It does", {}, lambda runner, settings: results, text=written(tmp_path),
        values=lambda results: {**VALUES, "soft": results.rows["soft"][0]["accuracy"]},
        blocks=lambda results: {"Accuracy": Block(TABLE)},
    )  # fmt: skip
    results = Results("cutout", "laptop", {}, {"soft": [{"accuracy": SOFT}]})
    assert study.page(results).opening() == ["Soft labels help. Alone it reaches 80.0 %."]
    other = study.page(replace(results, size="smoke"))
    assert other.opening()[0] == "These are results of size smoke."
    assert [(s.title, s.takeaway, s.table) for s in other.sections] == [("Accuracy", "2 rows of size smoke.", TABLE)]
    # For other results of the published size, the published page is an error and a user's run gets tables only.
    worse = replace(results, rows={"soft": [{"accuracy": ALONE}]})
    with pytest.raises(ClaimError, match="Soft labels help"):
        study.page(worse)
    own = study.page_or_plain(worse)
    assert own.opening()[1] == "They do not support a sentence of the published page: “Soft labels help.”."
    assert own.sections[0].table == TABLE
    unknown = replace(study, values=lambda results: {**VALUES, "time": {"all": None}})
    with pytest.raises(InputError, match=r"\{time.all:time\} of a page is None"):
        unknown.page(results)
    assert unknown.page_or_plain(results).opening()[1].startswith("They lack a value that the published page states")
    without_rows = replace(
        study, values=lambda results: {**VALUES, "least": min(r["s"] for r in results.rows["empty"])}
    )
    with pytest.raises(InputError, match="a value of the page cannot be computed"):
        without_rows.page(replace(results, rows={"empty": []}))
    plain = without_rows.page_or_plain(replace(results, rows={"empty": []}))
    assert plain.sections[0].table == TABLE
