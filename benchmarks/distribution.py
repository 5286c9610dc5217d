"""Our `ddp` compared with a bare torchrun script and Lightning's DDP: paired samples per second of the same training.

    python -m benchmarks.distribution --rounds 10 --json benchmarks/results/distribution.json

Each contender is a full run of two processes on loopback, one thread each, with the same network, synthetic images, batch and
optimizer. The benchmark compares the time of the timed steps on rank 0, from barrier to barrier after a warm-up, without
start-up. Contenders take turns, in an order that changes between rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.training import Ratio, in_turn
from chronograd.measure import environment

OURS, BARE, LIGHTNING = "chronograd ddp", "bare torchrun script", "lightning ddp"
WORLD = 2


def run_contender(name: str, arguments: argparse.Namespace, folder: Path) -> float:
    """Return the samples per second of one full run. Raises RuntimeError with the end of its output if it fails."""
    out = folder / f"{name.replace(' ', '-')}.json"
    out.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
        *(f"--nproc-per-node={WORLD}", "-m", "benchmarks.distribution_rank", name, str(out)),
        *(arguments.network, str(arguments.batch), str(arguments.warmup), str(arguments.steps)),
    ]
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return float(json.loads(out.read_text())["samples_per_s"])


def compare(arguments: argparse.Namespace, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Return the samples per second of each contender in each round."""
    names = [OURS, BARE, LIGHTNING]
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(arguments.rounds):
            for name in in_turn(names, round_):
                rates[name].append(run_contender(name, arguments, Path(folder)))
            shown = ", ".join(f"{name} {rates[name][-1]:.0f}" for name in names)
            say(f"round {round_ + 1} of {arguments.rounds}: {shown} samples/s")
    return rates


def verdict(ratios: Mapping[str, Ratio]) -> str:
    """Return whether the 95 % interval of our rate over the bare script's includes 0.99 or lies above it."""
    low, high = ratios[BARE].low, ratios[BARE].high
    met = "met" if high >= 0.99 else "missed"
    return f"ours over the bare script {ratios[BARE].value:.3f} ({low:.3f} to {high:.3f}): aim of 0.99 {met}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--batch", type=int, default=64, help="global batch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    rates = compare(arguments, lambda line: print(line, flush=True))
    ratios = {name: Ratio.paired(rates[OURS], own) for name, own in rates.items() if name != OURS}
    result: dict[str, Any] = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "world": WORLD,
        "settings": {k: v for k, v in vars(arguments).items() if k != "json"},
        "samples_per_s": rates,
        "ratio": {name: ratio.to_json() for name, ratio in ratios.items()},
        "verdict": verdict(ratios),
        "environment": {k: environment.environment()[k] for k in ("processor", "cores", "versions")},
    }
    print(result["verdict"])
    print(
        f"ours over Lightning {ratios[LIGHTNING].value:.3f} ({ratios[LIGHTNING].low:.3f} to {ratios[LIGHTNING].high:.3f})"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
