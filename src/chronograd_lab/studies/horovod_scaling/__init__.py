"""Horovod: training time, throughput and efficiency from 1 to 16 ranks."""
