"""Large models without a reader: against families with one, closed forms, and the whole network at small depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chronograd
from chronograd.cli.main import main
from chronograd.configs.answer import CountedConfig, count_config
from chronograd.configs.find import packaged
from chronograd.errors import FileFormatError

pytestmark = pytest.mark.transformers
LAYERS, D, HEADS, KV, F, V, T = 3, 64, 4, 2, 96, 128, 48
SIZES = {"num_hidden_layers": LAYERS, "hidden_size": D, "num_attention_heads": HEADS, "num_key_value_heads": KV,
         "intermediate_size": F, "vocab_size": V, "max_position_embeddings": T}  # fmt: skip
OF_GPT = {"n_layer": LAYERS, "n_head": HEADS, "vocab_size": V}
ATTENTION = 2 * D * D + 2 * D * KV * D // HEADS  # matrices of queries, keys, values and output
GATED = 3 * D * F
# Matrices of a layer, its other parameters, those outside of layers without the embedding, and whether the head is tied to it.
FAMILIES: dict[str, tuple[dict[str, Any], int, int, int, bool]] = {
    "olmo": (SIZES, ATTENTION + GATED, 0, 0, False),
    "olmo2": (SIZES, ATTENTION + GATED, 2 * D + D + D // 2, D, False),
    "stablelm": (SIZES, ATTENTION + GATED, 4 * D, 2 * D, False),
    "granite": (SIZES, ATTENTION + GATED, 2 * D, D, False),
    "cohere": (SIZES, ATTENTION + GATED, D, D, True),
    "falcon": (SIZES, 2 * D * D + 2 * D * D // HEADS + 8 * D * D, 2 * D, 2 * D, True),
    "starcoder2": (SIZES, ATTENTION + 2 * D * F, 4 * D + 2 * D + 2 * D * KV // HEADS + F + D, 2 * D, True),
    "bloom": ({**OF_GPT, "hidden_size": D, "seq_length": T}, 12 * D * D, 13 * D, 4 * D, True),
    "gptj": ({**OF_GPT, "n_embd": D, "n_positions": T, "rotary_dim": 8}, 12 * D * D, 7 * D, 2 * D + V, False),
}


def counted(folder: Path, family: str, keys: dict[str, Any], *changes: str, **options: Any) -> CountedConfig:
    (folder / "config.json").write_text(json.dumps({"model_type": family, **keys}))
    return chronograd.count(str(folder), *changes, **options).result


@pytest.mark.parametrize("family", FAMILIES)
def test_closed_forms(family: str, tmp_path: Path) -> None:
    """Scores are two products of a row and a column per token; a causal mask leaves T (T + 1) / 2 pairs."""
    keys, matrices, others, outside, is_tied = FAMILIES[family]
    found = counted(tmp_path, family, keys, batch=2)
    assert (found.length, found.num_layers, found.width, found.vocabulary) == (T, LAYERS, D, V)
    assert found.params == found.active_params == LAYERS * (matrices + others) + outside + (1 if is_tied else 2) * V * D
    for flops, pairs in ((found.flops_forward, T * T), (found.flops_forward_causal, T * (T + 1) // 2)):
        assert flops == 2 * 2 * (T * (LAYERS * matrices + V * D) + LAYERS * 2 * D * pairs)
    assert "one layer of 1 kind" in found.notes[1]


@pytest.mark.parametrize(
    ("name", "length"),
    [("llama-3-8b", 512), ("gpt2", 512), ("mixtral-8x7b", 512), ("gemma-2-9b", 8192), ("gpt-oss-20b", 512), ("opt-13b", 64),
     ("deepseek-v2-lite", 512), ("qwen3-30b-a3b", 100), ("qwen1.5-moe-a2.7b", 100), ("t5-base", 512),
     ("mpt-30b", 512), ("mistral-7b", 8192)],
)  # fmt: skip
def test_families_with_a_reader_have_equal_counts(name: str, length: int) -> None:
    from chronograd.count.unread import count_unread

    read, built = (count(packaged()[name], name, length=length).result for count in (count_config, count_unread))
    for field in ("params", "active_params", "flops_forward", "flops_forward_causal", "cache_bytes", "cache_bytes_per_token",
                  "num_layers", "width", "vocabulary", "length"):  # fmt: skip
        assert getattr(built, field) == getattr(read, field), field


HYBRID = {**SIZES, "num_hidden_layers": 8}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 2}
SEVERAL_KINDS: dict[str, dict[str, Any]] = {
    "olmo3": {**HYBRID, "sliding_window": 16},
    "jamba": {**HYBRID, **EXPERTS, "mamba_d_state": 4, "attn_layer_period": 4, "attn_layer_offset": 2},
    "olmoe": {**HYBRID, **EXPERTS},
}


@pytest.mark.parametrize("family", SEVERAL_KINDS)
def test_multiplied_layers_equal_the_whole_network(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chronograd.count import meta_network

    found = counted(tmp_path, family, SEVERAL_KINDS[family], input=(32,))
    assert "traced with one layer of" in found.notes[1]
    monkeypatch.setattr(meta_network, "reduced", lambda _: [])
    whole = counted(tmp_path, family, SEVERAL_KINDS[family], input=(32,))
    assert "one layer of" not in whole.notes[1]
    for field in (
        "params",
        "active_params",
        "parts",
        "tensors",
        "flops_forward",
        "flops_forward_causal",
        "cache_bytes",
    ):
        assert getattr(found, field) == getattr(whole, field), field


def test_parameters_of_layers_of_each_kind_add_up(tmp_path: Path) -> None:
    from chronograd.count import meta_network

    for family, keys in SEVERAL_KINDS.items():
        network, _ = meta_network.built({"model_type": family, **keys}, family, {})
        whole = sum(one.numel() for one in network.parameters())
        blocks = meta_network.reduced(network)
        assert sum(len(block.places) for block in blocks) == 8
        left = sum(one.numel() for one in network.parameters())
        more = [(len(block.places) - 1) * size_of(network, block.prefix) for block in blocks]
        assert left + sum(more) == whole


def size_of(network: Any, prefix: str) -> int:
    return sum(one.numel() for name, one in network.named_parameters() if name.startswith(prefix))


def test_experts_that_a_token_does_not_use(tmp_path: Path) -> None:
    """2 of 8 experts with three matrices in each layer; Llama 4 of the library multiplies all of them."""
    found = counted(tmp_path, "olmoe", {**SIZES, **EXPERTS}, input=(32,))
    assert found.params - found.active_params == LAYERS * 6 * GATED
    dense = counted(tmp_path, "llama4_text", {**SIZES, "num_local_experts": 4, "intermediate_size_mlp": F, "head_dim": 16}, input=(32,))  # fmt: skip
    assert dense.active_params == dense.params
    assert "whose code multiplies every token with all experts" in dense.notes[1]


def test_keys_and_lengths(tmp_path: Path) -> None:
    keys = {**SIZES, "tie_word_embeddings": True, "made_up": 1}
    assert counted(tmp_path, "olmo", keys, "num_hidden_layers=5").num_layers == 5
    found = counted(tmp_path, "olmo", keys, input=(2 * T,), show_work=True)
    assert found.notes[2].endswith("does not document these keys: made_up.")
    assert found.length == 2 * T
    assert [one.is_tied for one in found.tensors if one.part in ("embedding", "head")] == [False, True]
    assert found.cache_bytes == 2 * T * found.cache_bytes_per_token == 2 * T * 2 * LAYERS * 2 * KV * D // HEADS
    inside = {"model_type": "outer", "text_config": {"model_type": "olmo", **SIZES}}
    assert "Only the text model is counted" in counted(tmp_path, "outer", inside).notes[2]


@pytest.mark.parametrize(
    ("family", "keys", "changes", "message"),
    [
        ("no-such", {}, [], "'no-such' is a family without a reader, and Transformers"),
        ("olmo", SIZES, ["hiden_size=8"], "unknown key 'hiden_size'"),
        ("olmo", {**SIZES, "num_attention_heads": "many"}, [], "cannot build this network"),
        ("olmo", {**SIZES, "architectures": ["Custom"]}, [], "architectures names Custom, which Transformers"),
        ("whisper", {"architectures": ["WhisperForConditionalGeneration"]}, [], "reads input_features"),
        ("clip", {}, [], "only models of tokens are counted"),
        ("mamba2", {"num_hidden_layers": 1}, [], "states no length of a sequence"),
        ("longcat_flash", {"num_layers": 1, "hidden_size": 64}, [], "cannot run on the meta device"),
        ("starcoder2", {**SIZES, "num_hidden_layers": 10**6}, [], "from 1 to 10,000, got 1000000"),
        ("starcoder2", SIZES, ["num_hidden_layers=1000000"], "from 1 to 10,000, got 1000000"),
        ("outer", {"text_config": {"model_type": "olmo", **SIZES, "num_hidden_layers": 10**6}}, [], "from 1 to 10,000"),
        ("olmo", {**SIZES, "inner": {"encoder_layers": 10**6}}, [], "from 1 to 10,000"),
    ],
)
def test_refusals(
    family: str,
    keys: dict[str, Any],
    changes: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **keys}))
    assert main(["count", str(tmp_path), *changes]) in (1, 2)
    assert message in " ".join(capsys.readouterr().err.split())


def test_network_of_too_many_modules_is_refused_while_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from chronograd.count import meta_network

    monkeypatch.setattr(meta_network, "MAX_MODULES", 20)
    meta_network.built({"model_type": "olmo", **SIZES, "num_hidden_layers": 1}, "olmo", {})
    with pytest.raises(FileFormatError, match="the network has more than 20 modules"):
        meta_network.built({"model_type": "olmo", **SIZES}, "olmo", {})


CODE = {"attn_implementation": "a/kernel", "_attn_implementation": "a/kernel", "experts_implementation": "a/kernel",
        "use_kernels": True, "kernel_config": {"RMSNorm": "a/kernel"}, "auto_map": {"AutoConfig": "mine.Config"},
        "name_or_path": "a/b", "_name_or_path": "a/b", "use_pretrained_backbone": True}  # fmt: skip


def test_file_names_no_code_and_no_kernels(tmp_path: Path) -> None:
    """Transformers would download the kernels of `attn_implementation: owner/name` and run them."""
    from chronograd.count import meta_network

    plain = counted(tmp_path, "olmo", SIZES)
    assert counted(tmp_path, "olmo", {**SIZES, **CODE, "inner": CODE}).tensors == plain.tensors
    network, _ = meta_network.built({"model_type": "olmo", **SIZES, **CODE, "inner": {"deeper": [CODE]}}, "olmo", {})
    assert network.config._attn_implementation in ("sdpa", "eager")
    assert "a/" not in json.dumps(network.config.to_dict())
    assert network.config.inner == {"deeper": [{}]}
