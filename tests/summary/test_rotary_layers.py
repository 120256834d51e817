"""A Llama that begins with the layers of a GPT-2: exact where norms and values can be, and near to
a trained teacher where positions are of another kind.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from tiny_models import LENGTH, tiny_model
from tiny_teachers import (
    WEIGHTS,
    divergence,
    gpt2,
    hostile,
    made,
    never,
    rows,
    started,
    text,
    trained,
)
from transformers import GPT2LMHeadModel, PreTrainedModel

from farzi_hf.summary import FarziData, rotations
from farzi_hf.summary.start import start
from farzi_hf.summary.student_starts import STUDENT_STARTS

KINDS = ("llama", "mistral", "qwen2")


def student(kind: str = "llama", width: int = 16, **changes) -> PreTrainedModel:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"num_hidden_layers": 1, "hidden_size": width, "intermediate_size": 4 * width}
    settings = {"tie_word_embeddings": False, "initializer_range": 0.1}
    return made(kind, **{**heads, **sizes, **settings, **changes})


# -- exact -----------------------------------------------------------------------------------------


@torch.no_grad()
def of_equal_length() -> GPT2LMHeadModel:
    """A teacher whose embeddings have one length, also with the biases of what writes; whose heads
    look everywhere alike, and whose MLP adds its bias alone.
    """
    teacher = gpt2()
    layer = teacher.transformer.h[0]
    for parameter in teacher.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    teacher.transformer.wpe.weight.zero_()
    layer.attn.c_attn.weight[:, :16] = 0
    layer.attn.c_attn.bias[:16] = 0
    layer.mlp.c_proj.weight.zero_()
    biases = layer.attn.c_proj.bias + layer.mlp.c_proj.bias
    others = torch.stack([torch.ones_like(biases), biases - biases.mean()])
    others = others / others.norm(dim=1, keepdim=True)
    table = teacher.transformer.wte.weight
    orthogonal = table - table @ others.T @ others
    table.copy_(orthogonal / orthogonal.norm(dim=1, keepdim=True) * 4)
    return teacher


SHAPES = (
    {},
    {"width": 24},
    {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8},
    {"width": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
)
CORNERS = [("llama", SHAPES[0]), *((kind, SHAPES[-1]) for kind in KINDS)]
OTHERS = [(kind, shape) for kind in KINDS for shape in SHAPES if (kind, shape) not in CORNERS]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*CORNERS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)],
)
@torch.no_grad()
def test_norms_biases_and_values_are_exact(kind, changes):
    """The states behind the layer, but for the constant, which the sums of the states show."""
    teacher = of_equal_length()
    ours = student(kind, num_hidden_layers=2, **changes)
    start(teacher, ours, rows)
    ids = text(4, seed=0)
    noted = []
    hook = teacher.transformer.ln_f.register_forward_pre_hook(
        lambda module, args: noted.append(args[0])
    )
    teacher(input_ids=ids)
    hook.remove()
    x = noted[0] - noted[0].mean(-1, keepdim=True)
    y = ours(input_ids=ids, output_hidden_states=True).hidden_states[1]
    sums = y.sum(-1)
    torch.testing.assert_close(sums, sums[:1, :1].expand_as(sums))
    y = y - y.mean(-1, keepdim=True)
    # An isometry keeps all products; the two models' norms have another ε.
    close = {"rtol": 1e-4, "atol": 1e-3}
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    torch.testing.assert_close(y @ y.T, x @ x.T, **close)


# -- near ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_it_is_near_to_its_teacher_before_its_first_step(kind, layers):
    teacher = trained(layers)
    tables = started(teacher, student(kind, num_hidden_layers=layers))
    ours = started(teacher, student(kind, num_hidden_layers=layers), rows=rows)
    assert divergence(teacher, ours) < 0.15 * divergence(teacher, tables)


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 32},
        {"width": 12},
        {"intermediate_size": 100},
        {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8},
        {"attention_bias": True, "mlp_bias": True},
        {"num_hidden_layers": 3},
    ],
)
def test_it_is_near_in_other_sizes(changes):
    teacher = trained()
    tables = started(teacher, student(**changes))
    ours = started(teacher, student(**changes), rows=rows)
    assert divergence(teacher, ours) < 0.4 * divergence(teacher, tables)


def test_the_steps_of_queries_and_keys_bring_it_nearer(monkeypatch):
    teacher = trained()
    ours = started(teacher, student(), rows=rows)
    monkeypatch.setattr(rotations, "_RATE", 0.0)
    without = started(teacher, student(), rows=rows)
    assert divergence(teacher, ours) < 0.7 * divergence(teacher, without)


# -- what is set -----------------------------------------------------------------------------------


def test_all_is_set_but_what_further_layers_read():
    ours = student(num_hidden_layers=2)
    fresh = {name: x.clone() for name, x in ours.named_parameters()}
    names = start(trained(), ours, rows)
    assert names == list(dict.fromkeys(names))
    left = set(fresh) - set(names)
    assert left == {
        f"model.layers.1.{name}.weight"
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "input_layernorm",
            "post_attention_layernorm",
        )
    }
    for name in left:
        assert torch.equal(ours.get_parameter(name), fresh[name])
    assert not ours.get_parameter("model.layers.1.mlp.down_proj.weight").any()


@pytest.mark.parametrize(
    ("of_teacher", "of_student"),
    [
        ({}, {"tie_word_embeddings": True}),
        ({}, {"hidden_act": "gelu"}),
        ({}, {"num_attention_heads": 1, "num_key_value_heads": 1}),
        ({"n_layer": 2}, {}),
        ({"activation_function": "relu"}, {}),
        ({"scale_attn_weights": False}, {}),
        ({}, {"kind": "olmo"}),
    ],
)
def test_other_pairs_have_the_tables_alone(of_teacher, of_student):
    names = start(gpt2(**of_teacher), student(**of_student), never)
    assert "model.embed_tokens.weight" in names
    assert not any(".layers." in name for name in names)


def test_too_few_rows_are_not_used():
    names = start(gpt2(), student(), lambda positions: text(2, seed=1))
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]


def test_the_same_rows_make_the_same_start_and_no_other_draws():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = student()
    second = student()
    torch.set_rng_state(state)
    for model in (first, second):
        start(trained(), model, rows)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_summary_writes_the_rows_itself():
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    models = [tiny_model("llama") for _ in range(3)]
    names = [farzi.start(model, seed) for model, seed in zip(models, (0, 0, 1), strict=True)]
    assert set(names[0]) == {name for name, _ in models[0].named_parameters()}
    weights = [model.get_parameter("lm_head.weight") for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


# -- hostile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", WEIGHTS)
def test_numbers_that_are_not_finite_are_one_error(name, value):
    ours = student().float()
    with pytest.raises(ValueError, match=r"begin at random|take 'random'"):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(name, value), rows)
    for one, other in zip(ours.parameters(), student().float().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name", [WEIGHTS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in WEIGHTS[1:])]
)
def test_huge_numbers_set_finite_ones_or_nothing(name):
    ours = student().float()
    with suppress(ValueError):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(name, 1e38), rows)
    assert all(bool(torch.isfinite(x).all()) for x in ours.parameters())
