"""Loss and accuracy on the test split, shared out over the ranks."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from chronograd.data.datasets import Dataset
from chronograd.train import distributed
from chronograd.train.place import Place
from chronograd.train.step import TrainingStep

# Images per pass. Fixed, so that a sample meets the same neighbours for any number of ranks.
CHUNK = 256


@torch.no_grad()
def evaluate(step: TrainingStep, dataset: Dataset, place: Place) -> tuple[float, float]:
    """Mean cross-entropy (without label smoothing) and accuracy, equal on every rank.

    Rank 0's running means are used by all. Chunks go to the ranks in turn. Where the job keeps a running mean of the
    weights, that is evaluated.
    """
    distributed.share_buffers(step.network if step.averaged is None else step.averaged, place)
    network = step.evaluated.eval()
    loss_sum, num_correct = 0.0, 0
    images, labels_N = step.test_input, dataset.test_labels_N
    starts = range(place.rank * CHUNK, len(labels_N), place.world_size * CHUNK)
    chunks = [np.arange(start, min(start + CHUNK, len(labels_N))) for start in starts]
    try:
        for i, chunk in enumerate(chunks):
            for later in chunks[i + 1 : i + 2]:
                images.prefetch(later)
            seen = images.prepare(images.gather(chunk).to(place.device))
            targets_N = labels_N[chunk[0] : chunk[-1] + 1].to(place.device)
            with step.arithmetic():
                logits_NK = network(seen).float()
            loss_sum += functional.cross_entropy(logits_NK, targets_N, reduction="sum").item()
            num_correct += int((logits_NK.argmax(dim=1) == targets_N).sum())
    finally:
        step.train_mode()
    sums = torch.tensor([loss_sum, num_correct], dtype=torch.float64, device=place.device)
    loss_sum, correct = distributed.sum_over_ranks(sums, place).tolist()
    return loss_sum / len(labels_N), correct / len(labels_N)
