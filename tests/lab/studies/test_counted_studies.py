"""The studies made from counts: every figure on a page is that of its results, and those are the published ones.

Counts of AlexNet, VGG-19 and the inception modules are typed here from the layer shapes of their papers.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from chronograd.answer import Answer
from chronograd.report.html import render_html
from chronograd_lab.common.counted import layer_rows, named_by_block, named_by_number
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.alexnet import study as alexnet
from chronograd_lab.studies.inception import study as inception
from chronograd_lab.studies.receptive_field import study as receptive_field
from chronograd_lab.studies.vgg19_memory import study as vgg19_memory

# Name, output, parameters with biases, MACs: A. Krizhevsky et al. 2012, two groups.
ALEXNET = [
    ("conv1", (55, 96), 34_944, 105_415_200),
    ("conv2", (27, 256), 307_456, 223_948_800),
    ("conv3", (13, 384), 885_120, 149_520_384),
    ("conv4", (13, 384), 663_936, 112_140_288),
    ("conv5", (13, 256), 442_624, 74_760_192),
    ("fc6", (1, 4096), 37_752_832, 37_748_736),
    ("fc7", (1, 4096), 16_781_312, 16_777_216),
    ("fc8", (1, 1000), 4_097_000, 4_096_000),
]
# Name, activations, weights without biases.
VGG19 = [
    ("input", 150_528, 0),
    *(("conv1_1", 3_211_264, 1_728), ("conv1_2", 3_211_264, 36_864), ("pool1", 802_816, 0)),
    *(("conv2_1", 1_605_632, 73_728), ("conv2_2", 1_605_632, 147_456), ("pool2", 401_408, 0)),
    ("conv3_1", 802_816, 294_912),
    *((f"conv3_{i}", 802_816, 589_824) for i in (2, 3, 4)),
    ("pool3", 200_704, 0),
    ("conv4_1", 401_408, 1_179_648),
    *((f"conv4_{i}", 401_408, 2_359_296) for i in (2, 3, 4)),
    ("pool4", 100_352, 0),
    *((f"conv5_{i}", 100_352, 2_359_296) for i in (1, 2, 3, 4)),
    ("pool5", 25_088, 0),
    *(("fc6", 4096, 102_760_448), ("fc7", 4096, 16_777_216), ("fc8", 1000, 4_096_000)),
]
# Branches of the modules at 32 x 32 x 256.
INCEPTION = {
    "naive": [33_554_432, 452_984_832, 629_145_600],
    "reduced": [33_554_432, 16_777_216, 113_246_208, 16_777_216, 157_286_400, 16_777_216],
}


def conducted(study: Study, tmp_path: Path, size: str = "laptop") -> Results:
    results = study.conduct(StudyRunner(tmp_path, study.name, size, lambda _: None), study.sizes[size])
    results.save(tmp_path / "results.json")
    return Results.load(tmp_path / "results.json")


def published(study: Study) -> Results:
    return Results.load(Path(__file__).parents[3] / "docs" / "studies" / study.name / "results.json")


def everything(page: Answer) -> str:
    """Return the text of a page with its tables."""
    texts = [*page.summary, *(f"{h.label} {h.value} {h.detail}" for h in page.highlights)]
    for section in page.sections:
        texts += [section.takeaway, section.intro, *section.lines]
        texts += [" | ".join(row) for row in (section.table.rows if section.table else [])]
    return "\n".join(texts)


def products_are_right(text: str) -> int:
    """Check every `a × b … + c = d` of a text, and return their number."""
    checked = 0
    for left, right in re.findall(r"((?:[\d,.()×+/− ]|\d)+) = (\d+(?:,\d{3})*)(?!\d|[.,]\d)", text):
        expression = left.strip().replace(",", "").replace("×", "*").replace("−", "-")
        if not re.search(r"\d\D+\d", expression):
            continue
        while expression.count("(") < expression.count(")"):
            expression = f"({expression}"
        value = eval(expression, {"__builtins__": {}})
        assert math.floor(value) == int(right.replace(",", "")), f"{left} = {right}"
        checked += 1
    return checked


def test_alexnet_layers_match_the_paper(tmp_path: Path) -> None:
    results = conducted(alexnet.STUDY, tmp_path)
    rows = [row for row in matching(results.rows["layers"], variant=alexnet.GROUPED) if row["weights"]]
    for row, (name, (side, channels), params, macs) in zip(rows, ALEXNET, strict=True):
        assert row["layer"] == name
        assert (row["out_size"], row["out_channels"]) == (side, channels)
        assert row["weights"] + row["biases"] == params
        assert row["macs"] == macs
    windows = {row["layer"]: (row["kernel"], row["stride"], row["padding"], row["groups"]) for row in rows[:5]}
    assert windows == {
        "conv1": (11, 4, 0, 1),
        "conv2": (5, 1, 2, 2),
        "conv3": (3, 1, 1, 1),
        "conv4": (3, 1, 1, 2),
        "conv5": (3, 1, 1, 2),
    }
    page = alexnet.STUDY.page(results)
    text = everything(page)
    for total in ("60,965,224", "62,378,344", "61,100,840", "724,406,816", "1,135,256,096", "714,188,480"):
        assert total in text
    for share in ("91.9 %", "94.8 %", "91.8 %"):
        assert share in text
    for rounded in ("60.97 M", "62.4 M", "61.1 M"):
        assert rounded in page.summary[0]
    assert "307,200 + 663,552 + 442,368 = 1,413,120 more" in text
    assert 62_378_344 - 60_965_224 == 1_413_120
    # Eight parameter counts, their sum, eight MAC counts, eight sides, and the increase without groups.
    assert products_are_right(text) == 8 + 1 + 8 + 8 + 1
    assert render_html(page).startswith("<!doctype html>")


def test_vgg19_has_every_cell(tmp_path: Path) -> None:
    results = conducted(vgg19_memory.STUDY, tmp_path)
    rows = results.rows["layers"]
    assert [(row["layer"], row["activations"], row["weights"]) for row in rows] == VGG19
    page = vgg19_memory.STUDY.page(results)
    text = everything(page)
    for total in (
        "16,542,184",
        "143,652,544",
        "19,632,062,464",
        "19,508,428,800",
        "99.37 %",
        "86.1 %",
        "66.2 MB",
        "575 MB",
    ):
        assert total in text
    assert "The product is 802,816, 2,816 more (conv3_1, conv3_2, conv3_3 and conv3_4)" in text
    cells = page.sections[0].table
    assert cells is not None
    assert [row[1].rpartition(" = ")[2] for row in cells.rows[:-1]] == [f"{n:,}" for _, n, _ in VGG19]
    assert [row[3].rpartition(" = ")[2] for row in cells.rows[:-1]] == [f"{n:,}" for _, _, n in VGG19]
    # Activations of 22 images, weights of 19 layers, MACs of 19 layers.
    assert products_are_right(text) == 22 + 19 + 19
    first = sum(n for name, n, _ in VGG19 if name.startswith("conv1"))
    assert f"{100 * first / 16_542_184:.0f} % of the activations" in page.sections[1].takeaway
    assert f"fc6 alone holds {100 * 102_760_448 / 143_652_544:.0f} % of the weights" in page.sections[1].takeaway


def test_inception_modules(tmp_path: Path) -> None:
    results = conducted(inception.STUDY, tmp_path)
    rows = results.rows["layers"]
    for module, macs in INCEPTION.items():
        assert [row["macs"] for row in matching(rows, module=module, side=32) if row["macs"]] == macs
    totals = {
        (module, side): sum(row["macs"] for row in matching(rows, module=module, side=side))
        for module in (*INCEPTION, inception.PUBLISHED)
        for side in (32, 28)
    }
    assert totals == {
        ("naive", 32): 1_115_684_864, ("naive", 28): 854_196_224, ("reduced", 32): 354_418_688, ("reduced", 28): 271_351_808,
        (inception.PUBLISHED, 32): 397_410_304, (inception.PUBLISHED, 28): 304_267_264,
    }  # fmt: skip
    page = inception.STUDY.page(results)
    text = everything(page)
    for figure in (
        "1,115,684,864",
        "354,418,688",
        "397,410,304",
        "68.2 %",
        "3.15 ×",
        "271,351,808",
        "854,196,224",
        "358,055,936",
    ):
        assert figure in text
    assert "128 + 192 + 96 + 256 = 672" in text
    assert "128 + 192 + 96 + 64 = 480" in text
    assert products_are_right(text) >= 3 + 6 + 6 + 2 + 2
    # The fourth naive module has 256 + 3 × 416 input channels.
    assert results.rows["stacked"][-1] == {"number": 4, "side": 32, "in": 256 + 3 * 416, "out": 256 + 4 * 416,
                                           "macs": 1024 * (256 + 3 * 416) * (128 + 9 * 192 + 25 * 96)}  # fmt: skip


def test_narrower_pooling_contradicts_the_page() -> None:
    results = published(inception.STUDY)
    pooling = next(row for row in results.rows["layers"] if row["layer"] == "pool")
    pooling["out_channels"] = 128
    with pytest.raises(ClaimError, match="passes all channels on"):
        inception.STUDY.page(results)


def test_receptive_fields_match_the_formula() -> None:
    """Check the stored results; the next test runs some of them."""
    results = published(receptive_field.STUDY)
    rows = results.rows["stacks"]
    assert len(rows) == 15
    for row in rows:
        side = row["number"] * row["kernel"] - row["number"] + 1
        assert row["by_graph"] == side
        assert row["by_gradient"] == [side] * 20
    assert matching(rows, number=3, kernel=5)[0]["by_graph"] == 13
    page = receptive_field.STUDY.page(results)
    assert "Three 5 × 5 filters see 13 × 13 pixels." in page.summary[0]
    assert "15 of 15 stacks" in page.summary[0]
    text = everything(page)
    assert "3 × 5 − 3 + 1 = 13" in text
    assert "27 C² weights instead of 49 C²" in text
    table = page.sections[2].table
    assert table is not None
    for row, (_, stacked, single, times) in zip([r for r in rows if r["number"] > 1], table.rows, strict=True):
        weights = row["number"] * row["kernel"] ** 2
        assert stacked.endswith(f"= {weights} C²")
        assert single.endswith(f"= {row['by_graph'] ** 2} C²")
        assert times == f"{row['by_graph'] ** 2 / weights:.2f} ×"


def test_smoke_receptive_fields_match_the_formula(tmp_path: Path) -> None:
    results = conducted(receptive_field.STUDY, tmp_path, "smoke")
    assert [row["by_gradient"] for row in results.rows["stacks"]] == [[3, 3], [5, 5], [7, 7], [5, 5], [9, 9], [13, 13]]


def test_different_receptive_field_contradicts_the_page() -> None:
    """The agreement on the page comes from the results, not from the formula."""
    results = published(receptive_field.STUDY)
    results.rows["stacks"][0]["by_gradient"] = [3, 2]
    with pytest.raises(ClaimError, match="14 of 15 stacks"):
        receptive_field.STUDY.page(results)
    table = receptive_field.STUDY.page(results, is_checked=False).sections[1].table
    assert table is not None
    assert table.rows[0][3] == "2 or 3"


def test_layer_names() -> None:
    def row(kind: str) -> Row:
        return {"kind": kind, "layer": kind}

    kinds = ["input", "convolution", "pooling", "convolution", "convolution", "pooling", "linear", "linear"]
    rows = [row(kind) for kind in kinds]
    assert [r["layer"] for r in named_by_number(rows)] == [
        "input",
        "conv1",
        "pool1",
        "conv2",
        "conv3",
        "pool3",
        "fc4",
        "fc5",
    ]
    assert [r["layer"] for r in named_by_block(rows)] == [
        "input",
        "conv1_1",
        "pool1",
        "conv2_1",
        "conv2_2",
        "pool2",
        "fc3",
        "fc4",
    ]


@pytest.mark.parametrize(
    "study", [alexnet.STUDY, vgg19_memory.STUDY, inception.STUDY, receptive_field.STUDY], ids=lambda s: s.name
)
def test_smoke_size_end_to_end(study: Study, tmp_path: Path) -> None:
    page = study.page(conducted(study, tmp_path, "smoke"))
    assert render_html(page).startswith("<!doctype html>")
    assert all(section.takeaway for section in page.sections)


def test_rows_exclude_layers_missing_in_the_papers() -> None:
    """PyTorch counts local response norm as pooling, and torchvision's AlexNet has an adaptive pooling without effect."""
    from chronograd_lab.common.counted import counted

    kinds = [row["kind"] for row in layer_rows(counted("alexnet"))]
    assert kinds.count("pooling") == 3
    assert [row["kind"] for row in layer_rows(counted("torchvision:alexnet"))].count("pooling") == 3
