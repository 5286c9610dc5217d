from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collect_other_networks() -> Iterator[None]:
    """Collect garbage: a recording searches all objects for its network, and reference cycles hold trainers of other
    tests.
    """
    gc.collect()
    yield
    gc.collect()
