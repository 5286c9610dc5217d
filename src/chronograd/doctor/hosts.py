"""Checks of several hosts: access, connections, speed, and the same versions, clock and files."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from chronograd.calibrate.workers import Worker
from chronograd.doctor.finding import Finding, judged, late
from chronograd.doctor.process import WORKER
from chronograd.doctor.process import asked as ask_process
from chronograd.errors import ChronogradError, InputError
from chronograd.launch import hosts as launcher
from chronograd.launch.hosts import Host
from chronograd.units import seconds, si
from chronograd.words import how_many

# LINK_S includes importing PyTorch on each host, and gloo's timeout of 20 s.
ENTER_S = 4.0
FACTS_S = 8.0
LINK_S = 30.0
# Records of different hosts are compared by their times.
MAX_CLOCK_S = 1.0
COMPARED = ("python", "chronograd", "torch", "torchvision", "numpy")


@dataclass
class HostReport:
    """An accessible host, and the reports of its process."""

    host: Host
    checks: Worker
    facts: Mapping[str, Any]


def check(text: str, mark: str | None, run_directory: str, num_ranks: int | None) -> tuple[list[Finding], float | None]:
    """Return the findings on the hosts of `--hosts`, and the bandwidth of an all-reduce among them (bytes/s, or None).

    Args:
        mark: a folder created in the run directory, for others to see. `num_ranks`: of the job; None without one.
    Raises: InputError for a text without host names, or with one twice.
    """
    started = time.monotonic()
    entered, found = _enter(text, started)
    if num_ranks is not None and entered and not found:
        try:
            launcher.blocks(num_ranks, entered)
        except InputError as error:
            found.append(Finding("hosts", "ranks", error.message, "obstacle", error.hint))
    with ExitStack() as stack:
        asked = []
        for rank, host in enumerate(entered):
            about = {"of": "host", "rank": rank, "world": len(entered), "mark": mark}
            about |= {"address": host.address, "interface": host.interface}
            checks = stack.enter_context(ask_process(about, host.command(WORKER, {})))
            facts = checks.wait("facts", started + FACTS_S)
            if facts is None:
                found.append(_silent(host, checks))
            else:
                asked.append(HostReport(host, checks, facts))
        if asked:
            found += _facts(asked)
        if len(asked) < 2:
            return found, None
        can_all, rows = _reach(asked, started)
        found += rows
        if mark is not None:
            found += [_sees(one, run_directory, started) for one in asked]
        if not can_all or len(asked) < len(entered):
            return found, None
        row, rate = _link(asked)
        return [*found, row], rate


def _enter(text: str, started: float) -> tuple[list[Host], list[Finding]]:
    """Ask all hosts for their address simultaneously. Return those that answer, and a finding for each other one."""
    names = [word.strip() for word in text.split(",")]
    if len(set(names)) < len(names) or not all(names):
        launcher.parse(text)  # raises before contacting any host
    answers: dict[str, Future[Host]] = {name: Future() for name in names}
    for name, answer in answers.items():
        threading.Thread(target=_ask, args=(name, answer), daemon=True).start()
    entered, found = [], []
    for name, answer in answers.items():
        try:
            entered.append(answer.result(max(0.1, started + ENTER_S - time.monotonic())))
        except TimeoutError:
            to_do = f"check that it is running and its name is correct: ping, then ssh {name.removeprefix('ssh:')} true"
            found.append(late("hosts", f"host {name}", ENTER_S, to_do, "obstacle"))
        except ChronogradError as error:
            found.append(Finding("hosts", f"host {name}", error.message, "obstacle", error.hint))
    return entered, found


def _ask(name: str, answer: Future[Host]) -> None:
    try:
        answer.set_result(launcher.parse(name)[0])
    except Exception as error:
        answer.set_exception(error)


def _silent(host: Host, checks: Worker) -> Finding:
    seen = checks.why_ended or f"{WORKER[0]} does not respond there within {FACTS_S:.0f} s"
    to_do = (
        f"check that {WORKER[0]} has chronograd on that host, at the same path, and that {host.address} is its address"
    )
    return Finding("hosts", f"host {host.name}", seen, "obstacle", to_do)


def _facts(asked: Sequence[HostReport]) -> list[Finding]:
    found = []
    for one in asked:
        facts, host = one.facts, one.host
        gpus = f", {len(facts['gpus'])} × {facts['gpus'][0]['name']}" if facts["gpus"] else ""
        seen = f"{host.address} on {host.interface}, {how_many(facts['cores'], 'cores')}{gpus}"
        found.append(Finding("hosts", f"host {host.name}", seen, numbers={"cores": facts["cores"]}))
    first = asked[0]
    for name in COMPARED:
        theirs = {one.host.name: one.facts["versions"].get(name, "none") for one in asked}
        if len(set(theirs.values())) > 1:
            seen = ", ".join(f"{version} on {host}" for host, version in theirs.items())
            to_do = f"install the version of {first.host.name} on all hosts"
            found.append(Finding("hosts", f"{name} differs", seen, "warning", to_do))
    return found


def _reach(asked: Sequence[HostReport], started: float) -> tuple[bool, list[Finding]]:
    """Check TCP between all pairs at gloo's address and interface, and the difference between clocks."""
    peers = {one.host.name: [one.host.address, one.facts["port"]] for one in asked}
    clocks, found, trips = {}, [], []
    for one in asked:
        sent = time.time()
        one.checks.tell({"peers": {name: at for name, at in peers.items() if name != one.host.name}})
        clock = one.checks.wait("clock", started + FACTS_S)
        if clock is not None:
            clocks[one.host.name] = (clock - (sent + time.time()) / 2, (time.time() - sent) / 2)
    for one in asked:
        reached = one.checks.wait("reached", started + FACTS_S) or {}
        for name in peers:
            if name == one.host.name:
                continue
            answer = reached.get(name, {"error": "no answer in time"})
            if "error" in answer:
                seen = f"no TCP to {peers[name][0]}: {answer['error']}"
                to_do = f"open the ports between them (firewall), and check that {one.host.interface} has a route"
                found.append(Finding("hosts", f"{one.host.name} to {name}", seen, "obstacle", to_do))
            else:
                trips.append(answer["seconds"])
    if not found:
        seen = f"all hosts reach each other by TCP; the longest round trip is {seconds(max(trips))}"
        found.append(Finding("hosts", "reach", seen, numbers={"round_trip_s": max(trips)}))
        return True, found + _clocks(clocks)
    return False, found + _clocks(clocks)


