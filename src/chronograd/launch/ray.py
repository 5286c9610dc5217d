"""A sweep of jobs on an existing Ray cluster: each run is one Ray task, which trains in a run directory.

The folder must be on a file system that all nodes share, and every node needs Chronograd, the data and the networks.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from chronograd.backends.ray_session import job_config
from chronograd.errors import ChronogradError, JobError, MissingExtraError, RunError
from chronograd.job import Job, changed, resolved, scaled
from chronograd.launch import jobs as launch
from chronograd.launch.jobs import PathLike
from chronograd.rundir import RunDir, is_run_dir
from chronograd.words import how_many

CONNECT_S = 10.0
State = Literal["kept", "sent", "finished", "failed"]
OnState = Callable[[str, State, str], None]


def sweep(
    jobs: Mapping[str, Job],
    folder: PathLike,
    address: str,
    on_state: OnState = lambda name, state, text: None,
) -> dict[str, RunDir]:
    """Train jobs, by name, each in `folder/NAME`. The number of CPUs in the cluster limits how many run at once.

    A job takes `cluster.threads` CPUs of a node (1 by default) per rank. It takes one GPU per rank if the cluster has GPUs and
    its device is not `cpu`. A failed job does not stop the others. A second call skips finished runs and resumes the others.

    Args:
        address: of the cluster, such as 10.0.0.5:6379.
        on_state: called with a name, its new state, and the reason for a failure.
    Raises: JobError before anything is sent if a job's name is not a valid folder or it fits no node; RunError if there
        is no cluster at the address, or at the end if runs failed, naming each.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "a sweep on a Ray cluster") from None

    folder = Path(folder).absolute()
    given = {name: _with_threads(name, job) for name, job in jobs.items()}
    _join(address)
    try:
        list_nodes: Any = ray.nodes  # ray.nodes has no type hints
        nodes = [node["Resources"] for node in list_nodes() if node["Alive"]]
        needs = {name: _needs(name, job, nodes) for name, job in given.items()}
        train = ray.remote(max_retries=0)(_train)
        sent: dict[Any, str] = {}
        for name, job in given.items():
            if _is_done(folder / name, job):
                on_state(name, "kept", "")
                continue
            call = train.options(name=name, **needs[name]).remote(job, folder / name, sys.path)
            sent[call] = name
            on_state(name, "sent", "")
        failed: dict[str, str] = {}
        while sent:
            (call,), _ = ray.wait(list(sent), num_returns=1)
            name = sent.pop(call)
            if why := _why_failed(call):
                failed[name] = why
            on_state(name, "failed" if why else "finished", why)
    finally:
        ray.shutdown()  # ends the tasks that still run, and their processes
    if failed:
        reasons = "\n".join(f"{name}: {why}" for name, why in failed.items())
        raise RunError(f"{len(failed)} of {len(given)} runs failed\n{reasons}", "the same sweep keeps the others")
    return {name: RunDir.open(folder / name) for name in given}


def _is_done(path: Path, job: Job) -> bool:
    return is_run_dir(path) and (run := RunDir(path)).is_finished and resolved(run.job()) == resolved(job)


def _train(job: Job, path: Path, modules: Sequence[str]) -> None:
    """Train a job on a node, from the newest checkpoint if there is one."""
    sys.path += [place for place in modules if place not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [*sys.path])))
    os.environ.pop("RAY_ADDRESS", None)  # a job that starts Ray itself must not wait for the slot that it holds
    launch.resume(RunDir.open(path) if is_run_dir(path) else launch.create(job, out=path), job)


def _join(address: str) -> None:
    """Connect to a cluster. Raises RunError if nothing listens there, which Ray reports only after minutes, or Ray refuses."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about a future change in Ray
    import ray

    host, _, port = address.rpartition(":")
    try:
        if host and port.isdigit() and "//" not in host:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, job_config=job_config())
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise RunError(
            f"no Ray cluster at {address!r}: {' '.join(str(error).split())[:300]}",
            "`ray start --head` starts one and prints its address; one with a token wants RAY_AUTH_MODE=token here too",
        ) from None


def _with_threads(name: str, job: Job) -> Job:
    """Return the job with the threads of a rank stated, because it does not get all cores of a node."""
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise JobError(f"{name!r} does not name a folder within that of the sweep", "use letters, digits, - and /")
    job = scaled(job)
    return job if job.cluster.threads else changed(job, ["cluster.threads=1"])


def _needs(name: str, job: Job, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the CPUs and GPUs of a job. Raises JobError if no node has that many: Ray would wait for ever."""
    assert job.cluster.threads is not None
    num_gpus = job.cluster.count if job.cluster.device != "cpu" and any(n.get("GPU") for n in nodes) else 0
    num_cpus = job.cluster.count * job.cluster.threads
    if not any(node.get("CPU", 0) >= num_cpus and node.get("GPU", 0) >= num_gpus for node in nodes):
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        raise JobError(
            f"{name} needs {num_cpus} CPUs and {how_many(num_gpus, 'GPUs')} on one node; the largest has {most} CPUs",
            "lower cluster.count or cluster.threads",
        )
    return {"num_cpus": num_cpus, "num_gpus": num_gpus}


def _why_failed(call: Any) -> str:
    """Return the reason why a run failed; empty if it finished."""
    import ray

    try:
        ray.get(call)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return cause.message if isinstance(cause, ChronogradError) else f"{type(cause).__name__}: {cause}"
    except ray.exceptions.RayError as error:
        return f"the task was lost: {' '.join(str(error).split())[:300]}"
    return ""
