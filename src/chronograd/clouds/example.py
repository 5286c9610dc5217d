"""Example options for each platform from `example.toml`, with made-up addresses: for pages and tests."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

_TABLES = tomllib.loads((resources.files("chronograd.clouds") / "example.toml").read_text(encoding="utf-8"))
_COMMON = _TABLES.pop("common")
# The address of a user's data set.
DATA: dict[str, str] = {name: table.pop("data") for name, table in _TABLES.items()}
OPTIONS: dict[str, dict[str, Any]] = {name: {**_COMMON, **table} for name, table in _TABLES.items()}
DATA["pytorchjob"], OPTIONS["pytorchjob"] = DATA["kubernetes"], OPTIONS["kubernetes"]
