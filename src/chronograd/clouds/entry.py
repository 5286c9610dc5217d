"""The command that a platform starts on each node. `python -m chronograd.clouds.entry FIELD=VALUE...` trains the job of the
fields.

In addition to fields of a job, `chronograd launch` writes these arguments:

    mount.CHANNEL=PATH   the local path of data; `mount.data` replaces the path in data.name, `mount.weights` network.weights
    run=PATH             the run directory; an existing run continues from its newest checkpoint
    out=PATH             where the run directory is copied at the end
    launch={...}         words without a field on the platform; of secrets the references, as variables
    meet=HOST nodes=N    the first of several nodes, on platforms whose environment does not state it

SageMaker has the fields in a file instead. The node's number comes from the platform's variables. The entry also prints the job,
the lines of the ranks' steps, and at the end the record, so that they are in the platform's log. `chronograd.clouds.collect` makes
a run directory from it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.clouds.submission import PLACES, UNSAID, decode, fields_of, job_of
from chronograd.errors import ChronogradError, JobError, RunError
from chronograd.files import as_asked, open_plain, read_json
from chronograd.job import Job
from chronograd.launch.local import LOOPBACK
from chronograd.launch.processes import Process, run_together, with_restarts
from chronograd.rundir import RunDir
from chronograd.words import how_many

SAGEMAKER = Path("/opt/ml")
PORT = 29500
# How long the other nodes wait for the first to create the run directory.
PATIENCE_S = 600.0
# Prefixes of log lines: the job and its place; a line of a rank's steps; a part of the record.
JOB, STEP, RECORD = "chronograd-job", "chronograd-step", "chronograd-record"
# Characters of a record per line: platforms cut lines that are much longer.
PART = 50_000


@dataclass(frozen=True)
class NodePosition:
    """The position of this node: its number, the number of nodes, the first node's address, and whether all share one run
    directory.
    """

    index: int = 0
    count: int = 1
    address: str = LOOPBACK
    port: int = PORT
    is_shared: bool = True


def main(
    argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None, sagemaker: Path = SAGEMAKER
) -> int:
    """Train the job of a command line, or of SageMaker's file. Returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = fields_of(words) if words else _hyperparameters(sagemaker)
        run = train(arguments, node_of(environ or os.environ, arguments, sagemaker), sagemaker)
    except ChronogradError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    print(f"run: {run.path}", flush=True)
    return 0


def train(arguments: Mapping[str, str], node: NodePosition, sagemaker: Path = SAGEMAKER) -> RunDir:
    """Train the job of the arguments, on this node. Returns the run directory, which is the first node's if it is shared."""
    for name, reference in decode(arguments.get(UNSAID, "{}")).get("secrets", {}).items():
        os.environ[name] = reference
    job = placed(arguments, sagemaker)
    paths = {name: _path(text, sagemaker) for name, text in arguments.items() if name in ("run", "out")}
    path = paths.get("run", Path("runs") / "job")
    if node.count > 1 and not node.is_shared and node.index:
        path = path.with_name(f"{path.name}-{node.index}")
    run = _run_directory(jobs.scaled(job), path, node)
    _train_here(run, node)
    if node.index == 0:
        _print_record(run)
    if (out := paths.get("out")) and node.index == 0:
        with as_asked(out):
            shutil.copytree(run.path, out, dirs_exist_ok=True)
    return run


def placed(arguments: Mapping[str, str], sagemaker: Path = SAGEMAKER) -> Job:
    """Return the job of arguments, with the local paths of data and weights. Raises JobError."""
    own = {name: text for name, text in arguments.items() if name.partition(".")[0] not in (*PLACES, UNSAID)}
    job = job_of(own)
    mounts = {
        name.partition(".")[2]: str(_path(text, sagemaker))
        for name, text in arguments.items()
        if name.startswith("mount.")
    }
    changes = []
    if "data" in mounts:
        kind = job.data.name.partition(":")[0]
        changes.append(f"data.name={json.dumps(kind + ':' + mounts['data'])}")
    if "weights" in mounts:
        changes.append(f"network.weights={json.dumps(mounts['weights'])}")
    return jobs.changed(job, changes) if changes else job


def _path(text: str, sagemaker: Path = SAGEMAKER) -> Path:
    """Return the path of an argument. Resolves the variable at the start of a watsonx path, and SageMaker's folder."""
    path = str(decode(text))
    for variable in ("$RESULT_DIR", "$DATA_DIR"):
        if path.startswith(variable):
            path = os.environ.get(variable[1:], ".") + path.removeprefix(variable)
    return sagemaker / path.removeprefix(f"{SAGEMAKER}/") if path.startswith(f"{SAGEMAKER}/") else Path(path)


def _hyperparameters(sagemaker: Path) -> dict[str, str]:
    path = sagemaker / "input" / "config" / "hyperparameters.json"
    try:
        given = read_json(path)
    except (OSError, ValueError) as error:
        raise JobError(
            f"there are no arguments, and no {path}: {error}",
            "give fields of a job: network.name=resnet20 data.name=digits",
        ) from None
    return {str(name): str(text) for name, text in given.items()}


# -- the position of this node ---------------------------------------------------------------------------


