"""Runs on SLURM: submitting, checking and waiting. All state is in a run directory on a file system that all nodes share.

    job.sbatch       the script, as it was submitted; an edited one is submitted again only if the user trusts it
    slurm.json       the job id from SLURM, and the options of the submission
    slurm.exit       the id and exit status of a script that ran to its end
    output.slurm.txt the output of the script
    usage.RANK.jsonl seconds that each attempt of a rank took: real, user, system
    queue.jsonl      seconds that each attempt waited in the queue

A finished run has a record, so SLURM's accounting is not needed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chronograd import files, trust
from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.data import catalogue, datasets, layouts
from chronograd.errors import FileFormatError, InputError, RunError
from chronograd.files import write_aside, write_json
from chronograd.job import Job, changed
from chronograd.launch.jobs import OnLine, OnPoll, check_anywhere, check_has_files, new_run
from chronograd.launch.processes import tail
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.launch.slurm.script import EXIT_FILE, TIMED_OUT, Options, for_nodes, placed, render
from chronograd.models import names
from chronograd.rundir import DEFAULT_PARENT, RunDir, StepFollower
from chronograd.train.checkpoint_folder import list_checkpoints

PathLike = str | os.PathLike[str]
SCRIPT, NOTE = "job.sbatch", "slurm.json"
# After this time without an answer we give up on the controller; a busy one recovers sooner.
PATIENCE_S = 300.0
# Files that a node wrote may appear late on a network file system.
SETTLE_S = 10.0
# Seconds between looks.
MIN_POLL_S, MAX_POLL_S = 1.0, 30.0
GOING_ON = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "COMPLETING",
            "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING", "REQUEUE_FED", "RESV_DEL_HOLD"}  # fmt: skip
KILLED = 128 + 9


@dataclass(frozen=True)
class Status:
    """The status of a run.

    Attributes:
        state: SLURM's word, such as RUNNING; COMPLETED only with a record, LOST if no source knows more.
        reason: SLURM's, such as Resources or a node's name; or how the script ended.
        source: squeue, sacct or the run directory.
        attempts, step: starts of rank 0, and its newest step.
    """

    job_id: str
    state: str
    reason: str
    source: str
    attempts: int
    step: int

    @property
    def is_over(self) -> bool:
        return self.state not in GOING_ON


def create(job: Job, options: Options, out: PathLike | None = None, parent: PathLike = DEFAULT_PARENT) -> RunDir:
    """Create the run directory of a job that SLURM can start, without starting it. Raises InputError before writing."""
    job = for_nodes(jobs.scaled(job), options)
    check(job)
    render(job, Path(out or parent), options)
    datasets.fetch(job.data)
    run = new_run(job, out, parent, None)
    registry.load(job.backend).prepare(job, run)
    return run


def check(job: Job) -> None:
    """Refuse a job that no node could run. Does not check this machine for devices, because the nodes have them."""
    check_has_files(job)
    placed(job, Path())
    check_anywhere(job)


def check_for_dry_run(job: Job) -> str | None:
    """Check as `check` does, but accept a data folder that is not on this machine. Returns that assumption as text.

    ImageNet's classes and size are known without its folder. With any other folder the network is not checked.
    """
    layout, _, folder = job.data.name.partition(":")
    if layout not in ("folder", "imagenet") or not folder or layouts.has_folder(folder):
        check(job)
        return None
    placed(job, Path())
    if layout in catalogue.sets():
        check_anywhere(changed(job, [f"data.name={layout}"]))
    return f"Assumed: the compute nodes have the data folder {folder}. It is not on this machine, so nobody checked it."


def submit(run: RunDir, options: Options | None = None) -> str:
    """Submit a run to SLURM, for the first time or to continue it. Returns the id of its job.

    Args:
        options: new options; the run keeps the others from its last submission.

    Raises: RunError if sbatch is missing or refuses the script, or SLURM still has the run; InputError if the run directory
    would make SLURM run code that the user did not name.
    """
    if run.is_finished:
        raise RunError(f"{run.path} is finished", "`chronograd launch collect` shows its record")
    before = Options()
    if is_submitted(run):
        if not (now := state(run)).is_over:
            raise RunError(f"{run.path} is {now.state} as job {now.job_id}", "wait for it, or scancel that job")
        before = submission(run).options
    names.check_code(run.job())
    options = _write_script(run, before, options or Options())
    (run.path / EXIT_FILE).unlink(missing_ok=True)
    attempts = run.attempts()
    job_id = slurm_commands.sbatch(run.path / SCRIPT)
    try:
        note(run, job_id, options, attempts)
    except (RunError, OSError) as error:
        raise _unnoted(job_id, error) from None
    return job_id


def _write_script(run: RunDir, before: Options, given: Options) -> Options:
    """Write a new script for a run, unless the user trusts the existing one. Returns the options in it.

    The run directory may come from anyone. If its options can make SLURM run a program, the user must give them again. A script
    that differs from the one for its job and options is neither submitted nor overwritten. Raises InputError.
    """
    script = run.path / SCRIPT
    again = f"`chronograd launch resume {shlex.quote(str(run.path))}"
    if script.exists() and trust.is_named(str(script)):
        if given != Options():
            raise InputError(
                f"{script} is submitted as it is, so options of SLURM would be ignored",
                "write them into the script, or leave out the options or --trust",
            )
        return before
    words = [f"--python={before.python}"] if before.python and not given.python else []
    words += [f"--sbatch={text}" for text in before.extra if not given.extra]
    if words:
        raise InputError(
            f"{run.path / NOTE} asks for {' '.join(words)}, which can run code and which you did not name",
            f"if you trust it, write {again} {shlex.join(words)}`",
        )
    options = replace(before, **{name: value for name, value in vars(given).items() if value})
    text = render(run.job(), run.path, options)
    if script.exists() and _text(script) not in (text, render(run.job(), run.path, before)):
        raise InputError(
            f"{script} is not the script that Chronograd writes for this job, so it may run code that you did not name",
            f"read it; then submit it as it is with {again} --trust {shlex.quote(str(script))}`, or remove it to get a new one",
        )
    write_aside(script, text)
    return options


def _text(path: Path) -> str:
    """Return the text of a small file, or nothing if it cannot be read."""
    try:
        return files.read_bytes(path).decode()
    except (OSError, ValueError):
        return ""


def _unnoted(job_id: str, error: RunError | OSError) -> RunError:
    """Cancel a job whose note could not be written: it would be lost, and a second one would train the same run."""
    try:
        slurm_commands.scancel(job_id)
        then = f"job {job_id} was submitted, could not be recorded, and was cancelled"
        hint = "submit it again once the run directory can be written"
    except RunError as refused:
        then = f"job {job_id} was submitted, but could not be recorded or cancelled ({refused.message})"
        hint = f"scancel {job_id}, before the run is submitted again"
    kind = type(error) if isinstance(error, RunError) else RunError
    why = error.message if isinstance(error, RunError) else str(error)
    also = f"{error.hint}; " if isinstance(error, RunError) and error.hint else ""
    return kind(f"{why}; {then}", also + hint)


def launch(
    job: Job,
    options: Options = Options(),  # noqa: B008
    *,
    out: PathLike | None = None,
    parent: PathLike = DEFAULT_PARENT,
) -> RunDir:
    """Create the run directory of a job and submit it. A job that SLURM refuses leaves no directory."""
    run = create(job, options, out, parent)
    try:
        submit(run, options)
    except BaseException:
        shutil.rmtree(run.path, ignore_errors=True)
        raise
    return run


# -- looking -------------------------------------------------------------------------------------------


def state(run: RunDir) -> Status:
    """Return the status of a run: from its record, else squeue, else sacct if accounting is available, else its files.

    Raises RunError if it was not submitted, or the controller does not answer.
    """
    job_id = submission(run).job_id
    log = run.read_steps(0)
    progress = (log.attempts, log.steps[-1].step if log.steps else 0)
    if run.is_finished:
        return Status(job_id, "COMPLETED", "", "run directory", *progress)
    for source, ask in (("squeue", slurm_commands.squeue), ("sacct", slurm_commands.sacct)):
        found = ask(job_id)
        if found is None:
            continue
        if found[0] in ("COMPLETED", "FAILED"):
            found = ("FAILED", found[1])  # without a record; the script's exit status is more specific
            break
        return Status(job_id, *found, source, *progress)
    else:
        found, source = ("LOST", ""), "run directory"
    ended = _ended(run)
    return Status(job_id, *(ended or found), "run directory" if ended else source, *progress)


def wait(run: RunDir, on_line: OnLine = lambda line: None, on_poll: OnPoll = lambda run: None) -> RunDir:
    """Wait until SLURM has finished a run, through requeues. Returns it with its record; raises as `collect`.

    Args:
        on_line: called for each line that rank 0 writes, as by `chronograd.launch.jobs.train`.
        on_poll: called with the run every second; an error there ends the wait, and the run goes on.
    """
    submission(run)  # raises at once if the run was not submitted
    follower = StepFollower(run.steps_path(0))
    start = answered = time.monotonic()
    over_since: float | None = None
    while True:
        for line in follower.new_lines():
            on_line(line)
        on_poll(run)
        status = None
        try:
            status = state(run)
            answered = time.monotonic()
        except RunError:
            if time.monotonic() - answered > PATIENCE_S:
                raise
        if status is not None and status.state == "PENDING" and status.reason in _NEVER:
            raise RunError(
                f"job {status.job_id} cannot start: {status.reason}",
                f"`sinfo` shows what there is; scancel {status.job_id}, then ask for less",
            )
        over_since = (over_since or time.monotonic()) if status is not None and status.is_over else None
        is_settled = (run.path / EXIT_FILE).exists()  # the last thing that a script writes
        if over_since is not None and (is_settled or time.monotonic() - over_since > SETTLE_S):
            for line in follower.new_lines():
                on_line(line)
            return collect(run)
        # Ask about long jobs rarely: a controller has many clients. The end of a script shows in its folder.
        pause_s = min(MAX_POLL_S, (time.monotonic() - start) / 20)
        looks = max(1, round(pause_s / MIN_POLL_S))
        for look in range(looks):
            time.sleep(MIN_POLL_S)
            if (run.path / EXIT_FILE).exists():
                break
            if look < looks - 1:
                on_poll(run)


def is_submitted(run: RunDir) -> bool:
    """Return whether SLURM has or had a job of this run."""
    return (run.path / NOTE).exists()


def withdraw(run: RunDir) -> None:
    """Cancel a run's job, and wait until its ranks have ended. Its script is removed unless edited: the run may get another job.

    A rank that has just finished may still write the run's record.
    """
    if not state(run).is_over:
        slurm_commands.scancel(submission(run).job_id)
    while not state(run).is_over:
        time.sleep(MIN_POLL_S)
    script = run.path / SCRIPT
    if _text(script) == render(run.job(), run.path, submission(run).options):
        script.unlink()


def collect(run: RunDir) -> RunDir:
    """Return the run with its record. Raises RunError with the reason if it has none."""
    if run.is_finished:
        return run
    status = state(run)
    if not status.is_over:
        raise RunError(
            f"{run.path} is {status.state} as job {status.job_id}"
            + (f" ({status.reason})" if status.reason else "")
            + f", at step {status.step}",
            "wait for it: `chronograd launch status` shows where it is",
        )
    what, hint = _WHY.get(status.state, (f"ended as {status.state}", "look at the output"))
    reason = f" ({status.reason})" if status.reason and status.reason != "None" else ""
    again = f"; then `chronograd launch resume {run.path}` goes on from step {_checkpointed(run)}"
    raise RunError(f"job {status.job_id} {what}{reason}; {_evidence(run)}", hint + again)


def usage(run: RunDir) -> list[dict[str, float]]:
    """Return the real, user and system seconds of each rank, summed over its attempts, in order of ranks."""
    names = re.compile(r"usage\.([0-9]{1,9})\.jsonl")
    ranks = {int(match[1]): path for path in run.path.iterdir() if (match := names.fullmatch(path.name))}
    return [_lines(path, ("real_s", "user_s", "system_s")) or {} for _, path in sorted(ranks.items())]


def queued_s(run: RunDir) -> float | None:
    """Return the seconds that all attempts of a run waited in the queue; None before the first."""
    found = _lines(run.path / "queue.jsonl", ("queued_s",))
    return None if found is None else found["queued_s"]


def _lines(path: Path, names: Sequence[str]) -> dict[str, float] | None:
    """Return the sums of the numbers in the lines of a file; None if it does not exist. Raises FileFormatError."""
    try:
        lines = [json.loads(line) for line in files.read_bytes(path).splitlines()]
        total = {name: sum(float(line[name]) for line in lines) for name in names}
        files.check_plain(total)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    return total


# SLURM accepts such jobs and lets them wait for ever, unless it is set up to refuse them (EnforcePartLimits).
_NEVER = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
_WHY = {
    "TIMEOUT": ("reached its time limit", "ask for more with --time, or set training.checkpoint_every lower"),
    "OUT_OF_MEMORY": ("ran out of memory", "ask for more with --sbatch --mem=…, or set training.batch lower"),
    "NODE_FAIL": ("lost a node", "leave the node out with --sbatch --exclude=NODE"),
    "BOOT_FAIL": ("did not get its nodes started", "leave them out with --sbatch --exclude=NODE"),
    "CANCELLED": ("was cancelled", "find out by whom"),
    "PREEMPTED": ("made way for another job", "choose another --partition"),
    "DEADLINE": ("missed its deadline", "ask for a later one"),
    "FAILED": ("failed", "mend what the rank says"),
    "LOST": ("is not known to SLURM any more and left no exit status", "ask who ended it"),
}


def _evidence(run: RunDir) -> str:
    """Return the errors and output that the ranks and the script left."""
    rank, error = run.first_error(submission(run).attempts) or (_first_to_end(run), "")
    paths = [run.output_path(rank), run.output_path("slurm")]
    said = next((p for p in paths if p.exists() and files.read_text(p, "replace").strip()), paths[-1])
    blamed = f"rank {rank} failed with {error}; " if error else ""
    return f"{blamed}the end of {said}:\n{tail(said)}"


def _first_to_end(run: RunDir) -> int:
    """Return the first rank that srun says ended with an error, rather than because others did; 0 if it names none."""
    path = run.output_path("slurm")
    said = files.read_text(path, "replace") if path.exists() else ""
    found = re.findall(r"^srun: error: .{1,200}: tasks? (\d+).{0,200}: Exited with exit code", said, re.MULTILINE)
    return int(found[-1]) if found else 0


def _ended(run: RunDir) -> tuple[str, str] | None:
    """Return how a script ended; None if it did not."""
    try:
        _, word = files.read_bytes(run.path / EXIT_FILE).decode().split()
        code = int(word)
    except (OSError, ValueError):
        return None
    if code == TIMED_OUT:
        return "TIMEOUT", "no checkpoint was written in the time"
    if code == KILLED:
        return "FAILED", "exit status 137: a rank was killed, often for want of memory"
    return "FAILED", f"exit status {code}" + ("" if code else ", yet no record")


def _checkpointed(run: RunDir) -> int:
    found = list_checkpoints(run.checkpoints)
    return int(found[-1].name.removeprefix("step-")) if found else 0


# -- files in the run directory ----------------------------------------------------------------------------


def note(run: RunDir, job_id: str, options: Options, attempts: Mapping[int, int]) -> None:
    """Write the note of a submission. `attempts` is how many times each rank had been started before."""
    before = {str(rank): count for rank, count in attempts.items()}
    data = {"job_id": job_id, "submitted": time.time(), "attempts": before, "options": asdict(options)}
    write_json(run.path / NOTE, data)


@dataclass(frozen=True)
class SlurmSubmission:
    """A submission to SLURM: the job id, earlier starts of each rank, and the options."""

    job_id: str
    attempts: dict[int, int]
    options: Options


def submission(run: RunDir) -> SlurmSubmission:
    """Read the note that `note` wrote. Raises RunError if the run was not submitted, FileFormatError for a damaged note."""
    path = run.path / NOTE
    try:
        data = files.read_json(path)
        attempts = {int(rank): int(count) for rank, count in data.get("attempts", {}).items()}
        return SlurmSubmission(str(data["job_id"]), attempts, _asked(data["options"]))
    except FileNotFoundError:
        raise RunError(f"{run.path} was not submitted to SLURM", "`chronograd launch slurm JOB` does so") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None


def _asked(data: dict[str, Any]) -> Options:
    options = Options(**{**data, "extra": tuple(data.get("extra", ()))})
    words = (*options.extra, *(value for name, value in data.items() if name not in ("extra", "cpus_per_task")))
    if not all(isinstance(w, str | None) for w in words) or not isinstance(options.cpus_per_task, int | None):
        raise ValueError(f"options are {data!r:.200}")
    return options
