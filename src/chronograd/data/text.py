"""Text as rows of tokens: drawn by a seed, or a set of the catalogue, which is for planning only.

A sample has T tokens of a vocabulary of V, and each position predicts the next one. Drawn tokens follow Zipf's law: the k-th
word has 1/k of the frequency of the first. They are independent, so a network can learn word frequencies and nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chronograd.data.catalogue import Listed
from chronograd.data.published import DatasetCard
from chronograd.errors import InputError
from chronograd.job import TOKENS, Data
from chronograd.measure import environment
from chronograd.units import si
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch

SAMPLES = 1024
_TOKEN_BYTES = 8


def is_drawn(data: Data) -> bool:
    """Return whether a job's data is synthetic text: `tokens`, or synthetic samples of one dimension."""
    return data.name == TOKENS or (data.name == "synthetic" and data.shape is not None and len(data.shape) == 1)


def card(data: Data, listed: Listed | None = None) -> DatasetCard:
    """Return the card of a job's text: `data.samples` rows of synthetic tokens, or the rows of a published text.

    Raises InputError if the length of a row or the vocabulary is missing, and for fields that only images have.
    """
    if data.shape is None or data.classes is None:
        raise InputError(
            f"data.name is {data.name}, which is text, and data.shape or data.classes is not given",
            "write the tokens of a sample and the vocabulary: data.shape=[1024] data.classes=50257",
        )
    if len(data.shape) != 1:
        raise InputError(f"data.shape is {data.shape}; a sample of text has a number of tokens", "such as [1024]")
    for field in ("image_size", "skip", "long_tail", "label_noise", "labels"):
        if getattr(data, field):
            raise InputError(f"data.{field} is {getattr(data, field)}; {data.name} is text", f"leave data.{field} out")
    (length,) = data.shape
    whole = SAMPLES if listed is None else max(1, (listed.tokens or 0) // length)
    samples = data.samples or whole
    if listed is not None and samples > whole:
        raise InputError(
            f"data.samples is {samples:,}; {listed.title} has {how_many(whole, 'rows')} of {how_many(length, 'tokens')}",
            "write fewer samples",
        )
    return DatasetCard(
        name=data.name,
        shape=(length,),
        num_classes=data.classes,
        class_names=(),
        train_size=samples,
        test_size=data.test_samples or max(1, samples // 4),
        source="drawn by Zipf's law" if listed is None else listed.source,
    )


def check_memory(described: DatasetCard) -> None:
    """Raise InputError for text that does not fit into this machine's total memory."""
    count = described.train_size + described.test_size
    size, memory = count * (described.shape[0] + 1) * _TOKEN_BYTES, environment.ram_bytes()
    if memory is not None and size > memory:
        raise InputError(
            f"{how_many(count, 'samples')} of {described.shape[0]:,} tokens take {si(size, 'B')}, and this machine has "
            f"{si(memory, 'B')} of memory",
            "write a smaller data.shape or data.samples",
        )


def draw(described: DatasetCard, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw rows for training and test, one token longer than a sample: int64 of shape (N, T + 1). Raises InputError if they do
    not fit into memory.
    """
    check_memory(described)
    import torch

    frequencies = 1.0 / np.arange(1, described.num_classes + 1)
    until = np.cumsum(frequencies) / frequencies.sum()
    generator = np.random.default_rng(seed)

    def part(count: int) -> torch.Tensor:
        drawn = np.searchsorted(until, generator.random((count, described.shape[0] + 1)), side="right")
        return torch.from_numpy(np.minimum(drawn, described.num_classes - 1).astype(np.int64))

    return part(described.train_size), part(described.test_size)
