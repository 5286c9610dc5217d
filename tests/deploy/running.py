"""A server in a separate process, and a plain client for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from chronograd.deploy.protocol import HEADER_LENGTH, read_answer, write_request


@dataclass
class Running:
    """A running server with its first output."""

    process: subprocess.Popen[str]
    data: dict[str, Any]
    log: IO[bytes]  # its standard error, as an unread pipe would fill and block it

    def errors(self) -> str:
        """Return the server's standard error."""
        return os.pread(self.log.fileno(), 2**20, 0).decode()

    @property
    def url(self) -> str:
        return self.data["url"]

    def client(self, timeout: float = 20) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.url.removeprefix("http://").split(":"), timeout=timeout)  # type: ignore[arg-type]

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a request on a new connection."""
        client = self.client()
        client.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = client.getresponse()
        content = answer.read()
        client.close()
        return answer.status, dict(answer.getheaders()), content

    def infer(self, model: str, client: http.client.HTTPConnection | None = None, outputs: tuple[str, ...] = (), **inputs: Any) -> dict[str, Any]:  # fmt: skip
        """Return the outputs of a request with binary tensors."""
        one = client or self.client()
        headers, body = write_request(inputs, is_binary=True, outputs=outputs)
        one.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = one.getresponse()
        content = answer.read()
        if client is None:
            one.close()
        assert answer.status == 200, content
        return read_answer(content, answer.headers[HEADER_LENGTH])

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        text = self.ask("GET", "/metrics")[2].decode()
        total = 0.0
        for line in text.splitlines():
            if match := re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line):
                own = dict(re.findall(r'(\w+)="([^"]*)"', match[1] or ""))
                if labels.items() <= own.items():
                    total += float(match[2])
        return total

    def stop(self, sign: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop the server and return its exit status and standard error."""
        self.process.send_signal(sign)
        self.process.communicate(timeout=600)
        return self.process.returncode, self.errors()


@contextmanager
def serving(*arguments: str | Path, **environment: str) -> Iterator[Running]:
    """Run `chronograd serve` with these arguments at a free port."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "chronograd", "serve", *map(str, arguments), "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **environment},
        )
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line == "}\n":
                    break
            running = Running(process, json.loads("".join(lines) or "{}"), log)
            assert running.data, running.errors()
            yield running
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=600)


def floats(*rows: list[float]) -> Any:
    return np.array(rows, np.float32)
