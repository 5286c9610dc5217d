"""Every platform renders every job and reads it back without loss; nothing is executed; wrong jobs are refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clouds.cases import JOBS, PLATFORMS, WRONG, Wrong, digits, submission_of

from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.clouds import complaints, fields, registry, rendering
from chronograd.clouds.example import OPTIONS
from chronograd.clouds.instances import choose
from chronograd.clouds.submission import ENTRY, Submission, decode, encode, job_fields, job_of, submission
from chronograd.errors import ChronogradError, InputError, NotFoundError
from chronograd.hardware import catalog
from chronograd.hardware.instances import catalogue

ROOT = Path(__file__).parents[2]
SHELLS = [name for name in PLATFORMS if registry.platform(name).is_shell]
# Text with a special meaning in shells, YAML, JSON, templates and Kubernetes.
NASTY = st.text(
    st.one_of(
        st.sampled_from(list("'\"`$(){}[]<>;&|!#%~*?\\\n\r\t\x85\u2028 :,=-@/")),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=25,
)
PIECES = st.sampled_from(
    [
        "$(touch x)",
        "`id`",
        "; rm -rf /",
        "'; x '",
        '"',
        "${HOME}",
        "$$",
        "${{inputs.data}}",
        "\n- a: b",
        "é漢😀",
        "null",
        "1e5",
    ]
)
TEXT = st.one_of(NASTY, PIECES, st.builds(lambda a, b: a + b, NASTY, PIECES))
KEY = TEXT.filter(lambda text: bool(text))


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("platform", PLATFORMS)
class TestEveryPlatform:
    def test_rendered_job_is_read_back(self, platform: str, name: str) -> None:
        where, wanted = registry.platform(platform), submission_of(platform, name)
        text = fields.render(where, wanted)
        back = fields.read(where, text)
        assert back == wanted
        assert jobs.resolved(back.job) == jobs.resolved(wanted.job)
        assert fields.render(where, back) == text

    def test_rendered_job_is_valid(self, platform: str, name: str) -> None:
        assert complaints.complaints(registry.platform(platform), submission_of(platform, name)) == []

    def test_every_rendered_word_is_read(self, platform: str, name: str) -> None:
        where, wanted = registry.platform(platform), submission_of(platform, name)
        assert fields.not_read(where, fields.document(where, wanted), wanted) == []

    def test_platform_is_recognized_by_its_file(self, platform: str, name: str, tmp_path: Path) -> None:
        where = registry.platform(platform)
        path = tmp_path / where.file
        path.write_text(fields.render(where, submission_of(platform, name)))
        found, document = registry.open_file(path)
        assert found.name == platform
        assert fields.read_document(found, document) == submission_of(platform, name)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_changed_field_in_the_file_is_read(platform: str) -> None:
    """Each word with a field comes from that field only; the file holds no second copy."""
    where = registry.platform(platform)
    before = submission_of(platform, "detection")
    other = {
        "image": "other:2",
        "limit_s": 60,
        "restarts": 5,
        "disk_gb": 300,
        "role": "other",
        "project": "other",
        "code": "c2",
    }
    for word, value in other.items():
        field = next((one for one in where.fields if one.says == word), None)
        if field is None:
            continue
        document = where.unfold(fields.document(where, before.model_copy(update={word: value})))
        assert field.read(fields.get(document, field.path)) == value
        changed = fields.read(where, fields.render(where, before.model_copy(update={word: value})))
        assert getattr(changed, word) == value


@settings(max_examples=40, deadline=None)
@given(name=TEXT, tags=st.dictionaries(KEY, TEXT, max_size=3), path=TEXT, value=TEXT, option=TEXT)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_any_text_round_trips(
    platform: str, name: str, tags: dict[str, str], path: str, value: str, option: str
) -> None:
    where, wanted = registry.platform(platform), _with(platform, name, tags, path, value, option)
    assert fields.read(where, fields.render(where, wanted)) == wanted


def _with(platform: str, name: str, tags: dict[str, str], path: str, value: str, option: str) -> Submission:
    job = jobs.from_dict(
        {
            "network": {"name": "resnet20", "options": {"note": option}},
            "data": {"name": f"folder:/{path}"},
            "training": {"batch": 8},
        }
    )
    scheme = registry.platform(platform).schemes[0]
    given = {
        "name": name or "x",
        "tags": tags,
        "environment": {"NOTE": value},
        "data": {"data": f"{scheme}bucket/{path}"},
    }
    return submission(job, catalogue(registry.platform(platform).instances), **{**OPTIONS[platform], **given})


DUMP = """#!/bin/bash
printf '%s\\0' "$NOTE" "$@"
"""


@settings(max_examples=15, deadline=None)
@given(name=TEXT, tags=st.dictionaries(KEY, TEXT, max_size=2), path=TEXT, value=TEXT, option=TEXT)
@pytest.mark.parametrize("platform", SHELLS)
def test_shell_runs_only_the_command(
    platform: str,
    name: str,
    tags: dict[str, str],
    path: str,
    value: str,
    option: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    where, wanted = registry.platform(platform), _with(platform, name, tags, path, value, option)
    field = next(one for one in where.fields if "arguments" in one.words)
    line = fields.get(where.unfold(fields.document(where, wanted)), field.path)
    folder = tmp_path_factory.mktemp("shell")
    (folder / "python").write_text(DUMP)
    (folder / "python").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", line],
        env={"PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=folder,
        capture_output=True,
        check=True,
    )
    note, *words = done.stdout.decode().split("\0")[:-1]
    assert words[:2] == list(ENTRY[1:])
    assert dict(word.split("=", 1) for word in words[2:]) == fields.job_arguments(where, wanted)
    if "environment" in field.words:
        assert note == value
    assert [one.name for one in folder.iterdir()] == ["python"]


def _expanded(text: str, known: dict[str, str]) -> str:
    """Return a value as Kubernetes expands it: `$$` becomes `$`, and `$(NAME)` a known variable."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[0] == "$$" else known.get(m[1], m[0]), text)


