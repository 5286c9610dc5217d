"""One training step of a TensorFlow rank, over all replicas of its process.

A step is one graph: forward, backward, all-reduce and update. Smaller graphs, with fewer parts, exist for timing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chronograd.backends.tensorflow import layers
from chronograd.backends.tensorflow.ports import PORTS
from chronograd.backends.tensorflow.prepared import Prepared
from chronograd.backends.tensorflow.strategies import Ranks
from chronograd.backends.tensorflow.update import numbers_of_step, slot_names, update
from chronograd.job import Job
from chronograd.train.order import CHUNK, SampleOrder, rank_slice
from chronograd.train.schedule import learning_rate
from chronograd.train.watchdog import WATCHDOG

Array = np.ndarray[Any, Any]


class TensorFlowStep:
    """Network, optimizer and data of one process, and its steps.

    A replica computes the gradient of the sum of its losses divided by the global batch. The sum over replicas is therefore the
    mean over the batch even if the shares are unequal. Running statistics of batch norm are the mean over replicas.

    Attributes:
        network: the port; `slots`: the optimizer's state, by the names of parameters and slots.
        loss: mean over the samples of this process in the last step, before its update.
    """

    def __init__(self, job: Job, prepared: Prepared, ranks: Ranks) -> None:
        import tensorflow

        self._tf: Any = tensorflow
        self.training, self.ranks = job.training, ranks
        self._data, self._strategy = prepared, ranks.strategy
        labels = prepared.train_labels
        classes_N = labels if labels.ndim == 1 else labels.argmax(1)
        self.order = SampleOrder(job.training.seed, len(labels), job.training.batch, classes_N, job.data.resampling)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.num_steps = self.steps_per_epoch * job.training.epochs
        with self._strategy.scope():
            self.network = layers.build(PORTS[job.network.name], prepared.card.shape, prepared.weights)
            self.slots = {
                f"{tensor.name}.{slot}": self._tf.Variable(self._tf.zeros_like(tensor.variable), trainable=False)
                for tensor in self.network.trained
                for slot in slot_names(job.training)
            }
        self._scale_C = self._tf.constant(prepared.scale_C, self._tf.float32)
        self._shift_C = self._tf.constant(prepared.shift_C, self._tf.float32)
        parts = [rank_slice(job.training.batch, r, ranks.num_replicas) for r in range(ranks.num_replicas)]
        self._parts = parts[ranks.first_replica :][: self.num_local_replicas]
        self.rank_samples: int = sum(part.stop - part.start for part in self._parts)
        self.loss = 0.0
        self._whole = self._tf.function(self._train, autograph=False)
        self._apart = self._tf.function(self._gradients, autograph=False)
        self._forward = self._tf.function(self._forward_all, autograph=False)
        self._update = self._tf.function(self._update_by_nothing, autograph=False)
        self._evaluate = self._tf.function(self._evaluate_chunk, autograph=False, reduce_retracing=True)

    @property
    def num_local_replicas(self) -> int:
        return self.ranks.num_replicas // self.ranks.world_size

    # -- what is called ----------------------------------------------------------------------------------

    def gather(self, index: int) -> list[tuple[Array, Array]]:
        """Return images and labels of step `index`, counted from 0, for each replica of this process."""
        samples = self.order.samples(index)
        mine = [samples[part] for part in self._parts]
        return [(self._data.train[chosen], self._data.train_labels[chosen]) for chosen in mine]

    def transfer(self, arrays: list[tuple[Array, Array]]) -> tuple[Any, Any]:
        """Return tensors, each on the device of its replica."""
        images, targets = ([pair[i] for pair in arrays] for i in (0, 1))
        return self._distributed(images), self._distributed(targets)

    def train(self, batch: tuple[Any, Any], index: int) -> None:
        """Run forward, backward, all-reduce and update."""
        self.loss = self._mean(self._whole(*batch, self._numbers(index)))
        self.network.counted = {name: np.asarray(n + 1) for name, n in self.network.counted.items()}

    def run(self, index: int) -> None:
        """Run all of step `index`, counted from 0."""
        WATCHDOG.at("input", index + 1)
        batch = self.transfer(self.gather(index))
        WATCHDOG.at("step", index + 1)
        self.train(batch, index)

    def no_sync(self, batch: tuple[Any, Any]) -> None:
        """Run forward and backward; replicas neither sum nor use their gradients."""
        self._mean(self._apart(*batch)[0])

    def forward(self, batch: tuple[Any, Any]) -> None:
        """Run forward and loss alone."""
        self._mean(self._forward(*batch))

    def update_by_nothing(self, index: int) -> None:
        """Run the update alone, with zero gradients. For timing only, because it changes the optimizer's state."""
        self._update(self._numbers(index)).numpy()

    def evaluate(self) -> tuple[float, float]:
        """Return mean cross-entropy, without label smoothing, and accuracy on the test split, equal on every rank.

        Chunks go to the processes in turn; one replica of each computes.
        """
        labels_N, loss_sum, correct = self._data.test_labels_N, 0.0, 0.0
        for number, start in enumerate(range(0, len(labels_N), CHUNK)):
            if number % self.ranks.world_size == self.ranks.rank:
                chunk = slice(start, start + CHUNK)
                sums = self._evaluate(self._tf.constant(self._data.test[chunk]), self._tf.constant(labels_N[chunk]))
                loss_sum, correct = loss_sum + float(sums[0]), correct + float(sums[1])
        loss_sum, correct = self.ranks.sum([loss_sum, correct])
        return loss_sum / len(labels_N), correct / len(labels_N)

    # -- graphs ------------------------------------------------------------------------------------------

    def _train(self, images: Any, targets: Any, numbers: Any) -> Any:
        losses, gradients, statistics = self._strategy.run(self._replica, args=(images, targets))
        variables = [t.variable for t in self.network.trained]
        running = [t.variable for t in self.network.running]
        self._apply(self._summed(gradients, variables), self._summed(statistics, running), numbers)
        return losses

    def _gradients(self, images: Any, targets: Any) -> Any:
        return self._strategy.run(self._replica, args=(images, targets))

    def _forward_all(self, images: Any, targets: Any) -> Any:
        return self._strategy.run(lambda i, t: self._loss(i, t)[0], args=(images, targets))

    def _update_by_nothing(self, numbers: Any) -> Any:
        self._apply([self._tf.zeros_like(t.variable) for t in self.network.trained], [], numbers)
        return self._tf.zeros(())

    def _replica(self, images: Any, targets: Any) -> tuple[Any, list[Any], list[Any]]:
        """Return for one replica: the sum of its losses, its part of the gradient, and of the statistics of the batch."""
        with self._tf.GradientTape() as tape:
            loss, statistics = self._loss(images, targets)
            part = loss / self.training.batch
        gradients = tape.gradient(part, [t.variable for t in self.network.trained])
        return loss, gradients, [s / self.ranks.num_replicas for s in statistics]

    def _loss(self, images: Any, targets: Any) -> tuple[Any, list[Any]]:
        logits, statistics = self.network.run(self._seen(images), training=True)
        return self._tf.reduce_sum(self._cross_entropy(logits, targets, self.training.label_smoothing)), statistics

    def _summed(self, values: list[Any], variables: list[Any]) -> list[Any]:
        """Sum over all replicas, with the strategy's all-reduce."""
        if self.ranks.num_replicas == 1 or not values:
            return values
        return list(
            self._strategy.extended.batch_reduce_to(
                self._tf.distribute.ReduceOp.SUM, list(zip(values, variables, strict=True))
            )
        )

    def _apply(self, gradients: list[Any], statistics: list[Any], numbers: Any) -> None:
        def one(variable: Any, gradient: Any, slots: Any, numbers: Any) -> None:
            update(self.training, variable, gradient, slots, numbers)

        def average(variable: Any, batch: Any) -> None:
            variable.assign(variable + layers.BATCH_NORM_SHARE * (batch - variable))

        update_on_all = self._strategy.extended.update
        for tensor, gradient in zip(self.network.trained, gradients, strict=True):
            slots = [self.slots[f"{tensor.name}.{slot}"] for slot in slot_names(self.training)]
            update_on_all(tensor.variable, one, args=(gradient, slots, numbers), group=True)
        for tensor, batch in zip(self.network.running, statistics, strict=False):
            update_on_all(tensor.variable, average, args=(batch,), group=True)

    def _evaluate_chunk(self, images: Any, labels: Any) -> tuple[Any, Any]:
        logits, _ = self.network.run(self._seen(images), training=False)
        is_right = self._tf.equal(self._tf.argmax(logits, 1), labels)
        loss = self._tf.reduce_sum(self._cross_entropy(logits, labels, smoothing=0.0))
        return loss, self._tf.reduce_sum(self._tf.cast(is_right, self._tf.float32))

    def _seen(self, images: Any) -> Any:
        return self._tf.cast(images, self._tf.float32) * self._scale_C - self._shift_C

    def _cross_entropy(self, logits: Any, targets: Any, smoothing: float) -> Any:
        """Return the cross-entropy for class numbers or probabilities."""
        num_classes = logits.shape[-1]
        if targets.shape.rank == 1:
            targets = self._tf.one_hot(targets, num_classes)
        targets = targets * (1 - smoothing) + smoothing / num_classes if smoothing else targets
        return self._tf.nn.softmax_cross_entropy_with_logits(targets, logits)

    # -- small things ------------------------------------------------------------------------------------

    def _numbers(self, index: int) -> Any:
        rate = learning_rate(self.training, index, self.num_steps)
        return self._tf.constant(numbers_of_step(self.training, rate, index), self._tf.float32)

    def _distributed(self, arrays: list[Array]) -> Any:
        if len(arrays) == 1:
            return self._tf.constant(arrays[0])
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: self._tf.constant(arrays[context.replica_id_in_sync_group])
        )

    def _mean(self, losses: Any) -> float:
        """Return the mean over this process's samples from sums per replica; reading it waits for the step."""
        sums = self._strategy.experimental_local_results(losses)
        return float(sum(float(s) for s in sums)) / self.rank_samples
