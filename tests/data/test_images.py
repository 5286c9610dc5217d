"""Resident and streamed images: order, memory, and the time of each read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import psutil
import pytest
import torch

from chronograd.data.images import Images, ResidentImages, StreamedImages, fits, read_all
from chronograd.errors import FileFormatError

PIXELS = np.random.RandomState(0).randint(0, 256, (40, 3, 4, 5)).astype(np.uint8)


def resident() -> Images:
    return ResidentImages(torch.from_numpy(PIXELS))


def streamed() -> Images:
    return StreamedImages(PIXELS.__getitem__, len(PIXELS), (3, 4, 5), threads=3)


@pytest.mark.parametrize("made", [resident, streamed])
def test_batch_has_the_requested_order(made: Callable[[], Images]) -> None:
    images = made()
    assert len(images) == 40
    assert images.shape == (3, 4, 5)
    for samples in (np.array([7, 3, 39, 3]), np.arange(10), np.array([], dtype=np.int64)):
        images.prefetch(samples)
        batch = images.batch(samples)
        assert batch.dtype == torch.uint8
        assert np.array_equal(batch.numpy(), PIXELS[samples])


@pytest.mark.parametrize("made", [resident, streamed])
def test_read_only_samples(made: Callable[[], Images]) -> None:
    samples = np.arange(4)
    samples.flags.writeable = False
    assert np.array_equal(made().batch(samples).numpy(), PIXELS[:4])


def test_resident_images_stay_on_their_device() -> None:
    images = resident()
    assert images.to(torch.device("cpu")) is images


def test_ranks_share_half_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    free = psutil.virtual_memory().available
    assert fits(int(0.4 * free))
    assert not fits(int(0.6 * free))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert fits(int(0.2 * free))
    assert not fits(int(0.4 * free))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_resident_images_move_to_a_gpu_if_they_fit() -> None:
    cuda = torch.device("cuda")
    moved = resident().to(cuda)
    batch = moved.batch(np.array([5, 1]))
    assert batch.device.type == "cuda"
    assert np.array_equal(batch.cpu().numpy(), PIXELS[[5, 1]])
    free, _ = torch.cuda.mem_get_info()
    # Claims 60 % of the free memory, but has one pixel.
    large = ResidentImages(torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(int(0.6 * free) // 10**6, 1, 1000, 1000))
    assert large.to(cuda) is large
    assert streamed().to(cuda).batch(np.array([2])).device.type == "cpu"


# -- streaming -------------------------------------------------------------------------------------------


class Reader:
    """A reader of PIXELS that records its reads and waits at a gate."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, i: int) -> np.ndarray:
        assert self.gate.wait(20)
        self.read.append(i)
        return PIXELS[i]

    def settled(self, count: int) -> list[int]:
        """Return the recorded reads once they reach a number and no more follow."""
        deadline = time.monotonic() + 600
        while len(self.read) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.1)
        return sorted(self.read)


def stream(reader: Reader, batches_ahead: int = 2) -> StreamedImages:
    return StreamedImages(reader, len(PIXELS), (3, 4, 5), threads=2, batches_ahead=batches_ahead)


def test_prefetch_reads_once_in_the_background() -> None:
    reader = Reader()
    images = stream(reader)
    images.prefetch(np.arange(5))
    images.prefetch(np.arange(5))
    assert reader.settled(5) == [0, 1, 2, 3, 4]
    assert np.array_equal(images.batch(np.arange(5)).numpy(), PIXELS[:5])
    assert len(reader.read) == 5


def test_prefetch_queue_is_limited() -> None:
    reader = Reader()
    images = stream(reader, batches_ahead=2)
    for start in range(0, 40, 10):
        images.prefetch(np.arange(start, start + 10))
    assert reader.settled(20) == list(range(20))
    # Taking one batch frees space for another.
    images.batch(np.arange(10))
    images.prefetch(np.arange(20, 30))
    assert reader.settled(30) == list(range(30))


def test_unused_prefetched_batches_are_dropped() -> None:
    reader = Reader()
    images = stream(reader, batches_ahead=2)
    images.prefetch(np.arange(5))
    images.prefetch(np.arange(5, 10))
    assert reader.settled(10) == list(range(10))
    images.batch(np.arange(5, 10))  # the first batch was skipped
    for start in (20, 25):
        images.prefetch(np.arange(start, start + 5))
    assert reader.settled(20) == [*range(10), *range(20, 30)]
    # After two other requests, both queued batches are dropped and two more can be queued.
    for start in (30, 35):
        images.batch(np.arange(start, start + 5))
    for start in (10, 15):
        images.prefetch(np.arange(start, start + 5))
    assert reader.settled(40) == list(range(40))


def test_batch_waits_for_its_images() -> None:
    reader = Reader()
    reader.gate.clear()
    images = stream(reader)
    images.prefetch(np.arange(3))
    threading.Timer(0.2, reader.gate.set).start()
    assert np.array_equal(images.batch(np.arange(3)).numpy(), PIXELS[:3])


def test_unreadable_image_raises_with_its_batch() -> None:
    def read(i: int) -> np.ndarray:
        if i == 4:
            raise FileFormatError("four.png cannot be read")
        return PIXELS[i]

    images = StreamedImages(read, 40, (3, 4, 5), threads=2)
    images.prefetch(np.arange(3, 6))
    assert np.array_equal(images.batch(np.arange(3)).numpy(), PIXELS[:3])
    with pytest.raises(FileFormatError, match=r"four\.png"):
        images.batch(np.arange(3, 6))
    assert np.array_equal(images.batch(np.arange(5, 8)).numpy(), PIXELS[5:8])


def test_reading_all_skips_unreadable_images() -> None:
    def read(i: int) -> np.ndarray:
        if i % 7 == 2:
            raise FileFormatError(f"{i} cannot be read")
        return PIXELS[i]

    images_NCHW, kept, errors = read_all(read, 40, (3, 4, 5))
    expected = [i for i in range(40) if i % 7 != 2]
    assert kept.tolist() == expected
    assert np.array_equal(images_NCHW.numpy(), PIXELS[expected])
    assert [e.message for e in errors] == [f"{i} cannot be read" for i in range(2, 40, 7)]
