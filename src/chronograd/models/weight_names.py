"""Matching of tensor names in public weights files to those of a network.

Wrappers put a prefix before each name, checkpoints store the weights under a key, some files hold two sets of weights, and
older releases of torchvision used other names. The tables here list them. Every change is described in words for the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from chronograd.words import how_many

Tensors = dict[str, Tensor]

# Wrappers that put a prefix before every name. They nest in any order.
PREFIXES = {
    "_orig_mod.": "torch.compile",
    "module.": "DataParallel, DDP or AveragedModel",
    "model.": "a Lightning module",
    "net.": "a Lightning module",
    "network.": "a Lightning module",
}
# Tensors that count the updates of a running mean and belong to no network.
BOOKKEEPING = ("n_averaged",)
# Keys of a checkpoint for the weights and for their running mean; the first match counts.
KEYS = ("state_dict", "model", "model_state_dict", "model_state", "net", "params", "module")
MEAN_KEYS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema_model", "params_ema", "ema")
# Prefixes of names in a state dict that holds the running mean in addition to the weights.
MEAN_PREFIXES = ("ema_model.", "model_ema.", "module_ema.", "ema.")
# Names of torchvision's earlier releases, and today's. A name changes only if the network has the new one.
RENAMES = (
    (re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\."), r"\1\2."),  # DenseNet, before 0.2
    (re.compile(r"\.mlp\.linear_1\."), ".mlp.0."),  # ViT, before 0.13
    (re.compile(r"\.mlp\.linear_2\."), ".mlp.3."),
    (re.compile(r"((?:inner|layer)_blocks\.\d+)\.(weight|bias)$"), r"\1.0.\2"),  # feature pyramids, before 0.13
    (re.compile(r"(rpn\.head\.conv)\.(weight|bias)$"), r"\1.0.0.\2"),
)


def weights_in(content: Any) -> tuple[Any, list[str]]:
    """Return the weights in the content of a checkpoint, and which of two sets was used, in words.

    The running mean of the weights is preferred if a file has both. Tensors that the mean lacks, such as running statistics,
    come from the other set. The result is not checked and may not be a state dict.
    """
    if not isinstance(content, Mapping) or _is_state_dict(content):
        return content, []
    plain = next((key for key in KEYS if isinstance(content.get(key), Mapping)), None)
    mean = next((key for key in MEAN_KEYS if isinstance(content.get(key), Mapping)), None)
    if mean is not None:
        averaged, _ = weights_in(content[mean])
        if _is_state_dict(averaged):
            return _with_rest(averaged, content, mean, plain)
    if plain is None:
        return content, []
    found, notes = weights_in(content[plain])
    if mean is not None:
        notes = [*notes, f"used {plain}; {mean} is not a state dict"]
    return found, notes


def for_network(
    given: Tensors, own: Collection[str], own_name: Callable[[str], str] = str
) -> tuple[Tensors, list[str]]:
    """Return tensors by the names of a network, and in words the stripped prefixes, renamed and left-out tensors.

    Args:
        own: names of the network's tensors.
        own_name: maps a name in public weights to the network's name.
    """
    given, notes = _one_set(given, own)
    stripped: list[str] = []
    best, best_stripped, most = given, stripped, _matches(given, own, own_name)
    while (shorter := _without_prefix(given)) is not None:
        given, prefix = shorter
        stripped = [*stripped, prefix]
        if (count := _matches(given, own, own_name)) > most:
            best, best_stripped, most = given, stripped, count
    if best_stripped:
        makers = dict.fromkeys(PREFIXES[prefix] for prefix in best_stripped)
        notes.append(f"prefix {''.join(best_stripped)} removed ({', '.join(makers)})")
    counters = [name for name in best if name in BOOKKEEPING and name not in own]
    if counters:
        best = {name: tensor for name, tensor in best.items() if name not in counters}
        notes.append(f"{', '.join(counters)} left out")
    result, renamed = {}, []
    for name, tensor in best.items():
        new = _today(own_name(name), own)
        result[new] = tensor
        if new != own_name(name):
            renamed.append(f"{name} to {new}")
    if renamed:
        notes.append(f"{how_many(len(renamed), 'old names')} changed, such as {renamed[0]}")
    return result, notes


def _is_state_dict(content: Any) -> bool:
    return isinstance(content, Mapping) and bool(content) and all(isinstance(v, Tensor) for v in content.values())


def _with_rest(
    averaged: Mapping[str, Tensor], content: Mapping[str, Any], mean: str, plain: str | None
) -> tuple[Mapping[str, Tensor], list[str]]:
    """Return the running mean, completed with the tensors that only the other set has."""
    if plain is None:
        return averaged, [f"used {mean}, the running mean of the weights"]
    note = f"used {mean}, the running mean of the weights, and not {plain}"
    other, _ = weights_in(content[plain])
    if _is_state_dict(other) and set(averaged) < set(other):
        return {**other, **averaged}, [f"{note}, except {len(other) - len(averaged)} tensors that it lacks"]
    return averaged, [note]


def _one_set(given: Tensors, own: Collection[str]) -> tuple[Tensors, list[str]]:
    """Return only the running mean if some names of the state dict have its prefix and others do not."""
    for prefix in MEAN_PREFIXES:
        mean = {name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)}
        if mean and len(mean) < len(given) and not any(name.startswith(prefix) for name in own):
            return mean, [
                f"used {prefix}*, the running mean of the weights, and not the other {len(given) - len(mean)}"
            ]
    return given, []


def _without_prefix(given: Tensors) -> tuple[Tensors, str] | None:
    """Return the tensors without the prefix that all names share, and the prefix; None if they share none."""
    names = [name for name in given if name not in BOOKKEEPING]
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            return {name.removeprefix(prefix): tensor for name, tensor in given.items()}, prefix
    if any("._orig_mod." in name for name in names):  # parts of the network were compiled
        return {name.replace("._orig_mod.", "."): tensor for name, tensor in given.items()}, "_orig_mod."
    return None


def _matches(given: Tensors, own: Collection[str], own_name: Callable[[str], str]) -> int:
    return sum(_today(own_name(name), own) in own for name in given)


def _today(name: str, own: Collection[str]) -> str:
    """Return torchvision's current name of a tensor, if the network has it and does not have the old one."""
    if name in own:
        return name
    return next((new for old, form in RENAMES if (new := old.sub(form, name)) in own), name)
