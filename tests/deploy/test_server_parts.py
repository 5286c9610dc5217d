"""Parts of the server that need no extra packages."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

import pytest

from chronograd.deploy import server, timing
from chronograd.deploy.app import _lower_scheme


def test_closing_socket_filter_drops_only_syn_segments() -> None:
    """The four instructions of linux/filter.h: load a byte, jump if a bit is set, return 0, return all."""

    class Listening:
        def setsockopt(self, level: int, option: int, program: bytes) -> None:
            count, address = struct.unpack("HP", program)
            code = ctypes.string_at(address, 8 * count)
            self.given = level, option, [struct.unpack_from("HBBI", code, 8 * i) for i in range(count)]

    listening = Listening()
    server._take_no_more(listening)  # type: ignore[arg-type]
    ld, b, absolute, jmp, jset, k, ret = 0x00, 0x10, 0x20, 0x05, 0x40, 0x00, 0x06
    syn = 0x02
    steps = [(ld | b | absolute, 0, 0, 13), (jmp | jset | k, 0, 1, syn), (ret | k, 0, 0, 0), (ret | k, 0, 0, 2**32 - 1)]
    assert listening.given == (socket.SOL_SOCKET, 26, steps)


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_server_and_client_get_separate_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(timing.environment, "cores", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 4, *range(8, 6 + cores)})
    assert timing.own_cores() == (None if cores < 2 else timing.Cores(4, 7))


@pytest.mark.parametrize(
    ("given", "lowered"), [(b"BEARER ToKen", b"bearer ToKen"), (b"bearer  x", b"bearer x"), (b"", b"")]
)
def test_token_scheme_is_case_insensitive(given: bytes, lowered: bytes) -> None:
    assert _lower_scheme(given) == lowered
