"""The first setting of a large model that fits, among the values that the user did not state.

Sharding comes first, because it costs the least time. Then sequences are as long as possible, backward computes as little as possible
again, and micro-batches are as large as possible. Stated values do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from operator import attrgetter

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.large.asking import AskedLarge, recomputation, sharding, with_changes
from chronograd.large.layouts import RECOMPUTATION
from chronograd.large.memory import StageMemory, memory_of, probability_of_fit
from chronograd.large.setting import LargeSetting
from chronograd.words import how_many

SURE = 0.95  # probability of fitting that a chosen setting has
SHORTEST = 512  # tokens of the shortest sequence to choose: that of Stanford Alpaca, a usual length in fine-tuning
MOST_TIMES = 64  # the most devices to suggest, as a multiple of the stated ones
ADAPTERS = {"--lora 16": ["large.adapter_rank=16"], "--qlora 16": ["large.adapter_rank=16", "large.base_bits=4"]}


def first_that_fits(asked: AskedLarge) -> AskedLarge:
    """Return the first setting that fits; if none does, the one that needs the least memory, with changes that are enough."""
    least, least_bytes = asked.setting, math.inf
    for setting in _settings(asked):
        fullest = _fullest(setting)
        if _fit(fullest, setting) >= SURE:
            return replace(asked, setting=setting, chosen=_words(asked, setting))
        if fullest.used_bytes < least_bytes:
            least, least_bytes = setting, fullest.used_bytes
    return replace(asked, setting=least, chosen=_words(asked, least), enough=tuple(_enough(asked)))


def _fullest(setting: LargeSetting) -> StageMemory:
    return max(memory_of(setting), key=attrgetter("used_bytes"))


def _fit(fullest: StageMemory, setting: LargeSetting) -> float:
    return probability_of_fit(fullest, catalog.device(setting.job.cluster.device).usable_bytes)


def _settings(asked: AskedLarge) -> Iterator[LargeSetting]:
    """Yield the usual setting, then those with other values for what the user did not state, the best ones first."""
    yield from _divided(asked, asked.setting)
    choices = (_sharding(asked), _lengths(asked), _recomputation(asked))
    for changes in product(*choices):
        try:
            setting = with_changes(asked.setting, [change for change in changes if change])
        except InputError:  # such as ranks that do not divide a shorter sequence
            continue
        yield from _divided(asked, setting)


def _sharding(asked: AskedLarge) -> list[str]:
    """Return the sharding to choose; an empty change if it is stated or there is one rank. A pipeline shards optimizer states."""
    setting = asked.setting
    is_open = "training.zero_stage" not in asked.stated and setting.data * setting.layout.context > 1
    return [f"training.zero_stage={1 if setting.layout.pipeline > 1 else 3}"] if is_open else [""]


def _lengths(asked: AskedLarge) -> list[str]:
    """Return the usual length, then shorter powers of two."""
    if "data.shape" in asked.stated or asked.setting.model.is_fixed:
        return [""]
    length = asked.setting.sequence
    powers = [2**k for k in reversed(range(length.bit_length())) if SHORTEST <= 2**k < length]
    return ["", *(f"data.shape=[{tokens}]" for tokens in powers)]


def _recomputation(asked: AskedLarge) -> list[str]:
    is_open = "large.recompute" not in asked.stated
    return [f"large.recompute={name}" for name in RECOMPUTATION] if is_open else [""]


def _divided(asked: AskedLarge, setting: LargeSetting) -> Iterator[LargeSetting]:
    """Yield a setting with smaller and smaller micro-batches of the same batch. Stages of a pipeline need several, so these stay."""
    of_rank = setting.micro_batch * setting.micro_batches
    if asked.has_micro_batch or "training.accumulation" in asked.stated or setting.layout.pipeline > 1:
        yield setting
        return
    for parts in (parts for parts in range(1, of_rank + 1) if of_rank % parts == 0):
        yield with_changes(setting, [f"training.accumulation={parts}"])


def _words(asked: AskedLarge, setting: LargeSetting) -> tuple[str, ...]:
    """Return the values that the user did not state, in words; nothing if they are the usual ones, in whole micro-batches."""
    usual = asked.setting
    words = {
        "training.zero_stage": sharding(setting) if setting.data * setting.layout.context > 1 else "",
        "data.shape": "" if setting.model.is_fixed else how_many(setting.sequence, "tokens"),
        "large.recompute": recomputation(setting),
    }
    is_other = any(of(setting) != of(usual) for of in (sharding, recomputation, lambda setting: setting.sequence))
    chosen = [text for name, text in words.items() if text and name not in asked.stated] if is_other else []
    is_divided = setting.layout.pipeline == 1 and setting.micro_batches > 1
    if is_divided and not asked.has_micro_batch and "training.accumulation" not in asked.stated:
        chosen.append(f"micro-batches of {how_many(setting.micro_batch, 'sequences')}")
    return tuple(chosen)


def _enough(asked: AskedLarge) -> Iterator[str]:
    """Yield the first power of two times the devices with which a setting fits, then the first adapters."""
    setting, device = asked.setting, catalog.device(asked.setting.job.cluster.device)
    count, times = setting.ranks, 2
    while times <= MOST_TIMES:
        batch = [] if "training.batch" in asked.stated else [f"training.batch={times * setting.training.batch}"]
        if _can_fit(asked, [f"cluster.count={times * count}", "backend=ddp", *batch]):
            yield f"{times * count} × {device.title}"
            break
        times *= 2
    if not {"large.adapter_rank", "large.base_bits"} & asked.stated:
        yield from islice((option for option, changes in ADAPTERS.items() if _can_fit(asked, changes)), 1)


def _can_fit(asked: AskedLarge, changes: list[str]) -> bool:
    try:
        *_, smallest = _settings(replace(asked, setting=with_changes(asked.setting, changes)))
    except InputError:  # such as a stated batch that more devices do not divide
        return False
    return _fit(_fullest(smallest), smallest) >= SURE
