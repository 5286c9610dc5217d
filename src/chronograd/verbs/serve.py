"""`serve MODEL.onnx ...`: a server of models, by the Open Inference Protocol."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.errors import printable
from chronograd.verbs.kinds import ABOVE_0
from chronograd.verbs.load import token
from chronograd.verbs.request import FILE, Request, Spelling
from chronograd.verbs.screen import announce

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class ServeModels(Request):
    """Serve models in ONNX: Open Inference Protocol, batching, metrics.

    Clients of Triton, KServe and MLServer use the same protocol: JSON and binary tensors over HTTP. A model is NAME.onnx, or
    NAME@2.onnx for version 2; or a folder of these, or of NAME/VERSION/model.onnx. SIGHUP loads changed models. SIGTERM stops
    the server after it has answered all requests. GET /metrics is for Prometheus.
    """

    verb = "serve"
    examples = (
        "chronograd serve digits.onnx",
        "chronograd serve models/ --port 8080 --batch 64 --batch-wait 2",
        "chronograd serve digits.onnx --host 0.0.0.0 --token-file token.txt",
    )
    is_announced = True

    models: Annotated[
        tuple[Path, ...], click.Path(path_type=Path), Spelling(metavar="MODEL.onnx|FOLDER...", is_argument=True)
    ]
    host: str = "127.0.0.1"
    """Address to listen on; addresses reachable from other machines need a token."""
    port: Annotated[int, click.IntRange(0, 65535)] = 8000
    """Port; 0 picks a free one."""
    token_file: Annotated[Path | None, FILE] = None
    """File with the token that clients send; default: the variable CHRONOGRAD_TOKEN."""
    batch: Annotated[int, click.IntRange(1, 65536)] = 32
    """Maximum rows of requests that run together; 1 runs each request separately."""
    batch_wait: Annotated[float, click.FloatRange(0, 60_000)] = 0.0
    """Maximum milliseconds that a request waits for others while the model is free."""
    queue: Annotated[int, click.IntRange(1)] = 256
    """Maximum number of requests that wait for a model."""
    instances: Annotated[int, click.IntRange(1, 256)] = 1
    """Batches of a model that run at the same time."""
    threads: Annotated[int | None, click.IntRange(1, 1024)] = None
    """Threads of one run; one per core by default."""
    most_mb: Annotated[float, ABOVE_0] = 64.0
    """Maximum size of a request's body, in MiB."""
    timeout: Annotated[float, ABOVE_0] = 30.0
    """Seconds for a request, including waiting."""
    drain: Annotated[float, click.FloatRange(0)] = 10.0
    """Maximum seconds to answer waiting requests after SIGTERM."""

    def answer(self) -> Answer:
        """Serve until the server is stopped; the answer is shown once it has started."""
        from chronograd.deploy.app import Limits
        from chronograd.deploy.repository import Settings
        from chronograd.deploy.server import serve

        shown: list[Answer] = []

        def started(answer: Answer) -> None:
            shown.append(answer)
            announce(answer)

        handler = logging.StreamHandler()
        handler.setFormatter(Printable("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
        settings = Settings(self.batch, self.batch_wait / 1e3, self.queue, self.instances, self.threads)
        limits = Limits(
            most_bytes=round(self.most_mb * 2**20), timeout_s=self.timeout, drain_s=self.drain, most_waiting=self.queue
        )
        serve(self.models, host=self.host, port=self.port, token=token(self.token_file), settings=settings, limits=limits,
              started=started)  # fmt: skip
        return shown[0]


class Printable(logging.Formatter):
    """A log formatter that removes control characters, which may come from a model or a client."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


REQUESTS = (ServeModels,)
