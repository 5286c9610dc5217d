"""The keys of a `config.json`, read with their types. A family reads its keys through `Keys`; `check_rest` refuses others.

A missing key and `null` give the default. Keys that change neither tensors nor work are known by their form (`_WITHOUT_SIZES`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from chronograd.errors import FileFormatError, did_you_mean, shown

MAX_SIZE: Final = 2**31 - 1
MAX_LAYERS: Final = 10_000
REQUIRED: Final = -1
_WITHOUT_SIZES = re.compile(
    # The file itself, the tokeniser, and generation.
    r"_.*|unsloth_\w+|transformers\.js_config|architectures|model_type|auto_map|transformers_version|tokenizer_class|finetuning_task|prefix|verbose|name_or_path"
    r"|\w*_token(_id|_index)?|\w*_token_ids?|num_logits_to_keep|task_specific_params|label2id|id2label|use_cache|cache_implementation"
    r"|do_sample|max_length|min_length|length_penalty|no_repeat_ngram_size|num_beams|early_stopping|temperature|top_p|use_mems_eval"
    # Numbers, kernels and how the weights are stored or cut.
    r"|(torch_)?dtype|quantization(_config)?|\w*attn_impl(ementation)?|use_flash\w*|use_bfloat16|pretraining_tp|ep_size|return_dict\w*"
    r"|output_(attentions|hidden_states|past|router_logits)|gradient_checkpointing|chunk_size_feed_forward|torchscript|fp16"
    # Training: dropout, initial values, losses.
    r"|(?>\w*?dropout)\w*|\w*_pdrop|layerdrop|(\w+_)?init(ializer)?_(range|std|factor|device|config)|seq_aux|(?>\w*?aux_loss)\w*|problem_type"
    # Functions without parameters: activations, scales, rotary positions, choice of experts.
    r"|(hidden|mlp_hidden|dense|feed_forward)_act|activation_function|hidden_activation|\w*_eps(ilon)?|\w*softcap(ping)?"
    r"|rope_\w+|full_attn_mod|interpolate_factor|is_llama_config|rotary_(pct|emb_base|dim)|partial_rotary_factor|original_max_position_embeddings|initial_context_length"
    r"|norm_topk_prob|routed_scaling_factor|scoring_func|topk_method|topk_group|n_group|swiglu_limit|router_jitter_noise"
    r"|logit_scale|query_pre_attn_scalar|scale_attn\w*|reorder_and_upcast_attn|summary_\w+|use_parallel_residual|use_bidirectional_attention"
    r"|use_mrope|directionality|pooler_\w+"
)


class Keys:
    """The keys of one file or of a mapping in it.

    Attributes:
        data: the keys as read.
        where: the file, for messages.
        family: its `model_type`.
    """

    def __init__(self, data: Mapping[str, Any], where: str, family: str) -> None:
        self.data, self.where, self.family = data, where, family
        self._read: set[str] = set()

    def fault(self, text: str, hint: str = "correct this key") -> FileFormatError:
        return FileFormatError(f"{self.where}: {text}", hint)

    def get(self, name: str) -> Any:
        """Return a value of any type; None if it is missing."""
        self._read.add(name)
        return self.data.get(name)

    def skip(self, *names: str) -> None:
        """Accept keys that change neither tensors nor work."""
        self._read.update(names)

    def size(self, name: str, default: int = REQUIRED, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """Return a whole number. Without a default, the key is required."""
        value = self.get(name)
        if value is None and default != REQUIRED:
            return default
        if value is None:
            near = did_you_mean(name, [key for key in self.data if key not in self._read and key[:1] == name[:1]])
            raise self.fault(
                f"the key {name} is missing{near if 'did you' in near else ''}",
                f"a {self.family} model needs it: add it as a whole number",
            )
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(f"{name} must be a whole number from {least} to {most:,}, got {shown(value)}")
        return value

    def layers(self, name: str, default: int = REQUIRED) -> int:
        return self.size(name, default, most=MAX_LAYERS)

    def optional(self, name: str = "sliding_window", default: int | None = None) -> int | None:
        """Return a size that `null` turns off; the default is that of a missing key, such as a window of attention."""
        if self.get(name) is None:
            return None if name in self.data else default
        return self.size(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fault(f"{name} must be true or false, got {shown(value)}")
        return default if value is None else value

    def is_off(self, name: str) -> None:
        """Raise FileFormatError if a flag is true: such networks are not counted."""
        if self.flag(name):
            raise self.fault(f"{name} is true, which is not counted", "set it to false, or count another model")

    def word(self, name: str, known: Sequence[str], default: str) -> str:
        value = default if self.get(name) is None else self.data[name]
        if value not in known:
            raise self.fault(f"{name} is {shown(value)}, which is not counted", f"counted: {', '.join(known)}")
        return str(value)

    def heads(self, queries: str = "num_attention_heads", keys: str = "num_key_value_heads") -> tuple[int, int]:
        """Return the number of query heads, and of key and value heads, which divides it."""
        heads = self.size(queries)
        kv_heads = self.size(keys, heads)
        self.share(queries, heads, keys, kv_heads)
        return heads, kv_heads

    def items(self, name: str, kind: type) -> list[Any]:
        """Return a list of integers or text; empty if it is missing."""
        value = [] if self.get(name) is None else self.data[name]
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.fault(
                f"{name} must be a list of {'text' if kind is str else 'whole numbers'}, got {shown(value)}"
            )
        return value

    def inner(self, name: str) -> Keys:
        """Return the keys of a mapping in the file; none if it is missing."""
        value = {} if self.get(name) is None else self.data[name]
        if not isinstance(value, dict):
            raise self.fault(f"{name} must be a mapping of keys, got {shown(value)}")
        return Keys(value, f"{self.where}: {name}", self.family)

    def share(self, whole: str, size: int, part: str, count: int) -> int:
        """Return `size / count`. Raises FileFormatError, with both names, unless it is whole."""
        if size % count:
            raise self.fault(
                f"{part} {count} does not divide {whole} {size}", f"choose {part} so that it divides {whole}"
            )
        return size // count

    def layer_types(self, layers: int, usual: Sequence[str]) -> list[str]:
        """Return the kind of attention of each layer: that of `layer_types`, or the usual one."""
        given = self.items("layer_types", str) or list(usual)
        unknown = sorted(set(given) - {"sliding_attention", "full_attention"})
        if unknown:
            raise self.fault(f"layer_types has {shown(unknown[0])}", "counted: sliding_attention and full_attention")
        if len(given) != layers:
            raise self.fault(f"layer_types has {len(given)} entries for {layers} layers", "give one entry per layer")
        return given

    def head(self, heads: Mapping[str, str]) -> str:
        """Return the head of the class in `architectures`, by the end of its name; the first of `heads` without a class."""
        given = self.items("architectures", str)[:1]
        for end, head in sorted(heads.items(), key=lambda one: -len(one[0])):
            if given and given[0].endswith(end):
                return head
        if given:
            raise self.fault(
                f"the head of {given[0]} is not counted", f"counted: classes that end in {', '.join(heads)}"
            )
        return next(iter(heads.values()))

    def rest(self) -> list[str]:
        """Return the keys that were not read and may change the network."""
        return [
            name
            for name, value in self.data.items()
            if name not in self._read and value is not None and _WITHOUT_SIZES.fullmatch(name) is None
        ]

    def check_rest(self) -> None:
        """Raise FileFormatError for a key that was not read and may change the network."""
        rest = self.rest()
        if not rest:
            return
        near = next((near for name in rest if "did you" in (near := did_you_mean(name, self._read))), None)
        names, them = ", ".join(map(shown, rest[:12])) + ", …" * (len(rest) > 12), "them" if len(rest) > 1 else "it"
        raise self.fault(
            f"unknown key{'s' * (len(rest) > 1)} {names}, so the network may differ from the {self.family} models that are counted",
            near[2:]
            if near
            else f"remove {them} if {'they change' if len(rest) > 1 else 'it changes'} neither tensors nor work",
        )
