"""A job from the user's words: a job file, or a network with its data and a recipe known to train it.

    resnet50 --data imagenet      the network on a set of the catalogue, with the recipe of its published result
    resnet20                      the network on the data of its published result
    resnet18 --data folder:imgs   fine-tuning from pretrained weights
    my_net.py:MyNet --input 3,224,224 --classes 10
                                  a file of the user's, on synthetic images
    gpt2-small                    a language model, on synthetic text of its length and vocabulary; --input 512 for shorter text

`ask` also lists the fields that the user did not state, so that an answer can state them as assumptions.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chronograd import files, known, trust
from chronograd import job as jobs
from chronograd.data import catalogue, published
from chronograd.errors import InputError, MissingExtraError
from chronograd.job import Data, Job, Training
from chronograd.models import names
from chronograd.units import percent
from chronograd.usual import Usual, optimizer_words, usual_training
from chronograd.words import how_many, layout_name

if TYPE_CHECKING:
    from chronograd.trace import Trace

# The usual data set of a classifier of 1,000 classes.
USUAL = "imagenet"
# Fields of a job with a short form, by the name of the option or argument.
SHORT = {
    "data": "data.name",
    "input": "data.shape",
    "inputs": "network.inputs",
    "classes": "data.classes",
    "batch": "training.batch",
    "precision": "training.precision",
    "loss": "training.loss",
    "mode": "mode",
}


@dataclass(frozen=True)
class Asked:
    """A job, and the fields that the user stated.

    Attributes:
        stated: fields that the user stated, such as `training.batch`.
        usual: the default training of a network without a job file; None with a job file.
        has_data: False if the job has synthetic samples, because no data set is named or known.
        has_layout_of_trace: whether the memory layout is that of a saved trace instead of the recipe's.
    """

    job: Job
    stated: frozenset[str]
    usual: Usual | None = None
    has_data: bool = True
    has_layout_of_trace: bool = False

    @property
    def has_epochs(self) -> bool:
        """Return whether the epochs come from the user, a job file or a known recipe."""
        return self.usual is None or self.usual.has_epochs or "training.epochs" in self.stated

    def for_a_plan(self, has_epochs: bool) -> list[str]:
        """Return the assumptions of a plan, which searches batch and precision itself.

        Args:
            has_epochs: whether the epochs are known from another source.
        """
        left_out = {"batch", "precision", *(["epochs", "image size"] if has_epochs else [])}
        return [words for subject, words in self.assumed.items() if subject not in left_out]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return sentences that a user must know before training."""
        return () if self.usual is None or self.job.network.weights else self.usual.notes

    @property
    def assumed(self) -> dict[str, str]:
        """Return the fields that the user did not state, as text, by subject: data, optimizer, epochs, batch, precision."""
        training, data, parts = self.job.training, self.job.data, {}
        if "data.name" not in self.stated:
            of_shape = f"samples of shape {'×'.join(map(str, data.shape))}" if data.shape else "random inputs"
            parts["data"] = f"data set {data.name}" if self.has_data else f"{of_shape} (no data set is known)"
        if self.job.mode == "training":
            if not self.stated & {"training.optimizer", "training.recipe"}:
                parts["optimizer"] = f"{optimizer_words(training)} ({self.usual.words if self.usual else 'default'})"
                if self.usual is not None and self.usual.training.get("recipe") == "fine-tuning":
                    parts |= _of_fine_tuning(training, self.stated)
            if "training.epochs" not in self.stated and self.has_epochs:
                parts["epochs"] = how_many(training.epochs, "epochs")
            if self.usual is not None and self.usual.image_size and "data.image_size" not in self.stated:
                own = self.job.data.image_size
                parts["image size"] = (
                    f"training images of {how_many(own, 'pixels')}"
                    if own
                    else (f"images as counted; the recipe trains at {how_many(self.usual.image_size, 'pixels')}")
                )
            if "training.batch" not in self.stated:
                parts["batch"] = f"batch {training.batch}"
        if self.has_layout_of_trace and "training.channels_last" not in self.stated:
            parts["layout"] = f"memory layout {layout_name(self.job.training.channels_last)}, as in the saved trace"
        if "training.precision" not in self.stated:
            parts["precision"] = f"precision {training.precision}"
        return parts


