"""FLOP counts: Chronograd compared with torchinfo, fvcore, DeepSpeed's profiler and torch's FlopCounterMode.

    python -m benchmarks.counting [--repeats 3] [--json]

Each tool counts each network in a separate process, from the library's constructor to the number. Importing torch and the tool
is not timed. The true value is a hand formula or a published integer, independent of our counter. The row of a tool that fails,
exceeds the limits or is not installed gives the reason.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

NETWORKS = ("resnet50", "vgg19", "efficientnet_b0", "vit_b_16", "llama-7b")
TOOLS = ("chronograd", "flopcounter", "chronograd-forward", "torchinfo", "fvcore", "deepspeed")
SEQUENCE = 2048
LIMIT_BYTES = 12 * 2**30
LIMIT_S = 120


def truth(network: str) -> dict[str, int]:
    """Return MACs of one sample forward and FLOPs of both passes, computed by hand.

    The backward pass costs twice the forward pass, except that the first convolution needs no gradient of the image.
    """
    if network == "llama-7b":
        layers, d, ffn, vocabulary, t = 32, 4096, 11008, 32000, SEQUENCE
        macs = t * (layers * (4 * d * d + 3 * d * ffn) + vocabulary * d) + layers * 2 * t * t * d
        return {"forward": 2 * macs, "backward": 4 * macs}
    # MACs and the first layer's share. ResNet-50 (v1.5) and VGG-19: published in torchvision's documentation to four digits,
    # and layer sums; the others are summed below.
    macs, stem = {
        "resnet50": (4_089_184_256, 112 * 112 * 64 * 3 * 49),
        "vgg19": (19_632_062_464, 224 * 224 * 64 * 27),
        "vit_b_16": _vit_b_16(),
        "efficientnet_b0": _efficientnet_b0(),
    }[network]
    return {"forward": 2 * macs, "backward": 4 * macs - 2 * stem}


def _vit_b_16() -> tuple[int, int]:
    """Return counts for 14 × 14 patches and a class token, 12 layers of width 768, heads of 64, head to 1000."""
    tokens, d = 14 * 14 + 1, 768
    layer = tokens * (3 * d * d + d * d + 2 * d * 4 * d) + 2 * tokens * tokens * d
    stem = 14 * 14 * d * 3 * 16 * 16
    return stem + 12 * layer + d * 1000, stem


def _efficientnet_b0() -> tuple[int, int]:
    """Return counts for inverted residuals: expansion, depthwise, squeeze and excitation (1/4 of the block's input),
    projection.
    """
    stem = 112 * 112 * 32 * 27
    total, size, cin = stem, 112, 32
    for expand, kernel, stride, cout, repeats in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
    ):  # fmt: skip
        for i in range(repeats):
            wide, squeezed = cin * expand, max(1, cin // 4)
            total += size * size * cin * wide if expand > 1 else 0
            size //= stride if i == 0 else 1
            total += size * size * wide * kernel * kernel + 2 * wide * squeezed + size * size * wide * cout
            cin = cout
    return total + 7 * 7 * 320 * 1280 + 1280 * 1000, stem


def build(network: str, device: str) -> tuple[Any, Any]:
    """Return the network and an input of one sample."""
    import torch

    if network == "llama-7b":
        from chronograd.models import registry

        return registry.build(network, device=device), torch.zeros((1, SEQUENCE), dtype=torch.int64, device=device)
    import torchvision

    with torch.device(device):
        model = torchvision.models.get_model(network, weights=None)
    return model, torch.zeros((1, 3, 224, 224), device=device)


def with_chronograd(network: str) -> dict[str, int]:
    from chronograd.count.network import trace_network

    trace = trace_network(network if network == "llama-7b" else f"torchvision:{network}")
    return {"forward": trace.flops(1, "forward"), "backward": trace.flops(1, "backward")}


def with_chronograd_forward(network: str) -> dict[str, int]:
    """Return the forward pass alone, as the tools below report it."""
    from chronograd.count.network import trace_network

    name = network if network == "llama-7b" else f"torchvision:{network}"
    return {"forward": trace_network(name, mode="inference").flops(1, "forward")}


def with_torchinfo(network: str) -> dict[str, int]:
    import torchinfo

    model, x = build(network, _place(network))
    found = torchinfo.summary(model, input_data=x, verbose=0, device=_place(network))
    return {"forward": 2 * int(found.total_mult_adds)}


def with_fvcore(network: str) -> dict[str, int]:
    from fvcore.nn import FlopCountAnalysis

    model, x = build(network, _place(network))
    analysis = FlopCountAnalysis(model.eval(), x).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    # fvcore counts a multiply-add as one flop.
    return {"forward": 2 * int(analysis.total())}


def with_deepspeed(network: str) -> dict[str, int]:
    from deepspeed.profiling.flops_profiler import get_model_profile

    model, x = build(network, _place(network))
    _, macs, _ = get_model_profile(model, args=[x], print_profile=False, as_string=False, warm_up=0)
    return {"forward": 2 * int(macs)}


def with_flopcounter(network: str) -> dict[str, int]:
    import torch
    import torch.nn.functional as F
    from torch.utils.flop_counter import FlopCounterMode

    model, x = build(network, "meta")
    with FlopCounterMode(display=False) as forward:
        out = model(x)
    scores = out.flatten(0, -2)
    target = torch.zeros(scores.shape[0], dtype=torch.int64, device="meta")
    loss = F.cross_entropy(scores, target)
    with FlopCounterMode(display=False) as backward:
        loss.backward()  # type: ignore[no-untyped-call]
    return {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def _place(network: str) -> str:
    """Return the device: CPU for tools that need real tensors, meta for the large transformer, which would need 27 GB."""
    return "meta" if network == "llama-7b" else "cpu"


COUNTERS: dict[str, Callable[[str], dict[str, int]]] = {
    "chronograd": with_chronograd,
    "chronograd-forward": with_chronograd_forward,
    "torchinfo": with_torchinfo,
    "fvcore": with_fvcore,
    "deepspeed": with_deepspeed,
    "flopcounter": with_flopcounter,
}
# Modules of each tool, imported before its clock starts.
IMPORTS = {
    "chronograd": ("chronograd.models.registry", "chronograd.count.network"),
    "chronograd-forward": ("chronograd.models.registry", "chronograd.count.network"),
    "torchinfo": ("torchinfo",),
    "fvcore": ("fvcore.nn",),
    "deepspeed": ("deepspeed.profiling.flops_profiler",),
    "flopcounter": ("torch.utils.flop_counter",),
}


def child(tool: str, network: str) -> None:
    """Count once and print JSON."""
    import torch
    import torchvision  # noqa: F401

    resource.setrlimit(resource.RLIMIT_AS, (4 * LIMIT_BYTES, 4 * LIMIT_BYTES))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for module in IMPORTS[tool]:  # import everything before the clock starts
        importlib.import_module(module)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = COUNTERS[tool](network)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("RESULT " + json.dumps({**found, "cpu_s": seconds, "peak_bytes": peak * 1024, "base_bytes": before * 1024}))


def run(tool: str, network: str, repeats: int) -> dict[str, Any]:
    """Return medians over repeats and errors against the true value, or the reason for a failure."""
    rows = []
    for _ in range(repeats):
        command = [sys.executable, "-m", "benchmarks.counting", "--child", tool, network]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"tool": tool, "network": network, "reason": f"over {LIMIT_S} s"}
        line = next((text for text in done.stdout.splitlines() if text.startswith("RESULT ")), None)
        if line is None:
            last = [text for text in done.stderr.strip().splitlines() if text.strip()] or ["no output"]
            return {"tool": tool, "network": network, "reason": last[-1][:90]}
        rows.append(json.loads(line[7:]))
    right = truth(network)
    errors = {k: rows[0][k] / right[k] - 1 for k in ("forward", "backward") if k in rows[0]}
    return {
        "tool": tool,
        "network": network,
        "cpu_s": statistics.median(r["cpu_s"] for r in rows),
        "cpu_s_range": [min(r["cpu_s"] for r in rows), max(r["cpu_s"] for r in rows)],
        "added_bytes": statistics.median(r["peak_bytes"] - r["base_bytes"] for r in rows),
        "peak_bytes": statistics.median(r["peak_bytes"] for r in rows),
        "flops": {k: rows[0][k] for k in errors},
        "error": errors,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    lines = ["| network | counter | CPU s (range) | peak memory | forward error | backward error |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for r in rows:
        if "reason" in r:
            lines.append(f"| {r['network']} | {r['tool']} | – | – | {r['reason'].replace('|', '/')} | |")
            continue
        low, high = r["cpu_s_range"]
        errors = [_error(r["error"].get(k)) for k in ("forward", "backward")]
        lines.append(
            f"| {r['network']} | {r['tool']} | {r['cpu_s']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{r['peak_bytes'] / 1e6:,.0f} MB | {errors[0]} | {errors[1]} |"
        )
    return "\n".join(lines)


def _error(value: float | None) -> str:
    return "not given" if value is None else "exact" if value == 0 else f"{100 * value:+.2f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--networks", nargs="*", default=NETWORKS, choices=NETWORKS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    rows = [run(tool, network, arguments.repeats) for network in arguments.networks for tool in TOOLS]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(table(rows))
    print(
        f"\nPython {platform.python_version()}, one thread, medians of {arguments.repeats}; importing is not counted."
    )


if __name__ == "__main__":
    main()
