"""`predict`: a step's time, memory and cost; `predict scaling`: over numbers of devices; `predict server`: under load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import click

from chronograd.errors import InputError
from chronograd.verbs.jobs import CountedRequest
from chronograd.verbs.kinds import COUNTS, LATENCY, RATES, complete_devices
from chronograd.verbs.large import OF_TRAINING, LargeTraining, is_large, only_large
from chronograd.verbs.request import FILE, Spelling
from chronograd.verbs.screen import waiting
from chronograd.words import how_many

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.ask import Asked
    from chronograd.compare.scaling import PredictedScaling
    from chronograd.job import Job
    from chronograd.predict.carrying import Shown
    from chronograd.predict.prediction import Pace, StepModel
    from chronograd.record import Record
    from chronograd.simulate.queueing import Server
    from chronograd.simulate.server import Served, ServedLoad
    from chronograd.trace import Trace

Places = Annotated[tuple[str, ...], Spelling(metavar="[COUNTx]DEVICE", complete=complete_devices)]


@dataclass(frozen=True, kw_only=True)
class _OnDevices(CountedRequest):
    """Shared options of the verbs: the devices and the model of a step."""

    on: Places = ()
    """Device, instead of the job's; may be given several times."""
    algorithm: str | None = None
    """All-reduce: ring (usual), tree (PALEO's), halving_doubling, recursive_doubling or butterfly, reduce_to_one or one_to_all,
    hierarchical."""
    model: Literal["operators", "paleo"] = "operators"
    """Model of a step: a calibrated time of every operator, or PALEO (Qi et al. 2017)."""
    ppp: float = 0.62
    """PALEO's percent of peak for computation, as a fraction."""
    ppp_comm: float = 0.72
    """PALEO's percent of peak for communication, as a fraction."""

    def jobs(self, job: Job) -> list[Job]:
        """Return the job on each device; raise an error for an unknown device before importing torch."""
        from chronograd.predict.answer import on_devices

        return on_devices(job, self.on, self.overrides)

    def step_model(self, paced: Pace, depth: int | None = None) -> StepModel:
        """Return the options of a prediction: the all-reduce, PALEO's percentages, and the input speed."""
        from chronograd.predict.prediction import StepModel

        is_paleo = self.model == "paleo"
        algorithm = self.algorithm or ("tree" if is_paleo else None)
        return StepModel(algorithm, (self.ppp, self.ppp_comm) if is_paleo else None, paced, depth)

    def samples(self, asked: Asked, job: Job) -> int | None:
        """Return the training samples of an epoch; None if no data set is known."""
        from chronograd.data.datasets import card

        return card(job.data).train_size or None if asked.has_data else None


