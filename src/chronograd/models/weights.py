"""Pretrained weights, and the head of a network, the only part that may differ from them.

torchvision, timm       the library's default weights, from its cache, or downloaded.
NAME.safetensors        tensors by name.
NAME.pth .pt .th .tar   a state dict, bare or under a usual key such as `state_dict`; nothing in it is executed.
     .ckpt .bin         Wrapper prefixes are removed, and the running mean is preferred; the output states both.
NAME.tflite             the convolutions of a TFLite model, by the names of their layers; also inside MediaPipe's
     .data              archives for browsers.
FILE#sha256=DIGEST      a file of any kind, refused unless it has this digest (at least its first 8 digits).
FILE of the list        a file that `chronograd weights` lists, by its name alone; its digest is checked.
RUN                     a run directory: its newest valid checkpoint, the running mean of the weights if it has one.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from chronograd import door, files
from chronograd.errors import FileFormatError, InputError, RunError
from chronograd.models import pretrained, tflite_weights, weight_names
from chronograd.models.registry import one_line, optional_library

Tensors = dict[str, Tensor]
Head = Literal["new", "kept"]

PYTORCH_SUFFIXES = (".pth", ".pt", ".th", ".tar", ".ckpt", ".bin")
SUFFIXES = (".safetensors", *PYTORCH_SUFFIXES, *tflite_weights.SUFFIXES)
# Networks of the zoo with the layers and parameter names of a torchvision network.
TORCHVISION_TWINS = {
    "efficientnet-b0-keras": "efficientnet_b0",
    "vgg16": "vgg16",
    "vgg19": "vgg19",
    "ssdlite-mobilenet-v3": "ssdlite320_mobilenet_v3_large",
}
SHOWN = 3  # names of each kind that an error lists


@dataclass(frozen=True)
class Loaded:
    """Result of loading weights.

    Attributes:
        source: description of the weights for the record.
        num_loaded: number of tensors, running statistics included.
        fresh: parameters with initial values: those of the head, or all that a detector adds to its trunk. A head is loaded
            completely or not at all.
    """

    source: str
    num_loaded: int
    fresh: tuple[str, ...]


def load_pretrained(network: nn.Module, source: str, reference: str, head: Head | None = None) -> Loaded:
    """Load the weights of `source` into a network, in place.

    All tensors must match by name and shape, with one exception. The head (see `head_of`) and the last layers of auxiliary
    classifiers may have other shapes; they then keep their initial values. Batch counters may be missing. Auxiliary classifiers
    that the network lacks are left out. A detector also accepts the weights of its trunk alone.

    Args:
        source: `torchvision`, `timm`, a file or a run directory, as at the top of this file.
        reference: the name that the network was built from, such as torchvision:resnet50.
        head: `new` leaves the head with its initial values whatever its shape, `kept` refuses a head of another shape.
    Raises: InputError for a source that does not exist or does not fit this network, FileFormatError for damaged
        files and weights of another network, RunError if a download fails, MissingExtraError.
    """
    if source == "torchvision":
        given, description = _from_torchvision(reference)
    elif source == "timm":
        given, description = _from_timm(network, reference)
    else:
        given, description = _from_path(source)
    loaded = _load(network, given, description, head)
    if source == "torchvision" and hasattr(network, "transform_input"):
        # GoogLeNet and Inception v3 were trained by TensorFlow on images of -1 … 1 and convert their input to that.
        setattr(network, "transform_input", True)  # noqa: B010, a plain attribute, of which nn.Module knows nothing
    return loaded


# -- the head ---------------------------------------------------------------------------------------


def head_of(network: nn.Module) -> tuple[str, nn.Module]:
    """Return path and module of the head, which turns features into one number per class. The path is "" for a single layer.

    The network's attribute `head_name` names it, else timm, else it is the last linear layer. If that layer is the only one of
    a `Sequential` with dropout and activation, the head is the `Sequential`. Auxiliary classifiers, whose paths begin with
    `aux`, are ignored.
    Raises: InputError if the last layer is a convolution, or there are several heads.
    """
    marked = getattr(network, "head_name", None)
    path = marked if isinstance(marked, str) else _timm_head(network)
    if path is None:
        path = _last_layer(network)
    try:
        head = network.get_submodule(path)
    except AttributeError:
        raise InputError(
            f"{_name(network)} names {path} as its head, but has no such part", "correct its attribute head_name"
        ) from None
    parts = list(head.modules())
    convolution = next((m for m in parts if isinstance(m, _ConvNd)), None)
    if convolution is not None or not any(isinstance(m, nn.Linear) for m in parts):
        kind = type(convolution or head).__name__
        raise _no_head(network, f"has no linear head: it ends with {path} ({kind})")
    return path, head


def without_head(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return trunk and head. The trunk is the network with the identity instead of the head; it returns the head's input.

    All parts are shared with the network, which does not change: parameters, running statistics, and the mode (training or
    evaluation) of all but the modules that contain the head.
    """
    path, head = head_of(network)
    if not path:
        return nn.Identity(), head
    *containers, last = path.split(".")
    trunk = here = _twin(network)
    for name in containers:
        twin = _twin(here.get_submodule(name))
        here._modules[name] = twin
        here = twin
    here._modules[last] = nn.Identity()
    return trunk, head


