"""Table of the networks that export to ONNX, with the error of ONNX Runtime against PyTorch and the reasons of failures.

    python -m benchmarks.onnx_zoo [--seconds 100]                 measure networks without saved results, and save
    python -m benchmarks.onnx_zoo NETWORK ...                     measure these networks again
    python -m benchmarks.onnx_zoo --page docs/exporting.md        write the page's table from the saved results

Weights are initial ones of seed 0, with the statistics of a random batch in each normalisation. Weights that start at 0 are random:
otherwise many outputs would be bias only, which any export gets right. Inputs are 4 random samples in batches of 1, 3 and 4, opset 20.
Networks with more than a few hundred million parameters have fewer layers, and their row states this. Their layers are identical, so
two layers show whether all of them export.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from chronograd import ask
from chronograd.deploy import export_source, parity
from chronograd.deploy.export import EXAMPLES, OPSET, write_onnx
from chronograd.errors import ChronogradError, ExportError
from chronograd.models import names
from chronograd.units import memory

SAVED = Path(__file__).parent / "results" / "onnx_zoo.json"
HEADING = "## Networks"
BATCHES = (1, 3, 4)
SAMPLES = 4
WEIGHT = 0.02  # standard deviation of weights that are initially 0
MAX_LETTERS = 140  # of a reason
# Options for networks too large to build here in full, and shorter texts.
TWO_LAYERS = ("network.options.layers=2",)
SMALLER: Mapping[str, Sequence[str]] = {
    "bert-large": (*TWO_LAYERS, "data.shape=[128]"),
    "gpt2-small": (*TWO_LAYERS, "data.shape=[128]"),
    "gpt2-large-eager": (*TWO_LAYERS, "data.shape=[128]"),
    "llama-7b": (*TWO_LAYERS, "data.shape=[128]", "network.options.width=512", "network.options.ffn=1376"),
    "opt-1.3b": (*TWO_LAYERS, "data.shape=[128]"),
    "switch-xl-4": (*TWO_LAYERS, "data.shape=[128]", "network.options.width=256", "network.options.ffn=1024"),
}
# Parts of a network, which do not take samples of a data set.
LEFT_OUT = ("inception-naive", "inception-reduced")
TORCHVISION = """
    alexnet vgg11_bn resnet18 resnext50_32x4d wide_resnet50_2 densenet121 squeezenet1_1 googlenet inception_v3
    mobilenet_v2 mobilenet_v3_small mnasnet0_5 shufflenet_v2_x0_5 efficientnet_b0 efficientnet_v2_s regnet_y_400mf
    convnext_tiny vit_b_32 swin_t swin_v2_t maxvit_t ssdlite320_mobilenet_v3_large
"""
TIMM = """
    resnet18 efficientnet_lite0 mobilenetv4_conv_small convnextv2_atto deit_tiny_patch16_224 mixer_s32_224
    gmlp_s16_224 poolformer_s12 coat_tiny levit_128s xcit_nano_12_p16_224 volo_d1_224 halonet26t tresnet_m
    nfnet_f0 dm_nfnet_f0 mobilevit_xxs edgenext_xx_small
"""
OTHERS = (*(f"torchvision:{name}" for name in TORCHVISION.split()), *(f"timm:{name}" for name in TIMM.split()))


def networks() -> list[str]:
    return [*(name for name in names.zoo() if name not in LEFT_OUT), *OTHERS]


def measure(network: str, fields: Sequence[str] = ()) -> dict[str, Any]:
    """Return the row of a network: parity, or `reason` if it does not export."""
    row: dict[str, Any] = {"network": network, "changed": list(fields), "reason": None}
    begun = time.perf_counter()
    try:
        source = export_source.of_job(ask.job_of(network, fields), network)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.onnx"
            as_if_trained(source.network, source.random(SAMPLES, None).fed)
            graph = write_onnx(source.network, source.random(EXAMPLES, None).fed, path, opset=OPSET)
            seconds = time.perf_counter() - begun
            same = parity.compare(path, source.network, [source.random(SAMPLES, None)], batches=BATCHES)
    except ExportError as error:
        return {**row, "reason": error.message}
    except ChronogradError as error:
        return {**row, "reason": f"not asked: {error.message}"}
    return {
        **row,
        "reason": same.failure or None,
        "bytes": graph.num_bytes,
        "operators": sum(graph.operators.values()),
        "export_s": round(seconds, 1),
        "holds": same.holds,
        "tightest": same.tightest,
        "absolute": max((one.largest_absolute for one in same.differences), default=None),
        "relative": max((one.largest_relative for one in same.differences), default=None),
        "size": max((one.largest_output for one in same.differences), default=None),
        "ulp": max((one.largest_ulp for one in same.differences), default=None),
        "own": None if same.holds or same.failure else own_rounding(source.network, source.random(SAMPLES, None).fed),
    }


def own_rounding(network: nn.Module, fed: Tensor) -> float:
    """Return the largest difference between PyTorch's outputs in float32 and float64, without ONNX."""
    with torch.no_grad():
        single = tree_leaves(network(fed))
        double = tree_leaves(network.double()(fed.double() if fed.is_floating_point() else fed))
    return max(float((one - other).abs().max()) for one, other in zip(single, double, strict=True))


