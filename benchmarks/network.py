"""Hosts on a slow network, on one machine: network namespaces on a bridge, each with a rate limit on outgoing traffic.

    with network(("h1", "h2"), rate_mbit=300) as hosts:
        ...  # hosts == "netns:cg4711n0-h1,netns:cg4711n0-h2", as --hosts takes them

Needs Linux, root, `ip` and `tc`; `why_not` reports missing ones. Delay cannot be set, because few kernels include netem.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

# Size of the token bucket, which passes at full speed after a pause. The 37 kB of 1 ms at 300 Mbit/s are too small:
# a process that wakes late loses tokens. An all-reduce, which sends both ways, reached 0.8 of the rate instead of 0.96.
BURST_BYTES = 262_144
# Packets that wait longer are dropped, as in a switch.
QUEUE_MS = 50
_numbers = itertools.count()


@contextlib.contextmanager
def network(names: Sequence[str], rate_mbit: float, burst_bytes: int = BURST_BYTES) -> Iterator[str]:
    """Create namespaces with these names, each sending at most `rate_mbit`. Yields them as `--hosts` takes them.

    Names are unique to this process, so several networks may exist at once. The end removes everything, and the next start
    removes the leftovers of killed processes. Raises RuntimeError with the message of `ip` or `tc`.
    """
    remove_leftovers()
    number = next(_numbers)
    bridge, made = f"cg{os.getpid()}b{number}", [f"cg{os.getpid()}n{number}-{name}" for name in names]
    try:
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip link set {bridge} up")
        for i, name in enumerate(made, 1):
            outer = f"cg{os.getpid()}v{number}{i}"
            _run(f"ip netns add {name}")
            _run(f"ip link add {outer} type veth peer name eth0 netns {name}")
            _run(f"ip link set {outer} master {bridge} up")
            _run(f"ip -n {name} addr add 10.9.0.{i}/24 dev eth0")
            _run(f"ip -n {name} link set eth0 up")
            _run(f"ip -n {name} link set lo up")
            limit = f"tbf rate {rate_mbit:g}mbit burst {burst_bytes} latency {QUEUE_MS}ms"
            _run(f"ip netns exec {name} tc qdisc add dev eth0 root handle 1: {limit}")
        yield ",".join(f"netns:{name}" for name in made)
    finally:
        for name in made:
            _try(f"ip netns del {name}")
        _try(f"ip link del {bridge}")


@functools.cache
def why_not() -> str | None:
    """Return why this machine cannot make a network, or None if it can. Makes one to find out."""
    if sys.platform != "linux":
        return f"network namespaces need Linux, and this is {sys.platform}"
    if missing := [command for command in ("ip", "tc") if shutil.which(command) is None]:
        return f"there is no {' and no '.join(missing)} on this machine"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        with network(("h1", "h2"), 100):
            return None
    except RuntimeError as error:
        return f"this machine does not allow it: {error}"


def remove_leftovers() -> None:
    """Remove the networks of processes that have ended."""
    for kind, remove in (("netns list", "netns del"), ("-o link show type bridge", "link del")):
        for line in _try(f"ip {kind}").splitlines():
            found = re.search(r"\b(cg(\d+)[nb]\d+\S*?)(?::|\s|$)", line)
            if found and not os.path.exists(f"/proc/{found[2]}"):
                _try(f"ip {remove} {found[1]}")


def _run(command: str) -> str:
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"`{command}`: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _try(command: str) -> str:
    """Return the output of a command; empty if it fails."""
    try:
        return _run(command)
    except (RuntimeError, OSError, subprocess.TimeoutExpired):
        return ""
