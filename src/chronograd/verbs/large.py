"""Shared options of the verbs on a large model: short forms of its layout, its batch and its memory."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, LENGTH, PATH, TOKENS
from chronograd.verbs.request import Request, Spelling

if TYPE_CHECKING:
    from chronograd.large.asking import AskedLarge
    from chronograd.large.setting import LargeSetting
    from chronograd.large.tokens import TrainingTokens

AT_LEAST_1 = click.IntRange(1)


@dataclass(frozen=True, kw_only=True)
class LargeRequest(Request):
    """A question that may be about a large model."""

    sequence: Annotated[int | None, LENGTH, Spelling(metavar="TOKENS")] = None
    """Language model: tokens of a sequence, such as 4096 or 4k; by default the length in its config.json, if it fits."""
    micro_batch: Annotated[int | None, AT_LEAST_1, Spelling(metavar="N")] = None
    """Large model: sequences that a rank computes together; default: 1, or with --batch the most that fit."""
    fsdp: bool = False
    """Shard parameters, gradients and optimizer state over the data-parallel ranks (ZeRO stage 3)."""
    zero: Annotated[int | None, click.IntRange(0, 3), Spelling(metavar="STAGE")] = None
    """ZeRO stage: 1 shards the optimizer state, 2 also gradients, 3 also parameters."""
    tensor: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share each matrix (tensor parallelism)."""
    pipeline: Annotated[int | None, AT_LEAST_1, Spelling(metavar="STAGES")] = None
    """Large model: pipeline stages."""
    context: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share each sequence (context parallelism)."""
    expert: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share the experts of a layer (expert parallelism)."""
    recompute: Literal["none", "selective", "full"] | None = None
    """Activations that backward computes again; selective, for a large model: those inside attention, as in Megatron."""
    lora: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANK")] = None
    """Large model: train LoRA matrices of this rank instead of the model."""
    qlora: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANK")] = None
    """Large model: LoRA on a model that is stored in 4 bits."""

    def of_large(self) -> dict[str, Any]:
        """Return the options of large models that were given, by name."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(LargeRequest)}
        return {name: value for name, value in named.items() if value is not None and value is not False}

    def as_ordinary(self, what: Any) -> tuple[Self, list[str]]:
        """Return the question without the options of this class, and the fields of an ordinary network's job that they set.

        Raises: InputError for an option that only a large model has, NotFoundError for an unknown network.
        """
        fields = []
        usual = {option.name: option.default for option in dataclasses.fields(LargeRequest)}
        for option, value in self.of_large().items():
            if option not in ORDINARY or (option, value) == ("recompute", "selective"):
                raise only_large(option, what)
            fields += ORDINARY[option](value)
        changes: dict[str, Any] = dict(usual)
        if self.sequence is not None:
            if getattr(self, "input", None):
                raise InputError("--input and --sequence both state the length", "give one of them")
            _check_text(what)
            changes["input"] = (self.sequence,)
        return replace(self, **changes), fields

    def asked_large(
        self, what: Any, words: Sequence[str], places: Sequence[str | None], own: tuple[str, ...]
    ) -> list[AskedLarge]:
        """Return a large model and its job on each place, in the first setting that fits.

        Args:
            own: names of the other options that apply to it.
        Raises: InputError for options that do not apply, and as `ask_large`.
        """
        from chronograd.large.asking import ask_large
        from chronograd.large.defaults import first_that_fits

        self.check_large(what, own)
        short = self.short_large()
        micro_batch = short.pop("micro_batch", None)
        return [first_that_fits(ask_large(what, words, short, place, micro_batch)) for place in (places or [None])]

    def short_large(self) -> dict[str, Any]:
        """Return the values of the options that set a field of a large model's job. Raises InputError for a contradiction."""
        given: dict[str, Any] = {name: getattr(self, name) for name in ("precision", "batch")}
        if isinstance(given["batch"], tuple):
            given["batch"] = only_batch(given["batch"])
        length = length_of_input(getattr(self, "input", None) or ())
        if length is not None and self.sequence is not None:
            raise InputError("--input and --sequence both state the length", "give one of them")
        short = {name: value for name, value in given.items() if value is not None} | self.of_large()
        return short | ({} if length is None else {"sequence": length})

    def check_large(self, what: Any, own: tuple[str, ...]) -> None:
        """Raise InputError for an option that does not apply to a large model. `own` are those of the verb that do."""
        name = os.fspath(what) if isinstance(what, str | os.PathLike) else "this job"
        applies = {*(field.name for field in dataclasses.fields(LargeRequest)), *own, "precision", "batch", "input"}
        if getattr(self, "mode", None) == "inference":
            raise declined("predict server", name)
        for option in dataclasses.fields(self):
            if option.name not in applies and getattr(self, option.name) not in (option.default, None):
                raise InputError(
                    f"{spelled(option.name)} does not apply to {name}: a large model is predicted from its sizes",
                    "leave it out; FIELD=VALUE of the job and KEY=VALUE of the config.json apply",
                )


