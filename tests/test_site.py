"""The documentation site: page conversion, navigation and link checks, without Sphinx."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TOOLS = Path(__file__).parent.parent / "tools" / "site"
DOCS = TOOLS.parent.parent / "docs"


@pytest.fixture
def build() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(TOOLS / "build.py")))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `check_links`; dataclasses need its module under its name."""
    monkeypatch.syspath_prepend(str(TOOLS))
    yield __import__("links").check_links
    sys.modules.pop("links")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[c](concepts/README.md#x)", "[c](concepts/index.md#x)"),
        ("[r](../README.md)", "[r](index.md)"),
        ("[c](../CHANGELOG.md)", "[c](changelog.md)"),
        ("[the schemas](schemas)", "[the schemas](schemas.md)"),
        ("[the test](../tests/test_docs.py)", "the test"),  # the site contains no source code
        ("[here](#x) [PyTorch](https://pytorch.org)", "[here](#x) [PyTorch](https://pytorch.org)"),
        ("![f](accuracy.svg)", "![f](accuracy.svg){.only-light} ![f](accuracy-dark.svg){.only-dark}"),
        ("```\n[r](../README.md) 5 %\n```", "```\n[r](../README.md) 5 %\n```"),
        ("# Within 5 %\n\n5 %", "# Within 5 %\n\n5\N{NO-BREAK SPACE}%"),  # an anchor depends on its heading
    ],
)
def test_links_of_a_page_on_the_site(build: SimpleNamespace, written: str, shown: str) -> None:
    assert build.for_site(written, DOCS / "page.md", Path("page.md")) == shown


def test_page_in_a_folder_links_upwards(build: SimpleNamespace) -> None:
    page = DOCS / "decisions" / "README.md"
    text = build.for_site("[a](../accuracy.md) [c](../../CONTRIBUTING.md)", page, build.staged(page))
    assert text == "[a](../accuracy.md) [c](../contributing.md)"


def test_dark_figure_uses_the_dark_palette(build: SimpleNamespace) -> None:
    assert (
        build.dark('<path style="stroke: #1D2026; fill: #123456"/>') == '<path style="stroke: #e8e6e1; fill: #123456"/>'
    )


def test_report_on_the_site_links_back(build: SimpleNamespace) -> None:
    from chronograd.answer import Answer
    from chronograd.report.html import render_html

    report = build.on_site(render_html(Answer("AlexNet")))
    assert report.count('<a href="index.html"') == 1
    assert report.index("<body>") < report.index('"ground": ["#fefefd", "#1d2025"]') < report.index("<h1>AlexNet</h1>")


def test_navigation_has_every_docs_page(build: SimpleNamespace, tmp_path: Path) -> None:
    functions = build.stage.__globals__
    functions |= {"SOURCE": tmp_path, "api_page": lambda: "# API\n"}
    build.stage([])
    assert "/guides/which-gpu" in (tmp_path / "index.md").read_text()
    (tmp_path / "forgotten.md").write_text("# A page\n")
    with pytest.raises(SystemExit, match="names no part for forgotten"):
        build.add_navigation()


def test_links_are_checked(check: Any, tmp_path: Path) -> None:
    pages = {
        "index.html": '<a href="a.html#part">a</a> <a href="https://example.org">out</a> <img src="x.png">',
        "a.html": '<h2 id="part">a</h2> <a href="b.html#part">b</a>',
        "b.html": '<a href="c.html">c</a>',
        "c.html": "",
        "alone.html": "",
    }
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    found = check(tmp_path)
    assert (found.pages, found.links, found.clicks) == (5, 4, 3)
    assert sorted(found.problems) == [
        "a.html: b.html#part has no such anchor",
        "alone.html: no link leads to this page",
        "c.html: more than two clicks from the first page",
        "index.html: x.png leads to no file",
    ]


@pytest.mark.parametrize("word", ["vLLM", "OOM", "KV cache", "out of memory"])
def test_words_that_people_search_for_are_in_the_glossary(word: str) -> None:
    """A search of the site for `vllm`, `oom` or `kv` found no page."""
    terms = (DOCS / "glossary.md").read_text()
    assert re.search(rf"\b{word}\b", terms)
