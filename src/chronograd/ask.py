"""A job from what a user names: a job file, or a network with its data and the recipe that is known to train it.

resnet50 --data imagenet      the network on a set of the catalogue, with the recipe of its published result
resnet20                      the network on the data of its published result
my_net.py:MyNet --input 3,224,224 --classes 10
                              a file of the user's, on synthetic images
gpt2-small                    a language model, on synthetic text of its own length and vocabulary; --input 512 for shorter
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd import known, trust
from chronograd.data import catalogue, published
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.models import names

# The data on which a classifier of 1,000 classes is trained.
USUAL = "imagenet"
# Of a recipe that nobody asked for by a target: a global batch of one device.
USUAL_BATCH = 256
# Fields of a job that have a short form, by the name of the option or argument.
SHORT = {
    "data": "data.name",
    "input": "data.shape",
    "inputs": "network.inputs",
    "classes": "data.classes",
    "batch": "training.batch",
    "precision": "training.precision",
    "mode": "mode",
}


def job_of(
    what: str | Path, overrides: Sequence[str] = (), short: Mapping[str, Any] | None = None, target: float | None = None
) -> Job:
    """The job that is meant.

    Args:
        what: the path of a job file, or the name of a network: of the zoo, `torchvision:NAME`, `timm:NAME`, `FILE.py:CLASS`,
            `package.module:function`, or the path of a saved trace.
        overrides: `FIELD=VALUE` of a job.
        short: values of fields by their short form, a key of `SHORT`.
        target: an accuracy to be reached; of the known recipes, the one with the least work that gets there is taken.
    Raises: JobError for a job that is not valid, NotFoundError for a name, InputError where a network's samples are not known.
    """
    given = _without_none(short or {})
    trust.name(str(what))
    if is_job_file(what):
        return jobs.load(what, [*as_overrides(given), *overrides])
    return jobs.from_dict(
        jobs.override(_of_network(names.resolved(str(what)), given, overrides, target), overrides), f"the job of {what}"
    )


def is_batch_stated(job: Job, what: str | Path, overrides: Sequence[str]) -> bool:
    """Whether a job file or an override says the batch; else it is a recipe's."""
    return any(text.startswith("training.batch=") for text in overrides) or (
        is_job_file(what) and "batch" in job.training.model_fields_set
    )


def is_job_file(what: str | Path) -> bool:
    """Whether it is a job file rather than the name of a network."""
    text = str(what)
    if text.endswith((".yaml", ".yml")):
        return True
    return ":" not in text and not _is_trace(text) and ("/" in text or Path(text).is_file())


def _is_trace(text: str) -> bool:
    return text.endswith((".json", ".json.gz"))


def as_overrides(short: Mapping[str, Any]) -> list[str]:
    """Short forms as `FIELD=VALUE`; None is left out.

    >>> as_overrides({"input": (3, 224, 224), "data": None})
    ['data.shape=[3, 224, 224]']
    """
    given = {SHORT[key]: value for key, value in _without_none(short).items()}
    return [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in given.items()]


def _without_none(short: Mapping[str, Any]) -> dict[str, Any]:
    """Short forms that are given, with the data set's name in full."""
    given = {key: value for key, value in short.items() if value is not None}
    return {**given, "data": set_named(str(given["data"]))} if "data" in given else given


def set_named(text: str) -> str:
    """Return the name of a data set; a folder that exists is one of pictures, unless a set has that name.

    >>> set_named("digits"), set_named(".")
    ('digits', 'folder:.')
    """
    is_set = ":" in text or text in published.SETS or text in catalogue.sets()
    return text if is_set or not Path(text).is_dir() else f"folder:{text}"


def samples_of(network: str, shape: Sequence[int] | None = None) -> tuple[tuple[int, ...], int | None]:
    """Shape of a sample and number of classes of a network, without a set of data: what is stated, else its own.

    Raises: NotFoundError for a name, InputError where nothing says the shape.
    """
    if not _is_trace(network):
        names.check(network)
    return _own(network, shape)


def _of_network(
    network: str, given: Mapping[str, Any], overrides: Sequence[str], target: float | None
) -> dict[str, Any]:
    """The job of a network as plain data, without overrides."""
    if not _is_trace(network):
        names.check(network)
    own = _own_inputs(network, given, overrides)
    if own is not None:
        network_fields = {"name": network, **({"inputs": list(own)} if own else {})}
        data = {"name": jobs.INPUTS, **({"classes": given["classes"]} if "classes" in given else {})}
        training = {key: given[key] for key in ("batch", "precision") if key in given}
        modes = {"mode": given["mode"]} if "mode" in given else {}
        return {**modes, "network": network_fields, "data": data, "training": training}
    data = _data(network, given, overrides)
    training = _recipe(network, data, target)
    training |= {key: given[key] for key in ("batch", "precision") if key in given}
    mode = {"mode": given["mode"]} if "mode" in given else {}
    return {**mode, "network": {"name": network}, "data": data, "training": training}


