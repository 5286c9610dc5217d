"""`plan`: what to rent for a goal; `plan inference`: how to serve a network; `plan batch`: the largest batch that fits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

import click

from chronograd.errors import InputError, printable
from chronograd.verbs.jobs import CountedRequest
from chronograd.verbs.kinds import (
    ABOVE_0,
    BYTES,
    COUNTS,
    DOLLARS,
    DURATION,
    LATENCY,
    PATH,
    SHARE,
    ListKind,
    ValueKind,
    complete_devices,
    parse_bytes,
)
from chronograd.verbs.large import OF_TRAINING, LargeTraining, is_large, only_large, spelled
from chronograd.verbs.request import FOLDER, Spelling
from chronograd.verbs.screen import waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronograd.answer import Answer
    from chronograd.ask import Asked
    from chronograd.handoff.answer import HandedOff
    from chronograd.hardware.catalog import Device
    from chronograd.hardware.market import Kind
    from chronograd.job import Job
    from chronograd.large.search_answer import LayoutPlan
    from chronograd.plan.effort import Unknown
    from chronograd.plan.goal import Goal, SamplesToTarget
    from chronograd.plan.largest import BatchPlan
    from chronograd.plan.places import Places
    from chronograd.plan.renting import RentalTerms
    from chronograd.plan.rows import EpochOption, FineTuningPlan, GoalPlan, LargePlan, NoPlan, RunOption, SettingList
    from chronograd.plan.search import SearchSpace
    from chronograd.plan.serving import ServingPlan


def parse_precisions(text: str) -> tuple[str, ...]:
    """Return precisions, as in `bf16,fp32`. Raises ValueError for an unknown one."""
    from chronograd.job import Training

    known = get_args(Training.model_fields["precision"].annotation)
    words = tuple(word.strip().lower() for word in text.split(",") if word.strip())
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"unknown precision {unknown[0]!r}; known: {', '.join(known)}")
    return words


def parse_noise_scale(text: str) -> tuple[float, float, float]:
    """Return low, middle and high of `LOW:HIGH`; a single number has no uncertainty. Raises ValueError."""
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2) or not 0 <= min(parts) <= max(parts) == parts[-1]:
        raise ValueError(f"the noise scale is in samples, such as 900 or 500:2000, not {text}")
    return parts[0], (parts[0] * parts[-1]) ** 0.5, parts[-1]


PRECISIONS = ListKind("LIST", parse_precisions, lambda _: False)
NOISE_SCALE = ValueKind("N", parse_noise_scale, lambda value: isinstance(value, tuple) and len(value) == 3)
Prices = Literal["on-demand", "spot", "both"]
COUNTS_OF_DEVICES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class _Search(CountedRequest):
    """Shared options of the searches of `plan`."""

    on: Annotated[tuple[str, ...], Spelling(metavar="DEVICE", complete=complete_devices)] = ()
    """Device, instead of all GPUs that can be rented; may be given several times."""
    counts: Annotated[tuple[int, ...] | None, COUNTS, Spelling(metavar="LIST")] = None
    """Numbers of devices; 1,2,4,8 by default, and for a large model the powers of 2 up to 512."""
    precisions: Annotated[tuple[Any, ...], PRECISIONS, Spelling(metavar="LIST")] = ()
    """Precisions to search, such as bf16,fp32. Default: the job's, else autocast's usual one on each device, and fp32."""
    most: Annotated[int, click.IntRange(1)] = 8
    """Number of settings to print."""
    confidence: Annotated[float, click.FloatRange(0, 0.95, min_open=True)] = 0.8
    """Required probability of meeting budget, deadline and latency; at most 0.95, as a plan rests on assumptions."""
    prices: Prices | None = None
    """Kinds of prices; both by default, or on-demand without a goal."""

    def _devices(self, job: Job) -> list[Device]:
        """Return the devices to search. Raises InputError for a count or device that the search would ignore."""
        from chronograd.job import parse_on
        from chronograd.plan.search import devices_of

        for place in self.on:
            count, device = parse_on(place)
            if count is not None:
                raise InputError(
                    f"--on {place}: this search takes no count there", f"write --on {device} --counts {count}"
                )
        for text in self.overrides:
            key, _, value = text.partition("=")
            if option := {"cluster.device": "--on", "cluster.count": "--counts"}.get(key.strip()):
                raise InputError(
                    f"this search chooses the devices and ignores {text}", f"write {option} {value.strip()}"
                )
        return devices_of(job, self.on, self.precisions)


@dataclass(frozen=True, kw_only=True)
class PlanInference(_Search):
    """Find the device and batch that stay within a latency at the lowest cost per sample.

    Each device works independently: more devices increase the throughput, but do not change the latency.
    """

    verb = "plan inference"
    examples = (
        "chronograd plan inference resnet50 --latency 20ms",
        "chronograd plan inference job.yaml --on t4 --on l4",
    )

    latency: Annotated[float | None, LATENCY, Spelling(metavar="TIME", aliases=("latency_s",))] = None
    """Maximum latency of a batch, such as 20ms; in Python seconds."""
    batches: Annotated[tuple[int, ...], COUNTS, Spelling(metavar="LIST")] = tuple(2**k for k in range(9))
    """Batches per device."""

    def answer(self) -> Answer[ServingPlan]:
        from chronograd.plan.renting import KINDS
        from chronograd.plan.search import SearchSpace
        from chronograd.plan.serving import serve

        job = replace(self, mode="inference").asked(can_download=True).job
        devices = self._devices(job)
        kinds: list[Any] = [kind for kind in KINDS if self.prices in ("both", kind)] or ["on-demand"]
        with waiting("counting the work of the network") as say:
            traces = self.traced_layouts(job)
            say("trying settings")
            space = SearchSpace(devices, self.counts or COUNTS_OF_DEVICES, self.batches, precisions=self.precisions)
            return serve(traces, job, space, kinds, latency_s=self.latency, confidence=self.confidence, most=self.most)


@dataclass(frozen=True, kw_only=True)
class PlanBatch(CountedRequest):
    """Find the largest batch per device that fits its memory."""

    verb = "plan batch"
    examples = (
        "chronograd plan batch resnet50 --data imagenet --precision bf16 --on rtx4090",
        "chronograd plan batch job.yaml --on local --memory 2GiB --confirm",
    )

    on: Annotated[tuple[str, ...], Spelling(metavar="[COUNTx]DEVICE", complete=complete_devices)] = ()
    """Device, instead of the job's; may be given several times."""
    memory: Annotated[int | None, BYTES, Spelling(metavar="SIZE")] = None
    """Memory limit such as 2GiB, of a GPU unless --on names a device; all memory by default."""
    confirm: bool = False
    """Try batches on this machine."""
    probes: Annotated[int, click.IntRange(1)] = 10
    """With --confirm: maximum number of batches to try."""

    def answer(self) -> Answer[BatchPlan | list[BatchPlan]]:
        from chronograd.job import placed
        from chronograd.plan.largest import Trial, gpu_of_memory, largest_batches

        if self.confirm and self.on not in ((), ("local",), ("cpu",)):
            raise InputError(
                f"--confirm can only try batches on this machine, not on {' '.join(self.on)}", "write --on local"
            )
        job = self.asked(can_download=True).job
        if self.confirm and job.mode == "inference":
            raise InputError("--confirm works for training only", "leave --inference out")
        trial = None
        if self.confirm:
            from chronograd.train import largest_batch

            trial = Trial(largest_batch.base_bytes, partial(largest_batch.confirm, max_probes=self.probes))
        places = self.on
        if self.memory is not None and not (places or self.confirm or "device" in job.cluster.model_fields_set):
            places = (gpu_of_memory(self.memory).name,)
        jobs = [placed(job, place, self.overrides) for place in places] or [job]
        with waiting("trying batches" if self.confirm else "counting the work of the network"):
            return largest_batches(self.traced(job), jobs, self.memory, trial)


