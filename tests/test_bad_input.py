"""Bad input: one clear error in time; nothing is executed, nothing blocks, and no user file changes."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzzing import pack, seeds, targets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronograd import files
from chronograd import job as jobs
from chronograd.calibrate.tables import join
from chronograd.cli.main import main
from chronograd.data.labels import read_labels
from chronograd.errors import ChronogradError, FileFormatError, InputError, JobError, RunError
from chronograd.fit.tables import read_table
from chronograd.hardware import catalog
from chronograd.launch.jobs import resume, train
from chronograd.models.weights import load_pretrained
from chronograd.record import Record
from chronograd.rundir import RunDir, StepFollower, list_runs, read_steps
from chronograd.trace import Trace
from chronograd.train import checkpoint_folder

NETWORKS = Path(__file__).parent / "train"
# A parser of one megabyte answers within seconds, also on a busy machine.
MAX_CPU_S = 5.0
EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.yaml"


def _weights(path: Path) -> object:
    import torch

    return load_pretrained(torch.nn.Linear(2, 2), str(path), "mine")


def _environment(path: Path) -> object:
    return RunDir(path.parent).environment()


def _state(path: Path) -> object:
    return checkpoint_folder.read_state(path.parent)


# Each parser of one file, by the required file name.
PARSERS: dict[str, Callable[[Path], object]] = {
    "job.yaml": jobs.load,
    "device.toml": catalog.device,
    "prices.csv": catalog.read_prices,
    "table.csv": read_table,
    "trace.json": Trace.load,
    "trace.json.gz": Trace.load,
    "record.json": Record.load,
    "environment.json": _environment,
    "steps.0.jsonl": read_steps,
    "state.json": _state,
    "weights.safetensors": _weights,
    "weights.pth": _weights,
    "labels.npz": lambda path: read_labels(path, 100, 10),
}
parsers = pytest.mark.parametrize("name", PARSERS)
own_folders = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def harmed(tmp_path: Path) -> Path:
    """Return the files that hostile input of these tests creates if it is executed."""
    return tmp_path / "harmed"


class _Harm:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self._path,)


def refused(parse: Callable[[Path], object], path: Path) -> ChronogradError:
    """Return a parser's error, which must come soon. A thread makes a hanging parser fail the test."""
    found: list[BaseException | object] = []

    def attempt() -> None:
        try:
            found.append(parse(path))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    start = time.process_time()
    thread.start()
    thread.join(60.0)
    assert not thread.is_alive(), f"{path.name} is still being read"
    assert time.process_time() - start < MAX_CPU_S
    (result,) = found
    assert isinstance(result, ChronogradError), f"{type(result).__name__}: {result!r:.300}"
    assert result.message
    assert len(str(result)) < 10_000
    return result


# -- any file ----------------------------------------------------------------------------------------------


@parsers
@own_folders
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / name
    path.write_bytes(data)
    with contextlib.suppress(ChronogradError):
        PARSERS[name](path)


