"""A runner for the jobs of a study: each in its own directory, several at a time, none twice.

An interrupted study continues: finished runs stay, an unfinished one is resumed. On another machine, it continues from the files
of `chronograd_lab.common.finished`.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from chronograd.errors import RunError
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.record import Record
from chronograd.rundir import Line, RunDir, is_run_dir
from chronograd.words import how_many
from chronograd_lab.common import finished
from chronograd_lab.common.results import Results, Row, Settings

Say = Callable[[str], None]


class StudyRunner:
    """A folder for the runs of one study, and the number that run at a time.

    `truth` are files of real results, for a study that scores its predictions. `changes` are overrides of every job that it
    trains, such as training.precision=bf16 on a GPU. `threads` are those of each run; by default, runs share all cores.
    """

    def __init__(
        self, folder: Path, study: str, size: str, say: Say, parallel: int | None = None, truth: Sequence[Path] = (),
        changes: Sequence[str] = (), threads: int | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.study, self.size, self.truth = folder, study, size, tuple(truth)
        self.changes = list(changes)
        self.parallel = parallel or environment.cores()
        self.threads = threads or max(1, environment.cores() // self.parallel)
        self.say, self._lock, self._is_stopped = say, threading.Lock(), threading.Event()
        self._parents = threading.Lock()
        self._elsewhere: dict[Path, str] = {}  # the processor of each run that another machine trained

    def train(self, experiments: Mapping[str, Job]) -> dict[str, RunDir]:
        """Run jobs, by name, to their end. Return their run directories.

        A name such as `noise 25 %/seed-1` becomes that of a directory. Raises the first error; the other runs then end at once.
        """
        with ThreadPoolExecutor(self.parallel) as pool:
            started = {name: pool.submit(self._train, name, job) for name, job in experiments.items()}
            try:
                done, _ = wait(started.values(), return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:  # an error or an interrupt: the other runs end, too, and can be resumed
                self._is_stopped.set()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return {name: future.result() for name, future in started.items()}

    def _train(self, name: str, job: Job) -> RunDir:
        path = self.path(name)
        job = changed(job, [*self.changes, f"cluster.threads={self.threads}"])
        start = time.monotonic()
        stored = self._stored(path)
        is_stored = not is_run_dir(path) and stored.exists()
        run = finished.restore(stored, job, path) if is_stored else self._made(path, job)
        if processor := finished.processor_elsewhere(run):
            self._elsewhere[path] = processor
        was_finished = run.is_finished
        try:
            jobs.resume(run, job, on_line=self._watch)
        except RunError as error:
            raise RunError(f"experiment {name}: {error.message}", error.hint) from None
        self.store(run)
        if not was_finished:
            record = run.record()
            accuracy, returned = record["test_accuracy"].value, record["mean_return"].value
            shown = (
                f"{100 * accuracy:.2f} %" if accuracy is not None else "–" if returned is None else f"{returned:.4g}"
            )
            with self._lock:
                self.say(f"{name:<40} {shown:>9}  {time.monotonic() - start:6.1f} s")
        return run

    def _made(self, path: Path, job: Job) -> RunDir:
        """Return the run directory of a job, made if it does not exist.

        If the job starts from a run of this study that was restored without weights, that run is trained again.
        """
        if is_run_dir(path):
            return RunDir.open(path)
        start = Path(job.network.weights or "")
        with self._parents:  # several jobs may start from one run
            if start.is_relative_to(self._runs) and is_run_dir(start) and RunDir.open(start).is_finished:
                self._train_for_weights(RunDir.open(start), path.relative_to(self._runs))
        return jobs.create(job, out=path)

    def _train_for_weights(self, run: RunDir, reason: object) -> None:
        """Train a run again if it has no weights. `reason`: the run or the value that needs them."""
        if finished.has_weights(run):
            return
        job, path = run.job(), run.path
        self.say(f"{path.relative_to(self._runs)} is trained again: {reason} needs its weights")
        shutil.rmtree(path)
        self._elsewhere.pop(path, None)
        jobs.resume(jobs.create(job, out=path), job, on_line=self._watch)

    def derived(self, run: RunDir, name: str, compute: Callable[[], Any]) -> Any:
        """Return a value that needs the weights of a run, as plain data: computed once, and stored with the finished run.

        A run that was restored without weights and without the value is trained again.
        """
        if not finished.is_derived(run, name):
            self._train_for_weights(run, name)
        value = finished.derived(run, name, compute)
        self.store(run)
        return value

    def store(self, run: RunDir) -> None:
        """Write the file of a finished run, from which the study continues on another machine."""
        finished.store(run, self._stored(run.path))

    def _stored(self, path: Path) -> Path:
        return self.folder / "finished" / self.size / f"{path.relative_to(self._runs)}.json"

    def _watch(self, line: Line) -> None:
        """Receive every step of a run: an error here ends its processes."""
        if self._is_stopped.is_set():
            raise RunError("stopped", "the same command goes on from here")

    def step_alone_s(self, name: str, job: Job) -> float:
        """Return the median seconds of a step of the job while no other run of the study is active."""
        path = self.path(f"alone/{name}")
        run = RunDir.open(path) if is_run_dir(path) else None
        if run is None or not run.is_finished:
            if run is not None:
                shutil.rmtree(path)
            run = jobs.measure(changed(job, [*self.changes, f"cluster.threads={environment.cores()}"]), out=path)
        return run.record().value("step_time_s")

    def threads_alone(self, worlds: Sequence[int]) -> int:
        """Return the threads of a rank when nothing else runs and the largest of these worlds shares the cores."""
        return max(1, environment.cores() // max(worlds))

    def path(self, name: str) -> Path:
        """Return the run directory of an experiment, done or not."""
        return self._runs / re.sub(r"[^A-Za-z0-9./=-]+", "-", name).strip("-")

    @property
    def _runs(self) -> Path:
        return self.folder.resolve() / "runs"

    def results(self, settings: Settings, **found: Any) -> Results:
        """Return results with their header filled in."""
        own = environment.environment()
        kept = {key: own[key] for key in ("processor", "gpus", "versions") if own.get(key)}
        how: dict[str, Any] = {
            "cores": environment.cores(), "runs_at_a_time": self.parallel, "threads_per_run": self.threads
        }  # fmt: skip
        if self.changes:
            how["changes"] = self.changes
        notes = [*found.pop("notes", []), *self._note_elsewhere()]
        return Results(self.study, self.size, dict(settings), environment=kept | how, notes=notes, **found)

    def _note_elsewhere(self) -> list[str]:
        """Return a note on the runs that another machine trained, with its processor."""
        processors = sorted(set(self._elsewhere.values()))
        if not processors:
            return []
        return [f"Another machine trained {how_many(len(self._elsewhere), 'runs')}: {', '.join(processors)}."]


def outcome(run: RunDir) -> Row:
    """Return the results of a run as one row: accuracies are fractions, times seconds."""
    record = run.record()
    job = run.job().training
    updates = record.curves["training"].columns["step"][-1] or 0
    return {
        "accuracy": record.value("test_accuracy"),
        "epochs": record.value("epochs"),
        "updates": updates,
        "images": updates * job.images_per_step,
        "seconds": record.value("training_time_s"),
        **finished.processor_time(run),
        "epoch_time_s": record.value("epoch_time_s"),
        "time_to_accuracy_s": record["time_to_accuracy_s"].value,
        "trained_params": record.value("trained_params"),
        "train_loss": record.curves["training"].columns["train_loss"][-1],
    }


def curve(record: Record) -> dict[str, list[float | None]]:
    """Return for every evaluated epoch: epoch, step, seconds, train_loss, test_loss, test_accuracy."""
    columns = record.curves["training"].columns
    kept = [i for i, accuracy in enumerate(columns["test_accuracy"]) if accuracy is not None]
    return {name: [values[i] for i in kept] for name, values in columns.items()}