@dataclass(frozen=True, kw_only=True)
class Plan(_Search, LargeTraining):
    """Find the setup to rent for a goal, or list settings by the price of a sample.

    With --to, --budget or --deadline it shows the setup to rent, its time, cost and probability, and the limits that would
    change it. With --platforms it shows the cloud to use and the cost of moving the data there; `launch --plan FILE` reads the
    answer of --save FILE.

    The search covers devices, counts, batches, precision, memory layout, checkpointing and all-reduce. Fields that the job
    states do not change. Prices are for whole instances with their host (`chronograd devices --prices`).

    For a large model, such as llama-3-70b, name the devices with --on, and state --tokens, --budget or --deadline: the answer has
    the number of devices, the layout, time and cost. With --to, it is the cost of fine-tuning to an accuracy. With --layouts it is the best layout of the devices of --on, such as 64xh100.

    `plan inference` searches for a latency, `plan batch` finds the largest batch that fits. Without torch, give a trace saved
    by `chronograd count JOB --out FILE`.
    """

    verb = "plan"
    examples = (
        "chronograd plan resnet50 --data imagenet --to 75% --budget '$50'",
        "chronograd plan job.yaml --to 75% --deadline 6h --prices spot",
        "chronograd plan resnet50 --data imagenet --to 75% --platforms aws,gcp,azure,ibm --data-in aws",
        "chronograd plan inference resnet50 --latency 20ms",
        "chronograd plan batch resnet50 --data imagenet --precision bf16 --on rtx4090",
        "chronograd plan job.yaml --on v100 --on a100 --precisions fp32,fp16",
        "chronograd plan llama-3-8b --on h100 --tokens 20B --deadline 7d",
        "chronograd plan llama-3-70b --on 64xh100 --layouts --batch 512 --sequence 8192",
        "chronograd plan llama-3-8b --on 64xh100 --layouts --write torchtitan,slurm --out job",
    )

    batches: Annotated[tuple[int, ...] | None, COUNTS, Spelling(metavar="LIST")] = None
    """Batches per device; 16,32,64,128,256,512 by default."""
    algorithms: Annotated[tuple[str, ...], Spelling(("--algorithm",), aliases=("algorithm",))] = ("ring", "tree")
    """All-reduce algorithm; may be given several times."""
    to: Annotated[
        float | None, SHARE, Spelling(("--to", "--target-accuracy"), metavar="ACCURACY", aliases=("target_accuracy",))
    ] = None
    """Accuracy to reach, such as 75%."""
    budget: Annotated[float | None, DOLLARS, Spelling(metavar="USD", aliases=("budget_usd",))] = None
    """Maximum cost in dollars."""
    deadline: Annotated[float | None, DURATION, Spelling(metavar="TIME", aliases=("deadline_s",))] = None
    """Maximum wall time, such as 6h or 2d; in Python seconds."""
    curve: Annotated[str | None, PATH, Spelling(metavar="RUN|FILE")] = None
    """A run or log of such a job: the epoch at which it reached the target, or is forecast to. With --target-loss of a large model:
    a log of its loss.
    """
    epochs_to_target: Annotated[float | None, ABOVE_0, Spelling(metavar="N")] = None
    """Epochs to the target at the job's batch, if you know them."""
    noise_scale: Annotated[Any, NOISE_SCALE, Spelling(metavar="N")] = None
    """Gradient noise scale in samples, or LOW:HIGH; a run has its own."""
    interruptions: Annotated[float, click.FloatRange(0, 100)] = 0.05
    """Assumed interruptions of a spot node per hour."""
    checkpoint_every: Annotated[float, ABOVE_0, Spelling(metavar="MINUTES")] = 10.0
    """Minutes between checkpoints on spot nodes: an interruption loses half of that, and five minutes to restart."""
    storage: Annotated[float | None, BYTES, Spelling(metavar="SIZE")] = None
    """Large model: bytes that a node writes to storage per second, such as 2GB, for checkpoints on spot nodes; 1GB by default."""
    platforms: Annotated[str | None, Spelling(metavar="LIST")] = None
    """Clouds to choose from, by node and region: aws,gcp,azure,ibm."""
    data_in: Annotated[str | None, Spelling(metavar="CLOUD[:REGION]")] = None
    """With --platforms: the cloud that stores the data, to include the cost of moving it."""
    data_size: Annotated[str | None, Spelling(metavar="SIZE")] = None
    """With --data-in: size of the data set, such as 150GB, if it is not a known one."""
    checkpoints_back: Annotated[int, click.IntRange(0)] = 1
    """With --data-in: number of checkpoints copied back there."""
    decode: Annotated[float | None, click.FloatRange(0), Spelling(metavar="N")] = None
    """Images/s that a virtual CPU of the host decodes; 0 ignores decoding."""

    layouts: bool = False
    """Large model: find the layout with the shortest step that fits: tensor, sequence, pipeline, context and expert parallelism,
    micro-batches, recomputation and ZeRO. Options of the layout that you state do not change.
    """
    write: Annotated[str | None, Spelling(metavar="LIBRARY[,STARTER]...")] = None
    """With --layouts: the fastest layout that accelerate, megatron or torchtitan can express, as its configuration; also files
    that start it: torchrun, slurm, skypilot.
    """
    out: Annotated[Path | None, FOLDER] = None
    """With --write: folder of the files; without it they are printed."""

    latency: Annotated[float | None, LATENCY, Spelling(aliases=("latency_s",), hidden=True)] = None
    """For a job file in inference, which `plan inference` answers."""

    @property
    def has_goal(self) -> bool:
        return any(limit is not None for limit in (self.to, self.budget, self.deadline, self.platforms))

    def as_ordinary(self, what: Any) -> tuple[Self, list[str]]:
        for option, value in {"layouts": self.layouts, "storage": self.storage}.items():
            if value:
                raise only_large(option, what)
        return super().as_ordinary(what)

    def answer(
        self,
    ) -> (
        Answer[GoalPlan[RunOption] | GoalPlan[EpochOption] | NoPlan | SettingList | ServingPlan]
        | Answer[LayoutPlan]
        | Answer[HandedOff]
        | Answer[LargePlan | FineTuningPlan]
    ):
        if self.layouts:
            return self._of_layouts()
        for option in ("write", "out"):
            if getattr(self, option) is not None:
                raise InputError(f"--{option} is for the layout that --layouts finds", "add --layouts")
        if is_large(self.job, self.overrides):
            return self._of_training() if self.to is None else self._of_fine_tuning()
        question, fields = self.as_ordinary(self.job)
        return replace(question, overrides=(*self.overrides, *fields))._of_ordinary()

    def _of_ordinary(
        self,
    ) -> Answer[GoalPlan[RunOption] | GoalPlan[EpochOption] | NoPlan | SettingList | ServingPlan]:
        """Return the plan of a network of code."""
        from chronograd.ask import name_of
        from chronograd.data.datasets import card
        from chronograd.plan.effort import OutOfReach, effort_of
        from chronograd.plan.goal import Goal
        from chronograd.plan.open_answer import out_of_reach

        asked = self.asked(target=self.to, can_download=True)
        job = asked.job
        if job.mode == "inference":
            return self._of_inference()
        if self.latency is not None:
            raise InputError("--latency applies to inference, but the job trains", "add --inference")
        samples, name = card(job.data).train_size, name_of(job.network.name)
        if not self.has_goal:
            return self._listed(asked, samples)
        goal = Goal(self.budget, self.deadline, self.confidence)
        effort = effort_of(job, samples, target=self.to, epochs=self.epochs_to_target, noise=self.noise_scale, network=name,
                           curve=None if self.curve is None else Path(self.curve), has_epochs=asked.has_epochs)  # fmt: skip
        if isinstance(effort, OutOfReach):
            return out_of_reach(f"{name} on {job.data.name.partition(':')[0]}", effort, goal)
        return self._reached(asked, samples, effort, goal)

    def _of_layouts(self) -> Answer[LayoutPlan] | Answer[HandedOff]:
        """Return the best layout of a large model. Raises InputError for an ordinary network, and for options of other searches."""
        from chronograd.handoff.answer import hand_off, targets
        from chronograd.large.layout_asking import ask_layouts
        from chronograd.large.search_answer import plan_layouts

        if not is_large(self.job, self.overrides):
            raise only_large("layouts", self.job)
        if len(self.on) > 1:
            raise InputError(
                f"--layouts takes one place, not {' and '.join(self.on)}", "give --on once, such as --on 64xh100"
            )
        if self.out is not None and self.write is None:
            raise InputError("--out is the folder of the files of --write", "add --write, such as --write torchtitan")
        for name in ("budget", "deadline", *OF_TRAINING):
            if getattr(self, name) is not None:
                raise InputError(
                    f"--layouts plans one step, and {spelled(name)} is about a whole training",
                    "leave out --layouts: the plan of a training has the best layout for each number of devices",
                )
        self.check_large(self.job, ("job", "overrides", "on", "layouts", "write", "out"))
        place = self.on[0] if self.on else None
        if self.write is None:
            asked = ask_layouts(self.job, self.overrides, self.short_large(), place)
            with waiting("trying layouts"):
                return plan_layouts(asked)
        library, starters = targets(self.write)
        asked = ask_layouts(self.job, self.overrides, self.short_large(), place, usual=library.usual)
        with waiting("trying layouts"):
            return hand_off(asked, library, starters, self.out)

    def after(self, answer: Answer, as_json: bool) -> None:
        """Print the files of --write that were not saved."""
        if self.write is not None and self.out is None and not as_json:
            for file in answer.result.files:
                click.echo(f"\n{file.name}\n\n{printable(file.text)}", nl=False)

    def _of_training(self) -> Answer[LargePlan]:
        """Return the run of a large model to rent for a goal. Raises InputError for options that do not apply."""
        from chronograd.large.layout_asking import ask_layouts
        from chronograd.models.names import or_of_zoo
        from chronograd.plan.goal import Goal
        from chronograd.plan.large_answer import plan_training

        self.check_large(self.job, ("job", "overrides", "on", "counts", "most", "confidence", "prices", "budget", "deadline",
                                    "interruptions", "checkpoint_every", "storage", *OF_TRAINING))  # fmt: skip
        if all(one is None for one in (self.tokens, self.epochs, self.target_loss, self.budget, self.deadline)):
            raise InputError(
                "without a number of tokens there is no training time",
                "add --tokens, such as --tokens 20B; --budget or --deadline for the tokens that they allow; or --layouts for the best layout "
                f"alone{or_of_zoo(str(self.job))}",
            )
        places = self._places()
        counts = sorted({count for count, _ in places})
        short = self.short_large()
        with waiting("trying layouts"):
            asked = [
                ask_layouts(self.job, self.overrides, short, f"{count}x{device}", counts) for count, device in places
            ]
            tokens, goal = self.training_tokens(asked[0].setting), Goal(self.budget, self.deadline, self.confidence)
            return plan_training(asked, tokens, goal, self._rental(), self.most)

    def _of_fine_tuning(self) -> Answer[FineTuningPlan]:
        """Return the cheapest published way to fine-tune to an accuracy. Raises InputError for options that do not apply."""
        from chronograd.plan.fine_tuning import plan_fine_tuning
        from chronograd.plan.goal import Goal

        own = ("job", "overrides", "on", "most", "to", "confidence", "prices", "budget", "deadline", "interruptions",
               "checkpoint_every")  # fmt: skip
        (asked,) = self.asked_large(self.job, self.overrides, [self.on[0] if self.on else None], own)
        words = [word for word in self.overrides if not word.startswith("cluster.price_usd_per_hour=")]
        ignored = [*map(spelled, self.of_large()), *words, *self.on[1:]]
        if ignored:
            raise InputError(f"--to of a large model reads published curves, which ignore {ignored[0]}", "leave it out")
        goal = Goal(self.budget, self.deadline, self.confidence)
        return plan_fine_tuning(asked.setting.job, self.to or 0.0, goal, self._rental(), self.most)

    def _places(self) -> list[tuple[int, str]]:
        """Return the numbers of devices to search, with their names. Raises InputError for none."""
        from chronograd.job import parse_on

        if not self.on:
            raise InputError(f"on which devices may {self.job} train?", "add --on, such as --on h100 --on a100-80")
        found = []
        for count, device in map(parse_on, self.on):
            if count is not None and self.counts:
                raise InputError(
                    f"--on {count}x{device} and --counts both state the number of devices", "give one of them"
                )
            found += [(one, device) for one in ([count] if count else self.counts or [2**k for k in range(10)])]
        return found

    def _of_inference(self) -> Answer[ServingPlan]:
        """Return the answer of `plan inference` for a job file in inference. Raises InputError for options of training."""
        of_training = {"--to": self.to, "--budget": self.budget, "--deadline": self.deadline, "--curve": self.curve,
                       "--epochs-to-target": self.epochs_to_target, "--noise-scale": self.noise_scale,
                       "--platforms": self.platforms}  # fmt: skip
        given = [name for name, value in of_training.items() if value is not None]
        if given:
            raise InputError(
                f"{given[0]} applies to training, but the job is in inference",
                "give a --latency instead of a goal",
            )
        shared: dict[str, Any] = {
            name: getattr(self, name)
            for name in (field.name for field in dataclasses.fields(PlanInference))
            if name != "batches"
        }
        if self.batches is not None:
            shared["batches"] = self.batches
        return PlanInference(**shared).answer()

    def _space(self, asked: Asked, samples: int, devices: Sequence[Device]) -> SearchSpace:
        from chronograd.plan.search import SearchSpace

        is_stated = self.batches is None and "training.batch" in asked.stated
        return SearchSpace(
            devices,
            self.counts or COUNTS_OF_DEVICES,
            self.batches or (16, 32, 64, 128, 256, 512),
            self.algorithms,
            self.precisions,
            asked.job.training.batch if is_stated else None,
            samples,
        )

    def _terms(self, job: Job, places: Places | None = None) -> RentalTerms:
        from chronograd.data.decoding import decoding_of

        return replace(self._rental(has_spot=self.has_goal), decoding=decoding_of(job, self.decode), places=places)

    def _rental(self, has_spot: bool = True) -> RentalTerms:
        """Return the kinds of prices, and the interruptions of spot nodes. `has_spot`: whether both kinds are the default."""
        from chronograd.plan.renting import KINDS, STORAGE_BYTES_PER_S, RentalTerms, Spot

        kinds = [kind for kind in KINDS if self.prices in ("both", kind)]
        usual: Sequence[Kind] = KINDS if has_spot else ("on-demand",)
        storage = STORAGE_BYTES_PER_S if self.storage is None else float(self.storage)
        return RentalTerms(
            kinds or usual, spot=Spot(self.interruptions, 60 * self.checkpoint_every, node_bytes_per_s=storage)
        )

    def _listed(self, asked: Asked, samples: int) -> Answer[SettingList]:
        from chronograd.plan.answer import list_settings

        job = asked.job
        _clouds(job, self.platforms, self.data_in, self.data_size)
        space = self._space(asked, samples, self._devices(job))
        with waiting("counting the work of the network") as say:
            traces = self.traced_layouts(job)
            say("trying settings")
            return list_settings(traces, job, space, self._terms(job), self.most)

    def _reached(
        self, asked: Asked, samples: int, effort: SamplesToTarget | Unknown, goal: Goal
    ) -> Answer[GoalPlan[RunOption] | GoalPlan[EpochOption]]:
        from chronograd.plan.answer import reach_goal
        from chronograd.predict.memory import checkpoint_bytes

        job = asked.job
        clouds = _clouds(job, self.platforms, self.data_in, self.data_size)
        devices = self._devices(job)
        if clouds is not None:
            devices = clouds.of_devices(devices)
        space = self._space(asked, samples, devices)
        assumed = asked.for_a_plan(has_epochs=bool(self.epochs_to_target or self.curve))
        with waiting("counting the work of the network") as say:
            traces = self.traced_layouts(job)
            say("trying settings")
            if clouds is not None:
                clouds = replace(clouds, back_bytes=self.checkpoints_back * checkpoint_bytes(traces[0], job))
            return reach_goal(traces, job, space, effort, goal, self._terms(job, clouds), assumed, self.most)


