"""Many settings evaluated together equal single predictions; the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chronograd import job as jobs
from chronograd.count.network import trace_network
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.plan.settings import evaluate, largest_batch
from chronograd.predict.calibration import from_datasheet
from chronograd.predict.collectives import ALGORITHMS
from chronograd.predict.memory import footprint_of_job, overhead, reserve_bytes
from chronograd.predict.prediction import predict, predict_step
from chronograd.predict.setting import setting_of
from chronograd.trace import Trace

DEVICES = ("k80", "v100", "h100", "cpu")
COUNTS = (1, 2, 3, 8, 16, 100)
BATCHES = (1, 4, 48)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_network("resnet20")


def job_of(*fields: str) -> jobs.Job:
    plain = jobs.from_dict(
        {
            "network": {"name": "resnet20"},
            "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10},
            "training": {"recipe": "sgd-momentum"},
            "cluster": {"device": "v100"},
        }
    )
    return jobs.changed(plain, fields)


@pytest.mark.parametrize(
    "fields",
    [
        (),
        ("training.zero_stage=3", "training.activation_checkpointing=blocks"),
        ("training.optimizer=adamw", "training.zero_stage=1", "cluster.per_node=2"),
        ("cluster.step_sigma_log=0.1", "cluster.input_samples_per_s=1000"),
    ],
    ids=lambda fields: " ".join(fields) or "plain",
)
def test_columns_match_single_predictions(trace: Trace, fields: tuple[str, ...]) -> None:
    table = evaluate(trace, job_of(*fields), DEVICES, COUNTS, BATCHES, ALGORITHMS)
    num = len(DEVICES) * len(COUNTS) * len(BATCHES) * len(ALGORITHMS)
    assert {len(column) for column in table.values()} == {num}
    for i in np.random.default_rng(1).choice(num, 60, replace=False):
        count, batch = int(table["count"][i]), int(table["batch_per_rank"][i])
        job = job_of(*fields, f"cluster.count={count}", f"training.batch={batch * count}")
        device = catalog.device(DEVICES[table["device"][i]])
        step = predict_step(trace, setting_of(job, ALGORITHMS[table["algorithm"][i]], device))
        assert table["step_time_s"][i] == pytest.approx(step.seconds, rel=1e-9)
        assert table["throughput_samples_per_s"][i] == pytest.approx(batch * count / step.seconds, rel=1e-9)
        assert np.ceil(table["memory_bytes"][i]) == pytest.approx(step.memory.total, abs=5)
        needed = overhead(device, job.mode).median * step.memory.total + reserve_bytes(device)
        assert table["fits"][i] == (needed <= device.usable_bytes)


def test_a_cpu_whose_caches_stay_warm(trace: Trace) -> None:
    """The memory of one rank decides what a small network saves, for every number of ranks."""
    warm = replace(from_datasheet(catalog.device("cpu")), warm_update=0.5, warm_pass_s=1e-5, cache_bytes=2**25)
    device = catalog.device("cpu").model_copy(update={"calibration": {"settings": [warm.to_table()]}})
    table = evaluate(trace, job_of(), [device], (1, 2, 4), (4, 48))
    for count, batch, step_s in zip(table["count"], table["batch_per_rank"], table["step_time_s"], strict=True):
        job = job_of(f"cluster.count={count}", f"training.batch={batch * count}")
        assert step_s == pytest.approx(predict_step(trace, setting_of(job, "ring", device)).seconds, rel=1e-9)


def test_fixed_batch_trace_is_refused() -> None:
    fixed = trace_network("resnet20", fixed_batch=8)
    with pytest.raises(InputError, match="batch 8 only"):
        evaluate(fixed, job_of(), DEVICES, COUNTS, BATCHES)


def test_recomputed_blocks_add_to_backward(trace: Trace) -> None:
    batch = "training.batch=256"
    plain = predict_step(trace, setting_of(job_of(batch))).parts
    saving = predict_step(trace, setting_of(job_of(batch, "training.activation_checkpointing=blocks"))).parts
    added = saving["backward_s"] - plain["backward_s"]
    # All except the stem, the head and the loss.
    assert 0.85 * plain["forward_s"] < added < plain["forward_s"]
    assert saving["forward_s"] == plain["forward_s"]


def test_zero_stage_3_sends_50_per_cent_more(trace: Trace) -> None:
    many = ("cluster.count=8", "training.batch=2048")
    total = {s: predict_step(trace, setting_of(job_of(*many, f"training.zero_stage={s}"))) for s in (0, 1, 2, 3)}
    seconds = {s: step.communication.total_s for s, step in total.items()}
    assert seconds[1] == seconds[2] == seconds[0]
    assert seconds[3] == pytest.approx(1.5 * seconds[0])
    assert total[3].memory.optimizer_state == pytest.approx(total[0].memory.optimizer_state / 8, abs=1)


def test_largest_batch_fills_the_device(trace: Trace) -> None:
    found = largest_batch(trace, job_of())
    assert found.capacity_bytes == catalog.device("v100").usable_bytes
    by_batch = dict(found.rows)
    assert found.fits(by_batch[found.batch])
    assert not found.fits(by_batch[found.batch + 1])
    assert found.start_at % 8 == 0
    # Settings recommended by `plan` use the same factor.
    table = evaluate(trace, job_of(), ("v100",), (1,), (found.batch, found.batch + 1), ("ring",))
    assert table["fits"].tolist() == [True, False]
    room = found.capacity_bytes - found.reserve_bytes
    assert by_batch[found.batch].total == pytest.approx(room / 1.19, rel=0.01)  # the fitted value for a GPU in training
    assert by_batch[found.start_at].total == pytest.approx(room / 1.75, rel=0.01)
    half = largest_batch(trace, job_of(), capacity_bytes=2 * 10**9, reserve=0)
    assert half.batch == pytest.approx(2e9 / 1.19 / (by_batch[found.batch].activations / found.batch), rel=0.01)
    more = largest_batch(trace, job_of("training.activation_checkpointing=blocks"))
    assert more.batch > 1.5 * found.batch


def test_prediction_lists_layers_and_fit(trace: Trace) -> None:
    record = predict(trace, job_of("training.batch=64"))
    layers, best = record.tables.layers, record.tables.most_to_win
    assert len(layers) >= 12
    assert [row.time_to_win_s for row in best] == sorted((r.time_to_win_s for r in layers), reverse=True)[:3]
    passes = record.value("forward_s") + record.value("backward_s")
    assert sum(row.time_s for row in layers) == pytest.approx(passes)
    assert 0 < record.value("ppp") < 1
    too_many = predict(trace, job_of("training.batch=400000"))
    assert any("does not fit" in note for note in too_many.notes)
    lines, device = footprint_of_job(trace, job_of()), catalog.device("v100")
    alone = lines.largest_batch(device.usable_bytes - reserve_bytes(device))
    sure = lines.largest_batch((device.usable_bytes - reserve_bytes(device)) / 1.75)
    for batch, start in (
        (alone + 1, "does not fit: "),
        (alone, "may not fit: "),
        (sure + 1, "may not fit: "),
        (sure, ""),
    ):
        notes = predict(trace, job_of(f"training.batch={batch}")).notes
        assert [note for note in notes if "not fit" in note[:14]] == [
            note for note in notes if start and note.startswith(start)
        ]
        assert any(note.startswith(start) for note in notes) or not start
