"""Parameter servers, learners and their driver, killed or stopped at random moments."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults_common import STEPS, make_job, outcome
from chronograd.errors import ChronogradError
from chronograd.launch import jobs
from chronograd.rundir import RunDir
from chronograd.rundir.steps import merged

# Names in the process list.
VICTIMS = {"server": "ray::ParameterServer", "learner": "ray::GradientLearner", "driver": "parameter_server.run"}
OVERRIDES = ("backend=parameter_server", "communication.servers=2")
RUN_VARIABLE = "CHRONOGRAD_FAULTS_RUN"


def processes(title: str, mark: str) -> list[psutil.Process]:
    """Return processes with `title` in their title, from the run with `mark` in its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if title in " ".join(process.cmdline()) and process.environ().get(RUN_VARIABLE) == mark:
                found.append(process)
    return found


def strike(
    run: RunDir, who: str, kind: str, step: int, chance: random.Random, is_over: threading.Event
) -> dict[str, Any]:
    """Hit one actor of a kind at or after an update; step 0 means as soon as it starts."""
    while not is_over.is_set():
        steps = merged(run.logs().values()).steps
        found = processes(VICTIMS[who], str(run.path)) if not step or (steps and steps[-1].step >= step) else []
        if not found:
            time.sleep(0.02)
            continue
        time.sleep(chance.uniform(0, 0.3))
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(found).pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        done = merged(run.logs().values()).steps
        return {"who": who, "kind": kind, "hit": f"after update {done[-1].step}" if done else "start-up"}
    return {}


def one(path: Path, number: int, chance: random.Random) -> dict[str, Any]:
    who = tuple(VICTIMS)[number % len(VICTIMS)]
    kind = "stop" if number % 6 == 4 else "kill"  # no process detects a stopped driver
    step = 0 if number % 7 == 6 else chance.randrange(1, STEPS - 6)
    run = jobs.create(make_job(*OVERRIDES), path)
    os.environ[RUN_VARIABLE] = str(run.path)
    is_over, hits = threading.Event(), list[dict[str, Any]]()
    thread = threading.Thread(target=lambda: hits.append(strike(run, who, kind, step, chance, is_over)))
    thread.start()
    error = ""
    try:
        jobs.resume(run)
    except ChronogradError as failed:
        error = failed.message.splitlines()[0]
    finally:
        is_over.set()
        thread.join()
    del os.environ[RUN_VARIABLE]
    left = len(processes("ray", str(run.path)))
    return {"launcher": "servers", "faults": hits, "processes_left": left, **outcome(run, None, STEPS, error)}


def run(kills: int, seed: int, folder: Path, told: Callable[[Any], None]) -> None:
    chance = random.Random(f"{seed} servers")
    for number in range(kills):
        told(one(folder / str(number), number, chance))
