"""Inference ceilings: FLOPs over peaks, losses that add up to the predicted pass, and published tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronograd.report.html import render_html
from chronograd_lab.common.results import Results
from chronograd_lab.common.rows import matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.written import ClaimError
from chronograd_lab.studies.inference_ceiling import study
from chronograd_lab.studies.inference_ceiling.study import LOSSES, STUDY, quarters

# Images/s of the board at 8.73 and 5.6 TFLOP/s, 1 and 2 FLOPs per MAC.
BOARD = {
    "VGG-16": (564, 282, 362, 181),
    "VGG-19": (445, 222, 285, 143),
    "GoogLeNet": (5516, 2758, 3538, 1769),
    "ResNet-50": (2263, 1131, 1452, 726),
}
MACS = {
    "VGG-16": 15_470_264_320,
    "VGG-19": 19_632_062_464,
    "GoogLeNet": 1_582_671_872,
    "ResNet-50": 3_857_973_248,
}


def conducted(tmp_path: Path, size: str) -> Results:
    results = STUDY.conduct(StudyRunner(tmp_path, STUDY.name, size, lambda _: None), STUDY.sizes[size])
    results.save(tmp_path / "results.json")
    return Results.load(tmp_path / "results.json")


RESULTS = Path(__file__).parents[3] / "docs" / "studies" / STUDY.name / "results.json"


@pytest.fixture(scope="module")
def laptop() -> Results:
    """Return the published results, which include the published rows."""
    return Results.load(RESULTS)


def test_page_without_published_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    results = conducted(tmp_path, "smoke")
    page = STUDY.page(results)
    titles = [section.title for section in page.sections]
    assert not [title for title in titles if title.startswith("Measured")]
    assert titles[-1] == "What fell short"
    assert render_html(page).startswith("<!doctype html>")
    for row in results.rows["losses"]:
        assert sum(row[key] for key in LOSSES) == pytest.approx(row["seconds"])
        assert row["launches_s"] > 0
        assert row["memory_s"] > 0


def test_ceilings_match_the_data_sheet(laptop: Results) -> None:
    assert {row["network"]: row["macs"] for row in laptop.rows["work"]} == MACS
    for network, rates in BOARD.items():
        for what, share in (("board", 1.0), ("chip", 0.5)):
            own = matching(laptop.rows["ceilings"], network=network, what=what)
            found = [1 / row["seconds"] for row in own]
            assert [(row["clock"], row["per_mac"]) for row in own] == [
                ("boost", 1),
                ("boost", 2),
                ("base", 1),
                ("base", 2),
            ]
            assert found == pytest.approx([share * rate for rate in rates], abs=0.51)
    page = STUDY.page(laptop)
    board = {name: round(own["rate"]) for name, own in study.values(laptop)["board"].items()}
    assert board == {"VGG_16": 282, "VGG_19": 222, "GoogLeNet": 2758, "ResNet_50": 1131}
    table = page.sections[0].table
    assert table is not None
    assert table.rows[0] == ["VGG-16", "board, boost", "8.73", "1.77 ms", "564", "3.54 ms", "282"]
    assert table.rows[11] == ["GoogLeNet", "chip, base", "2.8", "565 µs", "1,769", "1.13 ms", "885"]
    assert "VGG-16: 2 × 15,470,264,320 MACs / 8.73e12 FLOP/s = 3.54 ms" in page.sections[0].lines[0]
    assert round(1e5 * 2 * 15_470_264_320 / 8.73e12) == 354


def test_percent_of_peak_matches_the_rows(laptop: Results) -> None:
    section = STUDY.page(laptop).sections[1]
    assert section.table is not None
    for row, cells in zip(laptop.rows["reached"], section.table.rows, strict=True):
        rate = row["batch"] / row["seconds"]
        ceiling = 4.365e12 / (2 * MACS[row["network"]])
        assert cells[2:4] == [f"{ceiling:,.0f}", f"{rate:,.0f}"]
        assert cells[5] == f"{100 * rate / ceiling:.0f} %"
        assert row["low"] < row["seconds"] < row["high"]
        # PALEO at base clock: FLOPs / 2.8e12 over its percentage of peak is a lower bound.
        for ppp, seconds in row["paleo"]:
            assert seconds > 2 * row["macs"] / 2.8e12 / ppp
    shares = [2 * row["macs"] / row["seconds"] / 4.365e12 for row in laptop.rows["reached"]]
    chip = study.values(laptop)["chip"]
    assert (chip["least"]["share"], chip["greatest"]["share"]) == (min(shares), max(shares))


def test_losses_on_the_page_add_up(laptop: Results) -> None:
    sections = STUDY.page(laptop).sections[2:6]
    assert all(section.title.startswith("Why peak is hard to reach") for section in sections)
    bars = [bar for section in sections for bar in section.figure.panels[0].bars]  # type: ignore[union-attr]
    rows = [row for section in sections for row in section.table.rows]  # type: ignore[union-attr]
    for row, cells, bar in zip(laptop.rows["losses"], rows, bars, strict=True):
        shares = [int(cell.removesuffix(" %").replace("−", "-")) for cell in cells[3:]]
        assert sum(shares) == pytest.approx(100, abs=3)
        assert [f"{100 * row[key] / row['seconds']:.0f}".replace("-0", "0") for key in LOSSES] == [
            str(s) for s in shares
        ]
        assert sum(bar.segments.values()) == pytest.approx(100, abs=0.5)
        assert min(bar.segments.values()) > 0
    own = matching(laptop.rows["losses"], device="h100", batch=1)
    of_peak = [row["peak_s"] / row["seconds"] for row in own]
    lost = study.values(laptop)["loss"]["h100_fp16_channels_last"]["at_1"]
    assert lost == {"least": of_peak[2], "greatest": of_peak[1], "mostly": "launches"}


@pytest.mark.parametrize(
    ("table", "wanted", "field", "factor", "sentence"),
    [
        (
            "losses",
            {"device": "h100", "batch": 64},
            "memory_s",
            0.1,
            "At batch 64, .* and memory, launches and tiles take most",
        ),
        ("losses", {"device": "rtx3090", "batch": 1}, "layout_s", 100, "At batch 1, an RTX 3090 and an H100 lose most"),
        ("reached", {"network": "GoogLeNet"}, "seconds", 0.1, "On one GPU of a K80, the operator model predicts"),
        ("devices", {"device": "gb200"}, "predicted", 3, "The lowest share is"),
        ("batches", {"batch": 1}, "samples_per_s", 10, "With one image at a time, ResNet-50 reaches a small part"),
    ],
)
def test_different_results_contradict_the_page(
    table: str, wanted: dict[str, object], field: str, factor: float, sentence: str
) -> None:
    published = Results.load(RESULTS)
    for row in matching(published.rows[table], **wanted):
        row[field] *= factor
    with pytest.raises(ClaimError, match=sentence):
        STUDY.page(published)


def test_k80_issue_limit_counts_as_clock_loss(laptop: Results) -> None:
    """The schedulers of a K80 feed two thirds of the lanes, which costs half of the ideal time in arithmetic."""
    own = matching(laptop.rows["losses"], device="k80-gk210", network="ResNet-50", batch=1)[0]
    assert own["clocks_s"] == pytest.approx(own["peak_s"] * (1 / 0.667 - 1))
    assert all(row["clocks_s"] == 0 for row in matching(laptop.rows["losses"], device="rtx3090"))


def test_published_tables(tmp_path: Path) -> None:
    head = "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs,infer_macts\n"
    first, last = tmp_path / "first.csv", tmp_path / "last.csv"
    first.write_text(
        f"{head}a,224,1000,1,1024,1,10,20\nb,224,500,1,512,1,20,10\nsmall,160,9,1,1024,1,0.03,1\nother,1,9,1,8,1,1,1\n"
    )
    last.write_text(
        f"{head}a,224,2000,1,1024,1,10,20\nb,224,500,1,512,1,20,10\nsmall,160,9,1,1024,1,0.03,1\nother,1,9,1,16,1,1,1\n"
    )
    rows = study._timm_rows(first, last)
    # 2 × 10e9 × 1000 of 71e12; 10e9 MACs of 20e6 activations. Rows with few MACs or another batch are skipped.
    assert rows == [
        {"model": "a", "macs_per_activation": 500.0, "first": pytest.approx(20 / 71), "last": pytest.approx(40 / 71)},
        {"model": "b", "macs_per_activation": 2000.0, "first": pytest.approx(20 / 71), "last": pytest.approx(20 / 71)},
    ]


def test_quarters_by_macs_per_activation() -> None:
    rows = [{"macs_per_activation": x, "first": x / 10, "last": x / 5} for x in (4, 1, 3, 2, 8, 7, 6, 5)]
    parts = quarters(rows)
    assert [(p["low"], p["high"], p["n"]) for p in parts] == [(1, 2, 2), (3, 4, 2), (5, 6, 2), (7, 8, 2)]
    assert parts[0]["first"] == pytest.approx(0.15)
    assert parts[3]["last"] == pytest.approx(1.5)


def test_measured_values_match_the_rows(laptop: Results) -> None:
    found = study.values(laptop)
    timm, parts = laptop.rows["timm"], quarters(laptop.rows["timm"])
    assert found["timm"]["models"] == len(timm)
    assert found["timm"]["best"]["last"] == max(row["last"] for row in timm)
    assert (found["timm"]["few"], found["timm"]["most"]) == (parts[0]["last"], parts[-1]["last"])
    vgg = found["timm"]["vgg16"]
    # 2 × 15.47e9 × 1021.7 and 1729.39 images/s of 71e12.
    assert vgg["first"] == pytest.approx(2 * 15.47 * 1021.7 / 71e3)
    assert vgg["last"] == pytest.approx(2 * 15.47 * 1729.39 / 71e3)
    batches = matching(laptop.rows["batches"], device="v100", precision="amp")
    assert found["lone"]["v100_amp"] == batches[0]["samples_per_s"] / max(row["samples_per_s"] for row in batches)


def test_every_catalogue_gpu_is_included(laptop: Results) -> None:
    from chronograd.hardware import catalog

    files = {path.stem for path in (Path(catalog.__file__).parent / "devices").glob("*.toml")}
    names = {name for name in files if catalog.device(name).kind != "accelerator"}
    rows = laptop.rows["devices"]
    assert {row["device"] for row in rows} == names
    for row in rows:
        assert row["ceiling"] == pytest.approx(row["peak"] / (2 * MACS[row["network"]]))
    table = STUDY.page(laptop).sections[-1].table
    assert table is not None
    assert len(table.rows) == len({(row["device"], row["precision"]) for row in rows})
