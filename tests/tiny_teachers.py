"""A trained GPT-2 as a teacher, the text that it has learnt, and how far a student is from it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GPT2LMHeadModel, PreTrainedModel

from farzi_hf.summary.start import start

ENTRIES = 24
FIRST = 0
PLACES = 12


def made(kind: str, **settings) -> PreTrainedModel:
    special = {"bos_token_id": FIRST, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=ENTRIES, **special, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()


def gpt2(**changes) -> GPT2LMHeadModel:
    """A new teacher in float64."""
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    no_dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    settings = {**sizes, **no_dropout, "tie_word_embeddings": False, "initializer_range": 0.2}
    return made("gpt2", **{**settings, **changes})


def text(count: int, seed: int) -> Tensor:
    """Rows (n, `PLACES`): each entry is the next one of that two places before it, now and then
    another one.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((count, PLACES), FIRST)
    ids[:, 1] = torch.randint(1, ENTRIES, (count,), generator=generator)
    others = torch.randint(1, ENTRIES, ids.shape, generator=generator)
    is_other = torch.rand(ids.shape, generator=generator) < 0.1
    for place in range(2, PLACES):
        following = 1 + ids[:, place - 2] % (ENTRIES - 1)
        ids[:, place] = torch.where(is_other[:, place], others[:, place], following)
    return ids


def rows(positions: int) -> Tensor:
    return text(positions // PLACES, seed=1)


def never(positions: int) -> Tensor:
    raise AssertionError("rows were made")


@cache
def trained(layers: int = 1) -> GPT2LMHeadModel:
    """A teacher that has learnt such text."""
    teacher = gpt2(n_layer=layers).float()
    optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    for step in range(200):
        ids = text(64, seed=2 + step)
        teacher(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return teacher.double()


@torch.no_grad()
def divergence(teacher: PreTrainedModel, model: PreTrainedModel) -> float:
    """KL(teacher ‖ model), nats of an entry, on text that neither has read."""
    ids = text(64, seed=0)
    theirs, ours = (each(input_ids=ids).logits.log_softmax(-1) for each in (teacher, model))
    return float((theirs.exp() * (theirs - ours)).sum(-1).mean())


def started(teacher: PreTrainedModel, model: PreTrainedModel, **how) -> PreTrainedModel:
    start(teacher, model, **how)
    return model


WEIGHTS = ("transformer.h.0.attn.c_attn.weight", "transformer.wte.weight", "lm_head.weight")


def hostile(name: str, value: float) -> GPT2LMHeadModel:
    teacher = gpt2().float()
    with torch.no_grad():
        teacher.get_parameter(name).fill_(value)
        teacher.get_parameter(name)[0, 0] = -value
    return teacher
