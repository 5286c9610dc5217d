"""Initial weights of training, and whether the head that came with them stays.

A head trained on other classes is worse than a new one: it is sure of wrong answers.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from chronograd.data import datasets
from chronograd.data.datasets import Dataset
from chronograd.errors import ChronogradError
from chronograd.job import Job
from chronograd.models import registry
from chronograd.models.weights import Head, Loaded, head_tensors, load_pretrained
from chronograd.rundir import RunDir, is_run_dir
from chronograd.train.inputs import input_of
from chronograd.words import how_many

# Training images that judge an unknown head: enough to distinguish the loss of guessing from that of a trained head.
JUDGED = 64


def network_with(job: Job, weights: str, shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, Loaded]:
    """Return the job's network with weights, in evaluation mode, on a GPU if possible. Raises as `load_pretrained`."""
    network = registry.build(job.network.name, job.network.options, input_shape=shape, num_classes=num_classes)
    loaded = load_pretrained(network, weights, job.network.name)
    has_gpu = torch.cuda.is_available() and job.cluster.device != "cpu"
    return network.to("cuda" if has_gpu else "cpu").eval(), loaded


def load_start(network: nn.Module, job: Job, dataset: Dataset) -> str:
    """Load `network.weights` into a network on the CPU. Return the source of the weights and of the head, in words.

    Without `network.head`, the head is new if the weights were trained on other classes. A run directory states its
    classes. Weights from elsewhere do not: their head stays if it classifies training images better than a guess.

    Raises: as `load_pretrained`.
    """
    source = job.network.weights
    assert source is not None
    head, reason = _asked(job, dataset)
    is_judged = head is None and job.mode == "training" and job.task == "classification"
    names = head_tensors(network) if is_judged else []
    own = network.state_dict()
    initial = {name: own[name].clone() for name in names}
    loaded = load_pretrained(network, source, job.network.name, head)
    fresh = loaded.fresh
    if initial and not fresh:
        loss, chance = _loss(network, dataset), math.log(dataset.card.num_classes)
        reason = f"the head of these weights has a loss of {loss:.2f} here, guessing has {chance:.2f}"
        if not loss < chance:
            network.load_state_dict(initial, strict=False)
            fresh = tuple(initial)
    reason = f" ({reason})" if reason else ""
    said = f"; new: {', '.join(fresh)}{reason}" if fresh else f"; head kept{reason}" if reason else ""
    count = loaded.num_loaded - (len(fresh) if fresh != loaded.fresh else 0)
    return f"{how_many(count, 'tensors')} of weights from {loaded.source}{said}"


def _asked(job: Job, dataset: Dataset) -> tuple[Head | None, str]:
    """Return whether job and source ask for a new head or for the old one, and why. None: the loss decides."""
    if job.network.head is not None:
        return job.network.head, f"network.head={job.network.head}"
    source = Path(job.network.weights or "").expanduser()
    if job.mode == "inference" or job.is_text or not is_run_dir(source):
        return None, ""
    try:
        trained_on = datasets.card(RunDir.open(source).job().data)
    except ChronogradError:  # its training data no longer exists
        return None, ""
    ours, theirs = dataset.card.class_names, trained_on.class_names
    if len(ours) != len(theirs):
        return None, ""  # its shape decides
    if ours != theirs:
        return "new", f"trained on other classes: {_some(theirs)}; now {_some(ours)}"
    if dataset.card.name != trained_on.name and all(name.isdecimal() for name in ours):
        return None, ""  # numbers are not names of classes
    return "kept", f"trained on the same {how_many(len(ours), 'classes')}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (" …" if len(names) > 2 else "")


@torch.no_grad()
def _loss(network: nn.Module, dataset: Dataset) -> float:
    """Return the mean cross-entropy in nats over some training images of all classes, for a network on the CPU."""
    device = torch.device("cpu")
    seen = input_of(dataset.train, dataset, device)
    samples = np.unique(np.linspace(0, len(seen) - 1, JUDGED).astype(np.int64))
    was_training = network.training
    output = network.eval()(seen.prepare(seen.gather(samples)))
    network.train(was_training)
    logits: Tensor = output[0] if isinstance(output, tuple) else output
    return float(functional.cross_entropy(logits, dataset.train_labels[samples]))
