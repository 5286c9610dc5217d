"""Strong and weak scaling from a trace: the rows and their summary."""

from __future__ import annotations

from typing import Any

import pytest

from chronograd import job as jobs
from chronograd.compare.ranks import communication_section
from chronograd.compare.scaling import Ladder, Scaling, predict_scaling
from chronograd.count.network import trace_network
from chronograd.errors import InputError, JobError
from chronograd.hardware import market
from chronograd.predict.prediction import StepModel, predict
from chronograd.predict.setting import setting_of
from chronograd.record import Quantity, Record

TRACE = trace_network("alexnet-v2")


def job(batch: int = 2048, **cluster: Any) -> jobs.Job:
    return jobs.from_dict(
        {
            "network": {"name": "alexnet-v2"},
            "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
            "training": {"recipe": "sgd", "batch": batch, "epochs": 3},
            "cluster": {"device": "v100", **cluster},
            "backend": "ddp",
        }
    )


def rows(one: jobs.Job, worlds: list[int], scaling: Scaling = "strong", **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = predict_scaling(TRACE, [one], worlds, scaling, **options).as_data()["rows"]
    return found


def test_strong_and_weak_scaling() -> None:
    strong = rows(job(), [1, 2, 3, 8, 64])
    assert [row["batch_per_rank"] for row in strong] == [2048, 1024, 683, 256, 32]
    assert [row["nodes"] for row in strong] == [1, 1, 1, 1, 8]
    assert strong[0]["speed_up"] == strong[0]["efficiency"] == 1.0
    assert strong[1]["speed_up"] == pytest.approx(strong[0]["step_time_s"] / strong[1]["step_time_s"])
    # The last of three ranks has 682 samples; its padding sample does not count.
    assert strong[2]["throughput_samples_per_s"] == pytest.approx(2048 / strong[2]["step_time_s"])
    price = market.price_of("v100", count=8)
    assert price is not None
    hours = strong[3]["step_time_s"] / 3600
    expected = float(price.usd_per_hour(8)) * hours / 2048 * 1e6
    assert strong[3]["usd_per_million_samples"] == pytest.approx(expected)
    weak = rows(job(count=8), [1, 8, 16, 64], "weak", model=StepModel("hierarchical"))
    assert {row["batch_per_rank"] for row in weak} == {256}
    efficiencies = [row["efficiency"] for row in weak]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert weak[1]["efficiency"] == pytest.approx(weak[0]["step_time_s"] / weak[1]["step_time_s"])


def test_computation_exchange_and_input_sum_to_the_step() -> None:
    """A node of eight ranks decodes 6000 images/s: one rank with batch 256 does not wait, eight ranks do."""
    one, eight = Ladder(job(count=8, input_samples_per_s=6000), TRACE).predicted([1, 8], "weak")
    alone = predict(TRACE, job(256))
    for point, stall_s in ((one, 0.0), (eight, 8 * 256 / 6000 - alone.value("step_time_s"))):
        assert point.step_time_s is not None
        assert point.compute_s == pytest.approx(alone.value("step_time_s"))
        assert point.input_stall_s == pytest.approx(stall_s - (point.communication_exposed_s or 0.0), abs=1e-9)
        parts = (point.compute_s, point.input_stall_s, point.communication_exposed_s)
        assert sum(part or 0.0 for part in parts) == pytest.approx(point.step_time_s)
        assert point.communication_by_difference_s == pytest.approx(point.communication_exposed_s, abs=1e-9)
    # If one rank waits for input, too, that wait is not computation.
    (slow,) = Ladder(job(256, input_samples_per_s=100), TRACE).predicted([1], "strong")
    assert slow.step_time_s == pytest.approx(256 / 100)
    assert slow.compute_s == pytest.approx(alone.value("step_time_s"))
    section = communication_section("Communication", [eight.model_dump()])
    assert section.table is not None
    assert "waiting for input" in section.table.columns
    assert section.figure is not None
    (bars,) = section.figure.panels
    assert list(bars.bars[0].segments) == ["computation", "waiting for input", "exposed communication"]


def test_used_bandwidth_is_ring_bytes_over_exposed_time() -> None:
    """Each rank's link carries 2(n - 1)/n times the gradients: four bytes for each parameter."""
    (point,) = Ladder(job(), TRACE).predicted([4], "strong")[-1:]
    link = setting_of(job(count=4)).link
    assert link is not None
    assert point.world == 4
    assert point.communication_exposed_s
    moved = 2 * 3 / 4 * 4 * TRACE.params
    assert point.bandwidth_utilisation == pytest.approx(
        moved / point.communication_exposed_s / link.bandwidth_bytes_per_s
    )


def test_summary_follows_from_the_rows() -> None:
    answer = predict_scaling(TRACE, [job(), job(device="h100")], [2, 8], "strong", samples=4096)
    first, second = answer.sections
    assert [table["device"] for table in answer.as_data()] == ["v100", "h100"]
    row = answer.as_data()[0]["rows"][1]
    assert f"8 ranks are predicted to give {row['speed_up']:.2f} times the throughput of one" in first.takeaway
    assert first.table is not None
    assert first.figure is not None
    assert first.table.columns[0] == "ranks"
    assert [cells[0] for cells in first.table.rows] == ["2", "8"]
    assert second.title.endswith("on h100")
    (_, eight) = Ladder(job(), TRACE, 4096).predicted([2, 8], "strong")
    assert eight.training_time_s == pytest.approx(3 * 2 * row["step_time_s"])
    assert eight.communication_by_difference_s == pytest.approx(
        row["step_time_s"] - predict(TRACE, job(256)).value("step_time_s")
    )


def test_weak_scaling_keeps_the_batch_of_a_rank() -> None:
    """Measured and predicted points of a job of 8 ranks with 256 samples each."""

    def measure(one: jobs.Job) -> Record:
        record = Record(kind="measured", title="planted", backend=one.backend)
        record.put("step_time_s", Quantity(value=0.1, unit="s"))
        return record

    ladder = Ladder(job(count=8), TRACE)
    measured = ladder.measured([1, 16], "weak", measure, lambda line: None)
    predicted = ladder.predicted([1, 16], "weak")
    for points in (measured, predicted):
        assert [(point.batch, point.per_rank) for point in points] == [(256, 256), (4096, 256)]


def test_paleo_scaling_matches_its_released_code() -> None:
    """AlexNet v2 over 20 Gbit/s with batch 2048 is 3.71 times as fast on 8 K80s."""
    k80 = job(device="k80", per_node=1, link="ethernet-10g")
    (row,) = rows(k80, [8], model=StepModel("tree", (0.62, 1.0)))
    # Twice 10 Gbit/s by a PPP of 2 is not allowed, so the exchange takes twice as long: 3365.3 / (423.3 + 2 · 482.9).
    assert row["speed_up"] == pytest.approx(3365.3 / (3365.3 / 3.7133 + 482.9), rel=1e-3)
    record = predict(TRACE, job(device="k80"), StepModel(ppp=(0.62, 1.0)))
    assert record.value("step_time_s") == pytest.approx(3.3653, abs=5e-5)
    assert record["step_time_s"].source.startswith("PALEO")


@pytest.mark.parametrize(("mode", "counts"), [("string", [1]), ("strong", []), ("weak", [0, 1])])
def test_invalid_scaling_arguments(mode: Scaling, counts: list[int]) -> None:
    with pytest.raises(InputError, match="strong or weak"):
        rows(job(), counts, mode)


def test_rank_without_sample_and_unknown_device() -> None:
    with pytest.raises(JobError, match="at least one sample"):
        rows(job(batch=4), [8])
    with pytest.raises(InputError, match="unknown device"):
        Ladder(job(device="v1000"), TRACE).predicted([2], "strong")
