"""The event loop of a server: uvloop if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the loop, for `asyncio.Runner`; None for asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:  # Windows has none
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
