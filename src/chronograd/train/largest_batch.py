"""The largest batch that really runs here: one probe for each batch, in a separate process.

    python -m chronograd.train.largest_batch JOB.json LIMIT_BYTES

A probe takes two steps of the job with one batch of synthetic samples under a memory limit, and prints one line of
JSON. If it runs out of memory, only the probe ends: the parent reads its answer, or sees that it died, and continues.

On the CPU the limit is on resident memory. Beyond its size after loading torch, a process may add private data up to
the limit (RLIMIT_DATA, Linux). On CUDA it is a share of the device's memory; without a limit it is all of it.

Left out: other processes' use of the same memory while probing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch

from chronograd import trust
from chronograd.data import datasets
from chronograd.errors import InputError, RunError
from chronograd.job import Job, changed, from_dict, resolved
from chronograd.measure import environment
from chronograd.measure.memory import PeakMemory
from chronograd.plan.largest import MAX_PROBES, Edge, Probe, find_edge
from chronograd.train.check import check_network
from chronograd.train.rank_context import check_machine, rank_context_from_environment
from chronograd.train.step import TrainingStep

PROBE_TIMEOUT_S = 600.0
# Messages of torch, the C++ library, and oneDNN (which cannot create a primitive without memory).
_OUT_OF_MEMORY = (
    "out of memory",
    "allocate memory",
    "bad_alloc",
    "could not create a primitive",
    "could not create a memory",
)


def probe(job: Job, batch: int, limit_bytes: int | None = None) -> Probe:
    """Run two steps with `batch` samples in a separate process. Raises RunError if it fails for another reason than memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(resolved(_one_batch(job, batch))))
        command = trust.python("-m", "chronograd.train.largest_batch", str(path), str(limit_bytes or 0))
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(f"a probe of batch {batch} took over {PROBE_TIMEOUT_S:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        return Probe(batch, **json.loads(lines[-1]))
    if done.returncode < 0 or any(word in done.stderr for word in _OUT_OF_MEMORY):
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else "out of memory"
        return Probe(batch, ran=False, reason=how)
    raise RunError(f"a probe of batch {batch} failed:\n{done.stderr[-2000:]}")


def confirm(job: Job, predicted: int, limit_bytes: int | None = None, max_probes: int = MAX_PROBES) -> Edge:
    """Search for the largest batch on this machine, around a predicted one.

    Args:
        limit_bytes: memory allowed to the process (CPU) or of the device (CUDA); by default all of it.

    Raises: InputError where this machine cannot run the job; RunError if a probe fails for another reason than memory.
    """
    check_machine(job, 1, [gpu["name"] for gpu in environment.gpus()])
    one = _one_batch(job, 1)
    check_network(one, datasets.card(one.data))
    return find_edge(lambda batch: probe(job, batch, limit_bytes), predicted, max_probes)


def base_bytes(job: Job) -> int:
    """Return the memory of a process here without a network's tensors: the framework, and the context on a GPU."""
    found = probe(job, 2).base_bytes
    if found is None:
        raise RunError("not even a batch of 2 runs here, so there is no largest batch to search")
    return found


def _one_batch(job: Job, batch: int) -> Job:
    """Return the job on one device with one batch of synthetic samples of its shape."""
    if job.task == "detection":
        raise InputError(
            "the largest batch of a detector can be predicted but not confirmed: synthetic images have no boxes"
        )
    data = datasets.card(job.data)
    fields = [
        *("cluster.count=1", "backend=single", f"training.batch={batch}", "training.zero_stage=0"),
        f"training.accumulation={min(job.training.accumulation, batch)}",
        f"data={{name: synthetic, shape: {list(data.shape)}, classes: {data.num_classes}, samples: {batch}}}",
    ]
    return changed(job, fields)


# -- in the probe's own process -------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """Run two steps under a limit. Print a line of JSON and return 0, whether memory sufficed or not."""
    job = from_dict(json.loads(Path(argv[0]).read_text()))
    place = rank_context_from_environment(job)
    limit = int(argv[1])
    # The first step loads libraries, some 150 MB, which do not belong to the network.
    small = _one_batch(job, 2)
    TrainingStep(small, datasets.load(small.data), place).run(0)
    base = _limit_cuda(limit, place.device) if place.device.type == "cuda" else _limit_private_data(limit)
    memory = PeakMemory(place.device)
    answer: dict[str, Any]
    try:
        step = TrainingStep(job, datasets.load(job.data), place)
        for _ in range(2):  # the optimizer's state exists from the second step on
            step.run(0)
        if place.device.type == "cuda":
            torch.cuda.synchronize(place.device)
        answer = {"ran": True, "peak_bytes": memory.peak_bytes()}
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in _OUT_OF_MEMORY):
            raise
        answer = {"ran": False, "reason": "out of memory"}
    print(json.dumps({**answer, "base_bytes": base}), flush=True)
    return 0


def _limit_cuda(limit: int, device: Any) -> int:
    """Limit this process to `limit` bytes of a GPU. Return the bytes that the context and other processes already use."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    base = int(total - free)
    if limit:
        if limit <= base:
            raise InputError(f"{limit / 1e6:.0f} MB are less than the {base / 1e6:.0f} MB that are already in use")
        torch.cuda.set_per_process_memory_fraction(min(1.0, (limit - base) / total), device)
    return base


def _limit_private_data(limit: int) -> int:
    """Limit this process to `limit` resident bytes. Return its current size."""
    now = int(psutil.Process().memory_info().rss)
    if limit:
        import resource  # not on Windows

        if limit <= now:
            raise InputError(
                f"{limit / 1e6:.0f} MB are less than the {now / 1e6:.0f} MB of a process with torch loaded"
            )
        status = Path("/proc/self/status").read_text()
        data = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + limit - now,) * 2)
    return now


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
