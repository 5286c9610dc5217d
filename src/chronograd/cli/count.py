"""`chronograd count NETWORK|JOB`: the work there is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chronograd.cli import common

if TYPE_CHECKING:
    from chronograd.trace import Trace


def _shape(_: Any, __: Any, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a shape; write 3,224,224") from None


@click.command(epilog="\b\nchronograd count vgg19 --show-work\nchronograd count torchvision:resnet50 --batch 32 --json")
@click.argument("network", metavar="NETWORK|JOB|TRACE")
@click.argument("overrides", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--batch", type=click.IntRange(1), help="Samples in one step; 1, or the job's batch.")
@click.option("--input", "input_shape", callback=_shape, metavar="C,H,W", help="Shape of one sample.")
@click.option("--classes", type=click.IntRange(1), help="Size of the head.")
@click.option("--mode", type=click.Choice(["training", "inference"]), default="training", show_default=True)
@click.option("--loss", type=click.Choice(["cross_entropy", "sum"]), default="cross_entropy", show_default=True)
@click.option("--optimizer", type=click.Choice(["sgd", "sgd-momentum", "adamw"]), default="sgd-momentum",
              show_default=True, help="Whose state counts as memory.")  # fmt: skip
@click.option("--fixed-batch", type=click.IntRange(1), help="Trace at this one batch, for networks that loop over it.")
@click.option("--show-work", is_flag=True, help="Each layer's formulas with its numbers in them.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Save the trace (.json or .json.gz).")
@common.json_option
def command(network: str, overrides: tuple[str, ...], batch: int | None, out: Path | None, show_work: bool,
            as_json: bool, **settings: Any) -> None:  # fmt: skip
    """Count parameters, MACs, FLOPs, bytes, activations and receptive fields.

    NETWORK is a name of ours, torchvision:NAME, timm:NAME or package.module:function (FIELD=VALUE are then its
    keyword arguments); or a job file; or a saved trace. Nothing is downloaded and no weights are made.
    """
    from chronograd.count.layers import summary

    optimizer = settings.pop("optimizer")
    trace, job_batch, job_optimizer = _trace(network, overrides, settings)
    if out is not None:
        trace.save(out)
    batch = trace.fixed_batch or batch or job_batch
    counted = summary(trace, batch, job_optimizer or optimizer)
    if not show_work:
        for row in counted["layers"]:
            row.pop("work")
    if as_json:
        common.print_json(counted)
    else:
        _show(counted, show_work)
        if out is not None:
            click.echo(f"trace saved to {out}")


def _trace(network: str, overrides: tuple[str, ...], settings: dict[str, Any]) -> tuple[Trace, int, str | None]:
    """The trace, the batch it is wanted at, and the job's optimizer if there is a job."""
    if network.endswith((".yaml", ".yml")):
        from chronograd.data.trace_job import trace_job
        from chronograd.predict.memory import optimizer_kind

        job = common.read_job(network, overrides)
        per_rank = -(-job.training.batch // job.cluster.count)
        return trace_job(job), per_rank, optimizer_kind(job.training.optimizer, job.training.momentum)
    if network.endswith((".json", ".json.gz")):
        from chronograd.trace import Trace

        return Trace.load(network), 1, None
    from chronograd.count.network import trace_network

    settings["num_classes"] = settings.pop("classes")
    return trace_network(network, common.options(overrides), **settings), 1, None


def _show(counted: dict[str, Any], show_work: bool) -> None:
    from chronograd import units

    n = "{:,}".format
    rows = [
        ("parameters", n(counted["params"]), f"{n(counted['weights'])} without biases"),
        ("parameters, as Keras counts", n(counted["params_keras"]), _keras(counted["params_keras_parts"])),
        ("MACs", n(counted["macs"]), _share(counted["conv_share"])),
        ("FLOPs forward", n(counted["flops_forward"]), "2 × MACs"),
        ("FLOPs backward", n(counted["flops_backward"]), _ratio(counted)),
        ("vector FLOPs", n(counted["vector_flops_forward"]), "forward, everything that is no matrix work"),
        ("activations", n(counted["activations"]), "input, convolutions, linear layers, attention, pooling"),
        ("peak memory", units.si(counted["memory_bytes"], "B"), _memory(counted)),
    ]
    if counted["params_keras"] == counted["params"]:
        rows.pop(1)
    shape = " × ".join(str(d) for d in (counted["input_shapes"] or [[]])[0])
    common.print_table(
        ("layer", "kind", "output", "params", "activations", "MACs", "field", "stride"),
        [_layer(row) for row in counted["layers"]],
        right=(3, 4, 5, 6, 7),
    )
    if show_work:
        for row in counted["layers"]:
            if row["work"]:
                click.echo(f"{row['name'] or '(network)'}\n  " + "\n  ".join(row["work"]))
        click.echo("")
    common.print_table(
        ("total", "", ""),
        rows,
        title=f"{counted['network']}, input {shape}, {counted['mode']}",
        right=(1,),
        caption=counted["convention"],
    )
    for name, times in counted["uncounted"].items():
        click.echo(f"not counted: {name}, {times} times (its bytes are)")
    for note in counted["notes"]:
        click.echo(f"note: {note}")


def _layer(row: dict[str, Any]) -> tuple[str, ...]:
    name = row["name"] or "(network)"
    if row["call"]:
        name += f" (call {row['call'] + 1})"
    where = [row["receptive_field"], row["stride"]]
    field, stride = ("" if w is None else "×".join(map(str, w)) if isinstance(w, list) else str(w) for w in where)
    shape = "×".join(str(d) for d in row["output_shape"])
    amounts = ("" if not row[k] else f"{row[k]:,}" for k in ("params", "activations", "macs"))
    return (name, row["kind"], shape, *amounts, field, stride)


def _keras(parts: dict[str, int]) -> str:
    return " + ".join(f"{count:,} {name}" for name, count in parts.items())


def _share(conv_share: float | None) -> str:
    return "" if conv_share is None else f"{100 * conv_share:.3f} % in convolutions"


def _ratio(counted: dict[str, Any]) -> str:
    forward = counted["flops_forward"]
    return f"{counted['flops_backward'] / forward:.3f} × forward" if forward else ""


def _memory(counted: dict[str, Any]) -> str:
    from chronograd import units

    m = counted["memory"]
    parts = ("parameters", "gradients", "optimizer_state", "activations")
    text = ", ".join(f"{p.replace('_', ' ')} {units.si(m[p], 'B')}" for p in parts if m[p])
    return f"batch {counted['batch']}, {m['optimizer']}: {text}"
