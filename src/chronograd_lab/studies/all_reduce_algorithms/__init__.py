"""The all-reduce choices of tf.distribute, predicted and measured."""
