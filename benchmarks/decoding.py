"""Decoding: photographs per second that a virtual CPU decodes, crops, resizes and normalises, as in a DataLoader.

    python -m benchmarks.decoding [--seconds S] [--processes N]

The benchmark generates a JPEG with the average size of ImageNet's training set, 500 x 375 pixels and 110 kB. One process per
virtual CPU then runs the usual recipe on it: Pillow's decoder, a random crop resized to 224 pixels, a flip, conversion to a
tensor, normalisation. Reading from disk is left out. `chronograd.plan.renting.PHOTOGRAPHS` is this figure; its comment gives
published figures for decoding alone. Times are CPU times of each process, so other work on the machine affects only the caches.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import time

import numpy as np
from PIL import Image

WIDTH = 500
HEIGHT = 375
AIM_BYTES = 110_000


def photograph() -> bytes:
    """Return a JPEG of ImageNet's average size: a smooth picture with noise that gives the right number of bytes."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = 128 + 60 * np.sin(x / 40)[..., None] + 40 * np.cos(y / 25)[..., None] * np.array([1.0, 0.6, 0.3])
    noise = np.asarray(
        Image.fromarray(rng.integers(0, 256, (HEIGHT // 2, WIDTH // 2, 3), dtype=np.uint8)).resize((WIDTH, HEIGHT))
    )
    low, high, data = 0.0, 1.0, b""
    for _ in range(12):
        share = (low + high) / 2
        pixels = np.clip(smooth + share * (noise.astype(float) - 128), 0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=92)
        data = stream.getvalue()
        low, high = (share, high) if len(data) < AIM_BYTES else (low, share)
    return data


def _rates(data: bytes, seconds: float, is_whole: bool) -> float:
    """Return images/s of one process over `seconds`: decoding alone, or all steps for a training image."""
    import torch
    from torchvision import transforms

    torch.set_num_threads(1)
    torch.manual_seed(0)
    normalised = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalised]
    prepare = transforms.Compose(steps)
    count, start = 0, time.process_time()
    while (elapsed := time.process_time() - start) < seconds or count == 0:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
        if is_whole:
            prepare(picture)
        count += 1
    return count / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    data = photograph()
    print(
        f"{WIDTH} x {HEIGHT} pixels, {len(data):,} bytes; {arguments.processes} processes, {os.cpu_count()} virtual CPUs"
    )
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        for name, is_whole in (("decoded", False), ("decoded, cropped, flipped, normalised", True)):
            asked = [(data, arguments.seconds, is_whole)] * arguments.processes
            rates = pool.starmap(_rates, asked, chunksize=1)
            each = ", ".join(f"{rate:.0f}" for rate in rates)
            print(f"{name:40} {sum(rates) / len(rates):6.0f} images/s per virtual CPU ({each})")


if __name__ == "__main__":
    main()
