"""Files of large models: a `config.json`, a folder that holds one, `hf:NAME` in the cache of Hugging Face, or a packaged name.

Packaged names have other spellings: in capitals, and as on Hugging Face.
"""

from __future__ import annotations

import csv
import json
import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from chronograd import files
from chronograd.errors import FileFormatError, InputError

FILE = "config.json"
HUB = "hf:"
# The longest files have a label per class; 1,000 labels take 100 kB.
MAX_BYTES = 4_000_000
_REPOSITORY = re.compile(r"huggingface\.co/([\w.-]+/[\w.-]+)")
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@cache
def packaged() -> dict[str, Path]:
    """Return the packaged files by name, such as `llama-3-8b`."""
    folder = Path(str(resources.files("chronograd.configs") / "catalogue"))
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


@cache
def _spellings() -> dict[str, str]:
    """Return the packaged name of each spelling in lower case: its own, and those of its repository in `sources.csv`."""
    with (packaged()["gpt2"].parent / "sources.csv").open(encoding="utf-8", newline="") as file:
        sources = [(row["name"], _REPOSITORY.search(row["source"].lower())) for row in csv.DictReader(file)]
    found = {spelling: name for name, match in sources if match for spelling in (match[1], match[1].partition("/")[2])}
    return found | {name: name for name in packaged()}


def packaged_name(reference: str) -> str:
    """Return the packaged name that a spelling such as `meta-llama/Meta-Llama-3-8B` means; any other reference unchanged.

    >>> packaged_name("Llama-3-8B"), packaged_name("meta-llama/Meta-Llama-3-8B"), packaged_name("my/config.json")
    ('llama-3-8b', 'llama-3-8b', 'my/config.json')
    """
    return reference if os.path.exists(reference) else _spellings().get(reference.lower(), reference)


def find(reference: str | os.PathLike[str]) -> Path | None:
    """Return the file that a reference names; None if it names something else, such as a trace or a network of code.

    Raises: InputError for a model that is not in the cache of Hugging Face.
    """
    text = os.fspath(reference)
    if text.startswith(HUB):
        return _cached(text.removeprefix(HUB))
    if (path := packaged().get(text) or packaged().get(packaged_name(text))) is not None:
        return path
    path = Path(text)
    try:
        if path.is_dir():
            return path / FILE if (path / FILE).is_file() else None
        return path if path.suffix == ".json" and (path.name == FILE or _is_config(path)) else None
    except (OSError, ValueError):  # an impossible file name
        return None


def load(path: Path) -> dict[str, Any]:
    """Return the keys of a file. Raises FileFormatError. Infinities, which such files may have, become None."""
    try:
        data = json.loads(files.read_bytes(path, MAX_BYTES).decode(), parse_constant=lambda _: None)
        files.check_plain(data)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileFormatError(f"cannot read {path}: {reason}", f"name a {FILE} of Hugging Face") from None
    if not isinstance(data, dict):
        raise FileFormatError(f"{path} has no keys", f"name a {FILE} of Hugging Face")
    return data


def _is_config(path: Path) -> bool:
    """Return whether a file has the keys of Hugging Face, and not those of a trace."""
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return False
    try:
        return bool(load(path).keys() & {"architectures", "model_type"})
    except FileFormatError:
        return False


def _cached(name: str) -> Path:
    """Return the file of a model in the cache of Hugging Face. Raises InputError."""
    if _NAME.fullmatch(name) is None:
        raise InputError(f"{HUB}{name} is no name of a model", "write hf:OWNER/NAME, such as hf:openai-community/gpt2")
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    snapshots = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob(f"*/{FILE}"))
    try:
        current = files.read_text(snapshots.parent / "refs" / "main").strip()
    except (OSError, ValueError):
        current = ""
    newest = [path for path in found if path.parent.name == current]
    if not found:
        raise InputError(
            f"{HUB}{name} is not in the cache {hub}",
            f"`hf download {name} {FILE}` stores its file there, without weights",
        )
    return (newest or found)[0]
