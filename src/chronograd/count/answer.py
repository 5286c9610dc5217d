"""The answer of `count` for a trace: totals, layers, and on demand the formulas with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.count.folding import REPEATED, at_depth, folded
from chronograd.count.layers import Counted, CountedLayer, summary
from chronograd.figure import SERIES_COLORS, Bar, Bars, Figure
from chronograd.trace import Trace
from chronograd.units import memory, percent, si
from chronograd.words import how_many, kind_name, listed

# Maximum of bars in a figure; the table and the data have all layers.
MAX_BARS = 12
_MOST_KINDS = 7  # readers cannot distinguish more colours than this; the rest is "other"
_COUNTED = {"params": "params", "macs": "MACs", "activations": "activations"}


def count(
    trace: Trace, batch: int = 1, optimizer: str = "sgd-momentum", *, with_work: bool = False, depth: int | None = None
) -> Answer[Counted]:
    """Return parameters, MACs, FLOPs, activations and memory, in total and by layer.

    Args:
        batch: samples of a step; ignored for a trace of a fixed batch.
        optimizer: the optimizer whose state counts as memory.
        with_work: also include each layer's formulas with its numbers.
        depth: of modules in the table: 1 for the network's direct children; layers by default. Data always have all layers.
    """
    counted = summary(trace, trace.fixed_batch or batch, optimizer)
    sections = [_totals(counted), _layers(counted.layers, counted.macs, depth, trace.modules)]
    if with_work:
        sections.append(_work(counted.layers))
    else:
        for row in counted.layers:
            row.work = None
    return Answer(f"Work of {trace.network}", sections=sections, notes=counted.notes, result=counted)


def _totals(counted: Counted) -> Section:
    n = "{:,}".format
    least = "at least " if counted.is_lower_bound else ""
    keras = " + ".join(f"{count:,} {name}" for name, count in counted.params_keras_parts.items())
    share, forward, backward = counted.conv_share, counted.flops_forward, counted.flops_backward
    rows = [
        ("parameters", n(counted.params), f"{n(counted.weights)} without biases"),
        ("parameters, as Keras counts", n(counted.params_keras), keras),
        ("MACs", least + n(counted.macs), "" if share is None else f"{100 * share:.3f} % in convolutions"),
        ("FLOPs forward", least + n(forward), "2 × MACs"),
        ("FLOPs backward", least + n(backward), f"{backward / forward:.3f} × forward" if forward else ""),
        ("vector FLOPs", n(counted.vector_flops_forward), "forward, everything except matrix work"),
        ("activations", n(counted.activations), "input, convolutions, linear layers, attention, pooling"),
        ("peak memory", memory(counted.memory_bytes), _memory(counted)),
    ]
    if counted.params_keras == counted.params:
        del rows[1]
    shape = ", ".join(" × ".join(map(str, sizes)) or "one number" for sizes in counted.input_shapes)
    passes = "forward and backward take" if backward else "forward takes"
    return Section(
        title=f"{counted.network}, input {shape}, {counted.mode}",
        takeaway=f"{si(counted.params)} parameters; {passes} {least}{si(forward + backward, 'FLOP')} "
        f"and {memory(counted.memory_bytes)} at batch {counted.batch}.",
        lines=[
            f"not counted: {name}, {times} {'time' if times == 1 else 'times'} (its bytes are)"
            for name, times in counted.uncounted.items()
        ],
        table=Table(("total", "", ""), rows, {1}),
        caption=counted.convention,
    )


def _layers(rows: Sequence[CountedLayer], macs: int, depth: int | None, modules: Mapping[str, str]) -> Section:
    largest = sorted((row for row in rows if row.macs), key=lambda row: -row.macs)
    bars = [Bar(_name(row), "predicted", {row.kind: float(row.macs)}) for row in largest[:MAX_BARS]]
    takeaway = "No layer has matrix work."
    if largest:
        half = next(n for n, done in enumerate(accumulate(row.macs for row in largest), 1) if 2 * done >= macs)
        takeaway = (
            f"{half} of {how_many(len(rows), 'layers')} {'does' if half == 1 else 'do'} half of the MACs or more; the largest is "
            f"{_name(largest[0])} ({largest[0].kind}) with {percent(largest[0].macs / macs)}."
        )
    shown = folded(rows if depth is None else at_depth(rows, depth, modules), modules)
    return Section(
        title="Layers",
        takeaway=takeaway,
        figure=Figure([Bars("MACs", "layer", bars)]) if bars else None,
        table=Table.of(
            shown,
            _LAYER,
            [REPEATED] if any(" × " in row.name for row in shown) else [],
            drop=("stride", "field", "activations", "output"),
        ),
    )


def _work(rows: Sequence[CountedLayer]) -> Section:
    shown = [row for row in rows if row.work]
    return Section(
        title="Formulas",
        takeaway=f"{len(shown)} of {len(rows)} layers have their own parameters, work or output.",
        lines=[line for row in shown for line in (_name(row), *(f"  {line}" for line in row.work or ()))],
    )


def _name(row: CountedLayer) -> str:
    name = row.name or "(network)"
    return f"{name} (call {row.call + 1})" if row.call else name


def _amount(number: int) -> str:
    return f"{number:,}" if number else ""


def _sizes(sizes: float | str | Sequence[float]) -> str:
    return "×".join(map(str, sizes)) if isinstance(sizes, list) else str(sizes)


_LAYER = (
    Column("layer", _name),
    Column("kind", "kind"),
    Column("output", lambda row: _sizes(row.output_shape)),
    Column("params", "params", format=_amount),
    Column("activations", "activations", format=_amount),
    Column("MACs", "macs", format=_amount),
    Column("field", "receptive_field", format=_sizes, empty=""),
    Column("stride", "stride", format=_sizes, empty=""),
)


def _memory(counted: Counted) -> str:
    roles = vars(counted.memory)
    parts = ("parameters", "gradients", "optimizer_state", "activations")
    text = ", ".join(f"{part.replace('_', ' ')} {memory(roles[part])}" for part in parts if roles[part])
    return f"batch {counted.batch}, {counted.memory.optimizer}: {text}"


# -- next to a measurement of the same job ------------------------------------------------------------


def counts_section(counted: Counted) -> Section:
    """Return parameters, MACs and activations by kind of layer, for the report of a loop."""
    by_kind = {title: _shares(counted.layers, name) for name, title in _COUNTED.items()}
    kinds = _largest(by_kind)
    bars = [Bar(title, "measured", _percentages(shares, kinds)) for title, shares in by_kind.items() if shares]
    colors = {kind: SERIES_COLORS[i % len(SERIES_COLORS)] for i, kind in enumerate([*kinds, "other"])}
    return Section(
        title="The work there is",
        intro=f"Counted from the network itself, {_batch(counted)}; 1 MAC = 2 FLOPs.",
        figure=Figure([Bars("share of the whole network, %", "amount", bars, colors)]) if bars else None,
        caption="Each bar is the whole network, split by kind of layer.",
        table=Table(("quantity", "value"), _count_rows(counted), {1}),
        takeaway=_counts_takeaway(counted, by_kind["MACs"]),
        data=as_json(counted.layers),
    )


def _batch(counted: Counted) -> str:
    return "for one sample" if counted.batch == 1 else f"for a batch of {counted.batch}"


def _shares(layers: Sequence[CountedLayer], name: str) -> dict[str, float]:
    """Return the share of each kind of layer in a total; empty if the total is zero."""
    amounts: dict[str, float] = {}
    for layer in layers:
        kind = kind_name(layer.kind)
        amounts[kind] = amounts.get(kind, 0.0) + float(getattr(layer, name))
    total = sum(amounts.values())
    return {kind: value / total for kind, value in amounts.items()} if total else {}


def _largest(by_kind: Mapping[str, Mapping[str, float]]) -> list[str]:
    best: dict[str, float] = {}
    for shares in by_kind.values():
        for kind, share in shares.items():
            best[kind] = max(best.get(kind, 0.0), share)
    return sorted((k for k, share in best.items() if share > 0.005), key=lambda k: -best[k])[:_MOST_KINDS]


def _percentages(shares: Mapping[str, float], kinds: Sequence[str]) -> dict[str, float]:
    shown = {kind: round(100 * shares[kind], 3) for kind in kinds if shares.get(kind)}
    rest = 100 - sum(shown.values())
    return {**shown, "other": round(rest, 3)} if rest > 0.05 else shown


def _count_rows(counted: Counted) -> list[list[str]]:
    n = "{:,}".format
    return [
        ["params", n(counted.params)],
        ["MACs, forward", n(counted.macs)],
        ["convolutions' share of the MACs", percent(counted.conv_share, 3)],
        ["FLOPs, forward", n(counted.flops_forward)],
        ["FLOPs, backward", n(counted.flops_backward)],
        ["peak training memory", memory(counted.memory_bytes)],
        ["operators not counted", listed([f"{name} ({n}×)" for name, n in counted.uncounted.items()]) or "none"],
    ]


def _counts_takeaway(counted: Counted, mac_shares: Mapping[str, float]) -> str:
    text = f"{si(counted.params)} params need {si(counted.macs)} MACs forward {_batch(counted)}"
    if mac_shares:
        top = max(mac_shares, key=lambda kind: mac_shares[kind])
        text += f", {percent(mac_shares[top])} of them in layers of kind {top}"
    if counted.flops_forward and counted.flops_backward:
        text += f"; backward takes {counted.flops_backward / counted.flops_forward:.2f} times the FLOPs of forward"
    if counted.uncounted:
        text += f"; not counted: {listed(list(counted.uncounted))}"
    return f"{text}."