def _of_fine_tuning(training: Training, stated: Collection[str]) -> dict[str, str]:
    """Return the fields of fine-tuning that no published recipe states, as text."""
    own, parts = training.augmentation, {}
    if "training.learning_rate" not in stated:
        parts["learning rate"] = f"learning rate {training.learning_rate:g}, schedule {training.schedule}"
    if not any(field.startswith("training.augmentation") for field in stated) and own.resized_crop:
        mirrored = ", mirrored half of the time" if own.flip else ""
        parts["augmentation"] = f"random crops of {percent(own.resized_crop, 0)} of the area or more{mirrored}"
    return parts


def ask(
    what: str | Path,
    overrides: Sequence[str] = (),
    short: Mapping[str, Any] | None = None,
    target: float | None = None,
    *,
    can_download: bool = False,
    is_counted: bool = False,
) -> Asked:
    """Return the job that the user describes, and the fields that the user stated.

    Args:
        what: the path of a job file, or the name of a network: of the zoo, `torchvision:NAME`, `timm:NAME`, `FILE.py:CLASS`,
            `package.module:function`, or the path of a saved trace.
        overrides: `FIELD=VALUE` of a job.
        short: values of fields by their short form, a key of `SHORT`.
        target, can_download: see `usual_training`.
        is_counted: the network was counted before, at the usual image size, so a recipe does not change it.
    Raises: JobError for an invalid job, NotFoundError for a name, InputError if a network's samples are unknown.
    """
    given = _without_none(short or {})
    trust.name(str(what))
    names.check_not_large(what)
    stated = {SHORT[key] for key in given} | {text.partition("=")[0].strip() for text in overrides}
    if jobs.is_job_file(what):
        job = jobs.load(what, [*as_overrides(given), *overrides])
        check_ordinary(job)
        return Asked(job, frozenset(stated | _fields_of(Path(what))))
    name = names.resolved(str(what))
    traced = _trace_of(name)
    if traced is not None:
        given = {"mode": traced.mode, **given}
    plain, usual = _of_network(name, given, overrides, target, can_download, is_counted)
    has_layout = traced is not None and traced.channels_last != Training(**plain["training"]).channels_last
    if traced is not None and has_layout:
        plain["training"]["channels_last"] = traced.channels_last
    job = jobs.from_dict(jobs.override(plain, overrides), f"the job of {what}")
    check_ordinary(job)
    has_data = job.data.name not in ("synthetic", jobs.TOKENS, jobs.INPUTS) or job.data.samples is not None
    return Asked(job, frozenset(stated), usual, has_data, has_layout)


def job_of(
    what: str | Path | Job,
    overrides: Sequence[str] = (),
    short: Mapping[str, Any] | None = None,
    target: float | None = None,
) -> Job:
    """Return the job that the user describes, or a given one with overrides. Arguments and errors as of `ask`."""
    if isinstance(what, Job):
        return jobs.changed(what, overrides)
    return ask(what, overrides, short, target).job


def check_ordinary(job: Job) -> None:
    """Raise InputError for the job of a large model, and for settings that only a large model has."""
    names.check_not_large(job.network.name)
    for field, given in (("cluster.layout", job.cluster.layout), ("large", job.large)):
        if given is not None:
            raise InputError(
                f"the job has {field}, which only a large model has, and {job.network.name} is an ordinary network",
                f"leave {field} out, or name a config.json or such as llama-3-8b in network.name",
            )


def _fields_of(path: Path) -> set[str]:
    """Return the fields that a job file states, such as `training.batch`."""
    data = files.parse_yaml(files.read_bytes(path, jobs.MAX_JOB_BYTES).decode())
    sections = {name: value for name, value in data.items() if isinstance(value, dict)}
    return set(data) | {f"{name}.{field}" for name, value in sections.items() for field in value}


def is_batch_stated(job: Job, what: str | Path, overrides: Sequence[str]) -> bool:
    """Return whether a job file or an override states the batch; else it is a recipe's."""
    return any(text.startswith("training.batch=") for text in overrides) or (
        jobs.is_job_file(what) and "batch" in job.training.model_fields_set
    )


def _is_trace(text: str) -> bool:
    return text.endswith((".json", ".json.gz"))


def as_overrides(short: Mapping[str, Any]) -> list[str]:
    """Return short forms as `FIELD=VALUE`, without those that are None.

    >>> as_overrides({"input": (3, 224, 224), "data": None})
    ['data.shape=[3, 224, 224]']
    """
    given = {SHORT[key]: value for key, value in _without_none(short).items()}
    return [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in given.items()]


