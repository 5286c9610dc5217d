"""`load URL`: requests to a server, and their latency."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from chronograd.errors import InputError
from chronograd.verbs.kinds import ABOVE_0, COUNTS, RATES, ValueKind, parse_whole_numbers
from chronograd.verbs.request import FILE, FOLDER, Request, Spelling
from chronograd.verbs.screen import say, waiting

if TYPE_CHECKING:
    from chronograd.answer import Answer


def parse_named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the shape of an input. Raises ValueError.

    >>> parse_named_shape("tokens=1,128")
    ('tokens', (1, 128))
    """
    name, sign, numbers = text.rpartition("=")
    if not sign or not name:
        raise ValueError(f"cannot read {text!r}; write NAME=1,3,224,224")
    return name, parse_whole_numbers(numbers)


NAMED_SHAPE = ValueKind("NAME=N,N,...", parse_named_shape, lambda value: isinstance(value, tuple))


@dataclass(frozen=True, kw_only=True)
class LoadServer(Request):
    """Send requests to a server, and report latency against load, and errors.

    The server may be any that speaks the Open Inference Protocol v2; the inputs are random. An open loop sends requests without
    waiting for answers, like many users. A closed loop measures the maximum rate of a server.
    """

    verb = "load"
    examples = (
        "chronograd load http://127.0.0.1:8000",
        "chronograd load http://127.0.0.1:8000 --rate 50,100,200,400 --seconds 20",
        "chronograd load http://127.0.0.1:8000 --model bert --shape tokens=1,128 --connections 1,8,64 --out loads",
    )

    url: Annotated[str, Spelling(metavar="URL", is_argument=True)]
    model: str | None = None
    """Name of the model; by default the only one on the server."""
    rate: Annotated[tuple[float, ...], RATES, Spelling(metavar="R,R,...", aliases=("rates",))] = ()
    """Open loop: requests per second, at random times; rates run one after the other."""
    connections: Annotated[tuple[int, ...], COUNTS, Spelling(metavar="N,N,...")] = ()
    """Closed loop: number of clients; each sends its next request after the last answer. Default 1."""
    seconds: Annotated[float, ABOVE_0] = 10.0
    """Seconds for each rate and number of connections."""
    warmup: Annotated[float, click.FloatRange(0)] = 1.0
    """Warm-up seconds before the measurement."""
    batch: Annotated[int, click.IntRange(1)] = 1
    """Rows per request."""
    shape: Annotated[tuple[Any, ...], NAMED_SHAPE, Spelling(metavar="NAME=N,N,...")] = ()
    """Full shape of an input, if axes other than the first have no fixed length. May be given several times."""
    in_json: Annotated[bool, Spelling(("--as-json",))] = False
    """Send tensors as JSON instead of binary."""
    token_file: Annotated[Path | None, FILE] = None
    """File with the server's token; default: the variable CHRONOGRAD_TOKEN."""
    timeout: Annotated[float, ABOVE_0] = 30.0
    """Seconds until an unanswered request counts as failed."""
    seed: Annotated[int, click.IntRange(0)] = 0
    """Seed of the random inputs and arrival times."""
    out: Annotated[Path | None, FOLDER] = None
    """Folder for the records, one per rate, for `chronograd compare`."""

    def answer(self) -> Answer:
        from chronograd.deploy.load import RequestOptions, load

        shapes = {name: list(numbers) for name, numbers in self.shape}
        with waiting("sending requests") as stage:
            options = RequestOptions(
                self.model, self.batch, shapes, not self.in_json, token(self.token_file), self.seed
            )
            answer = load(self.url, options, rates=self.rate, connections=self.connections, seconds_each=self.seconds,
                          warmup_s=self.warmup, timeout_s=self.timeout, say=stage)  # fmt: skip
        if self.out is not None:
            self._save(answer, self.out)
        return answer

    def _save(self, answer: Answer, out: Path) -> None:
        from chronograd.files import as_asked

        with as_asked(out):
            out.mkdir(parents=True, exist_ok=True)
        for label, record in answer.records.items():
            path = out / f"{label.replace('/s', '-per-s').replace(' ', '-')}.json"
            record.save(path)
            say(f"record: {path}")


def token(path: Path | None) -> str | None:
    """Return the token from a file, or from CHRONOGRAD_TOKEN; None if there is neither. Raises InputError."""
    if path is None:
        return os.environ.get("CHRONOGRAD_TOKEN") or None
    from chronograd import files

    try:
        return files.read_bytes(path, 4096).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the token in {path}: {error}") from None


REQUESTS = (LoadServer,)