def _twin(module: nn.Module) -> nn.Module:
    """Return a copy of a module with its own list of the same children."""
    twin = copy.copy(module)
    twin._modules = module._modules.copy()
    return twin


def _last_layer(network: nn.Module) -> str:
    """Return the path of the last layer with weights, or of the short `Sequential` around it."""
    if type(network).__module__.startswith("torchvision.models.detection"):
        raise _no_head(network, "is a detector, with a head for classes and one for boxes")
    layers: dict[str, nn.Module] = {
        path: module
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear | _ConvNd) and not _is_auxiliary(path)
    }
    if not layers:
        raise _no_head(network, "has no linear layer")
    path = list(layers)[-1]
    top, _, rest = path.partition(".")
    around = network.get_submodule(top)
    if rest and isinstance(around, nn.Sequential):
        kinds = [_kind(child) for child in around]
        if kinds.count("linear") == 1 and "other" not in kinds:
            return top
    return path


def _kind(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return "linear"
    is_activation = type(module).__module__ == "torch.nn.modules.activation"
    if isinstance(module, _DropoutNd) or (is_activation and not isinstance(module, nn.MultiheadAttention)):
        return "plain"
    return "other"


def _timm_head(network: nn.Module) -> str | None:
    """Return the path of the classifier of a timm network; None for other networks."""
    ask = getattr(network, "get_classifier", None)
    if not callable(ask):
        return None
    config = getattr(network, "pretrained_cfg", None) or {}
    for heads in (config.get("classifier"), ask()):
        if isinstance(heads, tuple | list | nn.ModuleList):
            raise _no_head(network, f"has {len(heads)} heads")
    return next((path for path, module in network.named_modules() if module is ask()), None)


def _is_auxiliary(path: str) -> bool:
    return any(part.lower().startswith("aux") for part in path.split("."))


def _class_layers(network: nn.Module) -> list[str]:
    """Return the paths of all layers with one output per class: the head, and the last linear layer of each auxiliary
    classifier.

    A detector names them in an attribute `class_layers`.
    """
    marked = getattr(network, "class_layers", None)
    if isinstance(marked, tuple):
        return list(marked)
    auxiliary: dict[str, str] = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.Linear) and _is_auxiliary(path):
            auxiliary[path.partition(".")[0]] = path
    try:
        return [head_of(network)[0], *auxiliary.values()]
    except InputError:
        return list(auxiliary.values())


def _name(network: nn.Module) -> str:
    return f"network {type(network).__name__}"


def _no_head(network: nn.Module, what: str) -> InputError:
    return InputError(
        f"{_name(network)} {what}",
        "use a network that ends with a linear layer, or name the head of your network in its attribute head_name",
    )


# -- matching ---------------------------------------------------------------------------------------


def _load(network: nn.Module, given: Tensors, description: str, head: Head | None = None) -> Loaded:
    """Copy tensors into the network.

    Raises: FileFormatError if they belong to another network.
    """
    own: Mapping[str, Tensor] = network.state_dict()
    own_name = getattr(network, "own_name", None)
    given, changes = weight_names.for_network(given, own, own_name if callable(own_name) else str)
    given, changes = _in_order(network, given, own, changes)
    given, description = _in_grey(given, own, "; ".join([description, *changes]))
    given, fresh = _trunk_alone(network, given, own)
    missing = [name for name in own if name not in (*given, *fresh) and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in given if name not in own and not _is_auxiliary(name)]
    reshaped = [name for name in own if name in given and own[name].shape != given[name].shape]
    for inside in _class_tensors(network, own):
        if head == "new" or any(name in reshaped for name in inside):
            fresh += [name for name in inside if name not in fresh]
    wrong = [
        *_listed("missing", missing),
        *_listed("unexpected", unexpected),
        *_listed(
            "of another shape",
            [f"{n} {tuple(given[n].shape)} for {tuple(own[n].shape)}" for n in reshaped if n not in fresh],
        ),
    ]
    if wrong:
        raise FileFormatError(
            f"{description}: not the weights of this {_name(network)}; {'; '.join(wrong)}",
            "name weights of the same network, with the same options and shape of input; only its head may differ",
        )
    if head == "kept" and fresh:
        raise InputError(
            f"network.head={head}, but the head of {description} does not fit: {fresh[0]} has another shape or is missing",
            "set network.head=new, or remove it",
        )
    chosen = {name: tensor for name, tensor in given.items() if name in own and name not in fresh}
    network.load_state_dict(chosen, strict=False)
    _calm_heads(network, fresh)
    return Loaded(description, len(chosen), tuple(fresh))


