"""Marks of several series do not overlap, and pictures keep their pixels."""

from __future__ import annotations

import base64
import io
import re
from itertools import combinations, pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.legend import Legend
from PIL import Image

from chronograd.errors import FileFormatError
from chronograd.figure import (
    PALETTE,
    ROLE_COLORS,
    SERIES_COLORS,
    Bar,
    Bars,
    Figure,
    Lines,
    Mark,
    Picture,
    PictureRow,
    Pictures,
    Series,
    png_base64,
)
from chronograd.report import placement
from chronograd.report.plots import _colors, _number, draw, svg, svgs_of_page
from chronograd.report.svg import standalone


def measured(label, x, y, bar=0.5, **fields):
    return Series(label, "measured", x, y, [v - bar for v in y], [v + bar for v in y], **fields)


def panel(num_series, x=(1, 2, 4, 8, 16), is_joined=True, **fields):
    """Return a panel of nearly equal series, whose marks would overlap."""
    series = [
        measured(f"method {i}", list(x), [70 + 2 * j + 0.1 * i for j in range(len(x))], is_joined=is_joined)
        for i in range(num_series)
    ]
    return Lines("labels", "accuracy, %", series, **fields)


def draw_panel(lines, others=()):
    """Return the axes of a panel after layout, and points per pixel."""
    drawing = draw(Figure([lines, *others]))
    return drawing.axes[0], 72 / drawing.dpi


def markers(axes, points_per_pixel):
    """Return the centres of markers in points, one array per series."""
    bars = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    return [points_per_pixel * c[0].get_transform().transform(c[0].get_xydata()) for c in bars]


@pytest.mark.parametrize(
    ("num_series", "is_log", "is_half"),
    [(2, True, False), (3, False, False), (4, True, True), (5, False, True), (6, True, True), (6, False, False)],
)
def test_error_bars_do_not_overlap_and_stay_inside(num_series, is_log, is_half):
    x = (1, 2, 4, 8, 16) if is_log else (1, 2, 3, 4, 5)
    lines = panel(num_series, x, log_x=is_log, x_ticks=x)
    axes, scale = draw_panel(lines, [lines] if is_half else [])
    centres = markers(axes, scale)
    assert len(centres) == num_series
    for a, b in combinations(range(num_series), 2):
        assert np.abs(centres[a][:, 0] - centres[b][:, 0]).min() >= 5, "a marker is 5 points wide"
    middles = scale * axes.transData.transform([[v, 70] for v in x])[:, 0]
    np.testing.assert_allclose(np.mean([c[:, 0] for c in centres], axis=0), middles, atol=0.01)
    box = axes.get_window_extent()
    for c in centres:
        assert (c[:, 0] - 3 >= scale * box.x0).all()
        assert (c[:, 0] + 3 <= scale * box.x1).all()


def test_bars_and_caps_move_with_their_marker():
    axes, scale = draw_panel(panel(3))
    for container, centres in zip(axes.containers, markers(axes, scale), strict=True):
        line, caps, (bars,) = container
        for cap in caps:
            np.testing.assert_allclose(scale * cap.get_transform().transform(cap.get_xydata())[:, 0], centres[:, 0])
        ends = [scale * bars.get_transform().transform(segment)[:, 0] for segment in bars.get_segments()]
        np.testing.assert_allclose(ends, np.stack([centres[:, 0]] * 2, axis=1))
        assert line.get_linestyle() == "-"


def test_separate_points_and_single_series_do_not_move():
    apart = Lines("x", "y", [measured("a", [1, 2], [3, 4]), measured("b", [1.5, 2.5], [3, 4])])
    for lines in (apart, panel(1)):
        axes, scale = draw_panel(lines)
        for s, centres in zip(lines.series, markers(axes, scale), strict=True):
            points = np.column_stack([s.x, s.y])
            np.testing.assert_allclose(centres, scale * axes.transData.transform(points))


def colors(lines):
    return [to_hex(c[0].get_color()) for c in draw_panel(lines)[0].containers]


def test_several_measured_series_have_distinct_colours():
    assert colors(panel(6)) == [PALETTE[name][0] for name in SERIES_COLORS[:6]]
    assert colors(panel(1)) == [PALETTE["ink"][0]]
    chosen = Lines("x", "y", [measured("a", [1], [1], color="teal"), *panel(2, [1, 2]).series])
    assert colors(chosen) == [PALETTE[name][0] for name in ("teal", "rose", "brown")]
    beside = Lines("x", "y", [Series("told", "predicted", [1, 2], [1, 2]), *panel(4, [1, 2]).series])
    assert PALETTE["accent"][0] not in colors(beside), "that is the colour of predictions"


