"""The contract of all backends: each trains as `single` does.

A network without batch norm and dropout starts from the weights in a safetensors file; the seed sets the sample order.
The loss is within 1e-5 of the loss of `single` after step 1, and within 1e-3 after step 20. The ranks are real
processes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chronograd import job as jobs
from chronograd.backends import registry
from chronograd.errors import JobError, MissingExtraError, NotFoundError, RunError
from chronograd.job import Job
from chronograd.launch import jobs as launch
from chronograd.models.registry import build
from chronograd.rundir import RunDir
from chronograd.train.checkpoint_folder import list_checkpoints

pytestmark = pytest.mark.real_exec  # other tests use forked ranks; these use new interpreters
AVAILABLE = [name for name in registry.names() if registry.load(name).available()[0]]
# Tests of optional backends count as tests of their part.
PARTS = {
    "parameter_server": pytest.mark.ray,
    "horovod": pytest.mark.horovod,
    "tf_mirrored": pytest.mark.tensorflow,
    "tf_multiworker": pytest.mark.tensorflow,
}
CHECKED = [name for name in registry.names() if name in AVAILABLE or name in PARTS]
# Asynchronous training equals `single` only with one worker.
DEVICES = {name: 1 if name in ("single", "parameter_server") else 2 for name in CHECKED}
PROCESSES = {name: 1 if name in ("data_parallel", "tf_mirrored") else DEVICES[name] for name in CHECKED}
# Tensor parallelism shares the matrices of transformers.
NETWORKS = {
    "images": {
        "network": {"name": "lenet5"},  # it has a Keras port
        "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 380},
    },
    "text": {
        "network": {
            "name": "llama-7b",
            "options": {"layers": 2, "width": 32, "heads": 4, "ffn": 48, "vocab": 20, "sequence": 12},
        },
        "data": {"name": "tokens", "shape": [12], "classes": 20, "samples": 380},
    },
}


def kind_of(backend: str) -> str:
    return "text" if backend == "tensor_parallel" else "images"


def make_job(backend: str, kind: str = "", **training: object) -> Job:
    """Return a job of 24 steps in two epochs; two ranks have unequal shares of a batch of 31."""
    return jobs.from_dict(
        {
            **NETWORKS[kind or kind_of(backend)],
            "training": {"recipe": "sgd-momentum", "batch": 31, "epochs": 2, "learning_rate": 0.05, **training},
            "cluster": {"device": "cpu", "count": DEVICES.get(backend, 2), "threads": 1},
            "backend": backend,
        }
    )


class Runs:
    """Runs of all backends, each trained once from the same initial weights."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(123)
        self.folder = folder
        for kind in NETWORKS:
            network = make_job("single", kind).network
            save_file(build(network.name, network.options).state_dict(), self.weights(kind))
        self.trained = cache(self._train)

    def weights(self, kind: str) -> Path:
        return self.folder / f"{kind}.safetensors"

    def of(self, backend: str, launcher: str | None = None, kind: str = "") -> RunDir:
        """Return the run of a backend, started by its own launcher, but by `local` instead of the slower torchrun."""
        kind = kind or kind_of(backend)
        own = registry.find(backend).plan(make_job(backend, kind), Path(), []).launcher
        return self.trained(backend, launcher or own.replace("torchrun", "local"), kind)

    def _train(self, backend: str, launcher: str, kind: str) -> RunDir:
        out = self.folder / f"{backend}-{launcher}-{kind}"
        return launch.train(make_job(backend, kind), out=out, initial_weights=self.weights(kind), launcher=launcher)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("contract"))


@pytest.fixture
def run(backend: str, runs: Runs) -> RunDir:
    return runs.of(backend)


@pytest.fixture
def single(backend: str, runs: Runs) -> RunDir:
    return runs.of("single", kind=kind_of(backend))


@pytest.mark.parametrize("backend", [pytest.param(name, marks=PARTS.get(name, ())) for name in CHECKED])
class TestEveryBackend:
    @pytest.mark.slow
    def test_losses_equal_those_of_single(self, run: RunDir, single: RunDir) -> None:
        expected, got = (one.record().curves["loss"].columns["loss"] for one in (single, run))
        assert len(got) == len(expected) == 24
        # A line has the loss before its update, so lines 2 and 21 have the losses after steps 1 and 20.
        assert got[0] == pytest.approx(expected[0], abs=1e-5)
        assert got[1] == pytest.approx(expected[1], abs=1e-5)
        assert got[20] == pytest.approx(expected[20], abs=1e-3)

    def test_evaluation_equals_that_of_single(self, run: RunDir, single: RunDir) -> None:
        expected, got = (one.record().curves["training"].columns for one in (single, run))
        assert got["step"] == [12, 24]
        assert got["test_accuracy"] == pytest.approx(expected["test_accuracy"], abs=2 / 95)
        assert got["test_loss"] == pytest.approx(expected["test_loss"], abs=1e-3)

    def test_ranks_write_their_steps_and_the_record_counts_them(self, backend: str, run: RunDir) -> None:
        assert run.ranks() == list(range(PROCESSES[backend]))
        record = run.record()
        assert (record.backend, record.cluster.count) == (backend, DEVICES[backend])
        assert record.value("epochs") == 2

    def test_weights_are_readable_safetensors(self, run: RunDir, single: RunDir) -> None:
        expected, got = (
            load_file(list_checkpoints(one.checkpoints)[-1] / "model.safetensors") for one in (single, run)
        )
        assert got.keys() == expected.keys()
        assert all(torch.allclose(got[name], expected[name], atol=1e-3) for name in expected)

    def test_plan_is_checked_before_anything_runs(self, backend: str) -> None:
        plan = registry.find(backend).plan(make_job(backend), Path("run"), ["train"])
        assert plan.world_size == PROCESSES[backend]
        assert plan.command[-2:] == (str(Path("run").absolute()), "train")


@pytest.mark.slow
def test_torchrun_starts_the_same_ranks(runs: Runs) -> None:
    by_torchrun, by_hand = (runs.of("ddp", launcher).record().curves["loss"] for launcher in ("torchrun", "local"))
    assert by_torchrun.columns == by_hand.columns


def test_single_has_one_rank() -> None:
    with pytest.raises(JobError, match="which has one rank"):
        registry.find("single").plan(jobs.changed(make_job("single"), ["cluster.count=2"]), Path(), [])


def test_unknown_backend_suggests_similar_names() -> None:
    with pytest.raises(NotFoundError, match="did you mean ddp"):
        registry.find("dpp")


@pytest.mark.parametrize("name", sorted(set(registry.names()) - set(AVAILABLE)))
def test_unavailable_backends_state_the_missing_part(name: str) -> None:
    with pytest.raises(
        (RunError, MissingExtraError), match=f"backend {name} (cannot run here: .{{10}}|needs .*install)"
    ):
        registry.find(name)
