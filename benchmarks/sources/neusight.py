"""NeuSight's labels: full transformers in fp32, predicted from single kernels, and from other devices.

First, fifty kernels of a device, with a fixed number of each kind drawn by a seed, calibrate it. The networks are traced and
predicted. Then each device is left out and predicted from its datasheet and the efficiency of the other devices' kernels.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels import (
    batched_gemm,
    elementwise,
    layer_norm,
    linear,
    softmax,
    spread_rates,
)
from benchmarks.sources import Row, row_of
from chronograd.count.cached import cached_trace
from chronograd.fit.device import Sample, fit_calibration
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device, Node
from chronograd.hardware.hosts import host_of
from chronograd.predict.calibration import HOST_SIGMA, Calibration, from_datasheet
from chronograd.predict.collectives import ring
from chronograd.predict.compute import Work
from chronograd.predict.relatives import lent
from chronograd.record import Z80
from chronograd.trace import Trace

NUM_KERNELS = 50
SEEDS = range(3)
# The number of kernels of each kind among the fifty: most of a transformer is matrix work.
KINDS = {"bmm": 15, "linear": 20, "ln": 5, "softmax": 5, "elementwise": 5}
Line = dict[str, str]


@dataclass(frozen=True)
class Label:
    """One timed network. `seconds` is of forward, or of forward and backward; `devices` of four GPUs."""

    device: str
    name: str
    trace: Trace
    batch: int
    option: str
    seconds: float


def rows(folder: Path) -> list[Row]:
    """Return rows for devices calibrated on their kernels, then for every device left out. Empty if the tables are missing."""
    path = folder / "neusight"
    if not (path / "model_latency_labels.csv").exists():
        return []
    lines, kernels, labels = _devices(path), _kernels(path), _labels(path)
    devices = {key: _device(line) for key, line in lines.items()}
    within, left_out = _Cases(), _Cases()
    for seed in SEEDS:
        fitted = {
            key: _with_host(
                spread_rates(fit_calibration(_chosen(samples, seed), _sheet(devices[key], lines[key]))), devices[key]
            )
            for key, samples in kernels.items()
            if key in devices
        }
        guessed = {
            key: lent(
                device,
                _with_host(_sheet(device, lines[key]), device),
                [(devices[other], c) for other, c in fitted.items() if other != key],
            )[0]
            for key, device in devices.items()
        }
        for label in labels:
            own = _key(label.device)
            for cases, known in ((within, fitted), (left_out, guessed)):
                if own in known:
                    cases.add(label, _seconds(label, known[own], devices[own]), seed)
    found = []
    for cases, rule, aim in (
        (within, f"{NUM_KERNELS} kernels of the device predict whole networks", 0.09),
        (left_out, "each device left out: its data sheet and the utilization of other GPUs' kernels", 0.14),
    ):
        if cases.ratios:
            found.append(cases.row(rule, aim))
    return found


def calibrated(folder: Path, num_kernels: int = 500) -> dict[str, Calibration]:
    """Return calibrations to ship: by name in the catalogue, each fitted to `num_kernels` kernels.

    The spread comes from full networks on all devices, because single kernels understate it.
    """
    path = folder / "neusight"
    if not (path / "model_latency_labels.csv").exists():
        return {}
    lines, kernels = _devices(path), _kernels(path)
    found: dict[str, tuple[str, Calibration]] = {}
    for key, samples in kernels.items():
        name = _catalogued(key)
        if key in lines and name is not None:
            prior = _without_host(from_datasheet(catalog.device(name)))
            rates = spread_rates(fit_calibration(_chosen(samples, 0, num_kernels), prior))
            found[key] = name, _with_host(rates, catalog.device(name))
    errors = [
        abs(np.log(_seconds(label, found[key][1], _device(lines[key])) / label.seconds))
        for label in _labels(path)
        if (key := _key(label.device)) in found
    ]
    sigma = float(np.quantile(errors, 0.8)) / Z80
    provenance = {"table": "neusight/kernels_*.csv", "error_of_whole_networks": sigma}
    return {name: replace(c, sigma=sigma, provenance={**c.provenance, **provenance}) for name, c in found.values()}


@cache
def _catalogued(key: str) -> str | None:
    """Return the catalogue's name of a device that has all words of the key."""
    words = set(key.split("-"))
    matches = [(len(n), d.name) for d in catalog.devices() for n in _names(d) if words == n or n > words]
    exact = [(len(n), d.name) for d in catalog.devices() for n in _names(d) if n <= words]
    if exact:
        return max(exact)[1]
    return min(matches)[1] if matches else None