@parsers
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop", "dangling", "absent"])
def test_special_files(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop", "dangling"):
        path.symlink_to({"device": "/dev/zero", "loop": name, "dangling": "nothing"}[kind])
    if (name, kind) in {("steps.0.jsonl", "absent"), ("steps.0.jsonl", "dangling")}:
        assert read_steps(path).steps == []
    elif name == "environment.json" and kind in ("absent", "dangling"):
        assert _environment(path) == {}
    else:
        refused(PARSERS[name], path)


MEGABYTE = {
    "zeros": b"\0" * 1_000_000,
    "deep": b"[" * 1_000_000,
    "deep mappings": b'{"a":' * 200_000,
    "one number": b"9" * 1_000_000,
    "a dotted key": b"a" + b".a" * 499_999 + b" = 1\n",
    "many keys": b"".join(b"k%d = 1\n" % i for i in range(80_000)),
    "many lines": b"a: 1\n" * 200_000,
    "not text": b"\xff\xfe\x80" * 333_000,
    "lists": b'{"format": "chronograd-trace", "version": 2, "operators": [' + b"[]," * 300_000 + b"[]]}",
    "commas": b"model,rate\n" + b"," * 900_000,
    "a long line of JSON": json.dumps({"attempt": 1, "step": 1, "x": ["y" * 90] * 10_000}).encode()[:-1],
}


@parsers
@pytest.mark.parametrize("what", MEGABYTE)
def test_megabyte_of_input_is_answered_within_seconds(tmp_path: Path, name: str, what: str) -> None:
    path = tmp_path / name
    path.write_bytes(MEGABYTE[what])
    if name == "steps.0.jsonl":
        assert read_steps(path).steps == []  # only torn lines
    elif (name, what) == ("environment.json", "lists"):
        assert _environment(path)  # any mapping is an environment
    else:
        refused(PARSERS[name], path)


@pytest.mark.parametrize("name", ["a\0b.toml", "~nobody-of-that-name/x.toml", "x" * 5000 + ".toml", "\udcff.toml"])
def test_impossible_file_names(name: str) -> None:
    for parse in (catalog.device, jobs.load, Trace.load, Record.load, read_table, RunDir.open):
        with pytest.raises(ChronogradError):
            parse(name)
    job = {"network": {"name": "lenet5", "weights": name.replace(".toml", ".pth")}, "data": {"name": "digits"}}
    with pytest.raises(InputError):
        _weights(Path(jobs.from_dict(job).network.weights or ""))


# -- job files -----------------------------------------------------------------------------------------------

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
HOSTILE = {
    "object": "network: !!python/object/apply:os.system ['touch HARMED']",
    "name": "network: !!python/name:os.system",
    "module": "network: !!python/module:os",
    "laughs": LAUGHS,
    "loop": "network: &n {name: x, options: *n}",
    "merge": "a: &a {x: 1}\nb: {<<: [*a, *a]}",
    "twice": "network: {name: a}\nnetwork: {name: b}",
    "binary": "network: !!binary aGk=",
    "set": "network: !!set {a, b}",
    "bad date": "network: {name: x}\ndata: {name: x, samples: 2001-99-99}",
    "NaN": "network: {name: x, options: {a: .nan}}\ndata: {name: x}",
    "infinity": "network: {name: x}\ndata: {name: x}\ntraining: {learning_rate: .inf}",
    "huge number": f"network: {{name: x, options: {{a: {'9' * 5000}}}}}\ndata: {{name: x}}",
    "huge hexadecimal": f"network: {{name: x, options: {{a: 0x{'f' * 5000}}}}}\ndata: {{name: x}}",
    "sixties": f"network: {{name: x}}\ndata: {{name: x, long_tail: 1{':59' * 400}.5}}",
    "deep": f"network: {{name: x, options: {{a: {'[' * 200}{']' * 200}}}}}\ndata: {{name: x}}",
    "numbers as keys": "network: {name: x, options: {1: 2}}\ndata: {name: x}",
    "a list as key": "? [a, b]\n: c",
    "documents": "network: {name: x}\n---\ndata: {name: x}",
    "many problems": "network: {name: x}\ndata: {name: x}\ntraining: {milestones: [" + "a, " * 3000 + "]}",
    "a long name": "network: {name: x}\ndata: {name: x}\n" + "k" * 20_000 + ": 1",
    "escape": 'network: {name: x}\ndata: {name: x}\n"\\e]0;title\\a": 1',
    "half a character": 'network: {name: "\\ud800"}\ndata: {name: x}',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_yaml(tmp_path: Path, harmed: Path, what: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(HOSTILE[what].replace("HARMED", str(harmed)))
    error = refused(jobs.load, path)
    assert isinstance(error, JobError)
    assert "\x1b" not in str(error)
    assert str(error).count("\n") < 30
    assert not harmed.exists()


@pytest.mark.parametrize(
    "value", ["!!python/name:os.system", "[" * 500, "*a", "0x" + "f" * 5000, "{a: 1, a: 2}", "2" * 5000]
)
def test_hostile_overrides(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError):
        jobs.load(EXAMPLE, [f"network.options={value}"])
    with pytest.raises(JobError):
        jobs.changed(jobs.load(EXAMPLE), [f"network.options.x={value}"])
    assert main(["count", "lenet5", f"x={value}", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]
    with pytest.raises(JobError):
        jobs.load(EXAMPLE, ["a" + ".a" * 2000 + "=1"])


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.dates()
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
FIELDS = [f"{section}.{field}" for section, fields in jobs.resolved(jobs.load(EXAMPLE)).items()
          if isinstance(fields, dict) for field in fields]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(field=st.sampled_from(FIELDS), value=TREES)
def test_any_value_in_any_field_of_a_job(field: str, value: object) -> None:
    """An accepted job can be written and read again."""
    data = jobs.resolved(jobs.load(EXAMPLE))
    section, _, name = field.partition(".")
    data[section][name] = value
    try:
        job = jobs.from_dict(data)
    except JobError:
        return
    assert jobs.from_dict(files.parse_yaml(jobs.to_yaml(job))) == job


# -- records and traces ---------------------------------------------------------------------------------------


@own_folders
@given(cut=st.floats(0, 1, exclude_max=True))
def test_truncated_file_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    zipped = gzip.compress(targets.BY_NAME["trace"].seeds()[0])
    for name, whole in (("record.json", targets.BY_NAME["record"].seeds()[0]), ("trace.json.gz", zipped)):
        (folder / name).write_bytes(whole[: int(cut * len(whole))])
        with pytest.raises(FileFormatError):
            PARSERS[name](folder / name)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("record.json", {"version": 2}),
        ("record.json", {"format": "another"}),
        ("record.json", {"job": {"network": 3}}),
        ("record.json", {"provenance": {"a": float("nan")}}),
        ("trace.json", {"version": 1}),
        ("trace.json", {"version": "2"}),
        ("trace.json", {"operators": [[]]}),
    ],
)
def test_other_version_or_content(tmp_path: Path, name: str, change: dict[str, object]) -> None:
    whole = json.loads(targets.BY_NAME[name.partition(".")[0]].seeds()[0])
    (tmp_path / name).write_text(json.dumps({**whole, **change}))
    refused(PARSERS[name], tmp_path / name)


def test_zip_bomb_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "trace.json.gz", "wb", 1) as stream:
        for _ in range(80):
            stream.write(b" " * 1_000_000)
    assert "unpacks to more than 100 times" in refused(Trace.load, tmp_path / "trace.json.gz").message
    with zipfile.ZipFile(tmp_path / "labels.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(15_000_000, np.int64))
        archive.writestr("sample.npy", buffer.getvalue())
    assert "bytes unzipped" in refused(PARSERS["labels.npz"], tmp_path / "labels.npz").message


def test_json_of_too_many_values_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b'{"rows": [' + b"{}," * 6_000_000 + b"{}]}")
    assert "about 12,000,00" in refused(Record.load, tmp_path / "record.json").message


# -- nothing is executed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth", "labels.npz", "trace.json", "record.json"])
@pytest.mark.parametrize("form", ["bare", "zip"])
def test_pickle_is_not_executed(tmp_path: Path, harmed: Path, name: str, form: str) -> None:
    data = pickle.dumps({"state_dict": _Harm(harmed), "sample": _Harm(harmed)})
    if form == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member in ("archive/data.pkl", "sample.npy", "label.npy"):
                archive.writestr(member, data)
            archive.writestr("archive/version", "3\n")
        data = buffer.getvalue()
    (tmp_path / name).write_bytes(data)
    refused(PARSERS[name], tmp_path / name)
    assert not harmed.exists()


def test_objects_in_arrays_are_not_created(tmp_path: Path, harmed: Path) -> None:
    objects = np.empty(1, object)
    objects[0] = _Harm(harmed)
    np.savez(tmp_path / "labels.npz", sample=objects, label=objects)
    refused(PARSERS["labels.npz"], tmp_path / "labels.npz")
    assert not harmed.exists()


def test_table_cannot_name_code_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harmful.py").write_text("from pathlib import Path\nPath(__file__).with_name('harmed').touch()\n")
    (tmp_path / "table.csv").write_text("model,batch,step_time_s\nharmful:net,1,0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    table = read_table(tmp_path / "table.csv")
    joined = join(table, table.rows)
    assert "may not name code" in joined.left_out["harmful:net@224"]
    assert not (tmp_path / "harmed").exists()


# -- run directories -------------------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A small run directory, and a file outside of it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"precious\n")
    folder = tmp_path / "run"
    folder.mkdir()
    pack.lay_out(seeds.run_entries(), folder, tmp_path / "outside")
    return folder


@own_folders
@given(shares=st.lists(st.sampled_from([None, 0.0, 0.3, 0.7, 0.99, 1.0]), min_size=8, max_size=8))
def test_half_copied_run(tmp_path_factory: pytest.TempPathFactory, shares: list[float | None]) -> None:
    """Each file is whole, truncated or missing: the readable part is read, one error covers the rest."""
    parent = tmp_path_factory.mktemp("half")
    folder = parent / "in" / "run"
    (parent / "outside").mkdir()
    folder.mkdir(parents=True)
    entries = [
        pack.Entry(e.name, e.content[: int(share * len(e.content))], e.kind)
        for e, share in zip(seeds.run_entries(), shares, strict=True)
        if share is not None
    ]
    pack.lay_out(entries, folder, parent / "outside")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len(list_runs(folder.parent)) <= 1
    with contextlib.suppress(ChronogradError):
        targets.BY_NAME["rundir"].parse(folder)
    for path, data in before.items():
        assert path.read_bytes().startswith(data), f"{path.name} was changed, not appended to"


@pytest.mark.parametrize("target", ["outside/file", "outside/new", "steps.0.jsonl", "/dev/null"])
def test_steps_are_never_written_through_a_link(whole: Path, target: str) -> None:
    path = whole / "steps.0.jsonl"
    path.unlink()
    path.symlink_to(target if target.startswith(("/", "steps")) else whole.parent / target)
    with pytest.raises(RunError, match=r"cannot write .*steps\.0\.jsonl"):
        RunDir.open(whole).step_writer()
    assert path.is_symlink()
    assert [(p.name, p.read_bytes()) for p in (whole.parent / "outside").iterdir()] == [("file", b"precious\n")]


def test_pipe_for_steps_is_neither_read_nor_written(whole: Path) -> None:
    path = whole / "steps.0.jsonl"
    path.unlink()
    os.mkfifo(path)
    refused(read_steps, path)
    refused(lambda p: RunDir(p.parent).step_writer(), path)
    assert StepFollower(path).new_lines() == []


def test_written_file_replaces_a_link_not_its_target(whole: Path) -> None:
    (whole / "record.json").symlink_to(whole.parent / "outside" / "file")
    RunDir.open(whole).save_record(Record(kind="measured", title="t"))
    assert (whole.parent / "outside" / "file").read_bytes() == b"precious\n"
    assert Record.load(whole).title == "t"


def test_old_checkpoints_are_removed_without_following_links(whole: Path) -> None:
    folder = whole / "checkpoints"
    outside = whole.parent / "outside"
    shutil.rmtree(folder)
    folder.mkdir()
    for number in (1, 5):
        (folder / f"step-{number:08d}").symlink_to(outside)
    for step in (3, 5, 7):
        files_of = {
            name: (lambda path: path.write_bytes(b"x")) for name in ("model.safetensors", "optimizer.safetensors")
        }
        checkpoint_folder.write(folder, checkpoint_folder.Progress(step=step), files_of, {})
    assert [p.name for p in checkpoint_folder.list_checkpoints(folder)] == ["step-00000005", "step-00000007"]
    assert [p.name for p in outside.iterdir()] == ["file"]


@pytest.mark.parametrize("line", [
    '{"attempt": 1, "step": 3, "step_time_s": "fast"}', '{"attempt": 1, "step": 3, "step_time_s": -1}',
    '{"attempt": 1, "step": 3, "loss": 1e999}', '{"attempt": 1, "step": 3, "forward_s": true}',
    '{"attempt": 1, "step": 3, "samples": null}', '{"attempt": 1, "step": 3, "mode": 4}',
])  # fmt: skip
def test_wrong_number_error_names_file_line_and_value(whole: Path, line: str) -> None:
    with (whole / "steps.0.jsonl").open("a") as stream:
        stream.write(f"\n{line}\n")
    with pytest.raises(FileFormatError, match=r"steps\.0\.jsonl, line \d+: '\w+' is "):
        RunDir.open(whole).read_steps()


def test_listing_shows_damaged_and_sound_runs(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, harm in enumerate(("job.yaml", "record.json")):
        copy = whole.parent / f"copy-{number}"
        shutil.copytree(whole, copy)
        (copy / harm).unlink(missing_ok=True)
        os.mkfifo(copy / harm)
    assert main(["records", "--in", str(whole.parent), "--json"]) == 0
    states = {Path(row["path"]).name: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states == {"run": "unfinished", "copy-0": "damaged", "copy-1": "damaged"}


JOB = {
    "network": {"name": "tiny_networks:random"},
    "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
    "training": {"batch": 16, "epochs": 3},
    "cluster": {"device": "cpu", "threads": 1},
}


def test_half_copied_run_resumes_or_is_refused_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real training: the copy has a torn last line, no record, and a newest checkpoint without weights."""
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(NETWORKS))
    run = train(jobs.from_dict(JOB), out=tmp_path / "run")
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    (copy / "record.json").unlink()
    *_, newest = checkpoint_folder.list_checkpoints(copy / "checkpoints")
    (newest / "model.safetensors").unlink()
    steps = copy / "steps.0.jsonl"
    steps.write_bytes(steps.read_bytes()[:-7])
    log = resume(RunDir.open(copy)).read_steps()
    assert [line.step for line in log.steps] == list(range(1, 13))
    assert (log.attempts, log.redone) == (2, 4)
    for name, harm in (("job.yaml", b"network: {"), ("environment.json", b'{"cores"')):
        broken = tmp_path / name
        shutil.copytree(run.path, broken)
        (broken / "record.json").unlink()
        (broken / name).write_bytes(harm)
        with pytest.raises(ChronogradError, match=name):
            RunDir.open(broken).environment() and resume(RunDir.open(broken))
        assert {p.name for p in broken.iterdir()} == {p.name for p in run.path.iterdir()} - {"record.json"}
