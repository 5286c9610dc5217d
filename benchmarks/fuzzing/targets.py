"""One target per parser that needs no torch and is not a whole verb: writes bytes as files, parses them, and uses the result as commands do."""

from __future__ import annotations

import json
import tomllib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import tomli_w

from benchmarks.fuzzing import damage, pack
from benchmarks.fuzzing.pack import Entry
from benchmarks.fuzzing.seeds import run_entries, small_trace
from chronograd import job as jobs
from chronograd.answer import as_json
from chronograd.cli import common
from chronograd.data.published import DatasetCard
from chronograd.errors import ChronogradError, InputError
from chronograd.explain import wall_times
from chronograd.explain.explanation import explain
from chronograd.files import parsed_options
from chronograd.fit import tables
from chronograd.fit.speed import fit_speed, read_points
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import read_curve
from chronograd.forecast.schedule import Schedule
from chronograd.hardware import catalog, market
from chronograd.launch import slurm
from chronograd.launch.slurm import array as slurm_array
from chronograd.measure import result
from chronograd.predict.calibration import calibrations, from_datasheet
from chronograd.predict.compute import Work
from chronograd.predict.prediction import predict
from chronograd.predict.speed import OPTIMUS_RESNET50
from chronograd.predict.timeline import timeline_of_run
from chronograd.quantities import record_answer
from chronograd.record import Quantity, Record, subtract
from chronograd.rundir import RunDir, StepFollower, list_runs, listing
from chronograd.rundir.steps import StepLine
from chronograd.trace import Trace
from chronograd.train.result import training_record

