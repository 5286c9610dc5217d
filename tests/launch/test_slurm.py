"""Runs on SLURM: script text everywhere, and a real cluster of three nodes if slurmctld is installed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clouds.cases import JOBS
from tools.slurm_cluster import cluster

import chronograd
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.clouds import rendering
from chronograd.errors import ChronogradError, InputError, JobError, RunError
from chronograd.job import Job
from chronograd.launch import answer, slurm
from chronograd.launch import jobs as local
from chronograd.launch.slurm import array as slurm_array
from chronograd.launch.slurm.script import EXIT_FILE, Options, render
from chronograd.rundir import RunDir
from chronograd.train.checkpoint_folder import MODEL, OPTIMIZER, list_checkpoints
from chronograd.verbs.launch import LaunchSlurm

ROOT = Path(__file__).parent.parent.parent
NETWORKS = Path(__file__).parent.parent / "train"
GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[None]:
    with cluster(3, cpus=8, gpus=8) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(slurm, "MIN_POLL_S", 0.5)  # this controller serves one client
        yield


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(NETWORKS), prepend=os.pathsep)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(NETWORKS))


def make_job(*overrides: str) -> Job:
    """Return a job of three epochs with 8 steps, batch norm and dropout."""
    job = jobs.from_dict(
        {
            "network": {"name": "tiny_networks:random"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 131},
            "training": {"recipe": "sgd-one-cycle", "batch": 16, "epochs": 3},
            "cluster": {"device": "cpu", "threads": 1},
        }
    )
    return jobs.changed(job, list(overrides))


def final_bytes(run: RunDir) -> list[bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    assert newest.name == "step-00000024"
    return [(newest / name).read_bytes() for name in (MODEL, OPTIMIZER)]


def losses(run: RunDir) -> list[float | None]:
    return run.record().curves["loss"].columns["loss"]


# -- script text -----------------------------------------------------------------------------------------

SCRIPTS = {
    "two-cpu-nodes": (["cluster.count=2", "backend=ddp", "cluster.max_restarts=1"], Options(), None),
    "sixteen-gpus": (
        ["cluster.device=v100", "cluster.count=16", "cluster.per_node=8", "backend=ddp"],
        Options("12:00:00", "gpu", "lab", 6, "ib0", "/opt/venv/bin/python", ("--constraint=volta", "--mem=0")),
        None,
    ),
    "array": ([], Options(time="01:00:00"), 3),
    "parameter-server": (
        ["backend=parameter_server", "cluster.count=6", "cluster.per_node=2", "communication.servers=2"],
        Options(),
        None,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_matches_the_golden_file(name: str) -> None:
    """Set CHRONOGRAD_GOLDEN to write the file again for review."""
    overrides, options, elements = SCRIPTS[name]
    options = Options(**{**vars(options), "python": options.python or "/opt/venv/bin/python"})
    text = render(make_job(*overrides), Path("/runs/mine"), options, elements)
    if os.environ.get("CHRONOGRAD_GOLDEN"):
        (GOLDEN / f"{name}.sbatch").write_text(text)
    assert text == (GOLDEN / f"{name}.sbatch").read_text()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_jobs_on_one_node_meet_at_different_ports() -> None:
    """Two clusters of one machine number their jobs alike, so the number of a job must not choose its port."""
    text = render(make_job("backend=ddp", "cluster.count=2"), Path("/runs/mine"), Options(python=sys.executable))
    [line] = re.findall(r"export MASTER_PORT=.*", text)
    ask = f"export SLURM_JOB_ID=1; {line}; echo $MASTER_PORT"
    with contextlib.ExitStack() as jobs_of_node:
        for _ in range(3):
            port = int(_output("bash", "-c", ask))
            jobs_of_node.enter_context(socket.create_server(("127.0.0.1", port)))


HOSTILE = ("a;touch HACKED", "R&D", "it's $HOME `touch HACKED`", "(a) | <b> * ~", "$(touch HACKED)", "# no comment")


@pytest.mark.parametrize("elements", [None, 3])
@pytest.mark.parametrize("name", HOSTILE)
def test_script_runs_in_a_folder_of_any_name(tmp_path: Path, name: str, elements: int | None) -> None:
    """Run the script with bash and stand-ins for srun and scontrol; a rank prints its arguments."""
    programs = tmp_path / f"bin {name}"
    programs.mkdir()
    for program, text in {
        "srun": 'while [ "$1" != bash ]; do shift; done; SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1 exec "$@"',
        "scontrol": "echo NodeAddr=10.0.0.1",
        "python": 'printf "%s\\n" "$@"',
    }.items():
        (programs / program).write_text(f"#!/bin/bash\n{text}\n")
        (programs / program).chmod(0o755)
    folder = tmp_path / name
    run = folder / "run-2" if elements else folder
    (run / "checkpoints").mkdir(parents=True)
    job = make_job(r'data.name="mine\ntouch HACKED #"', r'network.name="tiny_networks:random\ntouch HACKED #"')
    text = render(job, folder, Options(python=str(programs / "python"), interface="a;touch HACKED"), elements)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    where = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
    done = subprocess.run(["bash"], input=text, check=False, **where)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["-P", "-m", "chronograd.train.worker", str(run), "train"]
    assert (run / "slurm.exit").read_text() == "7 0\n"
    assert json.loads((run / "usage.0.jsonl").read_text())["real_s"] >= 0
    assert not list(tmp_path.rglob("HACKED"))
    (output,) = [line for line in text.splitlines() if line.startswith("#SBATCH --output=")]
    assert output == f'#SBATCH --output="{folder}/{"run-%a/" if elements else ""}output.slurm.txt"'


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a%b", "a\nb", "a\udcffb"])
def test_folder_name_that_slurm_cannot_represent(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="in its name"):
        render(make_job(), tmp_path / name, Options())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cluster.count=5", "cluster.per_node=2", "cluster.device=cpu"], (3, 5, 2, None)),
        (["cluster.count=3", "cluster.device=v100", "cluster.per_node=2"], (2, 3, 2, 2)),
        (["cluster.count=2", "cluster.device=v100"], (1, 2, 2, 2)),  # no more than the ranks
        (["cluster.count=16", "cluster.device=v100"], (2, 16, 8, 8)),  # a DGX-1 has eight
        (["cluster.count=4", "cluster.device=v100", "backend=data_parallel"], (1, 1, 1, 4)),  # one rank for all
        (["cluster.count=6", "cluster.device=v100", "cluster.per_node=2", "backend=parameter_server"], (3, 3, 1, 2)),
    ],
)
def test_ranks_fill_nodes_and_the_last_may_have_fewer(
    overrides: list[str], expected: tuple[int, int, int, int | None]
) -> None:
    text = render(make_job("backend=ddp", *overrides), Path("/runs/mine"), Options())
    nodes, tasks, tasks_per_node, gpus = expected
    asked = dict(re.findall(r"^#SBATCH --(nodes|ntasks|ntasks-per-node|gres)=(\S+)$", text, re.M))
    assert asked == {
        "nodes": str(nodes),
        "ntasks": str(tasks),
        "ntasks-per-node": str(tasks_per_node),
        **({} if gpus is None else {"gres": f"gpu:{gpus}"}),
    }
    assert f"LOCAL_WORLD_SIZE={tasks_per_node}\n" in text


@pytest.mark.parametrize("data", ["imagenet:/nowhere/imagenet", "folder:/nowhere/pictures"])
def test_dry_run_assumes_remote_data_folders(data: str) -> None:
    job = jobs.from_dict({"network": {"name": "resnet18"}, "data": {"name": data}})
    text = answer.script(job, (), Options()).result.script
    folder = data.partition(":")[2]
    assert text.startswith(f"#!/bin/bash\n# Assumed: the compute nodes have the data folder {folder}.")
    assert "\n#SBATCH --nodes=1" in text
    with pytest.raises(ChronogradError, match="there is no folder"):
        slurm.check(job)


def test_planning_data_cannot_be_launched() -> None:
    job = jobs.from_dict({"network": {"name": "resnet18"}, "data": {"name": "imagenet"}})
    with pytest.raises(ChronogradError, match="imagenet is for planning only"):
        answer.script(job, (), Options())
    with pytest.raises(ChronogradError, match="imagenet is for planning only"):
        rendering.rendered("kubernetes", job, {"image": "a/b:1"})


def test_unknown_platform_lists_the_platforms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "azure", "job.yaml", "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert "unknown platform 'azure'; did you mean azureml?" in told
    assert main(["launch", "job.yaml"]) == 2
    told = capsys.readouterr().err
    assert "known: azureml, kubernetes, pytorchjob, sagemaker, skypilot, vertex, watsonx" in told
    assert "write `chronograd launch PLATFORM JOB`, `chronograd launch slurm JOB` or" in told


def test_data_set_is_an_option_as_of_other_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """A job from Python takes it as well as a network by name."""
    for job in ("resnet20", make_job()):
        assert LaunchSlurm(job=job, data="digits").job_of().data.name == "digits"
    assert main(["launch", "slurm", "resnet50", "--data", "imagenet", "--dry-run"]) == 2
    assert "imagenet is for planning only" in capsys.readouterr().err


def test_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(jobs.to_yaml(make_job()))
    arguments = ["launch", "slurm", "job.yaml", "--dry-run", "backend=ddp", "cluster.count=4", "--time", "9:00"]
    assert main([*arguments, "cluster.per_node=2", "--sbatch=--exclusive", "--out", "runs/mine"]) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=synthetic-tiny-networks-random",
        f"#SBATCH --output={tmp_path}/runs/mine/output.slurm.txt",
        "#SBATCH --open-mode=append",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks=4",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --time=9:00",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR1@60",
        "#SBATCH --exclusive",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_documented_script_is_current(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "slurm.md").read_text()
    (line,) = re.findall(r"^chronograd (launch .* --dry-run .*)$", page, re.M)
    assert main(line.split()) == 0
    assert re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S) == [capsys.readouterr().out]


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        (["cluster.count=2"], Options(), "which has one rank"),
        (["network.name=nosuch"], Options(), "unknown network"),
        (["cluster.device=nosuch"], Options(), "unknown device"),
        ([], Options(time="1 hour"), "--time 01:00:00"),
        ([], Options(extra=("exclusive",)), "is no option of sbatch"),
    ],
)
def test_invalid_job_leaves_no_files(tmp_path: Path, overrides: list[str], options: Options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        slurm.launch(make_job(*overrides), options, parent=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_output_of_the_rank_that_failed_first_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """srun ends the others, and says so, too; a rank that ended before its first step recorded no error."""
    monkeypatch.setattr(slurm.slurm_commands, "squeue", lambda job_id: None)
    monkeypatch.setattr(slurm.slurm_commands, "sacct", lambda job_id: None)
    run = RunDir.create(environment={}, out=tmp_path / "run")
    slurm.note(run, "7", Options(), {})
    (run.path / slurm.EXIT_FILE).write_text("7 143\n")
    run.output_path(0).write_text("cancelled\n")
    run.output_path(2).write_text("no place left\n")
    run.output_path("slurm").write_text(
        "srun: error: n3: task 2: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=7.0\n"
        "srun: error: n1: task 0: Terminated\n"
    )
    with pytest.raises(RunError, match=r"failed \(exit status 143\); the end of .*output\.2\.txt:\n.*no place left"):
        slurm.collect(run)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no job to launch"),
        (["slurm"], "Missing argument 'JOB'"),
        (["status"], "Missing argument 'RUN...'"),
        (["status", "runs/mine"], "no run directory at runs/mine"),
        (["slurm", "nosuch.yaml"], "no job file at nosuch.yaml"),
        (["ray", "job.yaml"], "Missing option '--address'"),
    ],
)
def test_missing_arguments(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["launch", *words]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_status_counts_runs_by_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use saved answers for each run instead of a cluster."""
    written = {
        "a": slurm.Status("1", "RUNNING", "", "squeue", 2, 40),
        "b": slurm.Status("2", "PENDING", "Priority", "squeue", 1, 0),
    }
    monkeypatch.setattr(slurm, "state", lambda run: written[run.path.name])
    runs = [RunDir.create(environment={}, out=tmp_path / name) for name in written]
    told = answer.states(runs)
    assert told.sections[0].takeaway == "2 runs: 1 RUNNING, 1 PENDING."
    assert told.sections[0].lines[0].endswith("a  job 1  RUNNING  step 40, started 2 times")
    assert [row["reason"] for row in told.data] == ["", "Priority"]


