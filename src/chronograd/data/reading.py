"""Reading: from a data set's files or arrays to the images of a job, in memory or streamed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from chronograd.data.images import Images, Read, ResidentImages, StreamedImages, fits, read_all
from chronograd.data.labels import SHUFFLE_SEED, TrainingSet
from chronograd.data.layouts import Listing
from chronograd.data.normalisation import Channels, PixelCounts
from chronograd.data.published import Arrays, DatasetCard
from chronograd.errors import FileFormatError, InputError
from chronograd.job import Data
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.data.folders import Header

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]

# Number of images in the sample that gives mean and deviation if not all images are in memory.
STREAMED_STATISTICS = 1000
# Maximum number of headers to read before streaming a split; a fixed sample of a larger split. At 0.2 ms each, all of
# ImageNet's would take four minutes at the start of every rank.
STREAMED_HEADERS = 50_000
_CHUNK = 256


@dataclass(frozen=True)
class Reading:
    """Both splits of a data set. `chosen` and `test_labels_N` cover the readable images."""

    train: Images
    chosen: TrainingSet
    test: Images
    test_labels_N: Array
    top: int
    notes: tuple[str, ...] = ()


def read_arrays(data: Data, described: DatasetCard, arrays: Arrays, chosen: TrainingSet) -> Reading:
    """Read a set that is already in memory; resize it if the job asks for another size."""
    was, shape = arrays.train_images.shape[1:], described.image_shape
    is_whole = np.array_equal(chosen.samples_N, np.arange(len(arrays.train_images)))
    train_NCHW = arrays.train_images if is_whole else arrays.train_images[chosen.samples_N]
    if was == shape:
        opened = _resident if data.loading != "streaming" else _streamed
        return Reading(opened(train_NCHW), chosen, opened(arrays.test_images), arrays.test_labels, arrays.top)
    is_resident = _is_resident(data, len(train_NCHW) + len(arrays.test_images), shape)

    def resized(images_NCHW: Array) -> Images:
        read = _resizing(images_NCHW, shape[1], arrays.top)
        if is_resident:
            return ResidentImages(read_all(read, len(images_NCHW), shape)[0])
        return StreamedImages(read, len(images_NCHW), shape)

    note = f"images of {was[1]}x{was[2]} were resized to {shape[1]}x{shape[2]}"
    return Reading(resized(train_NCHW), chosen, resized(arrays.test_images), arrays.test_labels, 255, (note,))


def read_folder(data: Data, described: DatasetCard, listing: Listing, chosen: TrainingSet) -> Reading:
    """Read pictures on disk. Unreadable ones are left out of both splits, with a note.

    For streamed pictures the headers decide. A truncated file raises when it is read.

    Raises: InputError if no image of a split can be read.
    """
    from chronograd.data import folders

    is_resident = _is_resident(data, len(chosen.samples_N) + len(listing.test_paths), described.image_shape)
    opened = _decoded_split if is_resident else _streamed_split
    train = opened([listing.train_paths[i] for i in chosen.samples_N], described.image_shape)
    test = opened(listing.test_paths, described.image_shape)
    for name, split in (("training", train), ("test", test)):
        if len(split.kept) == 0:
            first = split.unreadable[0]
            raise InputError(f"no {name} image of {data.name} can be read: {first.message}", first.hint)
    kept = chosen.only(train.kept)
    headers, unreadable = train.headers + test.headers, train.unreadable + test.unreadable
    notes = [
        *listing.notes,
        *folders.notes(listing.root, headers, unreadable, described.image_shape[1]),
        *_lost_classes(chosen, kept, described.class_names),
    ]
    if not is_resident:
        seen = "all" if train.is_all_seen and test.is_all_seen else f"{STREAMED_HEADERS:,} of each split"
        notes.append(f"pictures are decoded while the job trains; before it, the headers of {seen} were read")
    return Reading(train.images, kept, test.images, listing.test_labels_N[test.kept], 255, tuple(notes))


def mean_std(images: Images, top: int) -> tuple[Channels, Channels, list[str]]:
    """Return mean and deviation per channel: of all images in memory, or of a fixed sample of streamed ones."""
    samples, notes = np.arange(len(images)), []
    if not isinstance(images, ResidentImages) and len(images) > STREAMED_STATISTICS:
        samples = _some(len(images), STREAMED_STATISTICS)
        notes.append(f"mean and deviation are those of a fixed sample of {STREAMED_STATISTICS:,} training images")
    counts = PixelCounts(images.shape[0], top)
    for start in range(0, len(samples), _CHUNK):
        counts.add(images.batch(samples[start : start + _CHUNK]).numpy())
    return *counts.mean_std(), notes


# -- in memory -------------------------------------------------------------------------------------------


def _is_resident(data: Data, num_images: int, shape: Shape) -> bool:
    return data.loading == "resident" or (data.loading == "auto" and fits(num_images * math.prod(shape)))


def _resident(images_NCHW: Array) -> Images:
    writeable = images_NCHW if images_NCHW.flags.writeable else images_NCHW.copy()  # torch requires a writeable array
    return ResidentImages(torch.from_numpy(np.ascontiguousarray(writeable)))


def _streamed(images_NCHW: Array) -> Images:
    channels, height, width = images_NCHW.shape[1:]
    return StreamedImages(lambda i: images_NCHW[i], len(images_NCHW), (channels, height, width))


def _resizing(images_NCHW: Array, side: int, top: int) -> Read:
    """Return a reader that resizes images. Images with few levels are first spread over 0 … 255, so that shades survive."""
    from chronograd.data.folders import resized

    def read(i: int) -> Array:
        pixels_CHW = images_NCHW[i]
        if top != 255:
            pixels_CHW = np.rint(pixels_CHW * (255 / top)).astype(np.uint8)
        return resized(pixels_CHW, side)

    return read


# -- pictures on disk --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Split:
    """Pictures of one split. `kept` are the positions of the readable ones, as far as they were checked."""

    images: Images
    kept: Array
    headers: list[Header]
    unreadable: list[FileFormatError]
    is_all_seen: bool = True


def _decoded_split(paths: Sequence[Path], shape: Shape) -> _Split:
    """Decode all pictures now; decode a repeated path once."""
    from chronograd.data.folders import decode

    distinct = list(dict.fromkeys(paths))
    headers: list[Header | None] = [None] * len(distinct)

    def read(i: int) -> Array:
        pixels_CHW, headers[i] = decode(distinct[i], shape[1])
        return pixels_CHW

    images_NCHW, readable, unreadable = read_all(read, len(distinct), shape)
    found = [h for h in headers if h is not None]
    if len(distinct) == len(paths):
        return _Split(ResidentImages(images_NCHW), readable, found, unreadable)
    row = {distinct[i]: n for n, i in enumerate(readable)}
    kept = np.array([i for i, path in enumerate(paths) if path in row], dtype=np.int64)
    rows = torch.tensor([row[paths[i]] for i in kept])
    return _Split(ResidentImages(images_NCHW[rows]), kept, found, unreadable)


def _streamed_split(paths: Sequence[Path], shape: Shape) -> _Split:
    """Read headers now and pixels later."""
    from chronograd.data.folders import decode, header

    distinct = list(dict.fromkeys(paths))
    is_all_seen = len(distinct) <= STREAMED_HEADERS
    if not is_all_seen:
        distinct = [distinct[i] for i in np.sort(_some(len(distinct), STREAMED_HEADERS))]

    def look(path: Path) -> Header | FileFormatError:
        try:
            return header(path)
        except FileFormatError as error:
            return error

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = dict(zip(distinct, pool.map(look, distinct), strict=True))
    unreadable = {path: what for path, what in found.items() if isinstance(what, FileFormatError)}
    kept = np.array([i for i, path in enumerate(paths) if path not in unreadable], dtype=np.int64)
    sound = [paths[i] for i in kept]
    return _Split(
        StreamedImages(lambda i: decode(sound[i], shape[1])[0], len(sound), shape),
        kept,
        [what for what in found.values() if not isinstance(what, FileFormatError)],
        list(unreadable.values()),
        is_all_seen,
    )


def _lost_classes(chosen: TrainingSet, kept: TrainingSet, class_names: tuple[str, ...]) -> list[str]:
    """Return a note if a class has no readable training image left."""
    if chosen.labels.ndim != 1:
        return []
    lost = [class_names[c] for c in np.setdiff1d(chosen.labels, kept.labels)]
    return [f"no training image can be read in {how_many(len(lost), 'classes')}: {', '.join(lost[:3])}"] if lost else []


def _some(count: int, wanted: int) -> Array:
    """Return a fixed sample of the numbers below `count`."""
    return np.random.RandomState(SHUFFLE_SEED).permutation(count)[:wanted]
