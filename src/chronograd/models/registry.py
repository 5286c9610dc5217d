"""Networks by name: ours, torchvision's, timm's, or any function that returns a module.

The name of a network has one of these forms:

    resnet20                    a network of this folder, the zoo
    torchvision:vgg19           torchvision.models.get_model("vgg19", weights=None)
    timm:vit_base_patch16_224   timm.create_model(..., pretrained=False)
    my_net.py:MyNet             a function or class in a file of the user
    package.module:function     the same by its import path, also from the current directory

`build` creates it, `spec` describes its input and output. On the device `meta` a network of any size needs no memory and no
initialisation. Nothing is downloaded unless an option of the network requests it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from chronograd import trust
from chronograd.errors import EXTRAS, ChronogradError, InputError, MissingExtraError, NotFoundError
from chronograd.models import names, without_init
from chronograd.models.names import FORMS
from chronograd.words import how_many

Builder = Callable[..., nn.Module]
KerasExtra = Callable[[nn.Module], dict[str, int]]
_B = TypeVar("_B", bound=Builder)


@dataclass(frozen=True)
class NetworkSpec:
    """Input, output and published figures of a network.

    Attributes:
        input_shape: shape of one sample, such as (3, 224, 224); None if the network does not define it.
        input_dtype: `float32` for images, `int64` for tokens.
        num_classes: outputs per sample (vocabulary of a language model); None if it is not a classifier.
        params, macs: published figures of the network without options.
        keras_extra: for a network, the parameters that Keras counts in addition to `parameters()` and the
            running statistics of batch norm.
        inputs: tensors that it takes instead of one of `input_shape`, as `chronograd.inputs` reads them.
    """

    name: str
    input_shape: tuple[int, ...] | None
    input_dtype: str = "float32"
    num_classes: int | None = 1000
    paper: str = ""
    params: int | None = None
    macs: int | None = None
    keras_extra: KerasExtra | None = None
    inputs: tuple[str, ...] = ()

    def required_input_shape(self) -> tuple[int, ...]:
        """Return the input shape.

        Raises: InputError if the network does not define it.
        """
        if self.input_shape is None:
            raise InputError(
                f"{self.name} does not define the shape of its input",
                "write --input 3,224,224, or one --input NAME:SHAPE:DTYPE for each tensor that it takes; or set the attribute "
                "input_shape of the function",
            )
        return self.input_shape


class _RegisteredNetwork(NamedTuple):
    builder: Builder
    spec: NetworkSpec


_ZOO: dict[str, _RegisteredNetwork] = {}


def register(
    name: str,
    *,
    input_shape: tuple[int, ...],
    paper: str,
    params: int | None = None,
    macs: int | None = None,
    num_classes: int | None = 1000,
    input_dtype: str = "float32",
    keras_extra: KerasExtra | None = None,
) -> Callable[[_B], _B]:
    """Add a function to the zoo under `name`.

    The function may take `num_classes`, `in_channels`, `image_size` (one side of a square image), `sequence` and `vocab`;
    `build` passes those that it takes. `params` and `macs` (at `input_shape`) must be exact, and a test checks them. Without a
    comment on their source they follow from the layer shapes of the paper.
    """
    entered = NetworkSpec(name, input_shape, input_dtype, num_classes, paper, params, macs, keras_extra)

    def enter(builder: _B) -> _B:
        assert name not in _ZOO, f"two networks have the name {name}"
        _ZOO[name] = _RegisteredNetwork(builder, entered)
        return builder

    return enter


def build(
    reference: str,
    options: dict[str, Any] | None = None,
    *,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    device: str = "cpu",
) -> nn.Module:
    """Return the network that `reference` names, with new weights.

    Args:
        options: keyword arguments of the network's function; they override the two below.
        input_shape: shape of one sample. Channels and image size are passed if the function takes them.
        num_classes: passed if the function takes it.
        device: `meta` for a network without memory and initial values.
    Raises: NotFoundError for an unknown name, MissingExtraError for a library that is not installed,
        InputError for a function that cannot be imported, raises or returns something else.

    >>> sum(p.numel() for p in build("resnet20", device="meta").parameters())
    269722
    """
    options = dict(options or {})
    library, name = names.split(reference)
    make: Callable[[], nn.Module]
    if library == "function":
        with trust.importing(reference):
            function = _function(reference)
            make = partial(function, **_taken(reference, function, options, input_shape, num_classes))
            return _construct(reference, make, device)
    if library == "torchvision":
        make = _torchvision_builder(reference, name, options, input_shape, num_classes)
    elif library == "timm":
        make = _timm_builder(reference, name, options, input_shape, num_classes)
    else:
        entry = _zoo_entry(name)
        if input_shape is not None:
            _check_shape(entry, options, input_shape)
        make = partial(entry.builder, **_taken(reference, entry.builder, options, input_shape, num_classes))
    return _construct(reference, make, device)


def spec(reference: str, options: dict[str, Any] | None = None) -> NetworkSpec:
    """Return the input and output of the network that `reference` names, given the options of its function.

    >>> spec("resnet20").input_shape, spec("resnet20", {"in_channels": 1}).input_shape
    ((3, 32, 32), (1, 32, 32))
    """
    library, name = names.split(reference)
    if library == "timm":
        found = _timm_spec(reference, name)
    elif library == "torchvision":
        found = _torchvision_spec(reference, name)
    elif library == "function":
        with trust.importing(reference):
            function = _function(reference)
        shape, own = getattr(function, "input_shape", None), getattr(function, "inputs", ())
        inputs = tuple(own) if isinstance(own, tuple | list) and all(isinstance(one, str) for one in own) else ()
        found = NetworkSpec(reference, tuple(shape) if shape is not None else None, num_classes=None, inputs=inputs)
    else:
        found = _zoo_entry(name).spec
    return _with_options(found, options) if options else found


def _with_options(found: NetworkSpec, options: Mapping[str, Any]) -> NetworkSpec:
    """Return a spec changed by options of input or output; published figures no longer hold."""
    shape = found.input_shape
    if shape is not None and len(shape) == 3:
        channels = options.get("in_channels", options.get("in_chans", shape[0]))
        size = options.get("image_size", options.get("img_size", options.get("input_size", shape[1:])))
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        shape = (channels, height, width)
    elif shape is not None and len(shape) == 1:
        shape = (options.get("sequence", shape[0]),)
    classes = options.get("num_classes", options.get("vocab", found.num_classes))
    return replace(found, input_shape=shape, num_classes=classes, params=None, macs=None)


# -- resolving references ---------------------------------------------------------------------------


@cache
def _zoo() -> dict[str, _RegisteredNetwork]:
    """Return the zoo, after importing every file of this folder."""
    folder = importlib.import_module("chronograd.models")
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return _ZOO


def _zoo_entry(name: str) -> _RegisteredNetwork:
    entry = _zoo().get(name)
    if entry is not None:
        return entry
    names.check(name)
    raise AssertionError(f"{name} is listed in zoo.csv but not in the zoo")


def optional_library(module: str, purpose: str) -> ModuleType:
    """Return torchvision, timm or one of their modules.

    Raises: MissingExtraError if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name is not None and error.name.split(".")[0] != library:
            raise
        raise MissingExtraError(library, EXTRAS[library], purpose) from None