def test_unjoined_series_has_no_line():
    axes, _ = draw_panel(panel(2, is_joined=False))
    assert [c[0].get_linestyle() for c in axes.containers] == ["None", "None"]


def test_many_joined_points_have_a_band():
    epochs = list(range(1, 31))
    accuracy = [90 - 30 / e for e in epochs]
    axes, _ = draw_panel(Lines("epoch", "accuracy", [measured("a", epochs, accuracy, 2.0, is_joined=True)]))
    assert not axes.containers
    (band,) = [c for c in axes.collections if isinstance(c, PolyCollection)]
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(min(accuracy) - 2)
    assert corners[:, 1].max() == pytest.approx(max(accuracy) + 2)


NAMES = ["none", "flip", "flip and crop", "cutout", "MixUp", "RandAugment", "AutoAugment", "TrivialAugment"]


def test_names_replace_numbers():
    text = svg(Figure([panel(2, range(3), x_ticks=range(3), x_names=NAMES[:3])]))
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert set(NAMES[:3]) <= set(words)
    assert not {"0", "1", "2"} & set(words)


def test_long_names_are_slanted_without_overlap():
    axes, _ = draw_panel(panel(2, range(8), x_ticks=range(8), x_names=NAMES), [panel(1)])
    labels = axes.get_xticklabels()
    assert [label.get_text() for label in labels] == NAMES
    assert {label.get_rotation() for label in labels} == {30}
    ends = [label.get_window_extent().x1 for label in labels]
    heights = [label.get_fontsize() * axes.get_figure(root=True).dpi / 72 for label in labels]
    # Slanted lines have a distance of a line height if their ends have twice that distance (sin 30° = 0.5).
    assert all(b - a >= 2 * h - 1 for (a, b), h in zip(pairwise(ends), heights[1:], strict=True))


# -- pictures ------------------------------------------------------------------------------------


def random_pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def grid(*counts, title="3", shape=(8, 8, 3)):
    pixels = random_pixels(*shape)
    return Pictures([PictureRow(f"row {i}", [Picture(title, png_base64(pixels))] * n) for i, n in enumerate(counts)])


@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 6), (5, 9, 4)])
def test_pictures_are_embedded_by_pixel(shape):
    pixels = random_pixels(*shape)
    if shape[2:] == (4,):
        pixels[..., 3] = 255
    text = svg(Figure([Pictures([PictureRow("sample", [Picture("cat\nsaid dog", png_base64(pixels))])])]))
    ((attributes, data),) = re.findall(r'<image ([^>]*?)xlink:href="data:image/png;base64,([^"]*)"', text)
    rest = text[text.index("<image") :].split(">")[0]
    assert "pixelated" in attributes + rest
    read = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    expected = pixels[..., None].repeat(3, axis=2) if pixels.ndim == 2 else pixels[..., :3]
    assert any((read == turned).all() for turned in (expected, expected[::-1]))
    for words in ("sample", "cat", "said dog"):
        assert f">{words}</text>" in text


def test_shrunk_pictures_are_smoothed():
    assert "pixelated" in svg(Figure([grid(2, shape=(40, 40, 3))]))
    assert "pixelated" not in svg(Figure([grid(3, shape=(240, 320, 3))]))


@pytest.mark.parametrize("counts", [(1,), (8, 8, 8), (3, 5), (23,), (12, 2)])
@pytest.mark.parametrize("title", ["", "automobile", "said dog\n0.93 sure of it"])
def test_pictures_and_titles_do_not_overlap(counts, title):
    drawing = draw(Figure([grid(*counts, title=title, shape=(8, 10, 3))]))
    boxes = [a.get_window_extent() for a in drawing.axes]
    assert len(boxes) == sum(counts)
    texts = [t for part in drawing.subfigs for t in part.texts if t.get_text()]
    taken = [*boxes, *(t.get_window_extent() for t in texts)]
    for a, b in combinations(taken, 2):
        assert a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
    width, height = drawing.canvas.get_width_height()
    for box in taken:
        assert box.x0 >= -1
        assert box.x1 <= width + 1
        assert box.y0 >= -1
        assert box.y1 <= height + 1
    for box in boxes:
        assert box.width / box.height == pytest.approx(10 / 8)


def test_rows_of_pictures_are_aligned():
    drawing = draw(Figure([grid(3, 5)]))
    lefts = [round(a.get_window_extent().x0, 3) for a in drawing.axes]
    assert lefts[:3] == lefts[3:6]


