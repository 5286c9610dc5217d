"""Augmentation equals torchvision's and Cutout's per image, with the same probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torchvision.transforms import RandomCrop, RandomResizedCrop
from torchvision.transforms import functional as vision

from chronograd.data import augment
from chronograd.job import Augmentation

ONE, ZERO = torch.ones(1), torch.zeros(1)
SURE = 1e-4  # a correct test fails for one of ten thousand seeds; the seeds are fixed


def augmented(images: torch.Tensor, augmentation: Augmentation, step: int = 0) -> torch.Tensor:
    draws = torch.from_numpy(augment.draw(augmentation, 0, step, len(images)))
    ones, zeros = torch.ones(images.shape[1]), torch.zeros(images.shape[1])
    return augment.augment(images, augmentation, draws, ones, zeros, torch.Generator().manual_seed(step))


def is_uniform(observed: np.ndarray) -> bool:
    return bool(stats.chisquare(observed.ravel()).pvalue > SURE)


def test_crops_and_flips_match_torchvision_and_are_uniform() -> None:
    """Each image equals one of the 25 · 2 crops and flips of the original, with equal frequency."""
    original = torch.arange(1, 37, dtype=torch.uint8).view(1, 6, 6)
    padded = vision.pad(original, [2])
    all_50 = [
        vision.hflip(crop) if flipped else crop
        for top in range(5)
        for left in range(5)
        for crop in [vision.crop(padded, top, left, 6, 6)]
        for flipped in (False, True)
    ]
    table = {tuple(image.flatten().tolist()): i for i, image in enumerate(all_50)}
    assert len(table) == 50
    batch = augmented(original.expand(20_000, 1, 6, 6), Augmentation(crop=2, flip=True))
    counts = np.bincount([table[tuple(image)] for image in batch.flatten(1).long().tolist()], minlength=50)
    assert is_uniform(counts)
    # RandomCrop draws from the same table.
    theirs = RandomCrop(6, padding=2)
    assert all(tuple(theirs(original).flatten().tolist()) in table for _ in range(50))


def test_resized_crops_match_torchvision() -> None:
    """Equal boxes give equal pixels, and the boxes have torchvision's distribution."""
    torch.manual_seed(0)
    image = torch.randint(256, (3, 20, 24), dtype=torch.uint8)
    augmentation = Augmentation(resized_crop=0.2)
    draws = torch.from_numpy(augment.draw(augmentation, 0, 0, 3000))
    boxes: list[tuple[torch.Tensor, ...]] = []
    original_sample = augment._sample

    def spy(images: torch.Tensor, *box: torch.Tensor) -> torch.Tensor:
        boxes.append(box)
        return original_sample(images, *box)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augment, "_sample", spy)
        got = augment.augment(image.expand(3000, 3, 20, 24), augmentation, draws, torch.ones(3), torch.zeros(3))
    top, left, h, w = (values.long().tolist() for values in boxes[0])
    for i in range(0, 3000, 100):
        box = (top[i], left[i], h[i], w[i])
        expected = vision.resized_crop(image.float(), *box, [20, 24], antialias=False)
        torch.testing.assert_close(got[i], expected, atol=2e-3, rtol=1e-5)
    theirs = [RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    ours = list(zip(top, left, h, w, strict=True))
    for column in range(4):
        a, b = ([box[column] for box in some] for some in (ours, theirs))
        assert stats.ks_2samp(a, b).pvalue > SURE


def test_box_that_never_fits_is_a_centre_crop() -> None:
    """Torchvision crops the centre at aspect 4/3, as no box of nearly full area fits a very wide image."""
    image = torch.arange(200, dtype=torch.uint8).view(1, 1, 2, 100)
    augmentation = Augmentation(resized_crop=1.0)
    got = augmented(image, augmentation)
    expected = vision.resized_crop(image.float(), 0, 48, 2, 3, [2, 100], antialias=False)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)


