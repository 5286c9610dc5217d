"""Traces of other tools and versions, and contradictory traces: read, or refused for the real reason."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError
from chronograd.explain import answer, profiler
from chronograd.explain.trace_file import distinguished

FOLDER = Path(__file__).parent / "foreign"
# Text in the answer; the step time of a trace, and the busy share of its device.
READ = {
    "array_without_end.json": ["follows a wait of the host", "a step of 1 ms"],
    "begin_end.json": ["follows a wait of the host", "a step of 1 ms"],
    "rocm_mi250.json": [
        "AMD Instinct MI250X",
        "follows a wait of the host",
        "no kernel runs in 400 µs of a step of 1 ms",
    ],
    "long_kernel_names.json": ["nn_align8", "tn_align8"],
    "cpu_resnet.pt.trace.json": ["aten::mkldnn_convolution took 17.8 ms by itself, 59 %", "aten::addmm"],
    "negative_duration.json": ["contradicts itself: 1 of 33 events ends before it begins"],
    "overlap_on_stream.json": ["contradicts itself: 4 of 8 kernels overlap"],
    "nanoseconds.json": ["the unit of time is unclear"],
}
REFUSED = {
    "jax.trace.json.gz": "written by JAX or TensorFlow",
    "steps_on_another_clock.json": "contradicts itself: all kernels run before its 4 steps, 1 h 00 min away",
    "cut_off.json": "cut off in line 1",
}


@pytest.mark.parametrize("name", READ)
def test_reads_foreign_traces(name: str) -> None:
    made = answer.explain([FOLDER / name])
    text = json.dumps([*made.notes, *(vars(section) for section in made.sections)], default=str, ensure_ascii=False)
    for told in READ[name]:
        assert told in text


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_states_the_real_reason(name: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        profiler.read([FOLDER / name])
    assert REFUSED[name] in caught.value.message


def test_every_file_has_an_expected_result() -> None:
    assert {path.name for path in FOLDER.iterdir()} == READ.keys() | REFUSED.keys()


def as_strings(trace: str) -> str:
    data = json.loads(trace)
    return json.dumps(
        {**data, "traceEvents": [{**e, "ts": str(e["ts"])} if "ts" in e else e for e in data["traceEvents"]]}
    )


def test_equal_traces_in_different_formats(tmp_path: Path) -> None:
    """Zipped, compressed, with times as strings, or with a NaN counter: equal steps and device time."""
    text = (FOLDER / "rocm_mi250.json").read_text()
    (whole,) = profiler.read([FOLDER / "rocm_mi250.json"])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("trace.json", text)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.json").write_text(as_strings(text))
    (tmp_path / "d.json").write_text(text.replace('"stream": 7', '"stream": 7, "est. achieved occupancy %": nan'))
    for path in sorted(tmp_path.iterdir()):
        (found,) = profiler.read([path])
        assert found.first.step_s.tolist() == pytest.approx(whole.first.step_s.tolist())
        assert found.first.device == whole.first.device


def test_different_names_stay_different() -> None:
    names = ["void " + "cutlass<" * 12 + end for end in ("nn>", "nt>", "tn>")] + ["relu"]
    short = distinguished(names)
    assert len(set(short)) == 4
    assert all(len(name) <= 60 for name in short)
