"""Trace files round-trip, and damaged ones raise one kind of error."""

from __future__ import annotations

import copy
import gzip
import json
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chronograd.errors import FileFormatError, InputError
from chronograd.trace import (
    CONV_KINDS,
    DTYPE_BYTES,
    KINDS,
    PHASES,
    ROLES,
    Affine,
    Operator,
    Storage,
    Tensor,
    Trace,
)

AMOUNTS = st.builds(Affine, st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
WORDS = st.text(string.printable, max_size=8)
SHAPES = st.lists(AMOUNTS, max_size=4).map(tuple)
# Kinds with arbitrary attributes.
PLAIN_KINDS = [k for k in KINDS if k not in (*CONV_KINDS, "attention", "recurrent")]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A strategy of traces with valid ids."""
    n_operators = draw(st.integers(0, 4))
    births = st.integers(-1, n_operators - 1) if n_operators else st.just(-1)
    deaths = st.none() | st.integers(0, max(n_operators - 1, 0))
    storages = draw(
        st.lists(st.builds(Storage, AMOUNTS, st.sampled_from(ROLES), births, deaths), min_size=1, max_size=4)
    )
    ids = st.integers(0, len(storages) - 1)
    tensors = draw(st.lists(st.builds(Tensor, ids, SHAPES, st.sampled_from(sorted(DTYPE_BYTES)), WORDS), min_size=1))
    tensor_ids = st.lists(st.integers(0, len(tensors) - 1), max_size=3)
    attributes = st.dictionaries(WORDS, st.integers() | st.booleans() | st.none() | st.lists(st.integers()), max_size=3)
    operator = st.builds(
        Operator,
        *(st.sampled_from(PHASES), st.sampled_from(PLAIN_KINDS), WORDS, WORDS, st.integers(0, 9)),
        *(tensor_ids.map(tuple), tensor_ids.map(tuple), attributes, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS),
        st.none() | st.integers(0, max(n_operators - 1, 0)),
    )
    operators = draw(st.lists(operator, min_size=n_operators, max_size=n_operators))
    return Trace(
        *(draw(WORDS), draw(WORDS), draw(WORDS), draw(st.lists(SHAPES, max_size=2)), operators, tensors, storages),
        modules=draw(st.dictionaries(WORDS, WORDS, max_size=3)),
        inputs=draw(tensor_ids),
        outputs=draw(tensor_ids),
        notes=draw(st.lists(WORDS, max_size=2)),
        versions=draw(st.dictionaries(WORDS, WORDS, max_size=2)),
        frozen=draw(st.lists(WORDS, max_size=2)),
        keras_extra=draw(st.dictionaries(WORDS, st.integers(), max_size=2)),
        fixed_batch=draw(st.none() | st.integers(1, 99)),
    )


def small() -> Trace:
    """A trace of two storages and one product, small enough to damage every part of it."""
    storages = [Storage(Affine(24, 0), "parameter", -1), Storage(Affine(0, 16), "activation", 0, 0)]
    tensors = [Tensor(0, (Affine(2, 0), Affine(3, 0)), "float32", "weight"), Tensor(1, (Affine(0, 1),), "float32")]
    operator = Operator(
        *("forward", "gemm", "mm", "layer", 0, (0, 0), (1,), {}),
        *(Affine(0, 6), Affine(0, 0), Affine(24, 8), Affine(0, 16)),
    )
    return Trace(
        *("net", "training", "sum", [(Affine(0, 1), Affine(2, 0))], [operator], tensors, storages),
        modules={"layer": "Linear"},
        inputs=[1],
        outputs=[1],
        notes=["a note"],
        versions={"torch": "2"},
    )


# -- round trips ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(traces(), st.sampled_from(["t.json", "t.json.gz"]))
def test_saved_trace_round_trips(tmp_path: Path, trace: Trace, name: str) -> None:
    trace.save(tmp_path / name)
    assert Trace.load(tmp_path / name) == trace


def test_gz_is_written_by_name_and_read_by_content(tmp_path: Path) -> None:
    trace = small()
    trace.save(tmp_path / "plain.json")
    trace.save(tmp_path / "packed.json.gz")
    assert (tmp_path / "plain.json").read_bytes().startswith(b'{"format":"chronograd-trace","version":2')
    assert gzip.decompress((tmp_path / "packed.json.gz").read_bytes()) == (tmp_path / "plain.json").read_bytes()
    (tmp_path / "packed.json.gz").rename(tmp_path / "misnamed.json")
    assert Trace.load(tmp_path / "misnamed.json") == trace
    before = (tmp_path / "plain.json").read_bytes()
    trace.save(str(tmp_path / "plain.json"))
    assert (tmp_path / "plain.json").read_bytes() == before  # the same trace, the same bytes
    assert sorted(p.name for p in tmp_path.iterdir()) == ["misnamed.json", "plain.json"]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*No such file"):
        small().save(tmp_path / "none" / "t.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        small().save(tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


# -- damage -----------------------------------------------------------------------------------------


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"there is no file .*nothing\.json"):
        Trace.load(tmp_path / "nothing.json")
    with pytest.raises(FileFormatError, match="is a folder, not a trace"):
        Trace.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"1", b'"text"', b"{}", b'{"format":"other"}', b"\xff\xfe", b"\x1f\x8b", b"\x1f\x8bxx"],
)
def test_other_kind_of_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(FileFormatError):
        Trace.load(tmp_path / "t.json")


def test_deep_nesting(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[" * 200_000)
    with pytest.raises(FileFormatError):
        Trace.load(tmp_path / "t.json")


@pytest.mark.parametrize("key", ["architectures", "model_type"])
def test_model_configuration_is_recognized(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: "llama", "hidden_size": 64}))
    with pytest.raises(FileFormatError, match=r"is the configuration of a large model[\s\S]*chronograd predict"):
        Trace.load(path)


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, [2]])
def test_other_version(version: Any) -> None:
    with pytest.raises(FileFormatError, match="trace version"):
        Trace.from_json({**small().to_json(), "version": version})


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_truncated_anywhere(tmp_path: Path, name: str) -> None:
    small().save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            Trace.load(tmp_path / name)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_bits_flipped_anywhere(tmp_path: Path, name: str) -> None:
    """The result is another usable trace, or one kind of error."""
    small().save(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    rng = random.Random(0)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        (tmp_path / name).write_bytes(damaged)
        try:
            use(Trace.load(tmp_path / name))
        except FileFormatError:
            continue


def use(trace: Trace) -> None:
    """Use a trace as its readers do."""
    assert trace.params >= 0 or trace.params < 0
    assert np.isfinite(trace.live_bytes(3)).all()
    assert len(trace.columns["kind"]) == len(trace.operators)
    trace.flops(2)
    trace.uncounted()


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every path in nested lists and tables."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(p for key, inner in items for p in paths(inner, (*prefix, key)))]


def plain() -> Any:
    return json.loads(json.dumps(small().to_json()))


def nested() -> Any:
    """Return the data of a trace with operators whose attributes become columns."""
    data = plain()
    conv = {"kernel": [3, 3], "groups": 1, "in_channels": 3, "out_channels": 8}
    steps = {"layers": 1, "directions": 2, "steps": 3, "depth": 4, "width": 5}
    for kind, attributes in (("conv_3x3", conv), ("attention", {"head_dim": 4, "keys": 5}), ("recurrent", steps)):
        data["operators"].append([*plain()["operators"][0]])
        data["operators"][-1][1], data["operators"][-1][7] = kind, attributes
    return data


JUNK = [None, -2, 99, 2**70, 1.5, float("nan"), "junk", [], {}, [[[]]], True]


@pytest.mark.parametrize("place", paths(nested())[1:], ids=lambda p: ".".join(map(str, p)))
def test_junk_in_any_place(place: tuple[Any, ...]) -> None:
    for junk in JUNK:
        data = nested()
        inner = data
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = copy.copy(junk)
        try:
            trace = Trace.from_json(data)
        except FileFormatError:
            continue
        use(trace)


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        ("tensors", 0, 0, 2),
        ("tensors", 0, 0, -1),
        ("tensors", 0, 0, 2**63),
        ("operators", 0, 5, [0, 7]),
        ("operators", 0, 6, [-1]),
        ("operators", 0, 12, 1),
        ("operators", 0, 12, -1),
        ("operators", 0, 0, "sideways"),
        ("operators", 0, 1, "magic"),
        ("operators", 0, 8, [0, 2**70]),
        ("storages", 0, 2, "role"),
        ("storages", 0, 3, 5),
        ("storages", 0, 3, -2),
        ("storages", 1, 4, 5),
    ],
)
def test_ids_out_of_range_and_unknown_words(table: str, row: int, column: int, value: Any) -> None:
    data = plain()
    data[table][row][column] = value
    with pytest.raises(FileFormatError, match="is damaged"):
        Trace.from_json(data, "mine.json")


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_missing_inputs(key: str) -> None:
    with pytest.raises(FileFormatError, match="damaged"):
        Trace.from_json({**plain(), key: [2]})


@pytest.mark.parametrize("key", sorted(set(plain()) - {"format", "version", "operator_fields"}))
def test_missing_part(key: str) -> None:
    data = plain()
    del data[key]
    with pytest.raises(FileFormatError, match=key):
        Trace.from_json(data)


@pytest.mark.parametrize("table", ["storages", "tensors", "operators"])
def test_rows_too_short_and_too_long(table: str) -> None:
    for row in ([], plain()[table][0][:2], [*plain()[table][0], 0, 0]):
        data = plain()
        data[table][0] = row
        with pytest.raises(FileFormatError, match="damaged"):
            Trace.from_json(data)


# -- amounts ----------------------------------------------------------------------------------------


@given(AMOUNTS, AMOUNTS, st.integers(1, 99), st.integers(-9, 9))
def test_amounts_are_linear_in_the_batch(a: Affine, b: Affine, batch: int, factor: int) -> None:
    assert a.plus(b).at(batch) == a.at(batch) + b.at(batch)
    assert a.times(factor).at(batch) == factor * a.at(batch)


def test_live_bytes_by_hand() -> None:
    trace = small()
    trace.operators = trace.operators * 3
    trace.storages = [
        Storage(Affine(100, 0), "parameter", -1),
        Storage(Affine(0, 7), "activation", 0, 1),
        Storage(Affine(1, 1), "activation", 2),
    ]
    assert trace.live_bytes(2).tolist() == [114, 114, 103]
    assert trace.live_bytes(3).tolist() == [121, 121, 104]


def test_columns_by_hand() -> None:
    columns = small().columns
    assert [KINDS[k] for k in columns["kind"]] == ["gemm"]
    assert [PHASES[p] for p in columns["phase"]] == ["forward"]
    assert columns["macs"].tolist() == [[0, 6]]
    assert columns["read_bytes"].tolist() == [[24, 8]]
    assert (columns["depth"].tolist(), columns["width"].tolist()) == ([[3, 0]], [[3, 0]])


def test_trace_needs_no_torch(tmp_path: Path) -> None:
    small().save(tmp_path / "t.json.gz")
    code = """
import sys
for name in ("torch", "torchvision", "timm"):
    sys.modules[name] = None
from chronograd.trace import Trace
from chronograd.predict.memory import peak_memory
trace = Trace.load(sys.argv[1])
print(trace.flops(3), peak_memory(trace, 3).parameters)
"""
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t.json.gz")], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["36", "24"]
