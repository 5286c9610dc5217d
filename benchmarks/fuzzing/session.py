"""One target in a separate process: `python -m benchmarks.fuzzing.session TARGET FOLDER CPU_SECONDS`.

Findings are stored in FOLDER/findings and fuzzing continues. FOLDER/state.json holds the progress. FOLDER/current holds the
current input, so an input that kills the process is not lost. Time is CPU time: the process may be stopped and resumed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

WITH_TORCH = ("checkpoint", "weights", "labels")
OF_VERBS = ("log", "profile", "workload", "queue", "config")
NAMES = (
    *("job", "override", "device", "link", "prices", "calibration", "table", "trace", "record", "rundir"),
    *("wall-times", "curve", "speeds"),
    *OF_VERBS,
    *WITH_TORCH,
)
# Memory of a process with its data. A parser that needs more gets a MemoryError, which is a finding.
MAX_DATA_BYTES = 2 * 2**30
SAY_EVERY_S = 2.0
# libFuzzer's clock includes the time while a process is stopped, so the watch uses a separate clock.
OPTIONS = ("-timeout=1000000", "-rss_limit_mb=0")


def main(argv: Sequence[str] | None = None) -> None:
    name, folder, seconds = list(sys.argv[1:] if argv is None else argv)
    import atheris  # only used here; benchmarks/fuzz.py explains how to install it

    parsers = ["tomllib"] if name in ("device", "link") else []
    with atheris.instrument_imports(include=["chronograd", *parsers]):
        watch = importlib.import_module("benchmarks.fuzzing.watch")
        targets = importlib.import_module("benchmarks.fuzzing.targets").BY_NAME
        for names, module in ((OF_VERBS, "verb_targets"), (WITH_TORCH, "torch_targets")):
            if name in names:
                targets = importlib.import_module(f"benchmarks.fuzzing.{module}").BY_NAME
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))
    session = Session(targets[name], Path(folder), float(seconds), watch)
    corpus = session.folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in session.target.seeds():
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.15:
            return bytes(atheris.Mutate(data, most))
        for _ in range(random.choice((1, 1, 2, 4))):
            data = session.target.mutate(data, random)
        return data[:most]

    own = (f"-artifact_prefix={folder}/", f"-max_len={session.target.most_bytes}")
    with watch.watching() as scratch:
        session.scratch = scratch
        atheris.Setup([sys.argv[0], *OPTIONS, *own, str(corpus)], session.one, custom_mutator=mutate)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # commands print their results
        atheris.Fuzz()


class Session:
    """The callback for libFuzzer, and the findings so far.

    Args:
        watch: the module benchmarks.fuzzing.watch, imported after branch counting starts.
    """

    def __init__(self, target: Any, folder: Path, seconds: float, watch: Any) -> None:
        self.target, self.folder, self.watch = target, folder, watch
        self.scratch = Path()
        self._most_s, self._said_s, self._inputs = seconds, 0.0, 0
        self._start_s = time.process_time()
        (folder / "findings").mkdir(parents=True, exist_ok=True)
        self._known = {path.stem for path in (folder / "findings").iterdir()}

    def one(self, data: bytes) -> None:
        """Try and count one input, and store it if it produced a new finding."""
        (self.folder / "current").write_bytes(data)
        self._inputs += 1
        finding = self.watch.tried(self.target, data, self.scratch)
        if finding is not None:
            self._keep(finding, data)
        now_s = time.process_time() - self._start_s
        is_over = now_s >= self._most_s
        if is_over or now_s - self._said_s > SAY_EVERY_S or self._inputs == 1:
            self._said_s = now_s
            state = {"inputs": self._inputs, "cpu_s": now_s, "started_s": self._start_s, "is_over": is_over}
            state["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            (self.folder / "state.json").write_text(json.dumps(state))
        if is_over:
            shutil.rmtree(self.scratch, ignore_errors=True)
            os._exit(0)  # libFuzzer does not return

    def _keep(self, finding: Any, data: bytes) -> None:
        key = hashlib.sha256(f"{finding.kind} {finding.place}".encode()).hexdigest()[:12]
        if key not in self._known:
            self._known.add(key)
            path = self.folder / "findings" / key
            path.with_suffix(".input").write_bytes(data)
            text = f"{finding.kind}\n{finding.place}\n{finding.text}\n"
            path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