@settings(max_examples=40, deadline=None)
@given(value=TEXT, option=TEXT)
@pytest.mark.parametrize("platform", ["kubernetes", "pytorchjob", "vertex"])
def test_kubernetes_expands_no_variable(platform: str, value: str, option: str) -> None:
    where = registry.platform(platform)
    text = f"{value}$(HOME)$$(HOME)"
    wanted = _with(platform, "x", {"a": text}, option, text, text)
    container = _container(fields.document(where, wanted))
    known = {"HOME": "/root", "NOTE": "harmed"}
    assert [_expanded(word, known) for word in container["args"]] == container["args"]
    (given_value,) = (one["value"] for one in container["env"] if one["name"] == "NOTE")
    assert _expanded(given_value, known) == text


def _container(document: Any) -> dict[str, Any]:
    """Return the first mapping with `args` in it."""
    if isinstance(document, dict):
        if "args" in document:
            return document
        document = list(document.values())
    for one in document if isinstance(document, list) else ():
        if found := _container(one):
            return found
    return {}


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.one_of(TEXT, st.integers(-(2**53), 2**53), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)),
                    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)), max_leaves=6))  # fmt: skip
def test_values_have_only_safe_characters(value: Any) -> None:
    word = encode(value)
    assert decode(word) == value
    assert word.isascii()
    assert not set(word) & set("$`'!;&|<>()*?~#%^\n\r")


def test_job_fields_rebuild_the_job() -> None:
    job = jobs.load(
        ROOT / "examples" / "cifar10-batch-augmentation.yaml", ["training.augmentation={crop: 4, copies: 2}"]
    )
    assert jobs.resolved(job_of(job_fields(job))) == jobs.resolved(job)


# -- instances -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sagemaker", "vertex", "azureml", "watsonx", "skypilot", "kubernetes"])
def test_instances_have_known_devices_and_a_source(name: str) -> None:
    known = catalogue(name)
    assert known.source
    assert known.date
    assert len({one.name for one in known.instance}) == len(known.instance)
    prices = {(row.vendor, row.instance, row.device) for row in catalog.prices()}
    for one in known.instance:
        assert (one.device == "cpu") == (one.count == 0)
        if one.device != "cpu":
            assert catalog.device(one.device).kind == "gpu"
        if one.priced_as:
            assert (known.vendor, one.priced_as, one.device) in prices, one.name


