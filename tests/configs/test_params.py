"""Parameters of every family: published totals, and every tensor of the library Transformers where it is installed."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from importlib import resources
from typing import Any

import pytest
from tests.configs.examples import FOLDER, SPECIAL, measured, needs_measured, packaged_data, packaged_model

from chronograd.configs.description import KINDS, AttentionPart, ModelDescription
from chronograd.configs.find import packaged
from chronograd.configs.readers import describe
from chronograd.configs.work import params_by_kind
from chronograd.errors import FileFormatError
from chronograd.models import names

# Totals: the sum of `numel()` of the parameters that Transformers 5 builds on the meta device (`tensors_of`, November 2026), with
# tied tensors once. The pages of these models on huggingface.co state the same numbers, rounded.
TOTALS = {
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "qwen3-4b": 4_022_468_096,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-72b": 72_706_203_648,
    "opt-13b": 12_853_473_280,
    "opt-30b": 29_974_540_288,
    "llama-3.3-70b": 70_553_706_496,
    "deepseek-r1": 671_026_404_352,
    "bert-base": 109_514_298,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-160m": 162_322_944,
    "pythia-6.9b": 6_857_302_016,
    "opt-125m": 125_239_296,
    "opt-350m": 331_196_416,
    "opt-6.7b": 6_658_473_984,
    "opt-66b": 65_719_701_504,
    "mpt-7b": 6_649_286_656,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-xxl": 11_135_332_352,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
}
# Billions of parameters that a token uses, as published, and the digits of that number. The publications differ in whether the
# embedding counts: arXiv:2401.04088 (13B), 2405.04434 (21B, 2.4B), 2412.19437 (37B), 2505.09388 (22B, 3B), 2508.10925 table 1;
# the Qwen team's article of March 2024 (2.7B).
ACTIVE = {
    "mixtral-8x7b": (13, 0),
    "deepseek-v2": (21, 0),
    "deepseek-v3": (37, 0),
    "qwen1.5-moe-a2.7b": (2.7, 1),
    "qwen3-30b-a3b": (3, 0),
    "qwen3-235b-a22b": (22, 0),
}


@pytest.mark.parametrize("name", TOTALS)
def test_totals_are_those_of_the_published_models(name: str) -> None:
    model = packaged_model(name)
    assert sum(params_by_kind(model).values()) == TOTALS[name]
    assert sum(tensor.params for tensor in model.tensors()) == TOTALS[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_that_the_publications_state(name: str) -> None:
    billions, digits = ACTIVE[name]
    active = params_by_kind(packaged_model(name), active=True)
    embedding = active["embedding"]
    assert billions in {
        round(sum(active.values()) / 1e9, digits),
        round((sum(active.values()) - embedding) / 1e9, digits),
    }


def test_parameters_of_shared_experts_with_a_gate() -> None:
    """Qwen1.5-MoE-A2.7B: 60 experts, a shared one of the size of four, and a gate of one number for it."""
    name = "qwen1.5-moe-a2.7b"
    attention = 4 * 2048**2 + 3 * 2048
    experts = 60 * (3 * 2048 * 1408 + 2048) + 3 * 2048 * 5632 + 2048
    total = 2 * 151_936 * 2048 + 24 * (attention + experts + 2 * 2048) + 2048
    assert sum(params_by_kind(packaged_model(name)).values()) == total
    without = packaged_model(name, qkv_bias=False)
    assert sum(params_by_kind(without).values()) == total - 24 * 3 * 2048


def test_active_parameters_of_gpt_oss() -> None:
    """arXiv:2508.10925, table 1: 5.13 and 3.61 billion without the embedding, 116.83 and 20.91 in total."""
    for name, billions in (("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)):
        active = params_by_kind(packaged_model(name), active=True)
        assert round((sum(active.values()) - active["embedding"]) / 1e9, 2) == billions


@pytest.mark.parametrize("name", packaged())
def test_packaged_files_are_small_facts_with_a_source(name: str) -> None:
    text = (resources.files("chronograd.configs") / "catalogue" / "sources.csv").read_text()
    sources = {row["name"]: row["source"] for row in csv.DictReader(text.splitlines())}
    assert {*sources} == {*packaged()}
    assert sources[name]
    assert packaged()[name].stat().st_size < 600
    assert name not in names.zoo()
    model = packaged_model(name)
    assert {tensor.kind for tensor in model.tensors()} <= {*KINDS}
    own = [tensor.name for tensor in model.tensors()]
    assert len(own) == len({*own}), "names of tensors are unique"
    assert sum(len(group.places) for group in model.groups) == len(
        {(g.stack, p) for g in model.groups for p in g.places}
    )


@pytest.mark.published
@needs_measured
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Llama-3-8B", "llama-3-8b"), ("Llama-3.1-405B", "llama-3.1-405b"), ("Llama-2-70b", "llama-2-70b"),
        ("Llama-3.2-3B", "llama-3.2-3b"), ("Mixtral-8x7B", "mixtral-8x7b"), ("Mixtral-8x22B", "mixtral-8x22b"),
        ("DeepSeek-V3", "deepseek-v3"), ("Kimi-K2", "kimi-k2"), ("Qwen2-72B", "qwen2-72b"), ("Qwen3-8B", "qwen3-8b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"), ("Qwen3-235B-A22B", "qwen3-235b-a22b"), ("gemma-2-9b", "gemma-2-9b"),
        ("gpt-oss-120b", "gpt-oss-120b"), ("gpt2-xl", "gpt2-xl"), ("t5-base", "t5-base"), ("t5-v1_1-xxl", "t5-v1.1-xxl"),
    ],
)  # fmt: skip
def test_real_files_give_the_packaged_models(file: str, name: str) -> None:
    real, own = describe(json.loads((FOLDER / f"{file}.json").read_text()), file), packaged_model(name)
    assert (real.first, real.groups, real.last, real.length) == (own.first, own.groups, own.last, own.length)


# -- every tensor, compared with the library Transformers ---------------------------------------------

LAYERS = (
    4  # of the models that the comparison builds; dense first layers, experts and both kinds of windows are among them
)
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
# Names of tensors that are several ones in our description.
FUSED = re.compile(r"\b(c_attn|Wqkv|query_key_value|qkv_proj)\b|(gate_up_proj)")


def tensors_of(data: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return name and shape of the parameters that Transformers builds from a configuration, on the meta device."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    torch = pytest.importorskip("torch")
    kind = {"kimi_k2": "deepseek_v3"}.get(data["model_type"], data["model_type"])
    plain = {key: value for key, value in data.items() if key not in ("model_type", "architectures", "auto_map", "rope_scaling",
                                                                      "quantization_config")}  # fmt: skip
    config = transformers.AutoConfig.for_model(kind, **plain)
    usual = {"bert": "BertForMaskedLM", "t5": "T5ForConditionalGeneration", "vit": "ViTForImageClassification"}.get(
        kind
    )
    name = (data.get("architectures") or [usual])[0]
    with torch.device("meta"):
        if name is None or kind not in ("bert", "t5", "vit"):
            network = transformers.AutoModelForCausalLM.from_config(config)
        else:
            network = getattr(transformers, name)(config)
    if kind == "t5" and not data.get(
        "tie_word_embeddings", True
    ):  # Transformers 5 ties the head of every T5 that it builds
        network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def pieces(name: str, shape: tuple[int, ...], model: ModelDescription) -> list[tuple[int, ...]]:
    """Return the shapes of a fused tensor's pieces. The weight of a convolution is a matrix."""
    if len(shape) == 4:
        return [(shape[0], math.prod(shape[1:]))]
    found = FUSED.search(name)
    if not found:
        return [shape]
    if found[2]:  # gate and up: the last dimension, or the one before it for a matrix (outputs, inputs)
        at = len(shape) - (2 if model.family != "gpt_oss" and "bias" not in name else 1)
        sizes = [shape[at] // 2] * 2
    else:
        attention = next(p for g in model.groups for p in g.parts if isinstance(p, AttentionPart))
        keys = attention.kv_heads * attention.head_size
        sizes = [attention.heads * attention.head_size, keys, keys]
        at = shape.index(sum(sizes))
    return [(*shape[:at], size, *shape[at + 1 :]) for size in sizes]


def counted(shapes: list[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sorted(size for size in shape if size != 1)) for shape in shapes)


def check(data: dict[str, Any], where: str) -> None:
    model = describe(data, where)
    theirs = tensors_of(data)
    assert sum(math.prod(shape) for shape in theirs.values()) == sum(tensor.params for tensor in model.tensors())
    split = [piece for name, shape in theirs.items() for piece in pieces(name, shape, model)]
    assert counted(split) == counted([tensor.shape for tensor in model.tensors()])


@pytest.mark.parametrize("name", [*packaged(), *SPECIAL])
def test_every_tensor_has_the_shape_that_transformers_gives_it(name: str) -> None:
    check(SPECIAL.get(name) or packaged_data(name), name)


@pytest.mark.published
@pytest.mark.parametrize("name", [name for name in measured() if name != "DeepSeek-V4-Flash"])
def test_every_tensor_of_real_files(name: str) -> None:
    check(measured()[name].get("text_config") or measured()[name], name)


@pytest.mark.published
@needs_measured
def test_unknown_family_of_real_files_is_refused() -> None:
    with pytest.raises(FileFormatError, match="'deepseek_v4' is a family without a reader"):
        describe(measured()["DeepSeek-V4-Flash"], "DeepSeek-V4-Flash")
