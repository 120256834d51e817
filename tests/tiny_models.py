"""Tiny models of many architectures, and stock Trainers of them."""

from __future__ import annotations

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
)

from farzi_hf.models import RNNConfig
from farzi_hf.summary import FarziData, FarziDataConfig, attach_soft_inputs, soft_cross_entropy
from farzi_hf.summary.forms import forms_of

V, LENGTH = 13, 6

ATTENTION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}

NEXT_ITEM = ("sasrec", "gru4rec", "fmlp")

CONFIGS = {
    "gpt2": {
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "llama": {**ATTENTION, "num_key_value_heads": 2},
    "qwen2": {**ATTENTION, "num_key_value_heads": 2},
    "gpt_neox": ATTENTION,
    "qwen3": {**ATTENTION, "num_key_value_heads": 2, "head_dim": 8},
    "gemma": {**ATTENTION, "num_key_value_heads": 2, "head_dim": 8},
    "mistral": {**ATTENTION, "num_key_value_heads": 2, "sliding_window": 4},
    "phi": ATTENTION,
    "opt": {
        "hidden_size": 16,
        "word_embed_proj_dim": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 16,
        "dropout": 0.0,
    },
    "bloom": {"hidden_size": 16, "n_layer": 1, "n_head": 2},
    "mamba": {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
    RNNConfig.model_type: {"hidden_size": 16},
    **{kind: {"hidden_size": 16, "max_length": 64, "initializer_range": 0.1} for kind in NEXT_ITEM},
}

FAMILIES = ("gpt2", "llama", "mamba", RNNConfig.model_type, *NEXT_ITEM)
"""One of each kind of layers. What costs a training tries these; the others, Transformers all, are
slow tests.
"""

PAPER = forms_of(FarziDataConfig())
"""The paper's forms, with τ = 1: soft inputs and shared labels."""

SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def config_of(kind: str, vocab_size: int = V, **changes) -> PreTrainedConfig:
    # The padding is an entry of the vocabulary, and not an item.
    size = (
        {"num_items": vocab_size - 1}
        if kind in NEXT_ITEM
        else {"vocab_size": vocab_size, **SPECIAL}
    )
    return AutoConfig.for_model(kind, **{**size, **CONFIGS[kind], **changes})


def tiny_model(kind: str, vocab_size: int = V):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(kind, vocab_size))


def tiny_summary(num_sequences: int = 8, vocab_size: int = V) -> FarziData:
    torch.manual_seed(1)
    return FarziData(FarziDataConfig(num_sequences, LENGTH, 4, vocab_size, latent_std=1.0))


def arguments(folder, **changes) -> TrainingArguments:
    settings = {
        "use_cpu": True,
        "report_to": "none",
        "max_steps": 2,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "disable_tqdm": True,
        "save_strategy": "no",
        "seed": 0,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**settings, **changes})


def soft_trainer(model, farzi: FarziData, args: TrainingArguments, **more) -> Trainer:
    return Trainer(
        model=attach_soft_inputs(model),
        args=args,
        train_dataset=farzi.as_dataset(),
        data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy,
        **more,
    )