@pytest.mark.parametrize(
    ("cluster", "chosen"),
    [
        ({"device": "v100", "count": 1}, ("ml.p3.2xlarge", 1)),
        ({"device": "v100", "count": 16}, ("ml.p3.16xlarge", 2)),
        ({"device": "v100", "count": 8, "per_node": 4}, ("ml.p3.8xlarge", 2)),
        ({"device": "v100", "count": 12}, ("ml.p3.8xlarge", 3)),
        ({"device": "cpu", "count": 1}, ("ml.m5.xlarge", 1)),
        ({"device": "local", "count": 2, "per_node": 2, "threads": 8}, ("ml.m5.4xlarge", 1)),
    ],
)
def test_largest_filled_instance_is_chosen(cluster: dict[str, Any], chosen: tuple[str, int]) -> None:
    job = jobs.from_dict(
        {"network": {"name": "resnet20"}, "data": {"name": "digits"}, "cluster": cluster, "backend": "ddp"}
    )
    instance, nodes = choose(catalogue("sagemaker"), job)
    assert (instance.name, nodes) == chosen


@pytest.mark.parametrize(
    ("cluster", "instance", "message"),
    [
        ({"device": "h100", "count": 3}, None, "no instance type of SageMaker has h100 for 3 of them"),
        ({"device": "v100", "count": 3}, "ml.p3.16xlarge", "of 3 in the job 5 would be paid for and idle"),
        ({"device": "v100", "count": 1}, "ml.g4dn.xlarge", "it has t4, and the job wants v100"),
        ({"device": "rtx4090", "count": 1}, None, "SageMaker has no rtx4090"),
        ({"device": "v100", "count": 8, "per_node": 2}, None, "2 on a node"),
    ],
)
def test_idle_or_missing_devices_are_refused(cluster: dict[str, Any], instance: str | None, message: str) -> None:
    job = jobs.from_dict(
        {"network": {"name": "resnet20"}, "data": {"name": "digits"}, "cluster": cluster, "backend": "ddp"}
    )
    with pytest.raises(InputError, match=message):
        choose(catalogue("sagemaker"), job, instance)


def test_cost_limit_becomes_a_time_limit() -> None:
    job = jobs.changed(digits("sagemaker"), ["cluster.device=v100"])
    known = catalogue("sagemaker")
    assert submission(job, known, max_cost_usd=3.06).limit_s == 3600  # p3.2xlarge, 3.06 dollars an hour
    assert submission(job, known, max_cost_usd=3.06, limit_s=600).limit_s == 600
    own = jobs.changed(job, ["cluster.price_usd_per_hour=1.5", "cluster.count=8", "backend=ddp"])
    assert submission(own, known, max_cost_usd=24).limit_s == 7200  # 8 × 1.5 dollars
    with pytest.raises(InputError, match="no price of V100:1 is known"):
        submission(job, catalogue("skypilot"), max_cost_usd=5)


# -- wrong files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: f"{one.platform}-{one.name}")
def test_wrong_file_is_refused_with_the_reason(wrong: Wrong) -> None:
    where, document = registry.platform(wrong.platform), wrong.document()
    try:
        read = fields.read_document(where, document)
        told = [*complaints.complaints(where, read), *fields.not_read(where, document, read)]
    except ChronogradError as error:
        told = [str(error)]
    assert re.search(wrong.says, "\n".join(told)), told


def test_at_least_twenty_wrong_files() -> None:
    assert len({(one.platform, one.name) for one in WRONG}) >= 20
    assert {one.platform for one in WRONG} == set(PLATFORMS)


@pytest.mark.parametrize(
    ("platform", "options", "message"),
    [
        ("sagemaker", {"secrets": {"T": "hunter2"}}, "secret T is not a reference"),
        ("sagemaker", {"environment": {"DB_PASSWORD": "x"}}, "DB_PASSWORD looks like a secret"),
        ("sagemaker", {"environment": {"URL": "postgres://me:pw@host/db"}}, "URL looks like a secret"),
        ("vertex", {"image": None}, "there is no image"),
        ("kubernetes", {"environment": {"A-B": "1"}}, "is no name"),
        ("kubernetes", {"restarts": -1}, "--restarts is -1"),
        ("skypilot", {"output": None, "checkpoints": None}, "would start over"),
        ("watsonx", {"spot": True}, "leave it out"),
        ("azureml", {"data": {"output": "azureml://a/b"}}, "has a channel 'output'"),
    ],
)  # fmt: skip
def test_invalid_options(platform: str, options: dict[str, Any], message: str) -> None:
    where = registry.platform(platform)
    given = {k: v for k, v in {**OPTIONS[platform], **options}.items() if v is not None}
    with pytest.raises(InputError, match=message) as caught:
        complaints.check(where, submission(digits(platform), where.catalogue, **given))
    assert "hunter2" not in str(caught.value)


