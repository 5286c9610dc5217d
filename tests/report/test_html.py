"""The page is one self-contained file, and no text of a record can become markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from chronograd.answer import Answer, Section, Table
from chronograd.errors import InputError, MissingExtraError
from chronograd.figure import Figure, Picture, PictureRow, Pictures, png_base64
from chronograd.record import Provenance, Record
from chronograd.report.html import render_html, write_page
from chronograd.report.plots import svg
from chronograd.report.runs import generic_page
from chronograd.words import first_sentence, tight

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(1)"> $x$ ]]> -->'
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Outline(HTMLParser):
    """Parser for tags with attributes and text by tag, which checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack:
            self.texts.setdefault(self.stack[-1], []).append(data)

    def count(self, tag: str) -> int:
        return sum(t == tag for t, _ in self.tags)


@pytest.fixture
def page(everything):
    return generic_page(everything)


def test_page_loads_nothing_external(page):
    text = render_html(page)
    outline = Outline(text)
    assert outline.stack == []
    for tag, attributes in outline.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    css = "".join(outline.texts["style"])
    assert "@import" not in css
    assert all(url.startswith(("url(#", 'url("#')) for url in re.findall(r"url\([^)]*\)", text))


def test_section_has_heading_figure_takeaway_and_data(page):
    outline = Outline(render_html(page))
    assert outline.count("h1") == 1
    assert outline.count("figure") == outline.count("h2") == len(page.sections)
    for section, heading in zip(page.sections, outline.texts["h2"], strict=True):
        first, rest = map(tight, first_sentence(section.takeaway))
        assert first == heading
        assert any(rest in text for text in outline.texts["p"])
        assert any(section.title in text for text in outline.texts["p"])


def test_page_starts_with_results_and_ends_with_settings(page):
    text = render_html(page)
    opening = tight(" ".join(page.opening()))
    assert len(page.opening()) == 3
    assert opening in text
    places = [
        text.index(part) for part in ("<h1>", opening, 'id="section-1"', 'aria-label="What was asked"', "</main>")
    ]
    assert places == sorted(places)
    assert text.count("<details>\n<summary>Table, ") == sum(s.table is not None for s in page.sections)
    said = render_html(replace(page, summary=["One thing was learned."]))
    assert "One thing was learned." in said
    assert opening not in said


def test_wide_drawing_has_a_narrow_version(page):
    wide = [s for s in page.sections if len(s.figure.panels) == 1]
    text = render_html(page)
    assert text.count('class="wide"') == text.count('class="narrow"') == len(wide) > 0
    for drawing in re.findall(r'class="(?:half|narrow)"[^>]*viewBox="0 0 ([0-9.]+)', text):
        assert 386 / float(drawing) * 8 >= 11  # px of an 8 pt letter on a screen of 420, minus its margins


def test_records_are_embedded_completely(page):
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", render_html(page), re.DOTALL)
    assert len(scripts) == 1
    assert 'type="application/json"' in scripts[0][0]
    data = json.loads(scripts[0][1])
    again = {name: Record.model_validate(record) for name, record in data["records"].items()}
    assert again == page.records
    assert [s["takeaway"] for s in data["sections"]] == [s.takeaway for s in page.sections]
    assert all(s["data"] for s in data["sections"])


def test_embedded_data_contain_no_markup(everything):
    """Browsers also end a script element at `</script `, and after `<!-- <script ` at another place."""
    record = next(iter(everything.values()))
    record.title = "<!-- <script </script x> &lt;"
    text = render_html(generic_page(everything))
    data = text.partition('type="application/json"')[2].partition(">")[2].rpartition("</script>")[0]
    assert not set(data) & set("<>&")
    assert record.title in [one["title"] for one in json.loads(data)["records"].values()]


def test_names_are_escaped_everywhere(everything):
    for record in everything.values():
        record.title = HOSTILE
        record.backend = HOSTILE
        record.versions[HOSTILE] = HOSTILE
        record.provenance = Provenance.model_validate({HOSTILE: {HOSTILE: HOSTILE}})
        record.notes.append(HOSTILE)
        record.job.network.name = HOSTILE
    for name in ("k80-1", "k80-2", "k80-4"):
        everything[name].cluster.device = HOSTILE
    text = render_html(generic_page({HOSTILE + name: r for name, r in everything.items()}))
    outline = Outline(text)
    assert outline.stack == []
    assert outline.count("script") == 1
    assert outline.count("img") == 0
    assert not any(name.startswith("on") for _, attributes in outline.tags for name in attributes)


