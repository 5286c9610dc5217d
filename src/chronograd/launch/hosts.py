"""A launcher that starts the ranks on the given hosts: network namespaces of this machine, or machines reached by ssh.

    netns:NAME        entered by `ip netns exec`, which needs root
    NAME, ssh:NAME    by ssh with keys, never a password; NAME may be user@host, or a name of ~/.ssh/config

Every host must see the run directory, this interpreter and the data at the same paths.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronograd import trust
from chronograd.backends.meeting import FREE_PORT
from chronograd.backends.plan import RankPlan
from chronograd.errors import InputError, NotFoundError, RunError
from chronograd.launch.processes import Process, run_together, with_restarts
from chronograd.rundir import RunDir
from chronograd.train.rank_command import PARENT_VARIABLE
from chronograd.words import how_many

LOGIN_S = 10
SSH = ("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={LOGIN_S}")
NAMESPACES = Path("/run/netns")
# Variables of our environment that a rank on another machine needs, in addition to those in its plan.
_KEPT = re.compile(r"PYTHONPATH$|CHRONOGRAD_|XDG_DATA_HOME$|OMP_|NCCL_|GLOO_")


@dataclass(frozen=True)
class Host:
    """A host for ranks.

    Attributes:
        name: as the user gave it.
        address: at which the other hosts reach it; `interface` is the network interface that has it.
        prefix: the command prefix that starts a command there, of ssh or of `ip netns exec`.
    """

    name: str
    address: str
    interface: str
    prefix: tuple[str, ...]

    @property
    def is_remote(self) -> bool:
        return self.prefix[0] == "ssh"

    @property
    def machine(self) -> str:
        """Return the machine of this host. Hosts of one machine share its cores and GPUs."""
        return self.name if self.is_remote else ""

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        """Return the command to start from here. Over ssh it includes the environment and the working directory.

        >>> Host("netns:h1", "10.0.0.1", "eth0", ("ip", "netns", "exec", "h1")).command(["hostname"], {})
        ('ip', 'netns', 'exec', 'h1', 'hostname')
        """
        if not self.is_remote:
            return (*self.prefix, *command)
        kept = {name: value for name, value in os.environ.items() if _KEPT.match(name)}
        words = [f"{name}={value}" for name, value in {**kept, **environment}.items()]
        return (*self.prefix, f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *words, *command])}")


def parse(text: str) -> list[Host]:
    """Return the hosts of an option such as `netns:h1,netns:h2`. Asks each host for its address.

    Raises: InputError for a text that names no hosts, or one twice; NotFoundError for a namespace that does not exist;
        RunError for a host that cannot be entered, or has no address.
    """
    names = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"((netns|ssh):)?[\w@][\w@.-]*", name) for name in names):
        raise InputError(f"cannot read the hosts {text!r}", "write names such as node1,node2 or netns:h1,netns:h2")
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"host {twice[0]} is named twice", "name each host once; ranks are shared out in blocks")
    return [_namespace(name) if name.startswith("netns:") else _machine(name) for name in names]


@dataclass(frozen=True)
class Seat:
    """One rank's place on a host: the variables with its number and the address of the others."""

    host: Host
    environment: dict[str, str]

    def command(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
        return self.host.command(command, environment)


def launch(plan: RankPlan, run: RunDir, hosts: Sequence[Host], watch: Callable[[], None] = lambda: None) -> None:
    """Run all ranks until they end, ⌈ranks / hosts⌉ on each host. Restarts them up to the plan's limit.

    Raises RunError with the last lines of the rank that failed.
    """
    with_restarts(lambda: run_together(processes(plan, run, hosts), watch), plan.max_restarts)


def processes(plan: RankPlan, run: RunDir, hosts: Sequence[Host]) -> list[Process]:
    """Return one process per rank. Each ends with this process: over ssh its standard input closes as well."""
    found = []
    for rank, seat in enumerate(seats(plan.world_size, hosts)):
        environment = {**plan.environment, **seat.environment}
        command = seat.command(plan.command, {**environment, PARENT_VARIABLE: "1"})
        found.append(Process(f"rank {rank} on {seat.host.name}", command, environment, run.output_path(rank)))
    return found


def seats(num_ranks: int, hosts: Sequence[Host]) -> list[Seat]:
    """Return the seat of each rank, in blocks. LOCAL_RANK counts over the hosts of one machine, which share its GPUs.

    Raises: InputError if a host would have no rank; RunError if the first host cannot report a free port.
    """
    places = blocks(num_ranks, hosts)
    machines = [host.machine for host in places]
    common = {"MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(free_port(hosts[0])), "WORLD_SIZE": str(num_ranks)}
    found = []
    for rank, host in enumerate(places):
        local = {
            "RANK": str(rank),
            "LOCAL_RANK": str(machines[:rank].count(host.machine)),
            "LOCAL_WORLD_SIZE": str(machines.count(host.machine)),
            "GLOO_SOCKET_IFNAME": host.interface,
            "NCCL_SOCKET_IFNAME": host.interface,
        }
        found.append(Seat(host, {**common, **local}))
    return found


def blocks(num_ranks: int, hosts: Sequence[Host]) -> list[Host]:
    """Return the host of each rank. Raises InputError if a host would have no rank."""
    per_host = -(-num_ranks // len(hosts))
    if -(-num_ranks // per_host) < len(hosts):
        raise InputError(
            f"{how_many(num_ranks, 'ranks')} in blocks of {per_host} leave some of {how_many(len(hosts), 'hosts')} without any",
            f"write cluster.count={per_host * len(hosts)}, or name fewer hosts",
        )
    return [hosts[rank // per_host] for rank in range(num_ranks)]


def free_port(host: Host) -> int:
    """Return a port of a host that is free now; another process may take it before it is used."""
    output = _ask(host.name, host.command(trust.python("-c", FREE_PORT), {}), f"see that {sys.executable} runs there")
    return int(output)


def _namespace(name: str) -> Host:
    short = name.removeprefix("netns:")
    if shutil.which("ip") is None:
        raise RunError(f"{name}: there is no `ip` on this machine", "install iproute2")
    if not (NAMESPACES / short).exists():
        known = [path.name for path in NAMESPACES.glob("*")]
        raise NotFoundError("network namespace", short, known, "`ip netns list`")
    if os.geteuid() != 0:
        raise RunError(f"entering the network namespace {short} needs root", "run this as root, or start ranks by ssh")
    hint = f"see `ip -n {short} addr`"
    output = _ask(name, ("ip", "-n", short, "-j", "addr"), hint)
    address, interface = _address_of(name, output, None, f"ip -n {short} addr add 10.9.0.1/24 dev eth0")
    return Host(name, address, interface, ("ip", "netns", "exec", short))


def _machine(name: str) -> Host:
    short = name.removeprefix("ssh:")
    if shutil.which("ssh") is None:
        raise RunError(f"{name}: there is no `ssh` on this machine", "install an ssh client")
    hint = f"keys only, no passwords: see that `ssh -o BatchMode=yes {short} true` works"
    output = _ask(name, (*SSH, short, "ip -j addr"), hint)
    address, interface = _address_of(
        name, output, _resolved(short), "name the host by an address that the others reach"
    )
    return Host(name, address, interface, (*SSH, short))


def _resolved(name: str) -> str | None:
    """Return the address that ssh connects to; None if only ssh knows it."""
    settings = subprocess.run(["ssh", "-G", name], capture_output=True, text=True, check=False).stdout
    found = re.search(r"^hostname (\S+)$", settings, re.MULTILINE)
    try:
        return socket.gethostbyname(found[1] if found else name)
    except OSError:
        return None


def _address_of(name: str, output: str, wanted: str | None, hint: str) -> tuple[str, str]:
    """Return address and interface from the output of `ip -j addr`: the wanted one if present, else the first beyond loopback."""
    try:
        interfaces: list[dict[str, Any]] = json.loads(output)
    except ValueError:
        raise RunError(f"{name} does not report its addresses: {output.strip()[:200]!r}", hint) from None
    found = [
        (entry["local"], interface["ifname"], entry["scope"])
        for interface in interfaces
        for entry in interface.get("addr_info", ())
        if entry.get("family") == "inet"
    ]
    for address, interface, scope in found:
        if address == wanted or (scope == "global" and wanted not in [a for a, _, _ in found]):
            return address, interface
    raise RunError(f"{name} has no address at which other hosts could reach it", hint)


def _ask(name: str, command: Sequence[str], hint: str) -> str:
    """Return the output of a command. Raises RunError with its last line if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=3 * LOGIN_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"{name} did not answer in {3 * LOGIN_S} s", hint) from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [f"exit status {done.returncode}"]
        raise RunError(f"{name} cannot be entered: {last[0].strip()}", hint)
    return done.stdout
