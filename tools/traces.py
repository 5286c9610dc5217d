"""Write the traces that are part of the package: `python tools/traces.py [NAME...]`, all networks by default.

Adds names of torchvision or timm that `src/chronograd/models/libraries.csv` lacks. Needs the extra `timm`. Every network is
counted at the shapes and classes that commands need without further options: its defaults, those of its usual data set, and the
image sizes of its published recipes. Files whose traces did not change stay unchanged.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from chronograd import known  # noqa: E402
from chronograd.ask import ask  # noqa: E402
from chronograd.count import packaged  # noqa: E402
from chronograd.count.network import trace_network  # noqa: E402
from chronograd.count.packed import of_tables, tables  # noqa: E402
from chronograd.data.datasets import card  # noqa: E402
from chronograd.models import names, registry  # noqa: E402
from chronograd.trace import CONV_KINDS, Trace  # noqa: E402

MODELS = ROOT / "src" / "chronograd" / "models"


def main() -> None:
    add(name for name in sys.argv[1:] if ":" in name)
    for name in sys.argv[1:] or [*names.zoo(), *names.packaged()]:
        write(name)


def add(new: Any) -> None:
    """Add networks of the libraries to libraries.csv, with the shape of a sample and the number of classes."""
    rows = {name: (one.shape, one.classes) for name, one in names.packaged().items()}
    rows |= {name: (registry.spec(name).required_input_shape(), registry.spec(name).num_classes) for name in new}
    with (MODELS / "libraries.csv").open("w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(("name", "shape", "classes"))
        table.writerows((name, "x".join(map(str, shape)), classes) for name, (shape, classes) in sorted(rows.items()))
    names.packaged.cache_clear()


def write(name: str) -> None:
    """Count a network in all its settings, and write its file unless the one that exists holds the same data."""
    traces: list[tuple[dict[str, Any], Trace]] = []
    for settings in settings_of(name):
        trace = trace_network(name, **settings)
        traces.append((settings, of_tables(tables(trace))))
        if trace.select(kinds=CONV_KINDS):  # otherwise the memory layout changes nothing
            last = settings | {"channels_last": True}
            traces.append((last, of_tables(tables(trace_network(name, **last)))))
    path = MODELS / "traces" / f"{name.replace(':', '-')}.xz"
    is_same = path.exists() and [without_versions(one) for _, one in traces] == [
        without_versions(packaged.find(name, None, settings)) for settings, _ in traces
    ]
    if not is_same or packaged.settings_of(name) != [settings for settings, _ in traces]:
        packaged.write(MODELS / "traces", name, traces)
    print(f"{name}: {len(traces)} traces, {path.stat().st_size:,} bytes{', as before' if is_same else ''}", flush=True)


def settings_of(name: str) -> list[dict[str, Any]]:
    """Return the settings of the traces of a network in one layout: training at every size, inference at the first two."""
    network = names.known(name)
    assert network is not None
    data = card(ask(name).job.data)
    classes = network.classes and data.num_classes
    own = dict.fromkeys([(network.shape, network.classes), (tuple(data.shape), classes)])
    results = known.known(name, known.data_of(name) or "")
    others = [((network.shape[0], one.image_size, one.image_size), classes) for one in results if one.image_size]
    return [
        {"input_shape": list(shape), "num_classes": num_classes, "mode": mode, "channels_last": False}
        for mode, kinds in (("training", dict.fromkeys([*own, *others])), ("inference", own))
        for shape, num_classes in kinds
    ]


def without_versions(trace: Trace | None) -> dict[str, Any]:
    return {} if trace is None else {**trace.to_json(), "versions": None}


if __name__ == "__main__":
    main()