def test_missing_quantity_shows_a_dash_and_the_reason(planned):
    text = render_html(generic_page({"a": planned("k80", 1, 60, None)}))
    assert "1×k80: no cost of the run: does not fit" in text
    assert "mfu is missing: no peak is known" in text


def test_rendering_is_deterministic(page):
    assert render_html(page) == render_html(page)


def test_drawings_contain_text_and_named_colours(page):
    for section in page.sections:
        drawing = svg(section.figure)
        assert "<text" in drawing
        assert "var(--c-muted, #656b75)" in drawing
        assert "<metadata" not in drawing
        for panel in section.figure.panels:
            assert panel.x_label in drawing
            assert panel.y_label in drawing


def test_pictures_are_embedded():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    grid = Pictures([PictureRow(HOSTILE, [Picture(HOSTILE, png_base64(pixels)), Picture("4", png_base64(pixels))])])
    text = render_html(Answer("T", sections=[Section("Samples", "They differ.", figure=Figure([grid]))]))
    outline = Outline(text)
    assert outline.stack == []
    assert outline.count("script") == 1
    assert outline.count("img") == 0
    links = [a["xlink:href"] for t, a in outline.tags if t == "image"]
    assert len(links) == 2
    assert all(link is not None and link.startswith("data:image/png;base64,") for link in links)
    (data,) = json.loads("".join(outline.texts["script"]))["sections"]
    assert data["data"] == [{"row": HOSTILE, "picture": HOSTILE}, {"row": HOSTILE, "picture": "4"}]


def test_prose_wraps_but_values_do_not():
    prose = "The step was left out of the fit, as it waited for the file system most of its time."
    versions = "\n".join(["torch 2.11.0", "torchvision 0.26.0", "numpy 2.4.6", "matplotlib 3.11.2", "python 3.11"])
    table = Table(["name", "why", "versions"], [["a", prose, versions]], {0})
    text = render_html(
        Answer("T", asked=[("seeds", "3"), ("hypothesis", prose)], sections=[Section("S", "T.", table=table)])
    )
    assert f'<td class="prose">{prose}</td><td>{versions}</td>' in text
    assert "<div><dt>seeds</dt>" in text
    assert '<div class="prose"><dt>hypothesis</dt>' in text


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_error_names_a_folder_that_takes_no_files():
    with pytest.raises(InputError, match=r"cannot write /proc/x\.html: its folder takes no new files"):
        write_page(Answer("Nothing"), Path("/proc/x.html"))


def test_empty_page():
    assert render_html(Answer("Nothing")).count("<section") == 0
    with pytest.raises(ValueError, match="no takeaway"):
        Section("Mute", " ")


@pytest.mark.parametrize("module", ["matplotlib", "jinja2", "nbclient", "tensorboard"])
def test_missing_extra_is_reported(module, monkeypatch):
    import importlib
    import sys

    needing = {"matplotlib": "report.plots", "jinja2": "report.html", "nbclient": "report.notebook"}
    file = f"chronograd.{needing.get(module, 'watch.tensorboard')}"
    extra = "tensorboard" if module == "tensorboard" else "report"
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, file, raising=False)
    with pytest.raises(MissingExtraError, match=rf"\[{extra}\]"):
        importlib.import_module(file)


def test_pictures_are_visible_on_a_narrow_screen() -> None:
    """Pictures have no narrow version, so only drawings with one are hidden there."""
    pixel = png_base64(np.zeros((2, 2, 3), dtype=np.uint8))
    page = Answer(
        "T", sections=[Section("S", "It is.", figure=Figure([Pictures([PictureRow("", [Picture("", pixel)])])]))]
    )
    html = render_html(page)
    assert 'class="wide"' in html
    assert 'class="narrow"' not in html
    hidden = re.findall(r"([^{}\n]+) \{ display: none; \}", html)
    assert ".plots svg.wide:has(+ svg.narrow)" in [rule.strip() for rule in hidden]
    assert ".plots svg.wide" not in [rule.strip() for rule in hidden]