def _function(reference: str) -> Builder:
    """Return the user's function that `my_net.py:MyNet` or `package.module:function` names.

    Raises: InputError.
    """
    found = _attribute(reference, "network", FORMS)
    if isinstance(found, nn.Module) or not callable(found):
        kind, attribute = type(found).__name__, reference.rpartition(":")[2]
        raise InputError(
            f"network {reference}: {attribute} is a {kind}, not a function", "name a function that returns the network"
        )
    return found  # type: ignore[no-any-return]


def target(reference: str, what: str) -> Any:
    """Return the object that `my_net.py:example_inputs` names, or the result of a function.

    Raises: InputError.
    """
    with trust.importing(reference):
        found = _attribute(
            reference, what, "name a function or an object of the file, such as my_net.py:example_inputs"
        )
        if not callable(found) or isinstance(found, nn.Module | Tensor):
            return found
        try:
            return found()
        except Exception as error:
            raise InputError(
                f"{what} {reference}: {one_line(error)}", "the function is called without arguments"
            ) from error


def function(reference: str, what: str) -> Callable[..., Any]:
    """Return the function that `my_net.py:my_loss` names, without calling it. Raises InputError."""
    with trust.importing(reference):
        found: Callable[..., Any] = _attribute(
            reference, what, "name a function of the file, such as my_net.py:my_loss"
        )
    if not callable(found):
        raise InputError(
            f"{what} {reference} is a {type(found).__name__}, not a function", "name a function of the file"
        )
    return found


