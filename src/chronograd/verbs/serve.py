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

    Clients of Triton, KServe and MLServer speak that protocol: JSON and binary tensors over HTTP. A model is NAME.onnx, a
    version of it NAME@2.onnx; or a folder of these, or of NAME/VERSION/model.onnx. SIGHUP loads what has changed, SIGTERM
    ends it once everything is answered. GET /metrics is for Prometheus.
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
    """Address to listen on; others than of this machine need a token."""
    port: Annotated[int, click.IntRange(0, 65535)] = 8000
    """0 for any that is free."""
    token_file: Annotated[Path | None, FILE] = None
    """File with the token that clients send; or the variable CHRONOGRAD_TOKEN."""
    batch: Annotated[int, click.IntRange(1, 65536)] = 32
    """Most rows of requests that are run together; 1: each by itself."""
    batch_wait: Annotated[float, click.FloatRange(0, 60_000)] = 0.0
    """Milliseconds that a request may wait for others while the model is free."""
    queue: Annotated[int, click.IntRange(1)] = 256
    """Requests that may wait for a model."""
    instances: Annotated[int, click.IntRange(1, 256)] = 1
    """Batches of a model that are run at the same time."""
    threads: Annotated[int | None, click.IntRange(1, 1024)] = None
    """Of one run; as many as there are cores by default."""
    most_mb: Annotated[float, ABOVE_0] = 64.0
    """Of the body of a request, in MiB."""
    timeout: Annotated[float, ABOVE_0] = 30.0
    """Seconds for a request, waiting included."""
    drain: Annotated[float, click.FloatRange(0)] = 10.0
    """Seconds that requests are still taken after SIGTERM, at most."""

    def answer(self) -> Answer:
        """Serve until the server is ended; the answer is shown when it has started."""
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
    """Lines without control characters: a model, or the words of a client, may have put them there."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


REQUESTS = (ServeModels,)
