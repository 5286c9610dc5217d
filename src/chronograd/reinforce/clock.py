"""Times of the parts of an agent's step (acting, environment, replay, learning), measured around their calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Methods of an agent, of its replay and of an environment, and the part that each belongs to.
PARTS = {
    "agent": {"act": "act_s", "learn": "learn_s"},
    "replay": {"add": "replay_s", "sample": "replay_s", "update": "replay_s"},
    "environment": {"reset": "environment_s", "step": "environment_s"},
}


class Clock:
    """Seconds of each part since the last read. A nested part, such as replay within learning, counts only for itself."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._within_s = 0.0

    def time_parts(self, agent: Any, environment: Any) -> None:
        """Start timing the calls of these methods, where they exist."""
        for owner, name in ((agent, "agent"), (getattr(agent, "replay", None), "replay"), (environment, "environment")):
            for method, part in PARTS[name].items():
                if hasattr(owner, method):
                    setattr(owner, method, self._timed(part, getattr(owner, method)))

    def read(self) -> dict[str, float]:
        """Return the seconds by part and reset the clock."""
        parts, self._parts = self._parts, {}
        return parts

    def _timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            outside_s, self._within_s = self._within_s, 0.0
            begin = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                seconds = time.perf_counter() - begin
                self._parts[part] = self._parts.get(part, 0.0) + seconds - self._within_s
                self._within_s = outside_s + seconds

        return timed
