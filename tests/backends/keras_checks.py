"""Compare TensorFlow with results that PyTorch wrote: `python keras_checks.py FOLDER`, in a process without torch.

test_tensorflow.py runs it. For every `port-*.npz` (images and the torch network's output) and `update-*.npz` (an
optimizer's steps) it prints the largest difference as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.backends.tensorflow import layers, update
from chronograd.backends.tensorflow.ports import PORTS
from chronograd.job import Training


def port(given: Any) -> dict[str, float]:
    import tensorflow as tf

    weights = {name.removeprefix("weight "): given[name] for name in given.files if name.startswith("weight ")}
    images = given["images_NCHW"]
    network = layers.build(PORTS[str(given["network"])], images.shape[1:], weights)
    images_NHWC = tf.constant(images.transpose(0, 2, 3, 1))
    found = {"evaluated": distance(network.run(images_NHWC, training=False)[0], given["evaluated"])}
    kept = network.weights()
    assert kept.keys() == weights.keys()
    found["kept"] = max(distance(kept[name], weights[name]) for name in weights)
    statistics = network.run(images_NHWC, training=True)[1]
    for tensor, batch in zip(network.running, statistics, strict=True):
        then = given[f"after {tensor.name}"]
        now = weights[tensor.name] + layers.BATCH_NORM_SHARE * (batch.numpy() - weights[tensor.name])
        found["running"] = max(found.get("running", 0.0), distance(now, then) / max(1.0, float(np.abs(then).max())))
    return found


def rule(given: Any) -> dict[str, float]:
    import tensorflow as tf

    training = Training(**json.loads(str(given["training"])))
    variable = tf.Variable(given["start"])
    slots = [tf.Variable(tf.zeros_like(variable)) for _ in update.slot_names(training)]
    worst = 0.0
    for step, gradient in enumerate(given["gradients"]):
        numbers = tf.constant(update.numbers_of_step(training, training.learning_rate, step), tf.float32)
        update.update(training, variable, tf.constant(gradient), slots, numbers)
        worst = max(worst, distance(variable, given["after"][step]))
    return {"worst": worst}


def distance(a: Any, b: Any) -> float:
    return float(np.abs(np.asarray(a) - b).max())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {path.stem: port(np.load(path)) for path in sorted(folder.glob("port-*.npz"))}
    found |= {path.stem: rule(np.load(path)) for path in sorted(folder.glob("update-*.npz"))}
    assert "torch" not in sys.modules
    (folder / "found.json").write_text(json.dumps(found))
