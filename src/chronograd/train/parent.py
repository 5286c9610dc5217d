"""A rank ends with the process that started it, even if that was killed: nobody would watch it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

# Set by a launcher that holds the other end of the rank's standard input open for as long as it lives.
PARENT_VARIABLE = "CHRONOGRAD_LEASH"


def exit_with_parent(at_end: Callable[[], None] = lambda: None) -> None:
    """If a parent asked for it, watch for its end from now on; `at_end` is called before it ends for want of its parent."""

    def end_with_parent() -> None:
        while os.read(0, 4096):
            pass
        at_end()
        os._exit(1)

    if os.environ.get(PARENT_VARIABLE):
        threading.Thread(target=end_with_parent, daemon=True).start()
