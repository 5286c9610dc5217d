"""Fuzzing corpus: every input that once failed is accepted or gives one clear error in time, without execution."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random

import pytest
from benchmarks.fuzzing import session, targets, torch_targets, verb_targets, watch
from benchmarks.fuzzing.session import NAMES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz

CORPUS = Path(__file__).parent / "fuzz_corpus"
BY_NAME = {**targets.BY_NAME, **verb_targets.BY_NAME, **torch_targets.BY_NAME}
INPUTS = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda p: str(p.relative_to(CORPUS)))
def test_corpus_inputs_pass(path: Path) -> None:
    with watch.watching() as scratch:
        assert watch.tried(BY_NAME[path.parent.name], path.read_bytes(), scratch) is None


def test_every_target_has_valid_seeds() -> None:
    assert set(NAMES) == set(BY_NAME)
    assert {path.parent.name for path in INPUTS} <= set(NAMES)
    with watch.watching() as scratch:
        for target in BY_NAME.values():
            for seed in target.seeds():
                assert watch.tried(target, seed, scratch) is None, target.name


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(number=st.integers(0, 2**32), rounds=st.integers(1, 4))
def test_damaged_input_is_refused(name: str, number: int, rounds: int) -> None:
    """Mutations keep the form of a valid input, like those of the fuzzers."""
    target, random = BY_NAME[name], Random(number)
    seeds = target.seeds()
    data = seeds[number % len(seeds)]
    for _ in range(rounds):
        data = target.mutate(data, random)
    with watch.watching() as scratch:
        assert watch.tried(target, data[: target.most_bytes], scratch) is None


@pytest.mark.fuzz
def test_one_second_of_fuzzing(tmp_path: Path) -> None:
    """The whole harness in a separate process, on the fastest parser."""
    row = fuzz.fuzz("prices", 1.0, tmp_path)
    assert row["inputs"] > 20
    assert row["branches"] > 5
    assert (row["findings"], row["deaths"]) == ([], 0)
    assert 10**7 < row["peak_bytes"] < session.MAX_DATA_BYTES
    fuzz.save(tmp_path / "fuzz.json", {"prices": row})
    assert json.loads((tmp_path / "fuzz.json").read_text())["targets"]["prices"] == row


def test_missing_extra_states_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert fuzz.main(["--target", "job"]) == 3
    assert "[fuzz]" in capsys.readouterr().err


def compute(seconds: float) -> None:
    """Use this much CPU time at any speed."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


class TestWatch:
    """The watch detects each kind of harm."""

    @pytest.mark.parametrize(
        ("parse", "kind"),
        [
            (lambda folder: [][0], "traceback"),
            (lambda folder: __import__("os").system("true"), "executed"),
            (lambda folder: (folder.parent / "outside" / "file").write_bytes(b""), "changed"),
            (lambda folder: (folder.parent / "outside" / "file").unlink(), "changed"),
            (lambda folder: Path("/tmp/chronograd-elsewhere").open("ab").close(), "changed"),
            (lambda folder: (folder / "pipe").read_bytes(), "hang"),
            (lambda folder: compute(0.3), "slow"),
        ],
        ids=["traceback", "executed", "changed", "removed", "elsewhere", "hang", "slow"],
    )
    def test_watch_detects(self, monkeypatch: pytest.MonkeyPatch, parse: object, kind: str) -> None:
        monkeypatch.setattr(watch, "MAX_WAIT_S", 1.5)
        monkeypatch.setattr(watch, "MAX_CPU_S", 0.1)
        pipe = b"==== pipe fifo\n"
        target = targets.Target("t", targets.as_folder, parse, lambda: [pipe], lambda data, random: data)  # type: ignore[arg-type]
        with watch.watching() as scratch:
            finding = watch.tried(target, pipe, scratch)
        assert finding is not None
        assert finding.kind == kind

    def test_target_may_allow_more_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "MAX_CPU_S", 0.1)
        target = targets.Target(
            "t", targets.as_folder, lambda folder: compute(0.3), list, lambda data, random: data, max_cpu_s=60.0
        )
        with watch.watching() as scratch:
            assert watch.tried(target, b"", scratch) is None
