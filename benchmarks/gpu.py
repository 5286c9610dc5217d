"""A GPU without measurements: steps predicted first, then timed, in both modes, at many batches and precisions.

    python -m benchmarks.gpu predict --on h200 --out FOLDER        anywhere: FOLDER/predicted-h200.json
    python -m benchmarks.gpu measure --out FOLDER                  on the machine: FOLDER/measured.json, resumable
    python -m benchmarks.gpu score FOLDER/predicted-h200.json FOLDER/measured.json

Predictions are for the shipped device, and were committed before we had access to the machine. Steps are timed as in
`chronograd measure`: training by CUDA events without inner synchronisation, inference with a wait after each batch. A case that
cannot run (for example, for lack of memory) is a row with its error.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.job import Data, Job, from_dict
from chronograd.measure.result import Timing
from chronograd.predict.prediction import predict

IMAGES, CIFAR, TEXT = [3, 224, 224], [3, 32, 32], [1024]
# Different kinds of networks: residual, plain, depthwise, dense, image transformers, small ones, a language model.
NETWORKS = (
    "torchvision:resnet50", "torchvision:vgg16", "torchvision:mobilenet_v3_large", "torchvision:efficientnet_b0",
    "torchvision:densenet121", "torchvision:convnext_tiny", "torchvision:vit_b_16", "torchvision:swin_t", "resnet20", "gpt2-small",
)  # fmt: skip
ON_CIFAR = ("resnet18-cifar", "resnet20", "resnet44", "resnet8", "resnet9", "small-cnn")
BATCHES = {"inference": (1, 8, 64, 256), "training": (1, 16, 64, 256)}
TEXT_BATCHES = (1, 4, 16)
# Networks with extra cases: every precision, both layouts; and torch.compile, which takes half a minute a case.
EVERY_PRECISION = ("torchvision:resnet50", "torchvision:vit_b_16")
COMPILED = ("torchvision:resnet50", "resnet44")
SAMPLES = 512
SECONDS = 1.0


def cases(group: str = "all") -> Iterator[dict[str, Any]]:
    """Yield the cases to time, as fields of a job.

    `group`: steps, cifar (one GPU's step of ResNet-18 and similar networks against batch), compiled, or all.
    """
    if group in ("all", "steps"):
        for mode, batches in BATCHES.items():
            for network in NETWORKS:
                sizes = TEXT_BATCHES if network == "gpt2-small" else batches
                yield from (_case(mode, network, batch, "bf16") for batch in sizes)
        for network in EVERY_PRECISION:
            for precision in ("fp32", "tf32", "fp16"):
                yield from (_case(mode, network, batch, precision) for mode in BATCHES for batch in (8, 64))
    if group in ("all", "cifar"):
        for batch in (32, 128, 512, 2048, 4096, 8192, 32768):
            yield from (_case("training", "resnet18-cifar", batch, precision) for precision in ("fp32", "tf32", "bf16"))
        for network in ON_CIFAR[2:]:
            yield from (_case("training", network, batch, "bf16") for batch in (64, 128, 512, 2048))
    if group in ("all", "compiled"):
        for how in (True, "cuda-graphs"):
            for network in COMPILED:
                yield _case("training", network, 64, "bf16", compile=how)
                yield _case("inference", network, 1, "bf16", compile=how)
        for copies in (2, 4, 8):
            yield _case("training", "resnet44", 64 * copies, "bf16", compile="cuda-graphs")


def _case(mode: str, network: str, batch: int, precision: str, **training: Any) -> dict[str, Any]:
    is_text = network == "gpt2-small"
    shape = TEXT if is_text else CIFAR if network in ON_CIFAR else IMAGES
    layout = {} if is_text else {"channels_last": precision != "fp32"}
    classes = 50257 if is_text else 10 if shape == CIFAR else 1000
    samples = max(SAMPLES, 2 * batch) if not is_text else 64
    return {
        "task": "language" if is_text else "classification",
        "mode": mode,
        "network": {"name": network},
        "data": {"name": "tokens" if is_text else "synthetic", "shape": shape, "classes": classes, "samples": samples},
        "training": {"batch": batch, "precision": precision, **layout, **training},
    }


def name_of(case: dict[str, Any]) -> str:
    training = case["training"]
    how = {False: "", True: ", compiled", "cuda-graphs": ", CUDA graphs"}[training.get("compile", False)]
    return f"{case['network']['name']}, {case['mode']}, batch {training['batch']}, {training['precision']}{how}"


def predicted(case: dict[str, Any], device: str) -> dict[str, Any]:
    job = from_dict({**case, "cluster": {**case.get("cluster", {}), "device": device}})
    record = predict(trace_job(job), job)
    step, memory = record["step_time_s"], record["memory_peak_bytes"]
    return {
        "case": name_of(case),
        "seconds": step.value,
        "low": step.low,
        "high": step.high,
        "memory_bytes": memory.value,
    }


@functools.lru_cache(maxsize=1)
def _dataset(data: str) -> Any:
    from chronograd.data import datasets

    return datasets.load(Data.model_validate_json(data))


def measured(case: dict[str, Any], seconds: float, timing: Timing | None = None) -> dict[str, Any]:
    """Return the median seconds of a step on this rank, and the allocator's peak."""
    import torch

    from chronograd.measure.steps import time_steps
    from chronograd.rundir.steps import Line, StepLine
    from chronograd.train.communicator import communicator_of, rank0_number
    from chronograd.train.forward import ForwardStep
    from chronograd.train.rank_context import rank_context_from_environment
    from chronograd.train.step import TrainingStep

    job: Job = from_dict(case)
    place = rank_context_from_environment(job, communicator_of)
    lines: list[StepLine] = []

    def keep(line: Line) -> None:
        if isinstance(line, StepLine):
            lines.append(line)

    torch.compiler.reset()  # torch compiles a method for at most eight networks or shapes per process, and runs others eagerly
    is_cuda = place.device.type == "cuda"
    if is_cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    is_inference = job.mode == "inference"
    step: Any = (ForwardStep if is_inference else TrainingStep)(job, _dataset(job.data.model_dump_json()), place)
    asked = timing or Timing(warmup=5, num_steps=200 if is_inference else 40, seconds=seconds)
    # The warm-up sets the number of steps that fit into the seconds; it must not include the time of a compiler or of page
    # faults.
    if not is_cuda:
        time_steps(step, Timing(1, 1, seconds), lambda line: None, lambda number: rank0_number(number, place))
    time_steps(step, asked, keep, lambda number: rank0_number(number, place), is_waited_for=is_inference)
    whole = [line.step_time_s for line in lines if line.step_time_s is not None]
    parts = [dataclasses.asdict(line) for line in lines if line.mode == "parts"]
    keys = ("input_s", "transfer_s", "forward_s", "backward_s", "update_s")
    low, middle, high = (float(q) for q in np.quantile(whole, (0.1, 0.5, 0.9)))
    return {
        "case": name_of(case), "seconds": middle, "low": low, "high": high, "steps": len(whole),
        **{key: statistics.median(part[key] or 0.0 for part in parts) for key in keys},
        "memory_bytes": torch.cuda.max_memory_allocated() if is_cuda else None,
    }  # fmt: skip


def measure_all(group: str, out: Path, seconds: float, names: Sequence[str]) -> None:
    """Measure every case that `out` lacks, and write the file after each, so that nothing is lost."""
    import torch

    from chronograd.measure import environment

    path = out / "measured.json"
    saved = json.loads(path.read_text()) if path.exists() else {"rows": []}
    saved |= {"environment": environment.environment(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
    done = {row["case"] for row in saved["rows"]}
    for case in cases(group):
        name = name_of(case)
        if name in done or (names and not any(word in name for word in names)):
            continue
        start = time.monotonic()
        try:
            row = measured(case, seconds)
        except (ChronogradError, RuntimeError, torch.OutOfMemoryError) as error:
            row = {"case": name, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        gc.collect()
        torch._dynamo.reset()
        saved["rows"].append(row)
        path.write_text(json.dumps(saved, indent=1))
        text = row.get("error") or f"{1000 * row['seconds']:.3f} ms"
        print(f"{name}: {text} ({time.monotonic() - start:.1f} s)", flush=True)


def predict_all(group: str, device: str, out: Path) -> None:
    rows = []
    for case in cases(group):
        try:
            rows.append(predicted(case, device))
        except ChronogradError as error:
            rows.append({"case": name_of(case), "error": error.message})
    created = datetime.now(UTC).isoformat(timespec="seconds")
    (out / f"predicted-{device}.json").write_text(
        json.dumps({"device": device, "created": created, "rows": rows}, indent=1)
    )


def by_case(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file of predictions or measurements, without errors."""
    return {row["case"]: row for row in json.loads(path.read_text())["rows"] if "error" not in row}


@dataclasses.dataclass(frozen=True)
class Pair:
    """A case with a prediction and a measurement: rows of both files."""

    case: str
    predicted: dict[str, Any]
    measured: dict[str, Any]

    @property
    def ratio(self) -> float:
        return float(self.predicted["seconds"] / self.measured["seconds"])

    @property
    def is_inside(self) -> bool:
        return bool(self.predicted["low"] <= self.measured["seconds"] <= self.predicted["high"])


def pairs(predictions: Path, measurements: Path) -> list[Pair]:
    """Return every case that both files have, in the order of the measurements."""
    predicted = by_case(predictions)
    return [Pair(case, predicted[case], row) for case, row in by_case(measurements).items() if case in predicted]


def score(predictions: Path, measurements: Path) -> None:
    """Print error, bias and coverage by kind of case, and every case."""
    both = pairs(predictions, measurements)
    console = Console(width=110)
    every = Table("case", "predicted, ms", "measured, ms", "ratio", "inside", "memory")
    for pair in both:
        p, m = pair.predicted, pair.measured
        memory = "–" if not m["memory_bytes"] else f"{p['memory_bytes'] / m['memory_bytes']:.2f}"
        times = (f"{1e3 * row['seconds']:.2f}" for row in (p, m))
        every.add_row(pair.case, *times, f"{pair.ratio:.2f}", "yes" if pair.is_inside else "", memory)
    console.print(every)
    table = Table("of", "cases", "mean error", "bias", "inside the 80 % interval")
    for kind, is_of in KINDS.items():
        own = [pair for pair in both if is_of(pair.case)]
        if not own:
            continue
        errors = np.array([pair.ratio - 1 for pair in own])
        bias, inside = np.expm1(np.log1p(errors).mean()), np.mean([pair.is_inside for pair in own])
        cells = f"{100 * np.abs(errors).mean():.1f} %", f"{100 * bias:+.1f} %", f"{100 * inside:.0f} %"
        table.add_row(kind, str(len(own)), *cells)
    console.print(table)


def _batch(name: str) -> int:
    return int(name.split("batch ")[1].split(",")[0])


def _is(mode: str, low: int, high: int) -> Callable[[str], bool]:
    return lambda name: mode in name and low <= _batch(name) <= high


KINDS: dict[str, Callable[[str], bool]] = {
    "inference, batch 8 and less": _is("inference", 1, 8),
    "inference, larger": _is("inference", 9, 10**6),
    "training, batch 16 and less": _is("training", 1, 16),
    "training, larger": _is("training", 17, 10**6),
    "eager": lambda name: not name.endswith(("compiled", "graphs")),
    "compiled": lambda name: name.endswith("compiled"),
    "CUDA graphs": lambda name: name.endswith("graphs"),
    "fp32": lambda name: ", fp32" in name,
    "tf32": lambda name: ", tf32" in name,
    "fp16": lambda name: ", fp16" in name,
    "bf16": lambda name: ", bf16" in name,
    "all": lambda name: True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("predict", "measure", "score"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--on", default="h100")
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--group", default="all", choices=("all", "steps", "cifar", "compiled"))
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has one of these words")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.what == "predict":
        predict_all(given.group, given.on, given.out)
    elif given.what == "measure":
        measure_all(given.group, given.out, given.seconds, given.only)
    else:
        score(*given.files)


if __name__ == "__main__":
    main()
