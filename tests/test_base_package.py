"""The base package without extras: every verb works, or names the missing extra in one line and exits with 3.

The same command lines run twice: in a process that cannot import the extras' packages, and (marked `install`) in a
virtual environment into which pip installed the base package only.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from chronograd import job as jobs
from chronograd.cli.main import main, verbs
from chronograd.errors import EXTRAS
from chronograd.rundir import RunDir

ROOT = Path(__file__).parent.parent
JOB = str(ROOT / "examples" / "digits.yaml")

# The questions of the README.
QUESTIONS = re.findall(r"^\$ chronograd (.+)$", (ROOT / "README.md").read_text(), re.MULTILINE)
# Command lines that work in the base package, on the files of `folder`.
DONE = [
    *QUESTIONS,
    "count resnet20",
    "count vit_small_patch16_224 --json",
    "count llama-3.1-405b --show-work",
    "count --list",
    "predict resnet50 --on v100",
    "plan inference torchvision:resnet18 --on t4",
    "--help",
    "--version",
    *(f"{verb} --help" for verb in verbs()),
    "run --schema",
    "run --print-config",
    "train JOB --print-config",
    "count net.json.gz --show-work",
    "predict JOB --trace net.json.gz --on 8xv100 --out new.json",
    "predict JOB --trace net.json.gz --on v100 --on h100 --json",
    "predict JOB --trace net.json.gz --on v100 --layers",
    "predict JOB --trace net.json.gz --on v100 --model paleo",
    "predict JOB --trace net.json.gz --on v100 --scaling strong",
    "predict JOB --trace net.json.gz --on v100 --timeline step.json",
    "plan JOB --trace net.json.gz --on v100 --counts 1,2",
    "plan JOB --trace net.json.gz --on v100 --largest-batch",
    "plan JOB --trace net.json.gz --on v100 --target-accuracy 0.9 --epochs-to-target 10 --budget 50",
    "fit speed speeds.csv --at 8,2",
    "fit loss losses.csv --to 0.5",
    "explain walls.csv",
    "simulate staleness --pushes 1,2,3,4 --pushes 2.5,5",
    "simulate speed --coefficients 2.83,3.92,0,0.11 --servers 4",
    "devices",
    "devices v100 --json",
    "weights --list",
    "records --in .",
    "records record.json",
    "compare record.json record.json",
    "study list",
]
# Command lines that need an extra.
REFUSED = {
    "count resnet20 --classes 100": "torch",
    "count torchvision:resnet18 --input 3,64,64": "vision",
    "count torchvision:resnext101_64x4d": "vision",
    "plan timm:resnet26": "timm",
    "count my_net.py:Net": "torch",
    "count JOB": "torch",
    "predict JOB --on v100": "torch",
    "predict JOB --on v100 --json": "torch",
    "plan JOB --on v100": "torch",
    "calibrate": "torch",
    "calibrate links": "torch",
    "measure JOB": "torch",
    "train JOB": "torch",
    "train JOB backend=ddp cluster.count=2": "torch",
    "train JOB backend=parameter_server": "ray",
    "train JOB backend=tf_mirrored": "tensorflow",
    "launch slurm JOB --dry-run": "torch",
    "label run data.samples=10 --out labels.npz": "torch",
    "export resnet20 --onnx net.onnx": "onnx",
    "validate times.csv --device rtx3090 --precision amp --layout nhwc --phase inference": "torch",
    "fit device times.csv --device rtx3090 --precision amp --layout nhwc --phase inference": "timm",
    "judge others.csv --on v100": "timm",
    "data digits": "vision",
    "weights torchvision:resnet18": "vision",
    "serve net.onnx": "serve",
    "run": "report",
    "report record.json": "report",
    "simulate staleness --pushes 1,2,3,4 --pushes 2.5,5 --picture lanes.svg": "report",
}
# Runs command lines in one process; prints the exit status and output of each, or the traceback.
DRIVER = """
import contextlib, io, json, sys, traceback
from importlib.machinery import PathFinder
blocked, lines = json.loads(sys.argv[1])
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in blocked else find(name, *rest)
from chronograd.cli.main import main
for words in lines:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = main(words)
        except BaseException:
            status, _ = None, traceback.print_exc()
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@dataclass
class Ended:
    """The result of a command line: `status` is None after an exception."""

    status: int | None
    out: str
    err: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a trace, a record, an unfinished run, and small tables."""
    path = tmp_path_factory.mktemp("work")
    trace, record = path / "net.json.gz", path / "record.json"
    assert main(["count", JOB, "--out", str(trace)]) == 0
    assert main(["predict", JOB, "--trace", str(trace), "--on", "v100", "--out", str(record)]) == 0
    RunDir.create(jobs.load(JOB), {}, path / "run")
    pairs = [f"{w},{p},{2.83 + 3.92 / w + 0.11 * p}" for w in (1, 2, 4) for p in (1, 2)]
    (path / "speeds.csv").write_text("\n".join(["workers,servers,step_time_s", *pairs]))
    losses = [f"{k},{1 / (0.1 * k + 1) + 0.2}" for k in range(1, 30)]
    (path / "losses.csv").write_text("\n".join(["epoch,loss", *losses]))
    (path / "walls.csv").write_text("network,nodes,wall\nnet,1,100\nnet,2,60\nnet,3,50\n")
    times = [f"resnet18,{size},{batch},{size * batch / 1e4}" for size in (96, 128, 160, 192) for batch in (8, 16, 32)]
    (path / "times.csv").write_text("\n".join(["network,size,batch,step_time_ms", *times]))
    (path / "others.csv").write_text("network,size,batch,step_time_ms\nresnet26,224,8,100\nresnet26,224,16,180\n")
    return path


def run_lines(python: str | Path, folder: Path, blocked: Sequence[str], **variables: str) -> dict[str, Ended]:
    """Run every command line in one process of `python` that cannot import the packages in `blocked`."""
    lines = [*DONE, *REFUSED]
    words = [[JOB if word == "JOB" else word for word in shlex.split(line)] for line in lines]
    done = subprocess.run(
        [str(python), "-c", DRIVER, json.dumps([list(blocked), words])],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "XDG_CACHE_HOME": str(folder / "no-traces"),  # a cached trace needs no torch
            **variables,
        },
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {line: Ended(*json.loads(text)) for line, text in zip(lines, done.stdout.splitlines(), strict=True)}


def check(line: str, ended: Ended, install: str) -> None:
    """Check for exit status 0, or for 3 with the command that installs the extra."""
    if line not in REFUSED:
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.strip()
        return
    assert ended.status == 3, ended.err
    what, to_do = ended.err.splitlines()[-2:]
    assert what.startswith("Error: ")
    assert to_do == f"  To fix: pip install {install}[{REFUSED[line]}]'"
    assert "Traceback" not in ended.err
    if "--json" in line:
        assert json.loads(ended.out)["hint"] in to_do


@pytest.fixture(scope="module")
def without_extras(folder: Path) -> dict[str, Ended]:
    return run_lines(sys.executable, folder, list(EXTRAS), PYTHONPATH=os.pathsep.join(sys.path))


@pytest.mark.parametrize("line", [*DONE, *REFUSED])
def test_command_lines_without_the_packages_of_extras(line: str, without_extras: dict[str, Ended]) -> None:
    check(line, without_extras[line], f"-e '{ROOT.resolve()}")


def test_packages_of_extras_are_declared_by_the_project() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: {canonicalize_name(Requirement(text).name) for text in texts} for extra, texts in declared.items()}
    distributions = packages_distributions()
    for package, extra in EXTRAS.items():
        of_package = {"keras": ["tensorflow-cpu"], "tensorflow": ["tensorflow-cpu"]}.get(
            package, distributions.get(package, [package])
        )
        assert names[extra] & {canonicalize_name(name) for name in of_package}, f"{package} is not in [{extra}]"


def test_other_import_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our code, or a broken base package."""
    monkeypatch.setitem(sys.modules, "chronograd.verbs.devices", None)
    with pytest.raises(ModuleNotFoundError, match="devices"):
        main(["devices"])


