"""The order of `doctor`'s checks and their findings; imported while another process imports PyTorch."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from chronograd.calibrate.workers import Worker
from chronograd.doctor import cores, devices, software, storage
from chronograd.doctor import hosts as doctor_hosts
from chronograd.doctor import job as doctor_job
from chronograd.doctor.finding import Finding, late
from chronograd.errors import install_command
from chronograd.job import Job
from chronograd.units import seconds, si

# Importing PyTorch takes 3 s from a warm disk, and five times that from a cold or a busy one: these deadlines only prevent
# hangs.
BUILD_S, REST_S = 30.0, 20.0
MARK_S = 2.0


def check(
    machine: Worker, folder: Worker, job: Job | None, hosts: str, out: Path, started: float, everything: bool = False
) -> list[Finding]:
    """Return all findings that do not need the end of the two processes; see `doctor.examine`."""
    found = _looked_at_here(job, hosts)
    if not everything:
        found = [one for one in found if software.concerns(one, job.backend if job else None)]
    driver, driver_cuda = devices.listed()
    rate = None
    if hosts:
        mark = folder.wait("mark", started + MARK_S)
        rows, rate = doctor_hosts.check(hosts, mark, str(out), job.cluster.count if job else None)
        found += rows
    machine.tell({"go": True})  # measure peaks only when hosts on this machine are idle
    rows, need = _of_torch(machine, machine.wait("build", started + BUILD_S), job, driver, driver_cuda)
    if job is not None and rate is not None:
        found += [*rows, *doctor_job.exchange(job, need, rate, "between these hosts")]
    else:
        found += [*rows, *_exchange_here(job, need, rows)]
    found += storage.run_directory(folder, out, need.get("checkpoint_bytes"), started, need.get("between_s"))
    on_cpu = job is not None and (job.cluster.device == "cpu" or not driver)
    return [*found, storage.memory(need.get("memory_bytes") if on_cpu else None, cores.ranks_here(job, hosts))]


def _looked_at_here(job: Job | None, hosts: str) -> list[Finding]:
    """Return the findings that need neither PyTorch nor waiting."""
    ranks = cores.ranks_here(job, hosts)
    quota = cores.quota_cores()
    found = cores.cores(ranks, job.cluster.threads if job else None, quota)
    found += cores.thread_variables(ranks, os.environ)
    found += [cores.open_files(), *storage.shared_memory()]
    found += software.versions()
    found += software.as_findings("backends", software.backends())
    found += software.as_findings("launchers", software.launchers())
    return found + (doctor_job.data_and_weights(job) if job else [])


def _of_torch(
    machine: Worker, build: dict[str, Any] | None, job: Job | None, driver: list[dict[str, str]], driver_cuda: str
) -> tuple[list[Finding], dict[str, Any]]:
    """Return the findings of the process with PyTorch, and the needs of a job, if they arrive in time."""
    if build is None or "error" in build:
        return [_no_torch(build, machine.why_ended)], {}
    until = time.monotonic() + REST_S
    found = cores.blas(build)
    if build["has_link"]:
        found.append(_link(machine.wait("link", until)))
    measured = machine.wait("devices", until)
    if measured is None:
        to_do = machine.why_ended or "check that no other process uses the devices"
        return [*found, late("devices", "peaks", REST_S, to_do)], {}
    found += devices.usable(driver, driver_cuda, build, measured, job.cluster.device if job else "local")
    found += devices.peaks(measured, driver, cores.usable_cores())
    found += software.nccl(measured["nccl"])
    if job is None:
        return found, {}
    need = machine.wait("job", until)
    if need is None:
        to_do = machine.why_ended or "counting its network may take long: try `chronograd count`"
        return [*found, late("job", "job", REST_S, to_do)], {}
    return found + doctor_job.findings(job, need, measured), need


def _exchange_here(job: Job | None, need: dict[str, Any], rows: list[Finding]) -> list[Finding]:
    """Check the exchange of the job's gradients between two processes of this machine, unless its ranks have GPUs."""
    rates = [one.numbers["bandwidth_bytes_per_s"] for one in rows if one.group == "link" and one.numbers]
    if job is None or not rates or need.get("is_on_gpu"):
        return []
    return doctor_job.exchange(job, need, float(rates[0] or 0.0), "between two processes here")


def _no_torch(build: dict[str, Any] | None, why_ended: str) -> Finding:
    if build is None:
        to_do = why_ended or "the disk is slow, or many processes run: find the slow imports with python -X importtime"
        return late("software", "importing PyTorch", BUILD_S, to_do)
    is_missing = "No module" in build["error"]
    to_do = install_command("torch") if is_missing else "pip install --force-reinstall torch"
    return Finding("software", "PyTorch", f"cannot be imported: {build['error']}", "obstacle", to_do)


def _link(answer: dict[str, Any] | None) -> Finding:
    what, to_do = "two processes here", "check that the loopback interface is up: ip addr show lo"
    if answer is None:
        return late("link", what, REST_S, to_do)
    if "error" in answer:
        return Finding("link", what, f"cannot all-reduce: {answer['error']}", "warning", to_do)
    rate = si(answer["bandwidth_bytes_per_s"], "B/s")
    seen = f"{seconds(answer['latency_s'])} for an all-reduce of 4 KiB, {rate} of bus bandwidth, gloo"
    return Finding("link", what, seen, numbers=answer)