def test_files_of_other_programs_are_not_recognized(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("run: python train.py\nresources: {accelerators: 'V100:1'}\n")
    with pytest.raises(InputError, match="runs another program"):
        fields.read_document(*registry.open_file(path))
    path.write_text("a: 1\n")
    with pytest.raises(InputError, match="of no known platform"):
        registry.open_file(path)
    with pytest.raises(NotFoundError, match="unknown platform 'sagemakr'"):
        registry.platform("sagemakr")


SAGEMAKER = {
    "TrainingJobName": "own", "AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "File"},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60}, "EnableManagedSpotTraining": True, "HyperParameters": {"trees": "9"},
}  # fmt: skip
CONTAINER = "{containers: [{name: a, image: b, command: [python, train.py]}]}"
OF_OTHERS = {
    "azureml": (
        "$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json\n"
        "command: python -m src.train --epochs 1\ncompute: azureml:cpu\n",
        "this Azure ML job runs another program",
    ),
    "slurm": (
        "#!/bin/bash\n#SBATCH --nodes=2\necho Node: $HEAD\nsrun torchrun train.py\n",
        "is a SLURM script: it runs another program",
    ),
    "pbs": ("#PBS -l nodes=2\npython train.py\n", "is a PBS script: it runs another program"),
    "script": ("#!/bin/sh\npython train.py\n", "is a script: it runs another program"),
    "sagemaker": (json.dumps(SAGEMAKER), "this SageMaker job runs another program.*needs .*MaxWaitTimeInSeconds"),
    "kubernetes": (
        f"apiVersion: batch/v1\nkind: Job\nspec: {{template: {{spec: {CONTAINER}}}}}\n",
        "this Kubernetes job runs another program",
    ),
    "pod": (f"apiVersion: v1\nkind: Pod\nspec: {CONTAINER}\n", "this Kubernetes job runs another program"),
    "pytorchjob": (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {pytorchReplicaSpecs: {Master: {template: "
        f"{{spec: {CONTAINER}}}}}}}}}\n",
        "runs another program",
    ),
    "vertex": (
        "workerPoolSpecs: [{replicaCount: 1, containerSpec: {imageUri: a, command: [python, train.py]}}]\n",
        "this Vertex.* job runs another program",
    ),
    "skypilot": ("run: python train.py --lr 0.1\n", "this SkyPilot job runs another program"),
    "azureml without schema": (
        "command: python train.py\nenvironment: azureml:torch@latest\ncompute: azureml:gpus\n",
        "this Azure ML job runs another program",
    ),
    "vertex of Python's client": (
        "display_name: a\njob_spec: {worker_pool_specs: [{container_spec: {command: [python, train.py]}}]}\n",
        "this Vertex.* job runs another program",
    ),
    "two tasks": (
        "name: a\nrun: python tokenize.py\n---\nname: b\nrun: python train.py\n",
        "has 2 YAML documents of SkyPilot, which run other programs",
    ),
    "a task among two": (
        "run: python -m chronograd.clouds.entry network.name=resnet20\n---\nrun: python train.py\n",
        "has 2 YAML documents of SkyPilot\n",
    ),
    "TOML": (
        '[model]\nname = "llama3"\n[training]\nseq_len = 8192\n',
        "is TOML, and no platform has job files in TOML",
    ),
    "another program": ("a: 1\nb: 2\n", "of no known platform: its keys are a and b"),
    "job": ("network: {name: resnet20}\ndata: {name: digits}\n", "is a job file already"),
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_foreign_file_is_reported(kind: str, tmp_path: Path) -> None:
    text, message = OF_OTHERS[kind]
    (tmp_path / "file").write_text(text)
    with pytest.raises(InputError, match=message):
        rendering.opened(tmp_path / "file")


RUN = "python -m chronograd.clouds.entry network.name=resnet20 data.name=digits"


@pytest.mark.parametrize("accelerators", ["{V100: 1}", "V100", "V100:1"])
def test_skypilot_accelerators_in_any_spelling(accelerators: str, tmp_path: Path) -> None:
    path = tmp_path / "sky.yaml"
    path.write_text(f"name: a\nresources: {{accelerators: {accelerators}, use_spot: true}}\nnum_nodes: 1\nrun: {RUN}\n")
    read = rendering.opened(path)
    assert read.asked.instance == "V100:1"
    assert not [line for line in read.left_out if "accelerators" in line]
    (line,) = [line for line in read.wrong if "would start over" in line]
    assert line.startswith("resources.use_spot without a place")
    assert "--" not in line


def test_refusal_names_the_field_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sky.yaml"
    path.write_text(f"name: a\nresources: {{accelerators: ['V100:1', 'A100:1']}}\nnum_nodes: two\nrun: {RUN}\n")
    with pytest.raises(InputError) as caught:
        rendering.opened(path)
    lines = [line.strip() for line in caught.value.message.splitlines()[1:]]
    assert [line.partition(":")[0] for line in lines] == ["resources.accelerators", "num_nodes"]


def test_vertex_job_of_pythons_client_is_read(tmp_path: Path) -> None:
    """Python's client writes keys with underscores, and gcloud takes the jobSpec alone. Labels keep their keys."""
    path = tmp_path / "vertex.json"
    where, asked = registry.platform("vertex"), submission_of("vertex", "digits")
    document = fields.document(where, asked)
    pools = [{re.sub("[A-Z]", lambda m: "_" + m[0].lower(), key): one for key, one in pool.items()}
             for pool in document["jobSpec"]["workerPoolSpecs"]]  # fmt: skip
    path.write_text(json.dumps({**document["jobSpec"], "workerPoolSpecs": pools}))
    assert rendering.opened(path).asked.job == asked.job
    path.write_text(json.dumps({**document, "labels": {"my_team": "a"}}))
    assert rendering.opened(path).asked.tags == {"my_team": "a"}


def test_file_without_spot_waiting_time(tmp_path: Path) -> None:
    where = registry.platform("sagemaker")
    given = {**OPTIONS["sagemaker"], "spot": True, "checkpoints": "s3://bucket/running"}
    made = fields.document(where, submission(digits("sagemaker"), where.catalogue, **given))
    path = tmp_path / "sagemaker.json"
    path.write_text(json.dumps(made))
    assert not rendering.opened(path).wrong
    del made["StoppingCondition"]["MaxWaitTimeInSeconds"]
    path.write_text(json.dumps(made))
    assert any("needs StoppingCondition.MaxWaitTimeInSeconds" in line for line in rendering.opened(path).wrong)


# -- the command line ------------------------------------------------------------------------------------


def test_command_line_renders_and_reads_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--image", "i:1", "--output", "pvc://out/a b", "--tag", "a=it's", "--env", "X=$(id)", "--time", "01:00:00"]
    job = str(ROOT / "examples" / "digits.yaml")
    assert main(["launch", "kubernetes", job, "training.epochs=2", *words, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "nobody has accepted it" in told.err
    assert main(["job", "from", str(tmp_path / "kubernetes.yaml"), "--out", str(tmp_path / "job.yaml")]) == 0
    assert jobs.resolved(jobs.load(tmp_path / "job.yaml")) == jobs.resolved(jobs.load(job, ["training.epochs=2"]))
    capsys.readouterr()
    assert main(["job", "from", str(tmp_path / "kubernetes.yaml"), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert (read["wrong"], read["left_out"]) == ([], [])
    assert (read["asked"]["limit_s"], read["asked"]["tags"]) == (3600, {"a": "it's"})
    assert read["asked"]["environment"] == {"X": "$(id)"}
    assert main(["launch", "kubernetes", job, "--dry-run", *words]) == 0
    assert capsys.readouterr().out.startswith("apiVersion: batch/v1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sagemaker", "JOB", "--dry-run"], "there is no role"),
        (["sagemaker"], "write `chronograd launch sagemaker JOB`"),
        (["kubernetes", "JOB", "--image", "i:1"], "--dry-run prints it"),
        (["sagemaker", "JOB", "--dry-run", "--time", "soon"], "'--time': cannot read the time 'soon'; write HH:MM:SS"),
        (["sagemaker", "JOB", "--dry-run", "--tag", "x"], "'--tag': cannot read 'x'; write NAME=VALUE"),
    ],
)
def test_missing_platform_features_are_reported(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(ROOT / "examples" / "digits.yaml")
    assert main(["launch", *(job if word == "JOB" else word for word in words)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
