"""The smallest config of each causal language model of transformers, and of our recommenders."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from farzi_hf.models import RNNConfig

V = 16

OURS = ("sasrec", "gru4rec", "fmlp", RNNConfig.model_type)
KINDS = sorted(kind for kind in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *OURS))

_OF_ALL = {field.name for field in fields(PreTrainedConfig)}
_WIDTHS = ("dim", "size", "width", "rank", "embd", "d_", "inner", "hidden", "ffn", "channel")

# What the rules below do not get right, for architectures whose sizes depend on each other.
_ONE_FULL_LAYER = {"layer_types": ["full_attention"]}
_MAMBA_HEADS = {"mamba_n_heads": 2, "mamba_d_head": 8, "mamba_expand": 2}
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA_HEADS,
    "cohere_compass_text": _ONE_FULL_LAYER,
    "diffllama": {"num_key_value_heads": 2, "num_attention_heads": 2},
    "falcon_h1": {**_MAMBA_HEADS, "mamba_d_ssm": 16},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global"], 1]], "num_layers": 1},
    "granitemoehybrid": _MAMBA_HEADS,
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_offset": 0, "attn_layer_period": 1, "expert_layer_offset": 0},
    "mamba2": {"num_heads": 2, "head_dim": 8, "expand": 2},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 1, "head_dim": 8},
    "olmo_hybrid": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "xlnet": {"d_head": 8},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"]},
}


def numbers(kind: str) -> dict[str, type]:
    """The fields of an architecture's own that may be a number: int, or float where they may be
    both.
    """
    found = {}
    for field in fields(CONFIG_MAPPING[kind]):
        if field.name in _OF_ALL or field.name == "vocab_size":
            continue
        if "float" in str(field.type):
            found[field.name] = float
        elif "int" in str(field.type):
            found[field.name] = int
    return found


def tiny(kind: str) -> dict[str, Any]:
    """Settings of one layer of width 8, as far as whole numbers are concerned."""
    values = {field.name: field.default for field in fields(CONFIG_MAPPING[kind])}
    settings = {
        name: values[name] if name.endswith("_id") else _tiny_value(name, values[name])
        for name in numbers(kind)
        if type(values[name]) is int
    }
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return {"model_type": kind, **settings, **ids, **_SPECIAL.get(kind, {})}


def _tiny_value(name: str, value: int) -> int:
    if name.endswith("vocab_size"):
        return V
    if "layer" in name or "head" in name.replace("head_dim", ""):
        return min(value, 1)
    if "position" in name or "length" in name:
        return 64
    if "expert" in name:
        return min(value, 2)
    if "top" in name or "group" in name:
        return min(value, 1)
    if any(part in name for part in _WIDTHS):
        return min(value, 8)
    return min(value, 4)