def _attribute(reference: str, what: str, forms: str) -> Any:
    """Return the object that a reference to code names. Raises InputError."""
    path, _, attribute = reference.rpartition(":")
    try:
        found: Any = _file(Path(path)) if path.endswith(".py") else importlib.import_module(path)
    except Exception as error:
        raise InputError(f"{what} {reference}: cannot import {path}: {one_line(error)}", _PATHS) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{what} {reference}: {path} has no {attribute}", forms)
        found = getattr(found, part)
    return found


def _file(path: Path) -> ModuleType:
    """Return the module of a file, run once for each version of it. It can import modules in its folder."""
    return _loaded(path.absolute(), path.stat().st_mtime_ns)


@cache
def _loaded(path: Path, modified_ns: int) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{modified_ns}", path)
    assert spec is not None
    assert spec.loader is not None
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_PATHS = "modules are imported from the current directory, PYTHONPATH and installed packages"


# Options of verbs that users also write as fields.
_OPTIONS_OF_VERBS = ("input", "inputs", "batch", "classes", "mode", "loss", "optimizer", "depth")


def _taken(
    reference: str,
    builder: Builder,
    options: Mapping[str, Any],
    input_shape: tuple[int, ...] | None,
    num_classes: int | None,
) -> dict[str, Any]:
    """Return the options, with number of classes and input shape if the function takes them.

    Raises: InputError for an option that the function does not take.
    """
    wanted: dict[str, Any] = {}
    if num_classes is not None:
        wanted |= {"num_classes": num_classes, "vocab": num_classes}
    if input_shape is not None and len(input_shape) == 1:
        wanted["sequence"] = input_shape[0]
    elif input_shape is not None and len(input_shape) == 3:
        wanted["in_channels"] = input_shape[0]
        if input_shape[1] == input_shape[2]:
            wanted["image_size"] = input_shape[1]
    signature = inspect.signature(builder)
    is_open = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    wrong = next((key for key in options if key not in signature.parameters and not is_open), None)
    if wrong in _OPTIONS_OF_VERBS:
        value = options[wrong]
        words = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        raise InputError(
            f"network {reference} takes no option {wrong!r}", f"write --{wrong} {words} instead of {wrong}="
        )
    try:
        signature.bind_partial(**options)
    except TypeError as error:
        raise _not_built(reference, error) from error
    return {**{key: value for key, value in wanted.items() if key in signature.parameters}, **options}


def _check_shape(entry: _RegisteredNetwork, options: Mapping[str, Any], shape: tuple[int, ...]) -> None:
    """Raise InputError if a network of the zoo cannot take samples of this shape."""
    name, own = entry.spec.name, entry.spec.required_input_shape()
    takes = inspect.signature(entry.builder).parameters
    if len(shape) != len(own):
        kind = "tokens (positions,)" if len(own) == 1 else "images (channels, height, width)"
        raise InputError(f"network {name} takes {kind}, the input has shape {shape}")
    if len(shape) == 3 and "in_channels" not in takes and shape[0] != own[0]:
        raise InputError(f"network {name} takes {how_many(own[0], 'channels')}, the input has {shape[0]}")
    if len(shape) == 3 and "image_size" in takes and "image_size" not in options and shape[1] != shape[2]:
        raise InputError(f"network {name} takes square images, the input is {shape[1]} x {shape[2]}")


# -- torchvision and timm ---------------------------------------------------------------------------


