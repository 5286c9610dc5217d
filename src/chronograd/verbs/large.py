"""Shared options of the verbs on a large model: short forms of its layout, its batch and its memory."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, PATH, TOKENS
from chronograd.verbs.request import Request, Spelling

if TYPE_CHECKING:
    from chronograd.large.asking import AskedLarge
    from chronograd.large.setting import LargeSetting
    from chronograd.large.tokens import TrainingTokens

AT_LEAST_1 = click.IntRange(1)


@dataclass(frozen=True, kw_only=True)
class LargeRequest(Request):
    """A question that may be about a large model."""

    sequence: Annotated[int | None, AT_LEAST_1, Spelling(metavar="TOKENS")] = None
    """Large model: tokens of a sequence; by default the length in its config.json."""
    micro_batch: Annotated[int | None, AT_LEAST_1, Spelling(metavar="N")] = None
    """Large model: sequences that a rank computes together; default: 1, or with --batch the most that fit."""
    fsdp: bool = False
    """Large model: shard parameters, gradients and optimizer state over the data-parallel ranks (ZeRO stage 3)."""
    zero: Annotated[int | None, click.IntRange(0, 3), Spelling(metavar="STAGE")] = None
    """Large model: ZeRO stage: 1 shards the optimizer state, 2 also gradients, 3 also parameters."""
    tensor: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share each matrix (tensor parallelism)."""
    pipeline: Annotated[int | None, AT_LEAST_1, Spelling(metavar="STAGES")] = None
    """Large model: pipeline stages."""
    context: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share each sequence (context parallelism)."""
    expert: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANKS")] = None
    """Large model: ranks that share the experts of a layer (expert parallelism)."""
    recompute: Literal["none", "selective", "full"] | None = None
    """Large model: activations that backward computes again."""
    lora: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANK")] = None
    """Large model: train LoRA matrices of this rank instead of the model."""
    qlora: Annotated[int | None, AT_LEAST_1, Spelling(metavar="RANK")] = None
    """Large model: LoRA on a model that is stored in 4 bits."""

    def of_large(self) -> dict[str, Any]:
        """Return the options of large models that were given, by name."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(LargeRequest)}
        return {name: value for name, value in named.items() if value is not None and value is not False}

    def check_ordinary(self, name: str) -> None:
        """Raise InputError if an option of large models is given for an ordinary network."""
        for option in self.of_large():
            raise only_large(option, name)

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
    """Large model: epochs of the training, instead of --tokens; needs --tokens-per-epoch."""
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

    def check_ordinary(self, name: str) -> None:
        super().check_ordinary(name)
        for option in ("tokens", "epochs", "tokens_per_epoch", "target_loss"):
            if getattr(self, option) is not None:
                raise only_large(option, name, "state training.epochs=N for an ordinary network")


# Names of the options that state the length of a training.
OF_TRAINING = ("tokens", "epochs", "tokens_per_epoch", "target_loss", "curve")


def spelled(option: str) -> str:
    """Return an option as the command line spells it."""
    return "--inference" if option == "mode" else f"--{option.replace('_', '-')}"


def only_large(option: str, name: str, hint: str = "") -> InputError:
    """Return the error for an option of large models that is given for another network."""
    return InputError(
        f"{spelled(option)} applies to large models only, and {name} is not one of them",
        hint
        or "leave it out, or name a large model: `chronograd count --list` lists them, and hf:OWNER/NAME reads its config.json",
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
    if name.endswith((".yaml", ".yml")):
        own = [word for word in overrides if word.startswith("network.name=")]
        network = jobs.override(jobs.plain(name), own).get("network")
        name = network.get("name") if isinstance(network, dict) else None
    return isinstance(name, str) and large_model(name) is not None
