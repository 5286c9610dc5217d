"""Access to a server: addresses of this machine, and the headers by which a browser names the site behind a request."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

Headers = Sequence[tuple[bytes, bytes]]


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can reach a host.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def stranger(headers: Headers) -> str:
    """Return the Host or Origin of a request that does not belong to this machine; empty if there is none.

    A page of any site can make a browser on this machine send requests. The browser then sends the site as Origin. If the site
    has pointed its own name here (DNS rebinding), it sends the site as Host.

    >>> stranger([(b"host", b"localhost:8000"), (b"origin", b"http://127.0.0.1:3000")])
    ''
    >>> stranger([(b"host", b"evil.example:8000")])
    'Host evil.example:8000'
    """
    for name, value in headers:
        text = value.decode("latin-1")
        if name == b"host" and not _is_here(f"//{text}"):
            return f"Host {ascii(text)[1:-1][:80]}"
        if name == b"origin" and not _is_here(text):
            return f"Origin {ascii(text)[1:-1][:80]}"
    return ""


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False
