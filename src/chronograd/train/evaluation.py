"""Loss and accuracy on the test split, shared out over the ranks."""

from __future__ import annotations

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

    Rank 0's running means are used by all. Chunks go to the ranks in turn.
    """
    distributed.share_buffers(step.network, place)
    network = step.network.eval()
    loss_sum, num_correct = 0.0, 0
    images, labels = dataset.test_images_NCHW, dataset.test_labels_N
    layout = torch.channels_last if step.training.channels_last else torch.preserve_format
    try:
        for start in range(place.rank * CHUNK, len(labels), place.world_size * CHUNK):
            images_NCHW = images[start : start + CHUNK].to(place.device, memory_format=layout)
            targets_N = labels[start : start + CHUNK].to(place.device)
            with step.arithmetic():
                logits_NK = network(images_NCHW).float()
            loss_sum += functional.cross_entropy(logits_NK, targets_N, reduction="sum").item()
            num_correct += int((logits_NK.argmax(dim=1) == targets_N).sum())
    finally:
        network.train()
    sums = torch.tensor([loss_sum, num_correct], dtype=torch.float64, device=place.device)
    loss_sum, correct = distributed.sum_over_ranks(sums, place).tolist()
    return loss_sum / len(labels), correct / len(labels)
