"""Augmentation of pictures together with their boxes."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chronograd.detect import augmentation
from chronograd.detect.augmentation import (
    WHOLE,
    PictureWindow,
    augmented,
    distort,
    draw_window,
    look,
    saturated,
    turned,
)
from chronograd.detect.boxes import Objects, iou

SIDE, FILL = 300, 127.0


def picture_with(box: tuple[int, int, int, int], height: int = 240, width: int = 320) -> tuple[torch.Tensor, Objects]:
    """Return a white rectangle on black, and its box."""
    left, top, right, bottom = box
    picture = torch.zeros(3, height, width, dtype=torch.uint8)
    picture[:, top:bottom, left:right] = 255
    sides = torch.tensor([[left / width, top / height, right / width, bottom / height]])
    return picture, Objects(sides, torch.tensor([1]), torch.tensor([False]))


def extent(seen: torch.Tensor) -> list[float]:
    """Return the box around pixels closer to white than to the canvas."""
    rows, columns = (torch.nonzero((seen[0] > 190).any(dim)).flatten().tolist() for dim in (1, 0))
    return [columns[0] / SIDE, rows[0] / SIDE, (columns[-1] + 1) / SIDE, (rows[-1] + 1) / SIDE]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**31 - 1), st.integers(20, 200), st.integers(20, 120), st.integers(40, 110), st.integers(40, 110)
)
def test_boxes_move_with_the_pixels(seed: int, left: int, top: int, width: int, height: int) -> None:
    """The box matches the white rectangle within two pixels of the output, or of an enlarged picture."""
    picture, objects = picture_with((left, top, left + width, top + height))
    window = draw_window(objects.boxes_G4, np.random.RandomState(seed))
    seen, after = look(picture, objects, window, SIDE, FILL)
    assert seen.shape == (3, SIDE, SIDE)
    assert len(after.boxes_G4) == 1
    enlarged = max(1, SIDE / (320 * (window.right - window.left)), SIDE / (240 * (window.bottom - window.top)))
    assert after.boxes_G4[0].tolist() == pytest.approx(extent(seen), abs=2 * enlarged / SIDE)


def test_no_augmentation_shows_the_whole_picture() -> None:
    torch.manual_seed(0)
    picture = torch.randint(256, (3, 50, 70), dtype=torch.uint8)
    _, objects = picture_with((10, 10, 60, 60))
    seen, after = look(picture, objects, WHOLE, 100, FILL)
    assert torch.equal(seen, augmentation.plain(picture, 100))
    torch.testing.assert_close(after.boxes_G4, objects.boxes_G4)


def test_mirror_and_canvas_by_hand() -> None:
    picture, objects = picture_with((0, 0, 80, 240))  # the left quarter is white
    seen, after = look(picture, objects, PictureWindow(0, 0, 1, 1, is_mirrored=True), 100, FILL)
    assert after.boxes_G4.tolist() == [[0.75, 0.0, 1.0, 1.0]]
    assert seen[0, 50, 80:].min() > 250
    assert seen[0, 50, :70].max() < 5
    # a canvas of twice the size, with the picture in its right lower quarter
    seen, after = look(picture, objects, PictureWindow(-1, -1, 1, 1), 100, FILL)
    assert after.boxes_G4.tolist() == [[0.5, 0.5, 0.625, 1.0]]
    assert (seen[:, :50] == FILL).all()
    assert (seen[:, :, :50] == FILL).all()
    assert seen[0, 75, 52:60].min() > 250


def test_object_with_its_centre_outside_is_removed() -> None:
    picture, objects = picture_with((0, 0, 80, 240))  # its centre is at an eighth
    assert len(look(picture, objects, PictureWindow(0.13, 0, 1, 1), 100, FILL)[1].labels_G) == 0
    _, after = look(picture, objects, PictureWindow(0.12, 0, 1, 1), 100, FILL)
    assert after.boxes_G4[0].tolist() == pytest.approx([0, 0, 0.13 / 0.88, 1], abs=0.01)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31 - 1), st.integers(1, 6))
def test_boxes_stay_inside_and_one_object_remains(seed: int, count: int) -> None:
    random = np.random.RandomState(seed)
    corner = random.uniform(0, 0.8, (count, 2))
    sides = torch.tensor(
        np.concatenate([corner, corner + random.uniform(0.05, 0.2, (count, 2))], 1), dtype=torch.float32
    )
    objects = Objects(sides, torch.arange(1, count + 1), torch.zeros(count, dtype=torch.bool))
    picture = torch.from_numpy(random.randint(0, 256, (3, 60, 80)).astype(np.uint8))
    seen, after = augmented(picture, objects, 64, FILL, np.random.RandomState(seed))
    assert seen.shape == (3, 64, 64)
    assert seen.dtype == torch.float32
    assert 0 <= seen.min() <= seen.max() <= 255
    assert 1 <= len(after.labels_G) <= count
    assert set(after.labels_G.tolist()) <= set(objects.labels_G.tolist())
    assert after.boxes_G4.min() >= 0
    assert after.boxes_G4.max() <= 1
    assert (after.boxes_G4[:, 2:] > after.boxes_G4[:, :2]).all()
    again, _ = augmented(picture, objects, 64, FILL, np.random.RandomState(seed))
    assert torch.equal(seen, again)


def test_crop_shows_the_drawn_share_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = torch.tensor([[0.2, 0.2, 0.7, 0.7]])
    for least in (0.1, 0.3, 0.5, 0.7):
        monkeypatch.setattr(augmentation, "MIN_OVERLAPS", (least,))
        windows = [augmentation._cut(WHOLE, boxes.numpy(), np.random.RandomState(seed)) for seed in range(40)]
        cuts = [window for window in windows if window != WHOLE]
        assert len(cuts) >= 10
        for cut in cuts:
            assert float(iou(torch.tensor([cut[:4]]), boxes)) >= least
            width, height = cut.right - cut.left, cut.bottom - cut.top
            assert 0.5 <= width / height <= 2.0
            assert 0.3**2 - 1e-9 <= width * height <= 1 + 1e-9


def test_canvas_and_mirror_have_probability_one_half() -> None:
    random = np.random.RandomState(0)
    windows = [draw_window(torch.zeros(0, 4), random) for _ in range(2000)]
    # four standard deviations of a fair coin: 0.5 · 2000 ± 4 · sqrt(2000) / 2
    assert sum(w.is_mirrored for w in windows) == pytest.approx(1000, abs=90)
    canvases = [w for w in windows if w.right - w.left > 1]
    assert len(canvases) == pytest.approx(1000, abs=90)
    ratios = [w.right - w.left for w in canvases]
    assert max(ratios) <= 4
    assert np.mean(ratios) == pytest.approx(2.5, abs=0.15)
    assert all(w.left <= 0 and w.right >= 1 and w.top <= 0 and w.bottom >= 1 for w in canvases)


def test_smaller_canvas_and_no_canvas() -> None:
    random = np.random.RandomState(0)
    sides = [w.right - w.left for w in (draw_window(torch.zeros(0, 4), random, 1.5) for _ in range(200))]
    assert 1.3 < max(sides) <= 1.5
    windows = [draw_window(torch.tensor([[0.4, 0.4, 0.6, 0.6]]), random, 1.0) for _ in range(200)]
    assert min(min(w.left, w.top) for w in windows) >= 0
    assert max(max(w.right, w.bottom) for w in windows) <= 1 + 1e-9


COLOURS = st.tuples(*[st.integers(0, 255)] * 3)


@settings(deadline=None, max_examples=50)
@given(COLOURS, st.floats(0.5, 1.5), st.floats(-18, 18))
def test_saturation_and_hue_follow_hsv(colour: tuple[int, int, int], factor: float, degrees: float) -> None:
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in colour))
    pixel = torch.tensor(colour, dtype=torch.float32).view(3, 1, 1)
    expected = [255 * c for c in colorsys.hsv_to_rgb(hue, min(saturation * factor, 1), value)]
    assert saturated(pixel, factor).flatten().tolist() == pytest.approx(expected, abs=0.01)
    expected = [255 * c for c in colorsys.hsv_to_rgb((hue + degrees / 360) % 1, saturation, value)]
    assert turned(pixel, degrees).flatten().tolist() == pytest.approx(expected, abs=0.01)


def test_colours_change_within_their_range() -> None:
    picture = 255 * torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    outcomes = [distort(picture, np.random.RandomState(seed)) for seed in range(64)]
    assert all(one.min() >= 0 and one.max() <= 255 for one in outcomes)
    unchanged = sum(torch.equal(one, picture) for one in outcomes)
    assert 0 < unchanged < 16  # one in sixteen gets none of the four changes: four of 64