@dataclass(frozen=True, kw_only=True)
class LargeTraining(LargeRequest):
    """A question that may be about the whole training of a large model."""

    tokens: Annotated[float | None, TOKENS, Spelling(metavar="N")] = None
    """Large model: tokens of the whole training, such as 1e12 or 300B, for its time and cost."""
    epochs: Annotated[float | None, ABOVE_0, Spelling(metavar="N")] = None
    """Epochs of the training. For a large model instead of --tokens, with --tokens-per-epoch."""
    tokens_per_epoch: Annotated[float | None, TOKENS, Spelling(metavar="N")] = None
    """Large model: tokens of the data set."""
    target_loss: Annotated[float | None, ABOVE_0, Spelling(metavar="LOSS")] = None
    """Large model: loss to reach, instead of --tokens: by a scaling law in the range of its data, or by the log of --curve."""
    curve: Annotated[str | None, PATH, Spelling(metavar="RUN|FILE")] = None
    """Large model, with --target-loss: a log of this training; its loss is forecast to the target."""

    def training_tokens(self, setting: LargeSetting) -> TrainingTokens | None:
        """Return the tokens of the training that the options state; None if none does.

        Raises: InputError for two that contradict each other, and as `large.tokens` and `plan.effort`.
        """
        from chronograd.large import tokens as known

        given = [name for name in ("tokens", "epochs", "target_loss") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(
                f"{' and '.join(map(spelled, given))} both state the length of the training", "give one of them"
            )
        if self.curve is not None and self.target_loss is None:
            raise InputError("--curve of a large model is forecast to a loss", "add --target-loss")
        if self.tokens is not None:
            return known.TrainingTokens(self.tokens)
        if self.epochs is not None:
            return known.of_epochs(self.epochs, self.tokens_per_epoch)
        if self.target_loss is None:
            return None
        if self.curve is None:
            return known.to_loss(setting, self.target_loss)
        from chronograd.plan.effort import tokens_of_curve

        return tokens_of_curve(Path(self.curve), self.target_loss, setting.step_tokens, self.tokens_per_epoch)

    def as_ordinary(self, what: Any) -> tuple[Self, list[str]]:
        for option in ("tokens", "tokens_per_epoch", "target_loss"):
            if getattr(self, option) is not None:
                raise only_large(option, what, "state --epochs N for a network of code")
        question, fields = super().as_ordinary(what)
        if self.epochs is not None and self.epochs % 1:
            raise InputError(
                f"--epochs {self.epochs:g}: a network of code trains whole epochs", "write --epochs 1 or more"
            )
        fields += [] if self.epochs is None else [f"training.epochs={self.epochs:.0f}"]
        return replace(question, epochs=None), fields


# Names of the options that state the length of a training.
OF_TRAINING = ("tokens", "epochs", "tokens_per_epoch", "target_loss", "curve")


def spelled(option: str) -> str:
    """Return an option as the command line spells it."""
    return "--inference" if option == "mode" else f"--{option.replace('_', '-')}"


# Fields of the job of an ordinary network that an option sets.
ORDINARY: dict[str, Callable[[Any], list[str]]] = {
    "fsdp": lambda _: ["backend=fsdp"],
    "zero": lambda stage: [f"training.zero_stage={stage}"],
    "recompute": lambda name: [f"training.activation_checkpointing={'blocks' if name == 'full' else 'none'}"],
    "sequence": lambda _: [],  # the shape of its samples
}
_INFERENCE = (
    "inference of {name} is not predicted yet, neither its latency nor its throughput",
    "`chronograd count {name}` gives the bytes of its weights, the FLOPs of a forward pass, and the cache of a model that generates text",
)
# The reason why a verb does not answer for a large model, and the nearest question that has an answer.
_DECLINED = {
    "plan inference": _INFERENCE,
    "predict server": _INFERENCE,
    "plan batch": (
        "`plan batch` searches the batch of a network of code, and {name} is described by a config.json",
        "`chronograd plan {name} --on 8xh100 --layouts` finds the largest micro-batch with its layout; `chronograd predict {name} --on h100 "
        "--micro-batch 4` states whether 4 sequences fit",
    ),
    "predict scaling": (
        "`predict scaling` reads a network of code, and {name} is described by a config.json",
        "give each number of devices to `predict`: chronograd predict {name} --on 8xh100 --on 16xh100",
    ),
}


def declined(verb: str, name: str) -> InputError:
    """Return the error of a verb that does not answer for large models."""
    return InputError(*(text.format(name=name) for text in _DECLINED[verb]))


def check_answers(verb: str, what: Any, overrides: Sequence[str] = ()) -> None:
    """Raise InputError for a large model if a verb declines it with its own reason."""
    if verb in _DECLINED and is_large(what, overrides):
        raise declined(verb, os.fspath(what) if isinstance(what, str | os.PathLike) else what.network.name)


def only_large(option: str, what: Any, hint: str = "") -> InputError:
    """Return the error for an option of large models that is given for another network. Raises NotFoundError for an unknown one."""
    name = _known(what)
    hints = {
        "micro_batch": "write training.accumulation=N for the number of micro-batches",
        "recompute": "write --recompute full",
        "lora": "write training.trainable=head to train a part of the network",
    }
    return InputError(
        f"{spelled(option)}{' selective' * (option == 'recompute')} is predicted from a config.json only, and {name} is a network of code",
        hint
        or hints.get(option, "leave it out")
        + ", or name a large model: `chronograd count --list` lists them, and hf:OWNER/NAME reads its config.json",
    )


def _known(what: Any) -> str:
    """Return the name of a network in words. Raises NotFoundError for an unknown one, and JobError for a missing job file."""
    from chronograd import job
    from chronograd.models import names

    if not isinstance(what, str | os.PathLike):
        return "this network"
    name = os.fspath(what)
    if job.is_job_file(name):
        job.plain(name)
        return f"the network of {name}"
    if not os.path.exists(name):
        names.check(name)
    return name


def _check_text(what: Any) -> None:
    """Raise InputError if the samples of a known network are not text."""
    from chronograd.models import names

    known = names.known(os.fspath(what)) if isinstance(what, str | os.PathLike) else None
    if known is not None and len(known.shape) != 1:
        raise InputError(
            f"--sequence is a number of tokens, and {known.name} takes samples of shape {known.shape}",
            f"write --input {','.join(map(str, known.shape))} for images of another size",
        )


def only_batch(batch: Sequence[int]) -> int:
    """Return the batch of an option that takes several. Raises InputError for more than one."""
    if len(batch) > 1:
        raise InputError(f"--batch {','.join(map(str, batch))}", "give one number here")
    return batch[0]


def length_of_input(given: Sequence[Any]) -> int | None:
    """Return the tokens that --input states for a large model; None without it. Raises InputError for another shape."""
    if given and (len(given) != 1 or not re.fullmatch(r"[1-9]\d{0,8}", str(given[0]))):
        raise InputError(f"--input {','.join(map(str, given))} is no length", "write a number of tokens, such as 4096")
    return int(given[0]) if given else None


def is_large(what: Any, overrides: Sequence[str] = ()) -> bool:
    """Return whether a name, a job file or a job is that of a large model. Raises InputError for a file that cannot be read."""
    from chronograd import job as jobs
    from chronograd.models.names import large_model

    if isinstance(what, jobs.Job):
        return large_model(what.network.name) is not None
    if not isinstance(what, str | os.PathLike):
        return False
    name: Any = os.fspath(what)
    if large_model(name) is None and jobs.is_job_file(name) and not os.path.isdir(name):
        own = [word for word in overrides if word.startswith("network.name=")]
        network = jobs.override(jobs.plain(name), own).get("network")
        name = network.get("name") if isinstance(network, dict) else None
    return isinstance(name, str) and large_model(name) is not None
