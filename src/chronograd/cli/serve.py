"""`chronograd serve MODEL.onnx ...`: a server of models, by the Open Inference Protocol."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chronograd.cli import common
from chronograd.errors import printable

if TYPE_CHECKING:
    from chronograd.answer import Answer


@click.command("serve")
@click.argument("models", nargs=-1, required=True, type=common.PATH, metavar="MODEL.onnx|FOLDER...")
@click.option("--host", default="127.0.0.1", help="Address to listen on; others than of this machine need a token.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), help="0 for any that is free.")
@click.option(
    "--token-file", type=common.FILE, help="File with the token that clients send; or the variable CHRONOGRAD_TOKEN."
)
@click.option("--batch", "most_rows", default=32, type=click.IntRange(1, 65536),
              help="Most rows of requests that are run together; 1: each by itself.")  # fmt: skip
@click.option("--batch-wait", "wait_ms", default=0.0, type=click.FloatRange(0, 60_000),
              help="Milliseconds that a request may wait for others while the model is free.")  # fmt: skip
@click.option(
    "--queue", "most_waiting", default=256, type=click.IntRange(1), help="Requests that may wait for a model."
)
@click.option(
    "--instances", default=1, type=click.IntRange(1, 256), help="Batches of a model that are run at the same time."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Of one run; as many as there are cores by default.")
@click.option("--most-mb", default=64.0, type=common.ABOVE_0, help="Of the body of a request, in MiB.")
@click.option(
    "--timeout", "timeout_s", default=30.0, type=common.ABOVE_0, help="Seconds for a request, waiting included."
)
@click.option("--drain", "drain_s", default=10.0, type=click.FloatRange(0),
              help="Seconds that requests are still taken after SIGTERM, at most.")  # fmt: skip
@common.answer_options
def command(models: tuple[Path, ...], host: str, port: int, token_file: Path | None, most_rows: int, wait_ms: float,
            most_waiting: int, instances: int, threads: int | None, most_mb: float, timeout_s: float, drain_s: float,
            as_json: bool) -> None:  # fmt: skip
    """Serve models in ONNX: Open Inference Protocol, batching, metrics.

    Clients of Triton, KServe and MLServer speak that protocol: JSON and binary tensors over HTTP. A model is NAME.onnx, a
    version of it NAME@2.onnx; or a folder of these, or of NAME/VERSION/model.onnx. SIGHUP loads what has changed, SIGTERM
    ends it once everything is answered. GET /metrics is for Prometheus.

    \b
    chronograd serve digits.onnx
    chronograd serve models/ --port 8080 --batch 64 --batch-wait 2
    chronograd serve digits.onnx --host 0.0.0.0 --token-file token.txt
    """
    from chronograd.deploy.app import Limits
    from chronograd.deploy.repository import Settings
    from chronograd.deploy.server import serve
    from chronograd.verbs.load import token

    def started(answer: Answer) -> None:
        common.show(answer, as_json)
        sys.stdout.flush()  # a program that has started this waits for it

    handler = logging.StreamHandler()
    handler.setFormatter(Printable("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    settings = Settings(most_rows, wait_ms / 1e3, most_waiting, instances, threads)
    limits = Limits(most_bytes=round(most_mb * 2**20), timeout_s=timeout_s, drain_s=drain_s, most_waiting=most_waiting)
    serve(models, host=host, port=port, token=token(token_file), settings=settings, limits=limits, started=started)


class Printable(logging.Formatter):
    """Lines without control characters: a model, or what a client sent, may have put them there."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