def _clocks(clocks: Mapping[str, tuple[float, float]]) -> list[Finding]:
    offsets = [offset for offset, _ in clocks.values()]
    if not offsets:
        return []
    difference, doubt = max(offsets) - min(offsets), max(doubt for _, doubt in clocks.values())
    seen, numbers = (
        f"they differ by {seconds(difference)} ± {seconds(doubt)}",
        {"apart_s": difference, "doubt_s": doubt},
    )
    to_do = "set them with NTP: timedatectl set-ntp true"
    return [judged("hosts", "clocks", seen, numbers, (difference > MAX_CLOCK_S + 2 * doubt, "warning", to_do))]


def _sees(one: HostReport, run_directory: str, started: float) -> Finding:
    what, sees = f"{one.host.name} and the run directory", one.checks.wait("sees", started + FACTS_S)
    if sees:
        return Finding("hosts", what, f"it sees {run_directory}")
    seen = (
        "no answer in time: its mount may be dead"
        if sees is None
        else f"it sees another {run_directory} than this host, or none"
    )
    return Finding("hosts", what, seen, "obstacle", "name a folder that all hosts share (NFS, Lustre) with --out")


def _link(asked: Sequence[HostReport]) -> tuple[Finding, float | None]:
    first = asked[0]
    meeting = f"tcp://{first.host.address}:{first.facts['free_port']}"
    for one in asked:
        one.checks.tell({"meeting": meeting})
    until = time.monotonic() + LINK_S
    answers = [one.checks.wait("link", until) for one in asked]
    what = f"all-reduce over {how_many(len(asked), 'hosts')}"
    for one, answer in zip(asked, answers, strict=True):
        if answer is None or "error" in answer:
            ended = one.checks.why_ended or f"not done after {LINK_S:.0f} s"
            seen = f"{one.host.name}: {ended if answer is None else answer['error']}"
            to_do = f"check that {one.host.interface} leads to the other hosts, and that torch can be imported there"
            return Finding("hosts", what, seen, "obstacle", to_do), None
    slowest = max(answers, key=lambda answer: float(answer["latency_s"]))
    rate = min(float(answer["bandwidth_bytes_per_s"]) for answer in answers)
    seen = (
        f"{seconds(slowest['latency_s'])} for 4 KiB, {si(8 * rate, 'bit/s')} = {si(rate, 'B/s')} of bus bandwidth, gloo"
    )
    return Finding(
        "hosts", what, seen, numbers={"latency_s": slowest["latency_s"], "bandwidth_bytes_per_s": rate}
    ), rate