def test_cutout_is_a_clipped_square_at_a_uniform_centre() -> None:
    size, side, count = 8, 4, 40_000
    images = torch.ones(count, 2, size, size, dtype=torch.uint8)
    batch = augmented(images, Augmentation(cutout=side))
    assert torch.equal(batch[:, 0], batch[:, 1])
    holes = (batch[:, 0] == 0).numpy()
    expected = np.zeros((size, size))  # for each pixel, the number of the 64 centres that hide it
    shapes: dict[bytes, int] = {}
    for y in range(size):
        for x in range(size):
            hole = np.zeros((size, size), dtype=bool)
            hole[max(0, y - 2) : y + 2, max(0, x - 2) : x + 2] = True
            expected += hole / 64
            shapes[hole.tobytes()] = shapes.get(hole.tobytes(), 0) + 1
    observed = dict.fromkeys(shapes, 0)
    for hole in holes:
        observed[hole.tobytes()] += 1  # an impossible shape raises KeyError
    assert stats.chisquare(list(observed.values()), [count * n / 64 for n in shapes.values()]).pvalue > SURE
    np.testing.assert_allclose(holes.mean(0), expected, atol=4 * math.sqrt(0.25 / count))


def test_pixel_dropout_share_covers_all_channels() -> None:
    batch = augmented(torch.ones(500, 3, 8, 8, dtype=torch.uint8), Augmentation(pixel_dropout=0.25))
    assert torch.equal(batch[:, 0], batch[:, 2])
    assert stats.binomtest(int((batch[:, 0] == 0).sum()), 500 * 64, 0.25).pvalue > SURE


def test_copies_are_independent_and_in_copy_order() -> None:
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).repeat(50, 1, 1, 1)
    images[:, :, 0, 0] = torch.arange(50, dtype=torch.uint8)[:, None]
    plain = augmented(images, Augmentation(copies=3))
    assert plain.shape == (150, 1, 8, 8)
    assert torch.equal(plain, images.float().repeat(3, 1, 1, 1))
    cut = augmented(images, Augmentation(copies=3, cutout=4)).view(3, 50, 8, 8)
    differing = (cut[0] != cut[1]).flatten(1).any(1).float().mean().item()
    assert differing > 0.9  # two of 64 centres agree once in 64


def test_normalisation_is_between_crop_and_cutout() -> None:
    """Cut-out pixels are 0; padded pixels are black, which normalises to -shift."""
    images = torch.full((2000, 1, 4, 4), 100, dtype=torch.uint8)
    augmentation = Augmentation(crop=4, cutout=2)
    draws = torch.from_numpy(augment.draw(augmentation, 0, 0, 2000))
    batch = augment.augment(images, augmentation, draws, torch.tensor([0.01]), torch.tensor([0.5]))
    assert set(batch.unique().tolist()) == {-0.5, 0.0, 0.5}


def test_ranks_split_the_images_of_a_single_rank() -> None:
    augmentation = Augmentation(crop=2, flip=True, cutout=4, copies=2)
    images = torch.randint(256, (10, 3, 8, 8), dtype=torch.uint8)
    draws = torch.from_numpy(augment.draw(augmentation, 3, 7, 10))
    whole = augment.augment(images, augmentation, draws, torch.ones(3), torch.zeros(3)).view(2, 10, 3, 8, 8)
    part = augment.augment(images[4:], augmentation, draws[:, 4:], torch.ones(3), torch.zeros(3)).view(2, 6, 3, 8, 8)
    assert torch.equal(part, whole[:, 4:])


def test_draws_depend_on_seed_and_step_only() -> None:
    """A resumed run needs the same images in every later version."""
    first = augment.draw(Augmentation(), 0, 0, 2)
    assert first.shape == (1, 2, 5)
    assert first[0, 0, 0] == pytest.approx(FROZEN_DRAW, abs=1e-15)
    assert np.array_equal(first, augment.draw(Augmentation(), 0, 0, 2))
    assert not np.array_equal(first, augment.draw(Augmentation(), 0, 1, 2))


FROZEN_DRAW = 0.9776462743838505