def test_pictures_next_to_lines():
    figure = Figure([grid(4), panel(2)])
    assert svg(figure).count("<svg ") == 2
    assert len(draw(figure).axes) == 5


def test_damaged_picture_is_reported():
    whole = base64.b64decode(png_base64(random_pixels(8, 8, 3)))
    cut = base64.b64encode(whole[:40]).decode()
    with pytest.raises(FileFormatError, match="picture 'cat' is damaged"):
        svg(Figure([Pictures([PictureRow("", [Picture("cat", cut)])])]))


def test_facet_has_its_title_above():
    panel = Lines("epoch", "test error", [Series("a", "measured", [1, 2], [3, 4])], title="small-cnn, one-cycle")
    drawing = svg(Figure([panel, panel]))
    assert drawing.count(">small-cnn, one-cycle<") == 2
    assert ">test error<" in drawing


def test_small_axis_numbers_are_powers_of_ten():
    assert [_number(v) for v in (1e-5, 2.5e-4, -1e-3, 0.02)] == ["10⁻⁵", "2.5·10⁻⁴", "\u22120.001", "0.02"]


def test_legend_labels_are_complete_at_any_width():
    label = "resnet50 on eight devices of two nodes over ethernet, learning rate divided by staleness, predicted"
    series = [Series(f"{label} {i}", "predicted", [1, 2], [i, 2 * i]) for i in (1, 2)]
    for text in svgs_of_page(Figure([Lines("ranks", "images/s", series)])):
        words = " ".join(re.findall(r">([^<>]+)</(?:text|tspan)>", text))
        assert "…" not in words
        assert "".join(words.split()).count("".join(label.split())) == 2


def test_several_predicted_series_have_distinct_colours():
    lines = Lines("n", "y", [Series(name, "predicted", [1, 2, 4], [1.0, 2.0, 3.0]) for name in "abc"])
    assert _colors(lines) == list(SERIES_COLORS[:3])
    axes, _ = draw_panel(lines)
    assert [line.get_marker() for line in axes.lines] == ["o"] * 3
    long = Lines("n", "y", [Series("a", "predicted", list(range(1, 40)), [1.0] * 39)])
    assert _colors(long) == [ROLE_COLORS["predicted"]]
    assert draw_panel(long)[0].lines[0].get_marker() == ""


def test_notes_are_next_to_their_points():
    series = Series("a", "predicted", [3.0, 2.0], [1.0, 2.0], notes=["1 learner", "2 learners"])
    text = svg(Figure([Lines("minutes", "cost", [series])]))
    assert ">1 learner</text>" in text
    assert ">2 learners</text>" in text


def text_boxes(axes, labels):
    """Return the drawn boxes of texts of the axes with these labels, in pixels."""
    return {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text() in labels}


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("ends", [(240.0, 340.0), (352.0, 388.0), (352.0, 355.0), (12.0, 30.0), (640.0, 690.0)])
def test_labels_of_vertical_lines_do_not_overlap(ends, is_log):
    """Guards against `measured knee` and `estimated knee` printed over each other."""
    names = ("measured knee", "estimated knee", "limit of the server")
    marks = [Mark("x", at, name) for name, at in zip(names, (*ends, sum(ends) / 2), strict=True)]
    lines = Lines("requests", "ms", [Series("a", "predicted", [10.0, 700.0], [1.0, 2.0])], marks, log_x=is_log)
    axes, _ = draw_panel(lines, [lines])
    boxes = text_boxes(axes, names)
    assert set(boxes) == set(names)
    for a, b in combinations(boxes.values(), 2):
        assert not a.overlaps(b)
    frame = axes.get_window_extent()
    assert all(frame.x0 - 2 <= box.x0 and box.x1 <= frame.x1 + 2 for box in boxes.values())


def test_labels_of_two_lines_are_outside_of_them():
    names = ("measured knee", "estimated knee")
    marks = [Mark("x", at, name) for name, at in zip(names, (352.0, 388.0), strict=True)]
    lines = Lines("requests", "ms", [Series("a", "predicted", [10.0, 700.0], [1.0, 2.0])], marks)
    axes, _ = draw_panel(lines)
    boxes = text_boxes(axes, names)
    (left, right) = (axes.transData.transform((at, 1.5))[0] for at in (352.0, 388.0))
    assert boxes["measured knee"].x1 < left
    assert boxes["estimated knee"].x0 > right


