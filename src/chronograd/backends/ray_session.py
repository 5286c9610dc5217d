"""A private Ray of this process, or an existing one: its start, the result of a call, and cleaning up."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from chronograd.errors import ChronogradError, RunError
from chronograd.words import how_many

ADDRESS_VARIABLE = "RAY_ADDRESS"
# The number of nodes of the Ray at RAY_ADDRESS, if they are still joining.
NODES_VARIABLE = "CHRONOGRAD_RAY_NODES"
NODES_S = 120.0
FOLDER_VARIABLE = "CHRONOGRAD_RAY_FOLDER"
# File in the folder of a Ray that names its run.
MARK = "chronograd-run"
STARTS = 3
MIN_STORE_BYTES = 128 * 2**20
# The path of a socket has at most 107 characters, and Ray needs 70 after its folder.
LONGEST_FOLDER = 36


@contextlib.contextmanager
def ray_session(run: Path, who: str, num_cpus: int, num_gpus: int = 0, store_bytes: int = 0) -> Iterator[None]:
    """Start a private Ray that ends with this process and that only this process may use; or join RAY_ADDRESS.

    Args:
        run: directory of the run.
        who: the actors that need the CPUs and GPUs, in words.
        store_bytes: shared memory for messages.

    Raises: RunError if there is no Ray, or it lacks the CPUs and GPUs.
    """
    address = os.environ.get(ADDRESS_VARIABLE)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    folder = None
    if not address:
        # Ray reads them at import. Without them it leaves a token in the user's home.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = ray_module()
    quiet["job_config"] = job_config()
    try:
        if address:
            ray.init(address=address, **quiet)
            _wait_for_nodes(int(os.environ.get(NODES_VARIABLE, "1")))
        else:
            tidy_after(run)
            folder = os.environ[FOLDER_VARIABLE] = short_folder()
            Path(folder, MARK).write_text(str(run.absolute()))
            _start_own(
                num_cpus=num_cpus,  # the requested number: actors may outnumber cores
                include_dashboard=False,
                object_store_memory=max(MIN_STORE_BYTES, store_bytes),
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                **quiet,
            )
        signal.signal(signal.SIGTERM, leave)  # Ray's handler would end the process before it has cleaned up
        there = ray.cluster_resources()
        if there.get("CPU", 0) < num_cpus or there.get("GPU", 0) < num_gpus:
            raise RunError(
                f"{who} need {num_cpus} CPUs and {how_many(num_gpus, 'GPUs')} of Ray, which has {there.get('CPU', 0):g} and "
                f"{there.get('GPU', 0):g}",
                "lower cluster.count or cluster.threads, or start Ray with more",
            )
        yield
    except (ConnectionError, ray.exceptions.RaySystemError) as error:
        where = f"{ADDRESS_VARIABLE}={address}" if address else "a private Ray"
        raise RunError(f"cannot use {where}: {' '.join(str(error).split())[:300]}") from None
    finally:
        started = psutil.Process().children(recursive=True)
        ray.shutdown()
        if folder is not None:
            for process in started:  # a stopped actor does not end by itself
                with contextlib.suppress(psutil.Error):
                    process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def cpu_s() -> float:
    """Return the processor seconds of this process, its Ray and its actors so far."""
    used = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:2])
    return used


def take_along() -> None:
    """End everything that Ray has started: its agents would live a minute longer than this process."""
    _end_offspring()
    if folder := os.environ.get(FOLDER_VARIABLE):
        shutil.rmtree(folder, ignore_errors=True)


def tidy_after(run: Path) -> None:
    """End the Ray of an earlier driver of this run that was killed, and remove its folder."""
    for note in {*Path(tempfile.gettempdir()).glob(f"ray-*/{MARK}"), *Path("/tmp").glob(f"ray-*/{MARK}")}:
        folder = note.parent
        with contextlib.suppress(OSError):
            is_own = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if not is_own or note.read_text() != str(run.absolute()):
                continue
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    # Identified by their logs: some of Ray's processes overwrite their environment with their title.
                    if any(Path(file.path).is_relative_to(folder) for file in process.open_files()):
                        process.kill()
            shutil.rmtree(folder, ignore_errors=True)


class _Places(list[str]):
    """Folders that a process of Ray imports from, without the working directory, which Ray adds as the first."""

    def extend(self, places: Iterable[str]) -> None:
        pass


def job_config() -> Any:
    """Return settings with which actors and tasks import nothing from the working directory (chronograd.trust)."""
    from ray.job_config import JobConfig

    return JobConfig(_py_driver_sys_path=_Places([str(Path(__file__).parents[2])]))


def ray_module() -> Any:
    """Return Ray without its types, which cover only a part of it."""
    import ray

    return ray


def answer(call: Any, who: str, timeout_s: float | None = None) -> Any:
    """Return an actor's answer. Raises RunError that names it if it died, raised or did not answer."""
    ray = ray_module()

    try:
        return ray.get(call, timeout=timeout_s)
    except ray.exceptions.RayTaskError as error:
        raise task_error(who, error) from None
    except ray.exceptions.RayActorError:
        raise RunError(f"{who} died") from None
    except ray.exceptions.GetTimeoutError:
        raise RunError(f"{who} hung: it did not answer within {timeout_s:g} s") from None


def task_error(who: str, error: Any) -> RunError:
    """Return the error of an actor that raised. The traceback of any error but a ChronogradError goes to standard error."""
    cause = error.cause
    if isinstance(cause, ChronogradError):
        return RunError(f"{who}: {cause.message}", cause.hint)
    print(error, file=sys.stderr, flush=True)
    return RunError(f"{who} failed with {type(cause).__name__}: {cause}")


def _start_own(**settings: Any) -> None:
    """Start a private Ray. Ray gives its own processes 30 s to start, which may be too short on a busy machine; then try again.

    Raises RunError if they do not start in several tries.
    """
    ray = ray_module()
    for _ in range(STARTS):
        try:
            ray.init(address="local", **settings)
            return
        except Exception as error:  # Ray has no specific error for this
            if "timed out during startup" not in str(error):
                raise
            _end_offspring()
    raise RunError(f"Ray did not start in {STARTS} times 30 s", "free some cores of this machine")


def _wait_for_nodes(num_nodes: int) -> None:
    """Wait until Ray has a number of nodes. Raises RunError if it does not get them in NODES_S."""
    deadline = time.monotonic() + NODES_S
    list_nodes = ray_module().nodes
    while (there := sum(node["Alive"] for node in list_nodes())) < num_nodes:
        if time.monotonic() > deadline:
            raise RunError(f"{there} of {num_nodes} nodes joined Ray within {NODES_S:g} s", "resume the run")
        time.sleep(0.5)


def _end_offspring() -> None:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


def leave(number: int, frame: Any) -> None:
    """Exit with the status of a signal, so that the code that runs cleans up first."""
    raise SystemExit(128 + number)


def short_folder() -> str:
    """Return a new folder for Ray's sockets and logs."""
    folder = tempfile.mkdtemp(prefix="ray-")
    if len(folder) <= LONGEST_FOLDER:
        return folder
    Path(folder).rmdir()
    return tempfile.mkdtemp(prefix="ray-", dir="/tmp")
