"""Fuzzing of every parser of users' files, guided by coverage: inputs tried, CPU time, branches reached, findings.

    python -m benchmarks.fuzz --target job --cpu-minutes 1
    python -m benchmarks.fuzz --cpu-minutes 10 --json benchmarks/results/fuzz.json

Targets run in sequence, each in a separate process. The expected result is a good parse or one clear error, in time, without
executing anything or changing a user's file. Any other result is a finding. It is stored in FOLDER/TARGET/findings, and fuzzing
continues. Add its input to tests/fuzz_corpus, which the tests replay. A process that exits by itself, or takes a minute of CPU
time for one input, is also a finding and restarts. Needs the extra `fuzz`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.session import NAMES
from chronograd.errors import ChronogradError, MissingExtraError
from chronograd.files import write_json
from chronograd.measure import environment

CORPUS = Path(__file__).parent.parent / "tests" / "fuzz_corpus"
# Largest CPU time of one input before its process is killed.
STUCK_S = 60.0
# Largest number of starts without a first input; someone may be editing a source file.
MAX_STARTS = 20


def fuzz(name: str, cpu_s: float, folder: Path) -> dict[str, Any]:
    """Fuzz one target for `cpu_s` seconds of CPU time. Returns the row of the results."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs, done_s, starts, deaths, peak_bytes = 0, 0.0, 0, 0, 0
    while done_s < cpu_s and starts < MAX_STARTS:
        (folder / "state.json").unlink(missing_ok=True)
        shutil.copytree(CORPUS / name, folder / "corpus", dirs_exist_ok=True) if (CORPUS / name).is_dir() else None
        code = _session(name, cpu_s - done_s, folder)
        state = _state(folder)
        inputs, done_s = inputs + int(state["inputs"]), done_s + float(state["cpu_s"])
        peak_bytes = max(peak_bytes, int(state["peak_bytes"]))
        if state["is_over"]:
            break
        starts = starts + 1 if not state["inputs"] else 0
        if state["inputs"]:
            deaths += 1
            _keep_current(folder, f"ended with status {code}")
        else:
            time.sleep(10.0)
    reached = _coverage(folder / "log.txt")
    used = {"cpu_s": round(done_s, 1), "peak_bytes": peak_bytes}
    return {"inputs": inputs, **used, "deaths": deaths, **reached, "findings": _findings(folder)}


def _session(name: str, cpu_s: float, folder: Path) -> int:
    """Run one process until it ends. Returns its exit status."""
    command = [sys.executable, "-m", "benchmarks.fuzzing.session", name, str(folder), str(cpu_s)]
    with (folder / "log.txt").open("ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while child.poll() is None:
            time.sleep(1.0)
            state = _state(folder)
            if state["inputs"] and _cpu_s(child.pid) - state["started_s"] - state["cpu_s"] > STUCK_S:
                child.kill()
        return child.wait()
    finally:
        child.kill()
        child.wait()


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process as Linux reports it; 0 if unavailable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def _state(folder: Path) -> dict[str, Any]:
    nothing = {"inputs": 0, "cpu_s": 0.0, "started_s": 0.0, "is_over": False, "peak_bytes": 0}
    try:
        return {**nothing, **json.loads((folder / "state.json").read_text())}
    except (OSError, ValueError):  # missing, or still being written
        return nothing


def _keep_current(folder: Path, why: str) -> None:
    """Save the input at which a process ended."""
    key = f"died-{datetime.now(UTC):%H%M%S}"
    shutil.copyfile(folder / "current", folder / "findings" / f"{key}.input")
    (folder / "findings" / f"{key}.txt").write_text(f"died\n{why}\nthe process ended\n")


def _coverage(log: Path) -> dict[str, int]:
    """Return branches, features and stored inputs from libFuzzer's last line."""
    found = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", log.read_text(errors="replace"))
    return dict(zip(("branches", "features", "corpus"), map(int, found[-1]), strict=True)) if found else {}


def _findings(folder: Path) -> list[str]:
    texts = sorted((folder / "findings").glob("*.txt"))
    return [" | ".join(path.read_text(errors="replace").split("\n")[:3])[:300] for path in texts]


def save(path: Path, rows: dict[str, Any]) -> None:
    """Write rows and preserve those of other targets in the file."""
    before = json.loads(path.read_text())["targets"] if path.exists() else {}
    versions = {
        name: importlib.metadata.version(name) for name in ("atheris", "pydantic", "pyyaml", "torch", "chronograd")
    }
    write_json(
        path,
        {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "targets": {**before, **rows},
            "inputs": sum(row["inputs"] for row in {**before, **rows}.values()),
            "versions": {"python": sys.version.split()[0], **versions},
            "environment": {name: environment.environment()[name] for name in ("processor", "cores")},
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", action="append", choices=NAMES, help="one or more; all by default")
    parser.add_argument("--cpu-minutes", type=float, default=1.0, help="of each target")
    parser.add_argument("--folder", type=Path, help="for corpora, findings and logs; a temporary one by default")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    try:
        if importlib.util.find_spec("atheris") is None:
            raise MissingExtraError("atheris", "fuzz", "fuzzing")
    except ChronogradError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_status
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chronograd-fuzz-"))
    num_findings = 0
    for name in arguments.target or NAMES:
        row = {**fuzz(name, 60 * arguments.cpu_minutes, folder / name), "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}"}
        num_findings += len(row["findings"])
        text = f"{row['inputs']:,} inputs in {row['cpu_s']:,.0f} s of CPU time, {row.get('branches', 0):,} branches"
        text += f", {row['peak_bytes'] / 2**20:,.0f} MiB"
        print(f"{name}: {text}, {len(row['findings'])} findings", *row["findings"], sep="\n  ", flush=True)
        if arguments.json is not None:
            save(arguments.json, {name: row})
    print(f"{num_findings} findings in {folder}")
    return int(num_findings > 0)


if __name__ == "__main__":
    sys.exit(main())
