"""The answer for a record, predicted or measured: every quantity with its interval, count and source.

Records of several devices appear side by side. A lack of device memory is stated before the times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chronograd.answer import Answer, Column, Section, Table
from chronograd.figure import Role, Series
from chronograd.record import ASSUMED, CHOSEN, DOES_NOT_FIT, QUANTITIES, ROUGH, STEP_PARTS, Record
from chronograd.units import percent, quantity
from chronograd.words import how_many, interval, listed, named, quantity_name, scaled

# Quantities for the summary sentence; the first known one has its interval there.
FIRST = (
    "test_accuracy",
    "bits_per_byte",
    "mean_return",
    "frames_to_return",
    "throughput_frames_per_s",
    "latency_s",
    "step_time_s",
    "throughput_samples_per_s",
    "throughput_tokens_per_s",
    "training_time_s",
    "cost_usd",
    "cost_usd_per_million_samples",
    "memory_peak_bytes",
    "memory_resident_bytes",
    "fit_probability",
)
# The main rows, in their order; the others are details.
MAIN = (
    "test_accuracy",
    "time_to_accuracy_s",
    "bits_per_byte",
    "time_to_bits_per_byte_s",
    "mean_return",
    "best_return",
    "time_to_return_s",
    "frames_to_return",
    "throughput_frames_per_s",
    "updates_per_s",
    "latency_s",
    "latency_mean_s",
    "latency_p50_s",
    "latency_p95_s",
    "latency_p99_s",
    "step_time_s",
    "throughput_samples_per_s",
    "throughput_tokens_per_s",
    "throughput_tokens_per_s_per_device",
    "mfu",
    "hfu",
    "memory_peak_bytes",
    "memory_resident_bytes",
    "fit_probability",
    "epoch_time_s",
    "training_time_s",
    "cost_usd",
    "cost_usd_per_million_samples",
    "cost_usd_per_million_tokens",
    "cost_usd_per_million_requests",
    "cost_usd_per_hour",
)
_WITH_INTERVAL = (
    "latency_s",
    "step_time_s",
    "training_time_s",
    "cost_usd",
)  # side by side, if there is no room for all intervals
_DROP = (
    "mfu",
    "epoch_time_s",
    "cost_usd_per_hour",
    "cost_usd_per_million_tokens",
    "throughput_tokens_per_s",
    "throughput_samples_per_s",
    "memory_peak_bytes",
    "memory_resident_bytes",
)  # below each other
_MAX_BESIDE = 3  # devices side by side; more become rows
_MIN_SHARE = 0.005  # of a step; smaller parts are not mentioned


def record_answer(*records: Record) -> Answer[Record | list[Record]]:
    """Return the answer for records of any kind, one or side by side. Its result is the one record, or a list."""
    is_one = len(records) == 1
    notes = [
        (r.title, note) for r in records for note in r.notes if not note.startswith((DOES_NOT_FIT, ROUGH, ASSUMED))
    ]
    return Answer(
        title=records[0].title if is_one else how_many(len(records), "records"),
        sections=[record_section(records[0]) if is_one else records_section(records)],
        records=named((record.title, record) for record in records),
        notes=list(dict.fromkeys(note if is_one else f"{title}: {note}" for title, note in notes)),
        result=records[0] if is_one else list(records),
    )


def record_section(record: Record) -> Section:
    """Return a section with every quantity of a record in a table, main ones first, and a summary sentence."""
    names = _names([record])
    table = Table.of(
        [(name, record[name]) for name in names],
        _QUANTITY,
        _price_notes([record]),
        drop=("± deviation", "n"),
        details=("source",),
        most=_num_main([record]),
    )
    return Section(
        title=f"{record.title} ({record.kind})",
        takeaway=_takeaway(record),
        lines=[*_assumed([record]), *_rough([record]), *([words] if (words := _parts_words(record)) else [])],
        table=table.without_empty_columns(),
        data=[{"quantity": name, **record[name].model_dump(mode="json")} for name in names],
    )


def records_section(records: Sequence[Record]) -> Section:
    """Return records side by side: a column for each and a row for each quantity; for many records, a row for each."""
    labels, most = _labels(records), 0
    rows: list[list[str]] = []
    names: list[str] = []  # the quantity of each row
    for number, name in enumerate(_names(records), 1):
        rows.append([quantity_name(name), *(quantity(record[name].value, record[name].unit) for record in records)])
        if name in _WITH_INTERVAL and any(interval(record[name]) for record in records):
            limits = [interval(record[name]) for record in records]
            beside = [limit.replace(" … ", " …\n") for limit in limits] if len(records) == _MAX_BESIDE else limits
            rows.append(["  80 % interval", *beside])
        names += [name] * (len(rows) - len(names))
        most = len(rows) if number == _num_main(records) else most
    if len(records) <= _MAX_BESIDE:
        table = Table(["quantity", *labels], rows, set(range(1, len(labels) + 1)), _price_notes(records), most=most)
    else:
        columns = ["", *(row[0].strip() for row in rows)]
        table = Table(
            columns,
            [[label, *(row[i] for row in rows)] for i, label in enumerate(labels, 1)],
            set(range(1, len(columns))),
            _price_notes(records),
            drop=[names.index(name) + 1 for name in _DROP if name in names],
            details=range(most + 1, len(columns)),
        )
    return Section(
        title=f"{listed(list(dict.fromkeys(r.title.partition(' on ')[0] for r in records)))} on {len(records)} settings "
        f"({listed(sorted({r.kind for r in records}))})",
        takeaway=_side_by_side(records, labels),
        lines=[*_assumed(records, labels), *_rough(records)],
        table=table,
        data=[
            {"record": record.title, "quantity": name, **record[name].model_dump(mode="json")}
            for record in records
            for name in _names([record])
        ],
    )


def _names(records: Sequence[Record]) -> list[str]:
    """Return the quantities that any record has: main known ones, the usual ones, others."""
    names = {name for record in records for name in _shown_names(record)}
    main = [name for name in MAIN if any(name in _shown_names(r) and r[name].value is not None for r in records)]
    usual = [name for name in QUANTITIES if name in names and name not in main]
    return [*main, *usual, *sorted(names - QUANTITIES.keys())]


def _num_main(records: Sequence[Record]) -> int:
    return sum(any(name in _shown_names(r) and r[name].value is not None for r in records) for name in MAIN)


def _shown_names(record: Record) -> set[str]:
    """Return the quantities to show: for inference the latency, which is the time of its step."""
    own = set(record.quantities)
    return own - {"step_time_s"} if "latency_s" in own else own


_QUANTITY = (
    Column("quantity", lambda pair: quantity_name(pair[0])),
    Column("value", lambda pair: quantity(pair[1].value, pair[1].unit), format=str),
    Column("80 % interval", lambda pair: interval(pair[1]), format=str),
    Column("n", lambda pair: pair[1].n, format="d", empty=""),
    Column("± deviation", lambda pair: "" if pair[1].std is None else quantity(pair[1].std, pair[1].unit), format=str),
    Column("source", lambda pair: pair[1].source or pair[1].reason),
)


def _takeaway(record: Record) -> str:
    misfit = _misfit(record)
    if misfit:
        return f"It {misfit}. The values below assume enough memory."
    chosen = f"{text}. " if (text := _chosen(record)) else ""
    known = [name for name in FIRST if name in _shown_names(record) and record[name].value is not None]
    if not known:
        missing = next((q.reason for q in record.quantities.values() if q.value is None and q.reason), "")
        return f"{chosen}None of the usual quantities is known{f' ({missing})' if missing else ''}."
    parts = [f"{quantity_name(name)} {quantity(record[name].value, record[name].unit)}" for name in known]
    between = interval(record[known[0]])
    parts[0] += f" (80 % interval {between})" if between else ""
    return f"{chosen}{record.kind.capitalize()}: {', '.join(parts)}."


def _side_by_side(records: Sequence[Record], labels: Sequence[str]) -> str:
    """Return first the devices with too little memory, then the fastest and the cheapest of the others."""
    misfits = [f"{label} {text}" for label, r in zip(labels, records, strict=True) if (text := _misfit(r))]
    fitting = [(label, r) for label, r in zip(labels, records, strict=True) if not _misfit(r)]
    chosen = [(label, text.removeprefix(CHOSEN)) for label, r in fitting if (text := _chosen(r))]
    sentences = [f"{CHOSEN}{'; '.join(f'{text} on {label}' for label, text in chosen)}"] if chosen else []
    sentences += misfits
    best: dict[str, list[str]] = {}
    has_tokens = all(record["throughput_tokens_per_s"].value is not None for record in records)
    for name, words, pick in (
        ("throughput_tokens_per_s" if has_tokens else "throughput_samples_per_s", "fastest", max),
        ("cost_usd", "cheapest", min),
        ("cost_usd_per_million_samples", "cheapest for a million samples", min),
        ("cost_usd_per_million_tokens", "cheapest for a million tokens", min),
    ):
        known = [(r.value(name), label, r[name].unit) for label, r in fitting if r[name].value is not None]
        if known:
            value, label, unit = pick(known, key=lambda item: item[0])
            best.setdefault(label, []).append(f"the {words}, with {quantity(value, unit)}")
    sentences += [f"{label} is {', and '.join(words)}" for label, words in best.items()]
    return ". ".join(sentences) + "." if sentences else "Nothing is known."


def _misfit(record: Record) -> str:
    """Return the note that the device has too little memory, with the figures; empty if it has enough."""
    return next((note for note in record.notes if note.startswith(DOES_NOT_FIT)), "")


def _chosen(record: Record) -> str:
    """Return the note on values that were chosen to fit; empty if there is none."""
    return next((note for note in record.notes if note.startswith(CHOSEN)), "")


def _rough(records: Sequence[Record]) -> list[str]:
    """Return the reasons why a prediction is rough, each once, with the title of its record if there are several."""
    notes = [(r.title, note) for r in records for note in r.notes if note.startswith(ROUGH)]
    words = [text if len(records) == 1 else f"{title}: {text}" for title, text in notes]
    return [f"{text[0].upper()}{text[1:]}." for text in dict.fromkeys(words)]


def _assumed(records: Sequence[Record], labels: Sequence[str] = ("",)) -> list[str]:
    """Return the assumptions in one sentence: those of all records, then those of single ones with their label."""
    notes = [next(filter(_is_assumption, record.notes), "") for record in records]
    if len(set(notes)) == 1:
        return [f"{notes[0]}."] if notes[0] else []
    items = [note.partition(": ")[2].split("; ") if note else [] for note in notes]
    common = [item for item in items[0] if all(item in own for own in items)]
    rest = [(label, [item for item in own if item not in common]) for label, own in zip(labels, items, strict=True)]
    own = [f"for {label}: {', '.join(words)}" for label, words in rest if words]
    return [f"{max(notes).partition(': ')[0]}: {'; '.join([*common, *own])}."]


def _is_assumption(note: str) -> bool:
    """Return whether a note lists assumptions, except those that were chosen to fit."""
    return note.startswith(ASSUMED) and not note.startswith(CHOSEN)


def _parts_words(record: Record) -> str:
    """Return a sentence with the parts of a step, longest first."""
    step = record["step_time_s"].value
    parts = [(value / step, text) for name, text in STEP_PARTS.items() if (value := record[name].value) and step]
    shares = [f"{percent(share, 0)} {text}" for share, text in sorted(parts, reverse=True) if share >= _MIN_SHARE]
    what = "batch" if "latency_s" in record.quantities else "step"
    return f"A {what} is {listed(shares)}." if len(shares) > 1 else ""


def _price_notes(records: Sequence[Record]) -> list[str]:
    """Return the sources of prices."""
    sources = [
        record["cost_usd_per_hour"].source for record in records if record["cost_usd_per_hour"].value is not None
    ]
    return [f"price: {source}" for source in dict.fromkeys(sources) if source]


def _labels(records: Sequence[Record]) -> list[str]:
    """Return count and device of each record, or whole titles if these are not distinct."""
    short = [record.device if record.world == 1 else f"{record.world} × {record.device}" for record in records]
    return short if len(set(short)) == len(short) else list(named((r.title, r) for r in records))


def series_of(
    by_count: Mapping[int, Record], name: str, label: str, role: Role, length: float, color: str = ""
) -> Series:
    """Return a quantity of records against their number of devices, in units of `length`, with its 80 % interval as a band."""
    quantities = [by_count[n][name] for n in sorted(by_count)]
    middle, low, high = (scaled((getattr(q, bound) for q in quantities), length) for bound in ("value", "low", "high"))
    if all(bound is None for bound in low):
        low, high = [], []
    return Series(label, role, [float(n) for n in sorted(by_count)], middle, low, high, color)
