"""Jobs of large models from words: the usual values of the field, short options, job files, and one clear error each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import chronograd
from chronograd import job as jobs
from chronograd.cli.main import main
from chronograd.configs.find import packaged
from chronograd.errors import ChronogradError, InputError
from chronograd.large.asking import AskedLarge, ask_large, with_changes
from chronograd.large.prediction import LargePrediction
from chronograd.large.remedies import ENOUGH, remedied, until_it_fits


def of(*words: str, place: str | None = "8xh100", micro_batch: int | None = None, **short: Any) -> AskedLarge:
    return ask_large("llama-3-8b", words, short, place, micro_batch)


def test_job_has_the_packaged_name() -> None:
    for spelling in ("llama-3-8b", "Llama-3-8B", "meta-llama/Meta-Llama-3-8B"):
        assert ask_large(spelling, place="8xh100").setting.job.network.name == "llama-3-8b"


@pytest.mark.parametrize(
    ("place", "name"), [("8xA100", "a100-40"), ("8xh100-sxm", "h100"), ("4090", "rtx4090"), ("2x4090", "rtx4090")]
)
def test_job_has_the_name_of_the_device(place: str, name: str) -> None:
    assert of(place=place, qlora=8).setting.job.cluster.device == name


def test_usual_values() -> None:
    setting = of().setting
    job, training = setting.job, setting.training
    assert (job.task, job.data.name, job.data.shape) == ("language", "tokens", (8192,))
    assert (training.optimizer, training.precision, training.param_dtype) == ("adamw", "bf16", "fp32")
    assert (setting.data, setting.micro_batch, setting.micro_batches, training.batch) == (8, 1, 1, 8)
    assert job.large == jobs.LargeModel()
    assumed = " ".join(of().assumed)
    for words in (
        "8,192 tokens",
        "micro-batches of 1 sequence",
        "AdamW",
        "bf16",
        "data parallelism",
        "fused attention",
    ):
        assert words in assumed


def test_stated_values_are_not_assumed() -> None:
    stated = of("large.attention=plain", "large.loss=fused", "large.kernels=eager", "training.optimizer=sgd", sequence=4096, batch=64, precision="bf16",
                fsdp=True, recompute="full", micro_batch=8)  # fmt: skip
    assert stated.assumed == ()
    assert stated.setting.sequence == 4096


def test_nodes_and_their_links_are_stated() -> None:
    nodes, link = "8 devices per node (cluster.per_node)", "nodes joined by ethernet-10g (cluster.link)"

    def stated(*words: str, place: str = "16xrtx4090") -> list[str]:
        return [text for text in of(*words, place=place).assumed if text in (nodes, link)]

    assert stated() == [nodes, link]
    assert stated("cluster.per_node=4") == [link]
    assert stated("cluster.link=infiniband-hdr") == [nodes]
    assert stated("cluster.per_node=16") == stated(place="8xrtx4090") == []


@pytest.mark.parametrize(
    ("short", "field", "value"),
    [
        ({"fsdp": True}, "zero_stage", 3),
        ({"zero": 1}, "zero_stage", 1),
        ({"tensor": 4}, "tensor", 4),
        ({"pipeline": 2}, "pipeline", 2),
        ({"context": 2}, "context", 2),
        ({"recompute": "full"}, "recompute", "full"),
        ({"lora": 16}, "adapter_rank", 16),
        ({"qlora": 16}, "base_bits", 4),
        ({"precision": "fp16"}, "precision", "fp16"),
        ({"precision": "fp8"}, "fp8", True),
        ({"precision": "fp8"}, "precision", "bf16"),
    ],
)
def test_short_options_set_fields_of_the_job(short: dict[str, Any], field: str, value: Any) -> None:
    setting = of(**short).setting
    assert value in [getattr(part, field, None) for part in (setting.training, setting.layout, setting.options)]


def test_devices_without_bf16_get_fp16() -> None:
    assert of(place="8xv100").setting.training.precision == "fp16"


def test_experts_are_shared() -> None:
    assert ask_large("mixtral-8x7b", (), {"expert": 8}, "8xh100").setting.layout.expert == 8


@pytest.mark.parametrize(
    ("words", "how", "batch", "micro_batch", "parts"),
    [
        ((), {}, 8, 1, 1),
        ((), {"micro_batch": 2}, 16, 2, 1),
        ((), {"batch": 64}, 64, 1, 8),
        ((), {"batch": 64, "micro_batch": 2}, 64, 2, 4),
        (("training.accumulation=4",), {}, 32, 1, 4),
        (("training.accumulation=4",), {"batch": 64}, 64, 2, 4),
        ((), {"tensor": 8}, 1, 1, 1),
        ((), {"pipeline": 2}, 32, 1, 8),
    ],
)
def test_batches(words: tuple[str, ...], how: dict[str, Any], batch: int, micro_batch: int, parts: int) -> None:
    setting = of(*words, **how).setting
    assert (setting.training.batch, setting.micro_batch, setting.micro_batches) == (batch, micro_batch, parts)


@pytest.mark.parametrize(
    ("words", "how", "message"),
    [
        ((), {"batch": 12}, "cannot be divided into micro-batches of 1 on 8"),
        ((), {"batch": 4}, "fewer than"),
        ((), {"fsdp": True, "zero": 2}, "--fsdp and --zero both set training.zero_stage"),
        (("training.zero_stage=1",), {"fsdp": True}, "both set training.zero_stage"),
        ((), {"place": None}, "on which devices"),
        ((), {"place": "cpu"}, "is no GPU"),
        ((), {"place": "tpu-v5e"}, "cannot be predicted"),
        ((), {"precision": "bf16", "place": "v100"}, "has no bf16 arithmetic"),
        (("cluster.count=4",), {}, "contradicts"),
        (("mode=inference",), {}, "mode is inference, which is not predicted for a large model"),
        (("training.activation_checkpointing=blocks",), {}, "large.recompute=full"),
        (("backend=horovod",), {}, "backend is horovod"),
        (("data.shape=[3,8]",), {}, "rows of tokens"),
        (("hidden=8",), {}, "hidden"),
        (("hidden_size",), {}, "cannot read override"),
        ((), {"tensor": 3}, "does not divide"),
        ((), {"expert": 2}, "the model has no experts"),
    ],
)  # fmt: skip
def test_one_clear_error(words: tuple[str, ...], how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        of(*words, **how)
    assert message in str(error.value)


def test_learned_positions_limit_the_length() -> None:
    with pytest.raises(InputError, match="reads at most 1,024 tokens"):
        ask_large("gpt2", (), {"sequence": 2048}, "h100")


def test_keys_of_the_file_and_fields_of_the_job() -> None:
    setting = of("num_hidden_layers=16", "large.fp8=true").setting
    assert sum(len(group.places) for group in setting.model.groups) == 16
    assert setting.job.network.options == {"num_hidden_layers": 16}
    assert setting.options.fp8


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("training.optimizer=sgd", "training.precision=fp32"),
        ("training.recipe=sgd-momentum", "training.batch=64"),
        ("training.accumulation=4", "num_hidden_layers=16", "large.adapter_rank=8"),
        ("cluster.layout.pipeline=2", "cluster.layout.tensor=4", "training.accumulation=1"),
    ],
)
def test_a_saved_job_is_the_same_job(words: tuple[str, ...], tmp_path: Path) -> None:
    asked = of(*words).setting.job
    for number, is_whole in enumerate((True, False)):
        path = tmp_path / f"{number}.yaml"
        path.write_text(jobs.to_yaml(asked, is_whole))
        assert ask_large(str(path)).setting.job == asked
    assert ask_large(asked).setting.job == asked


def test_a_short_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(packaged()["gpt2"], tmp_path / "config.json")
    (tmp_path / "job.yaml").write_text("network: {name: config.json}\ncluster: {device: h100, count: 4}\n")
    setting = ask_large("job.yaml").setting
    assert (setting.training.precision, setting.training.batch, setting.sequence) == ("bf16", 4, 1024)


def test_the_job_file_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "large-models.md").read_text()
    (tmp_path / "job.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    setting = ask_large(tmp_path / "job.yaml").setting
    assert (setting.ranks, setting.data, setting.micro_batch, setting.sequence) == (16, 2, 8, 8192)


def test_with_changes_keeps_batch_and_micro_batch() -> None:
    setting = of(batch=16, micro_batch=2).setting
    other = with_changes(setting, ["cluster.layout.tensor=8"])
    assert (other.training.batch, other.micro_batch, other.micro_batches) == (16, 2, 8)
    with pytest.raises(InputError):
        with_changes(setting, ["cluster.layout.tensor=3"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict llama-3-8b --on h100 --depth 2", "--depth does not apply to llama-3-8b"),
        ("predict llama-3-8b --on h100 --inference", "inference of llama-3-8b is not predicted yet"),
        ("predict bert-base --on h100 mode=inference", "`chronograd count` gives the bytes of its weights"),
        ("predict llama-3-8b --on h100 --input 3,4", "is no length"),
        ("predict llama-3-8b --on h100 --input 4096 --sequence 4096", "both state the length"),
        ("predict llama-3-8b --on h100 --batch 8,16", "give one number"),
        ("predict llama-3-8b --on h100 --on a100 --out x.json", "--on once"),
        ("predict resnet50 --on v100 --tensor 2", "--tensor is predicted from a config.json only, and resnet50"),
        ("predict resnet50 --on v100 --tokens 1e9", "state --epochs N"),
        ("predict resnet50 --on v100 --micro-batch 4", "write training.accumulation=N"),
        ("predict resnet50 --on v100 --recompute selective", "write --recompute full"),
        ("predict resnet50 --on v100 --epochs 0.5", "trains whole epochs"),
        ("predict resnet50 --on v100 --sequence 512", "takes samples of shape (3, 224, 224)"),
        ("predict gpt2-small --on v100 --sequence 512 --input 512", "both state the length"),
        ("predict opt-1.3b --on v100 --tensor 2", "opt-1.3b is a network of code"),
        ("predict llama3-8b --on 8xh100 --tensor 2", "unknown network 'llama3-8b'"),
        ("predict llama3-8b --on 8xh100 --fsdp", "unknown network 'llama3-8b'"),
        ("predict other/Llama-8B --on 8xh100 --tensor 2", "other/Llama-8B is no known model"),
        ("plan batch llama-3-8b", "`plan batch` searches the batch of a network of code"),
        ("plan inference llama-3-8b", "inference of llama-3-8b is not predicted yet"),
        ("plan llama-3-8b --inference", "inference of llama-3-8b is not predicted yet"),
        ("predict server llama-3-70b", "inference of llama-3-70b is not predicted yet"),
        ("predict scaling llama-3-8b", "give each number of devices to `predict`"),
        ("train llama-3-8b", "running or scheduling its training is not there yet"),
        ("predict resnet50 --on v100 cluster.layout.tensor=2", "only a large model has"),
        ("predict resnet50 --on v100 large.fp8=true", "only a large model has"),
        ("train lenet5 large.fp8=true", "only a large model has"),
        ("judge resnet50 --on v100 --tensor 2 9/s", "--tensor is predicted from a config.json only"),
        ("judge llama-3-8b --on h100", "no figures for llama-3-8b"),
        ("judge llama-3-8b --on h100 --inference 9/s", "inference of llama-3-8b is not predicted yet"),
    ],
)
def test_options_that_do_not_apply(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "leave it out" not in error or "inference" not in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fsdp": True}, ["backend=fsdp"]),
        ({"zero": 3}, ["training.zero_stage=3"]),
        ({"recompute": "full"}, ["training.activation_checkpointing=blocks"]),
        ({"epochs": 30}, ["training.epochs=30"]),
    ],
)
def test_options_are_fields_of_an_ordinary_network(options: dict[str, Any], words: list[str]) -> None:
    """One question has one answer: the option and the field of the job that it sets."""
    by_option = chronograd.predict("resnet50", on="8xv100", **options).result
    by_field = chronograd.predict("resnet50", *words, on="8xv100").result
    assert by_option.job == by_field.job
    assert by_option.quantities == by_field.quantities
    if "epochs" not in options:
        figure, places = "2000 images/s", {"on": "8xv100", "batch": 256}
        judged = [
            chronograd.judge("resnet50", figure, **places, **options),
            chronograd.judge("resnet50", figure, *words, **places),
        ]
        assert judged[0].data == judged[1].data


def test_epochs_are_known_to_a_plan() -> None:
    by_option = chronograd.plan("resnet50", data="imagenet", epochs=90, budget=50, on="v100")
    by_field = chronograd.plan("resnet50", "training.epochs=90", data="imagenet", budget=50, on="v100")
    assert by_option.sections[0].takeaway == by_field.sections[0].takeaway


def test_length_is_that_of_text() -> None:
    by_length = chronograd.predict("gpt2-small", on="v100", sequence="1k", batch=4).result
    by_shape = chronograd.predict("gpt2-small", on="v100", input=1024, batch=4).result
    assert by_length.quantities == by_shape.quantities
    assert chronograd.predict("llama-3-8b", on="8xh100", sequence="4k").result.job.data.shape == [4096]


def test_judge_distinguishes_a_model_from_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder may be that of a config.json, or a run; a table is neither a model nor a job."""
    (tmp_path / "model").mkdir()
    shutil.copy(packaged()["gpt2"], tmp_path / "model" / "config.json")
    assert chronograd.judge(tmp_path / "model", "20% mfu", on="h100").result.mfu == pytest.approx(0.2)
    (tmp_path / "t.csv").write_text("model,batch,image_size,samples_per_s\nresnet50,64,224,300\n")
    assert len(chronograd.judge(tmp_path / "t.csv", on="v100").result.verdicts) == 1
    (tmp_path / "run").mkdir()
    assert main(["judge", str(tmp_path / "run")]) == 2
    assert "not a job file" not in capsys.readouterr().err