@dataclass(frozen=True, kw_only=True)
class Predict(_OnDevices, LargeTraining):
    """Predict step time by part, memory, throughput, utilisation and cost, each with an interval.

    With --inference it predicts latency, throughput and the cost of a million samples for each batch of --batch 1,8,64.

    A large model is a `config.json` of Hugging Face, its folder, hf:NAME in the cache of Hugging Face, or a name such as
    llama-3-8b. Its answer also states the memory by part, the pipeline stages, the collectives and the probability that it fits.

    `predict scaling` is a table over numbers of devices, `predict server` a server under load. Without torch, give a trace
    saved by `chronograd count JOB --out FILE`.
    """

    verb = "predict"
    examples = (
        "chronograd predict job.yaml --on 8xV100",
        "chronograd predict resnet50 --on v100 --precision fp16 --inference --batch 1,8,64",
        "chronograd predict gpt2-small --on a100 --precision bf16 --batch 8",
        "chronograd predict llama-3-8b --on 8xh100 --fsdp --sequence 8192",
        "chronograd predict resnet50 --on v100 --measured-on rtx3090=234/s",
        "chronograd predict job.yaml --trace net.json.gz --on h100 --json",
        "chronograd predict scaling job.yaml strong --on v100",
        "chronograd predict server resnet50 --rate 200 --p99 50ms --on t4 --precision fp16",
    )

    timeline: Annotated[Path | None, FILE] = None
    """Save the step for Perfetto (.json)."""
    layers: bool = False
    """Print each layer's roofline and the three layers with the largest possible gain."""
    depth: Annotated[int | None, click.IntRange(0)] = None
    """With --layers: depth of the modules; 0 shows every operator."""
    measured_on: Annotated[str | None, Spelling(metavar="RECORD|DEVICE=FIGURE")] = None
    """A measurement of the same job on another device, to correct the prediction with: a record, or a figure such as
    rtx3090=1234/s or 8xv100=78ms.
    """
    out: Annotated[Path | None, FILE] = None
    """Save the record (.json)."""

    def answer(self) -> Answer[Record | list[Record]]:
        if is_large(self.job, self.overrides):
            return self._of_large()
        question, fields = self.as_ordinary(self.job)
        return replace(question, overrides=(*self.overrides, *fields))._of_ordinary()

    def _of_ordinary(self) -> Answer[Record | list[Record]]:
        """Return the answer for a network of code."""
        from chronograd.job import changed

        asked = self.asked(takes_batches=True, can_download=True)
        batches = self._batches(asked.job)
        job = changed(asked.job, [f"training.batch={max(batches)}"]) if len(batches) > 1 else asked.job
        jobs = self.jobs(job)
        self._check(job, jobs, batches)
        with waiting("counting the work of the network"):
            trace = self.traced(jobs[0])
        measured = self._measured(trace)
        with waiting("predicting"):
            if len(batches) > 1:
                return self._of_batches(trace, jobs, batches, measured)
            if self.batch is None and "training.batch" not in asked.stated:
                from chronograd.plan.largest import with_fitting_batch

                jobs = [with_fitting_batch(trace, job) for job in jobs]
            return self._of_jobs(asked, trace, jobs, measured)

    def _of_large(self) -> Answer[Record | list[Record]]:
        """Return the answer for a large model."""
        own = ("job", "overrides", "on", "out", "save_job", "print_config", *OF_TRAINING)
        asked = self.asked_large(self.job, self.overrides, self.on, own)
        if len(asked) > 1 and (self.out or self.save_job or self.print_config):
            raise InputError("--out, --save-job and --print-config take one job", "give --on once")
        self.show_job(asked[0].setting.job)
        from chronograd.large.answer import predict_large

        with waiting("predicting"):
            answer = predict_large(asked, [self.training_tokens(one.setting) for one in asked])
        if self.out is not None:
            next(iter(answer.records.values())).save(self.out)
        return answer

    def as_ordinary(self, what: Any) -> tuple[Self, list[str]]:
        if self.curve is not None:
            raise only_large("curve", what, "forecast the log with `chronograd forecast`")
        return super().as_ordinary(what)

    def _of_batches(
        self, trace: Trace, jobs: Sequence[Job], batches: Sequence[int], measured: Any
    ) -> Answer[Record | list[Record]]:
        from chronograd.predict.answer import shown_of
        from chronograd.predict.serving import predict_batches
        from chronograd.record import ASSUMED

        answer = predict_batches(trace, jobs, batches, shown_of(trace, measured, self._traced_again))
        return replace(answer, notes=[*(f"{ASSUMED}: {text}" for text in _one_pass(trace)), *answer.notes])

    def _of_jobs(self, asked: Asked, trace: Trace, jobs: Sequence[Job], measured: Any) -> Answer[Record | list[Record]]:
        from chronograd.data.decoding import counted_input
        from chronograd.job import from_dict
        from chronograd.predict.answer import predict_jobs, shown_of

        known: dict[str, Any] = {"assumptions": partial(self._assumptions, asked, trace)}
        if not self.is_bare:
            known |= {"samples": self.samples(asked, jobs[0]), "has_epochs": asked.has_epochs}
        model, shown = self.step_model(counted_input, self.depth), shown_of(trace, measured, self._traced_again)
        answer = predict_jobs(trace, jobs, model, **known, shown=shown, with_layers=self.layers)
        first = next(iter(answer.records.values()))
        if self.timeline is not None:  # draw the job as predicted, with its wait for the input
            from chronograd.files import save_json
            from chronograd.predict.setting import setting_of
            from chronograd.predict.timeline import timeline_of_step

            paced = from_dict(first.job.model_dump(), first.title)
            save_json(self.timeline, timeline_of_step(trace, setting_of(paced, self.algorithm)))
        if self.out is not None:
            first.save(self.out)
        places = self.on or (jobs[0].cluster.device,)
        return replace(answer, records=dict(zip(places, answer.records.values(), strict=True)))

    def _assumptions(self, asked: Asked, trace: Trace, job: Job) -> Iterator[str]:
        """Yield notes on the values that the user did not state: first a batch that was chosen to fit."""
        from chronograd.hardware.cards import assumed_card
        from chronograd.plan.largest import fitting_words
        from chronograd.record import ASSUMED, CHOSEN

        if job.training.batch != asked.job.training.batch:
            yield f"{CHOSEN}{fitting_words(job)}"
        words = {} if self.is_bare else replace(asked, job=job).assumed
        parts = [*_one_pass(trace), *words.values(), *([card] if (card := assumed_card(job.cluster.device)) else [])]
        if parts:
            yield f"{ASSUMED}, because you did not state it: {'; '.join(parts)}"

    def _batches(self, job: Job) -> Sequence[int]:
        """Return the batches to answer for: those of --batch, else the usual ones in inference if the job states none."""
        from chronograd.ask import is_batch_stated
        from chronograd.predict.serving import USUAL_BATCHES

        if self.batch is not None:
            return self.batch
        is_stated = not isinstance(self.job, str | Path) or is_batch_stated(job, self.job, self.overrides)
        return USUAL_BATCHES if job.mode == "inference" and not is_stated else [job.training.batch]

    def _check(self, job: Job, jobs: Sequence[Job], batches: Sequence[int]) -> None:
        """Raise InputError for options that cannot be combined."""
        is_paleo, several = self.model == "paleo", len(batches) > 1
        complaints = (
            (several and (job.mode == "training" or self.timeline or is_paleo or self.layers or self.out),
             "several batches are allowed only in inference, where each gets a record", "give one --batch"),
            (several and self.measured_on is not None and "=" in self.measured_on,
             f"--measured-on {self.measured_on} was measured at one batch, but you gave {', '.join(map(str, batches))}",
             f"give the measured batch, such as --batch {max(batches)}"),
            (self.out is not None and len(jobs) > 1, "--out takes one record", "give --on once"),
            (self.timeline is not None and self.measured_on is not None, "--timeline cannot be corrected by a measurement",
             "leave --measured-on out"),
            (self.timeline is not None and (len(jobs) > 1 or is_paleo), "--timeline takes one setting, and not --model paleo",
             "give --on once"),
            (is_paleo and self.layers, "--layers needs times of operators", "leave --model paleo out"),
            (is_paleo and self.measured_on is not None, "--measured-on corrects times of operators", "leave --model paleo out"),
        )  # fmt: skip
        for is_wrong, what, hint in complaints:
            if is_wrong:
                raise InputError(what, hint)

    def _measured(self, trace: Trace) -> Record | Callable[[Job], Shown] | None:
        """Return the measurement of --measured-on, from a record or a figure."""
        from chronograd.hardware import catalog
        from chronograd.judge.limits import limit_of
        from chronograd.predict.answer import of_figure
        from chronograd.record import Record

        def least_s(there: Job) -> float:
            device, precision = catalog.device(there.cluster.device), there.training.precision
            is_known = precision in device.peak_flops_per_s
            return limit_of(trace, there.images_per_rank, device, precision).least_s if is_known else 0.0

        if self.measured_on is None:
            return None
        return (
            of_figure(trace, self.measured_on, least_s)
            if "=" in self.measured_on
            else Record.load(Path(self.measured_on))
        )

    def _traced_again(self, own: Job) -> Trace:
        """Return the trace of a record's own job; a saved trace must match that job."""
        from chronograd.data.trace_job import trace_job

        saved = self.job if isinstance(self.job, str) and self.job.endswith((".json", ".json.gz")) else None
        return trace_job(own, None if (file := self.trace or saved) is None else Path(file))


