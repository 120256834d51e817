"""A GPT-NeoX that begins with the layers of a GPT-2: exact where positions play no part and the
residual is not parallel, and near to a trained teacher in the other cases.
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
from transformers import PreTrainedModel

from farzi_hf.summary import FarziData
from farzi_hf.summary.start import start
from farzi_hf.summary.student_starts import STUDENT_STARTS


def student(width: int = 16, **changes) -> PreTrainedModel:
    sizes = {"num_hidden_layers": 1, "hidden_size": width, "intermediate_size": 4 * width}
    settings = {"num_attention_heads": 2, "tie_word_embeddings": False, "initializer_range": 0.1}
    return made("gpt_neox", **{**sizes, **settings, **changes})


# -- exact -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"width": 24, "num_attention_heads": 3}, {"num_hidden_layers": 3}], ids=str
)
@torch.no_grad()
def test_all_but_positions_is_exact_without_a_parallel_residual(changes):
    """Gains, shifts, biases, values, units and head. Heads look everywhere alike."""
    teacher = gpt2(n_layer=2)
    for parameter in teacher.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    teacher.transformer.wpe.weight.zero_()
    for layer in teacher.transformer.h:
        layer.attn.c_attn.weight[:, :16] = 0
        layer.attn.c_attn.bias[:16] = 0
    settings = {"num_hidden_layers": 2, **changes}
    ours = student(use_parallel_residual=False, hidden_act="gelu_new", **settings)
    start(teacher, ours, rows)
    # The two models' norms have another ε, and least squares have a ridge.
    assert divergence(teacher, ours) < 1e-4


# -- near ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "changes", "share"),
    [
        (1, {}, 0.3),
        pytest.param(2, {}, 0.3, marks=pytest.mark.slow),
        (1, {"use_parallel_residual": False}, 0.2),
        pytest.param(1, {"width": 32}, 0.35, marks=pytest.mark.slow),
        (1, {"width": 12}, 0.4),
        pytest.param(1, {"num_attention_heads": 4}, 0.4, marks=pytest.mark.slow),
        (1, {"num_hidden_layers": 3}, 0.3),
        pytest.param(1, {"intermediate_size": 100}, 0.3, marks=pytest.mark.slow),
        pytest.param(1, {"rotary_pct": 1.0}, 0.3, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_it_is_near_to_its_teacher_before_its_first_step(layers, changes, share):
    """Beside the tables alone."""
    teacher = trained(layers)
    settings = {"num_hidden_layers": layers, **changes}
    tables = started(teacher, student(**settings))
    ours = started(teacher, student(**settings), rows=rows)
    assert divergence(teacher, ours) < share * divergence(teacher, tables)


# -- what is set -----------------------------------------------------------------------------------


def test_all_is_set_but_what_further_layers_read():
    ours = student(num_hidden_layers=2)
    fresh = {name: x.clone() for name, x in ours.named_parameters()}
    names = start(trained(), ours, rows)
    assert names == list(dict.fromkeys(names))
    left = set(fresh) - set(names)
    readers = ("attention.query_key_value", "mlp.dense_h_to_4h")
    norms = ("input_layernorm", "post_attention_layernorm")
    assert left == {
        f"gpt_neox.layers.1.{name}.{part}"
        for name in (*readers, *norms)
        for part in ("weight", "bias")
    }
    for name in left:
        assert torch.equal(ours.get_parameter(name), fresh[name])
    assert not ours.get_parameter("gpt_neox.layers.1.mlp.dense_4h_to_h.weight").any()


@pytest.mark.parametrize(
    ("of_teacher", "of_student"),
    [
        ({}, {"tie_word_embeddings": True}),
        ({}, {"hidden_act": "relu"}),
        ({}, {"attention_bias": False}),
        ({}, {"num_attention_heads": 1}),
        ({"n_layer": 2}, {}),
        ({"activation_function": "relu"}, {}),
    ],
    ids=str,
)
def test_other_pairs_have_the_tables_alone(of_teacher, of_student):
    names = start(gpt2(**of_teacher), student(**of_student), never)
    assert "gpt_neox.embed_in.weight" in names
    assert not any(".layers." in name for name in names)


def test_too_few_rows_are_not_used():
    names = start(gpt2(), student(), lambda positions: text(2, seed=1))
    assert not any(".layers." in name for name in names)


def test_a_summary_writes_the_rows_itself():
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    models = [tiny_model("gpt_neox") for _ in range(2)]
    names = [farzi.start(model, 0) for model in models]
    assert set(names[0]) == {name for name, _ in models[0].named_parameters()}
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


# -- hostile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_one_error(value):
    ours = student().float()
    with pytest.raises(ValueError, match=r"begin at random|take 'random'"):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(WEIGHTS[0], value), rows)
    for one, other in zip(ours.parameters(), student().float().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", WEIGHTS)
def test_huge_numbers_set_finite_ones_or_nothing(name):
    ours = student().float()
    with suppress(ValueError):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(name, 1e38), rows)
    assert all(bool(torch.isfinite(x).all()) for x in ours.parameters())
