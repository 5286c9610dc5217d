"""Backends by the name in a job's `backend` field."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from chronograd import backends
from chronograd.backends.plan import Backend
from chronograd.errors import JobError, NotFoundError, RunError
from chronograd.job import BACKENDS

NOT_YET = {
    "data_parallel": "torch.nn.DataParallel is for several GPUs in one process; ddp does the same job faster",
    "parameter_server": "needs Ray, and asynchronous steps in the record",
    "horovod": "needs a patched build of Horovod (its last release does not compile with torch 2)",
    "tf_mirrored": "needs TensorFlow, and networks with a Keras twin",
    "tf_multiworker": "needs TensorFlow, and networks with a Keras twin",
}


def names() -> list[str]:
    """Backends that are there: those files of this folder that a job can name."""
    files = {module.name for module in pkgutil.iter_modules(backends.__path__)}
    return [name for name in BACKENDS if name in files]


def find(name: str) -> Backend:
    """The backend, ready to run here.

    Raises JobError for one that is not there yet, RunError for one that cannot run here, with the reason.
    """
    if name not in names():
        if name not in NOT_YET:
            raise NotFoundError("backend", name, names())
        raise JobError(f"backend {name} is not there yet: it {NOT_YET[name]}", f"write backend={' or '.join(names())}")
    backend = cast(Backend, importlib.import_module(f"chronograd.backends.{name}"))
    is_available, reason = backend.available()
    if not is_available:
        raise RunError(f"backend {name} cannot run here: {reason}")
    return backend
