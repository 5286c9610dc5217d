"""The answer of `predict server`: latency of a server against the rate of requests, its knee, the number of replicas, and the
cost.

Times of batches are those of a network's operators on a device, or measured by the caller. Replicas share requests at random,
so each sees a Poisson process. A proxy that knows the free replicas does better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chronograd import __version__
from chronograd.answer import Answer, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.job import Job, changed, resolved
from chronograd.predict.notes import notes_of
from chronograd.predict.prediction import predict_step, price_of
from chronograd.predict.setting import setting_of
from chronograd.record import DOES_NOT_FIT, Z80, JobHeader, Provenance, Quantity, Record, RecordedCluster
from chronograd.simulate.queueing import Latencies, Server, at_rate, batch_sizes, best_rows, knee, most_within
from chronograd.trace import Trace
from chronograd.units import dollars, number, percent, quantity, seconds
from chronograd.words import how_many, interval, named, scaled, time_unit

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # shares of the server's maximum
PERCENTILES = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
MAX_REPLICAS = 100_000
NOT_COUNTED = "Not included: the network between client and server, a proxy, and the start of a server."


@dataclass(frozen=True)
class Served:
    """A network on a device, as one process of a server.

    Attributes:
        title: the network and its device.
        server: the queue. sigma_log: the standard deviation of the logarithm of its batches' times.
        price: dollars of an hour of one, and their source; None if unknown.
        header: a record without quantities.
    """

    title: str
    server: Server
    header: Record
    sigma_log: float = 0.0
    price: tuple[float, str] | None = None


@dataclass(frozen=True)
class ServerDemand:
    """The demand: requests per second over all replicas; the time within which 99 % must be answered; the number of replicas,
    if given.
    """

    rates: Sequence[float] = ()
    p99_s: float | None = None
    replicas: int | None = None


@dataclass(frozen=True)
class Frontend:
    """The cost of a request in addition to its model: `loop_s` of the thread that reads and writes, `travel_s` without any
    queue.

    Both have a part per request and a part per byte.
    """

    loop_s: float
    loop_s_per_byte: float
    travel_s: float
    travel_s_per_byte: float

    def onto(self, server: Server, num_bytes: float) -> Server:
        loop_s, travel_s = (
            self.loop_s + num_bytes * self.loop_s_per_byte,
            self.travel_s + num_bytes * self.travel_s_per_byte,
        )
        return replace(server, loop_s=loop_s, travel_s=travel_s)


# `chronograd serve` with binary tensors on two cores of an Intel Xeon that also had other work, 2026-11-23. Measured: 0.7 to 1.2 ms for a
# small request, 2.7 to 3.2 ms for one of 602 kB. Clients ran on the same machine; no other cost was measured.
FRONTEND = Frontend(loop_s=0.9e-3, loop_s_per_byte=3.4e-9, travel_s=0.0, travel_s_per_byte=0.0)


def of_operators(trace: Trace, job: Job, options: Server, most_rows: int, frontend: Frontend) -> Served:
    """Return a network on the job's device, with the batches that `chronograd serve` would choose.

    Args:
        options: settings that do not depend on the network. most_rows: maximum of a batch.

    Raises: InputError for several devices, and as `predict_step`.
    """
    if job.cluster.count != 1:
        raise InputError(
            f"a replica of a server is one device, and the job has {job.cluster.count}",
            f"--on {job.cluster.device} --replicas {job.cluster.count}",
        )
    settings = {
        rows: setting_of(changed(job, ["mode=inference", f"training.batch={rows}"])) for rows in batch_sizes(most_rows)
    }
    steps = {rows: predict_step(trace, setting) for rows, setting in settings.items()}
    times = {rows: step.seconds for rows, step in steps.items()}
    rows = best_rows(times)
    setting = settings[rows]
    input_bytes = sum(trace.storages[trace.tensors[i].storage].bytes.at(1) for i in trace.inputs)
    calibration = setting.calibration
    header = Record(
        kind="predicted",
        title=f"{trace.network} on {setting.device.title}",
        job=resolved(setting.job),
        cluster=RecordedCluster(device=setting.device.name, title=setting.device.title, batch_per_rank=1),
        versions={"chronograd": __version__, **trace.versions},
        provenance=Provenance(
            predicted_from=f"trace of {trace.network} ({how_many(len(trace.operators), 'operators')}), {calibration.origin} calibration of "
            f"{setting.device.name}, and a queue with batches of at most {rows}",
            calibration=calibration.provenance or {"origin": calibration.origin},
            sigma_log=steps[rows].sigma_log,
            interval="80 % interval of a log-normal time of a batch",
            precision=calibration.precision,
        ),
        notes=[*trace.notes, *notes_of(setting, steps[rows].memory)],
    )
    server = frontend.onto(replace(options, batch_s=times, most_rows=rows), input_bytes)
    title = f"{trace.network} on {setting.device.name} in {calibration.precision}"
    return Served(title, server, header, steps[rows].sigma_log, price_of(setting.job, setting.device))


@dataclass(frozen=True)
class _Level:
    """One rate: its replicas, and the outcome of its requests, also with a faster and a slower model than expected."""

    rate: float
    replicas: int
    likely: Latencies
    bounds: Sequence[Latencies] = field(default=())


@dataclass(frozen=True)
class ServedLoad:
    """The result of `predict server` for one device.

    Attributes:
        batch_s: seconds of a batch, by its rows. `loop_s`, `travel_s`: of a request, in the server and on the way.
        knee_requests_per_s: where the mean latency is twice that of a lone request.
        within_p99_requests_per_s: the highest rate with the requested 99th percentile; None without a request.
        load: latencies at several rates. `records`: one for each requested rate.
    """

    title: str
    most_rows: int
    batch_s: dict[int, float]
    loop_s: float
    travel_s: float
    knee_requests_per_s: float
    most_requests_per_s: float
    within_p99_requests_per_s: float | None
    load: list[dict[str, Any]]
    records: list[Record]


def server_answer(served: Sequence[Served], asked: ServerDemand) -> Answer[list[ServedLoad]]:
    """Return the latency at the requested rates, and against load, of each network.

    Without requested rates, the records are at the knee of each.
    """
    sections, records, loads, notes = list[Section](), list[Record](), list[ServedLoad](), list[str]()
    for one in served:
        at_knee, most = knee(one.server), None if asked.p99_s is None else most_within(one.server, asked.p99_s)
        levels = [_level(one, rate, asked, most) for rate in asked.rates or ((asked.replicas or 1) * at_knee,)]
        own = [_record(one, level, at_knee, most, asked) for level in levels]
        if asked.rates:
            sections.append(_rates_section(one, levels, own, asked, most))
        sections.append(_load_section(one, at_knee, most, asked))
        records += own
        notes += [note for note in one.header.notes if note not in notes]
        loads.append(
            ServedLoad(
                title=one.title,
                most_rows=one.server.most_rows,
                batch_s=dict(one.server.batch_s),
                loop_s=one.server.loop_s,
                travel_s=one.server.travel_s,
                knee_requests_per_s=at_knee,
                most_requests_per_s=one.server.most_per_s,
                within_p99_requests_per_s=most,
                load=list(sections[-1].data),
                records=own,
            )
        )
    return Answer(
        title=f"{served[0].header.job.network.name} behind a server",
        sections=sections,
        records=named((record.title, record) for record in records),
        notes=[*notes, NOT_COUNTED],
        result=loads,
    )


def _level(served: Served, rate: float, asked: ServerDemand, most: float | None) -> _Level:
    replicas = asked.replicas or (math.ceil(rate / most) if most else 1)
    if replicas > MAX_REPLICAS:
        raise InputError(
            f"{rate:g} requests/s take {how_many(replicas, 'replicas')}", f"the maximum is {MAX_REPLICAS:,}"
        )
    spread = math.exp(Z80 * served.sigma_log)
    each = rate / replicas
    bounds = [at_rate(served.server.slower(f), each) for f in (1 / spread, spread)] if served.sigma_log else []
    return _Level(rate, replicas, at_rate(served.server, each), bounds)


def _record(served: Served, level: _Level, at_knee: float, most: float | None, asked: ServerDemand) -> Record:
    """Return the expected figures at one rate, over all replicas."""
    what = f"{served.header.title}, {number(level.rate)} requests/s"
    record = served.header.model_copy(deep=True)
    record.title = what + (f" to {how_many(level.replicas, 'replicas')}" if level.replicas > 1 else "")
    record.cluster.count = level.replicas
    source = "a queue of requests in front of the times of batches"

    def put(name: str, unit: str, of: Any) -> None:
        low, high = (of(bound) for bound in level.bounds) if level.bounds else (None, None)
        record.put(name, Quantity(value=of(level.likely), unit=unit, low=low, high=high, source=source))

    # More requests come than one thread can read: they are not refused, and wait longer and longer.
    if level.rate / level.replicas * served.server.loop_s >= 1:
        reason = "more requests come than the server reads: latency grows without limit"
        record.quantities |= {name: Quantity.missing("s", reason) for name in ("latency_mean_s", *PERCENTILES)}
    else:
        put("latency_mean_s", "s", lambda found: found.mean_s)
        for name, share in PERCENTILES.items():
            put(name, "s", lambda found, share=share: found.percentile_s(share))
    record.put("offered_requests_per_s", Quantity(value=level.rate, unit="request/s", source="the requested rate"))
    answered = min(level.rate * (1 - level.likely.refused_share), served.server.most_per_s * level.replicas)
    record.put("throughput_requests_per_s", Quantity(value=answered, unit="request/s", source=source))
    rates = {"knee_requests_per_s": at_knee, "most_requests_per_s": served.server.most_per_s}
    for name, value in rates.items():
        record.put(name, Quantity(value=value, unit="request/s", source=f"{source}; of one replica"))
    if served.price is None:
        reason = f"no price is known for {served.header.cluster.device or 'this machine'}"
        record.put("cost_usd_per_million_requests", Quantity.missing("usd", reason))
        return record
    per_hour = served.price[0] * level.replicas
    record.put("cost_usd_per_hour", Quantity(value=per_hour, unit="usd", source=served.price[1]))
    cost = Quantity(
        value=per_hour / 3600 / answered * 1e6, unit="usd", source="cost of the replicas divided by requests"
    )
    record.put("cost_usd_per_million_requests", cost)
    return record


def _rates_section(served: Served, levels: Sequence[_Level], records: Sequence[Record], asked: ServerDemand, most: float | None) -> Section:  # fmt: skip
    names = ["latency_mean_s", *PERCENTILES, "cost_usd_per_hour", "cost_usd_per_million_requests"]
    titles = ["mean", "median", "p95", "p99", "per hour", "per M requests"]
    shown = [(n, t) for n, t in zip(names, titles, strict=True) if any(r[n].value is not None for r in records)]
    rows = []
    for level, record in zip(levels, records, strict=True):
        cells = [quantity(record[name].value, record[name].unit) for name, _ in shown]
        cells[4:4] = [interval(record["latency_p99_s"]), _refused(level.likely)]
        rows.append([number(level.rate), f"{level.replicas:,}", *cells])
    columns = ["requests/s", "replicas", *(title for _, title in shown)]
    columns[6:6] = ["80 % of p99", "refused"]
    source = records[0]["cost_usd_per_hour"].source
    table = Table(columns, rows, set(range(len(columns))), [f"price: {source}"] if source else [], drop=(2, 8, 6))
    return Section(
        title=served.title,
        takeaway=" ".join(_sentence(served, *pair, asked, most) for pair in zip(levels, records, strict=True)),
        table=table.without_empty_columns(),
        data=[
            {"rate": level.rate, "replicas": level.replicas, "refused_share": level.likely.refused_share, "rows": level.likely.rows,
             **{name: record[name].value for name in names}}
            for level, record in zip(levels, records, strict=True)
        ],
    )  # fmt: skip


def _sentence(served: Served, level: _Level, record: Record, asked: ServerDemand, most: float | None) -> str:
    rate, p99 = quantity(level.rate, "request/s"), record["latency_p99_s"]
    who = "one server" if level.replicas == 1 else how_many(level.replicas, "servers")
    between, ending = interval(p99), "s" * (level.replicas == 1)
    text = f"At {rate}, {who} of {served.title} "
    if p99.value is None:
        text += f"fall{ending} behind: one does up to {quantity(served.server.most_per_s, 'request/s')}"
    else:
        text += f"answer{ending} 99 % within {seconds(p99.value)}{f' ({between})' if between else ''} "
        text += f"and half within {seconds(record.value('latency_p50_s'))}"
    misfit = next((note for note in served.header.notes if note.startswith(DOES_NOT_FIT)), "")
    text = f"It {misfit}. With more memory: {text[0].lower()}{text[1:]}" if misfit else text
    if level.likely.refused_share > 0:
        text += f"; {percent(level.likely.refused_share)} of the requests are refused because the queue is full"
    cost = record["cost_usd_per_million_requests"].value
    text += f", for {dollars(cost)} per million requests" if cost is not None else ""
    if asked.p99_s is None or most is None:
        return f"{text}."
    bound = seconds(asked.p99_s)
    if most == 0:
        return f"{text}. No number of servers answers 99 % within {bound}: a lone request takes {seconds(served.server.lone_s)}."
    needed = math.ceil(level.rate / most)
    is_kept = level.likely.holds(asked.p99_s)
    verdict = f"{'keeps' if level.replicas == 1 else 'keep'} it" if is_kept else f"{needed:,} are needed"
    return f"{text}. For 99 % within {bound} {who if is_kept else ''} {verdict}; one does up to {quantity(most, 'request/s')}.".replace(
        "  ", " "
    )


def _refused(found: Latencies) -> str:
    return percent(found.refused_share) if found.refused else ""


def _load_section(served: Served, at_knee: float, most: float | None, asked: ServerDemand) -> Section:
    """Return the latency of one server against its load, for any question."""
    server = served.server
    levels = sorted({*(share * server.most_per_s for share in LEVELS), at_knee})
    found = [at_rate(server, rate) for rate in levels]
    rows = [
        [
            f"{number(one.rate)}{' knee' if one.rate == at_knee else ''}",
            percent(one.rate / server.most_per_s, 0),
            f"{one.rows:.1f}",
            *(seconds(s) for s in (one.mean_s, *(one.percentile_s(share) for share in PERCENTILES.values()))),
            _refused(one),
        ]
        for one in found
    ]
    unit, length = time_unit([one.mean_s for one in found])
    series = [
        Series(name, "predicted", levels, scaled((one.percentile_s(share) for one in found), length), color=color)
        for name, share, color in (("median", 0.5, "accent"), ("95 %", 0.95, "teal"), ("99 %", 0.99, "vermilion"))
    ]
    marks = [Mark("x", at_knee, "knee")]
    marks += [Mark("y", asked.p99_s / length, "asked")] if asked.p99_s is not None and most else []
    batches = f"batches of up to {server.most_rows}" if server.most_rows > 1 else "individual requests"
    return Section(
        title=f"{served.title}: one server, {batches}",
        takeaway=f"One server does up to {quantity(server.most_per_s, 'request/s')}; the knee, where the mean latency is twice the "
        f"{seconds(server.lone_s)} of a lone request, is at {quantity(at_knee, 'request/s')}.",
        figure=Figure([Lines("requests per second", f"latency, {unit}", series, marks, from_zero=True)]),
        caption="Latency of answered requests, against the rate of requests.",
        table=Table(
            ("requests/s", "load", "batch", "mean", "median", "p95", "p99", "refused"), rows, set(range(8)), drop=(2, 5)
        ).without_empty_columns(),
        data=[
            {
                "rate": one.rate,
                "rows": one.rows,
                "latency_mean_s": one.mean_s,
                **{name: one.percentile_s(share) for name, share in PERCENTILES.items()},
                "refused_share": one.refused_share,
            }
            for one in found
        ],
    )


def measured_header(name: str, title: str, **parts: Any) -> Record:
    """Return a record for times of batches that were measured on this machine."""
    return Record(
        kind="predicted",
        title=title,
        job=JobHeader.model_validate({"mode": "inference", "network": {"name": name}}),
        cluster=RecordedCluster(batch_per_rank=1),
        **parts,
    )
