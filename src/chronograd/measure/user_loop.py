"""A custom training loop, recorded as a run like any other.

    with chronograd.record("runs/mine", batch=64, device="cuda") as rec:
        for x, y in loader:
            with rec.step():
                with rec.part("forward"):
                    loss = loss_of(model(x), y)
                with rec.part("backward"):
                    loss.backward()
                with rec.part("update"):
                    optimizer.step()
        with rec.pause():
            evaluate(model)

Time between two steps is input time; `pause` stops the clock. Parts are optional. On CUDA each step ends with one
synchronisation, and events time the parts without synchronisation.

In the first step, chronograd.measure.instrumentation looks for the objects of the loop: its DataLoader with the number of
samples and the sharding, and its network. On the CPU, the network's gradients show how long a rank waits for the others;
backward then excludes that wait. Averaging by calls of torch.distributed, or a part marked `communication`, is recognised as
exchange, too. At the end a copy of the network runs a few times more, for `chronograd explain` (`what_if=False` skips this).
The FLOPs of a step are counted on shapes alone. The last line summarises the record.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from chronograd import job as jobs
from chronograd.compare.joining import prediction_near
from chronograd.errors import InputError, NotFoundError, RunError
from chronograd.job import Job
from chronograd.measure import environment, process, result
from chronograd.measure.instrumentation import LoopInstrumentation
from chronograd.measure.memory import PeakMemory, page_fault_s, page_faults
from chronograd.measure.steps import clock
from chronograd.measure.utilisation import put_utilisation
from chronograd.record import OWN_PARTS, WARMUP, Provenance, Record, RecordedCluster
from chronograd.rundir import RunDir, StepLine
from chronograd.rundir.stalls import stalls_of
from chronograd.rundir.steps import MemoryLine, PageFault, Start
from chronograd.units import percent, quantity, si
from chronograd.words import how_many, off

PathLike = str | os.PathLike[str]
WAIT_FOR_RANK_0_S = 60.0
# Parts that a user may mark, and the quantity of each.
PARTS = {name.removesuffix("_s"): name for name in OWN_PARTS} | {"communication": "exchange_wait_s"}


@dataclass(eq=False, repr=False)
class LoopRecorder:
    """A context manager around a training loop that writes a run directory and its record, even when the loop raises.

    Under torchrun (RANK and WORLD_SIZE are set) every rank records into the same directory, which rank 0 creates; pass `path`.

    Attributes:
        path: the run directory, which must not contain a run yet; by default a new one in `runs`.
        batch: samples per step over all ranks, for the throughput; by default the job's.
        device: device of the network.
        job: the job, or its file, if there is one.
        warmup: number of first steps that are written but excluded from the quantities.
        flops_per_step: matrix FLOPs of one step of one rank; by default counted from the network that the loop calls.
        what_if: after the loop, time a copy of the network with fewer threads and with a larger batch.
        quiet: print nothing at the end.
        rank, world_size: of this process; by default those from torchrun.
        run: the run directory, once entered.

    Raises: InputError, RunError when entered.
    """

    path: PathLike | None = None
    _: KW_ONLY
    batch: int | None = None
    device: torch.device | str = "cpu"
    job: Job | PathLike | None = None
    title: str = ""
    warmup: int = WARMUP
    flops_per_step: float | None = None
    what_if: bool = True
    quiet: bool = False
    rank: int | None = None
    world_size: int | None = None
    run: RunDir = field(init=False)

    def __post_init__(self) -> None:
        self._job = jobs.load(Path(self.job)) if isinstance(self.job, (str, os.PathLike)) else self.job
        self._batch = self.batch
        if self._batch is None and self._job is not None:
            self._batch = self._job.training.batch
        if self._batch is not None and self._batch < 1:
            raise InputError(f"batch is {self._batch}; it is the number of samples per step", "give 1 or more")
        self._rank = int(os.environ.get("RANK", 0) if self.rank is None else self.rank)
        self._world_size = int(os.environ.get("WORLD_SIZE", 1) if self.world_size is None else self.world_size)
        self._num_steps = 0
        self._input_s = self._since = 0.0
        self._parts: dict[str, list[Callable[[], float]]] | None = None
        self._open_part = ""

    def __enter__(self) -> Self:
        self._device = torch.device(self.device)
        self._now = clock(self._device)
        self.run = self._make_or_join()
        self._lines = self.run.step_writer(self._rank)
        is_cuda = self._device.type == "cuda"
        name = torch.cuda.get_device_name(self._device) if is_cuda else environment.processor_name()
        self._lines.write(process.start(str(self._device), name, torch.get_num_threads()))
        self._memory = PeakMemory(self._device)
        self._loop = LoopInstrumentation(self._device)
        self._since = self._now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        peak, source = self._memory.peak_bytes(), self._memory.source
        self._lines.write(MemoryLine(step=self._num_steps, memory_peak_bytes=peak, source=source))
        self._lines.write(process.end(self._num_steps))
        self._loop.leave()
        if self.what_if and error is None:
            self._loop.write_ablations(self._lines.write)
            if self._device.type == "cpu" and (fault_s := page_fault_s()) is not None:
                self._lines.write(PageFault(step=self._num_steps, seconds=fault_s))
        self._lines.close()
        if self._rank == 0:
            record = self._record("" if error is None else f"{type(error).__name__}: {error}")
            self.run.save_record(record)
            if not self.quiet:
                print(self._summary(record), file=sys.stderr)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one training step. A step that raises is not written."""
        if self._parts is not None:
            raise InputError("rec.step() within rec.step()", "end one step before the next begins")
        if self._num_steps == 0:
            self._lines.write(process.ready())
        start = time.perf_counter()
        input_s = self._input_s + start - self._since
        faults = page_faults() if self._device.type == "cpu" else None
        self._parts = {}
        self._loop.begin_step()
        try:
            yield
            end = self._now()
            parts: dict[str, Any] = {PARTS[name]: sum(read() for read in reads) for name, reads in self._parts.items()}
            parts["input_s"] = parts.get("input_s", 0.0) + input_s
            waited_s = self._loop.waited_s()
            if waited_s is not None:
                parts.setdefault("exchange_wait_s", waited_s)
            if faults is not None:
                parts["page_faults"] = (page_faults() or 0) - faults
        finally:
            self._parts = None
            self._loop.end_step()
            self._input_s, self._since = 0.0, time.perf_counter()
        self._num_steps += 1
        mode = "warmup" if self._num_steps <= self.warmup else "parts"
        self._lines.write(StepLine(step=self._num_steps, mode=mode, step_time_s=input_s + end - start, **parts))
        if self._num_steps == 1:
            self._lines.write(self._loop.look())
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part of the step: input, transfer, forward, backward, communication or update. Times with the same name add
        up.
        """
        if name not in PARTS:
            raise NotFoundError("part of a step", name, PARTS)
        if self._parts is None or self._open_part:
            where = f"within rec.part({self._open_part!r})" if self._open_part else "outside of rec.step()"
            raise InputError(f"rec.part({name!r}) {where}", "parts follow each other within a step")
        self._open_part = name
        stop = self._stopwatch()
        try:
            yield
        finally:
            self._open_part = ""
        self._parts.setdefault(name, []).append(stop())

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock between steps, for evaluation, checkpoints and logging."""
        self._input_s += time.perf_counter() - self._since
        try:
            yield
        finally:
            self._since = self._now()

    # -- helpers -----------------------------------------------------------------------------------------

    def _summary(self, record: Record) -> str:
        """Return a line with the recorded steps, their prediction if one is stored nearby, and the next command."""
        steps, mfu, rate = (record[name] for name in ("step_time_s", "mfu", "achieved_flops_per_s"))
        parts = [] if steps.value is None else [f"{quantity(steps.value, 's')} a step"]
        known = next(
            (
                f"MFU {percent(q.value)}" if q is mfu else si(q.value, "FLOP/s")
                for q in (mfu, rate)
                if q.value is not None
            ),
            "",
        )
        throughput = record["throughput_samples_per_s"]
        parts += [
            *([] if throughput.value is None else [quantity(throughput.value, throughput.unit)]),
            *([known] if known else []),
        ]
        near = prediction_near(record, self.run.path.parent, Path())
        if near is not None and steps.value is not None:
            predicted = near[1].value("step_time_s")
            name = near[0].parent.name if near[0].name == "record.json" else near[0].name
            parts.append(f"predicted {quantity(predicted, 's')} by {name}: {off(predicted, steps.value)}")
        what = f": {', '.join(parts)}" if parts else ""
        path = self.run.path
        if path.resolve().is_relative_to(Path.cwd()):
            path = path.resolve().relative_to(Path.cwd())
        return f"recorded {how_many(self._num_steps, 'steps')} in {path}{what}; next: chronograd explain {path}"

    def _stopwatch(self) -> Callable[[], Callable[[], float]]:
        """Start a stopwatch. Stopping it returns a function that reads the seconds, on CUDA only after a synchronisation."""
        if self._device.type != "cuda":
            start_s = time.perf_counter()

            def stop_host() -> Callable[[], float]:
                seconds = time.perf_counter() - start_s
                return lambda: seconds

            return stop_host
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()

        def stop_device() -> Callable[[], float]:
            end.record()
            return lambda: float(start.elapsed_time(end)) / 1000

        return stop_device

    def _make_or_join(self) -> RunDir:
        if self._rank == 0:
            return RunDir.create(self._job, environment.environment(), self.path)
        if self.path is None:
            raise InputError("chronograd.record without a path on several ranks", "give all ranks one path")
        deadline = time.monotonic() + WAIT_FOR_RANK_0_S
        path = Path(self.path)
        while not _is_new_run(path):
            if time.monotonic() > deadline:
                raise RunError(
                    f"rank 0 did not create {path} within {WAIT_FOR_RANK_0_S:g} s", "give all ranks one path"
                )
            time.sleep(0.1)
        return RunDir.open(path)

    def _record(self, raised: str) -> Record:
        """Return the record of the steps that all ranks have written so far; slow ranks make it shorter."""
        environment_then, logs = self.run.environment(), self.run.logs()
        started = logs[0].last(Start)
        made = Record(
            kind="measured",
            title=self.title or f"own loop, {self.run.path.name}",
            job=jobs.resolved(self._job) if self._job is not None else {},
            cluster=RecordedCluster(
                device="local",
                count=self._world_size,
                batch_per_rank=None if self._batch is None else -(-self._batch // self._world_size),
                ran_on="" if started is None else started.device_name,
            ),
            backend=self._job.backend if self._job is not None else "",
            versions=environment_then.get("versions", {}),
            provenance=Provenance(environment=environment_then, run=self.run.path.name, method=_METHOD),
        )
        timed = {
            rank: [line for line in lines if line.mode != "warmup"]
            for rank, lines in result.lines_of_ranks(logs).items()
        }
        on_device = "CUDA events within the step" if self._device.type == "cuda" else "host clock"
        method = result.Method("from the end of one step to the end of the next, host clock", on_device)
        stalls = stalls_of(logs)
        steps = result.step_quantities(timed, self._batch, method, stalls)
        for name, measured in {**steps, **stalls.quantities()}.items():
            made.put(name, measured)
        made.notes += stalls.sentences()
        flops, why_not = (self.flops_per_step, "") if self.flops_per_step is not None else self._loop.flops_per_step()
        put_utilisation(made, made["step_time_s"], flops, started, self._loop.precision, why_not)
        made.quantities |= result.memory_quantities(logs)
        if self._num_steps <= self.warmup:
            made.notes.append(
                f"only {how_many(self._num_steps, 'steps')} done, and the first {self.warmup} are warm-up"
            )
        if raised:
            made.notes.append(f"the loop raised {raised}")
        return made


def _is_new_run(path: Path) -> bool:
    """Return whether rank 0 of these ranks created the run, not that of an earlier start, which rank 0 will refuse."""
    made = path / "environment.json"
    return made.exists() and time.time() - made.stat().st_mtime < WAIT_FOR_RANK_0_S


# What `chronograd.record` makes.
record = LoopRecorder
_METHOD = "a loop of the user's own; time between steps is input, pauses are left out"
