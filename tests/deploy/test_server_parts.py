"""Parts of the server that need none of the packages it serves with."""

from __future__ import annotations

import ctypes
import os
import socket
import struct

import pytest

from chronograd.deploy import server, timing
from chronograd.deploy.app import _lower_scheme


def test_the_filter_of_a_closing_socket_drops_only_segments_that_open_a_connection() -> None:
    """Its four steps are those of linux/filter.h: load a byte, jump if a bit is set, return nothing, return all."""

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
def test_a_server_and_its_client_have_a_core_each_where_there_are_two(
    monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(timing.environment, "cores", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {7, 4, *range(8, 6 + cores)})
    assert timing.own_cores() == (None if cores < 2 else timing.Cores(4, 7))


@pytest.mark.parametrize(
    ("given", "lowered"), [(b"BEARER ToKen", b"bearer ToKen"), (b"bearer  x", b"bearer x"), (b"", b"")]
)
def test_the_scheme_of_a_token_is_read_in_any_case(given: bytes, lowered: bytes) -> None:
    assert _lower_scheme(given) == lowered
