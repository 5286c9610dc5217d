"""`count NETWORK|JOB`: the work of a network."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from chronograd.errors import InputError, require
from chronograd.verbs.jobs import JobRequest, fields_of_inputs, trace_module
from chronograd.verbs.kinds import complete_jobs
from chronograd.verbs.large import is_large, length_of_input
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import waiting

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.configs.answer import CountedConfig
    from chronograd.count.layers import Counted
    from chronograd.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Count(Request):
    """Count parameters, MACs, FLOPs, bytes, activations and receptive fields.

    NETWORK is a built-in name, torchvision:NAME, timm:NAME, FILE.py:CLASS or package.module:function; FIELD=VALUE are then its
    keyword arguments. It may also be a job file, a saved trace, or in Python a module with `input_shape`. Nothing is downloaded
    and no weights are allocated.

    A large model is a `config.json` of Hugging Face, its folder, hf:NAME in the cache of Hugging Face, or a name such as
    llama-3-8b. FIELD=VALUE are then other values of its keys.
    """

    verb = "count"
    examples = (
        "chronograd count vgg19 --show-work",
        "chronograd count torchvision:resnet50 --batch 32 --json",
        "chronograd count llama-7b --depth 2",
        "chronograd count llama-3-8b --input 4096",
    )

    network: Annotated[Any, Spelling(metavar="NETWORK|JOB|TRACE|CONFIG", is_argument=True, complete=complete_jobs)] = (
        None
    )
    overrides: Annotated[tuple[str, ...], Spelling(metavar="[FIELD=VALUE]...", is_argument=True)] = ()
    batch: Annotated[int | None, click.IntRange(1)] = None
    """Samples in one step; default: the job's batch, else 1."""
    inputs: Annotated[Any, Spelling(metavar="FILE.py:NAME")] = None
    """An object with the network's arguments, or a function without arguments that returns it."""
    input: Annotated[tuple[Any, ...], Spelling(metavar="C,H,W", aliases=("input_shape",))] = ()
    """Shape of one sample; or NAME:SHAPE:DTYPE for each tensor, such as tokens:128:int64, or step::int64 for one number. Of a large
    model: tokens of a sequence.
    """
    classes: Annotated[int | None, click.IntRange(1), Spelling(aliases=("num_classes",))] = None
    """Size of the head."""
    mode: Literal["training", "inference"] = "training"
    loss: Annotated[Any, Spelling(metavar="NAME|FILE.py:NAME")] = None
    """cross_entropy (default), mse (against an input of the output's shape, else a target), sum, or a function (outputs, inputs).
    """
    channels_last: bool = False
    """Use the memory format NHWC."""
    optimizer: Literal["sgd", "sgd-momentum", "adamw"] | None = None
    """Optimizer whose state counts as memory; default: the job's, else sgd-momentum."""
    fixed_batch: Annotated[int | None, click.IntRange(1)] = None
    """Trace at this batch only, for networks that loop over it."""
    show_work: Annotated[bool, Spelling(aliases=("with_work",))] = False
    """Show each layer's formulas with the numbers inserted; of a large model, every tensor."""
    depth: Annotated[int | None, click.IntRange(1)] = None
    """Depth of the module names in the table; by default one row per layer."""
    list: bool = False
    """List the names of networks."""
    out: Annotated[Path | None, FILE] = None
    """Save the trace (.json or .json.gz)."""

    def answer(self) -> Answer[Counted | CountedConfig]:
        if self.list:
            from chronograd.models.names import listed

            return listed()
        if self.network is None:
            raise InputError(
                "no network was given", "name a network, a job file or a saved trace; --list shows the names"
            )
        if isinstance(self.network, str | os.PathLike):
            from chronograd.models.names import large_model

            if (path := large_model(self.network)) is not None:
                return self._of_config(path)
            if os.sep in os.fspath(self.network) and os.path.isdir(self.network):
                raise InputError(
                    f"{self.network} is a folder without a config.json", "name a network, or a folder that holds one"
                )
        if is_large(self.network, self.overrides):
            return self._of_large_job()
        from chronograd.count.answer import count

        with waiting("counting the work of the network"):
            trace, batch, optimizer = self._counted()
        if self.out is not None:
            trace.save(self.out)
        optimizer = self.optimizer or optimizer or "sgd-momentum"
        return count(trace, self.batch or batch, optimizer, with_work=self.show_work, depth=self.depth)

    def _of_large_job(self) -> Answer[CountedConfig]:
        """Return the counts of the large model of a job, at its length and at the batch of a rank unless options state others."""
        from chronograd.large.asking import work_of
        from chronograd.models.names import large_model

        job, length, batch = work_of(self.network, self.overrides)
        path = large_model(job.network.name)
        assert path is not None
        shape = self.input or (() if length is None else (length,))
        keys = tuple(f"{key}={json.dumps(value)}" for key, value in job.network.options.items())
        question = replace(self, network=job.network.name, overrides=keys, input=shape, batch=self.batch or batch)
        return question._of_config(path)

    def _of_config(self, path: Path) -> Answer[CountedConfig]:
        """Return the counts of a large model from its `config.json`. Raises InputError for options that it does not have."""
        from chronograd.configs.answer import count_config
        from chronograd.configs.find import load
        from chronograd.configs.readers import is_read
        from chronograd.files import parsed_options

        name = os.fspath(self.network)
        own = ("network", "overrides", "batch", "input", "show_work")
        for option in dataclasses.fields(self):
            if option.name not in own and getattr(self, option.name) != option.default:
                raise InputError(
                    f"--{option.name.replace('_', '-')} does not apply to {name}: a large model is counted from its sizes",
                    "leave it out; --input LENGTH, --batch, --show-work and KEY=VALUE apply",
                )
        length = length_of_input(self.input)
        options = parsed_options(self.overrides)
        given: dict[str, Any] = {"length": length, "batch": self.batch or 1, "with_tensors": self.show_work}
        if is_read(load(path)):
            return count_config(path, name, options, **given)
        require("transformers", "transformers", "counting a family that Chronograd does not read")
        with waiting("building the network with the library Transformers"):
            from chronograd.count.unread import count_unread

            return count_unread(path, name, options, **given)

    def after(self, answer: Answer, as_json: bool) -> None:
        if self.out is not None and not as_json:
            click.echo(f"saved {self.out}")

    def _counted(self) -> tuple[Trace, int, str | None]:
        """Return the trace, the batch of a rank, and the optimizer. If there is a job, the last two are the job's."""
        from chronograd.job import Job, is_job_file
        from chronograd.trace import Trace

        settings: dict[str, Any] = {
            "mode": self.mode,
            "loss": self.loss or "cross_entropy",
            "fixed_batch": self.fixed_batch,
            "channels_last": self.channels_last,
        }
        if isinstance(self.network, Trace):
            return self.network, 1, None
        name = os.fspath(self.network) if isinstance(self.network, str | os.PathLike) else ""
        if isinstance(self.network, Job) or is_job_file(name):
            given = {"input": self.input, "inputs": self.inputs, "loss": self.loss}
            job = JobRequest(job=self.network, overrides=self.overrides, **given).asked().job
            from chronograd.data.trace_job import trace_job

            return trace_job(job), -(-job.training.batch // job.cluster.count), job.training.optimizer_kind
        if name.endswith((".json", ".json.gz")):
            return Trace.load(name), 1, None
        if not name:
            return trace_module(self.network, self.input, self.inputs, **settings), 1, None
        given = fields_of_inputs(self.input, self.inputs)
        from chronograd.count.cached import cached_trace
        from chronograd.files import parsed_options

        named = {"input_shape": given["input"]} if "input" in given else given
        settings |= {"num_classes": self.classes, **named}
        return cached_trace(name, parsed_options(self.overrides), **settings), 1, None


REQUESTS = (Count,)
