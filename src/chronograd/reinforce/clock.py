"""Which part of an agent's step takes how long: acting, the environment, replay, learning. Measured around their calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# Methods of an agent, of its replay and of an environment, and the part that each is.
PARTS = {
    "agent": {"act": "act_s", "learn": "learn_s"},
    "replay": {"add": "replay_s", "sample": "replay_s", "update": "replay_s"},
    "environment": {"reset": "environment_s", "step": "environment_s"},
}


class Clock:
    """Seconds of each part since it was last read. A part within another, as replay within learning, counts for itself alone."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._within_s = 0.0

    def time_parts(self, agent: Any, environment: Any) -> None:
        """From now on, time the calls of those methods that there are."""
        for owner, name in ((agent, "agent"), (getattr(agent, "replay", None), "replay"), (environment, "environment")):
            for method, part in PARTS[name].items():
                if hasattr(owner, method):
                    setattr(owner, method, self._timed(part, getattr(owner, method)))

    def read(self) -> dict[str, float]:
        """Seconds by part, and begin anew."""
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
