"""A start of students from the carried teacher: a model of any kind computes with the teacher's
tables as the teacher does.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import (
    CONFIGS,
    LENGTH,
    NEXT_ITEM,
    SPECIAL,
    V,
    config_of,
    tiny_model,
    tiny_summary,
)
from transformers import AutoConfig, AutoModelForCausalLM

from farzi_hf.summary import FarziData
from farzi_hf.summary.start import _Look, start, start_values, tables_of

OTHERS = {
    "cohere": {},
    "granite": {"embedding_multiplier": 3.0, "logits_scaling": 2.0},
    "gemma2": {"final_logit_softcapping": 5.0},
    "olmo2": {},
}
KINDS = [*CONFIGS, *OTHERS]
TEXT = [kind for kind in KINDS if kind not in NEXT_ITEM]


def model_of(kind: str, **changes):
    """A small model whose weights are all random, also those that start as 0 or 1."""
    if kind in OTHERS:
        attention = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
        sizes = {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "intermediate_size": 16,
            "vocab_size": V,
        }
        settings = {**sizes, **attention, **SPECIAL, **OTHERS[kind], **changes}
        config = AutoConfig.for_model(kind, **settings)
    else:
        config = config_of(kind, **changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def ids_of(model) -> torch.Tensor:
    return torch.arange(1, 6)[None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_the_teachers_kind_with_its_layers_is_the_teacher(kind):
    """The last norm's gain is in the head then, and what the norm adds in the head's bias."""
    teacher = model_of(kind)
    student = model_of(kind)
    names = start(teacher, student)
    look = _Look(teacher)
    norm = look._run.last_norm
    has_gain = look.head_name in names and look.head_name != look.embedding_name
    has_shift = look.bias_name in names
    with torch.no_grad():
        if norm is not None and has_gain and not has_shift and hasattr(norm, "bias"):
            norm.bias.zero_()  # a head without a bias cannot have it
        for name, x in student.named_parameters():
            if name in names:
                continue
            weight = teacher.get_parameter(name)
            x.copy_(weight)
            if norm is not None and weight is norm.weight and has_gain:
                x.fill_(1.0 - look._run.gain_of_zero(norm))
            elif norm is not None and weight is getattr(norm, "bias", None) and has_shift:
                x.zero_()
    ids = ids_of(teacher)
    torch.testing.assert_close(student(ids).logits, teacher(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", TEXT)
def test_the_layers_of_any_model_read_what_the_teachers_read(kind):
    teacher = model_of("gemma")
    student = model_of(kind)
    assert start(teacher, student)[0] == _Look(student).embedding_name
    torch.testing.assert_close(tables_of(student).inputs, tables_of(teacher).inputs)


@pytest.mark.parametrize("kind", TEXT)
def test_a_model_of_any_kind_can_teach(kind):
    student = model_of("farzi_rnn")
    assert start(model_of(kind), student)[:2] == ["embedding.weight", "output.weight"]
    torch.testing.assert_close(tables_of(student).inputs, tables_of(model_of(kind)).inputs)
    head = tables_of(model_of(kind)).head
    larger = 1.0 if kind == "farzi_rnn" else 3.0  # states of a recurrent model are at most 1
    torch.testing.assert_close(tables_of(student).head, larger * head, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_head_is_larger_where_states_are_bounded():
    """A trained recommender's states behind its last norm, with its gain, and an embedding that is
    the head.
    """
    teacher = model_of("fmlp", tie_word_embeddings=True)
    last = teacher.encoder.layers[-1].pointwise_norm
    last.weight.fill_(2.0)
    last.bias.zero_()
    table = teacher.get_input_embeddings().weight
    for kind, larger in (("gru4rec", 6.0), ("sasrec", 1.0), ("fmlp", 1.0)):
        student = model_of(kind, tie_word_embeddings=True)
        start(teacher, student)
        own = student.get_input_embeddings().weight
        torch.testing.assert_close(own, larger * table, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_dropout_of_a_new_model_hides_nothing():
    """A new model is in training mode, and stays so; dropout would enlarge the states."""
    teacher = model_of("fmlp", tie_word_embeddings=True)
    student = model_of("gru4rec", tie_word_embeddings=True, dropout=0.5).train()
    student.embedding.eval()
    start(teacher, student)
    assert student.encoder.training
    assert not student.embedding.training
    table = teacher.get_input_embeddings().weight
    assert float(student.get_input_embeddings().weight.norm() / table.norm()) > 2


@torch.no_grad()
def test_an_embedding_is_not_larger_where_the_head_is_not_the_teachers():
    """Of a student whose head is its embedding, while the teacher has another one."""
    teacher = model_of("fmlp", tie_word_embeddings=False)
    student = model_of("gru4rec", tie_word_embeddings=True)
    start(teacher, student)
    torch.testing.assert_close(tables_of(student).inputs, tables_of(teacher).inputs)


@pytest.mark.parametrize("teacher", NEXT_ITEM)
@pytest.mark.parametrize("kind", NEXT_ITEM)
def test_recommenders_start_from_each_other(teacher, kind):
    names = start(model_of(teacher), model_of(kind))
    assert "embedding.weight" in names
    both_have_positions = "gru4rec" not in (teacher, kind)
    assert ("encoder.positions.weight" in names) is both_have_positions


@pytest.mark.parametrize("width", [4, 8, 24])
def test_another_width_keeps_what_it_can(width):
    """Products of the two tables, which a model without layers would predict by."""
    teacher = model_of("gpt2", tie_word_embeddings=False)
    student = model_of("farzi_rnn", hidden_size=width)
    start(teacher, student)
    with torch.no_grad():
        given = tables_of(teacher)
        made = tables_of(student)
    made = replace(made, head=made.head / 3)  # states of this student are at most 1
    wanted = given.inputs @ given.head.T
    error = float((made.inputs @ made.head.T - wanted).norm() / wanted.norm())
    if width >= 16:
        assert error < 1e-5
    else:
        parts = torch.randperm(16, generator=torch.Generator().manual_seed(1))[:width]
        chosen = given.inputs[:, parts] @ given.head[:, parts].T
        assert error < float((chosen - wanted).norm() / wanted.norm())


def test_what_is_not_of_the_vocabulary_stays():
    student = model_of("llama")
    before = {name: x.clone() for name, x in student.named_parameters()}
    names = start(model_of("gpt2"), student)
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]
    for name, x in student.named_parameters():
        assert torch.equal(x, before[name]) is (name not in names)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mamba", "gru4rec"])
def test_a_deeper_student_of_the_same_kind_has_the_teachers_layers(kind):
    deeper = "n_layer" if kind == "gpt2" else "num_hidden_layers"
    teacher = model_of(kind)
    student = model_of(kind, **{deeper: 2})
    fresh = {name: x.clone() for name, x in student.named_parameters()}
    names = start(teacher, student)
    theirs = {name for name, _ in teacher.named_parameters() if ".0." in name}
    assert theirs <= set(names)
    for name in theirs:
        assert torch.equal(student.get_parameter(name), teacher.get_parameter(name))
    for name in set(fresh) - set(names):
        assert torch.equal(student.get_parameter(name), fresh[name])
    assert not any(".1." in name for name in names)


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ({}, {}),
        ({"num_hidden_layers": 2}, {}),
        ({}, {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}),
        ({}, {"num_hidden_layers": 2, "hidden_size": 24}),
    ],
)
def test_no_other_student_has_its_layers(teacher, student):
    names = start(model_of("llama", **teacher), model_of("llama", **student))
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{"n_embd": 24}, {"n_embd": 32}, {"n_embd": 24, "n_head": 3}, {"n_embd": 24, "n_layer": 3}],
)
def test_a_wider_gpt2_computes_what_the_teacher_does(is_tied, changes):
    teacher = model_of("gpt2", tie_word_embeddings=is_tied)
    student = model_of("gpt2", tie_word_embeddings=False, n_inner=100, **changes)
    start(teacher.double(), student.double())
    with torch.no_grad():
        expected = teacher(ids_of(teacher)).logits
        found = student(ids_of(student)).logits
    # Two widths share one epsilon of their norms.
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_narrower_gpt2_computes_what_a_teacher_of_no_more_directions_does():
    narrow = model_of("gpt2", tie_word_embeddings=False, n_embd=8)
    teacher = model_of("gpt2", tie_word_embeddings=False, n_embd=24)
    start(narrow.double(), teacher.double())  # three times as wide, but with 7 directions in use
    student = model_of("gpt2", tie_word_embeddings=False, n_embd=8)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.copy_(torch.randn_like(parameter))
    start(teacher, student.double())
    with torch.no_grad():
        found = student(ids_of(student)).logits
        expected = narrow(ids_of(narrow)).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"n_head": 1},
        {"activation_function": "relu"},
        {"scale_attn_weights": False},
    ],
)
def test_another_gpt2_of_another_width_has_the_tables_alone(changes):
    student = model_of("gpt2", **{"n_embd": 24, "tie_word_embeddings": False, **changes})
    names = start(model_of("gpt2", tie_word_embeddings=False), student)
    assert not any(".h." in name for name in names)


def test_values_have_the_types_of_the_model():
    student = model_of("llama").double()
    assert {x.dtype for x in start_values(model_of("gpt2"), student).values()} == {torch.float64}


def test_another_vocabulary_is_named():
    with pytest.raises(
        ValueError, match=r"^model has a vocabulary of 14 entries, the summary one of 13"
    ):
        start(tiny_model("gpt2"), tiny_model("llama", 14))


def test_a_summary_starts_a_model_from_its_teacher(tmp_path):
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    farzi.save_pretrained(tmp_path)
    students = [model_of("llama"), model_of("llama")]
    names = [farzi.start(students[0]), FarziData.from_pretrained(tmp_path).start(students[1])]
    assert names[0] == names[1]
    assert {"model.embed_tokens.weight", "lm_head.weight"} < set(names[0])
    for one, other in zip(*(student.parameters() for student in students), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match=r"^model has a vocabulary of 14 entries, the summary one"):
        farzi.start(tiny_model("llama", V + 1))
    with pytest.raises(ValueError, match=r"^labels='shared': no teacher is carried; start\(\) is"):
        tiny_summary().start(tiny_model("llama"))


def test_tables_are_no_part_of_a_graph():
    """A training from such a start would keep its first steps for a backward pass."""
    tables = tables_of(model_of("gpt2", tie_word_embeddings=False))
    assert not tables.inputs.requires_grad
    assert not tables.head.requires_grad


def test_the_random_numbers_of_the_caller_stay_as_they_are():
    student = model_of("gpt2", attn_pdrop=0.1, embd_pdrop=0.1).train()
    teacher = model_of("llama")
    before = torch.random.get_rng_state()
    start(teacher, student)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert student.training


def test_a_new_norm_may_have_another_gain_than_one():
    """A Nemotron adds one to weights that begin at one, so its states are twice as large."""
    teacher = model_of("gpt2", tie_word_embeddings=False)
    attention = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "vocab_size": V}
    student = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("nemotron", **sizes, **attention, **SPECIAL)
    )
    names = start(teacher, student)
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]
    torch.testing.assert_close(tables_of(student).head, tables_of(teacher).head)