def _one_pass(trace: Trace) -> Iterator[str]:
    """Yield the meaning of inference for a network of text."""
    if trace.mode == "inference" and trace.takes_tokens:
        yield f"one forward pass over {how_many(trace.sample_shape[0], 'given tokens')}, not the generation of text"


@dataclass(frozen=True, kw_only=True)
class PredictScaling(_OnDevices):
    """Predict steps over numbers of devices: speed-up, efficiency, and the parts of a step."""

    verb = "predict scaling"
    examples = ("chronograd predict scaling job.yaml --kind weak --on v100 --counts 1,2,4,8,16",)

    kind: Annotated[Literal["strong", "weak"], Spelling(("--kind", "--scaling"), aliases=("scaling",))] = "strong"
    """strong: one global batch for all counts; weak: the same batch per device."""
    counts: Annotated[tuple[int, ...], COUNTS, Spelling(metavar="LIST")] = (1, 2, 4, 8)
    """Numbers of devices."""

    def answer(self) -> Answer[PredictedScaling | list[PredictedScaling]]:
        from chronograd.compare.scaling import predict_scaling
        from chronograd.data.decoding import counted_input

        asked = self.asked(can_download=True)
        if asked.job.mode == "inference":
            raise InputError("in inference each device works by itself", "use `predict` without scaling")
        jobs = self.jobs(asked.job)
        with waiting("counting the work of the network"):
            trace = self.traced(jobs[0])
        return predict_scaling(
            trace, jobs, self.counts, self.kind, self.samples(asked, jobs[0]), self.step_model(counted_input)
        )


