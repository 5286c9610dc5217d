"""Warnings of `plan`: times without calibration, memory that may not suffice, and every assumption once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor, nn

from chronograd import api, ask, known
from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.count.network import trace_network
from chronograd.count.tracing import trace
from chronograd.hardware import catalog
from chronograd.job import Job
from chronograd.plan.advice import recipe
from chronograd.plan.answer import list_settings, reach_goal
from chronograd.plan.effort import of_epochs, of_result, unknown
from chronograd.plan.goal import Goal
from chronograd.plan.search import SearchSpace
from chronograd.plan.serving import serve
from chronograd.plan.settings import evaluate, largest_batch
from chronograd.predict.prediction import predict, predict_step
from chronograd.predict.setting import setting_of

V100 = catalog.device("v100")
SAMPLES = 100_000


def job_of(*fields: str) -> Job:
    shape = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": SAMPLES}
    plain = {"network": {"name": "resnet20"}, "data": shape, "cluster": {"device": "v100"}}
    return jobs.changed(jobs.from_dict(plain), list(fields))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        for t in range(12):
            state = self.cell(x[:, t], state)
        out: Tensor = self.out(state)
        return out


def answers(network: nn.Module) -> list[Answer]:
    """Return the four answers of `plan`: settings, a goal, a goal with unknown epochs, and inference."""
    traced, job = trace(network, [(12, 32)]), job_of()
    of_goal: dict[str, Any] = {"goal": Goal(budget_usd=20.0)}
    inference = jobs.changed(job, ["mode=inference"])
    return [
        list_settings(traced, job, SearchSpace([V100], [1], [64], samples=SAMPLES)),
        reach_goal(
            traced, job, SearchSpace([V100], [1], [64], samples=SAMPLES), effort=of_epochs(3, SAMPLES, 64), **of_goal
        ),
        reach_goal(
            traced, job, SearchSpace([V100], [1], [64], samples=SAMPLES), effort=unknown(job, SAMPLES, 0.9), **of_goal
        ),
        serve(trace(network, [(12, 32)], mode="inference"), inference, SearchSpace([V100], [1], [64])),
    ]


def test_plan_repeats_the_warning_of_a_prediction() -> None:
    predicted = api.predict(trace(Recurrent(), [(12, 32)]), on="v100", batch=64).sections[0].lines[0]
    assert predicted.startswith("Rough: ")
    for answer in answers(Recurrent()):
        line = answer.sections[0].lines[0]
        assert re.sub(r"\d+ %", "", line) == re.sub(r"\d+ %", "", predicted)
        assert answer.as_data()["assumed"][-1] == f"rough{line[5:-1]}"
    for answer in answers(nn.Sequential(nn.Linear(32, 32), nn.Flatten(), nn.Linear(12 * 32, 10))):
        assert not any("Rough" in line for line in answer.sections[0].lines)


def test_choice_that_may_not_fit_is_reported() -> None:
    """Test between the batch that fits half of the networks and the one that fits nine of ten."""
    traced, job = trace_network("resnet20"), job_of("training.precision=fp32", "training.activation_checkpointing=none")
    found = largest_batch(traced, job)
    assert found.start_at < found.batch
    for batch, is_reported in ((found.start_at, False), (found.batch, True)):
        options: dict[str, Any] = {"effort": of_epochs(1, 10**9, batch), "goal": Goal(budget_usd=1e6)}
        goal = reach_goal(traced, job, SearchSpace([V100], [1], [batch], samples=10**9), **options)
        listed = list_settings(traced, job, SearchSpace([V100], [1], [batch], samples=10**9))
        for answer, row in ((goal, goal.as_data()["chosen"]), (listed, listed.as_data()["settings"][0])):
            lines = [line for line in answer.sections[0].lines if "may not fit" in line]
            assert len(lines) == is_reported
            assert (row["may_not_fit"] is not None) == is_reported
        notes = predict(traced, jobs.changed(job, [f"training.batch={batch}"])).notes
        assert any(note.startswith("may not fit") for note in notes) == is_reported


def test_accumulation_needs_memory_of_one_part() -> None:
    traced = trace_network("resnet20")
    table = evaluate(traced, job_of("training.accumulation=4"), ["v100"], [1], [64, 66])
    for i, batch in enumerate((64, 66)):
        job = job_of("training.accumulation=4", f"training.batch={batch}")
        assert np.ceil(table["memory_bytes"][i]) == pytest.approx(
            predict_step(traced, setting_of(job)).memory.total, abs=5
        )


def test_recipe_epochs_are_stated_once() -> None:
    results = known.known("resnet50", "imagenet")
    assert any(f"{one.epochs} epochs" in one.name for one in results)
    for one in results:
        for words in (of_result(one, 1000, None).source, recipe(one)):
            assert words.partition("; ")[0].count(f"{one.epochs} epochs") == 1


def test_fine_tuning_states_rate_and_augmentation(tmp_path: Path) -> None:
    for kind in ("cats", "dogs"):
        (tmp_path / kind).mkdir()
        for i in range(4):
            Image.new("RGB", (80, 80), (30 * i, 0, 0)).save(tmp_path / kind / f"{i}.png")
    asked = ask.ask("torchvision:resnet18", short={"data": f"folder:{tmp_path}"}, can_download=True)
    said = asked.for_a_plan(has_epochs=False)
    assert f"learning rate {asked.job.training.learning_rate:g}, schedule {asked.job.training.schedule}" in said
    assert "random crops of 50 % of the area or more, mirrored half of the time" in said
    stated = ["training.learning_rate=0.1", "training.augmentation.flip=false"]
    own = ask.ask("torchvision:resnet18", stated, {"data": f"folder:{tmp_path}"}).for_a_plan(has_epochs=False)
    assert not any("learning rate" in words or "crops" in words for words in own)


def test_instance_price_names_its_gpus() -> None:
    """Guards against `Rent 4 × h100 … $11.56 an hour`: the instance has eight."""
    answer = api.plan("resnet20", "data.name=cifar10", on=["h100"], counts=[4], budget_usd=1e6)
    chosen, text = answer.as_data()["chosen"], "\n".join(answer.opening())
    assert (chosen["count"], chosen["machines"], chosen["price"]["devices_of_instance"]) == (4, 1, 8)
    assert f"${chosen['usd_per_hour']:.2f} an hour for all 8 GPUs" in text
    assert answer.sections[0].takeaway.endswith("nly 4 of 8 GPUs run.")
    whole = api.plan("resnet20", "data.name=cifar10", on=["h100"], counts=[8], budget_usd=1e6)
    assert "an hour)" in "\n".join(whole.opening())
    assert "GPUs run" not in whole.sections[0].takeaway


def test_first_sentence_has_time_and_cost_and_explains_idle_gpus() -> None:
    answer = api.plan("resnet50", data="imagenet", to=0.75, budget=50)
    chosen, takeaway = answer.as_data()["chosen"], answer.sections[0].takeaway
    assert f": {60 * chosen['hours']:.0f} min and ${chosen['dollars']:.2f}, the fastest option" in takeaway
    assert takeaway.endswith(f"Decoding limits the speed, so only {chosen['count']} of 8 GPUs run.")
