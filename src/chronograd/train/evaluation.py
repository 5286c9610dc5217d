"""Loss and accuracy on the test split, shared out over the ranks."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from chronograd.data.datasets import Dataset
from chronograd.train.communicator import share_buffers
from chronograd.train.inputs import CHUNK, in_chunks
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep


@torch.no_grad()
def evaluate(step: TrainingStep, dataset: Dataset, place: RankContext) -> tuple[float, float]:
    """Mean cross-entropy (without label smoothing) and accuracy, equal on every rank.

    Rank 0's running means are used by all. Chunks go to the ranks in turn. Where the job keeps a running mean of the
    weights, that is evaluated.
    """
    share_buffers(step.network if step.averaged is None else step.averaged, place)
    network = step.evaluated.eval()
    loss_sum, num_correct = 0.0, 0
    labels_N = dataset.test_labels_N
    samples = np.arange(len(labels_N))
    mine = samples[samples // CHUNK % place.world_size == place.rank]
    try:
        for chunk, seen in in_chunks(step.test_input, mine, place.device):
            targets_N = labels_N[torch.from_numpy(chunk)].to(place.device)
            with step.arithmetic():
                logits_NK = network(seen).float()
            loss_sum += functional.cross_entropy(logits_NK, targets_N, reduction="sum").item()
            num_correct += int((logits_NK.argmax(dim=1) == targets_N).sum())
    finally:
        step.train_mode()
    sums = torch.tensor([loss_sum, num_correct], dtype=torch.float64, device=place.device)
    loss_sum, correct = place.exchange.sum(sums).tolist()
    return loss_sum / len(labels_N), correct / len(labels_N)