def _without_none(short: Mapping[str, Any]) -> dict[str, Any]:
    """Return the short forms that are set, with the data set's full name."""
    given = {key: value for key, value in short.items() if value is not None}
    return {**given, "data": set_named(str(given["data"]))} if "data" in given else given


def set_named(text: str) -> str:
    """Return the name of a data set. A path of a folder becomes `folder:PATH`, unless a set has that name.

    >>> set_named("digits"), set_named(".")
    ('digits', 'folder:.')
    """
    is_set = ":" in text or text in published.SETS or text in catalogue.sets()
    return text if is_set or not os.path.isdir(text) else f"folder:{text}"


def samples_of(network: str, shape: Sequence[int] | None = None) -> tuple[tuple[int, ...], int | None]:
    """Return shape of a sample and number of classes of a network without a data set: as stated, else its own.

    Raises: NotFoundError for a name, InputError if the shape is unknown.
    """
    if not _is_trace(network):
        names.check(network)
    return _own(network, shape)


def _of_network(
    network: str,
    given: Mapping[str, Any],
    overrides: Sequence[str],
    target: float | None,
    can_download: bool,
    is_counted: bool,
) -> tuple[dict[str, Any], Usual]:
    """Return the job of a network as plain data, without overrides, and the source of its training."""
    if not _is_trace(network):
        names.check(network)
    own = _own_inputs(network, given, overrides)
    if own is not None:
        network_fields = {"name": network, **({"inputs": list(own)} if own else {})}
        data = {"name": jobs.INPUTS, **({"classes": given["classes"]} if "classes" in given else {})}
        training = {key: given[key] for key in ("batch", "precision", "loss") if key in given}
        modes = {"mode": given["mode"]} if "mode" in given else {}
        return {**modes, "network": network_fields, "data": data, "training": training}, Usual()
    data = _data(network, given, overrides)
    usual = usual_training(name_of(network), Data(**data), target, can_download)
    is_counted = is_counted or _is_trace(network)
    layout = {"channels_last"} if is_counted else set()  # the layout of the trace applies
    fields = {key: value for key, value in usual.training.items() if key not in layout}
    training = {**fields, **{key: given[key] for key in ("batch", "precision", "loss") if key in given}}
    is_free = not (is_counted or {"image_size", "shape"} & data.keys())
    if usual.image_size and is_free and given.get("mode") != "inference":
        data["image_size"] = usual.image_size
    elif is_free and (size := _other_size(network, data["name"])):
        data["image_size"] = size
    mode = {"mode": given["mode"]} if "mode" in given else {}
    weights = {"weights": usual.weights} if usual.weights else {}
    return {**mode, "network": {"name": network, **weights}, "data": data, "training": training}, usual


def name_of(network: str) -> str:
    """Return the usual name of a network: that in a saved trace, else the name itself."""
    traced = _trace_of(network)
    return network if traced is None else traced.network


def _trace_of(network: str) -> Trace | None:
    """Return the saved trace if a network is named by its path; None for a name."""
    if not _is_trace(network):
        return None
    from chronograd.trace import Trace

    return Trace.load(network)


def _own_inputs(network: str, given: Mapping[str, Any], overrides: Sequence[str]) -> Sequence[str] | None:
    """Return the inputs of a network that needs more than one image or one row of tokens per sample, or has its own loss; else
    None.
    """
    if given.get("inputs"):
        return list(given["inputs"])
    stated = dict(text.split("=", 1) for text in overrides if "=" in text)
    if "network.inputs" in stated:
        return []
    if "data" in given or any(key.startswith("data.") for key in stated):
        return None
    has_loss = "loss" in given or "training.loss" in stated
    if (trace := _trace_of(network)) is not None:
        return None if (trace.takes_images or trace.takes_tokens) and not has_loss else []
    shape = given.get("input")
    if not has_loss and (names.known(network) is not None or (shape is not None and len(shape) == 3)):
        return None
    names.require_library(network)
    from chronograd.models import registry

    spec = registry.spec(network)
    if spec.inputs and shape is None:
        return spec.inputs
    shape = shape or spec.input_shape
    if shape is None:
        return None
    if not has_loss and (len(shape) == 3 or (len(shape) == 1 and _takes_tokens(network, given))):
        return None
    return ["x".join(map(str, shape))]


def _takes_tokens(network: str, given: Mapping[str, Any]) -> bool:
    """Return whether a network takes a row of numbers as tokens: it begins with an embedding."""
    from chronograd.count.calls import takes_tokens
    from chronograd.models import registry

    try:
        return takes_tokens(registry.build(network, num_classes=given.get("classes"), device="meta"))
    except InputError:  # such as a network that needs its vocabulary
        return "classes" not in given


