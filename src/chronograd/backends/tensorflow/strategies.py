"""Devices, threads and the strategy of a TensorFlow rank."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from chronograd.backends.tensorflow import rendezvous
from chronograd.backends.tensorflow.checks import on_gpus
from chronograd.errors import InputError, RunError
from chronograd.job import Job
from chronograd.measure import environment
from chronograd.train.rank_context import rank_numbers, threads_per_rank
from chronograd.train.watchdog import GRADIENTS, WATCHDOG
from chronograd.words import how_many


@dataclass(frozen=True)
class Ranks:
    """The place of this process in the job, and its devices.

    Attributes:
        rank, world_size: of processes.
        first_replica: number of this process's first replica among those of all processes.
        strategy: TensorFlow's.
        device: `cpu` or `gpu`; `device_name`: the processor or the GPU.
        threads: CPU threads of one replica.
        all_reduce: the algorithm that sums gradients, in words.
    """

    rank: int
    world_size: int
    first_replica: int
    strategy: Any
    device: str
    device_name: str
    threads: int
    all_reduce: str

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    @property
    def num_replicas(self) -> int:
        """Return the number of replicas in all processes."""
        return int(self.strategy.num_replicas_in_sync)

    def sum(self, values: list[float]) -> list[float]:
        """Sum over processes, with the same result on each; it waits for all."""
        if self.world_size == 1:
            return values
        import tensorflow as tf

        with WATCHDOG.waiting("sum"):
            summed = self.strategy.experimental_local_results(self._sum(tf.constant(values, tf.float64)))[0]
            return [float(v) for v in summed.numpy()]

    @cached_property
    def _sum(self) -> Any:
        import tensorflow as tf

        def replica(tensor: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # The copy is on the replica's device; an argument of a graph has no device.
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(tensor))

        # A vector of any length, so that TensorFlow traces it once.
        any_length = [tf.TensorSpec([None], tf.float64)]
        return tf.function(lambda t: self.strategy.run(replica, args=(t,)), any_length, autograph=False)

    def broadcast_from_rank0(self, number: int) -> int:
        """Return rank 0's number on every rank."""
        return int(self.sum([float(number) if self.is_rank_zero else 0.0])[0])

    def wait(self) -> None:
        """Wait until every process is here."""
        self.sum([0.0])


def join(job: Job) -> Ranks:
    """Set up devices and a strategy; TensorFlow allows it once in a process.

    Reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Raises InputError if GPUs are missing, RunError if
    the ranks do not meet.
    """
    import tensorflow as tf

    rank, world_size, local_rank = rank_numbers()
    num_local = (
        job.cluster.count if job.backend == "tf_mirrored" else int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    )
    tf.config.experimental.enable_tensor_float_32_execution(job.training.precision == "tf32")
    threads = threads_per_rank(job.cluster, num_local)
    _set_threads(threads, replicas=job.cluster.count if job.backend == "tf_mirrored" else 1)
    is_gpu = on_gpus(job)
    gpus = _gpus(num_local) if is_gpu else []
    if job.backend == "tf_mirrored":
        strategy, said = _mirrored(job, len(gpus))
    else:
        tf.config.set_visible_devices(gpus[local_rank : local_rank + 1], "GPU")
        with WATCHDOG.waiting("rendezvous"):
            strategy, said = _multi_worker(job, rank, world_size)
        WATCHDOG.set_collectives({"step": GRADIENTS})
    name = environment.gpus()[0]["name"] if is_gpu else environment.processor_name()
    first = rank if job.backend == "tf_multiworker" else 0
    return Ranks(rank, world_size, first, strategy, "gpu" if is_gpu else "cpu", name, threads, said)


def _set_threads(threads: int, replicas: int) -> None:
    """Set the threads. Devices share one pool; with one thread an operator runs in the thread that starts it."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads if threads == 1 else threads * replicas)
    tf.config.threading.set_inter_op_parallelism_threads(max(replicas, 1))


def _gpus(needed: int) -> list[Any]:
    import tensorflow as tf

    gpus = list(tf.config.list_physical_devices("GPU"))
    if len(gpus) < needed:
        raise InputError(
            f"TensorFlow sees {how_many(len(gpus), 'GPUs')}, and the job needs {needed} on this machine",
            "install tensorflow[and-cuda], or write cluster.device=cpu",
        )
    for gpu in gpus[:needed]:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus[:needed]


def _mirrored(job: Job, num_gpus: int) -> tuple[Any, str]:
    import tensorflow as tf

    count = job.cluster.count
    if num_gpus:
        devices = [f"/gpu:{i}" for i in range(count)]
    else:
        tf.config.set_visible_devices([], "GPU")
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        devices = [f"/cpu:{i}" for i in range(count)]
    operations = {
        "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
        "nccl": tf.distribute.NcclAllReduce,
    }
    chosen = job.communication.all_reduce
    if chosen == "auto":  # TensorFlow's own choice, made here so that the record has it
        chosen = "nccl" if num_gpus else "reduction_to_one_device"
    return tf.distribute.MirroredStrategy(devices, operations[chosen]()), chosen


def _multi_worker(job: Job, rank: int, world_size: int) -> tuple[Any, str]:
    import tensorflow as tf

    chosen = job.communication.all_reduce
    names = tf.distribute.experimental.CommunicationImplementation
    implementations = {"auto": names.AUTO, "ring": names.RING, "nccl": names.NCCL}
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=job.communication.bucket_bytes or 0, implementation=implementations[chosen]
    )
    os.environ.pop("TF_CONFIG", None)
    if world_size > 1:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            raise RunError(
                "torchrun uses MASTER_PORT itself, and TensorFlow's ranks meet there", "use another launcher"
            )
        master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        cluster = {"worker": rendezvous.addresses(rank, world_size, master)}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    said = "auto: TensorFlow chooses for each tensor" if chosen == "auto" else chosen
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options), said
