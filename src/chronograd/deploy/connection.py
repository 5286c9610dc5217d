"""A connection to the server: uvicorn's HTTP/1.1 protocol with additional limits of time and memory."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

MAX_HEAD_BYTES = 64 * 2**10  # of a request: its line and headers; and of bytes after them that are not a body


_Protocol: Any = object  # of uvicorn, which may not be installed


def timed(base: Any, timeout_s: float) -> Any:
    """Return a protocol of uvicorn that closes the connection of a client that stalls for `timeout_s`."""

    class TimedProtocol(base):
        head_timer: asyncio.TimerHandle | None = None
        write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._time_head()

        def connection_lost(self, error: Exception | None) -> None:
            for timer in (self.head_timer, self.write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(error)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time_head()

        def _time_head(self) -> None:
            """Close the connection unless a head arrives in time; while a request is being answered, no limit applies."""
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if self.head_timer is None and not is_answering:
                self.head_timer = self.loop.call_later(timeout_s, self.transport.close)
            elif self.head_timer is not None and is_answering:
                self.head_timer.cancel()
                self.head_timer = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self.write_timer = self.loop.call_later(timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self.write_timer is not None:
                self.write_timer.cancel()

    return TimedProtocol


class Strict(_Protocol):
    """uvicorn's protocol with httptools that limits a head, drops trailers, and never changes to another protocol."""

    httptools: Any
    parser: Any
    is_in_head = False
    idle_bytes = 0  # since the last piece of a body, or the end of a head
    again: bytes | None = None  # a head that asks for another protocol, without that request

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.unanswered: deque[Any] = deque()  # cycles of requests, in order of arrival

    def connection_lost(self, error: Exception | None) -> None:
        """Tell all requests that nobody reads their answers. uvicorn tells only the last, and the others write to a closed
        connection.
        """
        for cycle in self.unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(error)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head, self.idle_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # and is not a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.is_in_head, self.idle_bytes = False, 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            while self.unanswered and self.unanswered[0].response_complete:
                self.unanswered.popleft()
            self.unanswered.append(self.cycle)
            return
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise ValueError("this is not a proxy")
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.again = b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        self.idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.again is None:
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self.idle_bytes += len(data)
        try:
            self._feed(data)
        except self.httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
            return
        if self.idle_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"A request has at most {MAX_HEAD_BYTES} bytes in addition to its body.")

    def _feed(self, data: bytes) -> None:
        """Let the parser read. If a head asks for another protocol (h2c, like Java's client), remove that request.

        Otherwise the parser believes that the following bytes belong to the other protocol, and takes a body for the next
        request.
        """
        while data:
            try:
                self.parser.feed_data(data)
                return
            except self.httptools.HttpParserUpgrade as upgrade:
                assert self.again is not None
                data, self.again = self.again + data[upgrade.args[0] :], None
                self.parser = self.httptools.HttpRequestParser(self)
                with suppress(AttributeError):  # httptools before 0.6.3 lacks it; uvicorn sets it the same way
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)


def strict(base: Any) -> Any:
    """Return `base`, uvicorn's protocol with httptools, as a `Strict` one."""
    import httptools

    return type("StrictProtocol", (Strict, base), {"httptools": httptools})