def test_sweep_is_a_grid_of_equal_shapes(tmp_path: Path) -> None:
    found = slurm_array.grid(make_job(), ["training.batch=8,16", "training.augmentation={crop: 1},{flip: true}"])
    assert [(job.training.batch, job.training.augmentation.crop) for _, job in found] == [
        (8, 1),
        (8, 0),
        (16, 1),
        (16, 0),
    ]
    with pytest.raises(JobError, match=r"cannot read the sweep 'training.batch'"):
        slurm_array.grid(make_job(), ["training.batch"])
    with pytest.raises(JobError, match="different nodes"):
        slurm_array.launch_array(
            slurm_array.grid(make_job("backend=ddp"), ["cluster.count=1,2"]), Options(), tmp_path / "sweep"
        )
    assert not (tmp_path / "sweep").exists()


def test_missing_slurm_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="there is no sbatch on this machine"):
        slurm.launch(make_job(), parent=tmp_path / "runs")
    assert not list((tmp_path / "runs").iterdir())
    run = RunDir.create(make_job(), parent=tmp_path / "runs")
    with pytest.raises(RunError, match="was not submitted to SLURM"):
        slurm.state(run)


# -- scripts of runs by other users ---------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Return a submitted run that has left the queue; a fake `sbatch` saves its script in `taken`."""
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in {
        "sbatch": f'cp "${{@: -1}}" {tmp_path}/taken; echo 17',
        "squeue": "exit 0",
        "sacct": "exit 1",
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    Path("job.yaml").write_text(jobs.to_yaml(make_job()))
    assert main(["launch", "slurm", "job.yaml", "--partition", "gpu", "--time", "9:00", "--out", "run"]) == 0
    assert Path("taken").read_text() == Path("run/job.sbatch").read_text()
    Path("taken").unlink()
    return RunDir(Path("run"))


RESUME = ["--trust", "tiny_networks", "launch", "resume", "run"]


def test_resumed_run_uses_saved_and_new_options(ended: RunDir) -> None:
    assert main(RESUME) == 0
    same = Path("taken").read_text()
    assert "#SBATCH --partition=gpu\n" in same
    assert "#SBATCH --time=9:00\n" in same
    assert main([*RESUME, "--time", "20:00", "--sbatch=--mem=8G"]) == 0
    changed = Path("taken").read_text()
    assert changed == same.replace("--time=9:00", "--time=20:00").replace("USR1@60\n", "USR1@60\n#SBATCH --mem=8G\n")
    assert slurm.submission(ended).options == Options("20:00", "gpu", extra=("--mem=8G",))
    (ended.path / "job.sbatch").unlink()
    assert main([*RESUME, "--sbatch=--mem=8G"]) == 0
    assert Path("taken").read_text() == changed


def test_edited_script_is_not_submitted(ended: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    script = ended.path / "job.sbatch"
    edited = script.read_text() + "touch harmed\n"
    script.write_text(edited)
    capsys.readouterr()
    for words in ([], ["--time", "20:00"], ["--trust", "other.sbatch"]):
        assert main([*RESUME, *words]) == 2
        assert "is not the script that Chronograd writes for this job" in capsys.readouterr().err
    assert not Path("taken").exists()
    assert script.read_text() == edited
    assert main([*RESUME, "--trust", "./run/job.sbatch", "--time", "20:00"]) == 2
    assert "options of SLURM would be ignored" in capsys.readouterr().err
    assert main([*RESUME, "--trust", "./run/job.sbatch"]) == 0
    assert Path("taken").read_text() == edited


def test_options_that_run_programs_must_be_repeated(ended: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Options in another user's run could name a program or an output file."""
    slurm.note(ended, "17", Options(python="/evil/python", extra=("--output=/home/me/.bashrc",)), {})
    for has_script in (True, False):
        capsys.readouterr()
        assert main(RESUME) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "asks for --python=/evil/python --sbatch=--output=/home/me/.bashrc, which can run code" in told
        assert "`chronograd launch resume run --python=/evil/python --sbatch=--output=/home/me/.bashrc`" in told
        assert not Path("taken").exists()
        if has_script:
            (ended.path / "job.sbatch").unlink()
    assert main([*RESUME, "--python", "python3", "--sbatch=--mem=8G"]) == 0
    assert "evil" not in Path("taken").read_text()


def test_status_from_python_and_command_line(ended: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    asked = chronograd.launch_status(ended.path)
    (launched,) = asked.result
    assert (launched.run, launched.status) == ("run", slurm.Status("17", "LOST", "", "run directory", 0, 0))
    capsys.readouterr()
    assert main(["launch", "status", "run", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)
        == asked.data
        == [{"run": "run", **vars(launched.status), "queued_s": None, "ran_s": None}]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["status", "run", "--time", "20:00"],
        ["--status", "run", "--dry-run"],
        ["collect", "run", "--plan", "plan.json"],
        ["resume", "run", "--cpus-per-task", "2"],
        ["slurm", "job.yaml", "--submit"],
        ["slurm", "job.yaml", "--plan", "plan.json"],
        ["ray", "job.yaml", "--dry-run"],
        ["kubernetes", "job.yaml", "--partition", "gpu"],
    ],
    ids=" ".join,
)
def test_ineffective_options_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *words]) == 2
    told = capsys.readouterr().err
    assert "No such option" in told
    assert words[2] in told


# -- on a cluster ----------------------------------------------------------------------------------------


@pytest.mark.slurm
@pytest.mark.usefixtures("three_nodes")
class TestCluster:
    def test_two_nodes_match_local_training(self, tmp_path: Path) -> None:
        job = make_job("backend=ddp", "cluster.count=2")
        lines: list[dict[str, object]] = []
        run = slurm.wait(slurm.launch(job, out=tmp_path / "slurm"), lines.append)
        here = local.train(job, out=tmp_path / "here", launcher="local")
        ours, theirs = run.record(), here.record()
        assert losses(run) == pytest.approx(losses(here), abs=1e-6)
        assert final_bytes(run) == final_bytes(here)
        assert ours.value("test_accuracy") == theirs.value("test_accuracy")
        assert ours.job == theirs.job
        assert [line.step for line in lines if not line.event] == list(range(1, 25))
        assert slurm.state(run).state == "COMPLETED"
        used = slurm.usage(run)
        assert len(used) == 2
        assert all(one["user_s"] > 0 and one["real_s"] > run.record().value("training_time_s") for one in used)
        with pytest.raises(RunError, match="is finished"):
            slurm.submit(run)

    @pytest.mark.parametrize("name", JOBS)
    def test_sbatch_accepts_every_job_script(self, name: str, tmp_path: Path) -> None:
        """Test with `--test-only`: sbatch checks the nodes and submits nothing."""
        job = jobs.scaled(JOBS[name]("slurm"))
        script = tmp_path / "job.sbatch"
        script.write_text(render(job, tmp_path / "run", Options(time="02:00:00")))
        done = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
        nodes, ranks = {"scaling": (2, 16), "language": (1, 8)}.get(name, (1, 1))
        assert done.returncode == 0, done.stderr
        assert f"using {ranks} processors on nodes {'n[1-2]' if nodes == 2 else 'n1'} in partition debug" in done.stderr
        script.write_text(script.read_text().replace("--ntasks-per-node=", "--ntasks-per-node=x"))
        refused = subprocess.run(["sbatch", "--test-only", str(script)], capture_output=True, text=True, check=False)
        assert "Invalid" in refused.stderr

    def test_requeued_run_continues_from_its_checkpoint(self, tmp_path: Path) -> None:
        job = make_job("backend=ddp", "cluster.count=3", "network.options.sleep_s=0.2")
        run = slurm.launch(job, out=tmp_path / "slurm")
        wait_for_step(run, 12)
        # SLURM's signal before the time limit; the script then requeues itself.
        _output("scancel", "--batch", "--signal=USR1", slurm.state(run).job_id)
        begin_at_once(run)
        slurm.wait(run)
        log = run.read_steps()
        assert (log.attempts, [line.step for line in log.steps]) == (2, list(range(1, 25)))
        assert 0 < log.redone < 16
        assert run.record().provenance.attempts == 2
        here = local.train(jobs.changed(job, ["network.options.sleep_s=0"]), out=tmp_path / "here", launcher="local")
        # Approximately: the order in which three gradients are added depends on DDP's buckets, which change after a
        # restart.
        assert losses(run) == pytest.approx(losses(here), abs=1e-5)
        assert list_checkpoints(run.checkpoints)[-1].name == "step-00000024"

    def test_scontrol_requeue_continues_the_run(self, tmp_path: Path) -> None:
        run = slurm.launch(make_job("network.options.sleep_s=0.2"), out=tmp_path / "slurm")
        wait_for_step(run, 9)
        _output("scontrol", "requeue", slurm.state(run).job_id)
        begin_at_once(run)
        assert slurm.wait(run).read_steps().attempts == 2
        assert len(run.read_steps().steps) == 24

    @pytest.mark.parametrize("state", ["drain", "down"])
    def test_drained_or_lost_node(self, tmp_path: Path, state: str) -> None:
        """SLURM requeues a job that lost a node, and an operator one on a drained node. It continues elsewhere."""
        job = make_job("backend=ddp", "cluster.count=2", "network.options.sleep_s=0.2")
        run = slurm.launch(job, out=tmp_path / "slurm")
        wait_for_step(run, 11)
        job_id = slurm.state(run).job_id
        first = _output("scontrol", "show", "hostnames", _output("squeue", "-hOnodelist", "-j", job_id)).split()[0]
        _output("scontrol", "update", f"nodename={first}", f"state={state}", "reason=test")
        try:
            if state == "drain":
                _output("scontrol", "requeue", job_id)
            begin_at_once(run)
            slurm.wait(run)
        finally:
            # A node set to down recovers by itself because its daemon runs; SLURM then refuses this.
            subprocess.run(
                ["scontrol", "update", f"nodename={first}", "state=resume"], check=False, capture_output=True
            )
        for rank in (0, 1):
            log = run.read_steps(rank)
            assert (log.attempts, [line.step for line in log.steps]) == (2, list(range(1, 25)))
        assert run.record().value("redone_steps") >= 3
        assert run.record().value("lost_s") > 3
        here = local.train(jobs.changed(job, ["network.options.sleep_s=0"]), out=tmp_path / "here", launcher="local")
        assert final_bytes(run) == final_bytes(here)

    def test_hung_rank_is_reported_and_restarted(self, tmp_path: Path) -> None:
        marks = tmp_path / "marks"
        marks.mkdir()
        options = f"network.options={{how: stop, times: 2, marks: {marks}}}"
        job = make_job("network.name=tiny_networks:failing", options, "backend=ddp", "cluster.count=2")
        job = jobs.changed(job, ["cluster.max_restarts=1", "cluster.timeout_s=6"])
        run = slurm.launch(job, out=tmp_path / "slurm")
        told = r"rank 1 failed with a time-out: it did not come to the all-reduce of gradients of step 18 within 6 s"
        with pytest.raises(RunError, match=told):
            slurm.wait(run)
        slurm.submit(run)
        slurm.wait(run)
        assert run.read_steps().attempts == 3
        assert run.record().value("redone_steps") in (2, 3, 4)

    def test_array_trains_three_runs(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "job.yaml").write_text(jobs.to_yaml(make_job("training.epochs=1")))
        arguments = ["--sweep", "training.learning_rate=0.05,0.1,0.2", "--out", str(tmp_path / "sweep"), "--wait"]
        assert main(["launch", "slurm", str(tmp_path / "job.yaml"), *arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [one["job"]["training"]["learning_rate"] for one in found] == [0.05, 0.1, 0.2]
        assert len({one["curves"]["loss"]["columns"]["loss"][-1] for one in found}) == 3
        said = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
        assert said["run-2"] == ["training.learning_rate=0.2"]
        assert (tmp_path / "sweep" / "run-1" / "output.slurm.txt").exists()

    @pytest.mark.horovod
    def test_horovod_on_two_nodes(self, tmp_path: Path) -> None:
        """Two ranks on the first node and one on the second train as three that horovodrun starts."""
        job = make_job("backend=horovod", "cluster.count=3", "cluster.per_node=2")
        run = slurm.wait(slurm.launch(job, out=tmp_path / "slurm"))
        here = local.train(job, out=tmp_path / "here")
        assert losses(run) == pytest.approx(losses(here), abs=1e-5)
        assert run.record().value("test_accuracy") == pytest.approx(here.record().value("test_accuracy"), abs=0.02)
        assert sorted(run.ranks()) == [0, 1, 2]

    @pytest.mark.ray
    def test_parameter_server_on_three_nodes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folders = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))
        monkeypatch.setenv("TMPDIR", str(folders))
        job = make_job("backend=parameter_server", "cluster.count=3", "communication.servers=2")
        run = slurm.wait(slurm.launch(job, out=tmp_path / "slurm"))
        updates = [line for rank in range(3) for line in run.read_steps(rank).steps]
        assert sorted(line.step for line in updates) == list(range(1, 25))
        assert len(slurm.usage(run)) == 3  # one Ray on each node
        assert run.output_path(2).read_text().count("Ray runtime started") == 1
        assert main(["launch", "status", str(run.path)]) == 0
        assert re.search(r"COMPLETED.* queued .* ran \d", " ".join(capsys.readouterr().out.split()))
        deadline = time.monotonic() + 120
        while _output("squeue", "--noheader", "--job", slurm.state(run).job_id):  # the other nodes end after the first
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not list(folders.iterdir())

    @pytest.mark.tensorflow
    def test_tensorflow_ranks_on_two_nodes(self, tmp_path: Path) -> None:
        job = make_job("network.name=small-cnn", "training.epochs=1", "training.recipe=sgd-momentum")
        two = jobs.changed(job, ["backend=tf_multiworker", "cluster.count=2"])
        run = slurm.wait(slurm.launch(two, out=tmp_path / "slurm"))
        here = local.train(job, out=tmp_path / "here")
        assert losses(run) == pytest.approx(losses(here), abs=1e-3)

    def test_failed_rank_is_reported(self, tmp_path: Path) -> None:
        job = make_job("network.name=tiny_networks:raising", "backend=ddp", "cluster.count=2", "cluster.max_restarts=1")
        run = slurm.launch(job, out=tmp_path / "slurm")
        with pytest.raises(RunError, match=r"failed.*rank 1 failed with ValueError: no good on rank 1") as caught:
            slurm.wait(run)
        assert "launch resume" in str(caught.value)
        assert slurm.state(run).state == "FAILED"
        assert run.read_steps(1).attempts == 2

    def test_timeout_without_checkpoint_then_cancel_and_resume(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        job = make_job("network.options.sleep_s=0.5", "training.epochs=1")
        run = slurm.launch(job, out=tmp_path / "slurm")
        with pytest.raises(RunError, match=r"is PENDING|is RUNNING|is CONFIGURING"):
            slurm.submit(run)
        wait_for_step(run, 1)
        _output("scancel", "--batch", "--signal=USR1", slurm.state(run).job_id)
        with pytest.raises(RunError, match="reached its time limit"):
            slurm.wait(run)
        slurm.submit(run)
        _output("scancel", slurm.state(run).job_id)
        with pytest.raises(RunError, match="was cancelled"):
            slurm.wait(run)
        assert main(["launch", "status", str(run.path)]) == 0
        assert "CANCELLED" in capsys.readouterr().out
        assert main(["launch", "collect", str(run.path)]) == 1
        assert "was cancelled" in capsys.readouterr().err
        assert main(["--trust", "tiny_networks", "launch", "resume", str(run.path), "--wait"]) == 0
        assert "accuracy on the test split" in capsys.readouterr().out

    def test_script_refused_by_slurm_leaves_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"sbatch says: .*[Ii]nvalid partition"):
            slurm.launch(make_job(), Options(partition="nosuch"), out=tmp_path / "run")
        with pytest.raises(RunError, match=r"sbatch says: .*Invalid generic resource"):
            slurm.launch(make_job(), Options(extra=("--gres=fpga:1",)), out=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_job_that_can_never_start_fails(self, tmp_path: Path) -> None:
        run = slurm.launch(make_job("backend=ddp", "cluster.count=4"), out=tmp_path / "run")
        with pytest.raises(RunError, match=r"cannot start: Partition(NodeLimit|Config)"):
            slurm.wait(run)
        _output("scancel", slurm.state(run).job_id)


def wait_for_step(run: RunDir, step: int) -> None:
    """Wait for a step in the run's file, to spare the controller."""
    deadline = time.monotonic() + 120
    while not any(line.step >= step for line in run.read_steps().steps):
        late = time.monotonic() > deadline or (run.path / EXIT_FILE).exists()
        assert not late, [file.read_text() for file in run.path.glob("output.*.txt")]
        time.sleep(0.1)


AT_REST = {"idle", "idle*", "drained", "down", "down*"}


def begin_at_once(run: RunDir) -> None:
    """Release a requeued job: SLURM delays it for two minutes, longer than its last attempt needs to finish."""
    job_id = slurm.state(run).job_id
    deadline = time.monotonic() + 600
    while slurm.state(run).state != "PENDING" or not set(_output("sinfo", "-hNo%T").split()) <= AT_REST:
        late = time.monotonic() > deadline or slurm.state(run).state == "COMPLETED"
        assert not late, slurm.state(run)
        time.sleep(0.5)
    time.sleep(3)
    _output("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("field", "value"),
    [("partition", "p;id"), ("partition", "$(id)"), ("partition", ""), ("account", "a b"), ("account", "`id`"),
     ("time", "1:00:00;id"), ("time", "soon"), ("time", "1:2:3:4"), ("time", "-1")],
)  # fmt: skip
def test_invalid_slurm_options(tmp_path: Path, field: str, value: str) -> None:
    with pytest.raises(InputError, match=f"--{field} is "):
        render(make_job(), tmp_path / "run", Options(**{field: value}))


@pytest.mark.parametrize(
    "time", ["30", "30:00", "01:00:00", "1-0", "2-12:30", "7-00:00:00", "UNLIMITED", "unlimited", "Infinite"]
)
def test_valid_slurm_times(tmp_path: Path, time: str) -> None:
    options = Options(time=time, partition="gpu,gpu-long", account="lab-1")
    assert f"#SBATCH --time={time}\n" in render(make_job(), tmp_path / "run", options)
