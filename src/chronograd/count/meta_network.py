"""Networks that the library Transformers builds from a `config.json`, on the meta device, reduced to one layer of each kind.

Only classes of the library run, never code that a file names. Two layers are of one kind if their modules, parameters and sizes are
equal.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers.modeling_layers import GradientCheckpointingLayer

from chronograd.configs.keys import MAX_LAYERS, Keys
from chronograd.configs.readers import TEXT_ONLY, unread
from chronograd.errors import FileFormatError

# Keys of the file itself, of code, of kernels (the library downloads and runs `attn_implementation: owner/name`), of networks that it
# downloads, and of how weights are stored. Keys that begin with an underscore are the library's own.
_LEFT_OUT = re.compile(
    r"_.*|model_type|architectures|auto_map|name_or_path|quantization_config|(torch_)?dtype"
    r"|(attn|attention|experts)_implementation|use_kernels?|kernel_config|(use_timm_|use_pretrained_)?backbone|backbone_kwargs"
)
MAX_MODULES = 350_000  # Switch-C has 300,000: 2,048 experts in each of 30 layers
_PLACES = ("layer_idx", "layer_id", "layer_number", "idx")  # attributes with the place of a layer
_AUTO = ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModel")
VERSION = f"Transformers {transformers.__version__}"


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: its stack, such as `model.layers`, its places there, and its place once the stack has one of each kind."""

    stack: str
    places: tuple[int, ...]
    kept: int

    @property
    def prefix(self) -> str:
        """Return the name of its layer in the reduced network."""
        return f"{self.stack}.{self.kept}."


