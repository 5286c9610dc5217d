"""Strong and weak scaling with tf.distribute: throughput, time and cost."""