def node_of(
    environ: Mapping[str, str], arguments: Mapping[str, str] | None = None, sagemaker: Path = SAGEMAKER
) -> NodePosition:
    r"""Return the position of this node as the platform states it; without a platform it is the only node.

    >>> node_of({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5"})
    NodePosition(index=1, count=2, address='10.0.0.4', port=29500, is_shared=True)
    """
    arguments = arguments or {}
    resources = sagemaker / "input" / "config" / "resourceconfig.json"
    if resources.exists():
        given = read_json(resources)
        hosts = sorted(given["hosts"])
        return NodePosition(hosts.index(given["current_host"]), len(hosts), hosts[0], is_shared=False)
    if "CLUSTER_SPEC" in environ:  # of Vertex AI
        given = json.loads(environ["CLUSTER_SPEC"])
        pools = sorted(given["cluster"].items())
        hosts = [host for _, members in pools for host in members]
        before = sum(len(members) for name, members in pools if name < given["task"]["type"])
        return NodePosition(before + int(given["task"]["index"]), len(hosts), hosts[0].partition(":")[0])
    if "SKYPILOT_NODE_IPS" in environ:
        hosts = environ["SKYPILOT_NODE_IPS"].split()
        return NodePosition(int(environ["SKYPILOT_NODE_RANK"]), len(hosts), hosts[0])
    if "meet" in arguments and "JOB_COMPLETION_INDEX" in environ:  # an indexed Job of Kubernetes
        return NodePosition(int(environ["JOB_COMPLETION_INDEX"]), int(arguments["nodes"]), arguments["meet"])
    if (
        "MASTER_ADDR" in environ and "WORLD_SIZE" in environ
    ):  # Azure ML and PyTorchJob, which start one process per node
        count, port = int(environ["WORLD_SIZE"]), int(environ.get("MASTER_PORT", PORT))
        return NodePosition(int(environ["RANK"]), count, environ["MASTER_ADDR"], port)
    return NodePosition()


# -- its ranks -------------------------------------------------------------------------------------------


def _run_directory(job: Job, path: Path, node: NodePosition) -> RunDir:
    """Return the existing run, or a new one. If all nodes share it, the first creates it."""
    is_maker = node.index == 0 or not node.is_shared
    deadline = time.monotonic() + PATIENCE_S
    while not is_maker and not (path / "job.yaml").exists():
        if time.monotonic() > deadline:
            raise RunError(
                f"the first node made no run directory at {path} in {PATIENCE_S:g} s",
                "several nodes need an --output or --checkpoints that all of them see",
            )
        time.sleep(0.5)
    if (path / "job.yaml").exists():
        run = RunDir.open(path)
        if jobs.resolved(run.job()) != jobs.resolved(job):
            raise JobError(f"{path} is the run of another job", "choose another --output or --checkpoints")
        return run
    from chronograd.launch.jobs import check_anywhere, new_run

    check_anywhere(job)
    return new_run(job, path, path.parent, None)


def _train_here(run: RunDir, node: NodePosition) -> None:
    """Start this node's ranks and wait for them, with the restarts that the job allows."""
    from chronograd.data import datasets

    job = run.job()
    if run.is_finished:
        return
    if job.task != "reinforcement":  # an environment needs no data files
        datasets.fetch(job.data)
    plan = registry.find(job.backend).plan(job, run.path, ["train"])
    if plan.world_size % node.count:
        raise JobError(
            f"{plan.world_size} ranks are not shared out evenly over {how_many(node.count, 'nodes')}",
            "change cluster.count",
        )
    registry.load(job.backend).prepare(job, run)
    here = plan.world_size // node.count
    ranks = range(node.index * here, (node.index + 1) * here)
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if node.address == LOOPBACK else {}  # all ranks are on this machine
    tries = iter(range(job.cluster.max_restarts + 1))

    def start() -> None:
        meeting = {"MASTER_ADDR": node.address, "MASTER_PORT": str(node.port + next(tries)), **loopback}
        of_node = {"WORLD_SIZE": str(plan.world_size), "LOCAL_WORLD_SIZE": str(here)}
        processes = [
            Process(
                f"rank {rank}",
                plan.command,
                {**plan.environment, **meeting, **of_node, "RANK": str(rank), "LOCAL_RANK": str(rank % here)},
                run.output_path(rank),
            )
            for rank in ranks
        ]
        run_together(processes, printer(run, ranks))

    if node.index == 0:
        _print(JOB, {"job": jobs.stated(job), "environment": run.environment()})
    with_restarts(start, plan.max_restarts)


def _print_record(run: RunDir) -> None:
    """Print the record in parts, one per line."""
    text = json.dumps(read_json(run.path / "record.json"), separators=(",", ":"))
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    for number, part in enumerate(parts):
        _print(RECORD, {"part": number, "of": len(parts), "text": part})


def _print(kind: str, data: Mapping[str, object]) -> None:
    print(f"{kind} {json.dumps(data, separators=(',', ':'))}", flush=True)


def printer(run: RunDir, ranks: Sequence[int]) -> Callable[[], None]:
    """Return a function that prints the lines that ranks have added to their steps since its last call."""
    paths = {rank: run.steps_path(rank) for rank in ranks}
    seen = {rank: path.stat().st_size if path.exists() else 0 for rank, path in paths.items()}

    def print_new() -> None:
        for rank, path in paths.items():
            if not path.exists():
                continue
            with open_plain(path) as stream:
                stream.seek(seen[rank])
                *lines, _ = stream.read().split(b"\n")  # the last line is not complete yet
            seen[rank] += sum(len(line) + 1 for line in lines)
            for line in lines:
                print(f"{STEP} {rank} {line.decode()}", flush=True)

    return print_new


if __name__ == "__main__":
    sys.exit(main())
