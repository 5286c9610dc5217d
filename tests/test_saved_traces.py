"""A network and its saved trace give the same answer; missing features of a trace are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chronograd
from chronograd import ask
from chronograd.count.cached import cached_trace
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError

# Networks of the zoo with and without a published recipe, a transformer, and one of a library.
NETWORKS = ("resnet20", "small-cnn", "gpt2-small", "torchvision:mobilenet_v2", "resnet9")
GOALS: dict[str, dict[str, Any]] = {
    "settings": {},
    "budget": {"budget_usd": 1e6},
    "accuracy": {"target_accuracy": 0.7, "budget_usd": 1e6, "deadline_s": 1e8, "epochs_to_target": 30},
    "largest": {"largest_batch": True},
}
NCHW = "training.channels_last=false"
ONE_LAYOUT = "Memory layout NCHW only: a saved trace has one layout; name the network to search both."


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("traces")

    def save(network: str, mode: str = "training") -> str:
        path = folder / f"{network.replace(':', '-')}.{mode}.json.gz"
        if not path.exists():
            cached_trace(network, mode=mode).save(path)
        return str(path)

    return save


def without_names(data: Any) -> Any:
    """Return the data of an answer without the time and the typed network."""
    if isinstance(data, dict):
        typed = ("created", "network")
        return {key: without_names(value) for key, value in data.items() if key not in typed}
    return [without_names(one) for one in data] if isinstance(data, list) else data


@pytest.mark.parametrize("network", NETWORKS)
def test_predict_on_a_trace_equals_its_network(network: str, saved: Any) -> None:
    changes = [NCHW, "training.precision=fp32"]
    by_name = chronograd.predict(network, *changes, on="v100")
    by_trace = chronograd.predict(saved(network), *changes, on="v100")
    assert without_names(by_trace.as_data()) == without_names(by_name.as_data())
    assert by_trace.opening() == by_name.opening()


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("network", NETWORKS)
def test_plan_on_a_trace_equals_its_network(network: str, goal: str, saved: Any) -> None:
    asked = {**GOALS[goal], "on": ["v100"]}
    by_name = chronograd.plan(network, NCHW, "training.precision=fp32", "data.image_size=null", **asked)
    by_trace = chronograd.plan(saved(network), NCHW, "training.precision=fp32", **asked)
    assert without_names(by_trace.as_data()) == without_names(by_name.as_data())


@pytest.mark.parametrize("network", NETWORKS)
def test_inference_on_a_trace_equals_its_network(network: str, saved: Any) -> None:
    asked = {"on": ["t4"], "latency_s": 0.05}
    by_name = chronograd.plan(network, "mode=inference", NCHW, "training.precision=fp32", **asked)
    by_trace = chronograd.plan(saved(network, "inference"), NCHW, "training.precision=fp32", **asked)
    assert without_names(by_trace.as_data()) == without_names(by_name.as_data())


def test_judge_on_a_trace_equals_its_network(saved: Any) -> None:
    by_name = chronograd.judge("resnet50", "312 images/s", NCHW, on="v100", precision="fp32")
    by_trace = chronograd.judge(saved("resnet50"), "312 images/s", NCHW, on="v100", precision="fp32")
    assert by_trace.data["setting"] == by_name.data["setting"]
    assert by_trace.data["expected_samples_per_s"] == by_name.data["expected_samples_per_s"]
    assert by_trace.data["verdict"] == by_name.data["verdict"]
    open_layout = chronograd.judge(saved("resnet50"), "312 images/s", on="v100", precision="fp32")
    assert open_layout.data["setting"]["only_layout"] == [ONE_LAYOUT]


def test_inference_trace_is_refused_for_training(saved: Any) -> None:
    """`plan` once used its forward pass as a whole training step."""
    path = saved("resnet20", "inference")
    assert {record.job.mode for record in chronograd.predict(path, on="v100").records.values()} == {"inference"}
    for verb in (chronograd.predict, chronograd.plan):
        with pytest.raises(InputError, match="the job has mode=training"):
            verb(path, "mode=training", on=["v100"])


def test_training_trace_is_refused_for_inference(saved: Any) -> None:
    """`plan` once reported its forward pass in training mode as a latency."""
    with pytest.raises(InputError, match="the job has mode=inference"):
        chronograd.plan(saved("resnet20"), "mode=inference", on=["v100"])
    with pytest.raises(InputError, match="the job has mode=inference"):
        chronograd.judge(saved("resnet20"), "900 images/s", on="v100", mode="inference")


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_layout_of_a_trace_is_stated(mode: str, saved: Any) -> None:
    answer = chronograd.plan(saved("resnet20", mode), on=["v100"])
    assert ONE_LAYOUT in answer.notes
    assert ONE_LAYOUT in answer.as_data()["assumed"]
    assert not any(row["channels_last"] for row in answer.as_data()["settings"])
    for other in ("gpt2-small", "resnet20"):
        both = chronograd.plan(other, f"mode={mode}", on=["v100"])
        assert not any("layout" in note for note in [*both.notes, *both.as_data()["assumed"]])
    assert ONE_LAYOUT not in chronograd.plan(saved("gpt2-small", mode), on=["v100"]).notes


def test_layout_of_a_trace_overrides_the_recipe(saved: Any) -> None:
    """The recipe of resnet9 uses channels last; its trace was refused although the user stated no layout."""
    answer = chronograd.predict(saved("resnet9"), "training.precision=fp32", on="v100")
    record = answer.records["v100"]
    assert not record.job.training.channels_last
    assert "memory layout NCHW, as in the saved trace" in "\n".join(record.notes)
    with pytest.raises(InputError, match=r"training\.channels_last=False; the job has training\.channels_last=True"):
        chronograd.predict(saved("resnet9"), "training.precision=fp32", "training.channels_last=true", on="v100")


@pytest.mark.parametrize(
    ("network", "classes"), [("resnet20", {"name": "cifar100"}), ("gpt2-small", {"name": "tokens", "classes": 100})]
)
def test_trace_of_other_classes_is_refused(network: str, classes: dict[str, Any], saved: Any) -> None:
    """Outputs of pictures are (N, classes), those of text (N, T, vocabulary)."""
    path = Path(saved(network))
    job = ask.job_of(network)
    other = job.model_copy(update={"data": job.data.model_copy(update=classes)})
    with pytest.raises(InputError, match=r"classes; the job has .* \((cifar100|tokens)\)"):
        trace_job(other, path)
    assert trace_job(job, path).network == network
