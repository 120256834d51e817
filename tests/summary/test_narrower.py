"""A narrower GPT-2 that takes its teacher's layers by the states that the teacher has: exact where
the teacher uses no more directions, and nearer to it than weights alone where it uses all.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tiny_models import LENGTH, V, tiny_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf.summary import FarziData, narrower
from farzi_hf.summary.layers import Gpt2
from farzi_hf.summary.narrower import narrower_layers
from farzi_hf.summary.start import start, start_values
from farzi_hf.summary.student_starts import STUDENT_STARTS

ENTRIES = 24
SHAPE = {"vocab_size": ENTRIES, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1}
NO_DROPOUT = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}


@pytest.fixture(autouse=True)
def few_positions(monkeypatch):
    """A quarter of the positions that are read by default, enough for such small models."""
    monkeypatch.setattr(narrower, "_POSITIONS", 2**12)


def gpt2(**changes) -> GPT2LMHeadModel:
    """A small GPT-2 in float64, whose weights are all random, also those that start as 0 or 1."""
    settings = {**SHAPE, **SPECIAL, **NO_DROPOUT, "tie_word_embeddings": False, **changes}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**settings)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def random_rows(seed: int = 0):
    """Rows of random ids, as many positions as are asked for."""

    def rows(positions: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(2, ENTRIES, (positions // 8, 8), generator=generator)

    return rows


def never(positions: int) -> Tensor:
    raise AssertionError("rows were made")


def started(teacher, rows, **changes) -> GPT2LMHeadModel:
    student = gpt2(n_embd=8, **changes)
    start(teacher, student, rows)
    return student


@torch.no_grad()
def logits(model, ids: Tensor) -> Tensor:
    return model(input_ids=ids).logits.log_softmax(-1)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_function": "relu"},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ],
)
def test_it_computes_what_a_teacher_of_no_more_directions_does(changes):
    narrow = gpt2(n_embd=8, **changes)
    teacher = gpt2(n_embd=24, **changes)
    start(narrow, teacher)  # three times as wide, but with 7 directions in use
    ids = random_rows(1)(64)
    found = started(teacher, random_rows(), n_inner=100, **changes)
    torch.testing.assert_close(logits(found, ids), logits(narrow, ids), rtol=1e-3, atol=1e-3)


def test_a_tied_teacher_is_read_like_one_that_is_not():
    student = gpt2(n_embd=8)
    names = start(gpt2(tie_word_embeddings=True), student, random_rows())
    assert any(".h.1." in name for name in names)


def test_layers_that_only_the_student_has_change_nothing_yet():
    teacher = gpt2()
    ids = random_rows(1)(64)
    deeper = started(teacher, random_rows(), n_layer=4)
    as_deep = started(teacher, random_rows())
    torch.testing.assert_close(logits(deeper, ids), logits(as_deep, ids))
    learning = deeper.transformer.h[3]
    assert learning.attn.c_attn.weight.any()
    assert learning.mlp.c_fc.weight.any()


@pytest.mark.parametrize(
    "changes",
    [{}, {"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}],
)
def test_what_layers_do_with_states_is_what_the_model_does(changes):
    model = gpt2(activation_function="gelu_new", **changes)
    ids = random_rows()(64)
    theirs = Gpt2(model)
    reader = narrower.Reader(model.config)
    x = theirs.states(ids)
    for number, layer in enumerate(narrower.layers_of(theirs, 2)):
        x = x + reader.attention(layer, number, reader.normed(x))
        x = x + reader.mlp(layer, reader.normed(x))
    found = reader.normed(x) @ theirs.head.T + theirs.head_bias
    torch.testing.assert_close(found.log_softmax(-1), logits(model, ids))


def test_gradients_are_those_of_the_likelihood_of_rows():
    """Against a finite difference in what the head reads."""
    model = gpt2()
    ids = random_rows()(64)
    theirs = Gpt2(model)
    reader = narrower.Reader(model.config)
    layers = narrower.layers_of(theirs, model.config.n_layer)
    found = list(narrower._states_and_gradients(theirs, reader, layers, ids))
    assert len(found) == 5
    states, gradient = found[-1]
    step = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).double() * 1e-5

    def loss(x: Tensor) -> float:
        of_entries = (x @ theirs.head.T + theirs.head_bias).log_softmax(-1).view(*ids.shape, -1)
        return -float(of_entries[:, :-1].gather(2, ids[:, 1:, None]).sum())

    slope = (loss(states + step) - loss(states - step)) / 2
    assert slope == pytest.approx(float((gradient * step).sum()), rel=1e-4)


# -- a trained teacher -----------------------------------------------------------------------------


def sequences(count: int, seed: int) -> Tensor:
    """Rows (count, 12) of a process with a memory of two ids, whose entries are not alike."""
    table = torch.randn(2, ENTRIES, ENTRIES, generator=torch.Generator().manual_seed(5))
    left, _, right = torch.linalg.svd(table)
    spread = 40 * 0.75 ** torch.arange(ENTRIES)
    tables = left * spread @ right
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, ENTRIES, (count, 2), generator=generator)
    while ids.shape[1] < 12:
        shares = (tables[0][ids[:, -2]] / 2 + tables[1][ids[:, -1]]).softmax(-1)
        drawn = torch.multinomial(shares, 1, generator=generator)
        ids = torch.cat([ids, drawn], dim=1)
    return ids


@cache
def trained() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    settings = {**SHAPE, **SPECIAL, **NO_DROPOUT, "tie_word_embeddings": False}
    model = GPT2LMHeadModel(GPT2Config(**settings, initializer_range=0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(150):
        ids = sequences(64, step)
        of_entries = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(of_entries, ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def loss_of(model) -> float:
    ids = sequences(256, 10**6)
    of_entries = model(input_ids=ids).logits.log_softmax(-1)[:, :-1]
    return -float(of_entries.gather(2, ids[:, 1:, None]).mean())


@pytest.mark.parametrize("width", [6, pytest.param(8, marks=pytest.mark.slow), 12])
def test_it_is_nearer_to_a_trained_teacher_than_by_weights_alone(width):
    teacher = trained()
    farzi = FarziData.from_teacher(teacher, sequence_length=12, storage="exact")
    losses = []
    for seed in range(3):
        student = gpt2(n_embd=width)
        farzi.start(student, seed=seed)
        losses.append(loss_of(student))
    student = gpt2(n_embd=width)
    start(teacher, student)
    by_weights = loss_of(student)
    teachers = loss_of(teacher)
    print(losses, by_weights, teachers)
    assert max(losses) < by_weights
    assert max(losses) - teachers < (by_weights - teachers) * 2 / 3


# -- when, and on which rows -----------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"n_embd": 24}, {"n_embd": 16}, {"n_embd": 8, "n_head": 1}])
def test_no_other_student_asks_for_rows(changes):
    teacher = gpt2()
    values = start_values(teacher, gpt2(**changes), never)
    alone = start_values(teacher, gpt2(**changes))
    assert values.keys() == alone.keys()
    assert all(torch.equal(values[name], alone[name]) for name in values)


def test_a_teacher_that_is_too_large_is_looked_at_by_weights_alone(monkeypatch):
    teacher = gpt2()
    monkeypatch.setattr(narrower, "_WORK", 10**6)
    student = gpt2(n_embd=8)
    assert narrower_layers(teacher, student, never) == {}
    assert any(".h.0." in name for name in start_values(teacher, student, never))


def test_too_few_rows_are_not_fitted():
    assert narrower_layers(gpt2(), gpt2(n_embd=8), lambda positions: random_rows()(64)) == {}


def test_a_seed_has_its_rows_and_so_its_start():
    teacher = tiny_model("gpt2")
    summaries = [
        FarziData.from_teacher(teacher, inputs=inputs, sequence_length=LENGTH)
        for inputs in ("drawn", "written")
    ]

    def weights(farzi: FarziData, seed: int) -> Tensor:
        student = tiny_student()
        assert "transformer.h.0.attn.c_attn.weight" in farzi.start(student, seed=seed)
        return student.transformer.h[0].attn.c_attn.weight

    one, again, other = (weights(summaries[0], seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(one, weights(summaries[1], 0))


def test_fixed_ids_are_the_rows_where_there_are_some():
    ids = torch.randint(0, V, (400, LENGTH), generator=torch.Generator().manual_seed(0))
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH).with_rows(ids)
    read = farzi.forms.rows_of_start(farzi.tensors, 0)(100 * LENGTH)
    assert torch.equal(read, ids[:100])
    assert "transformer.h.0.attn.c_attn.weight" in farzi.start(tiny_student())


def test_the_callers_modes_do_not_matter():
    farzi = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=LENGTH)
    one = tiny_student()
    other = tiny_student()
    farzi.start(one)
    with torch.inference_mode():
        farzi.start(other)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.requires_grad


def test_a_teacher_of_infinite_states_is_named():
    teacher = gpt2()
    with torch.no_grad():
        teacher.transformer.h[0].mlp.c_proj.weight.fill_(1e200)
        teacher.transformer.h[1].mlp.c_fc.weight.fill_(1e300)
    with pytest.raises(ValueError, match=r"begin at random|take 'random'"):
        STUDENT_STARTS["teacher"].values(teacher, gpt2(n_embd=8), random_rows())


def tiny_student() -> GPT2LMHeadModel:
    """Narrower than the tiny teacher."""
    config = tiny_model("gpt2").config
    settings = {**config.to_diff_dict(), "n_embd": config.n_embd // 2, "tie_word_embeddings": False}
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(**settings))
