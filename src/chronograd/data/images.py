"""Images of one split as whole numbers: all in memory, or read from files by background threads while a job trains.

N images, C channels, H rows, W columns. The training device normalises and augments them later.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import psutil
import torch

from chronograd.errors import FileFormatError

Samples = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
# One image of a split as uint8 of shape (C, H, W), by its number.
Read = Callable[[int], Pixels]

# Share of free memory for images in memory. The rest is for the network and other programs.
MEMORY_SHARE = 0.5
# Batches to read ahead. They set the memory that reading takes.
BATCHES_AHEAD = 4


class ResidentImages:
    """All images of a split in one tensor, on one device. `shape`: channels, height, width."""

    def __init__(self, images_NCHW: torch.Tensor) -> None:
        """Hold `images_NCHW`, a uint8 tensor."""
        self.images_NCHW = images_NCHW
        channels, height, width = images_NCHW.shape[1:]
        self.shape = (channels, height, width)

    def __len__(self) -> int:
        return len(self.images_NCHW)

    def batch(self, samples: Samples) -> torch.Tensor:
        """Return uint8 of shape (n, C, H, W) in the order of `samples`, on the device of the images."""
        # On a CPU this takes a tenth of the time of uint8 indexing with brackets.
        return self.images_NCHW.index_select(
            0, torch.tensor(samples, dtype=torch.int64, device=self.images_NCHW.device)
        )

    def prefetch(self, samples: Samples) -> None:
        """Do nothing: the images are in memory."""

    def to(self, device: torch.device) -> ResidentImages:
        """Return a copy on the device if the images take at most half of its free memory; otherwise return these images."""
        if device == self.images_NCHW.device or not fits(self.images_NCHW.nbytes, device):
            return self
        return ResidentImages(self.images_NCHW.to(device))


class StreamedImages:
    """Images of a split that background threads read individually, a few batches ahead. Each read gives the same pixels.

    `prefetch` queues a batch and `batch` waits for it. A batch that was not queued is read at once. The queue holds at
    most `batches_ahead` batches: a further one is not queued, and skipped ones are dropped.
    """

    def __init__(
        self,
        read: Read,
        num_images: int,
        shape: tuple[int, int, int],
        threads: int | None = None,
        batches_ahead: int = BATCHES_AHEAD,
    ) -> None:
        """Start the threads. By default there are as many as torch uses in this process, which a job's `cluster.threads` sets."""
        self.shape = shape
        self.batches_ahead = batches_ahead
        self._read, self._num_images = read, num_images
        self._threads = threads or torch.get_num_threads()
        self._ahead: OrderedDict[bytes, _Batch] = OrderedDict()

    def __len__(self) -> int:
        return self._num_images

    def batch(self, samples: Samples) -> torch.Tensor:
        """Return a batch on the CPU. Raises FileFormatError that names a file that cannot be read."""
        key = _key(samples)
        is_queued = key in self._ahead
        while self._ahead:
            first, pending = self._ahead.popitem(last=False)
            if first == key:
                return pending.wait()
            pending.drop()
            if not is_queued:  # nobody may ever read a queued batch: drop batches until there is room
                break
        return self._start(samples).wait()

    def prefetch(self, samples: Samples) -> None:
        """Announce a batch that will be needed soon."""
        key = _key(samples)
        if key not in self._ahead and len(self._ahead) < self.batches_ahead:
            self._ahead[key] = self._start(samples)

    def to(self, device: torch.device) -> StreamedImages:
        """Return these images: they come from files."""
        return self

    def _start(self, samples: Samples) -> _Batch:
        images = np.empty((len(samples), *self.shape), dtype=np.uint8)
        read = self._read

        def fill(position: int, sample: int) -> None:
            images[position] = read(sample)

        tasks = [self._pool.submit(fill, position, int(sample)) for position, sample in enumerate(samples)]
        return _Batch(images, tasks)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="images")


Images = ResidentImages | StreamedImages


@dataclass(frozen=True)
class _Batch:
    """A batch whose images the threads are reading."""

    images: Pixels
    tasks: list[Future[None]]

    def wait(self) -> torch.Tensor:
        try:
            for task in self.tasks:
                task.result()
        except BaseException:
            self.drop()
            raise
        return torch.from_numpy(self.images)

    def drop(self) -> None:
        for task in self.tasks:
            task.cancel()


def _key(samples: Samples) -> bytes:
    return np.asarray(samples, np.int64).tobytes()


def read_all(
    read: Read, num_images: int, shape: tuple[int, int, int]
) -> tuple[torch.Tensor, Samples, list[FileFormatError]]:
    """Read all images; skip the unreadable ones.

    Returns images (n, C, H, W), their numbers (n,) in order, and errors in order.
    """
    images = np.empty((num_images, *shape), dtype=np.uint8)

    def fill(i: int) -> FileFormatError | None:
        try:
            images[i] = read(i)
        except FileFormatError as error:
            return error
        return None

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        errors = list(pool.map(fill, range(num_images)))
    kept = np.array([i for i, error in enumerate(errors) if error is None], dtype=np.int64)
    for to, sample in enumerate(kept):
        if to != sample:  # moved within the tensor: there may be no room for a second copy
            images[to] = images[sample]
    return torch.from_numpy(images[: len(kept)]), kept, [error for error in errors if error is not None]


def fits(num_bytes: int, device: torch.device | None = None) -> bool:
    """Return whether images may stay in memory: they take at most half of the free memory of a device, or of main memory.

    Ranks that share a machine share its main memory, and each loads the images.
    """
    if device is not None and device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        ranks = 1
    else:
        free = psutil.virtual_memory().available
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return num_bytes * ranks <= MEMORY_SHARE * free
