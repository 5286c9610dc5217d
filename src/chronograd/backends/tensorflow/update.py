"""Update rules in TensorFlow with the formulas of torch.optim: Keras's own scale momentum by the rate and differ in the
last digits.

Every rule changes one variable and its slots on one replica. Slots have torch's names.
"""

from __future__ import annotations

from typing import Any

from chronograd.job import Training

# Defaults of torch.optim.AdamW and torch.optim.Adadelta that a job does not state.
ADAM_BETA2, ADAM_EPSILON = 0.999, 1e-8
ADADELTA_EPSILON = 1e-6


def slot_names(training: Training) -> tuple[str, ...]:
    """Return the names of the optimizer's state for each parameter."""
    if training.optimizer == "adamw":
        return "exp_avg", "exp_avg_sq"
    if training.optimizer == "adadelta":
        return "square_avg", "acc_delta"
    return ("momentum_buffer",) if training.momentum else ()


def numbers_of_step(training: Training, rate: float, step: int) -> tuple[float, float, float]:
    """Return the numbers of a rule for step `step`, counted from 0: the rate, and AdamW's two corrections of bias."""
    if training.optimizer != "adamw":
        return rate, 1.0, 1.0
    return rate, 1 - training.momentum ** (step + 1), 1 - ADAM_BETA2 ** (step + 1)


def update(training: Training, variable: Any, gradient: Any, slots: Any, numbers: Any) -> None:
    """Apply one step of the job's optimizer to one variable; `numbers` come from `numbers_of_step`, as a tensor."""
    import tensorflow as tf

    rate, correction1, correction2 = numbers[0], numbers[1], numbers[2]
    decay, beta = training.weight_decay, training.momentum
    if training.optimizer == "adamw":
        first, second = slots
        variable.assign(variable * (1 - rate * decay))
        first.assign(beta * first + (1 - beta) * gradient)
        second.assign(ADAM_BETA2 * second + (1 - ADAM_BETA2) * tf.square(gradient))
        scale = tf.sqrt(second) / tf.sqrt(correction2) + ADAM_EPSILON
        variable.assign_sub(rate / correction1 * first / scale)
        return
    if decay:
        gradient = gradient + decay * variable
    if training.optimizer == "adadelta":
        squares, deltas = slots
        squares.assign(beta * squares + (1 - beta) * tf.square(gradient))
        delta = tf.sqrt(deltas + ADADELTA_EPSILON) / tf.sqrt(squares + ADADELTA_EPSILON) * gradient
        deltas.assign(beta * deltas + (1 - beta) * tf.square(delta))
        variable.assign_sub(rate * delta)
        return
    if training.momentum:
        (velocity,) = slots
        velocity.assign(beta * velocity + gradient)
        gradient = gradient + beta * velocity if training.nesterov else velocity
    variable.assign_sub(rate * gradient)