def _own_inputs(network: str, given: Mapping[str, Any], overrides: Sequence[str]) -> Sequence[str] | None:
    """The inputs of a network that takes neither one image nor one row of tokens per sample; None for one that does."""
    if given.get("inputs"):
        return list(given["inputs"])
    stated = dict(text.split("=", 1) for text in overrides if "=" in text)
    if "network.inputs" in stated:
        return []
    if "data" in given or any(key.startswith("data.") for key in stated):
        return None
    if _is_trace(network):
        from chronograd.trace import Trace

        trace = Trace.load(network)
        return None if trace.takes_images or trace.takes_tokens else []
    library, _ = names.split(network)
    shape = given.get("input")
    if library == "zoo" or (shape is not None and len(shape) == 3):
        return None
    from chronograd.models import registry

    spec = registry.spec(network)
    if spec.inputs and shape is None:
        return spec.inputs
    shape = shape or spec.input_shape
    if shape is None or len(shape) == 3 or (len(shape) == 1 and _takes_tokens(network, given)):
        return None
    return ["x".join(map(str, shape))]


def _takes_tokens(network: str, given: Mapping[str, Any]) -> bool:
    """Whether a row of numbers is tokens to a network: it begins with an embedding."""
    from chronograd.count.calls import takes_tokens
    from chronograd.models import registry

    return takes_tokens(registry.build(network, num_classes=given.get("classes"), device="meta"))


def _recipe(network: str, data: dict[str, Any], target: float | None) -> dict[str, Any]:
    """The training section: of the known recipe with the least work that reaches the target, else of the usual one.

    The usual one is taken at a batch that fits one device, for images of the network's own size. That of a target also sets the size
    of the images in `data`.
    """
    reaching = None if target is None else known.cheapest(network, data["name"], target)
    chosen = reaching or known.usual(network, data["name"])
    if chosen is None:
        return {}
    if chosen.image_size is not None and "shape" not in data and (reaching or chosen.image_size > known.USUAL_SIZE):
        data.setdefault("image_size", chosen.image_size)
    return chosen.fields if reaching or chosen.batch <= USUAL_BATCH else chosen.fields_at(USUAL_BATCH)


def _data(network: str, given: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The data section: the set that is named, else that of a published result, else one of the network's own shape."""
    stated = dict(text.split("=", 1) for text in overrides if "=" in text)
    name, shape, classes = given.get("data", stated.get("data.name")), given.get("input"), given.get("classes")
    if name is None and shape is None and "data.shape" not in stated:
        name = known.data_of(network)
        if name is None:
            shape, own_classes = _own(network)
            classes = classes or own_classes
            name = USUAL if (tuple(shape), classes) == ((3, 224, 224), 1000) else None
            shape = None if name else shape
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


def _text(network: str, name: str, shape: Sequence[int] | None, classes: int | None) -> dict[str, Any]:
    """The data section of text: samples as long as the network takes them, of its vocabulary, where nothing else is said."""
    if shape is None or classes is None:
        own_shape, own_classes = _own(network, shape)
        shape, classes = shape or own_shape, classes or own_classes
    if len(shape) != 1:
        raise InputError(
            f"{name} is text, and {network} takes samples of shape {tuple(shape)}",
            "name a language model, such as gpt2-small, or a set of images",
        )
    if classes is None:
        raise InputError(
            f"{network} does not say how many tokens it knows", "write --classes, the size of its vocabulary"
        )
    return {"name": name, "shape": list(shape), "classes": classes}


def _own(network: str, known_shape: Sequence[int] | None = None) -> tuple[tuple[int, ...], int | None]:
    """Shape of a sample and number of classes that a network expects. Raises InputError where it does not say."""
    library, name = names.split(network)
    if _is_trace(network):
        from chronograd.trace import Trace

        trace = Trace.load(network)
        classes = [trace.tensors[i].shape[-1].const for i in trace.outputs if len(trace.tensors[i].shape) in (2, 3)]
        return trace.sample_shape, classes[0] if classes else None
    if library == "zoo":
        shape, num_classes = names.zoo()[name].shape, names.zoo()[name].classes
    else:
        from chronograd.models import registry

        spec = registry.spec(network)
        shape, num_classes = spec.input_shape or (), spec.num_classes
    if known_shape is not None:
        return tuple(known_shape), num_classes
    if not shape:
        raise InputError(
            f"{network} does not say the shape of its samples",
            "write --data NAME, or --input 3,224,224, or one --input NAME:SHAPE:DTYPE for each tensor that it takes",
        )
    if len(shape) not in (1, 3):
        raise InputError(
            f"{network} takes samples of shape {shape}, and a job is of images or of text",
            f"count it: chronograd count {network}",
        )
    return shape, num_classes
