"""The reader of each family, by the `model_type` of its `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from chronograd.configs.description import ModelDescription
from chronograd.configs.families import (
    bert,
    deepseek,
    gemma,
    gemma4,
    gpt2,
    gpt_neox,
    gpt_oss,
    llama,
    mpt,
    nemotron_h,
    opt,
    phi,
    t5,
    vit,
)
from chronograd.configs.keys import Keys
from chronograd.errors import FileFormatError, near_names, shown

READERS: dict[str, Callable[[Keys], ModelDescription]] = {
    **dict.fromkeys(llama.RELATIVES, llama.read),
    **dict.fromkeys(gemma.GENERATIONS, gemma.read),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2"), deepseek.read),
    "gemma4_text": gemma4.read,
    "nemotron_h": nemotron_h.read,
    "gpt_oss": gpt_oss.read,
    "phi": phi.read,
    "gpt2": gpt2.read,
    "gpt_neox": gpt_neox.read,
    "opt": opt.read,
    "mpt": mpt.read,
    "bert": bert.read,
    **dict.fromkeys(("t5", "mt5"), t5.read),
    "vit": vit.read,
}
TEXT_ONLY = "only the text model is counted, without its parts for images and sound"


def describe(data: Mapping[str, Any], where: str, changes: Mapping[str, Any] | None = None) -> ModelDescription:
    """Return the description of a model from the keys of its file. A file with several models gives its text model.

    Args:
        where: the file, for messages.
        changes: keys of the (text) model with other values.
    Raises: FileFormatError for an unknown family, and for a key that is unknown, missing or wrong.
    """
    family, text = data.get("model_type"), data.get("text_config")
    notes: tuple[str, ...] = ()
    if isinstance(text, dict) and str(family) not in READERS and str(text.get("model_type")) in READERS:
        tied = {key: data[key] for key in ("tie_word_embeddings",) if key in data}
        data, family, notes = {**tied, **text}, text["model_type"], (TEXT_ONLY,)
    if not isinstance(family, str):
        raise FileFormatError(f"{where}: model_type must be the name of a family, got {shown(family)}", _known())
    if family not in READERS:
        raise unread(family, where)
    keys = Keys({**data, **(changes or {})}, where, family)
    model = READERS[family](keys)
    keys.check_rest()
    return dataclasses.replace(model, notes=(*notes, *model.notes))


def is_read(data: Mapping[str, Any]) -> bool:
    """Return whether a reader knows the family of a file, or that of its text model. A file without a family counts as known."""
    text = data.get("text_config")
    families = [data.get("model_type"), *([text.get("model_type")] if isinstance(text, dict) else [])]
    return any(str(family) in READERS for family in families) or not isinstance(families[0], str)


def unread(family: str, where: str, reason: str = "") -> FileFormatError:
    """Return the error for a family without a reader."""
    near = near_names(family, READERS)
    hint = f"did you mean {' or '.join(near)}? {_known()}" if near else _known()
    text = f"{where}: {shown(family)} is a family without a reader"
    return FileFormatError(f"{text}, and {reason}" if reason else text, hint)


def _known() -> str:
    return f"families with a reader: {', '.join(sorted(READERS))}; only `count` reads others, with the library Transformers"