def _torchvision_builder(
    reference: str,
    name: str,
    options: dict[str, Any],
    input_shape: tuple[int, ...] | None,
    num_classes: int | None,
) -> Callable[[], nn.Module]:
    models = _torchvision_models(reference, name)
    given: dict[str, Any] = {"weights": None}
    takes = inspect.signature(models.get_model_builder(name)).parameters
    if "weights_backbone" in takes:
        given["weights_backbone"] = None  # by default it downloads them
    if name in ("googlenet", "inception_v3"):
        given["init_weights"] = True  # this is the default, which torchvision warns about
    if num_classes is not None:
        given["num_classes"] = num_classes
    if input_shape is not None and len(input_shape) == 3:
        channels, height, width = input_shape
        if channels != 3:
            raise InputError(
                f"network {reference} takes 3 channels, the input has {channels}",
                "networks of timm and of the zoo take any number of channels",
            )
        if name.startswith("vit_"):
            given["image_size"] = height
        elif name.startswith("maxvit"):
            given["input_size"] = (height, width)
    return partial(models.get_model, name, **(given | options))


def _torchvision_models(reference: str, name: str) -> ModuleType:
    optional_library("torchvision", f"network {reference}")
    names.check(reference)
    return importlib.import_module("torchvision.models")


_DETECTION_SIDE = 800  # shorter side to which torchvision's detectors resize (GeneralizedRCNNTransform)
_VIDEO_FRAMES = 16  # clip length of torchvision's video networks, in the documentation of their weights


def _torchvision_spec(reference: str, name: str) -> NetworkSpec:
    """Return a spec from the transforms and the meta data of the default weights, without loading the weights."""
    models = _torchvision_models(reference, name)
    weights = models.get_model_weights(name).DEFAULT
    transforms = weights.transforms()
    kind = type(transforms).__name__
    if kind == "ObjectDetection":
        fixed = re.search("300|320", name)
        size = [int(fixed[0]) if fixed else _DETECTION_SIDE]
    elif name.startswith("vit_"):
        size = [224]  # their size when built without weights, whatever crop the weights use
    else:
        size = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None) or [224]
    frames = (_VIDEO_FRAMES,) if kind == "VideoClassification" else ()
    classes = len(weights.meta["categories"]) if "categories" in weights.meta else None
    return NetworkSpec(reference, (3, *frames, size[0], size[-1]), num_classes=classes)


def _timm_builder(
    reference: str,
    name: str,
    options: dict[str, Any],
    input_shape: tuple[int, ...] | None,
    num_classes: int | None,
) -> Callable[[], nn.Module]:
    timm = _timm(reference, name)
    given: dict[str, Any] = {"pretrained": False}
    if num_classes is not None:
        given["num_classes"] = num_classes
    sized: dict[str, Any] = {}
    if input_shape is not None and len(input_shape) == 3:
        own = _timm_spec(reference, name).required_input_shape()
        channels, height, width = input_shape
        if channels != own[0]:
            given["in_chans"] = channels
        if (height, width) != own[1:] and "img_size" not in options:
            sized["img_size"] = height if height == width else (height, width)
    given |= options

    def make() -> nn.Module:
        try:
            network: nn.Module = timm.create_model(name, **given, **sized)
        except TypeError as error:  # timm does not list the networks with a fixed image size
            if not sized or "img_size" not in str(error):
                raise
            network = timm.create_model(name, **given)
        return network

    return make


def _timm(reference: str, name: str) -> ModuleType:
    timm = optional_library("timm", f"network {reference}")
    names.check(reference)
    if "." in name and name not in timm.list_pretrained():
        raise NotFoundError("timm network", name, timm.list_pretrained(name.partition(".")[0] + ".*"))
    return timm


def _timm_spec(reference: str, name: str) -> NetworkSpec:
    config = _timm(reference, name).get_pretrained_cfg(name)
    if config is None:  # the network has no weights, so timm's defaults apply
        return NetworkSpec(reference, (3, 224, 224))
    return NetworkSpec(reference, tuple(config.input_size), num_classes=config.num_classes or None)


# -- construction -----------------------------------------------------------------------------------


def _construct(reference: str, make: Callable[[], nn.Module], device: str) -> nn.Module:
    """Call a constructor for a device. Convert any exception to one InputError."""
    try:
        network = without_init.on_meta(make) if device == "meta" else make()
    except ChronogradError:
        raise
    except Exception as error:
        raise _not_built(reference, error) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"network {reference} returned a {type(network).__name__}, not a torch.nn.Module")
    return network if device == "meta" else network.to(device)


def _not_built(reference: str, error: Exception) -> InputError:
    return InputError(
        f"network {reference} cannot be built: {one_line(error)}", "check the options and the input shape"
    )


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
