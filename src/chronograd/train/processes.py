"""What the system says of a process and its connections: stopped, waiting or running; sent and not acknowledged.

From /proc of Linux; elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from pathlib import Path

ENDED, STOPPED, RUNNING = "has ended", "is stopped", "is running"
# By the letter that proc(5) gives for a process.
_STATES = {
    "R": RUNNING,
    "S": "is waiting",
    "D": "is waiting for a disk",
    "T": STOPPED,
    "t": STOPPED,
    "Z": ENDED,
    "X": ENDED,
}
# Times that a connection sent the same data again; one is usual on a busy network.
LEAST_REPEATS = 2


def state_of(process: int) -> str:
    """What a process of this machine does, such as `is stopped`; empty where the system does not say."""
    fields = _stat(process)
    if fields is None:
        return ENDED if Path("/proc/self/stat").exists() else ""
    return _STATES.get(fields[0], "")


def used_s(process: int) -> float:
    """Seconds that a process has used the processor; 0 where the system does not say."""
    fields = _stat(process)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def queued_s(thread: int) -> float:
    """Seconds that a thread of this process, and the first one, were ready to run while others had the processor.

    0 where the system does not say.
    """
    found_s = 0.0
    for path in ("/proc/self/schedstat", f"/proc/self/task/{thread}/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            found_s += int(Path(path).read_text().split()[1]) / 1e9
    return found_s


def address_to(host: str) -> str:
    """The address of this machine from which a host is reached; empty where that is loopback or not known. Sends nothing."""
    if not host:
        return ""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address


def unanswered() -> str:
    """Connections of this process over which data were sent again and again without an answer, such as `10.0.0.1 → 10.0.0.2`.

    A stopped process does not look so: its system acknowledges for it.
    """
    own = _sockets()
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
            for fields in map(str.split, lines):
                if len(fields) > 9 and fields[9] in own and int(fields[6], 16) >= LEAST_REPEATS:
                    found.add(f"{_address(fields[1])} → {_address(fields[2])}")
    return ", ".join(sorted(found))


def _sockets() -> set[str]:
    """Inodes of this process's sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(entry.path).partition(":[")
                if kind == "socket":
                    found.add(inode.rstrip("]"))
    return found


def _address(text: str) -> str:
    """Of `0100007F:1F90`: words of four bytes, each in the order of this machine.

    >>> _address("0100007F:1F90")
    '127.0.0.1'
    """
    words = text.partition(":")[0]
    packed = b"".join(bytes.fromhex(words[i : i + 8])[::-1] for i in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _stat(process: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None where there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
