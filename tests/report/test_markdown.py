"""The README has the contents of the page, with self-contained drawings."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

import numpy as np
import pytest
from markdown_it import MarkdownIt

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import PALETTE, Figure, Lines, Picture, PictureRow, Pictures, Series, png_base64
from chronograd.report.markdown import markdown, write_markdown
from chronograd.report.runs import generic_page
from chronograd.report.svg import standalone

SVG = "{http://www.w3.org/2000/svg}"


def lines(label):
    return Lines("epoch", label, [Series("ours", "measured", [1, 2], [3.0, 4.0], is_joined=True)])


@pytest.fixture
def page():
    grid = Pictures([PictureRow("digits", [Picture("3", png_base64(np.zeros((8, 8), np.uint8)))])])
    table = Table(["method", "error, %"], [["a|b", "1.5"], ["two\nlines", "2.5"]], {1}, ["Mean of 3 seeds."])
    return Answer(
        "How few labels?",
        subtitle="A study",
        asked=[("question", "Is 40 enough | or not?"), ("seeds", "3")],
        highlights=[Highlight("accuracy", "91.3 %", "n = 3"), Highlight("cost", "$1.20")],
        sections=[
            Section("With 40 labels", "It is.", "Mean over seeds.", Figure([lines("a"), lines("b"), lines("c")])),
            Section("What was seen", "It differs.", figure=Figure([grid]), caption="Samples."),
            Section("Errors", "They fall.", table=table),
        ],
        footer="Made of three runs.",
    )


def html(path):
    return MarkdownIt("commonmark").enable("table").render(path.read_text(encoding="utf-8"))


def test_readme_has_the_page_contents_in_order(page, tmp_path):
    paths = write_markdown(page, tmp_path / "study")
    assert [p.name for p in paths] == ["README.md", "1-with-40-labels.svg", "2-what-was-seen.svg"]
    assert sorted(p.name for p in (tmp_path / "study").iterdir()) == sorted(p.name for p in paths)
    text = html(paths[0])
    in_order = [
        "<h1>How few labels?</h1>",
        "<p>A study</p>",
        "<p>It is. It differs. They fall.</p>",
        "<li><strong>91.3 %</strong> accuracy (n = 3)</li>",
        "<li><strong>$1.20</strong> cost</li>",
        "<h2>With 40 labels</h2>",
        "<p>Mean over seeds.</p>",
        '<img src="1-with-40-labels.svg" alt="With 40 labels" />',
        "<p><strong>Takeaway.</strong> It is.</p>",
        "<h2>What was seen</h2>",
        '<img src="2-what-was-seen.svg" alt="What was seen" />',
        "<p>Samples.</p>",
        "<p><strong>Takeaway.</strong> It differs.</p>",
        "<h2>Errors</h2>",
        "<th>method</th>",
        '<th style="text-align:right">error, %</th>',
        '<td>a|b</td>\n<td style="text-align:right">1.5</td>',
        "<em>Mean of 3 seeds.</em>",
        "<p><strong>Takeaway.</strong> They fall.</p>",
        "<h2>Settings</h2>",
        "<td>question</td>\n<td>Is 40 enough | or not?</td>",
        "<p>Made of three runs.</p>",
    ]
    places = [text.find(part) for part in in_order]
    assert -1 not in places, in_order[places.index(-1)]
    assert places == sorted(places)
    assert "| two<br>lines | 2.5 |" in paths[0].read_text(encoding="utf-8")


def test_output_is_deterministic(everything, page, tmp_path):
    for number, made in enumerate((page, generic_page(everything))):
        first = [p.read_bytes() for p in write_markdown(made, tmp_path / f"{number}a")]
        assert first == [p.read_bytes() for p in write_markdown(made, tmp_path / f"{number}b")]


def test_drawings_are_self_contained_and_light(everything, page, tmp_path):
    for number, made in enumerate((page, generic_page(everything))):
        for path in write_markdown(made, tmp_path / str(number))[1:]:
            root = ET.parse(path).getroot()
            assert root.tag == f"{SVG}svg"
            ground = next(e for e in root if e.tag != f"{SVG}style")
            assert (ground.tag, ground.get("fill")) == (f"{SVG}rect", PALETTE["ground"][0])
            assert "var(" not in path.read_text(encoding="utf-8")


def test_panels_are_inside_and_do_not_overlap(page, tmp_path):
    root = ET.parse(write_markdown(page, tmp_path)[1]).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = [[float(e.attrib[k]) for k in ("x", "y", "width", "height")] for e in root.findall(f"{SVG}svg")]
    assert len(boxes) == 3
    assert boxes[0][1] == boxes[1][1], "two panels stand side by side"
    for x, y, w, h in boxes:
        assert 0 < x < x + w < width
        assert 0 < y < y + h < height
    for (x, y, w, h), (u, v, p, q) in combinations(boxes, 2):
        assert x + w < u or u + p < x or y + h < v or v + q < y


def test_custom_drawing_is_light():
    own = '<svg class="own" width="7" height="7" viewBox="0 0 40 20"><text fill="var(--c-ink)">a</text></svg>'
    root = ET.fromstring(standalone([own]))
    (inner,) = root.findall(f"{SVG}svg")
    assert inner.attrib == {"viewBox": "0 0 40 20", "x": "12", "y": "12", "width": "40", "height": "20"}
    assert inner[0].get("fill") == PALETTE["ink"][0]


@pytest.mark.parametrize(
    "text",
    [
        *["<script>alert(1)</script>", "<!-- a -->", "&lt;", "[a](b) ![c](d)", "*a* _b_ `c` ~~d~~", "\\| a |"],
        *["# a", "- a", "+ a", "1. a", "2) a", "> a", "a\n---", "a\n==="],
    ],
)
def test_text_never_becomes_markup(text, tmp_path):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown(text))
    assert [t.type for t in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {t.type for t in tokens[1].children} <= {"text", "softbreak", "text_special"}
    assert "".join("\n" if t.type == "softbreak" else t.content for t in tokens[1].children) == text
    page = Answer(text, asked=[(text, text)], sections=[Section(text, text, table=Table([text], [[text]]))])
    rendered = html(write_markdown(page, tmp_path)[0])
    assert rendered.count("<table>") == 2
    for tag in ("<script", "<a ", "<img", "<em", "<code", "<ol", "<ul", "<blockquote", "<hr"):
        assert tag not in rendered