def parse_place(text: str) -> tuple[str, str]:
    """Return a cloud and one of its regions.

    >>> parse_place("aws"), parse_place("gcp:us-central1")
    (('aws', ''), ('gcp', 'us-central1'))
    """
    cloud, _, region = text.strip().partition(":")
    return cloud.lower(), region


def _clouds(job: Job, platforms: str | None, data_in: str | None, data_size: str | None) -> Places | None:
    """Return the clouds to choose from, and the amount and place of the data. Raises InputError."""
    from chronograd.data.datasets import training_bytes
    from chronograd.plan.places import Places

    if platforms is None:
        if data_in or data_size:
            raise InputError("--data-in and --data-size need clouds to compare", "add --platforms aws,gcp")
        return None
    if job.cluster.price_usd_per_hour is not None:
        raise InputError("--platforms compares published prices", "leave cluster.price_usd_per_hour out")
    if data_size and not data_in:
        raise InputError("--data-size needs the place of the data", "add --data-in CLOUD")
    names = tuple(dict.fromkeys(word.strip().lower() for word in platforms.split(",")))
    if data_in is None:
        return Places(names)
    home, region = parse_place(data_in)
    places = Places(names, home, region)  # checks the names before looking for the data
    try:
        size = parse_bytes(data_size) if data_size else training_bytes(job.data)
    except ValueError as error:
        raise InputError(str(error), "such as --data-size 150GB") from None
    return replace(places, data_bytes=size)


REQUESTS = (Plan, PlanInference, PlanBatch)
# Old spellings, an option or a Python argument, and the verb that replaced each.
OLD = {"--largest-batch": "batch", "--inference": "inference", "mode=inference": "inference"}