def _calm_heads(network: nn.Module, fresh: Collection[str]) -> None:
    """Draw new heads again, with the initial values of PyTorch's linear layer, if their own are more than twice as large.

    PyTorch draws from U(±1/√F) for F features, with a standard deviation of 1/√(3 F). EfficientNet draws from U(±1/√K) for K
    classes, whatever F is. Two new classes on a trained EfficientNet-Lite0 then start with a loss of 7.6 instead of 0.7, and
    with gradients that are 37 times as large.
    """
    for path, layer in network.named_modules():
        is_new_head = isinstance(layer, nn.Linear) and f"{path}.weight".lstrip(".") in fresh
        if is_new_head and layer.weight.detach().std() > 2 / math.sqrt(3 * layer.in_features):
            layer.reset_parameters()


def _in_order(
    network: nn.Module, given: Tensors, own: Mapping[str, Tensor], changes: list[str]
) -> tuple[Tensors, list[str]]:
    """Rename tensors by their order if no name matches, and every tensor matches in kind and shape.

    Other implementations of a network often define the same layers in the same order. The head and the channels of the first
    layer may differ, as in `_load`.
    """
    if len(given) != len(own) or any(name in own for name in given):
        return given, changes
    free = {*head_tensors(network), next((name for name, tensor in own.items() if tensor.ndim == 4), "")}
    for (name, tensor), (mine, wanted) in zip(given.items(), own.items(), strict=True):
        is_same_kind = name.rpartition(".")[2] == mine.rpartition(".")[2] and tensor.ndim == wanted.ndim
        if not is_same_kind or (mine not in free and tensor.shape != wanted.shape):
            return given, changes
    first = f"{next(iter(given))} as {next(iter(own))}"
    return dict(zip(own, given.values(), strict=True)), [
        *changes,
        f"no name matches, so tensors are taken in order: {first} …",
    ]


def head_tensors(network: nn.Module) -> list[str]:
    """Return the names of all parameters and buffers of the head and of the last layers of auxiliary classifiers."""
    return [name for inside in _class_tensors(network, network.state_dict()) for name in inside]


def _class_tensors(network: nn.Module, own: Mapping[str, Tensor]) -> list[list[str]]:
    paths = [f"{path}." if path else "" for path in _class_layers(network)]
    return [[name for name in own if name.startswith(path)] for path in paths]


def _trunk_alone(network: nn.Module, given: Tensors, own: Mapping[str, Tensor]) -> tuple[Tensors, list[str]]:
    """Return the weights of a detector's trunk without their classifier head, and the names that keep initial values.

    A detector names the layers outside its trunk in an attribute `added_layers`. Weights with any of these layers are a
    detector's, and are returned unchanged.
    """
    marked = getattr(network, "added_layers", None)
    if not isinstance(marked, tuple):
        return given, []
    added = tuple(f"{path}." for path in marked)
    trunk = tuple(f"{path}." for path, _ in network.named_children() if f"{path}." not in added)
    if any(name.startswith(added) for name in given) or not any(name.startswith(trunk) for name in given):
        return given, []
    of_trunk = {name: tensor for name, tensor in given.items() if name.startswith(trunk)}
    return of_trunk, [name for name in own if name.startswith(added)]


def _in_grey(given: Tensors, own: Mapping[str, Tensor], description: str) -> tuple[Tensors, str]:
    """Sum the first layer of colour weights over its channels if the network takes grey images.

    The result is the same as for three equal colour channels.
    """
    first = next((name for name, tensor in own.items() if tensor.ndim == 4), None)
    if first is None or first not in given or own[first].shape[1] != 1:
        return given, description
    shape = given[first].shape
    if len(shape) != 4 or shape[1] != 3 or (shape[0], *shape[2:]) != (own[first].shape[0], *own[first].shape[2:]):
        return given, description
    return {**given, first: given[first].sum(dim=1, keepdim=True)}, f"{description}; {first} summed over three colours"


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what}: {', '.join(names[:SHOWN])}{more}"]


