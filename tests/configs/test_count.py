"""`count` of large models: files, folders, packaged names, the cache of Hugging Face; and the other verbs, which refuse them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.configs.examples import packaged_data

import chronograd
from chronograd.cli.main import main
from chronograd.configs.find import find, packaged
from chronograd.errors import InputError

MOST_SECONDS, MOST_BYTES = 5, 2**30


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a config.json, and other files of a model."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    shutil.copy(packaged()["llama-3.2-1b"], folder / "config.json")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def text_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["count", *words]) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_file_folder_and_name_have_the_same_counts(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [json.loads(text_of(capsys, str(one), "--json")) for one in (model, model / "config.json", "llama-3.2-1b")]
    for one in found:
        one.pop("network")
    assert found[0] == found[1] == found[2]
    assert found[0]["params"] == 1_235_814_400


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Llama-3-8B", "llama-3-8b"), ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"), ("Meta-Llama-3-8B", "llama-3-8b"),
        ("qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"), ("deepseek-ai/DeepSeek-R1", "deepseek-r1"), ("DeepSeek-V3", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"), ("Llama-2-7b-hf", "llama-2-7b"), ("GPT2", "gpt2"),
    ],
)  # fmt: skip
def test_names_of_hugging_face_are_read(
    spelling: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find(spelling) == packaged()[name]
    (tmp_path / spelling).mkdir(parents=True)
    assert find(spelling) is None, "a folder of this name wins"


def test_first_lines_state_the_assumptions(capsys: pytest.CaptureFixture[str]) -> None:
    lines = " ".join(text_of(capsys, "deepseek-v3").split("total")[0].split())
    assert "671 G parameters, of which a token uses 37" in lines
    assert "163,840 (its file states this length)" in lines
    assert "Not counted: the backward pass" in lines
    assert "further tokens are not counted" in lines


def test_length_batch_and_keys_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    one = chronograd.count("llama-3-8b", "num_hidden_layers=16", input=(4096,), batch=2).result
    assert (one.length, one.batch, one.num_layers) == (4096, 2, 16)
    assert one.flops_forward == 2 * 2 * 4096 * one.macs_per_token
    assert one.cache_bytes == 2 * 4096 * one.cache_bytes_per_token == 2 * 4096 * 2 * 16 * 2 * 8 * 128
    assert "exceeds the 8,192 of its file" in " ".join(text_of(capsys, "llama-3-8b", "--input", "16384").split())


def test_show_work_lists_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, "gpt2", "--show-work")
    assert "layers.*.feed_forward.up.weight" in text
    assert "3072×768" in text
    assert "196 tensors have parameters" in text  # 148 in the checkpoint, where query, key and value are one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt2", "--input", "2048"], "reads at most 1,024 tokens"),
        (["vit-base", "--input", "10"], "reads exactly 197 tokens"),
        (["llama-3-8b", "--input", "3,224,224"], "is no length"),
        (["llama-3-8b", "--depth", "2"], "--depth does not apply"),
        (["llama-3-8b", "--out", "x.json"], "--out does not apply"),
        (["llama-3-8b", "hidden_size"], "cannot read 'hidden_size'"),
        (["llama-3-8b", "hiden_size=8"], "did you mean hidden_size"),
        (["./"], "./ is a folder without a config.json"),
        (["hf:no/such-model"], "is not in the cache"),
        (["hf:../../etc"], "is no name of a model"),
        (["llama-3-9b"], "did you mean llama-3-8b"),
    ],
)
def test_wrong_requests(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in " ".join(error_of(capsys, "count", *words).split())


def test_model_in_the_cache_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = tmp_path / "hub" / "models--openai-community--gpt2"
    for revision, name in (("0123", "gpt2"), ("4567", "gpt2-medium")):
        (folder / "snapshots" / revision).mkdir(parents=True)
        shutil.copy(packaged()[name], folder / "snapshots" / revision / "config.json")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("4567")
    assert json.loads(text_of(capsys, "hf:openai-community/gpt2", "--json"))["params"] == 354_823_168
    (folder / "refs" / "main").write_text("../../..")
    assert json.loads(text_of(capsys, "hf:openai-community/gpt2", "--json"))["params"] == 124_439_808


@pytest.mark.parametrize(
    ("verb", "reason", "remedy"),
    [
        ("predict scaling", "`predict scaling` reads a network of code", "--on 8xh100 --on 16xh100"),
        ("plan batch", "`plan batch` searches the batch of a network of code", "--on 8xh100 --layouts"),
        ("plan inference", "is not predicted yet, neither its latency nor its throughput", "chronograd count"),
        ("predict server", "is not predicted yet, neither its latency nor its throughput", "chronograd count"),
        ("train", "running or scheduling its training is not there yet", "chronograd predict"),
        ("measure", "running or scheduling its training is not there yet", "chronograd predict"),
    ],
)
@pytest.mark.parametrize("name", ["llama-3-8b", "config.json", "folder"])
def test_other_verbs_refuse_large_models(
    verb: str, reason: str, remedy: str, name: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reason is about the verb, and no remedy answers another question."""
    what = {"config.json": str(model / "config.json"), "folder": str(model)}.get(name, name)
    words = " ".join(error_of(capsys, *verb.split(), what).split())
    assert reason in words
    assert remedy in words
    assert "leave it out" not in words