def test_inference_of_text_is_one_forward_pass() -> None:
    one = chronograd.predict("gpt2-small", on="rtx4090", mode="inference", batch=1)
    several = chronograd.predict("gpt2-small", on="rtx4090", mode="inference", batch=(1, 8))
    for text in (" ".join(one.sections[0].lines), " ".join(several.notes)):
        assert "one forward pass over 1,024 given tokens, not the generation of text" in text


def test_python_passes_a_job() -> None:
    with pytest.raises(ChronogradError, match="only a large model has"):
        chronograd.predict(jobs.changed(of().setting.job, ["network.name=lenet5", "data.name=digits"]), on="v100")


def test_throughput_of_a_vision_transformer_is_in_images(capsys: pytest.CaptureFixture[str]) -> None:
    record = chronograd.predict("vit-huge", on="8xa100-80", batch=256, micro_batch=32).result
    assert main(["predict", "vit-huge", "--on", "8xa100-80", "--batch", "256", "--micro-batch", "32"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Predicted: {record.value('throughput_samples_per_s'):,.0f} images/s (80 % interval " in text
    million = 257 * (record.value("cost_usd_per_million_tokens") or 0.0)
    assert f"${million:,.2f} for a million images" in text
    assert "--sequence" not in text


def test_remedy_is_the_fastest_change_that_is_enough() -> None:
    """Tensor parallelism over PCIe saves more memory than recomputation, and halves the speed."""
    prediction = LargePrediction(
        ask_large("llama-3.2-3b", [], {"sequence": 8192, "fsdp": True}, "8xrtx4090", None).setting
    )
    [one] = until_it_fits(prediction)
    assert one.changes == ("large.recompute=full",)
    other = remedied(prediction, ["cluster.layout.tensor=8"])
    assert other is not None
    assert other.saved_bytes > one.saved_bytes
    assert other.prediction.tokens_per_s < 0.7 * one.prediction.tokens_per_s


def test_remedies_change_each_field_once_until_the_setting_fits() -> None:
    """16 bytes for each of 70 G parameters over 8 GPUs leave no room, so one change is not enough."""
    steps = until_it_fits(LargePrediction(ask_large("llama-3-70b", [], {"sequence": 8192}, "8xh100", None).setting))
    fields = {change.partition("=")[0] for change in steps[-1].changes}
    assert len(steps) == len(steps[-1].changes) == len(fields) > 1
    saved = [step.saved_bytes for step in steps]
    assert saved == sorted(set(saved))
    assert [step.prediction.fit >= ENOUGH for step in steps] == [False] * (len(steps) - 1) + [True]
