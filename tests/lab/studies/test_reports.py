"""Reports in docs/studies match the output of `chronograd study run NAME --report-only` for their results."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from benchmarks.studies import studies_page

from chronograd.report.html import render_html
from chronograd.report.markdown import write_markdown
from chronograd_lab.common.results import Results
from chronograd_lab.common.study import settings_of
from chronograd_lab.common.written import CLAIM
from chronograd_lab.studies import find, studies

FOLDER = Path(__file__).parents[3] / "docs" / "studies"
REPORTS = sorted(path.parent for path in FOLDER.glob("*/results.json"))


@pytest.mark.parametrize("folder", REPORTS, ids=lambda p: p.name)
def test_report_matches_its_results(folder: Path, tmp_path: Path) -> None:
    study, results = find(folder.name), Results.load(folder / "results.json")
    assert results.study == study.name
    assert results.size in ("laptop", "evening")
    assert dict(results.settings) == _as_json(settings_of(study, results.size))
    page = study.page(results)
    for made in write_markdown(page, tmp_path):
        assert made.read_bytes() == (folder / made.name).read_bytes(), f"{folder.name}/{made.name} is another"
    assert f"<title>{page.title}</title>" in render_html(page)  # the site's report, which is not in git
    drawn = {path.name for path in folder.glob("*.svg")}
    assert drawn == {path.name for path in tmp_path.glob("*.svg")}


# Their values are shared or include whole rows, such as agents and layers, and a page states only some of these.
WHOLE_ROWS = {"alexnet", "batch-augmentation", "dqn-ablation", "receptive-field", "transfer", "vgg19-memory"}


@pytest.mark.parametrize("folder", [one for one in REPORTS if one.name not in WHOLE_ROWS], ids=lambda p: p.name)
def test_page_reads_all_values(folder: Path) -> None:
    study = find(folder.name)
    text = Path(inspect.getfile(study.conduct)).with_name("page.md").read_text()
    read = " ".join(
        [*re.findall(r"\{([^{}:]+)", text), *(match[2] for match in map(CLAIM.fullmatch, text.splitlines()) if match)]
    )
    unread = set(study.values(Results.load(folder / "results.json"))) - set(re.findall(r"[A-Za-z_]\w*", read))
    assert unread == set()


@pytest.mark.parametrize("folder", REPORTS, ids=lambda p: p.name)
def test_significant_differences_are_not_doubted(folder: Path) -> None:
    """Check the parentheses of each difference and the rest of its sentence."""
    text = (folder / "README.md").read_text()
    for match in re.finditer(r"p = (\d[\d.e-]*\d|\d)([^.\n]*)", text):
        is_doubted = any(words in match[2] for words in ("not significant", "too few", "to tell"))
        assert not (is_doubted and float(match[1]) < 0.05), match[0]


def test_list_of_studies_is_current() -> None:
    text = (FOLDER / "README.md").read_text()
    assert text == studies_page(), "run `python -m benchmarks.studies`"
    without = {name for name in studies() if name not in {folder.name for folder in REPORTS}}
    assert {folder.name for folder in REPORTS} | without == set(studies())
    assert all(f"`{name}`" in text for name in without)  # listed as without results


def _as_json(settings: object) -> object:
    import json

    return json.loads(json.dumps(settings))
