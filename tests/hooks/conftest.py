from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_networks_of_other_tests() -> Iterator[None]:
    """A recording looks for its network among all objects; trainers are held in cycles until they are collected."""
    gc.collect()
    yield
    gc.collect()