@dataclass(frozen=True, kw_only=True)
class PredictServer(CountedRequest):
    """Predict latency against the request rate behind `chronograd serve`: the saturation point, replicas, cost of requests.

    Batches have at most --batch rows (32). An ONNX file is timed on this machine instead of predicted.
    """

    verb = "predict server"
    examples = (
        "chronograd predict server resnet50 --rate 200 --p99 50ms --on t4 --precision fp16",
        "chronograd predict server mine.onnx --p99 20ms --threads 2",
    )

    on: Places = ()
    """Device, instead of the job's; may be given several times."""
    rate: Annotated[tuple[float, ...], RATES, Spelling(metavar="R,R,...", aliases=("rates",))] = ()
    """Requests per second, over all replicas."""
    p99: Annotated[float | None, LATENCY, Spelling(metavar="TIME")] = None
    """Required 99th percentile of the latency, such as 50ms."""
    replicas: Annotated[int | None, click.IntRange(1, 100_000)] = None
    """Number of servers that share the requests."""
    batch_wait: Annotated[float | None, click.FloatRange(0, 60_000), Spelling(metavar="MS")] = None
    """Milliseconds that a batch waits for more requests."""
    queue: Annotated[int | None, click.IntRange(1, 1_000_000)] = None
    """Maximum number of waiting requests."""
    threads: Annotated[int | None, click.IntRange(1, 1024)] = None
    """For an ONNX file: threads of ONNX Runtime."""
    out: Annotated[Path | None, FILE] = None
    """Save the record (.json)."""

    def answer(self) -> Answer[list[ServedLoad]]:
        from chronograd.simulate import server
        from chronograd.simulate.queueing import Server

        rows, wait_s = self.batch or (32,), (self.batch_wait or 0.0) / 1e3
        if len(rows) > 1:
            raise InputError("for a server, --batch is the largest batch", "give one number")
        if self.out is not None and (len(self.rate) > 1 or len(self.on) > 1):
            raise InputError("--out takes one record", "give one --rate and one --on")
        options = Server({1: 0.0}, wait_s=wait_s, most_waiting=self.queue or 256)
        if isinstance(self.job, str) and self.job.endswith(".onnx"):
            served = self._here(options, rows[0])
        else:
            served = self._on_devices(options, rows[0])
        with waiting("following requests"):
            answer = server.server_answer(served, server.ServerDemand(list(self.rate), self.p99, self.replicas))
        if self.out is not None:
            next(iter(answer.records.values())).save(self.out)
        return answer

    def _here(self, options: Server, rows: int) -> list[Served]:
        """Time the batches of an ONNX file on this machine."""
        if self.on or self.overrides or self.trace is not None or self.print_config:
            raise InputError("an ONNX file is timed on this machine", "leave --on, --trace and fields of a job out")
        from chronograd.deploy.timing import served_here

        with waiting("timing batches in ONNX Runtime") as say:
            return [served_here(Path(self.job), options, rows, self.threads, say)]

    def _on_devices(self, options: Server, rows: int) -> list[Served]:
        from chronograd.job import changed
        from chronograd.predict.answer import on_devices
        from chronograd.simulate.server import FRONTEND, of_operators

        if self.threads is not None:
            raise InputError("--threads is of an ONNX file", "for a job, write cluster.threads=N")
        job = changed(replace(self, batch=None).asked().job, ["mode=inference"])
        jobs = on_devices(job, self.on, self.overrides)
        with waiting("counting the work of the network"):
            trace = self.traced(jobs[0])
        return [of_operators(trace, one, options, rows, FRONTEND) for one in jobs]


REQUESTS = (Predict, PredictScaling, PredictServer)
OLD = {"--scaling": "scaling", "--serve": "server"}
