"""A question for the best layout: the model, its ranks and batch, the fields that do not change, and the command of a layout."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from chronograd import job as jobs
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.large.asking import ask_large, is_job_file
from chronograd.large.setting import LargeSetting
from chronograd.words import dotted, how_many

# Tokens of a step that a usual training of a large model has at least.
USUAL_TOKENS = 2**22
# Fields that the search chooses unless they are stated, by the name of a degree.
_SEARCHED = {
    "sequence": "cluster.layout.sequence",
    "tensor": "cluster.layout.tensor",
    "pipeline": "cluster.layout.pipeline",
    "chunks": "cluster.layout.chunks",
    "context": "cluster.layout.context",
    "expert": "cluster.layout.expert",
    "expert_tensor": "cluster.layout.expert_tensor",
    "zero_stage": "training.zero_stage",
    "recompute": "large.recompute",
}
# Degrees by the name of a short option.
_DEGREES = {
    "tensor": "tensor",
    "pipeline": "pipeline",
    "context": "context",
    "expert": "expert",
    "zero": "zero_stage",
    "fsdp": "zero_stage",
    "recompute": "recompute",
    "micro_batch": "micro_batch",
}
# What `ask_large` assumes about fields that the search chooses.
_CHOSEN = ("(--batch)", "(--fsdp, --tensor, --pipeline)", "(--recompute)")
_REFUSED = {
    "large.offload": "transfers to the host are not searched",
    "cluster.layout.stage_layers": "layers are split as evenly as possible",
    "training.accumulation": "the number of micro-batches follows from their size (--micro-batch)",
}


@dataclass(frozen=True)
class AskedLayouts:
    """A question for the best layout.

    Attributes:
        setting: with any layout; its ranks, batch and options are those of all layouts.
        fixed: values that do not change; see `layouts.grids_of`.
        assumed: values that the user did not state, in words.
        words: of a command that predicts the setting, without its layout.
    """

    setting: LargeSetting
    fixed: dict[str, Any]
    assumed: tuple[str, ...]
    words: tuple[str, ...]

    def command(self, layout: LargeSetting) -> str:
        """Return the command that predicts a layout."""
        degrees = layout.layout
        options = {
            "tensor": degrees.tensor,
            "pipeline": degrees.pipeline,
            "context": degrees.context,
            "expert": degrees.expert,
            "zero": layout.training.zero_stage,
            "recompute": layout.options.recompute,
        }
        usual = {"zero": 0, "recompute": "none"}
        found = _spelled({name: value for name, value in options.items() if value != usual.get(name, 1)})
        is_file = is_job_file(self.words[0])
        sizes = [f"training.accumulation={layout.micro_batches}"]
        found += sizes if is_file else _spelled({"micro-batch": layout.micro_batch})
        found += ["cluster.layout.sequence=false"] if not degrees.sequence else []
        if degrees.chunks > 1:
            found += [f"cluster.layout.chunks={degrees.chunks}", "cluster.layout.schedule=interleaved"]
        if degrees.stage_layers:
            found.append(f"cluster.layout.stage_layers=[{','.join(map(str, degrees.stage_layers))}]")
        if degrees.expert_tensor not in (None, degrees.tensor):
            found.append(f"cluster.layout.expert_tensor={degrees.expert_tensor}")
        return shlex.join(["chronograd", "predict", *self.words, *found])


def ask_layouts(
    what: str | os.PathLike[str] | Job,
    words: Sequence[str],
    short: Mapping[str, Any],
    place: str | None,
    counts: Sequence[int] = (),
    usual: Mapping[str, str] = MappingProxyType({}),
) -> AskedLayouts:
    """Return a question for the best layout.

    Args:
        what, words, short, place: as those of `ask_large`; `short` may also have `micro_batch`.
        usual: `FIELD=VALUE` for fields that the user does not state, each with its description.
        counts: numbers of devices that share one global batch; by default only that of the place.
    Raises: as `ask_large`, and InputError for fields that the search ignores.
    """
    given = _stated(what, words)
    usual = {word: text for word, text in usual.items() if _field(word) not in given}
    words = [*words, *usual]
    searched = [
        word for word in words if _field(word) in _SEARCHED.values() or word == "cluster.layout.schedule=interleaved"
    ]
    further = [word for word in words if word not in searched]
    options = {name: value for name, value in short.items() if name not in (*_DEGREES, "batch")}
    asked = ask_large(what, further, options, place)
    stated = _stated(what, further)
    for field, reason in _REFUSED.items():
        if field in stated:
            raise InputError(f"{field} is stated, and the search over layouts ignores it", f"leave it out: {reason}")
    setting, assumed = asked.setting, [text for text in asked.assumed if not text.endswith(_CHOSEN)]
    assumed += usual.values()
    batch = short.get("batch") or (setting.training.batch if "training.batch" in stated else None)
    if batch is None:
        multiple = _divided(counts, setting.sequence) or setting.ranks
        batch = multiple * -(-USUAL_TOKENS // (setting.sequence * multiple))
        assumed.insert(0, f"{how_many(batch, 'sequences')} per step (--batch), at least {USUAL_TOKENS:,} tokens")
    training = setting.training.model_copy(update={"batch": batch, "accumulation": 1})
    setting = replace(setting, job=setting.job.model_copy(update={"training": training}))
    fixed = _fixed(setting, stated, short, searched)
    if "expert_tensor" not in fixed and setting.has_experts:
        fixed["expert_tensor"] = 1
        assumed.append("whole experts on a rank (cluster.layout.expert_tensor)")
    return AskedLayouts(setting, fixed, tuple(assumed), _words(what, further, options, place, setting))


def _divided(counts: Sequence[int], sequence: int) -> int:
    """Return the sequences that each number of devices divides, if it is not too large for a usual step; 0 for no number."""
    able = [count for count in counts if count * sequence <= USUAL_TOKENS]
    return math.lcm(*able) if able else 0


def _field(word: str) -> str:
    return word.partition("=")[0].strip()


def _stated(what: str | os.PathLike[str] | Job, words: Sequence[str]) -> set[str]:
    """Return the fields that a job file, a job or overrides state."""
    found = set(map(_field, words))
    if isinstance(what, Job):
        return found | {name for name, _ in dotted(jobs.stated(what))}
    return found | ({name for name, _ in dotted(jobs.plain(Path(what)))} if is_job_file(what) else set())


def _fixed(setting: LargeSetting, stated: set[str], short: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the degrees that the job, short options or overrides state. Raises InputError for two that state the same one."""
    where = {"zero_stage": setting.training, "recompute": setting.options}
    found = {
        name: getattr(where.get(name, setting.layout), name) for name, field in _SEARCHED.items() if field in stated
    }
    of_words = dict(dotted(jobs.override({}, words)))
    found |= {name: of_words[field] for name, field in _SEARCHED.items() if field in of_words}
    for option, value in short.items():
        name = _DEGREES.get(option, "")
        if name and _SEARCHED.get(name) in of_words:
            raise InputError(f"{_SEARCHED[name]} and --{option} both set the same degree", "give one of them")
        found |= {name: 3 if option == "fsdp" else value} if name else {}
    return found


def _words(
    what: str | os.PathLike[str] | Job,
    words: Sequence[str],
    options: Mapping[str, Any],
    place: str | None,
    setting: LargeSetting,
) -> tuple[str, ...]:
    """Return the words that state everything except the layout."""
    name = setting.job.network.name if isinstance(what, Job) else os.fspath(what)
    further = [word for word in words if _field(word) not in ("training.batch", "data.shape")]
    on = ["--on", place] if place else []
    named = {name: options[name] for name in ("precision", "lora", "qlora") if name in options}
    named |= {"sequence": setting.sequence, "batch": setting.training.batch}
    return (name, *further, *on, *_spelled(named))


def _spelled(options: Mapping[str, Any]) -> list[str]:
    """Return options as the words of a command."""
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]