class _Cases:
    def __init__(self) -> None:
        self.labels: list[Label] = []
        self.ratios: list[float] = []
        self.seeds: list[int] = []

    def add(self, label: Label, seconds: float, seed: int) -> None:
        self.labels.append(label)
        self.ratios.append(seconds / label.seconds)
        self.seeds.append(seed)

    def row(self, rule: str, aim: float) -> Row:
        ratios, seeds = np.array(self.ratios), np.array(self.seeds)
        error = np.abs(ratios - 1)
        groups = {
            "device": [_catalogued(_key(label.device)) or _key(label.device) for label in self.labels],
            "mode": [label.trace.mode + " " + label.option for label in self.labels],
        }
        return row_of(
            "NeuSight",
            rule,
            aim,
            [f"{label.device} {label.name}" for label in self.labels],
            ratios,
            self._inside(),
            by_seed=tuple(float(error[seeds == s].mean()) for s in sorted(set(self.seeds))),
            groups=groups,
        )

    def _inside(self) -> list[bool]:
        """Return whether each case is in the interval from the errors on the other devices' networks."""
        log_error = np.abs(np.log(self.ratios))
        devices = np.array([_key(label.device) for label in self.labels])
        half = {d: np.quantile(log_error[devices != d], 0.8) for d in set(devices.tolist()) if (devices != d).any()}
        return [bool(e <= half.get(d, 0.0)) for e, d in zip(log_error, devices.tolist(), strict=True)]


# -- predictions ------------------------------------------------------------------------------------


def _seconds(label: Label, calibration: Calibration, device: Device) -> float:
    """Return the seconds of one pass. Of four GPUs, data-parallel ones share the batch; pipeline stages with one micro-batch
    take turns.
    """
    devices = 4 if label.option == "dp4" else 1
    work = Work.of(label.trace, label.batch / devices, is_compiled=label.option == "fusion")
    seconds = work.total_seconds(calibration)
    if devices > 1:
        # Gradients are sent during backward, two thirds of the step.
        link = catalog.link(device.node.intra_link)
        message = 4 * label.trace.trained_params
        exchange = float(ring(message, devices, link.latency_s, link.bandwidth_bytes_per_s))
        seconds += max(0.0, exchange - 2 / 3 * seconds)
    return seconds


def _chosen(samples: dict[str, list[Sample]], seed: int, num_kernels: int = NUM_KERNELS) -> list[Sample]:
    """Return the kernels to fit: the fixed share of each kind that the device has."""
    rng = np.random.default_rng(seed)
    present = [kind for kind in KINDS if samples.get(kind)]
    total = sum(KINDS[kind] for kind in present)
    counts = {kind: round(num_kernels * KINDS[kind] / total) for kind in present}
    return [samples[kind][i] for kind in present for i in rng.permutation(len(samples[kind]))[: counts[kind]]]


# -- tables -----------------------------------------------------------------------------------------


def _key(device: str) -> str:
    """Return one name for all spellings of a device: its words without the maker's, in alphabetical order.

    >>> _key("NVIDIA_A100-PCIE-40GB") == _key("A100-40GB-PCIe")
    True
    """
    words = re.split(r"[ _-]+", device.lower())
    return "-".join(sorted(w.removesuffix("gb") for w in words if w not in ("nvidia", "tesla", "amd", "instinct")))


def _names(device: Device) -> list[set[str]]:
    """Return the words of every name of a device in the catalogue."""
    return [set(_key(name).split("-")) for name in (device.name, *device.aliases)]


def _read(path: Path) -> list[Line]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _devices(path: Path) -> dict[str, Line]:
    return {_key(line["Device"]): line for line in _read(path / "device_specs.csv")}


def _device(line: Line) -> Device:
    """Return the device as the source describes it; power, year and links are from the catalogue if it has the device."""
    words = set(_key(line["Device"]).split("-"))
    named = [(max(len(n) * (words >= n) for n in _names(d)), d) for d in catalog.devices()]
    size, best = max(named, key=lambda pair: pair[0])
    like = best if size else None
    return Device(
        name=_key(line["Device"]),
        title=line["Device"],
        kind="gpu",
        memory_bytes=int(float(line["Dev_Mem"])) * 10**9,
        bandwidth_bytes_per_s=1e9 * float(line["Mem_Bw"]),
        l2_bytes=int(float(line["L2Cache"])) * 2**20,
        num_units=int(line["Num_Sm"]),
        peak_flops_per_s={"fp32": 1e9 * float(line["SingleFLOPs"] or line["SingleFLOPsVEC"])},
        tdp_w=like.tdp_w if like else None,
        year=like.year if like else None,
        node=like.node if like else Node(devices_per_node=4, intra_link="pcie3", inter_link="ethernet-10g"),
    )


