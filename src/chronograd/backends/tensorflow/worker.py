"""What one TensorFlow process runs: `python -m chronograd.backends.tensorflow.worker RUN_DIR train|measure`.

The options and what it leaves behind are those of chronograd.train.worker. Never imports torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from chronograd.backends.tensorflow import prepared as prepared_data
from chronograd.backends.tensorflow.checkpoint import Progress
from chronograd.backends.tensorflow.loop import train
from chronograd.backends.tensorflow.prepared import Prepared
from chronograd.backends.tensorflow.step import TensorFlowStep
from chronograd.backends.tensorflow.strategies import Ranks, join
from chronograd.backends.tensorflow.timing import METHOD, Timing, time_steps
from chronograd.errors import ChronogradError, JobError
from chronograd.job import Job
from chronograd.measure import result
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir, StepWriter
from chronograd.train import leash
from chronograd.train.result import header, training_record


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process. Returns its exit status; errors of the user's input are one message, no traceback."""
    arguments = _parser().parse_args(argv)
    leash.hold_on()
    try:
        run = RunDir.open(arguments.run)
        job = run.job()
        if job.task != "classification":
            raise JobError(f"task {job.task} is not trained yet; classification is")
        timing = Timing(arguments.warmup, arguments.steps, arguments.seconds)
        with run.step_writer(
            int(os.environ.get("RANK", "0"))
        ) as lines:  # it also writes the error of a rank that fails
            prepared = prepared_data.read(run)
            ranks = join(job)
            start_bytes = _resident_bytes("VmRSS")
            step = _start(job, prepared, ranks, lines)
            progress = Progress()
            if arguments.verb == "train":
                progress = train(step, prepared, run, lines)
            else:
                time_steps(step, timing, lines.write)
            _write_memory(lines, ranks, progress.step, start_bytes)
        ranks.wait()
        if ranks.is_first:
            record = (
                _trained_record(run, job, prepared, step, progress)
                if arguments.verb == "train"
                else _measured_record(run, job, ranks, timing, arguments.flops_per_step)
            )
            prepared_data.remove(run)
            run.save_record(_with_tensorflow(record, ranks))
    except ChronogradError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    return 0


def _trained_record(run: RunDir, job: Job, prepared: Prepared, step: TensorFlowStep, progress: Progress) -> Record:
    record = training_record(run, job, prepared.card, progress.stopped)
    count = sum(tensor.value().size for tensor in step.network.trained)
    record.put("trained_params", Quantity(value=count, unit="count", source="parameters that the optimizer changes"))
    record.notes += prepared.notes
    return record


def _measured_record(run: RunDir, job: Job, ranks: Ranks, timing: Timing, flops_per_step: float | None) -> Record:
    method = result.Method("host clock, from gathering the batch to reading the loss", METHOD)
    replicas = "1 replica" if ranks.num_replicas == 1 else f"{ranks.num_replicas} replicas"
    record = header(run, job, f"steps of {job.network.name} on {job.data.name}, {replicas}")
    lines_of_ranks = result.lines_of_ranks(run)
    for name, quantity in result.step_quantities(lines_of_ranks, job.training.images_per_step, method).items():
        record.put(name, quantity)
    record.put("memory_peak_bytes", result.memory_quantity(run))
    record.put("achieved_flops_per_s", result.achieved_flops(record["step_time_s"], flops_per_step))
    record.provenance |= {"method": f"{timing.warmup} steps of warm-up outside the clock; {method.step_time}"}
    return record


def _start(job: Job, prepared: Prepared, ranks: Ranks, lines: StepWriter) -> TensorFlowStep:
    """The step of this process, and a line that says where it runs."""
    lines.write(event="start", step=0, device=ranks.device, device_name=ranks.device_name, threads=ranks.threads)
    return TensorFlowStep(job, prepared, ranks)


def _with_tensorflow(record: Record, ranks: Ranks) -> Record:
    import keras
    import tensorflow as tf

    record.versions |= {"tensorflow": tf.__version__, "keras": keras.__version__}
    record.provenance |= {"all_reduce": ranks.all_reduce, "processes": ranks.world_size}
    return record


def _write_memory(lines: StepWriter, ranks: Ranks, step: int, start_bytes: int) -> None:
    import tensorflow as tf

    if ranks.device == "gpu":
        peak, source = int(tf.config.experimental.get_memory_info("GPU:0")["peak"]), "TensorFlow's allocator, first GPU"
    else:
        peak = max(0, _resident_bytes("VmHWM") - start_bytes)
        source = "peak resident memory of the process's life less what was resident at the start"
    lines.write(event="memory", step=step, memory_peak_bytes=peak, source=source)


def _resident_bytes(field: str) -> int:
    """VmRSS, what is resident now, or VmHWM, its peak; where the system does not tell, what is resident now."""
    try:
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        import psutil

        return int(psutil.Process().memory_info().rss)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chronograd.backends.tensorflow.worker", description="Run one rank."
    )
    parser.add_argument("run", help="run directory with a job.yaml")
    parser.add_argument("verb", choices=("train", "measure"))
    parser.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=30, help="steps to time, at most")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to time, at most")
    parser.add_argument("--flops-per-step", type=float, help="matrix FLOPs of one rank's step")
    return parser


if __name__ == "__main__":
    sys.exit(main())
