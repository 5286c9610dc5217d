"""One training step of one rank, in its parts: input, transfer, forward, backward, update.

The loop runs it and `chronograd.measure.steps` times it; what is timed is what trains.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from chronograd.data.datasets import Dataset
from chronograd.errors import FileFormatError
from chronograd.job import Job, Training
from chronograd.models import registry
from chronograd.predict.checkpointing import blocks_to_checkpoint
from chronograd.train import distributed, order
from chronograd.train.place import Place
from chronograd.train.schedule import learning_rate

# Weight of each auxiliary classifier's loss: C. Szegedy et al., Going deeper with convolutions, 2014, section 5.
AUXILIARY_WEIGHT = 0.3
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class TrainingStep:
    """Network, optimizer and data of one rank, and the parts of a step over them.

    Initial weights are those of the seed, or of `initial_weights`, a safetensors file with the network's
    own names. The loss of a rank is scaled by its share of the batch, so that the mean over ranks is the
    mean over the batch even where ranks have unequal shares.

    Left out: augmentation, gradient accumulation and clipping.
    """

    def __init__(self, job: Job, dataset: Dataset, place: Place, initial_weights: Path | None = None) -> None:
        training = job.training
        if place.device.type == "cuda":
            is_tf32 = training.precision == "tf32"
            torch.set_float32_matmul_precision("high" if is_tf32 else "highest")
            torch.backends.cudnn.allow_tf32 = is_tf32
        self.training, self.place, self.device = training, place, place.device
        self._images, self._labels = dataset.train_images_NCHW, dataset.train_labels_N
        self.num_samples = len(self._labels)
        self.steps_per_epoch = order.steps_per_epoch(self.num_samples, training.batch)
        self.num_steps = self.steps_per_epoch * training.epochs
        torch.manual_seed(training.seed)
        self.network = registry.build(
            job.network.name,
            job.network.options,
            input_shape=dataset.card.shape,
            num_classes=dataset.card.num_classes,
            device=str(place.device),
        )
        if initial_weights is not None:
            load_weights(self.network, initial_weights)
        if training.channels_last:
            self.network.to(memory_format=torch.channels_last)
        self.network.train()
        if training.activation_checkpointing == "blocks":
            checkpoint_blocks(self.network)
        self.model = distributed.parallel(self.network, place)
        self.optimizer = _optimizer(self.network, training)
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=training.precision == "fp16")
        self.loss = torch.zeros((), device=place.device)
        self._index = 0
        self._share = 1.0
        self._images_NCHW = self._targets_N = torch.empty(0)

    # -- the parts, in order ---------------------------------------------------------------------------

    def input(self, index: int) -> None:
        """Gather this rank's samples of step `index`, counted from 0, on the CPU."""
        self._index = index
        training, place = self.training, self.place
        samples = order.step_samples(training.seed, self.num_samples, training.batch, index)
        mine = torch.from_numpy(order.rank_share(samples, place.rank, place.world_size))
        self._share = len(mine) * place.world_size / training.batch
        self._images_NCHW, self._targets_N = self._images[mine], self._labels[mine]
        if place.device.type == "cuda":
            self._images_NCHW, self._targets_N = self._images_NCHW.pin_memory(), self._targets_N.pin_memory()

    def transfer(self) -> None:
        """Copy them to the device; on the CPU, nothing but a change of layout where the job asks for it."""
        layout = torch.channels_last if self.training.channels_last else torch.preserve_format
        self._images_NCHW = self._images_NCHW.to(self.device, non_blocking=True, memory_format=layout)
        self._targets_N = self._targets_N.to(self.device, non_blocking=True)

    def forward(self) -> None:
        """Network and loss. `loss` is this rank's mean."""
        with self.arithmetic():
            self.loss = self._loss_of(self.model(self._images_NCHW))

    def backward(self) -> None:
        """Gradients; with several ranks also their averaging."""
        scaled = self.loss if self._share == 1.0 else self.loss * self._share
        self.scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """One step of the optimizer at the schedule's rate."""
        rate = learning_rate(self.training, self._index, self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.drop_gradients()

    # -- for others ------------------------------------------------------------------------------------

    def run(self, index: int) -> None:
        """All parts of step `index`."""
        self.input(index)
        self.transfer()
        self.forward()
        self.backward()
        self.update()

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def without_exchange(self) -> AbstractContextManager[None] | None:
        """A context in which ranks do not average gradients; None if there is one rank."""
        if not isinstance(self.model, DistributedDataParallel):
            return None
        return self.model.no_sync()

    @property
    def rank_samples(self) -> int:
        """Samples of this rank in the last step."""
        return len(self._targets_N)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Autocast where the precision asks for it."""
        dtype = AUTOCAST.get(self.training.precision)
        return torch.autocast(self.device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext()

    def _loss_of(self, outputs: Any) -> torch.Tensor:
        """Cross-entropy; networks with auxiliary classifiers return them beside their main output."""
        main, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = self._cross_entropy(main)
        for logits_NK in auxiliary:
            loss = loss + AUXILIARY_WEIGHT * self._cross_entropy(logits_NK)
        return loss

    def _cross_entropy(self, logits_NK: torch.Tensor) -> torch.Tensor:
        smoothing = self.training.label_smoothing
        return functional.cross_entropy(logits_NK.float(), self._targets_N, label_smoothing=smoothing)


def checkpoint_blocks(network: nn.Module) -> None:
    """Have every block keep only its input, and run again before its backward pass. Raises InputError if it has none."""
    modules = dict(network.named_modules())
    paths = blocks_to_checkpoint({path: type(module).__name__ for path, module in modules.items()})
    for path in set(paths.values()):
        module = modules[path]
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


def load_weights(network: nn.Module, path: Path) -> None:
    """Parameters and buffers from a safetensors file. Raises FileFormatError if they are not this network's."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file: {error}") from None
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise FileFormatError(f"the weights in {path} are not those of this network: {first}") from None


def _optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Over all parameters alike; none is exempt from weight decay."""
    params = [p for p in network.parameters() if p.requires_grad]
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adamw":
        return torch.optim.AdamW(params, lr=rate, betas=(training.momentum, 0.999), weight_decay=decay)
    return torch.optim.SGD(params, lr=rate, momentum=training.momentum, nesterov=training.nesterov, weight_decay=decay)