# -- files and runs ---------------------------------------------------------------------------------


def check_stored(source: str) -> Path:
    """Return the path of a file or run directory with weights. Raises InputError unless it is on this machine. Reads nothing."""
    source, wanted = _digest_of(source)
    listed = pretrained.known(source)
    try:
        path = pretrained.known_or_path(source)
        if not path.is_dir():
            files.open_plain(path).close()
        elif wanted:
            raise InputError(f"{source} is a run directory, which has no digest", f"write {source} alone")
        else:
            _checkpoints(path, source)
        return path
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name of an unknown user
        why = "there are no weights at" if isinstance(error, FileNotFoundError) else f"{error}; cannot read weights at"
        if listed is not None:
            raise InputError(f"weights {source} are not on this machine", listed.how_to_get) from None
        raise InputError(
            f"{why} {source}",
            f"name a run directory, a file ({', '.join(SUFFIXES)}), torchvision or timm; write "
            "network.weights=null to train from random values",
        ) from None


def _from_path(source: str) -> tuple[Tensors, str]:
    path = check_stored(source)
    source, wanted = _digest_of(source)
    if path.is_dir():
        return _from_run(path, source)
    listed = pretrained.known(source)
    digest, states = files.digest(path), "network.weights"
    if not wanted and listed is not None and listed.path == str(path):
        wanted, states = listed.sha256 or "", "`chronograd weights`"
    if not digest.startswith(wanted):
        raise FileFormatError(
            f"{source} has the sha256 {digest}, but {states} states {wanted}",
            "it is another file, or is damaged: download it again, or correct the digest in network.weights",
        )
    chosen: list[str] = []
    if path.suffix == ".safetensors":
        door.check(path, "weights", expects=("any",))  # it begins with a length, which may look like another format
        given = _read_safetensors(path)
    elif path.suffix in PYTORCH_SUFFIXES:
        door.check(path, "weights that torch.save wrote", expects=("zip", "pickle", "tar"))
        given, chosen = _read_pytorch(path)
    elif path.suffix in tflite_weights.SUFFIXES:
        given = tflite_weights.read(path)
    else:
        raise FileFormatError(
            f"{source}: cannot tell the format of weights from {path.suffix or 'a name without suffix'}",
            f"rename it to .safetensors or .tflite, or to one of {', '.join(PYTORCH_SUFFIXES)} if torch.save wrote it",
        )
    return given, "; ".join([f"{source} (sha256 {digest[:12]})", *chosen])


def _digest_of(source: str) -> tuple[str, str]:
    """Return the path, and the digest that it must have; empty if none is given.

    >>> _digest_of("ssd.pth#sha256=0A1B2C3D"), _digest_of("ssd.pth")
    (('ssd.pth', '0a1b2c3d'), ('ssd.pth', ''))
    """
    path, sign, digest = source.rpartition("#sha256=")
    if not sign:
        return source, ""
    if not re.fullmatch(r"[0-9a-fA-F]{8,64}", digest):
        raise InputError(f"{digest!r} is not a sha256", "write 8 to 64 hexadecimal digits after #sha256=")
    return path, digest.lower()


def _read_safetensors(path: Path) -> Tensors:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file: {error}") from None


def _read_pytorch(path: Path) -> tuple[Tensors, list[str]]:
    """Return the tensors by name, and which of two sets was used, in words."""
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # TorchScript is refused below
            content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and tar raise different exceptions
        raise FileFormatError(
            f"{path} cannot be read as tensors alone: {_why_not_tensors(error)}",
            "if you trust it, load it yourself and save the state dict as safetensors",
        ) from None
    content, chosen = weight_names.weights_in(content)
    if not isinstance(content, Mapping):
        raise FileFormatError(f"{path} holds a {type(content).__name__}, not a state dict", _SAVE)
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others or not content:
        what = f"also holds values that are not tensors: {', '.join(others[:SHOWN])}" if others else "is empty"
        raise FileFormatError(f"the state dict in {path} {what}", _SAVE)
    return {str(name): tensor for name, tensor in content.items()}, chosen