def as_if_trained(network: nn.Module, fed: Tensor) -> None:
    """Make outputs depend on inputs: give normalisations the statistics of this batch, and zero weights random values."""
    for weights in network.parameters():
        if weights.dim() > 1 and not weights.any():
            nn.init.normal_(weights, std=WEIGHT)
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.reset_running_stats()
            module.momentum = None  # the mean of all batches; there is only one batch
            module.train()
    with torch.no_grad():
        network(fed)
    network.eval()


def page(rows: Sequence[Mapping[str, Any]], versions: Mapping[str, str]) -> str:
    """Return the section about networks, with the failures first."""
    failing = [row for row in rows if row["reason"]]
    done = [row for row in rows if not row["reason"]]
    beyond = [row for row in done if not row["holds"]]
    left = len(set(networks()) - {row["network"] for row in rows})
    lines = [
        HEADING,
        "",
        f"{len(done)} of {len(rows)} networks export, and {len(done) - len(beyond)} of them meet the default tolerance on random inputs. "
        "They have initial weights and the normalisation of a random batch.",
        f"`python -m benchmarks.onnx_zoo` tests them{f'; without a result yet: {left}' if left else ''} "
        f"({', '.join(f'{name} {version}' for name, version in versions.items())}; opset {OPSET}).",
    ]
    if failing:
        lines += ["", "| does not export | reason | message of PyTorch |", "|---|---|---|"]
        lines += [f"| {_name(row)} | {_cause(row['reason'])} | {_cell(row['reason'])} |" for row in failing]
    if beyond:
        lines += [
            "",
            "These networks exceed the tolerance. Their error is compared with PyTorch's own error in float32 (against float64):",
            "",
            "| exceeds the tolerance | error | largest output | PyTorch's own error |",
            "|---|---:|---:|---:|",
            *map(_beyond, beyond),
        ]
    lines += [
        "",
        "The largest error is over all values; the next column divides it by the largest output. The last column divides the error of the",
        "worst value by its tolerance, `1e-5 + 1e-3 · |output|`; bold values exceed the tolerance.",
        "",
        "| exports | operators | file | largest error | error / largest output | error / tolerance |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in done:
        share = "–" if row["tightest"] is None else f"{row['tightest']:.2g}"
        share = share if row["holds"] else f"**{share}**"
        of_size = f"{row['absolute'] / row['size']:.1g}" if row.get("size") else "–"
        lines.append(
            f"| {_name(row)} | {row['operators']:,} | {memory(row['bytes'])} | {row['absolute']:.1g} | {of_size} | {share} |"
        )
    return "\n".join(lines) + "\n"


# The meaning of an exporter's messages.
CAUSES = {
    "GuardOnDataDependent|data-dependent|UnsupportedDataDependent": "the amount of computation depends on values of a tensor",
    "one size of batch only|static shape|specializ|ConstraintViolation|Not all values of batch": "the batch size is fixed",
    "does not export|not supported|No decomposition|UnsupportedOperator|no ONNX function|DispatchError": "ONNX has no such operator",
    "unstable|Proxy|TorchFunctionMode|fake tensor|FakeTensor": "it reads values of tensors during the capture",
}


def _cause(reason: str) -> str:
    return next((words for pattern, words in CAUSES.items() if re.search(pattern, reason)), "")


def _beyond(row: Mapping[str, Any]) -> str:
    """Return the row of a network that exceeds the tolerance."""
    return f"| {_name(row)} | {row['absolute']:.1g} | {row['size']:.3g} | {row['own']:.1g} |"


def _name(row: Mapping[str, Any]) -> str:
    options = [text.removeprefix("network.options.").removeprefix("data.") for text in row["changed"]]
    return f"`{row['network']}`" + (f", {', '.join(options)}" if options else "")


def _cell(text: str) -> str:
    short = " ".join(text.removeprefix("the network cannot be exported: ").split())
    return (short if len(short) <= MAX_LETTERS else f"{short[:MAX_LETTERS]} …").replace("|", "\\|")


def versions() -> dict[str, str]:
    from chronograd.measure.environment import version_of

    return {name: version_of(name) for name in ("torch", "onnx", "onnxscript", "onnxruntime", "torchvision", "timm")}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--saved", type=Path, default=SAVED)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no network after this time")
    options = parser.parse_args(argv)
    saved = json.loads(options.saved.read_text()) if options.saved.exists() else {"versions": {}, "rows": []}
    if options.page:
        before = options.page.read_text().partition(f"\n{HEADING}\n")[0].rstrip("\n")
        options.page.write_text(f"{before}\n\n{page(saved['rows'], saved['versions'])}")
        return 0
    rows = {row["network"]: row for row in saved["rows"]}
    begun = time.perf_counter()
    is_whole = {name for name, row in rows.items() if row["reason"] or "size" in row}
    for network in options.networks or [name for name in networks() if name not in is_whole]:
        if time.perf_counter() - begun > options.seconds:
            break
        row = rows[network] = measure(network, SMALLER.get(network, ()))
        print(network, row["reason"] or f"{row['absolute']:.2g}, {row['tightest']} of the tolerance", flush=True)
        order = {name: number for number, name in enumerate(networks())}
        ordered = sorted(rows.values(), key=lambda one: order.get(one["network"], len(order)))
        options.saved.write_text(json.dumps({"versions": versions(), "rows": ordered}, indent=1) + "\n")
        gc.collect()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
