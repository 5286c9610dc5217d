"""The entry point of a node: its rank among the nodes on each platform, and training alone and on two nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.clouds.cases import ROOT, submission_of

from chronograd import job as jobs
from chronograd.cli.main import main as cli
from chronograd.clouds import entry, fields, registry
from chronograd.clouds.collect import collect
from chronograd.clouds.entry import NodePosition, node_of
from chronograd.clouds.submission import job_fields, words_of
from chronograd.errors import FileFormatError
from chronograd.launch import jobs as local
from chronograd.launch.local import free_port
from chronograd.rundir import RunDir

VERTEX = {
    "cluster": {"workerpool0": ["first-0:2222"], "workerpool1": ["other-0:2222", "other-1:2222"]},
    "task": {"type": "workerpool1", "index": 1},
}


@pytest.mark.parametrize(
    ("environ", "arguments", "node"),
    [
        ({}, {}, NodePosition()),
        ({"CLUSTER_SPEC": json.dumps(VERTEX)}, {}, NodePosition(2, 3, "first-0")),
        (
            {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "23456"},
            {},
            NodePosition(1, 2, "m", 23456),
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, {"meet": "a-0.a", "nodes": "4"}, NodePosition(3, 4, "a-0.a")),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, {}, NodePosition(0, 2, "10.0.0.1")),
    ],
)
def test_node_rank_on_each_platform(
    environ: dict[str, str], arguments: dict[str, str], node: NodePosition, tmp_path: Path
) -> None:
    assert node_of(environ, arguments, tmp_path) == node


def test_node_rank_from_sagemakers_file(tmp_path: Path) -> None:
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}))
    assert node_of({}, {}, tmp_path) == NodePosition(1, 2, "algo-1", is_shared=False)


def test_data_and_weights_use_the_mounted_folders() -> None:
    arguments = fields.job_arguments(registry.platform("vertex"), submission_of("vertex", "detection"))
    job = entry.placed({**arguments, "mount.weights": "/gcs/w/it's.safetensors"})
    assert job.data.name == "voc:/gcs/lab-data/voc"
    assert job.network.weights == "/gcs/w/it's.safetensors"
    assert submission_of("vertex", "detection").job.data.name == "voc:/data/VOC2007"


def tiny(*overrides: str) -> jobs.Job:
    text = {
        "network": {"name": "small-cnn"},
        "data": {"name": "digits", "samples": 256, "test_samples": 64},
        "training": {"epochs": 1, "batch": 64, "learning_rate": 0.05},
    }
    return jobs.changed(jobs.from_dict(text), overrides)


def losses(run: RunDir) -> list[float]:
    return [step.needed("loss") for step in run.read_steps().steps]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return local.train(tiny(), out=tmp_path_factory.mktemp("here") / "run", launcher="local")


def test_sagemaker_job_matches_the_local_loss(here: RunDir, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The test uses its container's layout: a file of hyper-parameters, and folders for checkpoints and model."""
    where = registry.platform("sagemaker")
    wanted = submission_of("sagemaker", "digits").model_copy(update={"job": tiny()})
    request = fields.load(where, fields.render(where, wanted))
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
    assert entry.main([], {}, tmp_path) == 0
    run = RunDir.open(tmp_path / "checkpoints")
    assert losses(run) == losses(here)
    assert RunDir.open(tmp_path / "model").record().value("test_accuracy") == here.record().value("test_accuracy")
    printed = capfd.readouterr().out
    assert printed.count(f"{entry.STEP} 0 ") == len(run.steps_path().read_bytes().splitlines())
    _check_collected(printed, run, tmp_path)
    assert entry.main([], {}, tmp_path) == 0  # a restart after the end has nothing to do
    assert capfd.readouterr().out.count(f"{entry.RECORD} ") == printed.count(
        f"{entry.RECORD} "
    )  # but prints its result
    assert losses(RunDir.open(tmp_path / "checkpoints")) == losses(here)


@pytest.mark.gymnasium
def test_agent_learns_on_a_node(tmp_path: Path) -> None:
    """The environment runs locally and needs no download."""
    job = jobs.load(ROOT / "examples" / "cartpole-table.yaml", ["training.epochs=1", "reinforcement.steps_per_epoch=300",
                    "reinforcement.evaluation_episodes=1"])  # fmt: skip
    run = entry.train({**job_fields(job), "run": str(tmp_path / "run")}, NodePosition())
    assert jobs.resolved(run.job()) == jobs.resolved(job)
    assert run.is_finished