def _why_not_tensors(error: Exception) -> str:
    """Return the reason why `torch.load` refuses to read a file as weights alone."""
    if "TorchScript" in str(error):
        return "it is a TorchScript archive, a program with its weights"
    if (unsafe := re.search(r"GLOBAL ([\w.]+)", str(error))) is not None:
        return f"it also holds a Python object, {unsafe[1]}, and reading that could run code"
    return one_line(error)


_SAVE = "save network.state_dict(), bare or under the key state_dict or model"


def _checkpoints(folder: Path, source: str) -> list[tuple[int, Path]]:
    """Return the steps and folders of a run's checkpoints, the newest first. Raises FileFormatError if it has none."""
    numbers = {path: re.fullmatch(r"step-(\d{8,})", path.name) for path in (folder / "checkpoints").glob("step-*")}
    steps = sorted(((int(match[1]), path) for path, match in numbers.items() if match), reverse=True)
    if not steps:
        raise FileFormatError(
            f"{source} has no checkpoint: there is no checkpoints/step-* in it",
            "name a run directory that `chronograd train` has written, or a file",
        )
    return steps


def _from_run(folder: Path, source: str) -> tuple[Tensors, str]:
    """Return the tensors of the newest checkpoint whose files are unchanged; chronograd.train.checkpoint describes the format."""
    damage = ""
    for step, path in _checkpoints(folder, source):
        try:
            names = _check_sums(path)
        except FileFormatError as error:
            damage = damage or error.message
            continue
        given = _read_safetensors(path / "model.safetensors")
        mean = "ema.safetensors" in names
        if mean:
            given |= _averaged(_read_safetensors(path / "ema.safetensors"))
        return given, f"{source}, {'running mean of the weights ' if mean else ''}after step {step}"
    raise FileFormatError(f"every checkpoint of {source} is damaged; the newest: {damage}", "name another run")


def _averaged(given: Tensors) -> Tensors:
    """Return the running mean by the network's names, without the additions of torch's AveragedModel."""
    if "n_averaged" not in given:
        return given
    return {name.removeprefix("module."): tensor for name, tensor in given.items() if name != "n_averaged"}


# The files of a checkpoint; ranks that share parameters have one of the optimizer each.
_TENSOR_FILE = re.compile(r"(model|ema|optimizer(\.[1-9]\d{0,5})?)\.safetensors")


def _check_sums(path: Path) -> set[str]:
    """Return the names of a checkpoint's tensor files.

    Raises: FileFormatError if one has changed since it was written.
    """
    try:
        state = files.read_json(path / "state.json")
        sums = state["sha256"] if state["format"] == "chronograd-checkpoint" else {}
        if not all(_TENSOR_FILE.fullmatch(name) for name in sums):
            raise ValueError("state.json names files that do not belong to a checkpoint")
        changed = [name for name, value in sums.items() if files.digest(path / name) != value]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: {one_line(error)}") from None
    if changed or "model.safetensors" not in sums:
        what = f"{changed[0]} has another sha256" if changed else "state.json is not that of a checkpoint"
        raise FileFormatError(f"{path}: {what}")
    return set(sums)


# -- libraries --------------------------------------------------------------------------------------


def _default_of(library: str, reference: str) -> pretrained.Pretrained:
    """Return the default weights of a network in one library. Raises InputError if it has none."""
    listed = default_weights(reference)
    if listed is None or listed.weights != library:
        raise InputError(
            f"{library} has no weights for network {reference}", f"`chronograd weights {library}` lists its networks"
        )
    return listed


def _from_torchvision(reference: str) -> tuple[Tensors, str]:
    """Return the default weights, from the library's cache, else by a download."""
    name = _default_of("torchvision", reference).network.partition(":")[2]
    models = optional_library("torchvision.models", f"weights of {reference}")
    weights = models.get_model_weights(name).DEFAULT
    file = _hub_file(weights.url)
    was_there = file.exists()
    try:
        with files.impatient(), contextlib.redirect_stdout(sys.stderr):  # torchvision prints its downloads to stdout
            given = weights.get_state_dict(progress=False, check_hash=True, map_location="cpu", weights_only=True)
    except Exception as error:
        if was_there:
            raise _damaged(file, error) from None
        raise RunError(
            f"weights {weights} are not at {file}, and downloading {weights.url} failed: {one_line(error)}",
            f"download them elsewhere and put {file.name} there, or name its path in network.weights",
        ) from None
    return {_new_name(key): tensor for key, tensor in given.items()}, f"torchvision {weights}"


