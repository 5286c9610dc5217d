"""A real SLURM cluster of several nodes on this machine while a command runs: `python tools/slurm_cluster.py COMMAND...`.

Every node is a separate slurmd with its own port; all share this machine's cores. Debian and Ubuntu have the packages: `apt-get
install --no-install-recommends slurmctld slurmd slurm-client munge`. Needs root. A running munged or SLURM is not touched: this
cluster has its own key, socket, ports and folder, and ends only daemons that it started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo", "scancel")
START_S, END_S = 60.0, 15.0
# Debian puts daemons into folders that are missing from the path of a user who is not logged in.
PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
CONF = """\
ClusterName=lab
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=2
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName=n{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN{gres}"


def why_not() -> str:
    """Return why there cannot be a cluster on this machine, or an empty string."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    return "" if os.geteuid() == 0 else "the daemons of SLURM want root"


@contextlib.contextmanager
def cluster(num_nodes: int = 3, cpus: int = 2, gpus: int = 0) -> Iterator[dict[str, str]]:
    """Start a cluster of idle nodes with `cpus` cores and `gpus` GPUs each. Yields the variables for SLURM's commands.

    At the end, jobs are cancelled and only the daemons started here are ended.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short: the path of a socket has 107 characters at most
    variables = {"SLURM_CONF": str(folder / "slurm.conf")}
    started: list[subprocess.Popen[bytes]] = []
    try:
        _write(folder, num_nodes, cpus, gpus)
        for command in _daemons(folder, num_nodes):
            started.append(_start(command, folder, variables))
            if "munged" in command[0]:
                _wait(lambda: (folder / "munge.socket").exists(), "munged", folder)
        _wait(lambda: _count_idle(variables) == num_nodes, f"{num_nodes} idle nodes", folder)
        yield variables
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _cancel_all(variables)
        _end(started)
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, num_nodes: int, cpus: int, gpus: int) -> None:
    folder.chmod(0o755)  # munged requires a reachable socket
    ports = _free_ports(num_nodes + 1)
    for name in ("ctld", *(f"n{i}" for i in range(1, num_nodes + 1))):
        (folder / name).mkdir()
    gres = f" Gres=gpu:{gpus}" if gpus else ""
    nodes = "\n".join(NODE.format(i=i, port=ports[i], cpus=cpus, gres=gres) for i in range(1, num_nodes + 1))
    if gpus:
        nodes = f"GresTypes=gpu\n{nodes}"
        for i in range(gpus):  # SLURM requires a file for each
            (folder / f"gpu{i}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n")
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, port=ports[0], nodes=nodes))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)


def _daemons(folder: Path, num_nodes: int) -> Iterator[list[str]]:
    munge = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    yield ["munged", "--foreground", *(f"--{option}={folder}/munge.{name}" for option, name in munge.items())]
    yield ["slurmctld", "-D", "-f", f"{folder}/slurm.conf"]
    for i in range(1, num_nodes + 1):
        yield ["slurmd", "-D", "-f", f"{folder}/slurm.conf", "-N", f"n{i}"]


def _start(command: Sequence[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    program = shutil.which(command[0], path=PATH)
    assert program is not None, command[0]
    with (folder / f"{command[0]}.out").open("ab") as output:
        return subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )


def _wait(is_ready: Callable[[], bool], what: str, folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while not is_ready():
        if time.monotonic() > deadline:
            logs = [f"{path.name}: {path.read_text(errors='replace')[-1000:]}" for path in folder.glob("*.[lo]*")]
            raise RuntimeError(f"no {what} after {START_S:g} s\n" + "\n".join(logs))
        time.sleep(0.2)


def _count_idle(variables: dict[str, str]) -> int:
    return _output(["sinfo", "--noheader", "--Node", "--format=%T"], variables).split().count("idle")


def _cancel_all(variables: dict[str, str]) -> None:
    """Cancel the remaining jobs, and wait until the nodes have ended them, so that no rank outlives them."""
    jobs = _output(["squeue", "--noheader", "--format=%A"], variables).split()
    if not jobs:
        return
    _output(["scancel", *jobs], variables)
    deadline = time.monotonic() + END_S
    while _output(["squeue", "--noheader", "--format=%A"], variables).split() and time.monotonic() < deadline:
        time.sleep(0.2)


def _output(command: Sequence[str], variables: dict[str, str]) -> str:
    env = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env).stdout


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in reversed(started):
        process.terminate()
    deadline = time.monotonic() + END_S
    for process in reversed(started):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
        if process.poll() is None:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Return ports below the system's range of ephemeral ports."""
    found = []
    for port in range(17000 + os.getpid() % 1000, 19000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} ports are free between 17000 and 19000")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with a SLURM of several nodes on this machine.")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpus", type=int, default=2, help="cores that each node claims to have")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run; a shell by default")
    arguments = parser.parse_args()
    if reason := why_not():
        print(f"no cluster here: {reason}", file=sys.stderr)
        return 3
    with cluster(arguments.nodes, arguments.cpus) as variables:
        command = arguments.command or [os.environ.get("SHELL", "bash")]
        return subprocess.call(command, env={**os.environ, **variables})


if __name__ == "__main__":
    sys.exit(main())