# A log in the form of each platform: botocore's GetLogEvents and FilterLogEvents; Cloud Logging's LogEntry, newest first;
# `kubectl logs --prefix --timestamps`. Azure ML's user_logs/std_log.txt and watsonx.ai's monitor_logs are unchanged. SkyPilot
# 0.14.1 documents its prefix in skylet/executor/slurm.py.
FORMS: dict[str, Callable[[list[str]], str]] = {
    "get-log-events.json": lambda lines: json.dumps(
        {
            "events": [{"timestamp": T + i, "message": one, "ingestionTime": T + i} for i, one in enumerate(lines)],
            "nextForwardToken": "f/1",
            "nextBackwardToken": "b/1",
        }
    ),
    "filter-log-events.json": lambda lines: json.dumps(
        {
            "events": [
                {"logStreamName": "digits/algo-1-1", "timestamp": T, "message": one, "eventId": "3"} for one in lines
            ],
            "searchedLogStreams": [],
        }
    ),
    "log-entries.json": lambda lines: json.dumps(
        [
            {"insertId": f"{i}", "severity": "INFO", "timestamp": f"2026-11-23T15:{i // 60:02}:{i % 60:02}Z",
             **({"textPayload": one} if i % 2 else {"jsonPayload": {"message": one, "levelname": "INFO"}})}
            for i, one in enumerate(lines)
        ][::-1]
    ),
    "kubectl.log": lambda lines: "\n".join(f"[pod/digits-0-abcde/ranks] 2026-11-23T15:00:00.1Z {one}" for one in lines),
    "std_log.txt": lambda lines: "\n".join(["Cleaning up all outstanding Run operations", *lines, ""]),
    "sky.log": lambda lines: "\n".join(f"\x1b[36m(digits, pid=2441)\x1b[0m {one}" for one in [*lines, lines[3]]),
}  # fmt: skip
T = 1_795_440_000_000


def _check_collected(printed: str, run: RunDir, folder: Path) -> None:
    """Check that the printed log rebuilds the run, in the form of each platform's log."""
    lines = printed.splitlines()
    for name, form in FORMS.items():
        (folder / name).write_text(form(lines))
        made = collect(folder / name, folder / f"run-{name}")
        assert made.steps_path().read_bytes() == run.steps_path().read_bytes(), name
        assert made.record() == run.record(), name
        assert jobs.resolved(made.job()) == jobs.resolved(run.job())
        assert made.environment() == run.environment()
    assert cli(["compare", str(run.path), str(made.path), "--fail-if", "step_time > 0.1%"]) == 0
    assert cli(["explain", str(made.path)]) == 0
    _check_parts(lines, folder)


def _check_parts(lines: list[str], folder: Path) -> None:
    """Check that a log without its end has no record, and one without its beginning has no run."""
    cut = folder / "cut.log"
    cut.write_text("\n".join(line for line in lines if entry.RECORD not in line))
    assert cli(["job", "log", str(cut), "--out", str(folder / "run-cut"), "--json"]) == 0
    made = RunDir.open(folder / "run-cut")
    assert not made.is_finished
    assert len(losses(made)) == 4
    cut.write_text("\n".join(line for line in lines if entry.JOB not in line))
    with pytest.raises(FileFormatError, match="has no line of chronograd-job"):
        collect(cut, folder / "run-none")
    cut.write_text("\n".join(line.replace("quantities", "quantity") for line in lines))
    with pytest.raises(FileFormatError, match="its record is damaged"):
        collect(cut, folder / "run-damaged")


def test_long_record_is_printed_in_parts(
    here: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "PART", 500)
    entry._print(entry.JOB, {"job": jobs.stated(here.job()), "environment": {}})
    entry._print_record(here)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) > 3
    assert max(map(len, lines[1:])) < 1200
    (tmp_path / "log").write_text("\n".join(lines))
    assert collect(tmp_path / "log", tmp_path / "run").record() == here.record()
    (tmp_path / "log").write_text("\n".join(lines[:-1]))
    assert not collect(tmp_path / "log", tmp_path / "run-cut").is_finished


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "is_shared"), [("ddp", True), ("ddp", False), ("fsdp", True)])
def test_two_nodes_train_like_two_local_ranks(backend: str, is_shared: bool, tmp_path: Path) -> None:
    job = tiny(f"backend={backend}", "cluster.count=2", "cluster.per_node=1", "cluster.threads=1")
    words, port = [*words_of(job_fields(job)), f"run={tmp_path / 'run'}"], free_port()

    def train(index: int) -> RunDir:
        node = entry.NodePosition(index, 2, "127.0.0.1", port, is_shared)
        return entry.train(entry.fields_of(words), node, tmp_path / f"ml-{index}")

    with ThreadPoolExecutor(2) as nodes:  # each thread starts a rank as a separate process
        first, _ = nodes.map(train, range(2))
    assert first.path == tmp_path / "run"
    here = local.train(job, out=tmp_path / "here", launcher="local")
    run = RunDir.open(tmp_path / "run")
    assert losses(run) == pytest.approx(losses(here), abs=1e-6)
    assert run.record().value("test_accuracy") == here.record().value("test_accuracy")