def _data(network: str, given: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the data section: the named set, else that of a published result, else synthetic samples of the network's own
    shape.
    """
    stated = dict(text.split("=", 1) for text in overrides if "=" in text)
    name, shape, classes = given.get("data", stated.get("data.name")), given.get("input"), given.get("classes")
    if name is None and shape is None and "data.shape" not in stated:
        name, shape, classes = _known_data(network, classes)
    is_text = name == jobs.TOKENS or (name in catalogue.sets() and catalogue.sets()[name].is_text)
    if name is None and shape is None and network in names.zoo():
        shape = names.zoo()[network].shape if len(names.zoo()[network].shape) == 1 else None
    if is_text or (name is None and shape is not None and len(shape) == 1):
        return _text(network, name or jobs.TOKENS, shape, classes)
    if name is None:
        sizes = {"shape": list(shape)} if shape else {}
        return {"name": "synthetic", **sizes, "classes": classes or 1000}
    data: dict[str, Any] = {"name": name}
    if classes is not None:
        data["classes"] = classes
    if shape is not None and name in {*catalogue.sets(), *published.SETS} and shape[-1] == shape[-2]:
        data["image_size"] = shape[-1]
    elif shape is not None:
        data["shape"] = list(shape)
    return data


def _known_data(network: str, classes: int | None) -> tuple[str | None, Sequence[int] | None, int | None]:
    """Return name, shape and classes of the data of a network if the user states no data; the last two only if they differ."""
    name = known.data_of(name_of(network))
    if name is not None and not _is_trace(network):
        return name, None, classes
    shape, own_classes = _own(network)
    classes = classes or own_classes
    if name is None and (tuple(shape), classes) == ((3, 224, 224), 1000):
        name = USUAL
    if name is None or (card := _card(name)).num_classes != classes:
        return None, shape, classes
    return name, None if tuple(shape) == card.shape else shape, None


def _other_size(network: str, name: str) -> int | None:
    """Return the side in pixels if results of a library's network on a data set have larger or smaller images; else None."""
    if network in names.zoo() or network.partition(":")[0] not in names.LIBRARIES or known.data_of(network) != name:
        return None
    try:
        shape, _ = _own(network)
    except MissingExtraError:  # without the library only a saved trace can be used
        return None
    return None if len(shape) != 3 or shape == _card(name).shape else shape[-1]


def _card(name: str) -> published.DatasetCard:
    from chronograd.data.datasets import card

    return card(Data(name=name))


def _text(network: str, name: str, shape: Sequence[int] | None, classes: int | None) -> dict[str, Any]:
    """Return the data section of text: by default, samples of the network's length and vocabulary."""
    if shape is None or classes is None:
        own_shape, own_classes = _own(network, shape)
        shape, classes = shape or own_shape, classes or own_classes
    if len(shape) != 1:
        raise InputError(
            f"{name} is text, but {network} takes samples of shape {tuple(shape)}",
            "name a language model, such as gpt2-small, or a set of images",
        )
    if classes is None:
        raise InputError(
            f"the vocabulary size of {network} is unknown", "write --classes with the size of the vocabulary"
        )
    return {"name": name, "shape": list(shape), "classes": classes}


def _own(network: str, known_shape: Sequence[int] | None = None) -> tuple[tuple[int, ...], int | None]:
    """Return shape of a sample and number of classes that a network expects. Raises InputError if they are unknown."""
    if (trace := _trace_of(network)) is not None:
        classes = [trace.tensors[i].shape[-1].const for i in trace.outputs if len(trace.tensors[i].shape) in (2, 3)]
        return tuple(size.const for size in trace.input_shapes[0][1:]), classes[0] if classes else None
    shape: tuple[int, ...]
    if (inside := names.known(network)) is not None:
        shape, num_classes = inside.shape, inside.classes
    else:
        names.require_library(network)
        from chronograd.models import registry

        spec = registry.spec(network)
        shape, num_classes = spec.input_shape or (), spec.num_classes
    if known_shape is not None:
        return tuple(known_shape), num_classes
    if not shape:
        raise InputError(f"the sample shape of {network} is unknown", "write --data NAME, or --input 3,224,224")
    if len(shape) not in (1, 3):
        raise InputError(
            f"{network} takes samples of shape {shape}, but a job needs images or text",
            f"count it: chronograd count {network}",
        )
    return shape, num_classes