def built(data: Mapping[str, Any], where: str, changes: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """Return the network of a file on the meta device, and notes. A file with several models gives its text model.

    Args:
        where: the file, for messages; `changes`: keys with other values.
    Raises: FileFormatError for a family, class or key that Transformers does not know, and for sizes that it cannot build.
    """
    notes: tuple[str, ...] = ()
    if isinstance(text := data.get("text_config"), dict) and text.get("model_type") in transformers.CONFIG_MAPPING:
        data, notes = text, (TEXT_ONLY,)
    family = str(data.get("model_type"))
    if family not in transformers.CONFIG_MAPPING:
        raise unread(family, where, f"{VERSION} does not know it either")
    keys = Keys({**data, **changes}, where, family)
    _check_layers(keys)
    given = _without_code(dict(keys.data))
    try:
        with torch.device("meta"), _few_modules(keys):
            kind = transformers.CONFIG_MAPPING[family]
            keys.skip(*inspect.signature(kind).parameters, *kind.attribute_map)
            if others := keys.rest():
                notes += (f"{VERSION} does not document these keys: {', '.join(others)}",)
            keys.skip(*data)
            keys.check_rest()  # of a change, which may be misspelled
            config = transformers.AutoConfig.for_model(family, **given)
            config.use_cache, config._experts_implementation = True, "batched_mm"
            if not hasattr(config, "vocab_size") or not hasattr(config, "hidden_size"):
                raise keys.fault(
                    "the family has no vocab_size and hidden_size, and only models of tokens are counted",
                    "name another model",
                )
            network = _class_of(config, keys)(config).eval()
            network.config.pad_token_id = None  # else the library looks for padding, which needs values
            return network, notes
    except FileFormatError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise FileFormatError(f"{where}: {VERSION} cannot build this network: {text}", "correct its keys") from error


def _check_layers(keys: Keys) -> None:
    """Raise FileFormatError, as families with a reader do, for a number of layers that no model has."""
    for name, value in keys.data.items():
        if isinstance(value, dict):
            _check_layers(keys.inner(name))
        elif isinstance(value, int) and value > MAX_LAYERS and re.search("layer|depth", name):
            keys.layers(name)


def _without_code(value: Any) -> Any:
    """Return the value of a key without the inner keys of `_LEFT_OUT`."""
    if isinstance(value, dict):
        return {name: _without_code(inner) for name, inner in value.items() if not _LEFT_OUT.fullmatch(name)}
    return [_without_code(inner) for inner in value] if isinstance(value, list) else value


@contextmanager
def _few_modules(keys: Keys) -> Iterator[None]:
    """Raise FileFormatError once a network has more modules than MAX_MODULES, such as a layer for each letter of a key."""
    counter = itertools.count(1)

    def check(*_: Any) -> None:
        if next(counter) > MAX_MODULES:
            raise keys.fault(f"the network has more than {MAX_MODULES:,} modules", "name a smaller model")

    hook = register_module_module_registration_hook(check)
    try:
        yield
    finally:
        hook.remove()


def _class_of(config: Any, keys: Keys) -> Any:
    """Return the class that `architectures` names, or the usual one for text. Raises FileFormatError for one of other inputs."""
    for name in keys.items("architectures", str)[:1]:
        found: Any = getattr(transformers, name, None)
        if getattr(found, "config_class", None) is None:
            raise keys.fault(f"architectures names {name}, which {VERSION} does not have", "name another class")
        if found.main_input_name != "input_ids":
            raise keys.fault(
                f"{name} reads {found.main_input_name}, and only models of tokens are counted", "name another class"
            )
        return found
    for name in _AUTO[not config.is_encoder_decoder :]:
        if type(config) in (classes := getattr(transformers, name)._model_mapping):
            return classes[type(config)]
    raise keys.fault(f"{VERSION} has no language model of this family", "name its class in architectures")


def stacks(network: Any) -> dict[str, nn.ModuleList]:
    """Return the lists of layers by name."""
    found: dict[str, nn.ModuleList] = {}
    for name, module in network.named_modules():
        is_stack = isinstance(module, nn.ModuleList) and all(
            isinstance(one, GradientCheckpointingLayer) for one in module
        )
        if is_stack and len(module) and not name.startswith(tuple(f"{outer}." for outer in found)):
            found[name] = module
    return found


def reduced(network: Any) -> list[LayerKind]:
    """Reduce a network to one layer of each kind, and return the kinds. Nothing changes if layers share parameters."""
    blocks: list[LayerKind] = []
    found = stacks(network)
    layers = [layer for stack in found.values() for layer in stack]
    own = [id(parameter) for layer in layers for parameter in layer.parameters()]
    if len(set(own)) < len(own):
        return []
    for name, stack in found.items():
        types = getattr(network.config, "layer_types", None) or [""] * len(stack)
        kinds: dict[Any, list[int]] = {}
        for place, layer in enumerate(stack):
            kinds.setdefault((types[place] if place < len(types) else "", _signature(layer)), []).append(place)
        first = sorted(places[0] for places in kinds.values())
        blocks += [LayerKind(name, tuple(places), first.index(places[0])) for places in kinds.values()]
        _keep(network, stack, first, is_only=len(found) == 1)
    return blocks


def _signature(layer: nn.Module) -> tuple[Any, ...]:
    """Return the modules of a layer with their parameters and sizes. Floats, such as scales, change no work."""
    return tuple(
        (
            name,
            type(module).__name__,
            tuple((own, tuple(one.shape)) for own, one in module.named_parameters(recurse=False)),
            tuple(
                (own, value)
                for own, value in sorted(vars(module).items())
                if isinstance(value, int | str | None) and own not in _PLACES
            ),
        )
        for name, module in layer.named_modules()
    )


def _keep(network: Any, stack: nn.ModuleList, places: list[int], *, is_only: bool) -> None:
    """Remove the other layers of a stack, and their entries in the lists of the configuration."""
    config, number = network.config, len(stack)
    for place in reversed(range(number)):
        if place not in places:
            del stack[place]
    for place, layer in enumerate(stack):
        for module in layer.modules():
            for name in _PLACES:
                if name in vars(module):
                    setattr(module, name, place)
    if is_only:
        # Some configurations compute the types of their layers from periods, which the remaining layers do not have.
        computed = [name for name, own in vars(type(config)).items() if isinstance(own, property)]
        lists = {name: getattr(config, name, None) for name in (*vars(config), *computed)}
        own = {
            name: [value[place] for place in places]
            for name, value in lists.items()
            if isinstance(value, list) and len(value) == number
        }
        config.__class__ = type(
            type(config).__name__, (type(config),), {name: own[name] for name in computed if name in own}
        )
        vars(config).update({name: value for name, value in own.items() if name not in computed})
        config.num_hidden_layers = len(places)


def window_of(network: Any, module: str, place: int) -> int | None:
    """Return the window of attention in a module of the reduced network, in a layer at a place; None for all positions."""
    attention, config = network.get_submodule(module), network.config
    if hasattr(attention, "sliding_window"):
        own = attention.sliding_window
        return own if isinstance(own, int) else None
    types = getattr(config, "layer_types", None)
    is_sliding = types is None or types[place] == "sliding_attention"
    return getattr(config, "sliding_window", None) if is_sliding else None


def cached_numbers_of(network: Any, length: int) -> list[tuple[int, int, int]]:
    """Return the place of each layer with a cache, and its keys and values: numbers per position, and after `length` positions."""
    tokens = torch.empty((1, length), dtype=torch.int64, device="meta")
    keywords = {"decoder_input_ids": tokens} if network.config.is_encoder_decoder else {}
    with torch.device("meta"), torch.inference_mode():
        cache = getattr(network(input_ids=tokens, **keywords), "past_key_values", None)
    halves = (getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache"))
    found = []
    for one in [half for half in halves if half is not None] or [cache]:
        for place, layer in enumerate(getattr(one, "layers", ())):
            pair = [own for name in ("keys", "values") if (own := getattr(layer, name, None)) is not None]
            each = sum(own.numel() // own.shape[-2] for own in pair)
            # The library drops the position of a full window that the next token does not see.
            found.append((place, each, each * min(length, pair[0].shape[-2] + 1) if pair else 0))
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Hide advice of the library on faster kernels and better inputs."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(before)
