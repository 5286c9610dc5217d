"""`chronograd load URL`: requests to a server, and how long they took."""

from __future__ import annotations

from pathlib import Path

import click

from chronograd.cli import common
from chronograd.cli.serve import token


@click.command("load")
@click.argument("url", metavar="URL")
@click.option("--model", help="Its name; the only one that is served by default.")
@click.option(
    "--rate",
    "rates",
    metavar="R,R,...",
    help="Open loop: requests per second, at random times; one rate after the other.",
)
@click.option("--connections", callback=common.counts, metavar="N,N,...",
              help="Closed loop: clients that each send the next request when the last is answered. By default 1.")  # fmt: skip
@click.option(
    "--seconds", "seconds_each", default=10.0, type=common.ABOVE_0, help="Of each rate and number of connections."
)
@click.option(
    "--warmup", "warmup_s", default=1.0, type=click.FloatRange(0), help="Seconds before them that do not count."
)
@click.option("--batch", "rows", default=1, type=click.IntRange(1), help="Rows of a request.")
@click.option("--shape", "shapes", multiple=True, metavar="NAME=N,N,...",
              help="All axes of an input, where others than the first have no fixed length. May be given again.")  # fmt: skip
@click.option("--as-json", "in_json", is_flag=True, help="Send tensors as JSON, and not as binary.")
@click.option("--token-file", type=common.FILE, help="File with the server's token; or the variable CHRONOGRAD_TOKEN.")
@click.option(
    "--timeout", "timeout_s", default=30.0, type=common.ABOVE_0, help="Seconds, after which a request has failed."
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Of the invented inputs and of arrival times.")
@click.option("--out", type=common.FOLDER, help="Folder for the records, one for each rate, for `chronograd compare`.")
@common.answer_options
def command(url: str, model: str | None, rates: str | None, connections: list[int] | None, seconds_each: float,
            warmup_s: float, rows: int, shapes: tuple[str, ...], in_json: bool, token_file: Path | None, timeout_s: float,
            seed: int, out: Path | None, as_json: bool) -> int:  # fmt: skip
    """Send requests to a server: latency against load, errors.

    Of any server that speaks the Open Inference Protocol v2, with invented inputs. An open loop sends whether or not earlier
    requests were answered, as many users do; a closed loop tells how much a server can do.

    \b
    chronograd load http://127.0.0.1:8000
    chronograd load http://127.0.0.1:8000 --rate 50,100,200,400 --seconds 20
    chronograd load http://127.0.0.1:8000 --model bert --shape tokens=1,128 --connections 1,8,64 --out loads
    """
    from chronograd.deploy.load import load

    levels = common.rates(rates)
    with common.waiting("sending requests") as say:
        answer = load(url, model=model, rates=levels, connections=connections or (), seconds_each=seconds_each,
                      warmup_s=warmup_s, rows=rows, shapes=dict(_shape(text) for text in shapes), is_binary=not in_json,
                      token=token(token_file), timeout_s=timeout_s, seed=seed, say=say)  # fmt: skip
    status = common.show(answer, as_json)
    if out is not None:
        from chronograd.files import as_asked

        with as_asked(out):
            out.mkdir(parents=True, exist_ok=True)
        for label, record in answer.records.items():
            path = out / f"{label.replace('/s', '-per-s').replace(' ', '-')}.json"
            record.save(path)
            common.echo(f"record: {path}", err=True)
    return status


def _shape(text: str) -> tuple[str, list[int]]:
    name, sign, numbers = text.rpartition("=")
    if not sign or not name:
        raise click.UsageError(f"cannot read --shape {text!r}; write NAME=1,3,224,224")
    return name, common.whole_numbers("--shape", numbers)
