"""Students whose positions are rotary, a Llama or a GPT-NeoX, that begin with the layers of a
GPT-2: exact where norms, values and units can be, and near to a trained teacher where positions are
of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

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

slow = pytest.mark.slow


@dataclass(frozen=True)
class Kind:
    """What the tests know of a kind of student."""

    name: str
    """Of its config's class, as `AutoConfig` knows it."""
    embedding: str
    layers: str
    """What the names of its layers' parameters begin with."""
    readers: tuple[str, ...]
    """Parameters of a layer that read the states, and those of its norms."""
    writer: str
    """A parameter of a layer that writes into the states."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def student(self, width: int = 16, **changes: Any) -> PreTrainedModel:
        sizes = {"num_hidden_layers": 1, "hidden_size": width, "intermediate_size": 4 * width}
        settings = {
            "num_attention_heads": 2,
            "tie_word_embeddings": False,
            "initializer_range": 0.1,
        }
        return made(**{"kind": self.name, **sizes, **settings, **self.settings, **changes})


NAMES_OF_A_LLAMA = (
    "model.embed_tokens.weight",
    "model.layers.",
    (
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.up_proj.weight",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ),
    "mlp.down_proj.weight",
    {"num_key_value_heads": 2},
)
LLAMA = Kind("llama", *NAMES_OF_A_LLAMA)
MISTRAL = Kind("mistral", *NAMES_OF_A_LLAMA)
QWEN2 = Kind("qwen2", *NAMES_OF_A_LLAMA)
NEOX = Kind(
    "gpt_neox",
    "gpt_neox.embed_in.weight",
    "gpt_neox.layers.",
    tuple(
        f"{module}.{part}"
        for module in (
            "attention.query_key_value",
            "mlp.dense_h_to_4h",
            "input_layernorm",
            "post_attention_layernorm",
        )
        for part in ("weight", "bias")
    ),
    "mlp.dense_4h_to_h.weight",
)
LLAMAS = (LLAMA, MISTRAL, QWEN2)

of_both = pytest.mark.parametrize("kind", [LLAMA, NEOX], ids=lambda kind: kind.name)


def named(value: Any) -> str:
    """A case's part of a test's name."""
    return value.name if isinstance(value, Kind) else str(value)


def head_of(model: PreTrainedModel) -> str:
    head = model.get_output_embeddings().weight
    return next(name for name, x in model.named_parameters() if x is head)


# -- exact -----------------------------------------------------------------------------------------


@torch.no_grad()
def without_positions(**changes: Any) -> GPT2LMHeadModel:
    """A teacher whose heads look everywhere alike."""
    teacher = gpt2(**changes)
    for parameter in teacher.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    teacher.transformer.wpe.weight.zero_()
    for layer in teacher.transformer.h:
        layer.attn.c_attn.weight[:, :16] = 0
        layer.attn.c_attn.bias[:16] = 0
    return teacher


@torch.no_grad()
def of_equal_length() -> GPT2LMHeadModel:
    """Such a teacher whose embeddings have one length, also with the biases of what writes, and
    whose MLP adds its bias alone.
    """
    teacher = without_positions()
    layer = teacher.transformer.h[0]
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
CORNERS = [(LLAMA, SHAPES[0]), *((kind, SHAPES[-1]) for kind in LLAMAS)]
OTHERS = [(kind, shape) for kind in LLAMAS for shape in SHAPES if (kind, shape) not in CORNERS]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*CORNERS, *(pytest.param(*pair, marks=slow) for pair in OTHERS)],
    ids=named,
)
@torch.no_grad()
def test_norms_biases_and_values_of_a_llama_are_exact(kind, changes):
    """The states behind the layer, but for the constant, which the sums of the states show."""
    teacher = of_equal_length()
    ours = kind.student(num_hidden_layers=2, **changes)
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
    # An isometry keeps all products; the norms have another ε, least squares a ridge.
    close = {"rtol": 1e-5, "atol": 1e-5}
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    torch.testing.assert_close(y @ y.T, x @ x.T, **close)


@pytest.mark.parametrize(
    "changes", [{}, {"width": 24, "num_attention_heads": 3}, {"num_hidden_layers": 3}], ids=str
)
def test_all_but_positions_of_a_neox_is_exact_without_a_parallel_residual(changes):
    """Gains, shifts, biases, values, units and head."""
    teacher = without_positions(n_layer=2)
    settings = {"num_hidden_layers": 2, **changes}
    ours = NEOX.student(use_parallel_residual=False, hidden_act="gelu_new", **settings)
    start(teacher, ours, rows)
    # The two models' norms have another ε, and least squares have a ridge.
    assert divergence(teacher, ours) < 1e-4


# -- near ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "layers", "changes", "share"),
    [
        *(pytest.param(kind, 1, {}, 0.15, marks=slow) for kind in LLAMAS),
        (LLAMA, 2, {}, 0.15),
        *(pytest.param(kind, 2, {}, 0.15, marks=slow) for kind in LLAMAS[1:]),
        (LLAMA, 1, {"width": 32}, 0.4),
        (LLAMA, 1, {"width": 12}, 0.4),
        (LLAMA, 1, {"intermediate_size": 100}, 0.4),
        (LLAMA, 1, {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8}, 0.4),
        (LLAMA, 1, {"attention_bias": True, "mlp_bias": True}, 0.4),
        (LLAMA, 1, {"num_hidden_layers": 3}, 0.4),
        (NEOX, 1, {}, 0.3),
        pytest.param(NEOX, 2, {}, 0.3, marks=slow),
        (NEOX, 1, {"use_parallel_residual": False}, 0.2),
        pytest.param(NEOX, 1, {"width": 32}, 0.35, marks=slow),
        (NEOX, 1, {"width": 12}, 0.4),
        pytest.param(NEOX, 1, {"num_attention_heads": 4}, 0.4, marks=slow),
        (NEOX, 1, {"num_hidden_layers": 3}, 0.3),
        pytest.param(NEOX, 1, {"intermediate_size": 100}, 0.3, marks=slow),
        pytest.param(NEOX, 1, {"rotary_pct": 1.0}, 0.3, marks=slow),
    ],
    ids=named,
)
def test_it_is_near_to_its_teacher_before_its_first_step(kind, layers, changes, share):
    """Beside the tables alone."""
    teacher = trained(layers)
    settings = {"num_hidden_layers": layers, **changes}
    tables = started(teacher, kind.student(**settings))
    ours = started(teacher, kind.student(**settings), rows=rows)
    assert divergence(teacher, ours) < share * divergence(teacher, tables)


def test_the_steps_of_queries_and_keys_bring_it_nearer(monkeypatch):
    teacher = trained()
    ours = started(teacher, LLAMA.student(), rows=rows)
    monkeypatch.setattr(rotations, "_RATE", 0.0)
    without = started(teacher, LLAMA.student(), rows=rows)
    assert divergence(teacher, ours) < 0.7 * divergence(teacher, without)


# -- what is set -----------------------------------------------------------------------------------


@of_both
def test_all_is_set_but_what_further_layers_read(kind):
    ours = kind.student(num_hidden_layers=2)
    fresh = {name: x.clone() for name, x in ours.named_parameters()}
    names = start(trained(), ours, rows)
    assert names == list(dict.fromkeys(names))
    left = set(fresh) - set(names)
    assert left == {f"{kind.layers}1.{name}" for name in kind.readers}
    for name in left:
        assert torch.equal(ours.get_parameter(name), fresh[name])
    assert not ours.get_parameter(f"{kind.layers}1.{kind.writer}").any()


@of_both
def test_every_number_of_wider_heads_can_learn(kind):
    ours = started(trained(), kind.student(width=32), rows=rows)
    ids = text(32, seed=5)
    for _ in range(2):  # what reads learns once something is written
        ours.zero_grad()
        loss = ours(input_ids=ids, labels=ids).loss
        loss.backward()
        with torch.no_grad():
            for parameter in ours.parameters():
                parameter -= 0.1 * parameter.grad
    for name, parameter in ours.named_parameters():
        assert (parameter.grad != 0).all(), name


@pytest.mark.parametrize(
    ("kind", "of_teacher", "of_student"),
    [
        (LLAMA, {}, {"tie_word_embeddings": True}),
        (LLAMA, {}, {"hidden_act": "gelu"}),
        (LLAMA, {}, {"num_attention_heads": 1, "num_key_value_heads": 1}),
        (LLAMA, {"n_layer": 2}, {}),
        (LLAMA, {"activation_function": "relu"}, {}),
        (LLAMA, {"scale_attn_weights": False}, {}),
        (LLAMA, {}, {"kind": "olmo"}),
        (NEOX, {}, {"tie_word_embeddings": True}),
        (NEOX, {}, {"hidden_act": "relu"}),
        (NEOX, {}, {"attention_bias": False}),
        (NEOX, {}, {"num_attention_heads": 1}),
        (NEOX, {"n_layer": 2}, {}),
        (NEOX, {"activation_function": "relu"}, {}),
    ],
    ids=named,
)
def test_other_pairs_have_the_tables_alone(kind, of_teacher, of_student):
    names = start(gpt2(**of_teacher), kind.student(**of_student), never)
    assert kind.embedding in names
    assert not any(".layers." in name for name in names)


@of_both
def test_too_few_rows_are_not_used(kind):
    ours = kind.student()
    names = start(gpt2(), ours, lambda positions: text(2, seed=1))
    assert names == [kind.embedding, head_of(ours)]


@of_both
def test_the_same_rows_make_the_same_start_and_no_other_draws(kind):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = kind.student()
    second = kind.student()
    torch.set_rng_state(state)
    for model in (first, second):
        start(trained(), model, rows)
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@of_both
def test_a_summary_writes_the_rows_itself(kind):
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    models = [tiny_model(kind.name) for _ in range(3)]
    names = [farzi.start(model, seed) for model, seed in zip(models, (0, 0, 1), strict=True)]
    assert set(names[0]) == {name for name, _ in models[0].named_parameters()}
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other)
    head = head_of(models[0])
    assert not torch.equal(models[0].get_parameter(head), models[2].get_parameter(head))


# -- hostile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", WEIGHTS)
@of_both
def test_numbers_that_are_not_finite_are_one_error(kind, name, value):
    ours = kind.student().float()
    with pytest.raises(ValueError, match=r"begin at random|take 'random'"):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(name, value), rows)
    for one, other in zip(ours.parameters(), kind.student().float().parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name", [WEIGHTS[0], *(pytest.param(name, marks=slow) for name in WEIGHTS[1:])]
)
@of_both
def test_huge_numbers_set_finite_ones_or_nothing(kind, name):
    ours = kind.student().float()
    with suppress(ValueError):
        STUDENT_STARTS["teacher"].set_into(ours, hostile(name, 1e38), rows)
    assert all(bool(torch.isfinite(x).all()) for x in ours.parameters())