def test_notes_cover_no_line_and_no_other_note():
    """Guards against the 8 of eight learners that stood on the line to sixteen."""
    minutes, dollars = [4.0, 2.5, 1.8, 1.7, 6.5], [0.03, 0.037, 0.055, 0.1, 0.8]
    notes = ["1", "2", "4", "8", "16"]
    first = Series("strong", "predicted", minutes, dollars, notes=notes)
    second = Series("weak", "predicted", [4.0, 2.1], [0.03, 0.031], notes=["one", "two"])
    axes, _ = draw_panel(Lines("minutes", "cost", [first, second], log_x=True, log_y=True))
    boxes = text_boxes(axes, {*notes, "one", "two"})
    assert set(boxes) == {*notes, "one", "two"}
    for a, b in combinations(boxes.values(), 2):
        assert not a.overlaps(b)
    for series in (first, second):
        corners = axes.transData.transform(np.column_stack([series.x, series.y]))
        for a, b in pairwise(corners):
            for x, y in a + (b - a) * np.linspace(0, 1, 500)[:, None]:
                assert not any(box.contains(x, y) for box in boxes.values())


def test_note_rather_covers_a_line_than_another_note():
    """Only the first side of the second point is free of lines, and the note of the first point is there."""
    points, notes = [(0.0, 0.0), (20.0, 0.0)], ["a long note", "K = 4,000"]
    free, *others = (side.box(*points[1], notes[1]) for side in placement.SIDES)
    first_note = placement.SIDES[0].box(*points[0], notes[0])
    assert free.meets(first_note)
    centres = [((box.left + box.right) / 2, (box.bottom + box.top) / 2) for box in others]
    lines = [placement.Box.around(x + shift, y, 0.4) for x, y in centres for shift in (-1.0, 1.0)]
    lines = [box for box in lines if not box.meets(free) and not box.meets(first_note)]
    boxes = [
        side.box(*at, note) for side, at, note in zip(placement.sides(points, notes, lines), points, notes, strict=True)
    ]
    assert not boxes[0].meets(boxes[1])


def test_hollow_points_at_one_place_are_rings_of_different_size():
    """Guards against a simulation that hides another one with the same result."""
    series = [Series(name, "predicted", [1, 2, 4], [0.0, 1.0, 3.0], is_scatter=True) for name in ("fixed", "random")]
    apart = Series("elsewhere", "predicted", [1, 2, 4], [5.0, 6.0, 7.0], is_scatter=True)
    axes, _ = draw_panel(Lines("learners", "staleness", [*series, apart]))
    small, large, other = (line.get_markersize() for line in axes.lines)
    assert large >= small + 2 * axes.lines[0].get_markeredgewidth()
    assert other == small


def test_clouds_of_points_keep_their_size():
    """Guards against large circles where a few of many points happen to be at the same place."""
    cloud = [float(i) for i in range(1, 50)]
    series = [Series(name, "predicted", cloud, cloud, is_scatter=True) for name in ("first", "second")]
    axes, _ = draw_panel(Lines("FLOPs per byte", "FLOP/s", series))
    assert len({line.get_markersize() for line in axes.lines}) == 1


def test_legend_has_the_shade_of_its_bars():
    bars = [Bar("a, measured", "measured", {"whole": 3.0}), Bar("a, predicted", "predicted", {"expected": 2.0})]
    drawing = draw(Figure([Bars("ms", "pass", bars, {"whole": "accent", "expected": "purple"})]))
    faces = {
        text.get_text(): patch.get_facecolor()
        for legend in drawing.findobj(Legend)
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    drawn = {to_hex(patch.get_facecolor(), keep_alpha=True) for patch in drawing.axes[0].patches}
    assert set(faces) == {"whole", "expected"}
    assert {to_hex(face, keep_alpha=True) for face in faces.values()} <= drawn


def test_axis_from_zero_has_room_for_a_mark():
    """Guards against a mark beyond the axis, whose label was drawn far outside."""
    lines = Lines(
        "frames",
        "mean return",
        [Series("one", "predicted", [100.0, 200.0], [9.0, 20.0])],
        [Mark("y", 475.0, "solved")],
        from_zero=True,
    )
    axes, _ = draw_panel(lines)
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 475


def test_part_colours_are_in_the_palette() -> None:
    from chronograd.explain.answer import _PART_COLORS
    from chronograd.report.plots import COLORS

    assert set(_PART_COLORS.values()) <= COLORS.keys()


def test_drawings_have_a_gap_and_wrap() -> None:
    """Two of 300 points fit in a row of 640 and the third starts the next: a gap of 14 between, 12 around."""
    drawing = '<svg viewBox="0 0 300 100"></svg>'
    joined = standalone([drawing] * 3)
    assert re.findall(r' x="(\d+)" y="(\d+)"', joined) == [("12", "12"), ("326", "12"), ("12", "126")]
    assert 'viewBox="0 0 638 238"' in joined