def test_family_without_a_reader_names_the_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`predict` needs the roles of tensors, so it refuses such a family, extra or not."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "stablelm"}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert main(["count", str(tmp_path)]) == 3
    words = capsys.readouterr().err
    assert "counting a family that Chronograd does not read needs transformers, which is not installed" in words
    assert "[transformers]" in words
    assert main(["predict", str(tmp_path), "--on", "8xh100"]) == 2
    assert "'stablelm' is a family without a reader" in capsys.readouterr().err


def test_names_of_the_zoo_win_over_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lenet5", "my-model"):
        (tmp_path / name).mkdir()
        shutil.copy(packaged()["gpt2"], tmp_path / name / "config.json")
    assert chronograd.count("lenet5").result.params == 61_706
    assert chronograd.count("my-model").result.params == 124_439_808


def test_trace_option_refuses_a_configuration(model: Path) -> None:
    with pytest.raises(InputError, match="configuration of a large model, not a trace"):
        chronograd.predict("resnet50", trace=str(model / "config.json"), on="v100")


def test_names_are_listed_and_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(text_of(capsys, "--list", "--json"))["large"] == list(packaged())
    from chronograd.verbs.kinds import complete_jobs

    assert "llama-3.1-405b" in [one.value for one in complete_jobs(None, None, "llama-3.1")]  # type: ignore[arg-type]


def test_deepseek_v3_takes_little_time_and_memory_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(packaged_data("deepseek-v3")))
    code = (
        "import resource, sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from chronograd.cli.main import main\n"
        f"assert main(['count', {str(tmp_path / 'config.json')!r}, '--show-work', '--json']) == 0\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        f"assert used.ru_utime + used.ru_stime < {MOST_SECONDS}, used\n"
        # Of this process alone: `ru_maxrss` is at least that of the process that started it.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM:'))\n"
        f"assert int(peak.split()[1]) * 1024 < {MOST_BYTES}, peak\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["params"] == 671_026_404_352


def test_bytes_of_the_weights_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """8,030,261,248 parameters of two bytes are 14.96 GiB; an encoder has weights, but no cache."""
    assert main(["count", "llama-3-8b"]) == 0
    assert re.search(r"^weights +15 GiB +parameters in 16-bit numbers$", capsys.readouterr().out, re.MULTILINE)
    assert main(["count", "bert-base"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"^weights +209 MiB ", output, re.MULTILINE)
    assert "cache" not in output


def test_an_encoder_is_promised_no_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """The hint for inference of `bert-base` said that `count` gives its cache of keys and values."""
    assert main(["predict", "bert-base", "--inference"]) == 2
    hint = capsys.readouterr().err
    assert "`chronograd count bert-base` gives the bytes of its weights" in hint
    assert "the cache of a model that generates text" in hint
