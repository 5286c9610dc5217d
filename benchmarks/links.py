"""Two ranks on hosts with a slow link between them, predicted and measured: step time and exposed communication.

    python -m benchmarks.links --json benchmarks/results/links.json

Hosts are network namespaces of this machine with a rate limit; see benchmarks/network.py. The machine and each link are
calibrated first; a prediction uses no other data. Then each network is timed over each link, two processes of one thread,
several rounds in turn. benchmarks/ranks.py defines which predictions count as right.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.network import BURST_BYTES, network, why_not
from benchmarks.ranks import QUANTITIES, judged, make_job
from chronograd.calibrate.machine import calibrate_once
from chronograd.cli.main import main as chronograd
from chronograd.data.trace_job import trace_job
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.prediction import predict

RATES_MBIT = (100, 300, 1000)
# Network and global batch: little, medium and much communication relative to computation.
CASES = (("resnet20", 128), ("small-cnn", 64), ("resnet18-cifar", 16))
SHAPE = (3, 32, 32)
RUN_S = 45.0


def link_name(rate_mbit: int) -> str:
    return f"namespaces-{rate_mbit}m"


def job_over(rate_mbit: int, name: str, batch: int) -> Job:
    return changed(make_job(name, batch, SHAPE, 2), [f"cluster.link={link_name(rate_mbit)}", "cluster.per_node=1"])


def calibrate_link(rate_mbit: int) -> dict[str, Any]:
    """Return α and β between two hosts, as `chronograd calibrate links` measures and stores them."""
    said = io.StringIO()
    with network(("h1", "h2"), rate_mbit) as hosts, contextlib.redirect_stdout(said):
        command = ["calibrate", "links", "--hosts", hosts, "--name", link_name(rate_mbit)]
        status = chronograd([*command, "--collective", "all_reduce", "--json"])
    if status:
        raise SystemExit(status)
    found: dict[str, Any] = json.loads(said.getvalue())
    return {"rate_mbit": rate_mbit, **found}


def measure(rate_mbit: int, name: str, batch: int, steps: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Return value and spread of each quantity in one run."""
    with network(("h1", "h2"), rate_mbit) as hosts:
        run = jobs.measure(
            job_over(rate_mbit, name, batch),
            Timing(2, steps, RUN_S),
            out=folder,
            launcher=f"hosts:{hosts}",
        ).record()
    return {quantity: {k: getattr(run[quantity], k) for k in ("value", "low", "high", "n")} for quantity in QUANTITIES}


def rows_of(
    rounds: int, steps: int, cases: Sequence[tuple[str, int]], rates: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield one row for each link and network: the prediction, the measurements of each round, and whether it was right."""
    points = [(rate, name, batch) for rate in rates for name, batch in cases]
    predicted = {}
    for rate, name, batch in points:
        job = job_over(rate, name, batch)
        predicted[rate, name] = predict(trace_job(job), job)
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for rate, name, batch in points:
                found = measure(rate, name, batch, steps, Path(folder) / f"{name}-{rate}-{number}")
                runs.setdefault((rate, name), []).append(found)
    for rate, name, batch in points:
        own = runs[rate, name]
        record = predicted[rate, name]
        row: dict[str, Any] = {"rate_mbit": rate, "network": name, "batch": batch, "rounds": own}
        row |= {q: judged(record.value(q), [run[q] for run in own]) for q in QUANTITIES}
        row["gradient_bytes"] = record.provenance.gradient_bytes
        yield row


def told(row: dict[str, Any]) -> str:
    words = []
    for name in QUANTITIES:
        q = row[name]
        error = "" if q["error"] is None else f" ({100 * q['error']:+.0f} %)"
        words.append(
            f"{name} {1000 * q['predicted']:.1f} ms, measured {1000 * q['measured']:.1f} "
            f"[{1000 * q['low']:.1f}, {1000 * q['high']:.1f}]{error} {'right' if q['is_right'] else 'wrong'}"
        )
    return f"{row['rate_mbit']} Mbit/s, {row['network']} × 2: {'; '.join(words)}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as docs/clusters.md shows them, with wrong predictions in bold."""
    lines = [
        "| link | two ranks | step, predicted | measured | exposed communication, predicted | measured |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        cells = [f"{row['rate_mbit']} Mbit/s", f"{row['network']}, batch {row['batch']}"]
        for q in (row[name] for name in QUANTITIES):
            predicted, *measured = (f"{1000 * q[name]:.0f}" for name in ("predicted", "measured", "low", "high"))
            cells.append(f"{predicted} ms" if q["is_right"] else f"**{predicted} ms**")
            cells.append("{} ms [{} … {}]".format(*measured))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="steps of a run; fewer if they are slow")
    parser.add_argument("--rates", default=",".join(map(str, RATES_MBIT)), help="in Mbit/s")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    rates = [int(rate) for rate in arguments.rates.split(",")]
    result: dict[str, Any] = {"created": datetime.now(UTC).isoformat(timespec="seconds"), "burst_bytes": BURST_BYTES}
    if (reason := why_not()) is not None:
        result["rows"] = [
            {"rate_mbit": rate, "network": name, "batch": batch, "not_measured": reason}
            for rate in rates
            for name, batch in CASES
        ]
        print(f"not measured: {reason}")
    else:
        with tempfile.TemporaryDirectory() as home:
            os.environ["XDG_DATA_HOME"] = home  # leave the user's own device and links unchanged
            result["device"] = calibrate_once()[0].title
            result["links"] = [calibrate_link(rate) for rate in rates]
            for found in result["links"]:
                link = found["link"]
                print(
                    f"{found['rate_mbit']} Mbit/s: latency {1e6 * link['latency_s']:.0f} µs, "
                    f"{8e-6 * link['bandwidth_bytes_per_s']:.1f} Mbit/s, {link['burst_bytes'] / 1000:.0f} kB at once",
                    flush=True,
                )
            result["rows"] = list(rows_of(arguments.rounds, arguments.steps, CASES, rates))
        for row in result["rows"]:
            print(told(row))
        figures = [row[name] for row in result["rows"] for name in QUANTITIES]
        print(table(result["rows"]))
        print(f"{sum(q['is_right'] for q in figures)} of {len(figures)} right")
    if arguments.json is not None:
        own = environment.environment()
        result["environment"] = {k: own[k] for k in ("processor", "cores", "versions")}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
