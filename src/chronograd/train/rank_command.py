"""The command line of a rank, for every framework: `python -m WORKER RUN_DIR train|measure`. Never imports torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chronograd.errors import ChronogradError, DiskFullError
from chronograd.files import disk_full
from chronograd.job import Job
from chronograd.measure.result import Timing
from chronograd.rundir import RunDir

# Set by a launcher that holds the other end of the rank's standard input open while it lives.
PARENT_VARIABLE = "CHRONOGRAD_PARENT_PIPE"
# Exit status of a rank whose disk is full. It may be unable to write an error message anywhere.
DISK_FULL_STATUS = 74


@dataclass(frozen=True)
class Measuring:
    """The measurement: steps, and optionally epochs; `flops_per_step`, of one rank, gives the achieved rate."""

    timing: Timing
    flops_per_step: float | None
    with_epochs: bool


def run_rank(
    argv: Sequence[str] | None,
    train: Callable[[RunDir, Job], None],
    measure: Callable[[RunDir, Job, Measuring], None] | None = None,
    at_end: Callable[[], None] = lambda: None,
) -> int:
    """Run one rank. Return its exit status. Errors of the user's input print one message, no traceback.

    `at_end` is called if the parent process is gone; see `exit_with_parent`.
    """
    arguments = _parser(["train", "measure"] if measure is not None else ["train"]).parse_args(argv)
    exit_with_parent(at_end)
    try:
        run = RunDir.open(arguments.run)
        job = run.job()
        if measure is None or arguments.verb == "train":
            train(run, job)
        else:
            timing = Timing(arguments.warmup, arguments.steps, arguments.seconds)
            measure(run, job, Measuring(timing, arguments.flops_per_step, arguments.epochs))
    except ChronogradError as error:
        with contextlib.suppress(OSError):  # printing may hit the same full disk
            print(f"Error: {error}", file=sys.stderr, flush=True)
        return DISK_FULL_STATUS if isinstance(error, DiskFullError) else error.exit_status
    except OSError as error:
        if disk_full(Path(arguments.run), error) is None:
            raise
        return DISK_FULL_STATUS
    except KeyboardInterrupt:
        return 130
    return 0


def exit_with_parent(at_end: Callable[[], None] = lambda: None) -> None:
    """End this process when its parent ends, even if that is killed, if the parent asked for it: nobody would watch.

    `at_end` is called before this process ends in that way.
    """

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        at_end()
        os._exit(1)

    if os.environ.get(PARENT_VARIABLE):
        threading.Thread(target=end_with_parent, daemon=True).start()


def _parser(verbs: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run one rank of a job.")
    parser.add_argument("run", help="run directory with a job.yaml")
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--warmup", type=int, default=Timing.warmup, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=Timing.num_steps, help="steps to time, at most")
    parser.add_argument("--seconds", type=float, default=Timing.seconds, help="seconds to time, at most")
    parser.add_argument("--flops-per-step", type=float, help="matrix FLOPs of one rank's step")
    parser.add_argument("--epochs", action="store_true", help="then time a second epoch, with and without its input")
    return parser
