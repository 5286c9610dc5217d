"""A saved answer, records and their names may come from anyone: on a page, in Markdown and in a notebook they stay text."""

from __future__ import annotations

import base64
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from PIL import Image

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.cli.main import main
from chronograd.errors import FileFormatError
from chronograd.figure import (
    Bar,
    Bars,
    Figure,
    Lanes,
    Lines,
    Mark,
    Panel,
    Picture,
    PictureRow,
    Pictures,
    Push,
    Range,
    Ranges,
    Series,
    Span,
)  # fmt: skip
from chronograd.record import Record
from chronograd.report.html import render_html
from chronograd.report.markdown import write_markdown
from chronograd.report.notebook import write_notebook

# Labels of this length leave no room for the axes.
pytestmark = pytest.mark.filterwarnings("ignore:constrained_layout")
EVIL = (
    "</text></svg></script>--><script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>\"' onload='a"
)
# The page's own script element holds JSON, which no browser runs.
DATA = {"type": "application/json", "id": "chronograd-data"}


class Elements(HTMLParser):
    """The elements of a page: names and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def assert_is_inert(text: str) -> None:
    """Fail if a text has an element that runs code or loads something, once a browser reads it."""
    elements = Elements(text).elements
    assert elements
    for tag, attributes in elements:
        assert tag not in ("iframe", "object", "embed", "base", "form", "foreignobject", "animate", "set"), tag
        assert tag != "script" or attributes == DATA
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "xlink:href", "srcdoc", "action"):
            address = attributes.get(name) or "#"
            assert address.startswith(("#", "data:image/png;base64,")), (tag, address)


def panels() -> list[Panel]:
    """Return a panel of each kind, with hostile text in each of its texts."""
    numbers = [1.0, 2.0]
    pixel = io.BytesIO()
    Image.new("RGB", (2, 2)).save(pixel, format="PNG")
    picture = Picture(EVIL, base64.b64encode(pixel.getvalue()).decode())
    return [
        Lines(EVIL, EVIL, [Series(EVIL, "measured", numbers, numbers, notes=[EVIL, EVIL])], [Mark("y", 1.5, EVIL)],
              x_ticks=numbers, x_names=[EVIL, EVIL], title=EVIL),
        Bars(EVIL, EVIL, [Bar(EVIL, "measured", {EVIL: 1.0}, 0.5, 2.0, EVIL)]),
        Ranges(EVIL, EVIL, [Range(EVIL, 1.0, 0.5, 2.0, 0.9, 1.1)]),
        Pictures([PictureRow(EVIL, [picture])], EVIL, EVIL),
        Lanes(EVIL, [EVIL], [Span(0, EVIL, 0.0, 1.0, EVIL)], [Push(0, 1.0, 1, 0)], [(1.0, 1)], {EVIL: "accent"},
              y_label=EVIL),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved answer with hostile text everywhere."""
    record = Record(
        kind="measured",
        title=EVIL,
        cluster={"device": EVIL},
        backend=EVIL,
        versions={EVIL: EVIL},
        notes=[EVIL],
        quantities={
            EVIL: {"value": 1.0, "unit": "s", "source": EVIL},
            "b": {"value": None, "unit": "s", "reason": EVIL},
        },
    )
    table = Table([EVIL, EVIL], [[EVIL, "1"]], {1}, [EVIL])
    sections = [
        Section(EVIL, EVIL, EVIL, Figure([panel]), EVIL, table, [{EVIL: EVIL}], [EVIL, f"x: {EVIL}"])
        for panel in panels()
    ]
    answer = Answer(EVIL, EVIL, [(EVIL, EVIL)], [Highlight(EVIL, EVIL, EVIL)], sections, {EVIL: record}, EVIL, None, [EVIL],
                    summary=[EVIL])  # fmt: skip
    path = tmp_path_factory.mktemp("strange") / "answer.json"
    answer.save(path)
    return path


def test_text_of_a_saved_answer_is_text_on_a_page(saved: Path) -> None:
    page = render_html(Answer.load(saved))
    assert_is_inert(page)
    assert "&lt;script&gt;alert(1)" in page


def test_verb_report_writes_that_page(saved: Path, tmp_path: Path) -> None:
    assert main(["report", str(saved), "--out", str(tmp_path / "page.html")]) == 0
    assert_is_inert((tmp_path / "page.html").read_text())


def test_answer_is_text_in_a_notebook_cell(saved: Path) -> None:
    assert_is_inert(Answer.load(saved)._repr_html_())


def test_saved_answer_is_text_in_markdown_and_its_drawings(saved: Path, tmp_path: Path) -> None:
    readme, *drawings = write_markdown(Answer.load(saved), tmp_path)
    text = readme.read_text()
    for drawing in drawings:
        text = text.replace(drawing.name, "#")
    assert_is_inert(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
    assert len(drawings) == len(panels())
    for drawing in drawings:
        assert_is_inert(drawing.read_text())
        assert "<!DOCTYPE" not in drawing.read_text()


@pytest.mark.parametrize(
    "section",
    [
        {"figure_svg": "<svg onload='alert(1)'></svg>"},
        {"figure_svg": None},
        {"markup": "<script>alert(1)</script>"},
        {"figure": {"panels": [], "svg": "<svg></svg>"}},
    ],
)
def test_fields_that_could_hold_markup_are_refused(tmp_path: Path, section: dict[str, object]) -> None:
    """Versions before this one had `figure_svg` for drawings as trusted markup."""
    path = tmp_path / "answer.json"
    answer = {"title": "t", "sections": [{"title": "s", "takeaway": "It is so.", **section}]}
    path.write_text(json.dumps({"format": "chronograd-answer", "version": 1, **answer}))
    with pytest.raises(FileFormatError, match="is not a saved answer"):
        Answer.load(path)


@pytest.mark.parametrize(("side", "message"), [(3_000, "3,000 × 3,000 pixels, more than 4,000,000"), (14_000, "bomb")])
def test_huge_picture_is_refused_before_it_is_unpacked(side: int, message: str) -> None:
    stream = io.BytesIO()
    Image.new("1", (side, side)).save(stream, format="PNG")
    picture = Picture("zeros", base64.b64encode(stream.getvalue()).decode())
    answer = Answer("T", sections=[Section("S", "It is so.", figure=Figure([Pictures([PictureRow("r", [picture])])]))])
    with pytest.raises(FileFormatError, match=message):
        render_html(answer)


@pytest.mark.slow
def test_notebook_imports_no_modules_of_its_folder(tmp_path: Path) -> None:
    """Cells run in the folder of the notebook, where anyone may have put modules and settings of the kernel."""
    for name in (
        "chronograd",
        "numpy",
        "json",
        "matplotlib",
        "ipython_config",
        "ipython_kernel_config",
        "jupyter_config",
    ):
        (tmp_path / f"{name}.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'harmed')!r}).touch()\n")
    write_notebook(Answer("T", sections=[Section("S", "It is so.")]), tmp_path / "page.ipynb")
    assert (tmp_path / "page.ipynb").exists()
    assert not (tmp_path / "harmed").exists()