ROOT = Path(__file__).parents[2]
LayOut = Callable[[bytes, Path, Path], None]


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        lay_out: writes an input as files in a folder; the third argument is a folder that must not change.
        parse: reads them and uses the result; may raise ChronogradError only.
        seeds: valid inputs.
        mutate: changes an input, knowing its format.
        most_bytes: largest size of an input.
        max_cpu_s: largest CPU time of an input; None for that of the watch.
    """

    name: str
    lay_out: LayOut
    parse: Callable[[Path], None]
    seeds: Callable[[], Sequence[bytes]]
    mutate: damage.Mutator
    most_bytes: int = 20_000
    max_cpu_s: float | None = None


def as_file(name: str) -> LayOut:
    """Return a layout that writes an input as one file."""

    def lay_out(data: bytes, folder: Path, outside: Path) -> None:
        (folder / name).write_bytes(data)

    return lay_out


def as_folder(data: bytes, folder: Path, outside: Path) -> None:
    """Write an input as several files; see pack.py."""
    pack.lay_out(pack.unpacked(data), folder, outside)


# -- job files and overrides -----------------------------------------------------------------------------


def _job(folder: Path) -> None:
    use_job(jobs.load(folder / "job.yaml"))


def use_job(job: jobs.Job) -> None:
    json.dumps(jobs.resolved(job), allow_nan=False)
    jobs.from_dict(jobs.resolved(job))
    jobs.to_yaml(jobs.scaled(job))
    jobs.changed(job, ["training.seed=1"])


def _job_seeds() -> list[bytes]:
    every = jobs.resolved(jobs.load(ROOT / "examples" / "digits.yaml"))
    return [*(p.read_bytes() for p in sorted(ROOT.glob("examples/*.yaml"))), json.dumps(every).encode()]


def _overrides(folder: Path) -> None:
    words = (folder / "words").read_bytes().decode("utf-8", "replace").split("\n")
    example = ROOT / "examples" / "digits.yaml"
    errors = []
    for read in (
        lambda: use_job(jobs.load(example, words)),
        lambda: use_job(jobs.changed(jobs.load(example), words)),
        lambda: slurm_array.grid(jobs.load(example), words[:2]),
        lambda: parsed_options(words),
        lambda: jobs.parse_on(words[0]),
    ):
        try:
            read()
        except (InputError, click.UsageError) as error:  # commands refuse an option with click's error
            errors.append(error)
    for found in errors:
        if isinstance(found, InputError):
            raise found


_WORDS = (
    b"training.batch=128\ntraining.recipe=cutout",
    b"network.options={a: [1, 2], b: x}\ndata.name=synthetic\ndata.shape=[1, 8, 8]",
    b"training.learning_rate=0.1,0.2\ntraining.batch=32,64",
    b"8xV100\ncluster.device=v100",
    b"cluster.count=100\ntraining.batch=128\ntraining.scale_by_ranks=[learning_rate, epochs]",
    b"training.parameter_groups=[{match: '*.bias', weight_decay: 0}]",
)

# -- the catalogue ---------------------------------------------------------------------------------------


def _device(folder: Path) -> None:
    use_device(catalog.device(folder / "x.toml"))


def use_device(device: catalog.Device) -> None:
    for precision in device.peak_flops_per_s:
        device.machine_balance(precision)
    assert tomllib.loads(device.to_toml())["name"] == device.name
    json.dumps(device.model_dump(mode="json"), allow_nan=False)
    market.price_of(device)
    for found in calibrations(device):
        found.columns  # noqa: B018 — computed once, on first use
        seconds = Work.of(small_trace(), 4, found.precision).total_seconds(found)
        assert seconds >= 0, f"a step of {seconds} s"
        json.dumps(found.to_table(), allow_nan=False)


def _device_seeds() -> list[bytes]:
    return [(ROOT / f"src/chronograd/hardware/devices/{n}.toml").read_bytes() for n in ("v100", "k80-gk210", "cpu")]


def _link(folder: Path) -> None:
    catalog._read_version.cache_clear()
    for found in catalog.links():
        json.dumps(found.model_dump(mode="json"), allow_nan=False)
    catalog.link("x")


def _lay_out_link(data: bytes, folder: Path, outside: Path) -> None:
    path = catalog.user_link_path("x")
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def _link_seeds() -> list[bytes]:
    files = sorted((ROOT / "src/chronograd/hardware/links").glob("*.toml"))
    return [path.read_bytes() for path in files[:4]]


def _prices(folder: Path) -> None:
    for row in catalog.read_prices(folder / "prices.csv"):
        json.dumps({**row.model_dump(mode="json"), "each": row.usd_per_device_hour}, allow_nan=False)


def _price_seeds() -> list[bytes]:
    files = sorted((ROOT / "src/chronograd/hardware/prices").glob("*.csv"))
    return [b"\n".join(path.read_bytes().splitlines()[:4]) for path in files]


def _calibration(folder: Path) -> None:
    """Read a device file with the input as its calibration."""
    use_device(catalog.device(folder / "x.toml"))


def _lay_out_calibration(data: bytes, folder: Path, outside: Path) -> None:
    try:
        table = json.loads(data)
        text = tomli_w.dumps({**tomllib.loads(_device_seeds()[0].decode()), "calibration": table})
    except Exception:  # TOML cannot express this calibration
        text = _device_seeds()[0].decode() + "\n[calibration]\nsettings = 1\n"
    (folder / "x.toml").write_text(text, encoding="utf-8", errors="replace")


def _calibration_seeds() -> list[bytes]:
    device = catalog.device("v100")
    whole = replace(from_datasheet(device), provenance={"classes_seen": ["gemm.forward"]})
    few = replace(whole, classes=dict(list(whole.classes.items())[:2]))
    return [json.dumps({"settings": [c.to_table()]}).encode() for c in (whole, few)]


# -- tables, traces, records -----------------------------------------------------------------------------

TIMM_NAME = "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv"


def _table(folder: Path) -> None:
    for name in (TIMM_NAME, "mine.csv"):
        table = tables.read_table(folder / name)
        assert all(0 < row.seconds < float("inf") and row.batch >= 1 for row in table.rows)
        json.dumps([asdict(row) for row in tables.shuffled(table.rows, 0)], allow_nan=False)
        table.stated(phase="training").has_fused_attention  # noqa: B018


def _lay_out_table(data: bytes, folder: Path, outside: Path) -> None:
    (folder / TIMM_NAME).write_bytes(data)
    (folder / "mine.csv").write_bytes(data)


def _table_seeds() -> list[bytes]:
    timm = "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count\n"
    return [
        (timm + "resnet50,2500.1,102.3,256,224,25.56\nvit_base_patch16_224,1200,213,256,224,86.57\n").encode(),
        b"model,batch,step_time_s,resolution\nresnet18,32,0.01,224\nresnet34,32,,224\n",
    ]


def _trace(folder: Path) -> None:
    use_trace(Trace.load(folder / "net.json.gz"), folder)


def use_trace(trace: Trace, folder: Path) -> None:
    for batch in (1, 64):
        trace.macs(batch), trace.flops(batch), trace.live_bytes(batch)
    trace.params, trace.trained_params, trace.uncounted(), trace.columns
    trace.save(folder / "again.json")
    assert Trace.load(folder / "again.json").to_json() == trace.to_json()
    job = {"network": {"name": "n"}, "data": {"name": "digits"}, "cluster": {"device": "v100"}}
    use_record(predict(trace, jobs.from_dict(job)))


def _trace_seeds() -> list[bytes]:
    return [json.dumps(small_trace().to_json()).encode()]


def _record(folder: Path) -> None:
    use_record(Record.load(folder / "record.json"))
    json.dumps(as_json(explain([folder / "record.json"])), allow_nan=False)
    for summary in list_runs(folder):
        use_summary(summary)


def use_record(record: Record) -> None:
    text = record.model_dump_json()
    json.dumps(record.model_dump(mode="json"), allow_nan=False)
    assert Record.model_validate_json(text) == record
    [d.error for d in subtract(record, record)]
    common.show(record_answer(record), as_json=False)


def use_summary(summary: Any) -> None:
    """Use a summary as `chronograd records` shows it."""
    listing._row(summary), listing._job_words(summary), listing._device_words(summary)
    json.dumps(as_json(summary), allow_nan=False)


def _record_seeds() -> list[bytes]:
    job = jobs.resolved(jobs.load(ROOT / "examples" / "digits.yaml"))
    record = Record(kind="measured", title="t", job=job, cluster={"device": "v100", "count": 2}, notes=["n"])
    record.put("step_time_s", Quantity(value=0.1, unit="s", low=0.09, high=0.2, n=3, std=0.1, source="clock"))
    record.put("mfu", Quantity.missing("1", "not known"))
    whole = {
        **record.model_dump(mode="json"),
        "tables": {"by_kind": [{"kind": "gemm", "time_s": 0.1}], "mine": [{"name": "a"}]},
    }
    whole["curves"] = {
        "loss": {"columns": {"step": [1, 2], "loss": [0.5, None]}, "units": {"step": "count"}, "source": "s"}
    }
    whole |= {"versions": {"torch": "2"}, "provenance": {"environment": {"cores": 2}}}
    return [json.dumps(whole).encode()]


# -- run directories ---------------------------------------------------------------------------------------

CARD = DatasetCard("digits", (1, 8, 8), 10, tuple("0123456789"), 1437, 360, "here")


def _run(folder: Path) -> None:
    """Read each part of a run directory separately: an error in one part must not hide another."""
    errors: list[Exception] = []
    for read in (_listing, _whole_files, _steps, _results, _training, _slurm, _explained, _again):
        try:
            read(folder)
        except ChronogradError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _wall_times(folder: Path) -> None:
    json.dumps(as_json(wall_times.explain(folder / "times.csv")), allow_nan=False)


def _listing(folder: Path) -> None:
    for summary in (*list_runs(folder), *list_runs(folder.parent)):
        use_summary(summary)


def _whole_files(folder: Path) -> None:
    run = RunDir.open(folder)
    json.dumps(run.environment(), allow_nan=False)
    use_job(run.job())
    if run.is_finished:
        use_record(run.record())


def _steps(folder: Path) -> None:
    run = RunDir.open(folder)
    follower = StepFollower(run.steps_path(0))
    follower._offset = 0
    follower.new_lines()
    run.first_error()
    for rank in run.ranks():
        log = run.read_steps(rank)
        assert all(line.step >= 0 and line.attempt <= log.attempts for line in log.steps)
        json.dumps([asdict(line) for line in (*log.last_attempt(), *log.events)])
    json.dumps(timeline_of_run(run), allow_nan=False)


def _results(folder: Path) -> None:
    run = RunDir.open(folder)
    record = Record(kind="measured", title="t")
    logs = run.logs()
    found = result.step_quantities(result.lines_of_ranks(logs), 64, result.Method("clock", "clock"))
    record.quantities = {**found, **result.epoch_quantities(logs), **result.memory_quantities(logs)}
    use_record(record)


def _training(folder: Path) -> None:
    run = RunDir.open(folder)
    use_record(training_record(run, run.job(), CARD, "after 2 epochs"))


def _slurm(folder: Path) -> None:
    run = RunDir.open(folder)
    slurm._ended(run), slurm._checkpointed(run), slurm.usage(run)
    slurm.submission(run).options, slurm.submission(run).attempts


def _explained(folder: Path) -> None:
    json.dumps(as_json(explain([folder])), allow_nan=False)


def _again(folder: Path) -> None:
    """Start a new attempt like a resumed run."""
    run = RunDir.open(folder)
    for rank in (0, 1):
        with run.step_writer(rank) as lines:
            lines.write(StepLine(step=9, loss=0.5, step_time_s=0.1))
        run.read_steps(rank)


def _run_seeds() -> list[bytes]:
    entries = run_entries()
    finished = [*entries, Entry("record.json", _record_seeds()[0])]
    linked = [*entries[:2], Entry("steps.0.jsonl", b"outside", "link"), Entry("steps.1.jsonl", kind="fifo")]
    return [pack.packed(found) for found in (entries, finished, linked)]


# -- learning curves and speeds -----------------------------------------------------------------------------


def _curve(folder: Path) -> None:
    """Read a curve as a loss and as accuracies. Fits are slow: fits one in sixteen short curves, with or without a schedule."""
    name = folder / "log.csv"
    drawn = zlib.crc32(name.read_bytes())
    errors = 0
    for metric in ("loss", "accuracy"):
        try:
            curve = read_curve(name, metric)
            if len(curve.steps) <= MAX_FITTED and drawn % 16 == 0:
                schedule = (Schedule(), Schedule("multi_step", (2.0, 5.0), 8.0))[drawn // 16 % 2]
                found = forecast(replace(curve, schedule=schedule), target=0.5, at=[3.0], num_earlier=1, draws=1)
                json.dumps(as_json(found), allow_nan=False)
        except ChronogradError as error:
            errors += 1
            if errors == 2:
                raise error


def _curve_seeds() -> list[bytes]:
    k = range(1, MAX_FITTED + 1)
    csv = "epoch,loss,acc\n" + "".join(f"{n},{1 / n + 0.1:.3f},{1 - 1 / n:.3f}\n" for n in k)
    lists = {"loss": [round(0.8**n, 4) for n in k], "acc": [1 - 0.8**n for n in k]}
    lines = "\n".join(json.dumps({"step": 10 * n, "train_loss": 2 / n, "val_acc": 50 + n}) for n in k)
    return [csv.encode(), csv.replace(",", "\t").encode(), json.dumps(lists).encode(), lines.encode()]


def _speeds(folder: Path) -> None:
    points = read_points(folder / "speeds.csv")
    workers, servers, speeds = (
        [p.workers for p in points],
        [p.servers for p in points],
        [p.steps_per_s for p in points],
    )
    for batch in (None, 32.0):
        found = fit_speed(workers, servers, speeds, batch, draws=3)
        json.dumps([found.model.coefficients, found.coefficient_intervals()], allow_nan=False)


def _speed_seeds() -> list[bytes]:
    pairs = [(1, 1), (2, 1), (4, 2), (8, 2), (8, 4), (2, 4)]
    rows = [(w, p, OPTIMUS_RESNET50.steps_per_s(w, p)) for w, p in pairs]
    return [
        ("workers,servers,steps_per_s\n" + "".join(f"{w},{p},{f:.4f}\n" for w, p, f in rows)).encode(),
        ("batch,servers,workers,step_time_s\n" + "".join(f"40,{p},{w},{1 / f:.3f}\n" for w, p, f in rows)).encode(),
    ]


MAX_FITTED = 12

TARGETS = (
    Target("job", as_file("job.yaml"), _job, _job_seeds, damage.of_yaml),
    Target("override", as_file("words"), _overrides, lambda: _WORDS, damage.of_bytes),
    Target("device", as_file("x.toml"), _device, _device_seeds, damage.of_toml),
    Target("link", _lay_out_link, _link, _link_seeds, damage.of_toml),
    Target("prices", as_file("prices.csv"), _prices, _price_seeds, damage.of_cells),
    Target("calibration", _lay_out_calibration, _calibration, _calibration_seeds, damage.of_json),
    Target("table", _lay_out_table, _table, _table_seeds, damage.of_cells),
    Target("trace", as_file("net.json.gz"), _trace, _trace_seeds, damage.of_json),
    Target("record", as_file("record.json"), _record, _record_seeds, damage.of_json),
    Target(
        "wall-times",
        as_file("times.csv"),
        _wall_times,
        lambda: [(ROOT / "docs" / "hpc-report.csv").read_bytes()],
        damage.of_cells,
    ),
    Target("curve", as_file("log.csv"), _curve, _curve_seeds, damage.of_cells, most_bytes=4_000),
    Target("speeds", as_file("speeds.csv"), _speeds, _speed_seeds, damage.of_cells, most_bytes=4_000),
    Target("rundir", as_folder, _run, _run_seeds, damage.of_pack),
)
BY_NAME = {target.name: target for target in TARGETS}
