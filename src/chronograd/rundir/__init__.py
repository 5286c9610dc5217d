"""The run directory: whole files (directory), steps and events (steps), and the runs that a name stands for (listing)."""

from chronograd.rundir.directory import DEFAULT_PARENT, EPISODE, RunDir, is_run_dir, new_path, run_named
from chronograd.rundir.listing import list_runs
from chronograd.rundir.steps import Line, StepFollower, StepLine, StepLog, StepWriter, read_steps

__all__ = [
    "DEFAULT_PARENT",
    "EPISODE",
    "Line",
    "RunDir",
    "StepFollower",
    "StepLine",
    "StepLog",
    "StepWriter",
    "is_run_dir",
    "list_runs",
    "new_path",
    "read_steps",
    "run_named",
]
