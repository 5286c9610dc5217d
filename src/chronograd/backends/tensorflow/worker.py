"""The program of one TensorFlow process: `python -m chronograd.backends.tensorflow.worker RUN_DIR train|measure`.

Its options and results are those of chronograd.train.worker. Never imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from chronograd.backends.tensorflow import prepared as prepared_data
from chronograd.backends.tensorflow.loop import train
from chronograd.backends.tensorflow.prepared import Prepared
from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.backends.tensorflow.strategies import Ranks, join
from chronograd.backends.tensorflow.timing import METHOD, time_steps
from chronograd.errors import JobError
from chronograd.job import Job
from chronograd.measure import process, result
from chronograd.measure.memory import PeakResident
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir, StepWriter
from chronograd.rundir.steps import Attempt, MemoryLine
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_command import Measuring, run_rank
from chronograd.train.rank_context import rank_numbers
from chronograd.train.result import measured_record, training_record
from chronograd.train.watchdog import WATCHDOG
from chronograd.words import how_many


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process. Return its exit status."""
    return run_rank(argv, _work, _work)


def _work(run: RunDir, job: Job, asked: Measuring | None = None) -> None:
    """Train, or measure as asked."""
    if asked is not None and asked.with_epochs:
        raise JobError(f"backend {job.backend} times steps, not epochs without input", "leave out --epochs")
    rank, world_size, _ = rank_numbers()
    with run.step_writer(rank) as lines:  # it also writes the error of a rank that fails
        lines.write(Attempt())
        with WATCHDOG.watch(run, rank, world_size, job.cluster.timeout_s, lines):
            _joined(run, job, lines, asked)


def _joined(run: RunDir, job: Job, lines: StepWriter, asked: Measuring | None) -> None:
    prepared = prepared_data.read(run)
    ranks = join(job)
    resident = PeakResident()
    lines.write(process.start(ranks.device, ranks.device_name, ranks.threads))
    step = TensorFlowStep(job, prepared, ranks)
    progress = Progress()
    if asked is None:
        progress = train(step, prepared, run, lines)
    else:
        time_steps(step, asked.timing, lines.write)
    lines.write(process.end(progress.step))
    _write_memory(lines, ranks, progress.step, resident)
    lines.sync()
    ranks.wait()
    if ranks.is_rank_zero:
        record = _record(run, job, prepared, step, progress, asked)
        prepared_data.remove(run)
        run.save_record(record)


def _record(
    run: RunDir, job: Job, prepared: Prepared, step: TensorFlowStep, progress: Progress, asked: Measuring | None
) -> Record:
    import keras
    import tensorflow as tf

    ranks = step.ranks
    if asked is None:
        record = training_record(run, job, prepared.card, progress.stopped)
        count = sum(tensor.value().size for tensor in step.network.trained)
        record.put("trained_params", Quantity(value=count, unit="count", source="trained parameters"))
        record.notes += prepared.notes
    else:
        method = result.Method("host clock, from gathering the batch to reading the loss", METHOD)
        record = measured_record(run, job, how_many(ranks.num_replicas, "replicas"), method, asked)
    record.versions |= {"tensorflow": tf.__version__, "keras": keras.__version__}
    record.provenance.all_reduce, record.provenance.processes = ranks.all_reduce, ranks.world_size
    return record


def _write_memory(lines: StepWriter, ranks: Ranks, step: int, resident: PeakResident) -> None:
    import tensorflow as tf

    if ranks.device == "gpu":
        peak, source = int(tf.config.experimental.get_memory_info("GPU:0")["peak"]), "TensorFlow's allocator, first GPU"
    else:
        peak, source = resident.peak_bytes(), resident.source
    lines.write(MemoryLine(step=step, memory_peak_bytes=peak, source=source))


if __name__ == "__main__":
    sys.exit(main())