def _sheet(device: Device, line: Line) -> Calibration:
    """Return the calibration for kernels. Some devices have matrix units for fp32 that are faster than their vector units."""
    sheet = _without_host(from_datasheet(device))
    return replace(sheet, peak_flops_per_s=1e9 * float(line["SingleFLOPs"] or line["SingleFLOPsMM"]))


def _without_host(calibration: Calibration) -> Calibration:
    """Return a calibration without host time: kernels are timed individually on the device."""
    return replace(calibration, host_launch_s=0.0, host_sigma=0.0)


def _with_host(calibration: Calibration, device: Device) -> Calibration:
    """Return a calibration with the time of the device's usual host, which kernel timings do not contain."""
    return replace(calibration, host_launch_s=host_of(device).launch_s(None), host_sigma=HOST_SIGMA)


def _kernels(path: Path) -> dict[str, dict[str, list[Sample]]]:
    """Return samples by device and kind."""
    found: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for name in ("kernels_gemm.csv", "kernels_vector.csv"):
        if (path / name).exists():
            for line in _read(path / name):
                kind = line["op"] if line["op"] in KINDS else "elementwise"
                found[_key(line["device"])][kind].append(_sample(line))
    return found


def _sample(line: Line) -> Sample:
    batch, op = int(line["B"]), line["op"]
    if op in ("bmm", "linear"):
        m, n, k = (int(line[name]) for name in ("M", "N", "K"))
        work = Work.of(batched_gemm(m, k, n), batch) if op == "bmm" else Work.of(linear(k, n), batch * m)
    else:
        width = int(line["H"])
        # `addu` adds a number; relu, gelu and tanh also take one tensor.
        num_inputs = 2 if op in ("add", "mul", "pow", "div") else 1
        trace = {"ln": layer_norm, "softmax": softmax}.get(op, lambda w: elementwise(op, w, num_inputs))(width)
        work = Work.of(trace, batch)
    return Sample(work, float(line["latency_ms"]) / 1e3, f"{op} {batch}")


def _labels(path: Path) -> list[Label]:
    """Return the networks that are traced here. Tensor parallelism is not predicted."""
    found = []
    for line in _read(path / "model_latency_labels.csv"):
        config = path / "model_configs" / f"{line['model']}.json"
        if line["option"] == "tp4" or not config.exists():
            continue
        trace = _trace(config, int(line["seqlen"]), "training" if line["mode"] == "train" else "inference")
        name = f"{line['model']} {line['mode']} {line['seqlen']}x{line['batch']} {line['option']}"
        seconds = float(line["e2e_latency_ms"]) / 1e3
        if trace is not None:
            found.append(Label(line["device"], name, trace, int(line["batch"]), line["option"], seconds))
    return found


# Our options that a configuration sets, by its family.
_OPTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "bert": (
        "bert-large",
        {
            "layers": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "ffn": "intermediate_size",
            "vocab": "vocab_size",
            "sequence": "max_position_embeddings",
        },
    ),
    "gpt2": (
        "gpt2-large-eager",
        {"layers": "n_layer", "width": "n_embd", "heads": "n_head", "vocab": "vocab_size", "sequence": "n_positions"},
    ),
    "opt": (
        "opt-1.3b",
        {
            "layers": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "ffn": "ffn_dim",
            "vocab": "vocab_size",
            "sequence": "max_position_embeddings",
        },
    ),
    "switch_transformers": (
        "switch-xl-4",
        {
            "layers": "num_layers",
            "width": "d_model",
            "heads": "num_heads",
            "head_size": "d_kv",
            "ffn": "d_ff",
            "num_experts": "num_experts",
            "capacity": "expert_capacity",
            "vocab": "vocab_size",
        },
    ),
}


@cache
def _trace(config: Path, sequence: int, mode: str) -> Trace | None:
    said: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    if said["model_type"] not in _OPTIONS:
        return None
    network, names = _OPTIONS[said["model_type"]]
    options = {ours: said[theirs] for ours, theirs in names.items()}
    if network == "bert-large" and mode == "inference":
        # The source ran BERT inference with a sequence classifier, and trained BERT with its language-model head.
        options["classes"] = 2
    return cached_trace(network, options, input_shape=(sequence,), mode=mode)
