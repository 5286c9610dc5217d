"""Damaged configurations: every key deleted, misspelt and replaced. Each gives one clear error or a description, in no time."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.configs.examples import measured, packaged_data, per_family

from chronograd.configs.description import ModelDescription
from chronograd.configs.find import load
from chronograd.configs.keys import _WITHOUT_SIZES
from chronograd.configs.readers import READERS, describe
from chronograd.configs.work import cached_numbers, macs_by_kind, params_by_kind
from chronograd.errors import FileFormatError

VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    2,
    3,
    7,
    -1,
    10**6,
    2**31,
    10**30,
    1.5,
    1e300,
    "",
    "x",
    "12",
    [],
    [1],
    ["x"],
    {},
    {"x": 1},
]
OWN = per_family()
FILES = OWN | measured()
LLAMA = packaged_data("llama-3-8b")


def refused(data: dict[str, Any], pattern: str = "config.json") -> FileFormatError:
    with pytest.raises(FileFormatError, match=pattern) as caught:
        describe(data, "config.json")
    assert caught.value.hint
    return caught.value


def tried(data: Any) -> ModelDescription | None:
    """Return the description of damaged data, with all its amounts computed; None for a clear error."""
    model = fault = None
    try:
        model = describe(data, "config.json")
    except FileFormatError as error:
        fault = error
    if model is None:
        assert fault is not None
        assert fault.message.startswith("config.json")
        assert "\n" not in fault.message
        assert fault.hint
        return None
    assert sum(params_by_kind(model, active=True).values()) <= sum(params_by_kind(model).values())
    assert all(value > 0 for value in macs_by_kind(model, 3, causal=True).values())
    assert cached_numbers(model, 3) >= 0
    return model


@pytest.mark.parametrize("name", FILES)
def test_every_mutation_of_every_key_is_counted_or_refused(name: str) -> None:
    data = FILES[name]
    for key in data:
        rest = {own: value for own, value in data.items() if own != key}
        tried(rest)
        for value in VALUES:
            tried({**data, key: value})
        if data[key] is not None and _WITHOUT_SIZES.fullmatch(key) is None and data["model_type"] in READERS:
            assert tried({**rest, f"{key}x": data[key]}) is None, f"a misspelt {key} is refused"
        if type(data[key]) is int and name in OWN:
            assert tried({**data, key: str(data[key])}) is None, f"{key} as text is refused"
            assert tried({**data, key: float(data[key])}) is None, f"{key} with a fraction is refused"
            assert tried({**data, key: -1}) is None, f"a negative {key} is refused"


@given(data=st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                         lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted({*LLAMA, "text_config"})),
                                                                                     inner, max_size=6), max_leaves=20),
       family=st.sampled_from(sorted(READERS)))  # fmt: skip
def test_any_data_is_counted_or_refused(data: Any, family: str) -> None:
    tried({**(data if isinstance(data, dict) else {"x": data}), "model_type": family})


def test_messages_name_the_key_the_value_and_the_repair() -> None:
    rest = {key: value for key, value in LLAMA.items() if key != "hidden_size"}
    assert "hidden_size is missing" in refused(rest).message
    assert "did you mean hidden_sise" in refused({**rest, "hidden_sise": 64}).message
    error = refused({**LLAMA, "tie_word_embedings": True}, "unknown key 'tie_word_embedings'")
    assert error.hint.startswith("did you mean tie_word_embeddings")
    assert "remove it" in refused({**LLAMA, "moe_latent_size": 64}, "moe_latent_size").hint
    error = refused(
        {**LLAMA, "moe_latent_size": 64, "num_memories": 2}, "unknown keys 'moe_latent_size', 'num_memories'"
    )
    assert "remove them if they change" in error.hint
    refused({**LLAMA, "hidden_size": 0}, "hidden_size must be a whole number from 1 to")
    refused({**LLAMA, "hidden_size": "4096"}, "got '4096'")
    refused({**LLAMA, "hidden_size": True}, "got True")
    refused({**LLAMA, "hidden_size": 4097}, "num_attention_heads 32 does not divide hidden_size 4097")
    refused({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads 5 does not divide num_attention_heads 32")
    refused({**LLAMA, "num_hidden_layers": 10_001}, "num_hidden_layers must be a whole number from 1 to 10,000")
    refused({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification")
    refused({**FILES["gemma2"], "layer_types": ["full_attention"]}, "1 entries for 46 layers")
    refused({**FILES["mixtral"], "num_experts_per_tok": 9}, "num_experts_per_tok must be a whole number from 1 to 8")


@pytest.mark.parametrize(
    "key", ["unsloth_fixed", "unsloth_version", "quantization", "id2label", "use_mrope", "transformers.js_config"]
)
def test_keys_of_writers_change_no_tensor(key: str) -> None:
    described = describe(dict(LLAMA), "config.json")
    assert describe({**LLAMA, key: {"0": 1}}, "config.json").groups == described.groups


def test_pooler_of_an_official_bert_changes_no_tensor() -> None:
    keys = {
        "directionality": "bidi",
        "pooler_fc_size": 768,
        "pooler_num_fc_layers": 3,
        "pooler_type": "first_token_transform",
    }
    bert = dict(FILES["bert"])
    assert describe({**bert, **keys}, "config.json").groups == describe(bert, "config.json").groups


def test_unknown_family_lists_the_known_ones() -> None:
    error = refused({"model_type": "mamba2"}, "'mamba2' is a family without a reader")
    assert all(family in error.hint for family in READERS)
    assert "did you mean llama" in refused({"model_type": "lama"}).hint
    refused({"architectures": ["X"]}, "model_type must be the name of a family, got None")


def test_text_model_of_a_model_with_images() -> None:
    text = dict(FILES["gemma3_text"])
    model = describe({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 8}}, "config.json")
    assert model.groups == describe(text, "config.json").groups
    assert any("only the text model" in note for note in model.notes)


def test_gemma_3_leaves_out_sizes_of_its_class() -> None:
    """The published totals of 4B and 27B, less the vision tower and the projector, which have 419,816,304 and 423,060,336 parameters."""
    smaller = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    larger = {"model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21_504, "num_hidden_layers": 62,
              "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128}  # fmt: skip
    for text, total in ((smaller, 4_300_079_472 - 419_816_304), (larger, 27_432_406_640 - 423_060_336)):
        model = describe({"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024}}, "config.json")
        assert sum(params_by_kind(model).values()) == total
    assert (
        "num_key_value_heads is missing"
        in refused({key: value for key, value in FILES["gemma2"].items() if key != "num_key_value_heads"}).message
    )


def test_keys_of_real_files_that_change_nothing() -> None:
    """The keys of microsoft/Phi-4-mini-instruct and HuggingFaceTB/SmolLM2-135M, with their published numbers of parameters."""
    phi = {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32, "vocab_size": 200_064,
           "num_attention_heads": 24, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "sliding_window": 262_144,
           "tie_word_embeddings": True, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False}  # fmt: skip
    assert sum(params_by_kind(describe(phi, "config.json")).values()) == 3_836_021_760
    refused({**phi, "lm_head_bias": True}, "lm_head_bias is true")
    smollm = {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "vocab_size": 49_152,
              "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
              "is_llama_config": True, "rope_interleaved": False}  # fmt: skip
    assert sum(params_by_kind(describe(smollm, "config.json")).values()) == 134_515_008


def test_changes_replace_keys() -> None:
    assert len(describe(LLAMA, "config.json", {"num_hidden_layers": 2}).groups[0].places) == 2
    before = copy.deepcopy(LLAMA)
    describe(LLAMA, "config.json", {"vocab_size": 64})
    assert before == LLAMA


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", "[" * 100_000, '{"a": 1e999}', "null", "\xff", '{"model_type": "llama"']
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileFormatError) as caught:
        describe(load(path), "config.json")
    assert caught.value.hint


def test_infinities_of_real_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"time_step_limit": [0.0, float("inf")]}))
    assert load(tmp_path / "config.json") == {"time_step_limit": [0.0, None]}