# -- in a separate environment ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a new environment with the base package and its dependencies."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"

    def pip(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "pip", *words, "--disable-pip-version-check", "--retries", "1"]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=500, check=False)

    done = pip("install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(ROOT))
    if done.returncode:
        other = pip("download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", str(place / "one"), "click")
        if other.returncode:
            pytest.skip("the package index does not answer")
        pytest.fail(f"the base package cannot be installed:\n{done.stderr}")
    return python


@pytest.fixture(scope="module")
def installed(base_python: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    return run_lines(base_python, folder, [], XDG_DATA_HOME=str(tmp_path_factory.mktemp("data")))


@pytest.mark.install
def test_base_package_installs_no_extra(base_python: Path) -> None:
    code = f"from importlib.util import find_spec; print([n for n in {list(EXTRAS)} if find_spec(n)])"
    assert subprocess.run([base_python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.install
@pytest.mark.parametrize("line", [*DONE, *REFUSED])
def test_command_lines_in_the_base_installation(line: str, installed: dict[str, Ended]) -> None:
    check(line, installed[line], "'chronograd")


@pytest.mark.install
def test_command_is_installed(base_python: Path, tmp_path: Path) -> None:
    command = base_python.parent / "chronograd"
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it would contain this checkout
    done = subprocess.run(
        [command, "count", "resnet20", "--classes", "100"],
        env=own,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == (
        "Error: counting resnet20 with other options, image sizes or classes than usual needs torch, which is not installed\n"
        "  To fix: pip install 'chronograd[torch]'\n"
    )


@pytest.mark.install
def test_source_distribution_builds_the_same_wheel(base_python: Path, tmp_path: Path) -> None:
    def run(*words: str | Path, cwd: Path = ROOT) -> str:
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([*words], env=own, capture_output=True, text=True, cwd=cwd, check=True).stdout

    run(base_python, "-m", "pip", "install", "--quiet", "hatchling>=1.27")
    run(base_python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", tmp_path / "checkout")
    (archive,) = (tmp_path / "checkout").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
        tar.extractall(tmp_path, filter="data")
    assert set(run("git", "ls-files").splitlines()) <= held
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    run(base_python, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    wheels = [next((tmp_path / folder).glob("*.whl")) for folder in ("checkout", "again")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
