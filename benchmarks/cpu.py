"""This machine's CPU: calibrated, then steps of networks outside the calibration, predicted and timed.

    python -m benchmarks.cpu --out FOLDER [--group unseen|host] [--rounds 3]
    python -m benchmarks.cpu --out FOLDER --score [--predict]

`unseen`: 24 networks at one and two processes, training and inference. `host`: six small networks at batch 1 to 64, eager and
compiled, where Python and the framework limit the speed. One and two processes take turns in rounds. A case's time is the
median over rounds, and its spread is from the fastest to the slowest round. Each round begins and ends with a probe of the
machine's speed: if the speeds of rounds differ by more than 15 %, another program used the machine. Results also store the
speed around each case, and report its time scaled to the speed during calibration. An interrupted run resumes at the next
round. `--predict` repeats the predictions from the stored calibration with the current formula.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import gpu
from chronograd.calibrate import pace
from chronograd.calibrate.machine import Setup, calibrate_all, is_busy
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.hardware.catalog import Device, Node, Source
from chronograd.job import from_dict
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.calibration import calibrations
from chronograd.predict.prediction import predict

NETWORKS = (
    *("torchvision:" + n for n in (
        "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "googlenet",
        "shufflenet_v2_x1_0", "squeezenet1_1", "regnet_y_400mf", "convnext_tiny", "mnasnet1_0", "swin_t", "alexnet",
    )),
    *("timm:" + n for n in (
        "deit_tiny_patch16_224", "ghostnet_100", "resnet26d", "rexnet_100", "lcnet_100", "poolformer_s12", "repvgg_a0",
        "fbnetc_100", "mobilevit_xs", "edgenext_x_small",
    )),
)  # fmt: skip
WORLDS = {"unseen": (1, 2), "host": (1,)}
BATCH = 8
# Different kinds of networks, so small that the host takes most of a one-image step.
SMALL = ("lenet5", "small-cnn", "resnet8", "resnet20", "torchvision:squeezenet1_1", "torchvision:mobilenet_v3_small")
SMALL_BATCHES = (1, 4, 16, 64)
SMALL_SIDE = 64
COMPILED_BATCHES = (1, 64)  # a compiler takes half a minute for a case
SECONDS = 0.6
TIMING = Timing(warmup=1, num_steps=100, seconds=SECONDS)
AIM = 0.10


def cases(group: str, world: int) -> Iterator[dict[str, Any]]:
    for mode in ("inference", "training"):
        if group == "unseen":
            yield from (_case(network, mode, BATCH, world) for network in NETWORKS)
            continue
        for network in SMALL:
            for batch in SMALL_BATCHES:
                ways: tuple[dict[str, Any], ...] = ({}, {"compile": True}) if batch in COMPILED_BATCHES else ({},)
                yield from (_case(network, mode, batch, world, SMALL_SIDE, **way) for way in ways)


def _case(network: str, mode: str, batch: int, world: int, side: int = 224, **training: Any) -> dict[str, Any]:
    shape = [1, 28, 28] if network == "lenet5" else [3, 32, 32] if ":" not in network else [3, side, side]
    return {
        "mode": mode,
        "network": {"name": network},
        "data": {"name": "synthetic", "shape": shape, "classes": 1000 if ":" in network else 10, "samples": 2 * batch},
        "training": {"batch": batch, "precision": "fp32", **training},
        "cluster": {"device": "local", "count": world},
        "backend": "ddp" if world > 1 else "single",
    }


def name_of(case: dict[str, Any]) -> str:
    world = case["cluster"]["count"]
    return f"{gpu.name_of(case)}, {world} process{'es' if world > 1 else ''}"


def worker(group: str, world: int) -> None:
    """Run one rank, which prints a line of JSON for each case."""
    from chronograd.train.communicator import communicator_of
    from chronograd.train.rank_context import rank_context_from_environment

    chosen = list(cases(group, world))
    place = rank_context_from_environment(from_dict(chosen[0]), communicator_of)
    with place.exchange.process_group(place) if world > 1 else nullcontext():
        laps = pace.Laps()
        for case in chosen:
            laps.lap()
            try:
                row = gpu.measured(case, SECONDS, TIMING)
                row["pace_s"] = laps.lap()
            except (ChronogradError, RuntimeError) as error:
                if world > 1:
                    raise
                row = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
            if place.is_rank_zero:
                print(json.dumps({**row, "case": name_of(case)}), flush=True)


def measure_round(group: str, world: int) -> dict[str, dict[str, Any]]:
    """Return rows by case name, from ranks on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        of_rank = {
            "RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "OMP_NUM_THREADS": max(1, environment.cores() // world),
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.cpu", "--group", group, "--worker", str(world)]
        given = os.environ | {name: str(value) for name, value in of_rank.items()}
        ranks.append(subprocess.Popen(command, env=given, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
    assert ranks[0].stdout is not None
    rows = {}
    for line in ranks[0].stdout:
        row = json.loads(line)
        rows[row["case"]] = row
        text = row.get("error") or f"{1000 * row['seconds']:.2f} ms"
        print(f"  {row['case']}: {text}", flush=True)
    if any(process.wait() for process in ranks):
        raise SystemExit(f"a rank of {world} failed; its error is above")
    return rows


def calibrated(group: str) -> dict[str, Any]:
    """Calibrate this machine, again if it was busy meanwhile, and return the predictions of every case."""
    for _ in range(3):
        print("calibrating this machine", flush=True)
        device = calibrate_all(setups=setups(group))
        if not is_busy(device):
            break
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment.environment(),
        "calibration": device.calibration,
        "predicted": predicted(group, device),
    }


def setups(group: str) -> list[Setup]:
    """Return the setups that the cases of a group need; compiled cases use channels last."""
    layouts = (False, True) if group == "host" else (False,)
    return [Setup(w, max(1, environment.cores() // w), is_last) for w in WORLDS[group] for is_last in layouts]


def predicted(group: str, device: Device) -> dict[str, dict[str, Any]]:
    """Return the predictions of a calibrated machine for every case."""
    found: dict[str, dict[str, Any]] = {}
    paces = {(c.processes, c.mode, c.channels_last): c.provenance.get("pace_s") for c in calibrations(device)}
    for world in WORLDS[group]:
        for case in cases(group, world):
            job = from_dict(case)
            step = predict(trace_job(job), job, device=device)["step_time_s"]
            found[name_of(case)] = {
                "seconds": step.value,
                "low": step.low,
                "high": step.high,
                "pace_s": paces[world, case["mode"], bool(case["training"].get("compile"))],
            }
    return found


def device_of(saved: dict[str, Any]) -> Device:
    """Return the calibrated machine as `chronograd calibrate` described it; its peaks are the highest measured rates."""
    settings, host = saved["calibration"]["settings"], saved["environment"]
    return Device(
        name="local",
        title=host["processor"],
        kind="cpu",
        memory_bytes=host["ram_bytes"],
        bandwidth_bytes_per_s=max(s["bandwidth_bytes_per_s"] for s in settings),
        l2_bytes=int(settings[0]["cache_bytes"]),
        num_units=host["cores"],
        peak_flops_per_s={"fp32": max(s["peak_flops_per_s"] for s in settings)},
        node=Node(devices_per_node=host["cores"], intra_link="loopback", inter_link="ethernet-10g"),
        source=(
            Source(of=("peak_flops_per_s",), source="chronograd calibrate", date=saved["created"][:10], tag="measured"),
        ),
        calibration=saved["calibration"],
    )


def measure(group: str, folder: Path, rounds: int, is_again: bool) -> None:
    """Calibrate and predict once, then run the missing rounds and write each one."""
    path = folder / f"{group}.json"
    saved = json.loads(path.read_text()) if path.exists() else {"rounds": []}
    if is_again or "predicted" not in saved:
        saved |= calibrated(group)
        path.write_text(json.dumps(saved, indent=1))
    while len(saved["rounds"]) < rounds:
        start, before = time.monotonic(), pace.probe_s()
        rows: dict[str, Any] = {}
        for world in WORLDS[group]:
            rows |= measure_round(group, world)
        saved["rounds"].append({"pace_s": [before, pace.probe_s()], "rows": rows})
        path.write_text(json.dumps(saved, indent=1))
        print(f"round {len(saved['rounds'])} of {rounds}: {(time.monotonic() - start) / 60:.1f} min", flush=True)


def judged(saved: dict[str, Any], is_at_pace: bool = False) -> list[dict[str, Any]]:
    """Return every case that ran in all rounds: predicted and measured seconds, spread of rounds, and whether the prediction is
    right.

    Args:
        is_at_pace: scale measured times to the machine's speed during calibration; see `has_paces`.
    """
    rows = []
    for name, predicted_row in saved["predicted"].items():
        timed = [r["rows"][name] for r in saved["rounds"] if name in r["rows"]]
        if not timed or any("seconds" not in row for row in timed):
            continue
        seconds = [row["seconds"] * _at_pace(predicted_row, row, is_at_pace) for row in timed]
        middle = statistics.median(seconds)
        error = predicted_row["seconds"] / middle - 1
        rows.append(
            {
                "case": name,
                "predicted": predicted_row["seconds"],
                "measured": middle,
                "fastest": min(seconds),
                "slowest": max(seconds),
                "error": error,
                "is_right": abs(error) <= AIM or min(seconds) <= predicted_row["seconds"] <= max(seconds),
                "is_inside": predicted_row["low"] <= middle <= predicted_row["high"],
            }
        )
    return rows


def has_paces(saved: dict[str, Any]) -> bool:
    """Return whether the results contain the machine's speed for each case and for the calibration. Older results lack it."""
    rows = [
        *saved["predicted"].values(),
        *(row for r in saved["rounds"] for row in r["rows"].values() if "seconds" in row),
    ]
    return all(row.get("pace_s") for row in rows)


def _at_pace(predicted_row: dict[str, Any], row: dict[str, Any], is_at_pace: bool) -> float:
    """Return the factor that scales a time to the machine's speed during calibration."""
    return float(predicted_row["pace_s"] / row["pace_s"]) if is_at_pace else 1.0


def score(path: Path) -> None:
    saved = json.loads(path.read_text())
    console = Console(width=110)
    for is_at_pace in (False, True) if has_paces(saved) else (False,):
        console.print("scaled to the speed during calibration" if is_at_pace else "as timed")
        _print(console, judged(saved, is_at_pace))
    paces = [p for r in saved["rounds"] for p in r["pace_s"]]
    own = saved["calibration"]
    console.print(
        f"speeds of {len(saved['rounds'])} rounds differ by a factor of {pace.spread(paces):.2f}; during calibration by {own['pace_spread']:.2f}, "
        f"with {own['others_cores']:.2f} cores used by other programs; its probe took {own['pace_s'] / statistics.median(paces):.2f} times that of the rounds"
    )


def _print(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    every = Table("case", "predicted, ms", "measured, ms", "fastest to slowest", "error", "right")
    for row in rows:
        spread = f"{1e3 * row['fastest']:.2f} to {1e3 * row['slowest']:.2f}"
        numbers = (
            f"{1e3 * row['predicted']:.2f}",
            f"{1e3 * row['measured']:.2f}",
            spread,
            f"{100 * row['error']:+.0f} %",
        )
        every.add_row(row["case"], *numbers, "yes" if row["is_right"] else "")
    console.print(every)
    table = Table("of", "cases", "mean error", "median", "bias", "within 10 % or the spread", "inside 80 %")
    for mode in ("inference", "training"):
        for kind in ("1 process", "2 processes", "eager", "compiled"):
            own = [r for r in rows if mode in r["case"] and is_of(kind, r["case"])]
            if own:
                table.add_row(f"{mode}, {kind}", str(len(own)), *_cells(own))
    console.print(table)


def is_of(kind: str, name: str) -> bool:
    return (", compiled" in name) == (kind == "compiled") if kind in ("eager", "compiled") else name.endswith(kind)


def _cells(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    errors = np.array([row["error"] for row in rows])
    right, inside = (np.mean([row[name] for row in rows]) for name in ("is_right", "is_inside"))
    values = np.abs(errors).mean(), np.median(np.abs(errors)), np.expm1(np.log1p(errors).mean()), right, inside
    return tuple(f"{100 * value:{sign}.0f} %" for value, sign in zip(values, ("", "", "+", "", ""), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("cpu"))
    parser.add_argument("--group", default="unseen", choices=tuple(WORLDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--score", action="store_true", help="only print the results in --out")
    parser.add_argument("--again", action="store_true", help="calibrate and predict again, without timing again")
    parser.add_argument("--predict", action="store_true", help="predict again from the calibration in --out")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.group, given.worker)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{given.group}.json"
    if not given.score:
        measure(given.group, given.out, given.rounds, given.again)
    if given.predict:
        saved = json.loads(path.read_text())
        path.write_text(json.dumps(saved | {"predicted": predicted(given.group, device_of(saved))}, indent=1))
    score(path)


if __name__ == "__main__":
    main()
