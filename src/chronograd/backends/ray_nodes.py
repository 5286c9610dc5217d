"""One Ray over the nodes of a job, such as SLURM's: `python -m chronograd.backends.ray_nodes CPUS COMMAND...` on each node.

The first node starts Ray at MASTER_PORT with CPUS, and runs the command there; the other nodes join, and end with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from chronograd import trust
from chronograd.backends import meeting
from chronograd.backends.ray_session import ADDRESS_VARIABLE, NODES_VARIABLE, leave, short_folder
from chronograd.errors import RunError

RAY = trust.python("-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--disable-usage-stats")
END_S, LOOK_S = 20.0, 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run this node's part. Return the exit status of the command, or of a Ray that ended before the first node's."""
    cpus, *command = sys.argv[1:] if argv is None else argv
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    signal.signal(signal.SIGTERM, leave)  # so that Ray's folder is removed
    try:
        if os.environ["RANK"] == "0":
            return _first(host, port, cpus, command)
        meeting.wait_for(host, port)
        return _other(host, port, cpus)
    except RunError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status


def _first(host: str, port: int, cpus: str, command: Sequence[str]) -> int:
    own = {ADDRESS_VARIABLE: f"{host}:{port}", NODES_VARIABLE: os.environ["WORLD_SIZE"]}
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    ports = (f"--port={port}", f"--ray-client-server-port={meeting.free_port()}")
    with _started("--head", *ports, f"--node-ip-address={host}", "--include-dashboard=false", f"--num-cpus={cpus}"):
        meeting.wait_for(host, port)
        return subprocess.call(command, env={**os.environ, **own, **alone})


def _other(host: str, port: int, cpus: str) -> int:
    address = ["--node-ip-address=127.0.0.1"] if host.startswith("127.") else []
    with _started(f"--address={host}:{port}", *address, f"--num-cpus={cpus}") as ray:
        while ray.poll() is None and meeting.is_reached(host, port):
            time.sleep(LOOK_S)
        is_over = not meeting.is_reached(host, port)
        return 0 if is_over or ray.returncode is None else ray.returncode


@contextmanager
def _started(*options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start Ray on this node, and end it with all that it started.

    Its folder is its own: two nodes on one machine that share one may choose the same name for their socket.
    """
    folder = short_folder()
    ray = subprocess.Popen([*RAY, f"--temp-dir={folder}", *options], stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        yield ray
    finally:
        ray.terminate()
        try:
            ray.wait(END_S)
        except subprocess.TimeoutExpired:
            ray.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