def default_weights(reference: str) -> pretrained.Pretrained | None:
    """Return the weights of a network that a library loads by default; None if no library has any."""
    twin = TORCHVISION_TWINS.get(reference)
    library, _, name = (reference if twin is None else f"torchvision:{twin}").rpartition(":")
    return next(of_library(library, name), None) if library in pretrained.LIBRARIES and name else None


def of_library(library: str, name: str = "") -> Iterator[pretrained.Pretrained]:
    """Yield the default weights of the networks of torchvision or timm, or of one. timm states no accuracy, size or digest."""
    module = optional_library("timm" if library == "timm" else "torchvision.models", f"weights of {library}")
    for one in [name] if name else module.list_models():
        if library == "timm":
            config = module.get_pretrained_cfg(one)
            if config is not None and config.has_weights:
                path = _timm_file(config)[0]
                tag = f"{config.architecture}.{config.tag}" if config.tag else config.architecture
                url = f"https://huggingface.co/{config.hf_hub_id}" if config.hf_hub_id else config.url
                here = None if path is None else str(path)
                yield pretrained.Pretrained(tag, f"timm:{one}", "timm", licence=config.license, url=url, path=here)
        elif one in module.list_models() and len(module.get_model_weights(one)):
            default = module.get_model_weights(one).DEFAULT
            meta, file = default.meta, _hub_file(default.url)
            trained_on, metrics = next(iter(meta.get("_metrics", {}).items()), (None, {}))
            metric, value = next(iter(metrics.items()), (None, None))
            digest = re.search(r"-([0-9a-f]{8,})$", file.stem)  # torch.hub checks it
            size = meta.get("_file_size")  # in MiB, to three digits
            yield pretrained.Pretrained(
                file.name, f"torchvision:{one}", "torchvision", trained_on, value and round(value / 100, 6), metric, None,
                meta.get("license"), size and round(size * 2**20), digest and digest[1], default.url, meta.get("recipe"),
                path=str(file) if file.is_file() else None,
            )  # fmt: skip


def _new_name(name: str) -> str:
    """Return the current name of a DenseNet layer: torchvision's files still have `norm.1` for `norm1`."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)", r"\1\2", name)


def _from_timm(network: nn.Module, reference: str) -> tuple[Tensors, str]:
    """Return the default weights, adapted by the library to the network's channels and image size.

    A file in the cache is used without checking the network for a newer one.
    """
    tag, name = _default_of("timm", reference).file, reference.partition(":")[2]
    timm = optional_library("timm", f"weights of {reference}")
    config = timm.get_pretrained_cfg(name)
    cached, file = _timm_file(config)
    overlay = {"file": str(cached)} if cached is not None else {}
    try:
        with files.impatient(), torch.random.fork_rng(devices=[]):
            donor = timm.create_model(
                name, pretrained=True, pretrained_cfg_overlay=overlay, **_input_of(network, config)
            )
    except Exception as error:
        if cached is not None:
            raise _damaged(cached, error) from None
        raise RunError(
            f"weights {reference} are not at {file}, and downloading them failed: {one_line(error)}",
            f"copy {file} from a machine that has it, or name the path of its file in network.weights",
        ) from None
    return donor.state_dict(), f"timm {tag}"


def _timm_file(config: Any) -> tuple[Path | None, Path]:
    """Return the cached file, None if it is missing, and the expected path of it or its folder."""
    if not config.hf_hub_id:
        file = _hub_file(config.url)
        return (file if file.exists() else None), file
    hub = importlib.import_module("huggingface_hub")
    repository, _, revision = config.hf_hub_id.partition("@")
    folder = Path(hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    if config.hf_hub_filename:
        return None, folder
    found = hub.try_to_load_from_cache(repository, "model.safetensors", revision=revision or None)
    return (Path(found) if isinstance(found, str) else None), folder


def _input_of(network: nn.Module, config: Any) -> dict[str, Any]:
    """Return the channels and image size of a timm network, if they differ from those of its weights."""
    channels, *size = config.input_size
    options: dict[str, Any] = {}
    own_channels = getattr(network, "in_chans", channels)
    if own_channels != channels:
        options["in_chans"] = own_channels
    own_size = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if own_size is not None and tuple(own_size) != tuple(size):
        options["img_size"] = tuple(own_size)
    return options


def _hub_file(url: str) -> Path:
    """Return the path where torch.hub stores the download of `url`; TORCH_HOME moves it."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(urlparse(url).path).name


def _damaged(file: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"weights at {file} cannot be read: {one_line(error)}", "remove it to download it again")
